//! Giving a gang to Kubernetes, and taking it back.
//!
//! Three objects are made one after the other, under names that say whose they are; whoever is killed in between finds what is
//! there and makes the rest. Whether something was made of which nothing was heard is looked up, never guessed.

use std::time::Duration;

use futures::future;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::{Api, DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use muster_engine::{Class, Error, Verdict};
use muster_model::spec::FieldError;
use muster_model::{AttemptId, Timestamp};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::connect::{Connection, Failure};
use crate::gang::Gathering;
use crate::objects::{self, Objects};
use crate::refusal::{self, Refusal};
use crate::truth::{VERDICT, write_verdict};
use crate::watch::Place;

/// Whoever made a field.
const MANAGER: &str = "muster";
/// What is ending is heard of. Where nothing was heard of it before, or nothing comes, it is looked at in these times.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LAST_LOOK: Duration = Duration::from_secs(5);

/// Clocks differ, and an agent needs a moment to notice that its connection is cut.
const MARGIN: Duration = Duration::from_secs(30);

const JOBS: (&str, &str) = ("/apis/batch/v1", "jobs");
const PODS: (&str, &str) = ("/api/v1", "pods");
const NODES: &str = "/api/v1/nodes";

/// What matters of a Job here. The whole of it, with the whole of a pod inside, would be megabytes of code to read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Job {
    pub(crate) metadata: ObjectMeta,
    spec: JobSpec,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JobSpec {
    suspend: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
}

#[derive(Debug, Deserialize)]
struct Condition {
    r#type: String,
    status: String,
    #[serde(rename = "lastTransitionTime")]
    since: Option<Timestamp>,
}

/// What matters of a list.
#[derive(Debug, Deserialize)]
struct List<T> {
    items: Vec<T>,
}

/// What matters of a pod that is to go.
#[derive(Debug, Deserialize)]
struct Leaving {
    metadata: ObjectMeta,
    spec: Bound,
}

#[derive(Debug, Deserialize)]
struct Bound {
    #[serde(rename = "nodeName")]
    node: Option<String>,
}

/// What matters of a node whose pods do not go.
#[derive(Debug, Deserialize)]
struct Node {
    status: Status,
}

/// What the cluster knows of the node of a pod that does not go.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Hearing {
    /// It speaks, and has not ended the pod.
    Speaks,
    Silent {
        since: Timestamp,
    },
    /// There is none, or it may not be seen.
    Unknown,
}

/// A place in a cluster, and whose objects there are ours.
#[derive(Debug)]
pub(crate) struct Site<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) namespace: &'a str,
    pub(crate) server: &'a str,
}

impl Site<'_> {
    /// Makes all objects of an attempt, or those of them that are missing.
    pub(crate) async fn create(
        &self,
        attempt: &AttemptId,
        objects: &Objects,
        gathering: &Gathering,
    ) -> Result<(), Error> {
        let job = self.create_job(attempt, objects).await?;
        if is_over(&job) {
            return Ok(());
        }
        let uid = job.metadata.uid.unwrap_or_default();
        let mut secret = objects.secret.clone();
        objects::own(&mut secret.metadata, &objects.name, &uid);
        let service = objects.service.clone().map(|mut service| {
            objects::own(&mut service.metadata, &objects.name, &uid);
            service
        });
        let service = async {
            match &service {
                Some(service) => self.create_small::<Service>(service).await,
                None => Ok(()),
            }
        };
        let secret = self.create_small::<Secret>(&secret);
        let companion = self.create_companion(objects, &uid, gathering);
        future::try_join3(secret, service, companion).await.map(drop)
    }

    /// Makes what tells others how many pods belong together.
    async fn create_companion(
        &self,
        objects: &Objects,
        uid: &str,
        gathering: &Gathering,
    ) -> Result<(), Error> {
        let mut job = objects.job.clone();
        job["metadata"]["uid"] = json!(uid);
        job["metadata"]["namespace"] = json!(self.namespace);
        let Some(companion) = gathering.companion(&job) else { return Ok(()) };
        let group = format!("/apis/{}", companion["apiVersion"].as_str().unwrap_or_default());
        let plural = if companion["kind"] == "Workload" { "workloads" } else { "podgroups" };
        let made = self.connection.call(self.post::<IgnoredAny>((&group, plural), &companion, false)).await;
        settled(self.connection, made)
    }

    async fn create_job(&self, attempt: &AttemptId, objects: &Objects) -> Result<Job, Error> {
        let made = self.connection.call(self.post::<Job>(JOBS, &objects.job, false)).await;
        let failure = match made {
            Ok(job) => return Ok(job),
            Err(failure) => failure,
        };
        match failure.status() {
            Some(status) if status.is_already_exists() => {}
            Some(status) => return Err(refusal::read(status, &pod_spec(&objects.job)).into_error()),
            // It may have been made all the same.
            None => tracing::warn!(name = objects.name, ?failure, "whether a Job was made is looked up"),
        }
        match self.job(&objects.name).await? {
            Some(job) if self.is_of(&job, attempt) => Ok(job),
            Some(_) => {
                let what = format!(
                    "there is a Job {} in namespace {} that is not ours",
                    objects.name, self.namespace
                );
                Err(Error::terminal(what))
            }
            None => Err(failure.into_error(self.connection)),
        }
    }

    /// Makes what belongs to a Job.
    async fn create_small<K>(&self, object: &K) -> Result<(), Error>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.connection.client.clone(), self.namespace);
        let parameters = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
        settled(self.connection, self.connection.call(api.create(&parameters, object)).await)
    }

    /// What the API server would refuse of a gang, without anything being made: the Job, and a pod as it will be.
    pub(crate) async fn check(&self, objects: &Objects) -> Result<Vec<FieldError>, Error> {
        let template = &objects.job["spec"]["template"];
        let mut pod = json!({ "apiVersion": "v1", "kind": "Pod" });
        pod["metadata"] = template["metadata"].clone();
        pod["metadata"]["name"] = json!(objects.name);
        pod["spec"] = template["spec"].clone();
        let (job, pod) = future::join(
            self.connection.call(self.post::<IgnoredAny>(JOBS, &objects.job, true)),
            self.connection.call(self.post::<IgnoredAny>(PODS, &pod, true)),
        )
        .await;
        let mut errors: Vec<FieldError> = Vec::new();
        for failure in [job, pod].into_iter().filter_map(Result::err) {
            match failure.status() {
                Some(status) if status.is_already_exists() => {}
                Some(status) => match refusal::read(status, &pod_spec(&objects.job)) {
                    Refusal::Fields(fields) => errors.extend(fields),
                    Refusal::Later(why) => tracing::debug!(why, "it is not possible now, and may be later"),
                },
                None => return Err(failure.into_error(self.connection)),
            }
        }
        let mut named = std::collections::BTreeSet::new();
        errors.retain(|error| named.insert(error.field.clone()));
        Ok(errors)
    }

    /// The Job of this name.
    pub(crate) async fn job(&self, name: &str) -> Result<Option<Job>, Error> {
        let request = Request::new(self.path(JOBS)).get(name, &GetParams::default());
        match self.connection.call(self.send(request)).await {
            Ok(job) => Ok(Some(job)),
            Err(failure) if failure.status().is_some_and(|status| status.is_not_found()) => Ok(None),
            Err(failure) => Err(failure.into_error(self.connection)),
        }
    }

    /// Tells a Job to end, and writes on it why: whoever looks later finds the same.
    pub(crate) async fn doom(&self, attempt: &AttemptId, verdict: &Verdict) -> Result<(), Error> {
        let name = objects::name(attempt);
        let Some(job) = self.job(&name).await?.filter(|job| self.is_of(job, attempt)) else { return Ok(()) };
        tracing::info!(%attempt, ?verdict, "its Job is told to end");
        let is_suspended = job.spec.suspend;
        let words = json!({
            "metadata": { "annotations": { VERDICT: write_verdict(verdict) } },
            // Its time is up at once; a suspended Job has none, and no pods either.
            "spec": if is_suspended { json!({}) } else { json!({ "activeDeadlineSeconds": 1 }) },
        });
        let request =
            Request::new(self.path(JOBS)).patch(&name, &PatchParams::default(), &Patch::Merge(&words));
        let patched = self.connection.call(self.send::<IgnoredAny>(request)).await;
        patched.map_err(|failure| failure.into_error(self.connection))?;
        if is_suspended {
            self.delete_job(&name, job.metadata.uid).await?;
        }
        Ok(())
    }

    /// Whether a Job is the one that was made for an attempt.
    pub(crate) fn is_of(&self, job: &Job, attempt: &AttemptId) -> bool {
        let labels = job.metadata.labels.clone().unwrap_or_default();
        objects::attempt_of(&labels, self.server).as_ref() == Some(attempt)
    }

    /// Removes a Job with all that it has, and returns when nothing of it runs.
    /// Agents of it that hear nobody end their tasks after `fence`.
    pub(crate) async fn remove(
        &self,
        attempt: &AttemptId,
        fence: Duration,
        watched: &Place,
    ) -> Result<(), Error> {
        let name = objects::name(attempt);
        let mut pause = FIRST_LOOK;
        let mut is_told = false;
        let mut is_known = watched.shelf().get(attempt).is_some();
        loop {
            let job = self.job(&name).await?.filter(|job| self.is_of(job, attempt));
            let is_there = job.is_some();
            if let Some(job) = job.filter(|_| !is_told) {
                self.delete_job(&name, job.metadata.uid).await?;
                is_told = true;
            }
            // The Job goes after its pods. Only one that somebody else removed may have left some.
            if !is_there || pause == LAST_LOOK {
                let is_none_left = self.end_lost(attempt, fence).await?;
                if is_none_left && !is_there {
                    return Ok(());
                }
            }
            if is_known {
                // Once is enough: what is there although it was heard to be gone is another matter.
                is_known = timeout(LAST_LOOK, watched.gone(attempt)).await.is_err();
            } else {
                tokio::time::sleep(pause).await;
            }
            pause = (pause * 2).min(LAST_LOOK);
        }
    }

    /// Gives up pods whose nodes have not ended them in all the time that it takes a task to end by itself. Whether none are left.
    async fn end_lost(&self, attempt: &AttemptId, fence: Duration) -> Result<bool, Error> {
        let labels = objects::selector(self.server, attempt);
        let request = Request::new(self.path(PODS)).list(&ListParams::default().labels(&labels));
        let pods = self.connection.call(self.send::<List<Leaving>>(request)).await;
        let pods = pods.map_err(|failure| failure.into_error(self.connection))?.items;
        for Leaving { metadata, spec } in &pods {
            let name = metadata.name.as_deref().unwrap_or_default();
            let Some(told) = metadata.deletion_timestamp.as_ref().map(|told| told.0) else {
                // Nobody has told it.
                self.delete(PODS, name, &DeleteParams::default()).await?;
                continue;
            };
            let grace = metadata.deletion_grace_period_seconds.and_then(|seconds| seconds.try_into().ok());
            let takes = fence + Duration::from_secs(grace.unwrap_or(0)) + MARGIN;
            let now = Timestamp::now();
            if now > told && is_lost(told, takes, self.hearing(spec.node.as_deref()).await?, now) {
                tracing::warn!(
                    pod = name,
                    "its node does not end it, and it has ended by itself; it is given up"
                );
                self.delete(PODS, name, &DeleteParams::default().grace_period(0)).await?;
            }
        }
        Ok(pods.is_empty())
    }

    /// Looks at a node. It may be listed, not got.
    async fn hearing(&self, name: Option<&str>) -> Result<Hearing, Error> {
        let Some(name) = name else { return Ok(Hearing::Unknown) };
        let only = ListParams::default().fields(&format!("metadata.name={name}"));
        let nodes = self.connection.call(self.send::<List<Node>>(Request::new(NODES).list(&only))).await;
        let nodes = match nodes {
            Ok(nodes) => nodes.items,
            Err(failure) if failure.status().is_some_and(|status| status.is_forbidden()) => Vec::new(),
            Err(failure) => return Err(failure.into_error(self.connection)),
        };
        let conditions = nodes.first().map(|node| node.status.conditions.as_slice()).unwrap_or_default();
        Ok(match conditions.iter().find(|condition| condition.r#type == "Ready") {
            Some(ready) if ready.status != "Unknown" => Hearing::Speaks,
            Some(Condition { since: Some(since), .. }) => Hearing::Silent { since: *since },
            _ => Hearing::Unknown,
        })
    }

    async fn delete_job(&self, name: &str, uid: Option<String>) -> Result<(), Error> {
        let preconditions = Some(Preconditions { uid, resource_version: None });
        self.delete(JOBS, name, &DeleteParams { preconditions, ..DeleteParams::foreground() }).await
    }

    async fn delete(&self, kind: (&str, &str), name: &str, parameters: &DeleteParams) -> Result<(), Error> {
        let request = Request::new(self.path(kind)).delete(name, parameters);
        match self.connection.call(self.send::<IgnoredAny>(request)).await {
            Ok(_) => Ok(()),
            Err(failure) => match failure.status() {
                // Somebody else was quicker.
                Some(status) if status.is_not_found() || status.is_conflict() => Ok(()),
                _ => Err(failure.into_error(self.connection)),
            },
        }
    }

    fn path(&self, (group, plural): (&str, &str)) -> String {
        format!("{group}/namespaces/{}/{plural}", self.namespace)
    }

    async fn send<T: DeserializeOwned>(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<T, kube::Error> {
        self.connection.client.request(request.map_err(kube::Error::BuildRequest)?).await
    }

    /// Every field that does not exist is refused: a user's own words would be dropped in silence otherwise.
    async fn post<T: DeserializeOwned>(
        &self,
        kind: (&str, &str),
        object: &Value,
        is_dry: bool,
    ) -> Result<T, kube::Error> {
        let parameters = PostParams { dry_run: is_dry, field_manager: Some(MANAGER.into()) };
        let body = object.to_string().into_bytes();
        let mut request =
            Request::new(self.path(kind)).create(&parameters, body).map_err(kube::Error::BuildRequest)?;
        let strict = format!("{}&fieldValidation=Strict", request.uri());
        if let Ok(strict) = strict.parse() {
            *request.uri_mut() = strict;
        }
        self.connection.client.request(request).await
    }
}

/// What is there already is what an earlier call has made.
fn settled<T>(connection: &Connection, made: Result<T, Failure>) -> Result<(), Error> {
    let Err(failure) = made else { return Ok(()) };
    match failure.status() {
        Some(status) if status.is_already_exists() => Ok(()),
        Some(status) => Err(refusal::read(status, &Value::Null).into_error()),
        None => Err(failure.into_error(connection)),
    }
}

fn pod_spec(job: &Value) -> Value {
    job["spec"]["template"]["spec"].clone()
}

/// Whether a pod that was to end by then is on a node that cannot be asked, and has ended by itself: an agent that hears nobody
/// takes this long at most to end its task.
fn is_lost(told: Timestamp, takes: Duration, hearing: Hearing, now: Timestamp) -> bool {
    match hearing {
        Hearing::Speaks => false,
        Hearing::Silent { since } => now > since + takes,
        // A node that was there when the pod was told would have ended it by then.
        Hearing::Unknown => now > told + takes,
    }
}

/// Whether a Job has run; it is left as it is then, for those who want to know how.
fn is_over(job: &Job) -> bool {
    let is_over = job.status.conditions.iter().any(|condition| {
        matches!(condition.r#type.as_str(), "Complete" | "Failed") && condition.status == "True"
    });
    is_over || job.metadata.deletion_timestamp.is_some()
}

impl Failure {
    /// As an engine says it.
    pub(crate) fn into_error(self, connection: &Connection) -> Error {
        let url = connection.url.trim_end_matches('/');
        let what = match self {
            Self::Silence => format!("the API server {url} has said nothing in time"),
            Self::Error(error) => match *error {
                kube::Error::Api(status) => return refusal::read(&status, &Value::Null).into_error(),
                kube::Error::Auth(error) => {
                    crate::connect::plugin(&error).unwrap_or_else(|| format!("credentials: {error}"))
                }
                error => format!("the API server {url} cannot be reached: {}", innermost(&error)),
            },
        };
        Error { what, class: Class::Retryable, source: None }
    }
}

/// What is at the bottom of it: a refused connection, a certificate.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_given_up_only_when_its_task_must_have_ended_by_itself() {
        let told: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let takes = Duration::from_secs(360);
        let late = takes + Duration::from_secs(1);
        let is_lost = |hearing, after| is_lost(told, takes, hearing, told + after);
        assert!(!is_lost(Hearing::Unknown, Duration::ZERO));
        assert!(!is_lost(Hearing::Unknown, takes));
        assert!(is_lost(Hearing::Unknown, late));
        // Its node has not been heard since before.
        let silent = Hearing::Silent { since: told - Duration::from_secs(300) };
        assert!(!is_lost(silent, Duration::from_secs(60)));
        assert!(is_lost(silent, Duration::from_secs(61)));
        // What is slow to end has not ended.
        assert!(!is_lost(Hearing::Speaks, late * 100));
    }

    #[test]
    fn a_job_that_has_run_or_is_being_removed_gets_nothing_more() {
        let job = |status: Value| -> Job {
            serde_json::from_value(json!({ "metadata": {}, "status": status })).unwrap()
        };
        let condition =
            |kind: &str, status: &str| json!({ "conditions": [{ "type": kind, "status": status }] });
        assert!(is_over(&job(condition("Complete", "True"))));
        assert!(is_over(&job(condition("Failed", "True"))));
        assert!(!is_over(&job(condition("Suspended", "True"))));
        assert!(!is_over(&job(condition("Failed", "False"))));
        assert!(!is_over(&job(json!({}))));
    }
}
