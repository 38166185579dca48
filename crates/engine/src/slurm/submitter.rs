//! One account's side of the cluster: its gate, what Slurm says of its jobs, and what is remembered of them.
//!
//! Nothing here is of another account: what one gate says, right or wrong, is never taken for jobs of another's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muster_model::{AttemptId, JobId, NodeId};

use super::Options;
use super::batch::{self, Place};
use super::change;
use super::gate::wire::{Answer, Ask, Submission, Submit};
use super::job::{self, AttemptJobs, Job};
use super::partition::{self, KnownPartitions};
use super::past;
use super::refusal;
use super::way::{Gate, Way, WayBase, unexpected};
use crate::{
    Class, Error, Gang, GangChange, Key, Observed, PlaceLimits, Seat, StartRequest, Status, Verdict,
};

/// A submission of which nothing was heard may still lie in the controller's queue when it answers again. It has been worked
/// off when so much time lies between two answers that know of no job.
const SETTLED: Duration = Duration::from_secs(15);
/// How often the files of what is long over are looked for.
const SWEEP: Duration = Duration::from_secs(24 * 3600);
/// Between two looks at a job that is being ended.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LAST_LOOK: Duration = Duration::from_secs(2);
/// Longer than it takes Slurm to kill what does not end by itself (`KillWait`, 30 s): something else is the matter.
const UNUSUAL: Duration = Duration::from_secs(45);

/// An account that jobs are submitted as.
#[derive(Debug)]
pub(super) struct Submitter {
    way: Way,
    partitions: KnownPartitions,
    /// The last answer of Slurm's, and when the question was asked.
    looked: tokio::sync::Mutex<Option<(Instant, Arc<AttemptJobs>)>>,
    pub(super) memory: Mutex<Memory>,
}

/// What makes things quicker or surer, and may be lost.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Since when Slurm has known nothing of an attempt that may have been handed over.
    unknown_since: BTreeMap<AttemptId, Instant>,
    /// When what is long over was removed.
    swept: Option<Instant>,
    /// Attempts that are to have no job any more.
    closed: BTreeSet<AttemptId>,
    /// Attempts that Slurm has given a node up of, and whose agents find that written down.
    pub(super) given_up: BTreeSet<AttemptId>,
    /// The node that failed, of attempts that ended by it.
    pub(super) failed_nodes: BTreeMap<AttemptId, String>,
}

impl Memory {
    /// Forgets what it keeps for the next look at attempts that have ended.
    fn forget_unasked(&mut self, keys: &[Key]) {
        let asked: BTreeSet<&AttemptId> = keys.iter().filter_map(|key| gang_of(key).ok()).collect();
        self.given_up.retain(|attempt| asked.contains(attempt));
        self.failed_nodes.retain(|attempt, _| asked.contains(attempt));
    }
}
impl Submitter {
    /// The side of an account, or of the login's own. Its gate is started when it is first needed.
    pub(super) fn new(base: Arc<WayBase>, account: Option<String>) -> Self {
        Self {
            way: Way::new(base, account),
            partitions: KnownPartitions::default(),
            looked: Default::default(),
            memory: Mutex::default(),
        }
    }

    fn options(&self) -> &Options {
        self.way.options()
    }

    /// Asks the cluster about itself.
    pub(super) async fn run(&self, argv: Vec<String>) -> Result<String, Error> {
        self.way.gate().await?.run(argv).await
    }

    /// The limits of partitions, for those who want to see them.
    pub(super) async fn limits(&self) -> Result<Vec<PlaceLimits>, Error> {
        let gate = self.way.gate().await?;
        self.partitions(&gate).await.map(|partitions| partitions.to_vec())
    }

    /// Whether the account can be had, and has a place for its files.
    pub(super) async fn check_account(&self) -> Result<(), Error> {
        self.way.check_account().await
    }

    /// As [`crate::Engine::start`].
    pub(super) async fn start(&self, request: &StartRequest) -> Result<Option<String>, Error> {
        let attempt = gang_of(&request.key)?;
        let Some(gang) = &request.gang else { return Err(Error::terminal("there is no gang to start")) };
        // It may have been taken before the operator decided otherwise.
        if let Some(refused) = batch::refused_options(&gang.spec, &self.options().wishes).into_iter().next() {
            return Err(Error::terminal(format!("{}: {}", refused.field, refused.message)));
        }
        let gate = self.way.gate().await?;
        self.submit(&gate, attempt, &request.seats, gang).await.map(Some)
    }

    /// As [`crate::Engine::change`].
    pub(super) async fn change(&self, attempt: &AttemptId, change: GangChange) -> Result<(), Error> {
        let gate = self.way.gate().await?;
        let jobs = self.look(&gate).await?;
        let job = jobs.first_of(attempt).ok_or_else(change::not_there)?;
        if !matches!(job.status(), Status::Waiting(_)) {
            return Err(change::not_waiting(&job.id));
        }
        let words = change::scontrol(change, &job.id, &self.options().wishes)?;
        gate.run(words).await.map(drop).map_err(|error| change::failed(change, error))
    }

    /// As [`crate::Engine::status`], for keys of this account.
    pub(super) async fn status(&self, keys: &[Key]) -> Result<Vec<Observed>, Error> {
        let gate = self.way.gate().await?;
        let jobs = self.look(&gate).await?;
        self.cancel_strays(&gate, &jobs).await;
        self.sweep(&gate, &jobs, keys).await;
        let mut known: BTreeMap<AttemptId, Observed> = BTreeMap::new();
        let mut hosts_left = job::MOST_HOSTS_OF_ALL;
        for key in keys {
            let attempt = gang_of(key)?;
            if self.memory().closed.contains(attempt) {
                known.insert(attempt.clone(), Status::Gone.into());
            } else if let Some(job) = jobs.first_of(attempt) {
                let (status, external) = (job.status(), Some(job.id.clone()));
                known.insert(
                    attempt.clone(),
                    Observed { status, external, hosts: job.hosts(&mut hosts_left) },
                );
            }
        }
        self.name_who_cancelled(&gate, &mut known).await;
        self.close_given_up(&gate, &known).await;
        let attempts = keys.iter().filter_map(|key| gang_of(key).ok());
        let missing = attempts.filter(|attempt| !known.contains_key(attempt)).cloned().collect();
        known.extend(self.of_the_past(&gate, missing).await?);
        self.name_time_limits(&gate, keys, &mut known).await;
        self.name_failed_nodes(&gate, &mut known).await;
        self.memory().forget_unasked(keys);
        let observed = |key| gang_of(key).ok().and_then(|attempt| known.get(attempt).cloned());
        Ok(keys.iter().map(|key| observed(key).unwrap_or_else(|| Status::Gone.into())).collect())
    }

    /// As [`crate::Engine::stop`].
    pub(super) async fn stop(&self, attempt: &AttemptId) -> Result<(), Error> {
        let gate = self.way.gate().await?;
        let found = past::found(&gate, std::slice::from_ref(attempt)).await?;
        let found = found.into_iter().next().unwrap_or_default();
        if !found.is_tried && found.job.is_none() {
            return Ok(());
        }
        // First, so that a job which only comes now ends by itself.
        gate.ask(&Ask::Close { attempt: attempt.clone() }).await?;
        self.end(&gate, attempt).await?;
        let mut memory = self.memory();
        memory.unknown_since.remove(attempt);
        memory.closed.insert(attempt.clone());
        Ok(())
    }

    /// As [`crate::Engine::remove`].
    pub(super) async fn remove(&self, job: &JobId) -> Result<(), Error> {
        let gate = self.way.gate().await?;
        gate.ask(&Ask::Remove { job: job.clone() }).await.map(drop)
    }

    /// As [`crate::Engine::salvage`].
    pub(super) async fn salvage(&self, attempt: &AttemptId) -> Result<(), Error> {
        let gate = self.way.gate().await?;
        gate.ask(&Ask::Salvage { attempt: attempt.clone() }).await.map(drop)
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All jobs of the account for this server, as Slurm knows them now. Callers that ask at the same time share the next answer.
    async fn look(&self, gate: &Gate) -> Result<Arc<AttemptJobs>, Error> {
        let wanted = Instant::now();
        let mut looked = self.looked.lock().await;
        if let Some((at, jobs)) = looked.as_ref().filter(|(at, _)| *at >= wanted) {
            tracing::trace!(?at, "an answer is shared");
            return Ok(Arc::clone(jobs));
        }
        let at = Instant::now();
        let output = gate.run(job::squeue(gate.who.uid)).await?;
        let jobs = Arc::new(job::read_squeue(&output, &gate.server)?);
        *looked = Some((at, Arc::clone(&jobs)));
        Ok(jobs)
    }

    /// The limits of the cluster's partitions, as they were at most a minute ago.
    async fn partitions(&self, gate: &Gate) -> Result<Arc<Vec<PlaceLimits>>, Error> {
        self.partitions.get(gate.run(partition::scontrol())).await
    }

    /// The longest time limit that a gang's partition gives a job, where that matters and is known.
    async fn max_time(&self, gate: &Gate, gang: &Gang) -> Option<Duration> {
        gang.spec.timeout?;
        match self.partitions(gate).await {
            Ok(partitions) => partition::max_time(&partitions, &gang.place),
            Err(error) => {
                tracing::warn!(%error, "the limits of partitions are not known; Slurm checks the time limit itself");
                None
            }
        }
    }

    /// Says of jobs that reached a time limit whether it was their partition's. The partition, and not Slurm's record of the
    /// job, knows what its default is.
    async fn name_time_limits(&self, gate: &Gate, keys: &[Key], known: &mut BTreeMap<AttemptId, Observed>) {
        for key in keys {
            let Key::Gang { attempt, place, .. } = key else { continue };
            let Some(Observed { status: Status::Ended(Verdict::TimeLimit { limit: Some(limit) }), .. }) =
                known.get_mut(attempt)
            else {
                continue;
            };
            match self.partitions(gate).await {
                Ok(partitions) => *limit = partition::with_source(*limit, &partitions, place),
                Err(error) => return tracing::debug!(%error, "the limits of partitions are not known"),
            }
        }
    }

    async fn submit(
        &self,
        gate: &Gate,
        attempt: &AttemptId,
        seats: &[Seat],
        gang: &Gang,
    ) -> Result<String, Error> {
        let max_time = self.max_time(gate, gang).await;
        let dir = format!("{}/{attempt}", gate.who.dir);
        let place = Place { attempt, server: &gate.server, dir: &dir, binary: &gate.who.binary };
        let mut argv = vec!["sbatch".to_owned()];
        argv.extend(batch::options(gang, &self.options().wishes, &place, max_time));
        let mut submit = Submit {
            attempt: attempt.clone(),
            seats: seats_file(seats, gang, self.options().patience),
            script: batch::script(&gang.spec, &place),
            argv,
            is_settled: false,
        };
        if let Some(id) = self.try_to_submit(gate, &submit).await? {
            return Ok(id);
        }
        if let Some(id) = self.find(gate, attempt).await? {
            return Ok(id);
        }
        submit.is_settled = true;
        match self.try_to_submit(gate, &submit).await? {
            Some(id) => Ok(id),
            None => Err(Error { what: IN_DOUBT.into(), class: Class::Retryable, source: None }),
        }
    }

    /// None if it is not known what came of it.
    async fn try_to_submit(&self, gate: &Gate, submit: &Submit) -> Result<Option<String>, Error> {
        let ask = Ask::Submit(Box::new(Submit {
            attempt: submit.attempt.clone(),
            seats: submit.seats.clone(),
            script: submit.script.clone(),
            argv: submit.argv.clone(),
            is_settled: submit.is_settled,
        }));
        let submission = match gate.ask(&ask).await? {
            Answer::Submission(submission) => submission,
            answer => return Err(unexpected(&answer)),
        };
        match submission {
            Submission::Job { id } => {
                self.memory().unknown_since.remove(&submit.attempt);
                Ok(Some(id))
            }
            Submission::Refused { complaints } => Err(refusal::refused(&complaints)),
            Submission::Later { complaints } => Err(refusal::retryable("sbatch", &complaints)),
            Submission::Busy => {
                let what = "an earlier sbatch for it has not ended yet".into();
                Err(Error { what, class: Class::Retryable, source: None })
            }
            Submission::Closed => Err(Error::terminal("it was taken back before Slurm had it")),
            Submission::Doubtful { complaints } => {
                let said = refusal::words(&complaints);
                tracing::warn!(attempt = %submit.attempt, said, "whether Slurm has it is to be found out");
                Ok(None)
            }
        }
    }

    /// The job of an attempt of which nothing was heard; none if there certainly is none.
    async fn find(&self, gate: &Gate, attempt: &AttemptId) -> Result<Option<String>, Error> {
        let jobs = self.look(gate).await?;
        if let Some(job) = jobs.first_of(attempt) {
            gate.ask(&Ask::Adopt { attempt: attempt.clone(), job: job.id.clone() }).await?;
            self.memory().unknown_since.remove(attempt);
            return Ok(Some(job.id.clone()));
        }
        let since = *self.memory().unknown_since.entry(attempt.clone()).or_insert_with(Instant::now);
        if since.elapsed() < SETTLED {
            return Err(Error { what: IN_DOUBT.into(), class: Class::Retryable, source: None });
        }
        self.memory().unknown_since.remove(attempt);
        Ok(None)
    }

    /// Ends jobs that should not be there: those that came of a submission made twice, and of one that was given up.
    async fn cancel_strays(&self, gate: &Gate, jobs: &AttemptJobs) {
        let strays = {
            let closed = &self.memory().closed;
            jobs.strays(|attempt| closed.contains(attempt))
        };
        if let Some(first) = strays.first() {
            tracing::warn!(first, count = strays.len(), "found stray jobs and will cancel them");
            let argv = std::iter::once("scancel".to_owned()).chain(strays).collect();
            if let Err(error) = gate.run(argv).await {
                tracing::warn!(%error, "they could not be cancelled, and will be");
            }
        }
    }

    /// Once a day, has the files removed of attempts that are long over.
    async fn sweep(&self, gate: &Gate, jobs: &AttemptJobs, keys: &[Key]) {
        let Some(kept) = self.options().kept else { return };
        let is_due = |last: Option<Instant>| last.is_none_or(|last| last.elapsed() >= SWEEP);
        let swept = {
            let mut memory = self.memory();
            is_due(memory.swept).then(|| memory.swept = Some(Instant::now()))
        };
        if swept.is_none() {
            return;
        }
        let live =
            jobs.live().cloned().chain(keys.iter().filter_map(|key| gang_of(key).ok().cloned())).collect();
        if let Err(error) = gate.ask(&Ask::Sweep { live, kept_s: kept.as_secs() }).await {
            tracing::warn!(%error, "files of jobs that are over could not be removed");
        }
    }

    /// Ends all jobs of an attempt, and waits until they are gone.
    async fn end(&self, gate: &Gate, attempt: &AttemptId) -> Result<(), Error> {
        let (begun, mut pause) = (Instant::now(), FIRST_LOOK);
        let mut told = BTreeSet::new();
        loop {
            let jobs = self.look(gate).await?;
            let is_live = |job: &&Job| !job.is_gone();
            let Some(first) = jobs.of(attempt).iter().find(is_live) else { return Ok(()) };
            if begun.elapsed() >= UNUSUAL {
                return Err(lingering(first));
            }
            let live = jobs.of(attempt).iter().filter(is_live).map(|job| job.id.clone());
            let untold: Vec<String> = live.filter(|id| told.insert(id.clone())).collect();
            if !untold.is_empty() {
                gate.run(std::iter::once("scancel".to_owned()).chain(untold).collect()).await?;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_LOOK);
        }
    }
}

const IN_DOUBT: &str =
    "whether Slurm has it is not known yet; it is looked for, and not submitted again before that is certain";

/// Slurm ends a job when all of its nodes have said so, or were given up. The state of processes on a silent node is unknown.
fn lingering(job: &Job) -> Error {
    let nodes = if job.nodes.is_empty() { "its nodes" } else { &job.nodes };
    let what = format!(
        "Slurm has not ended job {} yet: it waits for {nodes}, and gives up what does not answer (`SlurmdTimeout` of its \
         configuration)",
        job.id
    );
    Error { what, class: Class::Retryable, source: None }
}

/// What agents find in their attempt's directory.
fn seats_file(seats: &[Seat], gang: &Gang, patience: Duration) -> serde_json::Value {
    let milliseconds = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let seat = |seat: &Seat| serde_json::json!({ "node": seat.node, "token": seat.token });
    let model = gang.spec.resources.gpus.as_ref().and_then(|request| request.model.clone());
    serde_json::json!({
        "seats": seats.iter().map(seat).collect::<Vec<_>>(),
        "grace_ms": milliseconds(gang.spec.grace),
        "patience_ms": milliseconds(patience),
        "model": model,
    })
}

pub(super) fn gang_of(key: &Key) -> Result<&AttemptId, Error> {
    match key {
        Key::Gang { attempt, .. } => Ok(attempt),
        Key::Node(node) => Err(no_node(node)),
    }
}

fn no_node(node: &NodeId) -> Error {
    let what = format!("{node}: Slurm's nodes are Slurm's, and have no agent that stays");
    Error { what, class: Class::NotFound, source: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_an_attempt_goes_with_the_last_question_about_it() {
        let attempt = |number| AttemptId { job: JobId::from_random(1), number };
        let mut memory = Memory::default();
        for number in 1..=3 {
            memory.failed_nodes.insert(attempt(number), "n1".into());
            memory.given_up.insert(attempt(number));
        }
        memory.forget_unasked(&[Key::Gang { attempt: attempt(2), place: String::new(), account: None }]);
        assert_eq!(memory.failed_nodes.into_keys().collect::<Vec<_>>(), [attempt(2)]);
        assert_eq!(memory.given_up.into_iter().collect::<Vec<_>>(), [attempt(2)]);
    }
}
