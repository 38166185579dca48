//! Every operation of the interface as a method. Selectors (an id, a unique prefix, a name, `last`) are resolved by
//! the server.

use bytes::Bytes;

use super::{Body, Client, Download, Error, Events, Line, Logs, Method, encode};
use crate::cluster::ClusterList;
use crate::doctor::Doctor;
use crate::element::{ElementPage, ListElements};
use crate::metrics::{JobMetrics, MetricsQuery, NodeMetrics};
use crate::pool::{AddHosts, DrainNode, PoolList, PoolView, PutPool, RemoveHosts, ShowPool};
use crate::view::{
    AllEventsQuery, BundleStatus, ChunkList, CopyQuery, CreateJob, DownloadQuery, EventsQuery, FileList,
    FilesQuery, Gc, GcReport, JobDetail, JobPage, JobSummary, LabelNode, ListJobs, LogsQuery, NodeList,
    NodeView, Preview, PutBundle, RenameJob, ServerReload, ServerView, SshQuery, StopJob, Why,
};
use muster_model::ChunkId;

impl Client {
    /// Submits a job. The same key submits it once, however often it is sent.
    pub async fn create_job(&self, job: &CreateJob, idempotency_key: &str) -> Result<JobDetail, Error> {
        let headers = [("idempotency-key", idempotency_key)];
        self.json(Method::POST, "/jobs", Body::Json(&encode("/jobs", job)?), &headers).await
    }

    /// Checks a job and shows what would be made of it.
    pub async fn preview_job(&self, job: &CreateJob) -> Result<Preview, Error> {
        self.request(Method::POST, "/jobs?dry_run=true", Some(job)).await
    }

    /// A page of jobs, the newest first.
    pub async fn jobs(&self, query: &ListJobs) -> Result<JobPage, Error> {
        let pairs = [
            ("state", query.state.clone()),
            ("name", query.name.clone()),
            ("kind", query.kind.clone()),
            ("label", query.label.clone()),
            ("limit", query.limit.map(|limit| limit.to_string())),
            ("cursor", query.cursor.clone()),
        ];
        self.get(&with_query("/jobs", &pairs)).await
    }

    /// One job in full.
    pub async fn job(&self, selector: &str) -> Result<JobDetail, Error> {
        self.get(&job_path(selector, "")).await
    }

    /// A page of an array's elements, by index.
    pub async fn elements(&self, selector: &str, query: &ListElements) -> Result<ElementPage, Error> {
        let pairs = [
            ("state", query.state.clone()),
            ("limit", query.limit.map(|limit| limit.to_string())),
            ("after", query.after.map(|after| after.to_string())),
        ];
        self.get(&with_query(&job_path(selector, "/elements"), &pairs)).await
    }

    /// Asks a job to stop; the reply does not wait for it.
    pub async fn stop_job(&self, selector: &str, how: &StopJob) -> Result<JobSummary, Error> {
        self.request(Method::POST, &job_path(selector, "/stop"), Some(how)).await
    }

    /// Parks a job: its tasks end, and nothing is held. The reply does not wait for that.
    pub async fn suspend_job(&self, selector: &str) -> Result<JobSummary, Error> {
        self.json(Method::POST, &job_path(selector, "/suspend"), Body::None, &[]).await
    }

    /// Brings a parked job back to the queue.
    pub async fn resume_job(&self, selector: &str) -> Result<JobSummary, Error> {
        self.json(Method::POST, &job_path(selector, "/resume"), Body::None, &[]).await
    }

    /// Keeps a job that waits in the queue.
    pub async fn hold_job(&self, selector: &str) -> Result<JobSummary, Error> {
        self.json(Method::POST, &job_path(selector, "/hold"), Body::None, &[]).await
    }

    /// Lets a job go that is held.
    pub async fn release_job(&self, selector: &str) -> Result<JobSummary, Error> {
        self.json(Method::POST, &job_path(selector, "/release"), Body::None, &[]).await
    }

    /// Parks one task of a job whose tasks are each on their own. The reply does not wait for its end.
    pub async fn suspend_task(&self, selector: &str, rank: u32) -> Result<JobSummary, Error> {
        let path = job_path(selector, &format!("/tasks/{rank}/suspend"));
        self.json(Method::POST, &path, Body::None, &[]).await
    }

    /// Starts such a task anew, if there is room. The reply does not wait until it runs.
    pub async fn resume_task(&self, selector: &str, rank: u32) -> Result<JobSummary, Error> {
        let path = job_path(selector, &format!("/tasks/{rank}/resume"));
        self.json(Method::POST, &path, Body::None, &[]).await
    }

    /// Ends such a task for good. The reply does not wait for that.
    pub async fn stop_task(&self, selector: &str, rank: u32) -> Result<JobSummary, Error> {
        let path = job_path(selector, &format!("/tasks/{rank}/stop"));
        self.json(Method::POST, &path, Body::None, &[]).await
    }

    /// Gives a job another name.
    pub async fn rename_job(&self, selector: &str, name: &str) -> Result<JobSummary, Error> {
        let rename = RenameJob { name: name.to_owned() };
        self.request(Method::POST, &job_path(selector, "/rename"), Some(&rename)).await
    }

    /// Gives one machine of a group a name of its own; `taskN.JOB` takes it away again.
    pub async fn rename_task(&self, selector: &str, rank: u32, name: &str) -> Result<JobSummary, Error> {
        let rename = RenameJob { name: name.to_owned() };
        self.request(Method::POST, &job_path(selector, &format!("/tasks/{rank}/rename")), Some(&rename)).await
    }

    /// Removes a job that is over, with its log and files.
    pub async fn delete_job(&self, selector: &str) -> Result<(), Error> {
        self.unary(Method::DELETE, &job_path(selector, ""), Body::None, &[]).await.map(drop)
    }

    /// Why a job is as it is.
    pub async fn why(&self, selector: &str) -> Result<Why, Error> {
        self.get(&job_path(selector, "/why")).await
    }

    /// What happened to a job.
    pub async fn events(&self, selector: &str, query: &EventsQuery) -> Result<Events, Error> {
        let pairs = [
            ("after", query.after.map(|seq| seq.to_string())),
            ("follow", query.follow.then(|| "true".to_owned())),
        ];
        self.stream(&with_query(&job_path(selector, "/events"), &pairs)).await.map(Events)
    }

    /// What happened lately, to all jobs.
    pub async fn all_events(&self, query: &AllEventsQuery) -> Result<Events, Error> {
        let pairs = [
            ("after", query.after.map(|seq| seq.to_string())),
            ("tail", query.tail.map(|count| count.to_string())),
            ("follow", query.follow.then(|| "true".to_owned())),
        ];
        self.stream(&with_query("/events", &pairs)).await.map(Events)
    }

    /// Everything the server knows, as an archive.
    pub async fn back_up(&self) -> Result<Download, Error> {
        self.download("/server/backup").await
    }

    /// Has the server read its configuration anew.
    pub async fn reload(&self) -> Result<ServerReload, Error> {
        self.json(Method::POST, "/server/reload", Body::None, &[]).await
    }

    /// Speaks SSH with a task, which lets in the holder of the key that the query names.
    pub async fn ssh(&self, selector: &str, query: &SshQuery) -> Result<Line, Error> {
        let pairs = [("task", query.task.map(|task| task.to_string())), ("key", Some(query.key.clone()))];
        self.upgrade(&with_query(&job_path(selector, "/ssh"), &pairs)).await
    }

    /// Copies files to or from a task; what is said over it is not this interface's affair.
    pub async fn copy(&self, selector: &str, query: &CopyQuery) -> Result<Line, Error> {
        let pairs = [("task", query.task.map(|task| task.to_string()))];
        self.upgrade(&with_query(&job_path(selector, "/copy"), &pairs)).await
    }

    /// What a job's tasks wrote.
    pub async fn logs(&self, selector: &str, query: &LogsQuery) -> Result<Logs, Error> {
        let pairs = [
            ("task", query.task.map(|rank| rank.to_string())),
            ("process_rank", query.process_rank.map(|rank| rank.to_string())),
            ("element", query.element.map(|index| index.to_string())),
            ("attempt", query.attempt.map(|number| number.to_string())),
            ("follow", query.follow.then(|| "true".to_owned())),
            ("tail", query.tail.map(|lines| lines.to_string())),
            ("since", query.since.clone()),
            ("until", query.until.clone()),
            ("grep", query.grep.clone()),
            ("ignore_case", query.ignore_case.then(|| "true".to_owned())),
            ("invert_match", query.invert_match.then(|| "true".to_owned())),
            ("cursor", query.cursor.clone()),
        ];
        self.stream(&with_query(&job_path(selector, "/logs"), &pairs)).await.map(Logs)
    }

    /// The same as a file: the bytes themselves, as long as they come.
    pub async fn download_logs(&self, selector: &str, query: &DownloadQuery) -> Result<Download, Error> {
        let pairs = [
            ("task", query.task.map(|rank| rank.to_string())),
            ("process_rank", query.process_rank.map(|rank| rank.to_string())),
            ("attempt", query.attempt.map(|number| number.to_string())),
            ("since", query.since.clone()),
            ("until", query.until.clone()),
            ("grep", query.grep.clone()),
            ("ignore_case", query.ignore_case.then(|| "true".to_owned())),
            ("invert_match", query.invert_match.then(|| "true".to_owned())),
        ];
        self.download(&with_query(&job_path(selector, "/logs/download"), &pairs)).await
    }

    /// What a task has in its directories.
    pub async fn files(&self, selector: &str, query: &FilesQuery) -> Result<FileList, Error> {
        self.get(&with_query(&job_path(selector, "/files"), &file_pairs(query))).await
    }

    /// A file of a task, or a directory as an archive.
    pub async fn file_content(&self, selector: &str, query: &FilesQuery) -> Result<Download, Error> {
        self.download(&with_query(&job_path(selector, "/files/content"), &file_pairs(query))).await
    }

    /// What a job uses and has used.
    pub async fn job_metrics(&self, selector: &str, query: &MetricsQuery) -> Result<JobMetrics, Error> {
        self.get(&with_query(&job_path(selector, "/metrics"), &metrics_pairs(query))).await
    }

    /// What is in use of a node.
    pub async fn node_metrics(&self, node: &str, query: &MetricsQuery) -> Result<NodeMetrics, Error> {
        self.get(&with_query(&node_path(node, "/metrics"), &metrics_pairs(query))).await
    }

    /// The pools.
    pub async fn pools(&self) -> Result<PoolList, Error> {
        self.get("/pools").await
    }

    /// One pool; waited for, if that is wanted, until each host is there or has failed.
    pub async fn pool(&self, name: &str, query: &ShowPool) -> Result<PoolView, Error> {
        let pairs = [("wait_ms", query.wait_ms.map(|wait| wait.to_string()))];
        self.get(&with_query(&pool_path(name), &pairs)).await
    }

    /// Says what a pool is, all of it.
    pub async fn put_pool(&self, name: &str, pool: &PutPool) -> Result<PoolView, Error> {
        self.request(Method::PUT, &pool_path(name), Some(pool)).await
    }

    /// Adds hosts to a pool, which is made if it is not there.
    pub async fn add_hosts(&self, pool: &str, hosts: &AddHosts) -> Result<PoolView, Error> {
        self.request(Method::POST, &format!("{}/hosts", pool_path(pool)), Some(hosts)).await
    }

    /// Removes a pool with its hosts.
    pub async fn delete_pool(&self, name: &str, query: &RemoveHosts) -> Result<(), Error> {
        let path = with_query(&pool_path(name), &remove_pairs(query));
        self.unary(Method::DELETE, &path, Body::None, &[]).await.map(drop)
    }

    /// Removes a node from its pool.
    pub async fn delete_node(&self, node: &str, query: &RemoveHosts) -> Result<(), Error> {
        let path = with_query(&node_path(node, ""), &remove_pairs(query));
        self.unary(Method::DELETE, &path, Body::None, &[]).await.map(drop)
    }

    /// Keeps new tasks from a node; those that run there go on, or are told to go elsewhere.
    pub async fn drain_node(&self, node: &str, how: &DrainNode) -> Result<NodeView, Error> {
        self.request(Method::POST, &node_path(node, "/drain"), Some(how)).await
    }

    /// Lets a node have new tasks again.
    pub async fn undrain_node(&self, node: &str) -> Result<NodeView, Error> {
        self.json(Method::POST, &node_path(node, "/undrain"), Body::None, &[]).await
    }

    /// Changes what a node is labelled with.
    pub async fn label_node(&self, node: &str, labels: &LabelNode) -> Result<NodeView, Error> {
        self.request(Method::PATCH, &node_path(node, ""), Some(labels)).await
    }

    /// What other schedulers have.
    pub async fn clusters(&self) -> Result<ClusterList, Error> {
        self.get("/clusters").await
    }

    /// The nodes.
    pub async fn nodes(&self) -> Result<NodeList, Error> {
        self.get("/nodes").await
    }

    /// Names a bundle by its chunks and asks which of them must still be sent.
    pub async fn put_bundle(&self, bundle: &PutBundle) -> Result<BundleStatus, Error> {
        self.request(Method::POST, "/bundles", Some(bundle)).await
    }

    /// Of these chunks, at most 4096, those that the server lacks.
    pub async fn missing_chunks(&self, chunks: Vec<ChunkId>) -> Result<Vec<ChunkId>, Error> {
        let list: ChunkList =
            self.request(Method::POST, "/chunks/missing", Some(&ChunkList { chunks })).await?;
        Ok(list.chunks)
    }

    /// Sends a pack of chunks, in pieces.
    pub async fn put_chunks(&self, pack: Vec<Bytes>) -> Result<(), Error> {
        self.unary(Method::POST, "/chunks", Body::Raw(pack), &[]).await.map(drop)
    }

    /// How a job's code differed from its commit, as `git diff` prints it.
    pub async fn diff(&self, selector: &str) -> Result<Bytes, Error> {
        self.unary(Method::GET, &job_path(selector, "/diff"), Body::None, &[]).await
    }

    /// Has the server and its nodes remove what need not be kept, or say what they would.
    pub async fn collect_garbage(&self, request: &Gc) -> Result<GcReport, Error> {
        self.request(Method::POST, "/gc", Some(request)).await
    }

    /// The server itself.
    pub async fn server(&self) -> Result<ServerView, Error> {
        self.get("/server").await
    }

    /// How the server is, with its engines and nodes.
    pub async fn doctor(&self) -> Result<Doctor, Error> {
        self.get("/doctor").await
    }

    /// Asks the server to end; its jobs keep running.
    pub async fn shutdown_server(&self) -> Result<(), Error> {
        self.unary(Method::POST, "/server/shutdown", Body::None, &[]).await.map(drop)
    }

    /// Whether the server is well.
    pub async fn healthz(&self) -> Result<(), Error> {
        // Outside the versioned interface: probes know nothing of versions.
        self.exchange("GET /healthz", self.route.prepare(Method::GET, "/healthz", Body::None, &[])?)
            .await
            .map(drop)
    }

    pub(super) async fn get<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.json(Method::GET, path, Body::None, &[]).await
    }
}

fn file_pairs(query: &FilesQuery) -> [(&'static str, Option<String>); 4] {
    [
        ("path", Some(query.path.clone()).filter(|path| !path.is_empty())),
        ("task", query.task.map(|rank| rank.to_string())),
        ("attempt", query.attempt.map(|number| number.to_string())),
        ("recursive", query.recursive.then(|| "true".to_owned())),
    ]
}

fn metrics_pairs(query: &MetricsQuery) -> [(&'static str, Option<String>); 2] {
    [("since", query.since.clone()), ("limit", query.limit.map(|limit| limit.to_string()))]
}

fn remove_pairs(query: &RemoveHosts) -> [(&'static str, Option<String>); 1] {
    [("force", query.force.then(|| "true".to_owned()))]
}

fn pool_path(name: &str) -> String {
    format!("/pools/{}", percent_encoded(name))
}

fn node_path(node: &str, rest: &str) -> String {
    format!("/nodes/{}{rest}", percent_encoded(node))
}

pub(super) fn job_path(selector: &str, rest: &str) -> String {
    format!("/jobs/{}{rest}", percent_encoded(selector))
}

pub(super) fn with_query(path: &str, pairs: &[(&str, Option<String>)]) -> String {
    let mut whole = path.to_owned();
    for (name, value) in pairs {
        if let Some(value) = value {
            whole.push(if whole.contains('?') { '&' } else { '?' });
            whole.push_str(&format!("{name}={}", percent_encoded(value)));
        }
    }
    whole
}

/// Whatever a user types as a selector stays one segment of the path.
pub(super) fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') {
            encoded.push(byte as char);
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
