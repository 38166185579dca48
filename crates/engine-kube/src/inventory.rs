//! What the machines of a cluster have, and what is free. Pure.
//!
//! Free is what pods may have less what those asked for that are bound there, as the scheduler counts; what is really in use
//! nobody knows. Where machines may not be seen there is no inventory, and what the scheduler says is passed on by itself.

mod wait;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use muster_engine::{Amounts as Offered, Offer};

use crate::gang::needs::{Amounts, Needs, Taint};
use crate::seen::{Machine, Tenant};
use crate::settings::Cluster;
pub(crate) use wait::unschedulable;

/// What devices are called that are asked for by number alone, unless the configuration says otherwise.
const GPU: &str = "nvidia.com/gpu";
/// Resources that are devices, by how their names begin, and what they are called here.
const DEVICES: [(&str, &str); 6] = [
    ("nvidia.com/gpu", "gpu"),
    ("amd.com/gpu", "gpu"),
    ("gpu.intel.com/", "gpu"),
    ("aliyun.com/gpu", "gpu"),
    ("huawei.com/Ascend", "ascend"),
    ("google.com/tpu", "tpu"),
];
/// Labels that say which model a machine's devices are.
const PRODUCTS: [&str; 4] =
    ["nvidia.com/gpu.product", "amd.com/gpu.product-name", "gpu.intel.com/product", "accelerator"];
/// Words of product names that are the maker's or a family's, not the model's.
const FAMILIES: [&str; 9] =
    ["nvidia", "tesla", "geforce", "rtx", "quadro", "amd", "instinct", "radeon", "huawei"];
/// What Kubernetes itself taints machines with, for as long as something is wrong with them.
const OF_KUBERNETES: &str = "node.kubernetes.io/";

/// The machines, and what of each is held.
#[derive(Debug, Default, Clone)]
pub(crate) struct Inventory {
    sites: Vec<Site>,
}

#[derive(Debug, Clone)]
struct Site {
    machine: Machine,
    held: Amounts,
}

impl Inventory {
    /// Of all machines, and all pods that have a place on one.
    pub(crate) fn new<'a>(
        machines: impl Iterator<Item = &'a Machine>,
        tenants: impl Iterator<Item = &'a Tenant>,
    ) -> Self {
        let mut held: HashMap<&str, Amounts> = HashMap::new();
        for tenant in tenants.filter(|tenant| !tenant.is_over) {
            let Some(node) = &tenant.node else { continue };
            let sum = held.entry(node).or_default();
            *sum.entry("pods".into()).or_default() += 1;
            tenant.requests.iter().for_each(|(name, amount)| *sum.entry(name.clone()).or_default() += amount);
        }
        let site = |machine: &Machine| Site {
            held: held.remove(machine.name.as_str()).unwrap_or_default(),
            machine: machine.clone(),
        };
        let mut sites: Vec<Site> = machines.map(site).collect();
        sites.sort_by(|one, other| one.machine.name.cmp(&other.machine.name));
        Self { sites }
    }

    /// What machines say that their devices are, each once.
    pub(crate) fn products(&self) -> Vec<String> {
        let product =
            |site: &Site| PRODUCTS.iter().find_map(|label| site.machine.node.labels.get(*label).cloned());
        self.sites.iter().filter_map(product).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// For people to look at.
    pub(crate) fn offers(&self, place: &str, cluster: &Cluster) -> Vec<Offer> {
        self.sites.iter().map(|site| site.offer(place, cluster)).collect()
    }
}

impl Site {
    fn is_usable(&self) -> bool {
        self.machine.is_ready && !self.machine.is_cordoned
    }

    /// How much of a resource is free for pods.
    fn free(&self, resource: &str) -> i64 {
        let of = |amounts: &Amounts| amounts.get(resource).copied().unwrap_or(0);
        if self.is_usable() { (of(&self.machine.node.allocatable) - of(&self.held)).max(0) } else { 0 }
    }

    fn offer(&self, place: &str, cluster: &Cluster) -> Offer {
        let machine = &self.machine;
        let total = |resource: &str| machine.node.allocatable.get(resource).copied().unwrap_or(0);
        let total = self.amounts(cluster, total);
        let free = if self.is_usable() {
            self.amounts(cluster, |resource| self.free(resource))
        } else {
            Offered::default()
        };
        let state = self.state(&total, &free);
        Offer {
            name: machine.name.clone(),
            node: None,
            places: vec![place.to_owned()],
            state: state.into(),
            note: self.note(),
            total,
            free,
            hidden: None,
        }
    }

    fn amounts(&self, cluster: &Cluster, of: impl Fn(&str) -> i64) -> Offered {
        let positive = |amount: i64| u64::try_from(amount).unwrap_or(0);
        let mut devices = BTreeMap::new();
        for resource in self.machine.node.allocatable.keys() {
            if let Some(name) = self.device(resource, cluster) {
                *devices.entry(name).or_insert(0) += u32::try_from(of(resource)).unwrap_or(0);
            }
        }
        Offered { cpu_millis: positive(of("cpu")), memory_bytes: positive(of("memory")), devices }
    }

    /// What a resource is called in a request of ours, if it is a device.
    fn device(&self, resource: &str, cluster: &Cluster) -> Option<String> {
        let named = cluster.devices.iter().find(|(_, of)| *of == resource).map(|(name, _)| name.clone());
        let is_plain = cluster.gpu_resource.as_deref().unwrap_or(GPU) == resource;
        let known =
            DEVICES.iter().find(|(beginning, _)| resource.starts_with(beginning)).map(|(_, name)| *name);
        let kind = if is_plain { Some("gpu") } else { known };
        match (named, kind) {
            (Some(name), _) => Some(name),
            (None, Some("gpu")) => Some(self.model().unwrap_or_else(|| "gpu".into())),
            (None, kind) => kind.map(str::to_owned),
        }
    }

    /// `h100` of `NVIDIA-H100-80GB-HBM3`.
    fn model(&self) -> Option<String> {
        let product =
            PRODUCTS.iter().find_map(|label| self.machine.node.labels.get(*label))?.to_ascii_lowercase();
        let mut words = product.split(['-', '_', ' ']);
        words.find(|word| !word.is_empty() && !FAMILIES.contains(word)).map(str::to_owned)
    }

    fn state(&self, total: &Offered, free: &Offered) -> &'static str {
        let count = |amounts: &Offered| amounts.devices.values().sum::<u32>();
        match (count(total), count(free)) {
            _ if !self.machine.is_ready => "down",
            _ if self.machine.is_cordoned => "drained",
            // Every machine holds some pods of the cluster's own, so CPUs alone say little where there are devices.
            (0, _) if free.cpu_millis == total.cpu_millis => "idle",
            (0, _) if free.cpu_millis == 0 => "allocated",
            (0, _) => "mixed",
            (all, left) if left == all => "idle",
            (_, 0) => "allocated",
            _ => "mixed",
        }
    }

    fn note(&self) -> Option<String> {
        let machine = &self.machine;
        let mut notes: Vec<String> = machine.trouble.iter().cloned().collect();
        if machine.is_cordoned {
            notes.push("cordoned".into());
        }
        let lasting = machine.node.taints.iter().filter(|taint| is_lasting(taint));
        notes.extend(lasting.map(|taint| format!("taint {}", written(taint))));
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    /// Whether a pod could be here if nobody else were, and nothing were wrong with the machine for the moment.
    fn suits(&self, needs: &Needs) -> bool {
        let mut node = self.machine.node.clone();
        node.taints.retain(is_lasting);
        needs.obstacle(&self.machine.name, &node).is_none()
    }

    /// How many such pods fit, by how much there is of everything.
    fn room(&self, needs: &Needs, of: impl Fn(&str) -> i64) -> i64 {
        let fits =
            needs.requests.iter().filter(|(_, amount)| **amount > 0).map(|(name, amount)| of(name) / amount);
        fits.min().unwrap_or(i64::MAX).min(of("pods"))
    }
}

/// A taint that is not a passing state of the machine, nor a mere wish.
fn is_lasting(taint: &Taint) -> bool {
    !taint.key.starts_with(OF_KUBERNETES) && taint.effect != "PreferNoSchedule"
}

fn written(taint: &Taint) -> String {
    match taint.value.as_str() {
        "" => format!("{}:{}", taint.key, taint.effect),
        value => format!("{}={value}:{}", taint.key, taint.effect),
    }
}

#[cfg(test)]
mod tests;
