//! Everything about gangs in all clusters: who places them where, whose gates are tended, why they wait.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::Client;
use muster_engine::Wait;
use tokio::task::JoinSet;

use super::doing::Gates;
use super::gathering::{Gathering, NATIVE, Served};
use super::queues::Waits;
use super::tending;
use crate::watch::{Reach, Watches};

/// For how long it is believed what a cluster serves: installing Kueue is no event that anybody waits for by the second.
const BELIEVED: Duration = Duration::from_secs(60);
/// How long it may take to say so.
const CALL: Duration = Duration::from_secs(15);

/// All clusters.
#[derive(Debug)]
pub(crate) struct Hall {
    reach: Arc<dyn Reach>,
    rooms: Mutex<BTreeMap<String, Arc<Room>>>,
    /// They end when the engine does.
    tasks: Mutex<JoinSet<()>>,
}

/// One cluster.
#[derive(Debug, Default)]
pub(super) struct Room {
    pub(super) gates: Gates,
    pub(super) queues: Arc<Waits>,
    served: Mutex<Option<(Instant, Served)>>,
    is_tended: AtomicBool,
}

impl Hall {
    /// Nothing is tended yet.
    pub(crate) fn new(reach: Arc<dyn Reach>) -> Self {
        Self { reach, rooms: Mutex::default(), tasks: Mutex::default() }
    }

    /// Sees to the gates of a cluster from now on, and hears why gangs wait there.
    pub(crate) fn tend(&self, watches: &Watches, place: &str) {
        let room = self.room(place);
        if !room.is_tended.swap(true, Ordering::Relaxed) {
            let tending =
                tending::tend(room, watches.survey(place), Arc::clone(&self.reach), place.to_owned());
            lock(&self.tasks).spawn(tending);
        }
    }

    /// Why a gang waits that somebody holds back, by the name of its Job.
    pub(crate) fn wait(&self, place: &str, job: &str) -> Option<Wait> {
        let room = lock(&self.rooms).get(place).cloned()?;
        room.gates.wait(job).or_else(|| room.queues.get(job))
    }

    /// Who places a gang of this cluster; the words are for the field `k8s.queue`.
    pub(crate) async fn gathering(
        &self,
        client: &Client,
        place: &str,
        queue: Option<&str>,
    ) -> Result<Result<Gathering, String>, kube::Error> {
        Ok(self.room(place).served(client).await?.gathering(queue))
    }

    fn room(&self, place: &str) -> Arc<Room> {
        Arc::clone(lock(&self.rooms).entry(place.to_owned()).or_default())
    }
}

impl Room {
    /// What the cluster serves of this, asked at most once a minute.
    pub(super) async fn served(&self, client: &Client) -> Result<Served, kube::Error> {
        let known = lock(&self.served).clone().filter(|(at, _)| at.elapsed() < BELIEVED);
        if let Some((_, served)) = known {
            return Ok(served);
        }
        let silent = |_| Err(kube::Error::Service("the API server has not answered in time".into()));
        let served = tokio::time::timeout(CALL, discover(client)).await.unwrap_or_else(silent)?;
        *lock(&self.served) = Some((Instant::now(), served.clone()));
        Ok(served)
    }
}

async fn discover(client: &Client) -> Result<Served, kube::Error> {
    let listed = client.list_api_groups().await?.groups;
    let (group, version) = NATIVE;
    let is_native = |known: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroup| known.name == group;
    let versions = listed.iter().find(is_native).map(|group| group.versions.as_slice()).unwrap_or_default();
    let mut native = Vec::new();
    if versions.iter().any(|known| known.version == version) {
        let resources = client.list_api_group_resources(&format!("{group}/{version}")).await?;
        native = resources.resources.into_iter().map(|resource| resource.name).collect();
    }
    let native: Vec<&str> = native.iter().map(String::as_str).collect();
    let groups = listed.iter().map(|group| {
        let preferred = group.preferred_version.as_ref().or(group.versions.first());
        (group.name.as_str(), preferred.map_or("", |version| version.version.as_str()))
    });
    Ok(Served::of(groups, &native))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
