//! The nodes of a cluster and what of them nobody has, kept up to date one change at a time.
//!
//! How many pods of a kind there is room for is kept for each kind and each node, and a change of a node is looked at once by
//! each kind that is asked about: with a thousand nodes and hundreds of gangs a question costs what has changed since it was
//! last asked. It owns no decision, and it does not know whose pods they are.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::needs::{Amounts, Needs, Node, Obstacle};

/// A pod that has a place on a node: how much it holds there, and how much it counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tenant {
    /// Where.
    pub node: String,
    /// How much.
    pub requests: Amounts,
    /// Those who count for more may push it out.
    pub priority: i32,
}

/// For how many pods of a kind there is room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// Now, counting as free what may be pushed out for them.
    pub now: u64,
    /// If nobody else were there.
    pub ever: u64,
}

/// Why there is no more room, in numbers of nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Obstacles {
    /// All that there are.
    pub nodes: usize,
    /// Those with other labels.
    pub labels: usize,
    /// Those with taints.
    pub taints: usize,
    /// Those which would be too small if they were empty.
    pub small: usize,
}

/// The nodes, and who is on them.
#[derive(Debug, Default)]
pub(crate) struct Ground {
    /// Resources by number, so that amounts are compared without their names.
    resources: HashMap<String, usize>,
    names: HashMap<String, usize>,
    sites: Vec<Site>,
    /// Sites of nodes that are gone, for others.
    free: Vec<usize>,
    /// Pods by their own id. Those on nodes that are not known (yet) wait here for them.
    tenants: HashMap<String, Tenant>,
    /// Which sites changed, in order; who asks remembers how far it has read.
    changes: Vec<usize>,
    /// How many changes were dropped from the front of `changes`.
    dropped: u64,
    kinds: HashMap<Arc<Needs>, Kind>,
    supposed: Vec<String>,
}

#[derive(Debug, Default)]
struct Site {
    name: String,
    node: Option<Node>,
    /// Changes with labels and taints, so that they are compared only then.
    face: u64,
    allocatable: Vec<i64>,
    /// What is held, by how much the holders count.
    held: BTreeMap<i32, Vec<i64>>,
}

#[derive(Debug, Default)]
struct Kind {
    /// What is asked for by number of the resource, those of nothing left out.
    requests: Vec<(usize, i64)>,
    rooms: Vec<Place>,
    total: Room,
    /// How many changes it has seen.
    read: u64,
    is_used: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// The site's face when it was compared, plus one.
    face: u64,
    is_barred: bool,
    room: Room,
}

impl Ground {
    /// What is known of a node now; nothing when it is gone.
    pub(crate) fn set_node(&mut self, name: &str, node: Option<Node>) {
        let index = self.index(name);
        if self.sites[index].node == node {
            return self.release(index);
        }
        let allocatable = node.as_ref().map(|node| self.numbered(&node.allocatable)).unwrap_or_default();
        let site = &mut self.sites[index];
        let face = |node: &Option<Node>| node.as_ref().map(|node| (node.labels.clone(), node.taints.clone()));
        if face(&site.node) != face(&node) {
            site.face += 1;
        }
        site.allocatable = allocatable;
        site.node = node;
        self.changed(index);
        self.release(index);
    }

    /// Where a pod is and what it holds; nothing when it holds nothing any more.
    pub(crate) fn set_tenant(&mut self, pod: &str, tenant: Option<Tenant>) {
        if self.tenants.get(pod) == tenant.as_ref() {
            return;
        }
        if let Some(old) = self.tenants.remove(pod) {
            self.weigh(&old, -1);
        }
        if let Some(new) = tenant {
            self.weigh(&new, 1);
            self.tenants.insert(pod.to_owned(), new);
        }
    }

    /// Only these pods hold anything.
    #[cfg(test)]
    pub(crate) fn keep_tenants(&mut self, is_there: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.tenants.keys().filter(|pod| !is_there(pod)).cloned().collect();
        gone.iter().for_each(|pod| self.set_tenant(pod, None));
    }

    /// For how many nodes there is space here.
    #[cfg(test)]
    pub(crate) fn sites(&self) -> usize {
        self.sites.len()
    }

    /// For how many pods of this kind there is room.
    pub(crate) fn room(&mut self, needs: &Arc<Needs>) -> Room {
        self.read(needs).total
    }

    /// Whether two kinds could ever want the same node.
    pub(crate) fn share(&mut self, one: &Arc<Needs>, other: &Arc<Needs>) -> bool {
        if one == other {
            return self.read(one).total.ever > 0;
        }
        self.read(one);
        self.read(other);
        let (one, other) = (&self.kinds[one].rooms, &self.kinds[other].rooms);
        one.iter().zip(other).any(|(one, other)| one.room.ever > 0 && other.room.ever > 0)
    }

    /// Counts a pod that is about to be placed as if it were, on the node with the most room for its kind: that is where the
    /// scheduler puts it unless it knows better. It is forgotten with [`Ground::forget_supposed`].
    pub(crate) fn suppose(&mut self, needs: &Arc<Needs>) {
        let rooms = &self.read(needs).rooms;
        let widest =
            rooms.iter().enumerate().max_by_key(|(index, place)| (place.room.now, usize::MAX - index));
        let Some(index) = widest.filter(|(_, place)| place.room.now > 0).map(|(index, _)| index) else {
            return;
        };
        let node = self.sites[index].name.clone();
        let pod = format!("?{}", self.supposed.len());
        let tenant = Tenant { node, requests: needs.requests.clone(), priority: needs.priority };
        self.set_tenant(&pod, Some(tenant));
        self.supposed.push(pod);
    }

    /// Forgets what was supposed.
    pub(crate) fn forget_supposed(&mut self) {
        for pod in std::mem::take(&mut self.supposed) {
            self.set_tenant(&pod, None);
        }
    }

    /// Forgets kinds that nobody has asked about since this was last called.
    pub(crate) fn forget_unused(&mut self) {
        self.kinds.retain(|_, kind| std::mem::take(&mut kind.is_used));
    }

    /// Why there is not more room for this kind.
    pub(crate) fn obstacles(&self, needs: &Needs) -> Obstacles {
        let mut all = Obstacles::default();
        for site in &self.sites {
            let Some(node) = &site.node else { continue };
            all.nodes += 1;
            match needs.obstacle(&site.name, node) {
                Some(Obstacle::Label) => all.labels += 1,
                Some(Obstacle::Taint) => all.taints += 1,
                None => {
                    let has =
                        |(name, amount): (&String, &i64)| node.allocatable.get(name).unwrap_or(&0) >= amount;
                    all.small += usize::from(!needs.requests.iter().all(has));
                }
            }
        }
        all
    }

    fn index(&mut self, name: &str) -> usize {
        if let Some(index) = self.names.get(name) {
            return *index;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.sites.push(Site::default());
            self.sites.len() - 1
        });
        self.sites[index].name = name.to_owned();
        self.names.insert(name.to_owned(), index);
        index
    }

    fn numbered(&mut self, amounts: &Amounts) -> Vec<i64> {
        let mut numbered = Vec::new();
        for (name, amount) in amounts {
            let next = self.resources.len();
            let number = *self.resources.entry(name.clone()).or_insert(next);
            if numbered.len() <= number {
                numbered.resize(number + 1, 0);
            }
            numbered[number] = *amount;
        }
        numbered
    }

    fn weigh(&mut self, tenant: &Tenant, sign: i64) {
        let requests = self.numbered(&tenant.requests);
        let index = self.index(&tenant.node);
        let held = self.sites[index].held.entry(tenant.priority).or_default();
        held.resize(held.len().max(requests.len()), 0);
        held.iter_mut().zip(&requests).for_each(|(held, amount)| *held += sign * amount);
        if held.iter().all(|amount| *amount == 0) {
            self.sites[index].held.remove(&tenant.priority);
        }
        self.changed(index);
        self.release(index);
    }

    /// Gives the site of a node that is gone to whoever comes next: machines of clouds have new names every day.
    fn release(&mut self, index: usize) {
        let site = &mut self.sites[index];
        if site.node.is_none() && site.held.is_empty() && self.names.remove(&site.name).is_some() {
            site.name.clear();
            self.free.push(index);
        }
    }

    fn changed(&mut self, index: usize) {
        self.changes.push(index);
        // Who is further behind than this looks at every node, which costs less.
        if self.changes.len() > 64 + 4 * self.sites.len() {
            let drop = self.changes.len() / 2;
            self.changes.drain(..drop);
            self.dropped += drop as u64;
        }
    }

    /// The kind, having seen every change.
    fn read(&mut self, needs: &Arc<Needs>) -> &Kind {
        if !self.kinds.contains_key(needs) {
            let requests = self.numbered(&needs.requests);
            let requests = requests.into_iter().enumerate().filter(|(_, amount)| *amount > 0).collect();
            // It has not even seen the first change.
            let kind = Kind { requests, read: u64::MAX, ..Kind::default() };
            self.kinds.insert(needs.clone(), kind);
        }
        let all = self.dropped + self.changes.len() as u64;
        let kind = self.kinds.get_mut(needs).expect("it was put there");
        kind.is_used = true;
        kind.rooms.resize(self.sites.len(), Place::default());
        let is_behind = kind.read < self.dropped || kind.read == u64::MAX;
        if is_behind || all - kind.read > self.sites.len() as u64 {
            (0..self.sites.len()).for_each(|index| kind.look(needs, index, &self.sites[index]));
        } else {
            let unread = usize::try_from(kind.read - self.dropped).unwrap_or(usize::MAX);
            self.changes[unread..].iter().for_each(|index| kind.look(needs, *index, &self.sites[*index]));
        }
        kind.read = all;
        kind
    }
}

impl Kind {
    fn look(&mut self, needs: &Needs, index: usize, site: &Site) {
        let old = self.rooms[index];
        let mut place = old;
        if place.face != site.face + 1 {
            place.face = site.face + 1;
            place.is_barred =
                site.node.as_ref().is_none_or(|node| needs.obstacle(&site.name, node).is_some());
        }
        place.room = if place.is_barred { Room::default() } else { self.fitting(needs, site) };
        self.total.now = self.total.now - old.room.now + place.room.now;
        self.total.ever = self.total.ever - old.room.ever + place.room.ever;
        self.rooms[index] = place;
    }

    fn fitting(&self, needs: &Needs, site: &Site) -> Room {
        let least = if needs.preempts { needs.priority } else { i32::MIN };
        let mut room = Room { now: u64::MAX, ever: u64::MAX };
        for (resource, amount) in &self.requests {
            let has = site.allocatable.get(*resource).copied().unwrap_or(0);
            let in_the_way = |held: &Vec<i64>| held.get(*resource).copied().unwrap_or(0);
            let held: i64 = site.held.range(least..).map(|(_, held)| in_the_way(held)).sum();
            let times = |what: i64| u64::try_from(what.max(0) / amount).unwrap_or(0);
            room.now = room.now.min(times(has - held));
            room.ever = room.ever.min(times(has));
        }
        if !self.requests.is_empty() {
            return room;
        }
        // Who asks for nothing in particular is bounded by how many pods a node takes. Those that are there are not counted:
        // who is let in by mistake is taken back.
        let pods = site.node.as_ref().and_then(|node| node.allocatable.get("pods")).copied().unwrap_or(0);
        let pods = u64::try_from(pods).unwrap_or(0);
        Room { now: pods, ever: pods }
    }
}
