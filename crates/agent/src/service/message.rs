//! What the server's messages mean.
//!
//! All of it was made elsewhere and is checked here. A message about a task that is not known is answered with what
//! lets the server go on; a message that makes no sense changes nothing.

use std::collections::BTreeSet;
use std::path::Path;

use jiff::Timestamp;
use muster_link::message::{Hello, Launch, PROTOCOL, Prepare, ToAgent, ToServer};
use muster_model::array::Grant;
use muster_model::task::TaskEnd;
use muster_model::{JobId, Reason, TaskId};

use super::life::Life;
use super::table::Task;
use super::{End, Event, Service};
use crate::record::{Record, TaskDir};
use crate::{control, disk, environment, machine, task};

impl Service {
    pub(super) fn on_link(&mut self, event: control::Event) -> Option<End> {
        match event {
            control::Event::Connected { hello, outbound } => {
                // A connection that was lost meanwhile says so next.
                let _ = hello.send(Box::new(self.hello()));
                self.outbound = Some(outbound);
            }
            control::Event::Welcomed { keep, volumes } => {
                self.keep = keep;
                self.look_for(volumes);
                self.sampling.begin();
                self.collect(false);
            }
            control::Event::Message(message) => return self.on_message(*message),
            control::Event::Unknown { kind } => self.answers.push_back(ToServer::Unsupported { what: kind }),
            control::Event::Lost => {
                self.hear();
                self.outbound = None;
                self.sampling.end();
                // Whoever asked has forgotten it, and will ask again.
                self.answers.clear();
            }
        }
        None
    }

    fn hello(&mut self) -> Hello {
        Hello {
            protocol: PROTOCOL,
            version: self.options.version.clone(),
            build: self.options.build.clone(),
            node: self.options.node.clone(),
            incarnation: self.identity.incarnation.clone(),
            pid: self.identity.pid,
            host: self.host(),
            capacity: self.capacity.clone(),
            account: environment::account(),
            tasks: self.tasks.reports(),
        }
    }

    /// What another scheduler calls its machine is what its people know it by.
    fn host(&self) -> String {
        let named = self.options.tenure.as_ref().and_then(|tenure| tenure.host.clone());
        named.unwrap_or_else(machine::host)
    }

    fn on_message(&mut self, message: ToAgent) -> Option<End> {
        match message {
            ToAgent::Prepare(prepare) => self.on_prepare(*prepare),
            ToAgent::Launch(launch) => self.on_launch(launch),
            ToAgent::Elements { task, grant } => self.on_grant(&task, grant),
            ToAgent::Peers { task, peers } => self.on_peers(task, peers),
            ToAgent::Stop { task, grace_ms, reason } => self.on_stop(&task, grace_ms, &reason),
            ToAgent::Forget { task, continues } => self.on_forget(&task, continues),
            ToAgent::Remove { job } => self.on_remove(&job),
            ToAgent::Upgrade { path } => return on_upgrade(&self.options.dir, Path::new(&path)),
            ToAgent::Shutdown => return self.on_shutdown(),
            // An older server: it need not be told again.
            ToAgent::Unsupported { what } if what == "metrics" => self.sampling.end(),
            ToAgent::Unsupported { what } if what == "removed" => {}
            ToAgent::Unsupported { what } => {
                tracing::warn!(what, "the server does not know what this agent said")
            }
            ToAgent::Collect => self.collect(true),
            // The first one began the connection; another one says that what is kept has changed.
            ToAgent::Welcome { keep, volumes, .. } => {
                self.keep = keep;
                self.look_for(volumes);
                self.collect(false);
            }
            ToAgent::Ping => {}
        }
        None
    }

    fn on_prepare(&mut self, prepare: Prepare) {
        let id = prepare.task.clone();
        if let Some(task) = self.tasks.change(&id) {
            task.life.repeat();
            return;
        }
        let mut life = Life::begin().with_outputs(!prepare.outputs.is_empty());
        let address = self.ledger.claim(&id, prepare.ports, prepare.shared_port);
        if let Err(error) = &address {
            life.refuse(Reason::PrepareFailed { message: error.to_string() });
        }
        let dir = TaskDir::new(self.hands.tasks_dir(), &id);
        let task = Task::new(&id, dir, Record::new(prepare, address.ok()), life);
        self.tasks.insert(id.clone(), task);
        self.advance(&id);
    }

    fn on_launch(&mut self, launch: Box<Launch>) {
        let id = launch.task.clone();
        // One that was launched before may have missed what it was given since.
        let grants = launch.elements.iter().flat_map(|elements| elements.grants.clone()).collect::<Vec<_>>();
        grants.into_iter().for_each(|grant| self.on_grant(&id, grant));
        match self.tasks.change(&id) {
            Some(task) => {
                task.life.on_launch(launch);
                self.advance(&id);
            }
            // It was prepared here, or the server would not ask: the record is lost.
            None => {
                let failure = self.hands.node_lost();
                self.answer_ended(id, failure, None);
            }
        }
    }

    /// One that is lost is said again when the server is next spoken to.
    fn on_grant(&mut self, id: &TaskId, grant: Grant) {
        let Some(task) = self.tasks.get(id) else { return };
        let (id, dir) = (id.clone(), task.dir.path().to_owned());
        self.work.spawn(async move {
            let given = disk::work(move || task::grant(&dir, &grant).map_err(std::io::Error::other)).await;
            if let Err(error) = given {
                tracing::warn!(task = %id, error = %error, "a lane could not be given its elements");
            }
            Event::Nothing
        });
    }

    fn on_stop(&mut self, id: &TaskId, grace_ms: u64, reason: &str) {
        match self.tasks.change(id) {
            Some(task) => {
                task.life.on_stop(grace_ms, reason);
                self.advance(id);
            }
            None => self.answer_ended(id.clone(), Reason::StoppedByUser, Some(0)),
        }
    }

    fn answer_ended(&mut self, task: TaskId, failure: Reason, log_bytes: Option<u64>) {
        let end = TaskEnd::new(Some(failure), log_bytes);
        self.answers.push_back(ToServer::Ended { task, end, at: Timestamp::now() });
    }

    fn on_forget(&mut self, id: &TaskId, continues: bool) {
        let Some(task) = self.tasks.change(id) else { return };
        if task.life.is_live() {
            tracing::warn!(task = %id, "a task that has not ended cannot be forgotten");
            return;
        }
        task.life.on_forget(continues);
        self.advance(id);
    }

    fn on_remove(&mut self, job: &JobId) {
        let known = self.tasks.of_job(job);
        for id in &known {
            if let Some(task) = self.tasks.change(id) {
                task.life.on_remove();
                self.advance(id);
            }
        }
        let rest = self.hands.remove_rest(job.clone(), known);
        self.work.spawn(rest);
    }

    /// Removes what is left of a job whose tasks here are all removed.
    pub(super) fn discard_rest(&mut self, job: &JobId) {
        if self.tasks.of_job(job).is_empty() {
            let rest = self.hands.remove_rest(job.clone(), BTreeSet::new());
            self.work.spawn(rest);
        }
    }

    /// The server is told once nothing is left. What could not be removed is asked for again on the next connection.
    pub(super) fn on_discarded(&mut self, job: JobId, is_complete: bool) {
        if is_complete && self.tasks.of_job(&job).is_empty() {
            self.answers.push_back(ToServer::Removed { job });
        }
        self.collect(false);
    }

    fn on_shutdown(&self) -> Option<End> {
        if self.tasks.has_live() {
            tracing::warn!("the agent does not end: it has live tasks");
            return None;
        }
        tracing::info!("the server has ended this agent");
        Some(End::Done)
    }
}

/// A relative path begins where this agent's directory is: the server does not know where a node has its home.
fn on_upgrade(dir: &Path, path: &Path) -> Option<End> {
    let path = dir.parent().unwrap_or(dir).join(path);
    if !path.is_absolute() || !path.is_file() {
        tracing::error!(path = %path.display(), "this is no binary to upgrade to");
        return None;
    }
    Some(End::Upgrade(path))
}
