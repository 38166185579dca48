//! Calls on tasks: an SSH connection through the server, with this user's key.

use std::sync::Arc;
use std::time::Duration;

use clap::Args as ClapArgs;
use muster_api::Code as ProblemCode;
use muster_api::client;
use muster_api::model::State;
use muster_api::model::spec::Kind;
use muster_api::view::{JobDetail, SshQuery};
use muster_ssh::client as ssh;
use muster_ssh::keys::PrivateKey;
use tokio::time::{sleep, timeout};

use crate::command::state;
use crate::error::{Code, Error, chain};
use crate::identity::Identity;
use crate::machine::{self, Member};
use crate::progress::Spinner;
use crate::session::Session;
use crate::target::Target;
use crate::terminal;

/// How often a task is called again that went away in the middle of the handshake: who answers in it may be killed.
const HANDSHAKES: u32 = 3;
/// How often it is looked whether a job runs that is waited for.
const POLL: Duration = Duration::from_millis(100);
/// What is asked only to explain an error is not waited for any longer.
const EXPLANATION: Duration = Duration::from_secs(2);

/// Which task, and whether to wait for it.
#[derive(Debug, ClapArgs)]
pub(crate) struct To {
    /// A job, by its id, the beginning of it, its name, or `last`; and which of its tasks, 0 if absent
    #[arg(value_name = "JOB[/TASK]")]
    target: Target,
    /// The same as JOB/RANK
    #[arg(long, value_name = "RANK")]
    task: Option<u32>,
    /// If the job waits or is being prepared, wait until it runs
    #[arg(long)]
    pub wait: bool,
}

impl To {
    pub fn target(&self) -> Result<Target, Error> {
        match (self.target.task, self.task) {
            (Some(one), Some(other)) if one != other => Err(Error::new(
                Code::Usage,
                format!("--task: {} names task {one} already, not {other}", self.target),
            )),
            (one, other) => Ok(Target { task: one.or(other), ..self.target.clone() }),
        }
    }
}

/// Whoever calls.
#[derive(Clone)]
pub(crate) struct Caller {
    pub session: Arc<Session>,
    key: Arc<PrivateKey>,
    /// The key's public half, as the server passes it on.
    line: String,
}

impl Caller {
    pub async fn open() -> Result<Self, Error> {
        let identity = Identity::of_user()?;
        let (line, key) = (identity.line()?, identity.key());
        Ok(Self { session: Arc::new(Session::open().await?), key, line })
    }

    /// A connection to a task that runs; waited for, if that is wanted.
    pub async fn call(&self, target: &Target, wait: bool) -> Result<ssh::Client, Error> {
        let mut target = target.clone();
        let mut query = SshQuery { task: target.task, key: self.line.clone() };
        let mut waiting = Waiting::default();
        let mut handshakes = 0;
        loop {
            let line = self.session.call(async |client| match client.ssh(&target.job, &query).await {
                Err(client::Error::Problem(problem)) if is_about_state(problem.code) => Ok(Err(*problem)),
                other => other.map(Ok),
            });
            let line = match line.await? {
                Ok(line) => line,
                Err(problem) => {
                    if problem.code != ProblemCode::InvalidState
                        && let Some(machine) = self.own_name(&target).await?
                    {
                        query.task = machine.task;
                        target = machine;
                        continue;
                    }
                    let job = self.session.call(async |client| client.job(&target.job).await).await?;
                    if !(wait && may_run(&job)) {
                        return Err(self.refused(&target, &job, problem.into()).await);
                    }
                    waiting.show(self, &job).await;
                    sleep(POLL).await;
                    continue;
                }
            };
            handshakes += 1;
            match ssh::Client::connect(line, self.key.clone()).await {
                Ok(client) => return Ok(client),
                // Nothing was done yet, so it may be tried again.
                Err(error) if error.is_lost() && handshakes < HANDSHAKES => {}
                Err(error) => return Err(self.broken(&target, error).await),
            }
        }
    }

    /// The machine of a group that is called so by a name of its own.
    async fn own_name(&self, target: &Target) -> Result<Option<Target>, Error> {
        if target.task.is_some() {
            return Ok(None);
        }
        let found = machine::by_own_name(&self.session, &target.job).await?;
        Ok(found.map(|found| Target { job: found.job.id.to_string(), task: found.rank }))
    }

    /// Why a task cannot be called on, in the words of its job's state where that says it.
    async fn refused(&self, target: &Target, job: &JobDetail, refusal: Error) -> Error {
        let summary = &job.summary;
        if let Some(rank) = target.task.filter(|rank| *rank >= summary.nodes) {
            return Error::new(Code::TaskNotFound, format!("{} has no task {rank}", summary.id))
                .hint(format!("its tasks are 0 to {}", summary.nodes.saturating_sub(1)));
        }
        if summary.kind == Kind::Machine && summary.state == State::Running {
            let one = Member::of(job, target.task.unwrap_or(0));
            if one.state != State::Running {
                return Error::new(Code::TaskNotRunning, format!("{} is {}", one.name, one.words()))
                    .hint(format!("`muster machine start {}` starts it", one.name));
            }
        }
        match summary.state {
            State::Queued | State::Starting | State::Suspended => {
                let why = timeout(EXPLANATION, self.session.client().why(summary.id.as_str())).await;
                let why = why
                    .ok()
                    .and_then(Result::ok)
                    .map_or_else(String::new, |why| format!(": {}", why.summary));
                Error::new(Code::TaskNotRunning, format!("{} is {}{why}", summary.id, summary.state))
                    .hint("--wait waits until it runs")
            }
            State::Stopping | State::Succeeded | State::Failed | State::Stopped => {
                let id = &summary.id;
                Error::new(
                    Code::TaskNotRunning,
                    format!("{id} does not run any more: {}", state::words(summary)),
                )
                .hint(format!("`muster logs {id}` has its output, `muster files {id}` what it left"))
            }
            State::Running => refusal,
        }
    }

    /// What a connection to a task failed with. A job that ended meanwhile explains it.
    pub async fn broken(&self, target: &Target, error: ssh::Error) -> Error {
        let task = format!("task {} of {}", target.task.unwrap_or(0), target.job);
        if !error.is_lost() {
            return Error::new(Code::TaskRefused, format!("{task}: {error}"));
        }
        let lost = Error::new(Code::TaskLost, format!("{task}: {}", chain(&error)));
        match timeout(EXPLANATION, self.session.client().job(&target.job)).await {
            Ok(Ok(job)) if job.summary.state != State::Running => {
                lost.detail(format!("{} is {} now", job.summary.id, state::words(&job.summary)))
            }
            _ => lost,
        }
    }
}

/// Whether a refusal may have to do with the job's state.
fn is_about_state(code: ProblemCode) -> bool {
    matches!(code, ProblemCode::InvalidState | ProblemCode::JobNotFound | ProblemCode::NotFound)
}

/// Whether it will run, if nothing comes between.
fn may_run(job: &JobDetail) -> bool {
    matches!(job.summary.state, State::Queued | State::Starting | State::Suspended)
}

/// What is shown to someone who waits: in place on a terminal, elsewhere once.
#[derive(Default)]
struct Waiting {
    spinner: Spinner,
    polls: u32,
    told: Option<String>,
}

impl Waiting {
    async fn show(&mut self, caller: &Caller, job: &JobDetail) {
        // What lasts a moment needs no words, and words do not change ten times a second.
        self.polls += 1;
        if !self.polls.is_multiple_of(10) {
            return;
        }
        let why = timeout(EXPLANATION, caller.session.client().why(job.summary.id.as_str())).await;
        let Ok(Ok(why)) = why else { return };
        if terminal::stderr_can_move() {
            self.spinner.show(&why.summary);
        } else if self.told.as_ref() != Some(&why.code) {
            terminal::note(&why.summary);
            self.told = Some(why.code);
        }
    }
}
