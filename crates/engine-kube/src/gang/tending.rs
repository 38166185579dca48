//! Keeps the gates of one cluster: hears what changes there, and has it decided and done.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use muster_model::Timestamp;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::ground::Tenant;
use super::hall::Room;
use super::needs::{Node, Taint};
use super::view::Gang;
use super::words::Queue;
use crate::seen;
use crate::watch::{Listener, Place, Reach};

/// The pods of a gang are made one after the other; who waits for this long decides once.
const MOMENT: Duration = Duration::from_millis(15);
/// The ground changes all the time in a big cluster; who waits for room need not look more often than this.
const SOON: Duration = Duration::from_millis(200);
/// Before a cluster that could not be spoken with, or whose nodes are not listed yet, is tried again.
const LATER: Duration = Duration::from_secs(1);
/// A look that nothing has called for.
const SELDOM: Duration = Duration::from_secs(30);

/// Does so until it is dropped.
pub(super) async fn tend(room: Arc<Room>, place: Arc<Place>, reach: Arc<dyn Reach>, name: String) {
    place.listen(Box::new(Ears(Arc::clone(&room))));
    let mut keeper = Keeper { room, place, reach, name, heard: BTreeSet::new(), queues: JoinSet::new() };
    let mut revision = keeper.place.revision();
    let mut pause = Duration::ZERO;
    loop {
        let moved = async {
            keeper.room.gates.moved().await;
            sleep(SOON).await;
        };
        tokio::select! {
            changed = revision.changed() => if changed.is_err() { return },
            () = moved => {}
            () = sleep(pause) => {}
        }
        sleep(MOMENT).await;
        revision.mark_unchanged();
        pause = match keeper.look().await {
            Ok(again_at) => again_at.map_or(SELDOM, until).min(SELDOM),
            Err(error) => {
                tracing::warn!(place = keeper.name, error, "gates are left as they are");
                LATER
            }
        };
    }
}

fn until(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default()
}

struct Keeper {
    room: Arc<Room>,
    place: Arc<Place>,
    reach: Arc<dyn Reach>,
    name: String,
    /// Whose queues are listened to, by namespace.
    heard: BTreeSet<(String, Queue)>,
    queues: JoinSet<()>,
}

impl Keeper {
    async fn look(&mut self) -> Result<Option<Timestamp>, String> {
        let later = Some(Timestamp::now() + LATER);
        // Who hears nothing from a cluster does not know what is open there.
        if self.place.unanswered().is_some() {
            return Ok(later);
        }
        let gangs: Vec<Gang> = {
            let shelf = self.place.shelf();
            let gang = |job: &Arc<_>, pods: Vec<_>| Gang { job: Arc::clone(job), pods };
            shelf.gangs().map(|(_, job, pods)| gang(job, pods.cloned().collect())).collect()
        };
        let Some(sees) = self.place.is_surveyed() else { return Ok(later) };
        if gangs.is_empty() {
            return Ok(None);
        }
        let client = self.reach.client(&self.name).await.map_err(|error| error.to_string())?;
        self.hear(&client, &gangs).await.map_err(|error| error.to_string())?;
        Ok(self.room.gates.look(&client, &gangs, sees).await)
    }

    /// Listens to whoever has gangs of ours in a queue.
    async fn hear(&mut self, client: &Client, gangs: &[Gang]) -> Result<(), kube::Error> {
        for (namespace, queue) in gangs.iter().filter_map(Gang::queue) {
            if !self.heard.insert((namespace.to_owned(), queue)) {
                continue;
            }
            let resource = queue.resource(self.room.served(client).await?.kueue);
            let (queues, client, namespace) =
                (Arc::clone(&self.room.queues), client.clone(), namespace.to_owned());
            self.queues.spawn(async move { queues.keep(client, &namespace, queue, &resource).await });
        }
        Ok(())
    }
}

/// Tells the gates what is heard of nodes.
#[derive(Debug)]
struct Ears(Arc<Room>);

impl Listener for Ears {
    fn machine(&mut self, name: &str, machine: Option<&seen::Machine>) {
        self.0.gates.set_node(name, machine.map(node));
    }

    fn tenant(&mut self, uid: &str, tenant: Option<&seen::Tenant>) {
        let tenant = tenant.and_then(|tenant| {
            let (requests, priority) = (tenant.requests.clone(), tenant.priority);
            Some(Tenant { node: tenant.node.clone()?, requests, priority })
        });
        self.0.gates.set_tenant(uid, tenant);
    }
}

/// A cordoned node has a taint for that a moment later; the scheduler does not wait for it.
fn node(machine: &seen::Machine) -> Node {
    let mut node = machine.node.clone();
    let cordon = "node.kubernetes.io/unschedulable";
    if machine.is_cordoned && !node.taints.iter().any(|taint| taint.key == cordon) {
        node.taints.push(Taint {
            key: cordon.to_owned(),
            value: String::new(),
            effect: "NoSchedule".to_owned(),
        });
    }
    node
}
