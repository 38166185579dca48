//! What is known of each attempt in a cluster: kept from what watches say, and remembered when it goes. Pure.
//!
//! Objects that are gone stay here until their attempt is forgotten, because how they looked last says why they went. Only what
//! differs from what was known is news; whoever is told of an attempt finds something new about it.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_model::{AttemptId, JobId};

use crate::objects;
use crate::seen::{Event, Job, Pod};
use crate::truth::Known;

/// What events are about that anybody here reads.
const TELLING: [&str; 7] = [
    "Failed",
    "FailedAttachVolume",
    "FailedCreate",
    "FailedCreatePodSandBox",
    "FailedMapVolume",
    "FailedMount",
    "NetworkNotReady",
];
/// Events that came before what they are about. The watches are not in step with each other.
const MAX_ORPHANS: usize = 256;
/// Events kept of an attempt.
const MAX_EVENTS: usize = 64;
/// For how long an attempt of which nothing is left is remembered if nobody says that it may be forgotten.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// What a watch says.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change<K> {
    /// These are all that there are, as of a list that was asked for then.
    All(Vec<K>, Instant),
    /// It is there, and looks so.
    Now(K),
    /// It is gone, and looked so last.
    Gone(K),
}

/// An attempt.
#[derive(Debug, Default, Clone)]
pub(crate) struct Record {
    namespace: String,
    pub(crate) job: Option<Arc<Job>>,
    pub(crate) is_job_gone: bool,
    /// By rank and age.
    pub(crate) pods: Vec<Known>,
    pub(crate) events: Vec<Event>,
    /// It was made then, and has not been seen.
    pub(crate) expected_at: Option<Instant>,
    /// We end it ourselves.
    pub(crate) is_stopping: bool,
    touched_at: Option<Instant>,
}

impl Record {
    /// Whether Kubernetes has anything of it.
    pub(super) fn is_anything_there(&self) -> bool {
        (self.job.is_some() && !self.is_job_gone) || self.pods.iter().any(|known| !known.is_gone)
    }
}

/// All attempts of this server in a cluster.
#[derive(Debug)]
pub(crate) struct Shelf {
    server: String,
    records: HashMap<AttemptId, Record>,
    orphans: VecDeque<(AttemptId, Event)>,
    /// Attempts that are no longer anybody's. What is left of them may still be seen for a moment.
    forgotten: VecDeque<AttemptId>,
}

impl Shelf {
    pub(super) fn new(server: String) -> Self {
        Self { server, records: HashMap::new(), orphans: VecDeque::new(), forgotten: VecDeque::new() }
    }

    pub(crate) fn get(&self, attempt: &AttemptId) -> Option<&Record> {
        self.records.get(attempt)
    }

    /// Every attempt whose Job is there, with the pods that are.
    pub(crate) fn gangs(
        &self,
    ) -> impl Iterator<Item = (&AttemptId, &Arc<Job>, impl Iterator<Item = &Arc<Pod>>)> {
        self.records.iter().filter_map(|(attempt, record)| {
            let job = record.job.as_ref().filter(|_| !record.is_job_gone)?;
            Some((attempt, job, record.pods.iter().filter(|known| !known.is_gone).map(|known| &known.pod)))
        })
    }

    /// An attempt was handed over: until it is seen, it is not gone.
    pub(super) fn expect(&mut self, attempt: &AttemptId, namespace: &str, now: Instant) {
        let record = self.record(attempt, namespace, now);
        if record.job.is_none() {
            record.expected_at = Some(now);
        }
    }

    /// What goes from now on goes because we want it.
    pub(super) fn stopping(&mut self, attempt: &AttemptId) {
        if let Some(record) = self.records.get_mut(attempt) {
            record.is_stopping = true;
        }
    }

    /// Nobody asks for it any more.
    pub(super) fn forget(&mut self, attempt: &AttemptId) {
        const MAX_FORGOTTEN: usize = 1024;
        if self.records.remove(attempt).is_some() {
            self.forgotten.push_back(attempt.clone());
            while self.forgotten.len() > MAX_FORGOTTEN {
                self.forgotten.pop_front();
            }
        }
    }

    /// Forgets what nobody has asked to forget, long after.
    pub(super) fn tidy(&mut self, now: Instant) {
        let is_old =
            |record: &Record| record.touched_at.is_none_or(|at| now.duration_since(at) >= REMEMBERED);
        self.records.retain(|_, record| record.is_anything_there() || !is_old(record));
    }

    /// Takes what a watch of Jobs says, and names the attempts about which that is new.
    pub(super) fn jobs(&mut self, namespace: &str, change: Change<Job>, now: Instant) -> BTreeSet<AttemptId> {
        let mut news = BTreeSet::new();
        match change {
            Change::Now(job) => self.job(job, false, now, &mut news),
            Change::Gone(job) => self.job(job, true, now, &mut news),
            Change::All(jobs, asked_at) => {
                let there: HashSet<String> = jobs.iter().map(|job| job.uid.clone()).collect();
                for (attempt, record) in
                    self.records.iter_mut().filter(|(_, record)| record.namespace == namespace)
                {
                    let is_missing = record.job.as_ref().is_some_and(|job| !there.contains(&job.uid));
                    if is_missing && !std::mem::replace(&mut record.is_job_gone, true) {
                        record.touched_at = Some(now);
                        news.insert(attempt.clone());
                    }
                    if record.expected_at.is_some_and(|at| at < asked_at) {
                        record.expected_at = None;
                        news.insert(attempt.clone());
                    }
                }
                jobs.into_iter().for_each(|job| self.job(job, false, now, &mut news));
            }
        }
        news
    }

    /// Takes what a watch of pods says.
    pub(super) fn pods(&mut self, namespace: &str, change: Change<Pod>, now: Instant) -> BTreeSet<AttemptId> {
        let mut news = BTreeSet::new();
        match change {
            Change::Now(pod) => self.pod(pod, false, now, &mut news),
            Change::Gone(pod) => self.pod(pod, true, now, &mut news),
            Change::All(pods, _) => {
                let there: HashSet<String> = pods.iter().map(|pod| pod.uid.clone()).collect();
                for (attempt, record) in
                    self.records.iter_mut().filter(|(_, record)| record.namespace == namespace)
                {
                    for known in record.pods.iter_mut().filter(|known| !there.contains(&known.pod.uid)) {
                        if !std::mem::replace(&mut known.is_gone, true) {
                            record.touched_at = Some(now);
                            news.insert(attempt.clone());
                        }
                    }
                }
                pods.into_iter().for_each(|pod| self.pod(pod, false, now, &mut news));
            }
        }
        news
    }

    /// Takes what a watch of events says. Kubernetes forgets events by itself after an hour: what is gone is not taken back.
    pub(super) fn events(&mut self, change: Change<Event>) -> BTreeSet<AttemptId> {
        let mut news = BTreeSet::new();
        let events = match change {
            Change::All(events, _) => events,
            Change::Now(event) => vec![event],
            Change::Gone(_) => Vec::new(),
        };
        for mut event in events.into_iter().filter(|event| TELLING.contains(&event.reason.as_str())) {
            let Some(attempt) = attempt_of(&event.about) else { continue };
            event.version = String::new();
            match self.records.get_mut(&attempt) {
                Some(record) => {
                    if add_event(record, event) {
                        news.insert(attempt);
                    }
                }
                None => {
                    self.orphans.push_back((attempt, event));
                    if self.orphans.len() > MAX_ORPHANS {
                        self.orphans.pop_front();
                    }
                }
            }
        }
        news
    }

    fn job(&mut self, mut job: Job, is_gone: bool, now: Instant, news: &mut BTreeSet<AttemptId>) {
        let Some(attempt) = objects::attempt_of(&job.labels, &self.server) else { return };
        if self.is_unwanted(&attempt, is_gone) {
            return;
        }
        job.version = String::new();
        let record = self.record(&attempt, &job.namespace.clone(), now);
        record.expected_at = None;
        let is_same = record.job.as_deref() == Some(&job) && record.is_job_gone == is_gone;
        if !is_same {
            record.job = Some(Arc::new(job));
            record.is_job_gone = is_gone;
            record.touched_at = Some(now);
            news.insert(attempt);
        }
    }

    fn pod(&mut self, mut pod: Pod, is_gone: bool, now: Instant, news: &mut BTreeSet<AttemptId>) {
        let Some(attempt) = objects::attempt_of(&pod.labels, &self.server) else { return };
        if self.is_unwanted(&attempt, is_gone) {
            return;
        }
        (pod.version, pod.labels) = (String::new(), Default::default());
        let record = self.record(&attempt, &pod.namespace.clone(), now);
        // All pods of a gang want the same, which is the larger part of what is kept of one.
        if let Some(known) = record.pods.iter().find(|known| known.pod.needs == pod.needs) {
            pod.needs = Arc::clone(&known.pod.needs);
        }
        let known = record.pods.iter_mut().find(|known| known.pod.uid == pod.uid);
        known.iter().for_each(|known| pod.continue_from(&known.pod));
        match known {
            Some(known) if *known.pod == pod && known.is_gone == is_gone => return,
            Some(known) => *known = Known { pod: Arc::new(pod), is_gone },
            None => record.pods.push(Known { pod: Arc::new(pod), is_gone }),
        }
        record.touched_at = Some(now);
        drop_replaced(&mut record.pods);
        news.insert(attempt);
    }

    /// Whether it is the rest of an attempt that was forgotten, or the end of one that was never known.
    fn is_unwanted(&self, attempt: &AttemptId, is_gone: bool) -> bool {
        !self.records.contains_key(attempt) && (is_gone || self.forgotten.contains(attempt))
    }

    fn record(&mut self, attempt: &AttemptId, namespace: &str, now: Instant) -> &mut Record {
        let is_new = !self.records.contains_key(attempt);
        let record = self.records.entry(attempt.clone()).or_insert_with(|| Record {
            namespace: namespace.to_owned(),
            touched_at: Some(now),
            ..Record::default()
        });
        if is_new {
            let orphans = std::mem::take(&mut self.orphans);
            for (of, event) in orphans {
                if of == *attempt {
                    add_event(record, event);
                } else {
                    self.orphans.push_back((of, event));
                }
            }
        }
        record
    }
}

/// Of pods that are gone, only the newest of a rank says anything, and only while there is no other.
fn drop_replaced(pods: &mut Vec<Known>) {
    let age = |known: &Known| (!known.is_gone, known.pod.created_at);
    let mut newest: HashMap<Option<u32>, (bool, Option<muster_model::Timestamp>)> = HashMap::new();
    for known in pods.iter() {
        let best = newest.entry(known.pod.rank).or_insert_with(|| age(known));
        *best = (*best).max(age(known));
    }
    pods.retain(|known| !known.is_gone || newest.get(&known.pod.rank) == Some(&age(known)));
    pods.sort_by_key(|known| (known.pod.rank, known.pod.created_at));
}

/// Keeps the newest event of a kind about a thing; whether that is news.
fn add_event(record: &mut Record, event: Event) -> bool {
    let is_alike = |known: &&mut Event| {
        known.about_uid == event.about_uid && known.reason == event.reason && known.message == event.message
    };
    if let Some(known) = record.events.iter_mut().find(is_alike) {
        // That it was said again is nothing new; when it was first said matters.
        known.at = known.at.max(event.at);
        known.first_at = known.first_at.min(event.first_at).or(known.first_at);
        return false;
    }
    record.events.push(event);
    if record.events.len() > MAX_EVENTS {
        record.events.remove(0);
    }
    true
}

/// The attempt that an object of ours is of, by its name: `m-ID-NUMBER`, and what Kubernetes makes of it. Events have no labels.
fn attempt_of(name: &str) -> Option<AttemptId> {
    let mut words = name.strip_prefix("m-")?.splitn(3, '-');
    let (job, number) = (words.next()?, words.next()?);
    Some(AttemptId { job: format!("{}{job}", JobId::PREFIX).parse().ok()?, number: number.parse().ok()? })
}

#[cfg(test)]
mod tests;
