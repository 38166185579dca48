//! What the scheduler says about a pod that it cannot place, in our words, and what would help.

use muster_engine::Wait;

use super::{Inventory, Site};
use crate::gang::needs::Needs;

const NODES: &str = "see `muster nodes` for what there is";

/// One of the scheduler's complaints: so many machines, and why not them.
#[derive(Debug, PartialEq, Eq)]
struct Complaint<'a> {
    count: usize,
    kind: Kind<'a>,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind<'a> {
    Insufficient(&'a str),
    Taint(&'a str),
    Labels,
    Cordoned,
    Pods,
    Other(&'a str),
}

/// Why a gang of so many such pods is not placed.
pub(crate) fn unschedulable(message: &str, needs: &Needs, ranks: u32, inventory: Option<&Inventory>) -> Wait {
    let (all, complaints) = read(message);
    let lacking = complaints.iter().find_map(|complaint| match complaint.kind {
        Kind::Insufficient(resource) => Some(resource),
        _ => None,
    });
    let never = inventory.and_then(|inventory| inventory.never(needs, ranks));
    let summary = match (&never, complaints.as_slice()) {
        (Some(never), _) => never.clone(),
        (None, []) => format!("the scheduler of Kubernetes has not placed it: {}", plain(message)),
        (None, complaints) => {
            let words: Vec<String> = complaints.iter().map(|complaint| complaint.words(all)).collect();
            words.join(", ")
        }
    };
    let only = |test: fn(&Kind) -> bool| complaints.iter().all(|complaint| test(&complaint.kind));
    let code = match () {
        () if never.is_some() => "never_fits",
        () if complaints.is_empty() && message.contains("persistentvolumeclaim") => "volume",
        () if complaints.is_empty() => "scheduler",
        () if lacking.is_some() || only(|kind| matches!(kind, Kind::Pods)) => "no_capacity",
        () if only(|kind| matches!(kind, Kind::Other(_))) => "scheduler",
        () => "no_node",
    };
    let help = help(code, lacking, needs, inventory, &complaints);
    Wait { code, summary, help, starts_at: None }
}

fn help(
    code: &str,
    lacking: Option<&str>,
    needs: &Needs,
    inventory: Option<&Inventory>,
    complaints: &[Complaint],
) -> Option<String> {
    if code == "volume" {
        return Some("make the claim in the job's namespace, or name another volume".into());
    }
    if code == "scheduler" {
        return None;
    }
    let largest = lacking.zip(inventory).and_then(|(resource, inventory)| inventory.largest(resource, needs));
    let taint = complaints.iter().find_map(|complaint| match complaint.kind {
        Kind::Taint(taint) => Some(format!("tolerate {taint} with k8s.tolerations, if the job may be there")),
        _ => None,
    });
    let labels = complaints.iter().any(|complaint| complaint.kind == Kind::Labels);
    let labels = labels.then(|| "see k8s.node_selector, and the labels that nodes have".to_owned());
    largest.or(taint).or(labels).or_else(|| Some(NODES.into()))
}

impl Inventory {
    /// Why it could not be placed if nobody else were there; nothing if it could.
    fn never(&self, needs: &Needs, ranks: u32) -> Option<String> {
        if self.sites.is_empty() {
            return None;
        }
        let suiting: Vec<&Site> = self.sites.iter().filter(|site| site.suits(needs)).collect();
        if suiting.is_empty() {
            return Some(format!(
                "none of the {} may be used by it, for their labels or taints",
                nodes(self.sites.len())
            ));
        }
        let all = |site: &&Site| site.room(needs, |resource| site.total(resource));
        let room = suiting.iter().map(all).fold(0_i64, |sum, room| sum.saturating_add(room.max(0)));
        if room >= i64::from(ranks) {
            return None;
        }
        if room > 0 {
            return Some(format!("the nodes have room for {room} such pods in all, and it needs {ranks}"));
        }
        let is_short =
            |(resource, amount): &(&String, &i64)| suiting.iter().all(|site| site.total(resource) < **amount);
        let short = needs.requests.iter().find(is_short);
        Some(match short {
            Some((resource, amount)) => {
                let most = suiting.iter().map(|site| site.total(resource)).max().unwrap_or(0);
                let (most, amount) = (written(resource, most), written(resource, *amount));
                format!("each of its pods needs {amount}, and no node that it may use has more than {most}")
            }
            None => "no node that it may use has all that one of its pods needs".into(),
        })
    }

    /// Where there is most of a resource that is free.
    fn largest(&self, resource: &str, needs: &Needs) -> Option<String> {
        let suiting = self.sites.iter().filter(|site| site.suits(needs));
        let most = suiting.max_by_key(|site| (site.free(resource), std::cmp::Reverse(&site.machine.name)))?;
        let wanted = needs.requests.get(resource).map(|amount| written(resource, *amount));
        let wanted = wanted.map(|wanted| format!("; one of its pods needs {wanted}")).unwrap_or_default();
        match most.free(resource) {
            0 => Some(format!("no {} is free anywhere{wanted}", called(resource))),
            free => {
                Some(format!("most is free on {}: {}{wanted}", most.machine.name, written(resource, free)))
            }
        }
    }
}

impl Site {
    fn total(&self, resource: &str) -> i64 {
        self.machine.node.allocatable.get(resource).copied().unwrap_or(0)
    }
}

impl Complaint<'_> {
    fn words(&self, all: usize) -> String {
        let of = format!("{} of {all} nodes", self.count);
        let has = if self.count == 1 { "has" } else { "have" };
        match self.kind {
            Kind::Insufficient(resource) => format!("{of} {has} too little {} free", called(resource)),
            Kind::Taint(taint) => format!("{of} {has} the taint {taint}"),
            Kind::Labels => format!("{of} {has} not the labels it asks for"),
            Kind::Cordoned => format!("{of} {} cordoned", if self.count == 1 { "is" } else { "are" }),
            Kind::Pods => format!("{of} {has} no room for more pods"),
            Kind::Other(words) => format!("{of}: {words}"),
        }
    }
}

/// `0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient nvidia.com/gpu. preemption: …`
fn read(message: &str) -> (usize, Vec<Complaint<'_>>) {
    let Some((count, rest)) = message.split_once(" nodes are available: ") else { return (0, Vec::new()) };
    let all = count.rsplit('/').next().and_then(|all| all.parse().ok()).unwrap_or(0);
    let ends = [". preemption: ", ". no new claims", ". not found", " preemption: "];
    let rest = ends.iter().filter_map(|end| rest.find(end)).min().map_or(rest, |at| &rest[..at]);
    let complaints = rest.trim_end_matches('.').split(", ").filter_map(|part| {
        let (count, words) = part.split_once(' ')?;
        let words = words.strip_prefix("node(s) ").unwrap_or(words);
        Some(Complaint { count: count.parse().ok()?, kind: kind(words) })
    });
    (all, complaints.collect())
}

fn kind(words: &str) -> Kind<'_> {
    if let Some(resource) = words.strip_prefix("Insufficient ") {
        return Kind::Insufficient(resource);
    }
    if words.starts_with("had untolerated taint") || words.starts_with("had taint") {
        let taint = words.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(taint, _)| taint);
        return match taint.map(|taint| taint.trim_end_matches([':', ' '])) {
            Some("node.kubernetes.io/unschedulable") => Kind::Cordoned,
            Some(taint) if !taint.is_empty() => Kind::Taint(taint),
            _ => Kind::Other("they have taints that it does not tolerate"),
        };
    }
    match words {
        "were unschedulable" => Kind::Cordoned,
        "Too many pods" => Kind::Pods,
        _ if words.contains("node affinity/selector") || words.contains("node selector") => Kind::Labels,
        _ => Kind::Other(words),
    }
}

/// Without what only those read who write schedulers.
fn plain(message: &str) -> &str {
    let message = message.split_once(" nodes are available: ").map_or(message, |(_, rest)| rest);
    message.split(". ").next().unwrap_or(message)
}

fn nodes(count: usize) -> String {
    if count == 1 { "one node".into() } else { format!("{count} nodes") }
}

fn called(resource: &str) -> &str {
    match resource {
        "cpu" => "CPU",
        other => other,
    }
}

/// `8 nvidia.com/gpu`, `1.5 CPUs`, `32.0 GiB of memory`.
fn written(resource: &str, amount: i64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "it is rounded for people anyway")]
    let number = amount as f64;
    match resource {
        "cpu" => format!("{} CPUs", (number / 100.0).round() / 10.0),
        "memory" => format!("{:.1} GiB of memory", number / f64::from(1 << 30)),
        "ephemeral-storage" => format!("{:.1} GiB of disk", number / f64::from(1 << 30)),
        _ => format!("{amount} {resource}"),
    }
}
