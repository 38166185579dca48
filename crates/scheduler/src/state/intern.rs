//! Numbers for names, and one entry for all that are alike.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use muster_model::node::Device;
use muster_model::task::Placement;

use super::{Class, Group, Kind, Member, Person, Pool, Scheduler};
use crate::fit::Need;
use crate::known::Bulk;
use crate::queue::{Lanes, MemberIx, ShapeIx};
use crate::quota::{Dim, FIRST_MODEL};
use crate::request::Request;
use crate::room::{Devices, KindIx, NodeIx, NodeState, Room};
use crate::share::Account;

const POOL: u8 = 0;
const WORKSPACE: u8 = 1;
const USER: u8 = 2;
const MODEL: u8 = 3;

impl Scheduler {
    pub(crate) fn pool(&mut self, name: &str) -> u32 {
        let pools = &mut self.pools;
        intern(&mut self.names, POOL, name, || {
            pools.push(Pool {
                name: name.into(),
                delegates: false,
                room: Room::default(),
                nodes: BTreeSet::new(),
                waiting: 0,
                epoch: 0,
                freed: Vec::new(),
                releases: 0,
                base: 0,
                layout: 0,
                reserved: [None, None],
                preemptible: BTreeSet::new(),
                borrowing: BTreeSet::new(),
                ends: BTreeSet::new(),
                runs: BTreeSet::new(),
            });
            pools.len() - 1
        })
    }

    pub(crate) fn workspace(&mut self, name: &str) -> u32 {
        let (workspaces, ledger, lesser) = (&mut self.workspaces, &mut self.ledger, &mut self.lesser);
        intern(&mut self.names, WORKSPACE, name, || {
            workspaces.push((name.into(), Account::new(1.0)));
            ledger.open();
            lesser.push(BTreeSet::new());
            workspaces.len() - 1
        })
    }

    pub(crate) fn user(&mut self, name: &str) -> u32 {
        let people = &mut self.people;
        intern(&mut self.names, USER, name, || {
            people.push(Person { name: name.into(), ..Person::default() });
            people.len() - 1
        })
    }

    pub(crate) fn dim(&mut self, model: &str) -> Dim {
        let model = model.to_ascii_lowercase();
        let dims = &mut self.dims;
        intern(&mut self.names, MODEL, &model, || {
            dims.push(model.clone());
            dims.len() - 1
        })
    }

    pub(super) fn member(&mut self, workspace: u32, user: u32) -> MemberIx {
        let weight = self.people[user as usize].due.weight.max(f64::MIN_POSITIVE);
        let members = &mut self.members;
        *self.member_index.entry((workspace, user)).or_insert_with(|| {
            members.push(Member { workspace, user, account: Account::new(weight) });
            members.len() as MemberIx - 1
        })
    }

    fn kind(&mut self, device: &Device) -> KindIx {
        let is_it =
            |kind: &Kind| kind.vendor == device.vendor && kind.model.eq_ignore_ascii_case(&device.model);
        if let Some(at) = self.kinds.iter().position(is_it) {
            return at as KindIx;
        }
        let dim = self.dim(&device.model);
        debug_assert!(dim >= FIRST_MODEL);
        let weight = self.policy.weight_of(&device.model);
        self.kinds.push(Kind { vendor: device.vendor, model: device.model.clone(), dim, weight });
        self.kinds.len() as KindIx - 1
    }

    pub(super) fn devices_of(&mut self, devices: &[Device]) -> Vec<Devices> {
        let mut of: BTreeMap<KindIx, Vec<u32>> = BTreeMap::new();
        for device in devices {
            let kind = self.kind(device);
            of.entry(kind).or_default().push(device.index);
        }
        let sorted = |mut all: Vec<u32>| {
            all.sort_unstable();
            all
        };
        of.into_iter()
            .map(|(kind, all)| (kind, sorted(all)))
            .map(|(kind, all)| Devices { kind, free: all.clone(), all })
            .collect()
    }

    pub(super) fn domains_of(&mut self, state: &NodeState) -> Vec<Option<u32>> {
        let keys = self.policy.topology.clone();
        let domain = |(at, key): (usize, &String)| {
            let value = state.labels.get(key)?;
            let next = self.domain_index.len() as u32;
            Some(*self.domain_index.entry((at, value.clone())).or_insert(next))
        };
        keys.iter().enumerate().map(domain).collect()
    }

    pub(crate) fn group(&mut self, request: &Request, size: u32) -> ShapeIx {
        let class = self.class(request);
        match self.group_index.get(&(class, size)) {
            Some(ix) => {
                self.groups[*ix].users += 1;
                *ix
            }
            None => {
                self.classes[class].users += 1;
                let pool = self.classes[class].pool;
                let bulk = Bulk::new(&request.need, size);
                let lanes = Lanes::default();
                let group = Group { class, size, pool, bulk, lanes, blocked_at: None, users: 1 };
                let ix = self.groups.insert(group);
                self.group_index.insert((class, size), ix);
                ix
            }
        }
    }

    pub(crate) fn release_group(&mut self, ix: ShapeIx) {
        let group = &mut self.groups[ix];
        group.users -= 1;
        if group.users == 0 {
            let (class, size) = (group.class, group.size);
            self.groups.remove(ix);
            self.group_index.remove(&(class, size));
            self.release_class(class);
        }
    }

    pub(crate) fn release_class(&mut self, ix: u32) {
        self.classes[ix].users -= 1;
        if self.classes[ix].users == 0 {
            let class = self.classes.remove(ix);
            self.class_index.remove(&class.key());
            if let Some((_, classes)) = self.families.get_mut(&class.family_key) {
                *classes -= 1;
                if *classes == 0 {
                    self.families.remove(&class.family_key);
                }
            }
        }
    }

    fn class(&mut self, request: &Request) -> u32 {
        let pool = self.pool(&request.pool);
        let Request { need, labels, exclude, .. } = request;
        let (family_key, family) = self.family(pool, request);
        let key = (family, need.cpu_millis, need.memory_bytes, need.device_count());
        if let Some(ix) = self.class_index.get(&key) {
            return *ix;
        }
        // A model that is asked for may have a quota though no node has it.
        if let Some(model) = need.devices.as_ref().and_then(|request| request.model.clone()) {
            self.dim(&model);
        }
        if let Some((_, classes)) = self.families.get_mut(&family_key) {
            *classes += 1;
        }
        let class = Class {
            family,
            family_key,
            pool,
            need: need.clone(),
            labels: labels.clone(),
            exclude: exclude.clone(),
            users: 0,
            most: Cell::new(None),
        };
        let ix = self.classes.insert(class);
        self.class_index.insert(key, ix);
        ix
    }

    /// What a request has in common with all that differ from it in amounts only.
    fn family(&mut self, pool: u32, request: &Request) -> (Arc<str>, u32) {
        let Request { need, labels, exclude, .. } = request;
        let Need { exclusive, account, volumes, .. } = need;
        let devices = need.devices.as_ref().map(|devices| (devices.vendor, &devices.model));
        let by_slots = need.slots() > 0;
        let key = format!(
            "{pool} {devices:?} {exclusive} {by_slots} {account:?} {volumes:?} {labels:?} {exclude:?}"
        );
        if let Some((known, (family, _))) = self.families.get_key_value(key.as_str()) {
            return (known.clone(), *family);
        }
        let key: Arc<str> = key.into();
        let family = self.next_family;
        self.next_family = self.next_family.wrapping_add(1);
        self.families.insert(key.clone(), (family, 0));
        (key, family)
    }

    pub(crate) fn placement(&self, node: NodeIx, devices: &[u32]) -> Placement {
        Placement { node: self.nodes[node].state.node.clone(), devices: devices.to_vec() }
    }

    pub(crate) fn known_dim(&self, model: &str) -> Option<Dim> {
        self.names.get(&(MODEL, model.to_ascii_lowercase())).copied()
    }
}

fn intern(names: &mut HashMap<(u8, String), u32>, what: u8, name: &str, make: impl FnOnce() -> usize) -> u32 {
    let key = (what, name.to_owned());
    *names.entry(key).or_insert_with(|| make() as u32)
}
