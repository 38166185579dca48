//! One cluster: what is watched there, what was heard, and whether it answers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use kube::core::Request;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use super::follow::{self, Ear, Source, Trouble};
use super::shelf::{Change, Record, Shelf};
use super::{Shared, lock};
use crate::inventory::Inventory;
use crate::objects;
use crate::seen::{Event, Job, Machine, Pod, Tenant};

/// When silence is noticed.
#[derive(Debug)]
struct Times {
    /// How often it is seen to that a cluster from which nothing is heard is still there.
    glance: Duration,
    /// After how long without a word it is asked for one.
    quiet: Duration,
    /// How long it may take to give one.
    echo: Duration,
    /// For how long a cluster may be out of reach before nothing counts as known any more.
    patience: Duration,
}

#[cfg(not(test))]
const TIMES: Times = Times {
    glance: Duration::from_secs(5),
    quiet: Duration::from_secs(10),
    echo: Duration::from_secs(5),
    patience: Duration::from_secs(20),
};
/// Tests do not wait so long to see what follows.
#[cfg(test)]
const TIMES: Times = Times {
    glance: Duration::from_millis(300),
    quiet: Duration::from_secs(1),
    echo: Duration::from_secs(2),
    patience: Duration::from_secs(3),
};
/// For how long machines are watched after somebody last wanted to know of them.
const INTEREST: Duration = Duration::from_secs(600);

/// Hears of every machine and every pod that has a place on one, in order; at first of all that are known.
pub(crate) trait Listener: Send + std::fmt::Debug {
    /// How a machine looks now; nothing when it is gone.
    fn machine(&mut self, name: &str, machine: Option<&Machine>);

    /// Who holds what, by the pod's uid; nothing when it holds nothing any more.
    fn tenant(&mut self, uid: &str, tenant: Option<&Tenant>);
}

/// A cluster that is watched.
#[derive(Debug)]
pub(crate) struct Place {
    name: String,
    shared: Arc<Shared>,
    shelf: Mutex<Shelf>,
    ground: Mutex<Ground>,
    health: Mutex<Health>,
    namespaces: Mutex<BTreeSet<String>>,
    /// Counts what was heard of ours, for whoever acts on it.
    revision: watch::Sender<u64>,
    /// Says that something was listed for the first time.
    is_listed: Notify,
    /// Has everything be asked for anew.
    reset: watch::Sender<u64>,
}

/// Machines, and who is on them.
#[derive(Debug, Default)]
struct Ground {
    machines: BTreeMap<String, Machine>,
    tenants: HashMap<String, Tenant>,
    listener: Option<Box<dyn Listener>>,
    tasks: Vec<AbortHandle>,
    wanted_at: Option<Instant>,
    /// What of it was listed.
    listed: HashSet<Kind>,
    /// Why it cannot be seen.
    trouble: Option<String>,
    /// Made of the above when it is asked for.
    inventory: Option<Arc<Inventory>>,
}

#[derive(Debug, Default)]
struct Health {
    heard_at: Option<Instant>,
    /// What is watched and was listed: a kind in a namespace.
    listed: HashSet<(Kind, String)>,
    /// What cannot be watched, since when, and why.
    troubles: BTreeMap<(Kind, String), (Instant, String)>,
    /// Since when the cluster does not answer at all.
    silent: Option<(Instant, String)>,
}

/// What is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Jobs,
    Pods,
    Events,
    Machines,
    Tenants,
}

impl Kind {
    /// Without these nothing is known about attempts.
    fn is_ours(self) -> bool {
        matches!(self, Self::Jobs | Self::Pods)
    }
}

impl Place {
    pub(super) fn new(name: String, shared: Arc<Shared>) -> Self {
        Self {
            shelf: Mutex::new(Shelf::new(shared.server.clone())),
            name,
            shared,
            ground: Mutex::default(),
            health: Mutex::default(),
            namespaces: Mutex::default(),
            revision: watch::Sender::default(),
            is_listed: Notify::new(),
            reset: watch::Sender::default(),
        }
    }

    /// What is known of attempts.
    pub(crate) fn shelf(&self) -> MutexGuard<'_, Shelf> {
        lock(&self.shelf)
    }

    /// Changes with everything that is heard of ours.
    pub(crate) fn revision(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// Returns when nothing is seen of an attempt any more.
    pub(crate) async fn gone(&self, attempt: &muster_model::AttemptId) {
        let mut revision = self.revision();
        let is_there = || self.shelf().get(attempt).is_some_and(Record::is_anything_there);
        // The place outlives whoever listens to it.
        while is_there() && revision.changed().await.is_ok() {}
    }

    /// Tells of machines and pods from now on, and first of those that are known. There is one listener.
    pub(crate) fn listen(&self, mut listener: Box<dyn Listener>) {
        let mut ground = lock(&self.ground);
        ground.machines.iter().for_each(|(name, machine)| listener.machine(name, Some(machine)));
        ground.tenants.iter().for_each(|(uid, tenant)| listener.tenant(uid, Some(tenant)));
        ground.listener = Some(listener);
    }

    /// What there is and what is free; or why that is not known.
    pub(crate) fn inventory(&self) -> Result<Arc<Inventory>, String> {
        let mut ground = lock(&self.ground);
        let is_listed = [Kind::Machines, Kind::Tenants].iter().all(|kind| ground.listed.contains(kind));
        if let Some(trouble) = ground.trouble.clone().filter(|_| !is_listed) {
            return Err(trouble);
        }
        if !is_listed {
            return Err("its nodes have not been listed yet".into());
        }
        if ground.inventory.is_none() {
            let made = Inventory::new(ground.machines.values(), ground.tenants.values());
            ground.inventory = Some(Arc::new(made));
        }
        ground.inventory.clone().ok_or_else(String::new)
    }

    /// Whether it is known what is free; nothing while that is not clear yet.
    pub(crate) fn is_surveyed(&self) -> Option<bool> {
        let ground = lock(&self.ground);
        let is_listed = [Kind::Machines, Kind::Tenants].iter().all(|kind| ground.listed.contains(kind));
        if is_listed { Some(true) } else { ground.trouble.is_some().then_some(false) }
    }

    /// Returns once machines were listed, or cannot be.
    pub(crate) async fn surveyed(&self) {
        loop {
            let is_listed = self.is_listed.notified();
            let is_known = {
                let ground = lock(&self.ground);
                ground.trouble.is_some()
                    || [Kind::Machines, Kind::Tenants].iter().all(|kind| ground.listed.contains(kind))
            };
            if is_known {
                return;
            }
            is_listed.await;
        }
    }

    /// Returns once everything of ours was listed, or cannot be.
    pub(crate) async fn listed(&self) {
        loop {
            let is_listed = self.is_listed.notified();
            let is_troubled = || lock(&self.health).troubles.keys().any(|(kind, _)| kind.is_ours());
            if self.missing().is_none() || is_troubled() {
                return;
            }
            is_listed.await;
        }
    }

    /// Something of ours that has never been listed.
    fn missing(&self) -> Option<(Kind, String)> {
        let health = lock(&self.health);
        let namespaces = lock(&self.namespaces);
        let mut needed =
            namespaces.iter().flat_map(|name| [(Kind::Jobs, name.clone()), (Kind::Pods, name.clone())]);
        needed.find(|one| !health.listed.contains(one))
    }

    /// Why nothing is known about attempts; nothing if something is.
    pub(crate) fn unanswered(&self) -> Option<String> {
        let missing = self.missing();
        let health = lock(&self.health);
        let is_late = |since: Instant| since.elapsed() >= TIMES.patience;
        if let Some((_, why)) = health.silent.as_ref().filter(|(since, _)| is_late(*since)) {
            return Some(why.clone());
        }
        let mut ours = health.troubles.iter().filter(|((kind, _), _)| kind.is_ours());
        let is_missing = |one: &(Kind, String)| missing.as_ref() == Some(one);
        let trouble = ours.find(|(one, (since, _))| is_late(*since) || is_missing(one));
        if let Some((_, (_, why))) = trouble {
            return Some(why.clone());
        }
        missing.map(|(_, namespace)| {
            format!("its Jobs and pods in namespace {namespace} have not been listed yet")
        })
    }

    /// Has what is ours in a namespace watched, if it is not.
    pub(super) fn watch(self: &Arc<Self>, namespace: &str, tasks: &mut JoinSet<()>) {
        if !lock(&self.namespaces).insert(namespace.to_owned()) {
            return;
        }
        let labels = Some(format!("{}={}", objects::SERVER, self.shared.server));
        let source = |path: &str| Source {
            path: path.replace("NAMESPACE", namespace),
            labels: labels.clone(),
            fields: None,
        };
        self.follow::<Job>(Kind::Jobs, namespace, source("/apis/batch/v1/namespaces/NAMESPACE/jobs"), tasks);
        self.follow::<Pod>(Kind::Pods, namespace, source("/api/v1/namespaces/NAMESPACE/pods"), tasks);
        // Events carry nobody's labels. That a pod has no place is in the pod itself.
        let fields = Some("type=Warning,reason!=FailedScheduling".to_owned());
        let events = Source { labels: None, fields, ..source("/api/v1/namespaces/NAMESPACE/events") };
        self.follow::<Event>(Kind::Events, namespace, events, tasks);
    }

    /// Has machines and everybody's pods watched, if they are not.
    pub(super) fn survey(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        // Those that were let go.
        while tasks.try_join_next().is_some() {}
        let is_watched = {
            let mut ground = lock(&self.ground);
            ground.wanted_at = Some(Instant::now());
            !ground.tasks.is_empty()
        };
        if is_watched {
            return;
        }
        let source = |path: &str, fields: Option<&str>| Source {
            path: path.to_owned(),
            labels: None,
            fields: fields.map(str::to_owned),
        };
        let bound = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed";
        let machines = self.follow::<Machine>(Kind::Machines, "", source("/api/v1/nodes", None), tasks);
        let tenants = self.follow::<Tenant>(Kind::Tenants, "", source("/api/v1/pods", Some(bound)), tasks);
        lock(&self.ground).tasks = vec![machines, tenants];
    }

    fn follow<K>(
        self: &Arc<Self>,
        kind: Kind,
        namespace: &str,
        source: Source,
        tasks: &mut JoinSet<()>,
    ) -> AbortHandle
    where
        K: follow::Watched,
        Hearer: Ear<K>,
    {
        let hearer = Hearer { place: Arc::clone(self), kind, namespace: namespace.to_owned() };
        tasks.spawn(async move {
            let (name, reach) = (hearer.place.name.clone(), Arc::clone(&hearer.place.shared.reach));
            follow::follow(&name, &*reach, &source, &hearer).await;
        })
    }

    /// Sees to it that silence is noticed, and that what nobody wants is let go.
    pub(super) fn look_after(self: Arc<Self>, tasks: &mut JoinSet<()>) {
        tasks.spawn(async move {
            loop {
                sleep(TIMES.glance).await;
                self.let_go();
                self.shelf().tidy(Instant::now());
                if self.is_quiet() {
                    self.ask().await;
                }
            }
        });
    }

    fn is_quiet(&self) -> bool {
        let is_used = !lock(&self.namespaces).is_empty() || !lock(&self.ground).tasks.is_empty();
        let health = lock(&self.health);
        is_used && (health.silent.is_some() || health.heard_at.is_none_or(|at| at.elapsed() >= TIMES.quiet))
    }

    /// Asks for a sign of life. Everybody who may speak with an API server may ask for its version.
    async fn ask(&self) {
        let asked = async {
            let client = self.shared.reach.client(&self.name).await.map_err(|error| error.what)?;
            let request =
                Request::new("/version").list(&Default::default()).map_err(|error| error.to_string())?;
            follow::call(client.request_text(request)).await.map_err(|trouble| trouble.words())
        };
        let answer = tokio::time::timeout(TIMES.echo, asked).await;
        let answer =
            answer.unwrap_or_else(|_| Err(format!("there was no answer within {} s", TIMES.echo.as_secs())));
        match answer {
            Ok(_) => self.answered(),
            Err(why) => {
                let mut health = lock(&self.health);
                let heard_at = health.heard_at.unwrap_or_else(Instant::now);
                let since = health.silent.as_ref().map_or(heard_at, |(since, _)| *since);
                if health.silent.is_none() {
                    tracing::warn!(place = self.name, why, "the API server does not answer");
                }
                health.silent = Some((since, why));
            }
        }
    }

    /// It answers. What was watched before it did not may have been cut without a word.
    fn answered(&self) {
        let was_silent = {
            let mut health = lock(&self.health);
            health.heard_at = Some(Instant::now());
            health.silent.take().is_some()
        };
        if was_silent {
            tracing::info!(place = self.name, "the API server answers again");
            self.reset.send_modify(|count| *count += 1);
        }
    }

    /// Machines are not watched for somebody who asked once.
    fn let_go(&self) {
        let mut ground = lock(&self.ground);
        let is_wanted =
            ground.listener.is_some() || ground.wanted_at.is_some_and(|at| at.elapsed() < INTEREST);
        if !is_wanted && !ground.tasks.is_empty() {
            ground.tasks.iter().for_each(AbortHandle::abort);
            *ground = Ground::default();
        }
    }

    fn on_machines(&self, change: Change<Machine>) {
        let mut ground = lock(&self.ground);
        ground.inventory = None;
        match change {
            Change::Now(machine) => ground.set_machine(machine),
            Change::Gone(machine) => ground.drop_machine(&machine.name),
            Change::All(machines, _) => {
                let there: HashSet<&str> = machines.iter().map(|machine| machine.name.as_str()).collect();
                let gone: Vec<String> =
                    ground.machines.keys().filter(|name| !there.contains(name.as_str())).cloned().collect();
                gone.iter().for_each(|name| ground.drop_machine(name));
                machines.into_iter().for_each(|machine| ground.set_machine(machine));
                ground.list(Kind::Machines);
            }
        }
    }

    fn on_tenants(&self, change: Change<Tenant>) {
        let mut ground = lock(&self.ground);
        ground.inventory = None;
        match change {
            Change::Now(tenant) => ground.set_tenant(tenant),
            Change::Gone(tenant) => ground.drop_tenant(&tenant.uid),
            Change::All(tenants, _) => {
                let there: HashSet<&str> = tenants.iter().map(|tenant| tenant.uid.as_str()).collect();
                let gone: Vec<String> =
                    ground.tenants.keys().filter(|uid| !there.contains(uid.as_str())).cloned().collect();
                gone.iter().for_each(|uid| ground.drop_tenant(uid));
                tenants.into_iter().for_each(|tenant| ground.set_tenant(tenant));
                ground.list(Kind::Tenants);
            }
        }
    }
}

impl Ground {
    /// All of a kind were listed. What keeps the other from being listed still counts.
    fn list(&mut self, kind: Kind) {
        self.listed.insert(kind);
        if self.listed.len() == 2 {
            self.trouble = None;
        }
    }

    fn set_machine(&mut self, mut machine: Machine) {
        machine.version = String::new();
        if let Some(listener) = &mut self.listener {
            listener.machine(&machine.name, Some(&machine));
        }
        self.machines.insert(machine.name.clone(), machine);
    }

    fn drop_machine(&mut self, name: &str) {
        self.machines.remove(name);
        if let Some(listener) = &mut self.listener {
            listener.machine(name, None);
        }
    }

    fn set_tenant(&mut self, mut tenant: Tenant) {
        if tenant.is_over || tenant.node.is_none() {
            return self.drop_tenant(&tenant.uid);
        }
        tenant.version = String::new();
        if self.tenants.get(&tenant.uid) == Some(&tenant) {
            return;
        }
        if let Some(listener) = &mut self.listener {
            listener.tenant(&tenant.uid, Some(&tenant));
        }
        self.tenants.insert(tenant.uid.clone(), tenant);
    }

    fn drop_tenant(&mut self, uid: &str) {
        if self.tenants.remove(uid).is_none() {
            return;
        }
        if let Some(listener) = &mut self.listener {
            listener.tenant(uid, None);
        }
    }
}

/// Passes on what is said about one kind in one namespace.
pub(super) struct Hearer {
    place: Arc<Place>,
    kind: Kind,
    namespace: String,
}

impl Hearer {
    /// A change has been taken. A list counts as listed only now: who asks in between must not hear that there is nothing.
    fn taken(&self, news: BTreeSet<muster_model::AttemptId>, is_list: bool) {
        self.alive();
        if is_list {
            lock(&self.place.health).listed.insert((self.kind, self.namespace.clone()));
        }
        if !news.is_empty() || is_list {
            self.place.revision.send_modify(|count| *count += 1);
        }
        self.place.shared.tell(&self.place.name, news);
        if is_list {
            self.place.is_listed.notify_waiters();
        }
    }

    /// Something was heard, so the cluster is there.
    fn alive(&self) {
        let mut health = lock(&self.place.health);
        health.heard_at = Some(Instant::now());
        health.troubles.remove(&(self.kind, self.namespace.clone()));
    }

    fn trouble(&self, trouble: &Trouble) {
        let words = trouble.words();
        if matches!(self.kind, Kind::Machines | Kind::Tenants) {
            lock(&self.place.ground).trouble = Some(match trouble {
                Trouble::Denied(_) => "muster may not list the nodes and pods of this cluster; deploy/nodes.yaml gives it the right".into(),
                _ => words.clone(),
            });
        }
        {
            let mut health = lock(&self.place.health);
            let one = (self.kind, self.namespace.clone());
            let since = health.troubles.get(&one).map_or_else(Instant::now, |(since, _)| *since);
            health.troubles.insert(one, (since, words));
        }
        self.place.is_listed.notify_waiters();
    }

    async fn reset(&self) {
        let mut reset = self.place.reset.subscribe();
        // The place outlives whoever listens to it.
        drop(reset.changed().await);
    }
}

macro_rules! ears {
    ($($kind:ty => $take:expr;)*) => {$(
        impl Ear<$kind> for Hearer {
            fn hear(&self, change: Change<$kind>) {
                let is_list = matches!(change, Change::All(..));
                let take: fn(&Self, Change<$kind>) -> BTreeSet<muster_model::AttemptId> = $take;
                let news = take(self, change);
                self.taken(news, is_list);
            }

            fn alive(&self) {
                self.alive();
            }

            fn trouble(&self, trouble: &Trouble) {
                self.trouble(trouble);
            }

            async fn reset(&self) {
                self.reset().await;
            }
        }
    )*};
}

ears! {
    Job => |hearer, change| hearer.place.shelf().jobs(&hearer.namespace, change, Instant::now());
    Pod => |hearer, change| hearer.place.shelf().pods(&hearer.namespace, change, Instant::now());
    Event => |hearer, change| hearer.place.shelf().events(change);
    Machine => |hearer, change| {
        hearer.place.on_machines(change);
        BTreeSet::new()
    };
    Tenant => |hearer, change| {
        hearer.place.on_tenants(change);
        BTreeSet::new()
    };
}
