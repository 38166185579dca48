//! The delegate with a scheduler that lives in memory: it keeps what it is given, and answers as it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use muster_engine::{AgentBinary, Capabilities, Family, Offer, Status, Verdict, Wait};
use muster_model::JobId;
use muster_model::job::{Event, State};
use muster_model::spec::{JobSpec, MAX_PRIORITY};
use serde_json::json;
use tokio::task::JoinSet;

use super::*;
use crate::core::Submission;
use crate::service::Unserved;
use crate::{Engines, Keep, Listen, Options};

/// Somebody else's scheduler.
pub(crate) struct Cluster {
    capabilities: Capabilities,
    /// What it does with the next starts; then it takes them.
    starts: Mutex<Vec<Answer>>,
    kept: Mutex<BTreeMap<AttemptId, Kept>>,
    /// How often it was asked for states.
    pub looks: AtomicU32,
    is_silent: std::sync::atomic::AtomicBool,
    /// Accounts for which nothing ever comes to an end.
    hung: Mutex<BTreeSet<String>>,
    /// The accounts of the keys of each question.
    asked: Mutex<Vec<BTreeSet<Option<String>>>>,
    /// What it was told to forget.
    closed: Mutex<Vec<AttemptId>>,
    /// What it has to say by itself.
    changed: Mutex<Vec<Key>>,
    bell: tokio::sync::Notify,
}

/// How a start ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Answer {
    Refuse,
    Fail,
    /// It takes the gang and never says so.
    Hang,
}

/// What it keeps.
#[derive(Debug, Clone)]
struct Kept {
    id: String,
    status: Status,
    starts: u32,
}

fn pending() -> Status {
    Status::Waiting(Wait {
        code: "no_capacity",
        summary: "waits for resources".into(),
        help: None,
        starts_at: None,
    })
}

impl Cluster {
    pub fn new() -> Self {
        Self::named("slurm", true)
    }

    /// One whose gangs are their owners'.
    pub fn of_owners() -> Self {
        let mut cluster = Self::new();
        cluster.capabilities.accounts = muster_engine::Accounts::Owners;
        cluster
    }

    pub fn named(name: &'static str, keeps_files: bool) -> Self {
        let capabilities = Capabilities {
            name,
            family: Family::Delegating,
            submitter_environment: false,
            in_place: false,
            images: false,
            volumes: false,
            accounts: match name {
                "k8s" => muster_engine::Accounts::Containers,
                _ => muster_engine::Accounts::Machines,
            },
            keeps_files,
            lost_after: Duration::from_secs(10),
        };
        Self {
            capabilities,
            starts: Mutex::default(),
            kept: Mutex::default(),
            looks: AtomicU32::new(0),
            is_silent: Default::default(),
            hung: Mutex::default(),
            asked: Mutex::default(),
            closed: Mutex::default(),
            changed: Mutex::default(),
            bell: Default::default(),
        }
    }

    fn kept(&self) -> BTreeMap<AttemptId, Kept> {
        self.kept.lock().unwrap().clone()
    }

    fn take(&self, attempt: &AttemptId) -> String {
        let mut kept = self.kept.lock().unwrap();
        let id = (100 + kept.len()).to_string();
        let new = Kept { id, status: pending(), starts: 0 };
        let one = kept.entry(attempt.clone()).or_insert(new);
        one.starts += 1;
        one.id.clone()
    }

    async fn wait_for_account(&self, key: &Key) {
        let is_hung = account_of(key).is_some_and(|account| self.hung.lock().unwrap().contains(&account));
        if is_hung {
            std::future::pending::<()>().await;
        }
    }

    fn set(&self, attempt: &AttemptId, status: Status) {
        self.kept.lock().unwrap().get_mut(attempt).unwrap().status = status;
    }

    /// Has something new to say about a gang.
    fn announce(&self, attempt: &AttemptId, status: Status) {
        self.set(attempt, status);
        self.changed.lock().unwrap().push(Key::Gang {
            attempt: attempt.clone(),
            place: "gpu".into(),
            account: None,
        });
        self.bell.notify_one();
    }
}

fn attempt_of(key: &Key) -> &AttemptId {
    match key {
        Key::Gang { attempt, .. } => attempt,
        Key::Node(node) => panic!("{node} is nobody's here"),
    }
}

fn account_of(key: &Key) -> Option<String> {
    match key {
        Key::Gang { account, .. } => account.clone(),
        Key::Node(node) => panic!("{node} is nobody's here"),
    }
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
        Ok(vec![Offer { name: "n1".into(), state: "idle".into(), ..Offer::default() }])
    }

    async fn start(&self, request: &StartRequest) -> Result<Option<String>, Error> {
        let attempt = attempt_of(&request.key);
        let gang = request.gang.as_ref().unwrap();
        assert_eq!(request.seats.len(), gang.spec.nodes as usize);
        assert!(matches!(&request.key, Key::Gang { place, .. } if *place == gang.place));
        self.wait_for_account(&request.key).await;
        let answer = self.starts.lock().unwrap().pop();
        match answer {
            Some(Answer::Refuse) => Err(Error::terminal("invalid partition specified: gpu")),
            Some(Answer::Fail) => {
                Err(Error::retryable("reach the controller", std::io::ErrorKind::ConnectionRefused.into()))
            }
            Some(Answer::Hang) => {
                self.take(attempt);
                std::future::pending().await
            }
            None => Ok(Some(self.take(attempt))),
        }
    }

    async fn status(&self, keys: &[Key]) -> Result<Vec<Observed>, Error> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.asked.lock().unwrap().push(keys.iter().map(account_of).collect());
        for key in keys {
            self.wait_for_account(key).await;
        }
        if self.is_silent.load(Ordering::Relaxed) {
            return Err(Error::retryable("ask", std::io::ErrorKind::TimedOut.into()));
        }
        let kept = self.kept();
        let observed = |key: &Key| match kept.get(attempt_of(key)) {
            Some(one) => {
                Observed { status: one.status.clone(), external: Some(one.id.clone()), hosts: vec![] }
            }
            None => Status::Gone.into(),
        };
        Ok(keys.iter().map(observed).collect())
    }

    async fn changed(&self) -> Vec<Key> {
        loop {
            self.bell.notified().await;
            let changed = std::mem::take(&mut *self.changed.lock().unwrap());
            if !changed.is_empty() {
                return changed;
            }
        }
    }

    async fn close(&self, key: &Key) -> Result<(), Error> {
        self.closed.lock().unwrap().push(attempt_of(key).clone());
        Ok(())
    }

    async fn stop(&self, key: &Key) -> Result<(), Error> {
        if self.is_silent.load(Ordering::Relaxed) {
            return Err(Error::retryable("cancel", std::io::ErrorKind::TimedOut.into()));
        }
        self.kept.lock().unwrap().remove(attempt_of(key));
        Ok(())
    }
}

/// A core and a delegate, and the cluster they use.
struct Office {
    cluster: Arc<Cluster>,
    server: Unserved,
    running: JoinSet<()>,
    stop: CancellationToken,
}

impl Office {
    async fn open(dir: &std::path::Path, cluster: Arc<Cluster>) -> Self {
        let options = Options {
            home: dir.into(),
            listen: Listen::Socket,
            certificate: None,
            token: None,
            secrets_key: None,
            accounts: None,
            idle_exit: None,
            engines: Engines::new(vec![cluster.clone()]),
            build: "test".into(),
            version: "0".into(),
            owner: "me".into(),
            keep: Keep::default(),
            limits: Default::default(),
            volumes: Vec::new(),
            policy: Default::default(),
            pools: Vec::new(),
            read_again: Box::new(|| Err("there is no configuration".into())),
        };
        let mut server = Unserved::start(options).await.unwrap();
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        running.spawn(run(server.shared.clone(), server.delegated.take().unwrap(), stop.clone()));
        Self { cluster, server, running, stop }
    }

    async fn close(mut self) {
        self.stop.cancel();
        while self.running.join_next().await.is_some() {}
        self.server.stop().await;
    }

    async fn submit(&self) -> JobId {
        self.submit_on("slurm/gpu").await
    }

    async fn submit_on(&self, target: &str) -> JobId {
        let spec = json!({ "command": ["true"], "on": target });
        let submission = Submission {
            spec: JobSpec::from_value(spec).unwrap(),
            owner: "me".into(),
            bundle: None,
            source: None,
            environment: None,
            idempotency: None,
            sight: muster_store::Sight::All,
        };
        let core = &self.server.shared.core;
        core.ask(|reply| Input::Submit(Box::new(submission), reply)).await.unwrap()
    }

    async fn stop_job(&self, job: &JobId) {
        let stop = Event::Stop { grace: None };
        self.server.shared.core.ask(|reply| Input::Job(job.clone(), stop, reply)).await.unwrap();
    }

    fn state(&self, job: &JobId) -> (State, Option<muster_model::Reason>) {
        let row = self.server.shared.readers.job(job).unwrap().unwrap();
        (row.job.state, row.job.reason)
    }

    async fn why(&self, job: &JobId) -> muster_api::view::Why {
        let asked = self.server.shared.core.ask(|reply| Input::Why(job.clone(), reply)).await;
        asked.unwrap().unwrap().answer(MAX_PRIORITY, |id| Some(id.to_string()))
    }
}

fn first(job: &JobId) -> AttemptId {
    AttemptId { job: job.clone(), number: 1 }
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_scheduler_that_fails_is_tried_again_and_the_job_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Arc::new(Cluster::new());
    cluster.starts.lock().unwrap().extend([Answer::Fail, Answer::Fail]);
    let office = Office::open(dir.path(), cluster).await;
    let job = office.submit().await;
    until("it says what is wrong", async || {
        let why = office.why(&job).await;
        why.code == "engine_away" && why.constraint.unwrap().contains("connection refused")
    })
    .await;
    until("it is handed over in the end", async || office.why(&job).await.code == "no_capacity").await;
    assert_eq!(office.cluster.kept()[&first(&job)].starts, 1);
    office.close().await;
}

#[tokio::test]
async fn what_is_refused_fails_with_the_schedulers_words() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Arc::new(Cluster::new());
    cluster.starts.lock().unwrap().push(Answer::Refuse);
    let office = Office::open(dir.path(), cluster).await;
    let job = office.submit().await;
    until("it has failed", async || office.state(&job).0 == State::Failed).await;
    let (_, reason) = office.state(&job);
    let message = "invalid partition specified: gpu".into();
    assert_eq!(reason, Some(muster_model::Reason::Refused { message }));
    until("nothing is kept", async || office.server.shared.readers.open_allocations().unwrap().is_empty())
        .await;
    office.close().await;
}

#[tokio::test]
async fn a_start_that_never_returns_is_tried_again_and_the_gang_is_there_once() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Arc::new(Cluster::new());
    cluster.starts.lock().unwrap().push(Answer::Hang);
    let office = Office::open(dir.path(), cluster).await;
    let job = office.submit().await;
    until("it is known to be there", async || office.why(&job).await.code == "no_capacity").await;
    let kept = office.cluster.kept();
    assert_eq!((kept.len(), kept[&first(&job)].starts), (1, 2), "the second start found it");
    office.close().await;
}

#[tokio::test]
async fn five_hundred_jobs_cost_one_question() {
    let dir = tempfile::tempdir().unwrap();
    let office = Office::open(dir.path(), Arc::new(Cluster::new())).await;
    let jobs = futures::future::join_all((0..500).map(|_| office.submit())).await;
    until("all are handed over", async || office.cluster.kept().len() == 500).await;
    let mut order: Vec<AttemptId> = jobs.iter().map(first).collect();
    order.sort_by_key(|attempt| office.server.shared.readers.job(&attempt.job).unwrap().unwrap().seq);
    let mut ids: Vec<(u32, AttemptId)> = office
        .cluster
        .kept()
        .into_iter()
        .map(|(attempt, kept)| (kept.id.parse().unwrap(), attempt))
        .collect();
    ids.sort();
    assert!(ids.into_iter().map(|(_, attempt)| attempt).eq(order), "in their order");
    until("all have said what they wait for", async || {
        office.why(jobs.last().unwrap()).await.code == "no_capacity"
    })
    .await;
    let looks = office.cluster.looks.load(Ordering::Relaxed);
    assert!(looks <= 4, "{looks} questions, and not one for each job");
    office.close().await;
}

#[tokio::test]
async fn a_job_that_is_stopped_while_it_waits_there_is_taken_back_also_by_a_controller_that_is_away_for_a_while()
 {
    let dir = tempfile::tempdir().unwrap();
    let office = Office::open(dir.path(), Arc::new(Cluster::new())).await;
    let job = office.submit().await;
    until("it is there", async || office.cluster.kept().contains_key(&first(&job))).await;
    office.cluster.is_silent.store(true, Ordering::Relaxed);
    office.stop_job(&job).await;
    assert_eq!(office.state(&job).0, State::Stopping);
    office.cluster.is_silent.store(false, Ordering::Relaxed);
    until("it has stopped", async || office.state(&job).0 == State::Stopped).await;
    assert_eq!(office.cluster.kept().len(), 0);
    office.close().await;
}

#[tokio::test]
async fn a_server_that_was_away_hands_over_what_it_had_decided_to_and_sees_what_became_of_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Arc::new(Cluster::new());
    let office = Office::open(dir.path(), cluster.clone()).await;
    let (kept, cancelled) = (office.submit().await, office.submit().await);
    until("both are there", async || {
        office.server.shared.readers.open_allocations().unwrap().iter().all(|row| row.external.is_some())
    })
    .await;
    office.close().await;
    cluster.set(&first(&cancelled), Status::Ended(Verdict::Cancelled { by: Some("root".into()) }));
    let office = Office::open(dir.path(), cluster).await;
    until("that one was cancelled is noticed", async || office.state(&cancelled).0 == State::Failed).await;
    assert_eq!(
        office.state(&cancelled).1,
        Some(muster_model::Reason::CancelledOutside { by: Some("root".into()) })
    );
    until("the other still waits", async || office.why(&kept).await.code == "no_capacity").await;
    assert_eq!(office.cluster.kept()[&first(&kept)].starts, 1);
    office.close().await;
}

#[tokio::test]
async fn what_an_engine_says_by_itself_is_heard_at_once_and_about_those_alone() {
    let dir = tempfile::tempdir().unwrap();
    let office = Office::open(dir.path(), Arc::new(Cluster::new())).await;
    let (kept, cancelled) = (office.submit().await, office.submit().await);
    for job in [&kept, &cancelled] {
        until("it has said what it waits for", async || office.why(job).await.code == "no_capacity").await;
    }
    let begun = std::time::Instant::now();
    let verdict = Verdict::Cancelled { by: Some("root".into()) };
    office.cluster.announce(&first(&cancelled), Status::Ended(verdict));
    until("that one was cancelled is noticed", async || office.state(&cancelled).0 == State::Failed).await;
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}: it was looked at all anew", begun.elapsed());
    assert_eq!(office.state(&kept).0, State::Queued);
    until("what is over may be forgotten there", async || {
        *office.cluster.closed.lock().unwrap() == [first(&cancelled)]
    })
    .await;
    office.close().await;
}

#[tokio::test]
async fn a_place_that_does_not_answer_is_named_and_hides_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let office = Office::open(dir.path(), Arc::new(Cluster::new())).await;
    let (near, far) = (office.submit_on("slurm/near").await, office.submit_on("slurm/far").await);
    for job in [&near, &far] {
        until("it has said what it waits for", async || office.why(job).await.code == "no_capacity").await;
    }
    office.cluster.announce(&first(&far), Status::Unanswered("no route to host".into()));
    let trouble = Some("slurm/far does not answer now: no route to host".to_owned());
    until("it is named", async || office.why(&far).await.constraint == trouble).await;
    let why = office.why(&near).await;
    assert_eq!((why.code.as_str(), why.constraint), ("no_capacity", None));
    assert_eq!(office.why(&far).await.code, "no_capacity", "what it said last is still shown");
    office.cluster.announce(&first(&far), pending());
    until("it answers again", async || office.why(&far).await.constraint.is_none()).await;
    office.close().await;
}

#[tokio::test]
async fn an_account_that_hangs_holds_up_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Arc::new(Cluster::new());
    cluster.hung.lock().unwrap().insert("bob".into());
    let office = Office::open(dir.path(), cluster.clone()).await;
    let (say, said) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn(run(office.server.shared.clone(), said, stop.clone()));
    let target = |account: &str| {
        let target = "slurm/gpu".parse().unwrap();
        GangTarget { target, account: Some(account.into()) }
    };
    let attempt = |job| AttemptId { job: JobId::from_random(job), number: 1 };
    let hand_over = |job, account| {
        let spec = Arc::new(JobSpec::from_value(json!({ "command": ["true"] })).unwrap());
        let gang = Gang { name: "test".into(), place: "gpu".into(), spec, volumes: Vec::new() };
        let node = format!("node_slurm.{job}.1.0").parse().unwrap();
        Word::HandOver {
            attempt: attempt(job),
            target: target(account),
            nodes: vec![node],
            gang: Box::new(gang),
        }
    };
    say.send(Word::Watch { attempt: attempt(1), target: target("bob") }).unwrap();
    for job in 2..40 {
        say.send(hand_over(job, "bob")).unwrap();
    }
    say.send(hand_over(40, "ada")).unwrap();
    until("ada's is handed over", async || cluster.kept().contains_key(&attempt(40))).await;
    let asked = |account: &str| {
        let asked = cluster.asked.lock().unwrap();
        asked.iter().filter(|accounts| accounts.contains(&Some(account.into()))).count()
    };
    until("ada's is looked at again and again", async || {
        say.send(Word::Look(attempt(40))).unwrap();
        asked("ada") > 2
    })
    .await;
    assert_eq!(asked("bob"), 1, "one question, which is not answered");
    assert!(cluster.asked.lock().unwrap().iter().all(|accounts| accounts.len() == 1), "an account's own");
    say.send(Word::TakeBack { attempt: attempt(40), target: target("ada") }).unwrap();
    until("ada's is taken back", async || !cluster.kept().contains_key(&attempt(40))).await;
    let troubles = &office.server.shared.troubles;
    assert_eq!(troubles.get(&target("ada")), None);
    running.abort_all();
    while running.join_next().await.is_some() {}
    office.close().await;
}
