//! What became of jobs that the controller does not know any more, and what it never tells: the accounting is asked, where a site
//! has one, and what is written down in the directories of attempts.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_model::AttemptId;

use super::excerpt::{SENTENCE, excerpt};
use super::gate::wire::{Answer, Ask, Found};
use super::inventory;
use super::job::{self, Job, is_id};
use super::submitter::Submitter;
use super::way::{Gate, unexpected};
use crate::{Error, Observed, Status, Verdict, Wait};

/// How long the accounting may take. Where its database is away, its programs wait for it, and everybody else for them.
const PATIENCE: Duration = Duration::from_secs(10);

impl Submitter {
    /// What became of attempts that the controller does not know.
    pub(super) async fn of_the_past(
        &self,
        gate: &Gate,
        attempts: Vec<AttemptId>,
    ) -> Result<BTreeMap<AttemptId, Observed>, Error> {
        if attempts.is_empty() {
            return Ok(BTreeMap::new());
        }
        let found = found(gate, &attempts).await?;
        let is_open = |found: &&Found| !found.is_closed;
        let ids: Vec<String> = found.iter().filter(is_open).filter_map(|found| found.job.clone()).collect();
        let known = self.accounted(gate, &ids).await;
        let (mut observed, mut hosts_left) = (BTreeMap::new(), job::MOST_HOSTS_OF_ALL);
        for (attempt, found) in attempts.into_iter().zip(found) {
            let job = found.job.as_ref().and_then(|id| known.get(id));
            let past = match past(&found, job, &mut hosts_left) {
                Observed { status: Status::Ended(Verdict::Unknown), external, hosts }
                    if !found.is_claimed =>
                {
                    let status = unclaimed(gate, &attempt).await?;
                    Observed { status, external, hosts }
                }
                past => past,
            };
            observed.insert(attempt, past);
        }
        self.name_who_cancelled(gate, &mut observed).await;
        Ok(observed)
    }

    /// What the accounting knows. A site may have none.
    async fn accounted(&self, gate: &Gate, ids: &[String]) -> BTreeMap<String, Job> {
        if ids.is_empty() {
            return BTreeMap::new();
        }
        match tokio::time::timeout(PATIENCE, gate.run(job::sacct(ids))).await {
            Ok(Ok(output)) => job::read_sacct(&output, ids),
            Ok(Err(error)) => {
                tracing::debug!(%error, "there is no accounting");
                BTreeMap::new()
            }
            Err(_) => {
                tracing::warn!("the accounting does not answer");
                BTreeMap::new()
            }
        }
    }

    /// Says who cancelled jobs, by name. The controller does not know; the accounting has the number of the account.
    pub(super) async fn name_who_cancelled(&self, gate: &Gate, known: &mut BTreeMap<AttemptId, Observed>) {
        let is_nameless =
            |observed: &&mut Observed| observed.status == Status::Ended(Verdict::Cancelled { by: None });
        let nameless =
            known.values_mut().filter(is_nameless).filter_map(|one| one.external.clone()).collect::<Vec<_>>();
        let accounted = self.accounted(gate, &nameless).await;
        for observed in known.values_mut() {
            let Status::Ended(Verdict::Cancelled { by }) = &mut observed.status else { continue };
            let job = observed.external.as_ref().and_then(|id| accounted.get(id));
            if let Some(Status::Ended(Verdict::Cancelled { by: Some(known) })) = job.map(Job::status) {
                *by = Some(known);
            }
            if let Some(number) = by.as_ref().filter(|by| is_id(by)) {
                *by = Some(account(gate, number).await.unwrap_or_else(|| number.clone()));
            }
        }
    }

    /// Says which node failed. Slurm's record of the job does not, but Slurm takes the node out of service.
    pub(super) async fn name_failed_nodes(&self, gate: &Gate, known: &mut BTreeMap<AttemptId, Observed>) {
        for (attempt, observed) in known {
            let Status::Ended(Verdict::NodeFailed { node }) = &mut observed.status else { continue };
            if node.is_some() || observed.hosts.is_empty() {
                continue;
            }
            let named = self.memory().failed_nodes.get(attempt).cloned();
            if named.is_some() {
                *node = named;
                continue;
            }
            match gate.run(inventory::sinfo_of(&observed.hosts)).await {
                Ok(output) => *node = inventory::failed(&output),
                Err(error) => tracing::debug!(%attempt, %error, "which node failed is not known"),
            }
            // It may be back in service the next time.
            if let Some(node) = node {
                self.memory().failed_nodes.insert(attempt.clone(), node.clone());
            }
        }
    }

    /// Has it written down that nothing of an attempt is to run any more of which Slurm has given a node up. What runs there may
    /// be well, and only out of reach: if its agent sees the directory, it ends it before the next attempt begins.
    pub(super) async fn close_given_up(&self, gate: &Gate, known: &BTreeMap<AttemptId, Observed>) {
        let is_given_up =
            |observed: &Observed| matches!(observed.status, Status::Ended(Verdict::NodeFailed { .. }));
        for (attempt, _) in known.iter().filter(|(_, observed)| is_given_up(observed)) {
            if self.memory().given_up.contains(attempt) {
                continue;
            }
            match gate.ask(&Ask::Close { attempt: attempt.clone() }).await {
                Ok(_) => drop(self.memory().given_up.insert(attempt.clone())),
                Err(error) => {
                    tracing::warn!(%attempt, %error, "its agents could not be told that it is over")
                }
            }
        }
    }
}

/// An attempt whose job nobody knows, and that no agent has ever worked for. If one comes only now, it is to end: what was never
/// begun is begun anew, under another number.
async fn unclaimed(gate: &Gate, attempt: &AttemptId) -> Result<Status, Error> {
    gate.ask(&Ask::Close { attempt: attempt.clone() }).await?;
    let is_claimed = found(gate, std::slice::from_ref(attempt)).await?.iter().any(|found| found.is_claimed);
    Ok(if is_claimed { Status::Ended(Verdict::Unknown) } else { Status::Gone })
}

/// What is written down of attempts.
pub(super) async fn found(gate: &Gate, attempts: &[AttemptId]) -> Result<Vec<Found>, Error> {
    match gate.ask(&Ask::Look { attempts: attempts.to_vec() }).await? {
        Answer::Found { attempts: found } if found.len() == attempts.len() => Ok(found),
        answer => Err(unexpected(&answer)),
    }
}

/// What an account is called there.
async fn account(gate: &Gate, number: &str) -> Option<String> {
    let line = gate.run(["getent", "passwd", number].map(String::from).to_vec()).await.ok()?;
    let name = line.split(':').next()?.trim();
    (!name.is_empty()).then(|| excerpt(name, SENTENCE))
}

/// What is known of an attempt that the controller does not know.
fn past(found: &Found, accounted: Option<&Job>, hosts_left: &mut usize) -> Observed {
    let status = match (found, accounted) {
        (Found { is_closed: true, .. }, _) => Status::Gone,
        (Found { job: Some(_), .. }, Some(job)) => match job.status() {
            ended @ Status::Ended(_) => ended,
            // The accounting may be late, and the controller is the one who knows.
            _ => Status::Ended(Verdict::Unknown),
        },
        (Found { job: Some(_), .. }, None) => Status::Ended(Verdict::Unknown),
        (Found { job: None, is_tried: true, .. }, _) => {
            let summary = "whether Slurm has it is being found out".into();
            Status::Waiting(Wait { code: "scheduler", summary, help: None, starts_at: None })
        }
        (Found { job: None, is_tried: false, .. }, _) => Status::Gone,
    };
    let hosts = accounted.map(|job| job.hosts(hosts_left)).unwrap_or_default();
    Observed { status, external: found.job.clone(), hosts }
}
