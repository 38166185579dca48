//! A whole server with an engine that has a scheduler of its own: it keeps gangs in memory, and their agents, played by the
//! test, come in by the gate.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use muster_api::client::{Client, Endpoint};
use muster_api::cluster::{DeviceCount, HiddenPlace};
use muster_api::model::spec::{DEFAULT_PRIORITY, FieldCode, FieldError};
use muster_api::model::{State, Timestamp};
use muster_api::view::{CreateJob, JobDetail, StopJob};
use muster_engine::{
    Accounts, AgentBinary, Amounts, Capabilities, Engine, Error, Family, Gang, Key, Observed, Offer,
    StartRequest, Status, Verdict,
};
use muster_server::{Engines, Keep};
use serde_json::json;
use tokio::task::JoinSet;

use crate::fixture::{Server, refusal, until};
use crate::speaking::{self, Manner};

/// Somebody else's scheduler.
struct Cluster {
    capabilities: Capabilities,
    gate: PathBuf,
    state: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    gangs: BTreeMap<Key, Status>,
    agents: JoinSet<()>,
    starts: u32,
}

impl Cluster {
    fn new(gate: PathBuf) -> Arc<Self> {
        let capabilities = Capabilities {
            name: "slurm",
            family: Family::Delegating,
            submitter_environment: false,
            in_place: false,
            images: false,
            volumes: false,
            accounts: Accounts::Machines,
            keeps_files: true,
            lost_after: Duration::from_secs(10),
        };
        Arc::new(Self { capabilities, gate, state: Mutex::default() })
    }
}

fn amounts(cpus: u64, devices: u32) -> Amounts {
    Amounts { cpu_millis: cpus * 1000, memory_bytes: 1 << 30, devices: [("H100".to_owned(), devices)].into() }
}

#[async_trait]
impl Engine for Cluster {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn agent(&self) -> Option<AgentBinary> {
        None
    }

    async fn nodes(&self) -> Result<Vec<Offer>, Error> {
        let places = vec!["gpu".into(), "main".into()];
        let (total, free) = (amounts(8, 8), amounts(2, 3));
        let seen =
            Offer { name: "n1".into(), places, state: "mixed".into(), total, free, ..Offer::default() };
        Ok(vec![seen, Offer::hidden("far", "no route to host")])
    }

    /// Gangs of one begin at once, larger ones never.
    async fn start(&self, request: &StartRequest) -> Result<Option<String>, Error> {
        let mut state = self.state.lock().unwrap();
        state.starts += 1;
        if let [seat] = request.seats.as_slice() {
            state.agents.spawn(speaking::agent(self.gate.clone(), seat.clone(), Manner::Works));
        }
        let status = if request.seats.len() == 1 { Status::Running } else { waiting() };
        state.gangs.insert(request.key.clone(), status);
        Ok(Some(format!("{}", 100 + state.starts)))
    }

    /// It takes no priorities.
    async fn check(&self, gang: &Gang, _account: Option<&str>) -> Result<Vec<FieldError>, Error> {
        match gang.spec.priority {
            DEFAULT_PRIORITY => Ok(Vec::new()),
            99 => Err(Error::retryable("ask", std::io::ErrorKind::TimedOut.into())),
            _ => {
                let refused =
                    |field: &str| FieldError::new(field, FieldCode::NotSupported, "is not taken here");
                Ok(vec![refused("priority"), refused("resources.cpus")])
            }
        }
    }

    async fn status(&self, keys: &[Key]) -> Result<Vec<Observed>, Error> {
        let mut state = self.state.lock().unwrap();
        while state.agents.try_join_next().is_some() {}
        let is_alone = state.agents.is_empty();
        let observed = |key: &Key| {
            let status = state.gangs.get(key).cloned().unwrap_or(Status::Gone);
            let status = if is_alone && status == Status::Running {
                Status::Ended(Verdict::Completed)
            } else {
                status
            };
            Observed { status, external: Some("101".into()), hosts: vec!["n1".into()] }
        };
        Ok(keys.iter().map(observed).collect())
    }

    async fn stop(&self, key: &Key) -> Result<(), Error> {
        self.state.lock().unwrap().gangs.remove(key);
        Ok(())
    }
}

fn waiting() -> Status {
    Status::Waiting(muster_engine::Wait {
        code: "no_capacity",
        summary: "waits for resources".into(),
        help: None,
        starts_at: Some(Timestamp::UNIX_EPOCH),
    })
}

async fn start() -> (Server, Arc<Cluster>) {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::new(dir.path().join("gate.sock"));
    let engines = Engines::new(vec![cluster.clone()]);
    (Server::with(dir, engines, Keep::default(), Vec::new()).await, cluster)
}

fn job(nodes: u32) -> CreateJob {
    let spec = json!({ "command": ["true"], "on": "slurm/gpu", "nodes": nodes });
    CreateJob { spec, bundle: None, source: None, environment: None }
}

async fn until_job(server: &Server, job: &JobDetail, what: impl Fn(&JobDetail) -> bool) -> JobDetail {
    let id = job.summary.id.as_str();
    let look = async || Some(server.client.job(id).await.unwrap()).filter(|job| what(job));
    until("the job gets there", look).await
}

#[tokio::test]
async fn a_job_runs_where_another_scheduler_put_it_and_is_called_what_that_calls_it() {
    let (server, cluster) = start().await;
    let preview = server.client.preview_job(&job(1)).await.unwrap();
    assert_eq!(
        (preview.why.code.as_str(), preview.why.summary.as_str()),
        ("delegated", "slurm/gpu decides when and where it starts")
    );
    let made = server.client.create_job(&job(1), "key").await.unwrap();
    let done = until_job(&server, &made, |job| job.summary.state == State::Succeeded).await;
    assert_eq!(done.allocation.unwrap().id.as_deref(), Some("101"));
    assert_eq!(cluster.state.lock().unwrap().starts, 1);
    assert_eq!(server.client.nodes().await.unwrap().items.len(), 0, "its place was no node of ours");
    server.stop().await;
}

#[tokio::test]
async fn a_job_that_waits_there_says_why_and_is_taken_back_when_it_is_stopped() {
    let (server, cluster) = start().await;
    let made = server.client.create_job(&job(2), "key").await.unwrap();
    let id = made.summary.id.as_str();
    until_job(&server, &made, |job| job.allocation.as_ref().is_some_and(|one| one.id.is_some())).await;
    assert_eq!(server.client.job(id).await.unwrap().summary.state, State::Queued);
    server.client.stop_job(id, &StopJob::default()).await.unwrap();
    until_job(&server, &made, |job| job.summary.state == State::Stopped).await;
    assert!(cluster.state.lock().unwrap().gangs.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn what_the_other_scheduler_has_is_shown_by_the_place_that_leads_there() {
    let (server, _cluster) = start().await;
    let clusters = server.client.clusters().await.unwrap().items;
    assert_eq!((clusters[0].engine.as_str(), &clusters[0].error), ("slurm", &None));
    let hidden = HiddenPlace { on: "slurm/far".into(), why: "no route to host".into() };
    assert_eq!((clusters[0].nodes.len(), clusters[0].hidden.as_slice()), (1, &[hidden][..]));
    let doctor = server.client.doctor().await.unwrap();
    assert!(doctor.checks.iter().any(|check| check.name == "slurm/far"), "{doctor:?}");
    let node = &clusters[0].nodes[0];
    assert_eq!(
        (node.name.as_str(), node.on.as_slice()),
        ("n1", &["slurm/gpu".to_owned(), "slurm/main".into()][..])
    );
    assert_eq!((node.cpu_millis_free, node.devices["H100"]), (2000, DeviceCount { total: 8, free: 3 }));
    server.stop().await;
}

#[tokio::test]
async fn who_comes_in_by_the_gate_shows_a_token_for_everything() {
    let (server, _cluster) = start().await;
    let gate = server.dir.path().join("gate.sock");
    let refused = match Client::connect(Endpoint::unix(gate)).await {
        Ok(client) => client.nodes().await.map(drop).unwrap_err(),
        Err(error) => error,
    };
    assert!(refused.to_string().contains("token"), "{refused}");
    server.stop().await;
}

#[tokio::test]
async fn what_the_other_scheduler_would_refuse_is_said_field_by_field_before_anything_is_made() {
    let (server, cluster) = start().await;
    let of = |priority: u32| {
        let spec = json!({ "command": ["true"], "on": "slurm/gpu", "nodes": 2, "priority": priority });
        CreateJob { spec, ..job(2) }
    };
    for answer in [
        server.client.create_job(&of(7), "key").await.map(drop),
        server.client.preview_job(&of(7)).await.map(drop),
    ] {
        let refused = refusal(answer.unwrap_err());
        let fields: Vec<&str> = refused.errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!((refused.status, fields.as_slice()), (422, &["priority", "resources.cpus"][..]));
    }
    assert_eq!(cluster.state.lock().unwrap().starts, 0);
    let preview = server.client.preview_job(&of(99)).await.unwrap();
    assert!(preview.why.constraint.unwrap().contains("slurm/gpu does not answer now: ask"));
    assert_eq!(server.client.create_job(&of(99), "other").await.unwrap().summary.state, State::Queued);
    server.stop().await;
}
