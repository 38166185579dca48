//! What the API server says of our objects, kept up to date by its watches.
//!
//! A cluster is watched from when it is first needed. Our own Jobs and pods, and events about them, are watched in the namespaces
//! where we make any, which is all that we need rights for. Machines and everybody's pods are watched only while somebody wants to
//! know what is free, and only if we may. What is asked here is answered from memory: nobody waits for a cluster.

mod follow;
mod place;
mod shelf;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muster_engine::{Key, Observed, Status, Verdict, Wait};
use muster_model::{AttemptId, Timestamp};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::inventory::Inventory;
use crate::truth::{self, Facts};
pub(crate) use follow::Reach;
pub(crate) use place::Listener;
pub(crate) use place::Place;

/// A pod that begins changes several times within a moment; who is told once is not asked for each.
const MOMENT: Duration = Duration::from_millis(30);
/// How long whoever asks first waits for the first list.
const FIRST_LIST: Duration = Duration::from_secs(5);

/// All clusters that are in use.
#[derive(Debug)]
pub(crate) struct Watches {
    shared: Arc<Shared>,
    places: Mutex<BTreeMap<String, Arc<Place>>>,
    /// They end when the engine does.
    tasks: Mutex<JoinSet<()>>,
}

/// What the loops of all clusters have in common.
#[derive(Debug)]
struct Shared {
    server: String,
    reach: Arc<dyn Reach>,
    news: Mutex<BTreeSet<(String, AttemptId)>>,
    is_new: Notify,
}

impl Shared {
    fn tell(&self, place: &str, attempts: BTreeSet<AttemptId>) {
        if attempts.is_empty() {
            return;
        }
        lock(&self.news).extend(attempts.into_iter().map(|attempt| (place.to_owned(), attempt)));
        self.is_new.notify_one();
    }
}

/// What is known of an attempt, and what is to be done about it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    pub observed: Observed,
    /// Its Job, in this namespace, is to be ended for this reason: see [`truth::write_verdict`].
    pub doom: Option<(String, Verdict)>,
}

impl Watches {
    /// Nothing is watched yet. Objects are ours if they carry the server's name.
    pub(crate) fn new(server: String, reach: Arc<dyn Reach>) -> Self {
        let shared = Shared { server, reach, news: Mutex::default(), is_new: Notify::new() };
        Self { shared: Arc::new(shared), places: Mutex::default(), tasks: Mutex::default() }
    }

    /// Has what is ours in a namespace watched from now on.
    pub(crate) fn ensure(&self, place: &str, namespace: &str) -> Arc<Place> {
        let place = self.place(place);
        place.watch(namespace, &mut lock(&self.tasks));
        place
    }

    /// Has machines and everybody's pods watched for a while.
    pub(crate) fn survey(&self, place: &str) -> Arc<Place> {
        let place = self.place(place);
        place.survey(&mut lock(&self.tasks));
        place
    }

    /// A place, watched or not.
    pub(crate) fn place(&self, name: &str) -> Arc<Place> {
        let mut places = lock(&self.places);
        if let Some(place) = places.get(name) {
            return Arc::clone(place);
        }
        let place = Arc::new(Place::new(name.to_owned(), Arc::clone(&self.shared)));
        Arc::clone(&place).look_after(&mut lock(&self.tasks));
        places.insert(name.to_owned(), Arc::clone(&place));
        place
    }

    /// An attempt was just handed over: until it is seen, it is not gone.
    pub(crate) fn expect(&self, place: &str, namespace: &str, attempt: &AttemptId) {
        self.ensure(place, namespace).shelf().expect(attempt, namespace, Instant::now());
    }

    /// We are about to end it: what goes from now on goes because we want it.
    pub(crate) fn stopping(&self, place: &str, attempt: &AttemptId) {
        self.place(place).shelf().stopping(attempt);
    }

    /// Nothing of it is left, and nobody asks any more.
    pub(crate) fn forget(&self, place: &str, attempt: &AttemptId) {
        self.place(place).shelf().forget(attempt);
    }

    /// Whether anything is known of an attempt, wherever it is.
    pub(crate) fn knows(&self, attempt: &AttemptId) -> bool {
        lock(&self.places).values().any(|place| place.shelf().get(attempt).is_some())
    }

    /// Returns when there is something new about attempts, and names them.
    pub(crate) async fn changed(&self) -> Vec<Key> {
        // Whoever was cut off here before has left what he would have been told.
        while lock(&self.shared.news).is_empty() {
            self.shared.is_new.notified().await;
        }
        sleep(MOMENT).await;
        let news = std::mem::take(&mut *lock(&self.shared.news));
        news.into_iter().map(|(place, attempt)| Key::Gang { attempt, place, account: None }).collect()
    }

    /// What is known of attempts of a place, in the order asked. `gate` says what a gang waits for that is held back.
    pub(crate) async fn status(
        &self,
        place: &str,
        attempts: &[&AttemptId],
        gate: impl Fn(&AttemptId) -> Option<Wait>,
        now: Timestamp,
    ) -> Vec<Found> {
        let place = self.place(place);
        // Who comes first does not hear that nothing is known when it will be in a moment.
        drop(timeout(FIRST_LIST, place.listed()).await);
        if let Some(why) = place.unanswered() {
            let found = |_| Found { observed: Status::Unanswered(why.clone()).into(), doom: None };
            return attempts.iter().map(found).collect();
        }
        let inventory = place.inventory();
        let inventory = inventory.as_ref().ok().map(Arc::as_ref);
        let shelf = place.shelf();
        attempts
            .iter()
            .map(|attempt| found(&shelf, attempt, gate(attempt).as_ref(), inventory, now))
            .collect()
    }
}

fn found(
    shelf: &shelf::Shelf,
    attempt: &AttemptId,
    gate: Option<&Wait>,
    inventory: Option<&Inventory>,
    now: Timestamp,
) -> Found {
    let Some(record) = shelf.get(attempt) else { return Found { observed: Status::Gone.into(), doom: None } };
    if record.expected_at.is_some() && record.job.is_none() {
        let summary = "Kubernetes has just been given it".into();
        let wait = Wait { code: "scheduler", summary, help: None, starts_at: None };
        return Found { observed: Status::Waiting(wait).into(), doom: None };
    }
    let judgement = truth::judge(Facts {
        job: record.job.as_deref(),
        is_job_gone: record.is_job_gone,
        pods: &record.pods,
        events: &record.events,
        is_stopping: record.is_stopping,
        gate,
        inventory,
        now,
    });
    let namespace = || record.job.as_ref().map(|job| job.namespace.clone()).unwrap_or_default();
    Found { doom: judgement.doom.map(|verdict| (namespace(), verdict)), observed: judgement.observed }
}

/// What is behind the locks of this module is right after every single step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
