//! From the Job and the pods of a gang to what is decided about, together with what was done and is not seen yet.
//!
//! A watch is behind what we do. Who decided again on a view that does not show the last step would open a second gang, so
//! each step counts as seen from when it is tried, until the view shows it or has had the time to.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use muster_model::Timestamp;

use super::gathering::{GATHERING, NOT_BEFORE, TAKEN_BACK};
use super::ground::{Ground, Tenant};
use super::plan::Seen;
use super::words::Queue;
use crate::seen::{Job, Pod};

/// Until when a step that is not seen counts as done. A watch that is this far behind has been interrupted, and a step that
/// failed after all has to be tried again some time.
const UNSEEN: Duration = Duration::from_secs(10);

/// A gang: its Job, and those of its pods that there are.
#[derive(Debug, Clone)]
pub(crate) struct Gang {
    pub job: Arc<Job>,
    pub pods: Vec<Arc<Pod>>,
}

/// What was done about gangs and is not seen yet, and which pods of theirs were counted on the ground.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Pods whose gates were removed, by their uid.
    opened: HashMap<String, Timestamp>,
    /// Jobs that were suspended or resumed, by their uid.
    suspended: HashMap<String, (bool, Timestamp)>,
    counted: BTreeSet<String>,
}

impl Gang {
    /// What it is called in decisions.
    pub(crate) fn id(&self) -> String {
        format!("{}/{}", self.job.namespace, self.job.name)
    }

    /// Whether its gates are for us to open, now or later.
    fn is_ours(&self) -> bool {
        let job = &self.job;
        let is_over = job.end.is_some() || job.failing.is_some() || job.deleted_at.is_some();
        job.annotations.get(GATHERING).is_some_and(|by| by == "gates") && !is_over
    }

    /// In whose queue it is, and in which namespace.
    pub(crate) fn queue(&self) -> Option<(&str, Queue)> {
        let queue = match self.job.annotations.get(GATHERING)?.as_str() {
            "kueue" => Queue::Kueue,
            "volcano" => Queue::Volcano,
            _ => return None,
        };
        Some((&self.job.namespace, queue))
    }

    /// Pods that still have their gate.
    pub(crate) fn gated(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.iter().filter(|pod| pod.is_gated && pod.deleted_at.is_none())
    }
}

impl Done {
    /// The gates of this gang's pods are about to be removed.
    pub(crate) fn opens(&mut self, gang: &Gang, now: Timestamp) {
        self.opened.extend(gang.gated().map(|pod| (pod.uid.clone(), now + UNSEEN)));
    }

    /// The gang's Job is about to be suspended or resumed.
    pub(crate) fn suspends(&mut self, gang: &Gang, is_suspended: bool, now: Timestamp) {
        self.suspended.insert(gang.job.uid.clone(), (is_suspended, now + UNSEEN));
    }

    /// It did not happen.
    pub(crate) fn failed(&mut self, gang: &Gang) {
        self.suspended.remove(&gang.job.uid);
        for pod in &gang.pods {
            self.opened.remove(&pod.uid);
        }
    }

    /// Everything that is to be decided about. Pods that have a node are counted on the ground as well: the watch of all pods
    /// may be behind the one of ours.
    pub(crate) fn seen(&mut self, gangs: &[Gang], ground: Option<&mut Ground>, now: Timestamp) -> Vec<Seen> {
        self.opened.retain(|_, until| *until > now);
        self.suspended.retain(|_, (_, until)| *until > now);
        if let Some(ground) = ground {
            self.count(gangs, ground);
        }
        gangs.iter().filter(|gang| gang.is_ours()).map(|gang| self.one(gang)).collect()
    }

    fn one(&mut self, gang: &Gang) -> Seen {
        let job = &gang.job;
        if self.suspended.get(&job.uid).is_some_and(|(done, _)| *done == job.is_suspended) {
            self.suspended.remove(&job.uid);
        }
        let is_suspended = self.suspended.get(&job.uid).map_or(job.is_suspended, |(done, _)| *done);
        let mut seen = Seen {
            id: gang.id(),
            created: job.created_at.unwrap_or(Timestamp::UNIX_EPOCH),
            size: job.ranks as usize,
            needs: gang.pods.first().map(|pod| pod.needs.clone()).unwrap_or_default(),
            gated: 0,
            open: 0,
            refused: 0,
            promised: 0,
            bound: 0,
            leaving: 0,
            is_suspended,
            taken_back: job.annotations.get(TAKEN_BACK).and_then(|times| times.parse().ok()).unwrap_or(0),
            not_before: job.annotations.get(NOT_BEFORE).and_then(|at| at.parse().ok()),
        };
        gang.pods.iter().for_each(|pod| self.add(&mut seen, pod));
        seen
    }

    fn add(&mut self, seen: &mut Seen, pod: &Pod) {
        if !pod.is_gated {
            self.opened.remove(&pod.uid);
        }
        if pod.phase.is_over() && pod.deleted_at.is_none() {
            seen.bound += 1;
        } else if pod.deleted_at.is_some() {
            seen.leaving += 1;
        } else if pod.node.is_some() {
            seen.bound += 1;
        } else if pod.is_gated && !self.opened.contains_key(&pod.uid) {
            seen.gated += 1;
        } else {
            let is_refused = pod.unscheduled.as_ref().is_some_and(|said| said.reason == "Unschedulable");
            seen.open += 1;
            seen.refused += usize::from(is_refused);
            // A node is also named while the native gang waits for its others, and nobody is pushed out then.
            seen.promised += usize::from(is_refused && pod.nominated.is_some());
        }
    }

    fn count(&mut self, gangs: &[Gang], ground: &mut Ground) {
        let mut counted = BTreeSet::new();
        for pod in gangs.iter().flat_map(|gang| &gang.pods) {
            let Some(node) = pod.node.as_ref().filter(|_| !pod.phase.is_over()) else { continue };
            let (requests, priority) = (pod.needs.requests.clone(), pod.needs.priority);
            ground.set_tenant(&pod.uid, Some(Tenant { node: node.clone(), requests, priority }));
            counted.insert(pod.uid.clone());
        }
        for gone in self.counted.difference(&counted) {
            ground.set_tenant(gone, None);
        }
        self.counted = counted;
    }
}
