//! Whose links are carried: those of all pods of ours that run, in clusters whose pods do not reach the server. Of those that are
//! about to run, a few: to be early costs calls of the API.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use muster_model::AttemptId;
use tokio::time::sleep;

use crate::carry::{Called, Carrier};
use crate::connect::Connections;
use crate::leftover::Kept;
use crate::seen::Phase;
use crate::watch::Place;

/// A gang's pods begin within a moment of each other, and each is news.
const MOMENT: Duration = Duration::from_millis(20);
/// Before a cluster that could not be reached is tried again.
const PAUSE: Duration = Duration::from_secs(2);

/// How many pods are called upon before they are known to run.
const EARLY: usize = 8;

/// A pod that runs, or is about to.
struct Running {
    /// It is known to run.
    is_known: bool,
    /// It is called upon.
    is_called: bool,
    namespace: String,
    name: String,
    attempt: AttemptId,
    rank: u32,
}

/// Carries the links of a place's pods for as long as it is polled.
pub(crate) async fn tend(
    name: String,
    place: Arc<Place>,
    connections: Arc<Connections>,
    kept: Arc<Kept>,
    socket: PathBuf,
) {
    let carrier = Carrier::new(socket);
    let mut revision = place.revision();
    loop {
        revision.mark_unchanged();
        let running = running(&place);
        carrier.retain(|uid| running.contains_key(uid));
        if !running.is_empty() {
            match connections.get(&name).await {
                Ok(connection) => {
                    for (uid, pod) in running.iter().filter(|(_, pod)| pod.is_called) {
                        carrier.begin(uid, pod.is_known, || called(&connection.client, &kept, pod));
                    }
                }
                Err(error) => {
                    tracing::debug!(place = name, %error, "links are not carried now");
                    sleep(PAUSE).await;
                    continue;
                }
            }
        }
        if revision.changed().await.is_err() {
            return;
        }
        sleep(MOMENT).await;
    }
}

fn running(place: &Place) -> BTreeMap<String, Running> {
    let shelf = place.shelf();
    let (mut running, mut early) = (BTreeMap::new(), Vec::new());
    for (attempt, _, pods) in shelf.gangs() {
        for pod in pods {
            let is_known = pod.phase == Phase::Running;
            let is_early = pod.phase == Phase::Pending && pod.node.is_some() && pod.deleted_at.is_none();
            let Some(rank) = pod.rank.filter(|_| is_known || is_early) else { continue };
            let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
            let attempt = attempt.clone();
            let own = Running { is_known, is_called: is_known, namespace, name, attempt, rank };
            running.insert(pod.uid.clone(), own);
            if is_early {
                early.push((pod.scheduled_at, pod.uid.clone()));
            }
        }
    }
    // Those that were placed last: who is not there after some time waits for something else.
    early.sort_unstable_by(|one, other| other.cmp(one));
    for (_, uid) in early.into_iter().take(EARLY) {
        running.entry(uid).and_modify(|pod: &mut Running| pod.is_called = true);
    }
    running
}

fn called(client: &kube::Client, kept: &Kept, pod: &Running) -> Option<Called> {
    let Some(seats) = kept.seats(&pod.attempt) else {
        tracing::warn!(pod = pod.name, "what its agent shows is not known here");
        return None;
    };
    let token = seats.seats.get(pod.rank as usize)?.token.clone();
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    Some(Called { api, name: pod.name.clone(), token })
}
