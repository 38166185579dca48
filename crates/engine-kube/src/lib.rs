//! Kubernetes as an engine.
//!
//! Kubernetes decides where and when. It gets one Job for each attempt, with a pod for each rank; an agent in every pod is the
//! same agent as everywhere. What became of an attempt is read from watches, so nothing has to be remembered here: who is
//! killed and comes back sees the same objects under the same names.
//!
//! This crate never decides about jobs, never sees the store or the API, and touches nothing in a cluster that does not carry
//! its server's label.
//!
//! # Rights
//!
//! In every namespace that jobs go to, and nothing else there:
//!
//! | resource | verbs | what for |
//! | --- | --- | --- |
//! | `batch/jobs` | create, get, list, watch, patch, delete | a gang is one; patched to take it back or to end it |
//! | `pods` | create, get, list, watch, patch, delete | created only as dry runs, to hear what would be refused; patched to open gates; deleted where their node is gone |
//! | `pods/log` | get | what an agent could not say before it ended |
//! | `pods/portforward` | get, create | the link, where pods do not reach the server |
//! | `secrets`, `services` | create | what agents show, names of peers; both go with their Job |
//! | `events` | list, watch | why pods are not made or not started |
//!
//! In the whole cluster, and only if it may: `nodes` and `pods` list, watch, for what is free where, and whether the node of a pod that does not go still speaks. Where Kueue, Volcano or the native
//! gang API are used: `scheduling.k8s.io/workloads`, `scheduling.volcano.sh/podgroups` create, and `kueue.x-k8s.io/workloads` list, watch.

#![warn(missing_docs)]

mod carry;
mod connect;
mod gang;
mod handover;
mod inventory;
mod leftover;
mod links;
mod namespaces;
mod objects;
#[cfg(test)]
mod real;
mod refusal;
mod seen;
mod settings;
mod truth;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::future;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use muster_engine::{
    Accounts, AgentBinary, Capabilities, Class, Engine, Error, Family, Gang, Key, Observed, Offer, Seat,
    StartRequest, Status, Verdict,
};
use muster_model::spec::{FieldCode, FieldError};
use muster_model::{AttemptId, JobId, NodeId, Timestamp};
use tokio::task::JoinSet;
use tokio::time::timeout;

use connect::{Connection, Connections, Failure};
use gang::{Gathering, Hall};
use handover::Site;
use leftover::{Kept, Over};
use namespaces::Namespaces;
use objects::{Objects, Order};
use seen::{Container, ContainerState};
pub use settings::{Cluster, Pull, Settings, Source, Volume, Wishes};
use watch::{Reach, Watches};

/// What it is called in `--on` and among nodes.
pub const NAME: &str = "k8s";
/// Agents dial again for as long as their task lasts. One that is silent for so long is lost, unless Kubernetes says more; or
/// sooner, where it has ended its task by then.
const LOST_AFTER: Duration = Duration::from_secs(60);
/// How long people wait for a cluster's nodes to be listed.
const SURVEY: Duration = Duration::from_secs(5);
/// How often files are looked for that nobody needs.
const SWEEP: Duration = Duration::from_secs(24 * 3600);
/// The last word of an agent that has left in its log what it could not say.
const OWED: &str = "what the server has yet to be told is in the log";

/// The engine.
#[derive(Debug)]
pub struct Kubernetes {
    capabilities: Capabilities,
    settings: Arc<Settings>,
    connections: Arc<Connections>,
    namespaces: Namespaces,
    kept: Arc<Kept>,
    /// Made when a cluster is first needed.
    live: OnceLock<Live>,
}

/// What there is once a cluster is spoken with.
#[derive(Debug)]
struct Live {
    /// What this server is called in clusters.
    server: String,
    watches: Watches,
    hall: Hall,
    /// Places whose links are carried.
    carried: Mutex<BTreeSet<String>>,
    /// Attempts whose Jobs are being told to end.
    doomed: Arc<Mutex<BTreeSet<AttemptId>>>,
    /// When files of what is long over were removed.
    swept: Mutex<Option<Instant>>,
    /// They end when the engine does.
    work: Mutex<JoinSet<()>>,
}

impl Kubernetes {
    /// An engine that connects with a cluster when it is first needed.
    pub fn new(settings: Settings) -> Self {
        let capabilities = Capabilities {
            name: NAME,
            family: Family::Delegating,
            submitter_environment: false,
            in_place: false,
            images: true,
            volumes: true,
            accounts: Accounts::Containers,
            keeps_files: false,
            lost_after: settings.fence().min(LOST_AFTER),
        };
        let namespaces = Namespaces::new(settings.dir.join("namespaces.json"));
        let kept = Kept::new(settings.dir.clone(), settings.socket.clone(), settings.exe.clone());
        let settings = Arc::new(settings);
        let connections = Arc::new(Connections::new(Arc::clone(&settings)));
        Self { capabilities, settings, connections, namespaces, kept: Arc::new(kept), live: OnceLock::new() }
    }

    fn live(&self) -> Result<&Live, Error> {
        if let Some(live) = self.live.get() {
            return Ok(live);
        }
        let dir = &self.settings.dir;
        let made =
            std::fs::create_dir_all(dir).and_then(|()| muster_engine::ssh::server_name(&dir.join("server")));
        let server = made
            .map_err(|error| Error::retryable("write down what this server is called in clusters", error))?;
        let reach: Arc<dyn Reach> = Arc::clone(&self.connections) as Arc<dyn Reach>;
        Ok(self.live.get_or_init(|| Live {
            watches: Watches::new(server.clone(), Arc::clone(&reach)),
            hall: Hall::new(reach),
            server,
            carried: Mutex::default(),
            doomed: Arc::default(),
            swept: Mutex::default(),
            work: Mutex::default(),
        }))
    }

    /// Has a place watched, its gates tended and the links of its pods carried, in all namespaces that have anything of ours.
    fn look_after(&self, live: &Live, place: &str, namespaces: &[String]) {
        for namespace in namespaces {
            live.watches.ensure(place, namespace);
        }
        live.hall.tend(&live.watches, place);
        let is_dialled = self.settings.cluster(place).address.is_some();
        if !is_dialled && lock(&live.carried).insert(place.to_owned()) {
            let (connections, kept) = (Arc::clone(&self.connections), Arc::clone(&self.kept));
            let socket = self.settings.socket.clone();
            let watched = live.watches.place(place);
            lock(&live.work).spawn(links::tend(place.to_owned(), watched, connections, kept, socket));
        }
    }

    /// What a gang is there, and where. Inside, every field that keeps it from being anything.
    async fn prepare(
        &self,
        connection: &Connection,
        attempt: &AttemptId,
        seats: &[Seat],
        gang: &Gang,
    ) -> Result<Result<Prepared, Vec<FieldError>>, Error> {
        let live = self.live()?;
        let cluster = &connection.cluster;
        let namespace = objects::namespace(cluster, &gang.spec, &connection.namespace);
        let products = match gang.spec.resources.gpus.as_ref().is_some_and(|request| request.model.is_some())
        {
            true => live.products(&gang.place).await,
            false => Vec::new(),
        };
        let api = &connection.url;
        let order = Order { attempt, server: &live.server, seats, gang, cluster, api, products: &products };
        let mut objects = match objects::make(&order) {
            Ok(objects) => objects,
            Err(fields) => return Ok(Err(fields)),
        };
        let queue = order.queue();
        let gathering = live.hall.gathering(&connection.client, &gang.place, queue.as_deref());
        let gathering = connection.call(gathering).await.map_err(|failure| failure.into_error(connection))?;
        let gathering = match gathering {
            Ok(gathering) => gathering,
            Err(words) => return Ok(Err(vec![FieldError::new("k8s.queue", FieldCode::NotSupported, words)])),
        };
        gathering.adorn(&mut objects.job);
        let seats = objects::seats(&order);
        Ok(Ok(Prepared { namespace, objects, gathering, seats }))
    }

    /// What people may look at in one cluster.
    async fn offers(&self, place: &str) -> Result<Vec<Offer>, Error> {
        let live = self.live()?;
        let connection = self.connections.get(place).await?;
        let watched = live.watches.survey(place);
        let is_surveyed = timeout(SURVEY, watched.surveyed()).await.is_ok();
        match watched.inventory() {
            Ok(inventory) => Ok(inventory.offers(place, &connection.cluster)),
            Err(_) if !is_surveyed => Err(Failure::Silence.into_error(&connection)),
            Err(why) => Err(Error { what: why, class: Class::Retryable, source: None }),
        }
    }

    /// Once a day, removes the files of attempts that are long over.
    fn sweep(&self) {
        let Ok(live) = self.live() else { return };
        let is_due = lock(&live.swept).is_none_or(|last| last.elapsed() >= SWEEP);
        if is_due {
            *lock(&live.swept) = Some(Instant::now());
            let is_live = |attempt: &AttemptId| live.watches.knows(attempt);
            self.kept.sweep(is_live);
        }
    }

    /// Tells Jobs to end whose gangs cannot go on, beside whoever asks.
    fn doom(&self, live: &Live, place: &str, doomed: Vec<(AttemptId, String, Verdict)>) {
        for (attempt, namespace, verdict) in doomed {
            if !lock(&live.doomed).insert(attempt.clone()) {
                continue;
            }
            let (connections, being_told) = (Arc::clone(&self.connections), Arc::clone(&live.doomed));
            let (place, server) = (place.to_owned(), live.server.clone());
            let mut work = lock(&live.work);
            while work.try_join_next().is_some() {}
            work.spawn(async move {
                let told = async {
                    let connection = connections.get(&place).await?;
                    let site = Site { connection: &connection, namespace: &namespace, server: &server };
                    site.doom(&attempt, &verdict).await
                };
                if let Err(error) = told.await {
                    tracing::warn!(%attempt, %error, "its Job could not be told to end, and will be");
                }
                lock(&being_told).remove(&attempt);
            });
        }
    }
}

impl Live {
    /// The pods of an attempt that are over and are such, and whose logs can be read.
    fn over(
        &self,
        connection: &Connection,
        place: &str,
        attempt: &AttemptId,
        is_such: impl Fn(&seen::Pod) -> bool,
    ) -> Vec<Over> {
        let watched = self.watches.place(place);
        let shelf = watched.shelf();
        let pods = shelf.get(attempt).map(|record| record.pods.as_slice()).unwrap_or_default();
        let over =
            pods.iter().filter(|known| !known.is_gone && known.pod.phase.is_over() && is_such(&known.pod));
        over.filter_map(|known| {
            let api: Api<Pod> = Api::namespaced(connection.client.clone(), &known.pod.namespace);
            Some(Over { api, name: known.pod.name.clone(), rank: known.pod.rank? })
        })
        .collect()
    }

    /// What the nodes of a place say that their devices are, as far as they may be seen.
    async fn products(&self, place: &str) -> Vec<String> {
        let watched = self.watches.survey(place);
        drop(timeout(SURVEY, watched.surveyed()).await);
        watched.inventory().map(|inventory| inventory.products()).unwrap_or_default()
    }
}

/// Whether an agent that is over has left in its log what it could not say.
fn owes(container: &Container) -> bool {
    matches!(&container.state, ContainerState::Over { message, .. } if message.contains(OWED))
}

/// Everything that is to be made of a gang.
#[derive(Debug)]
struct Prepared {
    namespace: String,
    objects: Objects,
    gathering: Gathering,
    seats: muster_engine::pod::Seats,
}

fn gang_of(key: &Key) -> Result<(&AttemptId, &str), Error> {
    match key {
        Key::Gang { attempt, place, .. } => Ok((attempt, place)),
        Key::Node(node) => Err(no_node(node)),
    }
}

fn no_node(node: &NodeId) -> Error {
    let what = format!("{node}: the nodes of a cluster are its own, and have no agent that stays");
    Error { what, class: Class::NotFound, source: None }
}

/// What is behind the locks of this engine is right after every single step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Engine for Kubernetes {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Agents end with their task, which is sooner than they could change over.
    fn agent(&self) -> Option<AgentBinary> {
        None
    }

    /// Those that the operator lists, and those that every pod has already.
    fn open_pull_secrets(&self, place: &str) -> Vec<String> {
        let Cluster { allowed_image_pull_secrets: mut open, wishes, .. } = self.settings.cluster(place);
        open.extend(wishes.image_pull_secrets);
        open
    }

    async fn nodes(&self) -> Result<Vec<Offer>, Error> {
        let named = self.settings.contexts.keys().cloned();
        let places: Vec<String> = std::iter::once(String::new()).chain(named).collect();
        let asked = future::join_all(places.iter().map(|place| self.offers(place))).await;
        let mut offers = Vec::new();
        for (place, asked) in places.iter().zip(asked) {
            match asked {
                Ok(found) => offers.extend(found),
                // Who names contexts may have no other.
                Err(_) if place.is_empty() && places.len() > 1 => {}
                Err(error) => offers.push(Offer::hidden(place, error.what)),
            }
        }
        Ok(offers)
    }

    async fn check(&self, gang: &Gang, _account: Option<&str>) -> Result<Vec<FieldError>, Error> {
        let connection = self.connections.get(&gang.place).await?;
        let attempt = AttemptId { job: JobId::from_random(0), number: 1 };
        match self.prepare(&connection, &attempt, &[], gang).await? {
            Ok(Prepared { namespace, objects, .. }) => {
                let server = &self.live()?.server;
                let site = Site { connection: &connection, namespace: &namespace, server };
                site.check(&objects).await
            }
            Err(fields) => Ok(fields),
        }
    }

    async fn start(&self, request: &StartRequest) -> Result<Option<String>, Error> {
        let (attempt, place) = gang_of(&request.key)?;
        let Some(gang) = &request.gang else { return Err(Error::terminal("there is no gang to start")) };
        let live = self.live()?;
        let connection = self.connections.get(place).await?;
        let prepared = self.prepare(&connection, attempt, &request.seats, gang).await?;
        let prepared = prepared.map_err(|fields| Error::terminal(refusal::words(&fields)))?;
        let Prepared { namespace, objects, gathering, seats } = prepared;
        self.namespaces.add(place, &namespace)?;
        self.kept.remember(attempt, &seats)?;
        self.look_after(live, place, &self.namespaces.of(place)?);
        let site = Site { connection: &connection, namespace: &namespace, server: &live.server };
        site.create(attempt, &objects, &gathering).await?;
        live.watches.expect(place, &namespace, attempt);
        Ok(Some(objects.name))
    }

    async fn status(&self, keys: &[Key]) -> Result<Vec<Observed>, Error> {
        let live = self.live()?;
        let mut by_place: BTreeMap<&str, Vec<&AttemptId>> = BTreeMap::new();
        for key in keys {
            let (attempt, place) = gang_of(key)?;
            by_place.entry(place).or_default().push(attempt);
        }
        let mut known: BTreeMap<(&str, &AttemptId), Observed> = BTreeMap::new();
        for (place, attempts) in by_place {
            // Where nothing was ever made there is nothing to ask.
            let namespaces = self.namespaces.of(place)?;
            if namespaces.is_empty() {
                continue;
            }
            self.look_after(live, place, &namespaces);
            let gate = |attempt: &AttemptId| live.hall.wait(place, &objects::name(attempt));
            let found = live.watches.status(place, &attempts, gate, Timestamp::now()).await;
            let mut doomed = Vec::new();
            for (attempt, found) in attempts.into_iter().zip(found) {
                doomed.extend(found.doom.map(|(namespace, verdict)| (attempt.clone(), namespace, verdict)));
                known.insert((place, attempt), found.observed);
            }
            self.doom(live, place, doomed);
        }
        let observed = |key| gang_of(key).ok().and_then(|(attempt, place)| known.remove(&(place, attempt)));
        Ok(keys
            .iter()
            .map(observed)
            .map(|observed| observed.unwrap_or_else(|| Status::Gone.into()))
            .collect())
    }

    async fn changed(&self) -> Vec<Key> {
        match self.live() {
            Ok(live) => live.watches.changed().await,
            Err(_) => future::pending().await,
        }
    }

    async fn stop(&self, key: &Key) -> Result<(), Error> {
        let (attempt, place) = gang_of(key)?;
        let namespaces = self.namespaces.of(place)?;
        if namespaces.is_empty() {
            return Ok(());
        }
        let live = self.live()?;
        let connection = self.connections.get(place).await?;
        self.look_after(live, place, &namespaces);
        let watched = live.watches.place(place);
        // What its pods have printed is found by what is seen of them.
        drop(timeout(SURVEY, watched.listed()).await);
        live.watches.stopping(place, attempt);
        // What pods have printed for their server goes with them.
        let owing = live.over(&connection, place, attempt, |pod| pod.containers.iter().any(owes));
        if let Err(error) = self.kept.fetch(attempt, owing).await {
            tracing::warn!(%attempt, %error, "what its pods have left is lost");
        }
        let own = self.kept.seats(attempt).and_then(|seats| seats.fence_ms).map(Duration::from_millis);
        let fence = own.or(connection.cluster.fence).unwrap_or(muster_engine::pod::FENCE);
        for namespace in namespaces {
            let site = Site { connection: &connection, namespace: &namespace, server: &live.server };
            site.remove(attempt, fence, &watched).await?;
        }
        live.watches.forget(place, attempt);
        self.kept.close(attempt);
        Ok(())
    }

    async fn close(&self, key: &Key) -> Result<(), Error> {
        self.stop(key).await?;
        self.sweep();
        Ok(())
    }

    async fn salvage(&self, key: &Key) -> Result<(), Error> {
        let (attempt, place) = gang_of(key)?;
        let live = self.live()?;
        let connection = self.connections.get(place).await?;
        let over = live.over(&connection, place, attempt, |_| true);
        self.kept.fetch(attempt, over).await?;
        self.kept.speak(attempt)
    }
}
