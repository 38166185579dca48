//! What keeps a gang from starting, where it is the nodes: away, drained, or not there at all.

use muster_api::view::Why;
use muster_model::NodeId;
use muster_model::spec::Target;
use muster_scheduler::Waiting;

use super::Core;

/// How many nodes are named one by one.
const NAMED: usize = 3;

/// The nodes of a target that take nothing new, by why.
#[derive(Default)]
struct Absent<'a> {
    all: usize,
    away: Vec<&'a NodeId>,
    drained: Vec<&'a NodeId>,
    /// Those that still end what was given up.
    ending: usize,
    /// One of them has never said what it has.
    is_any_unknown: bool,
}

impl Core {
    /// What keeps a gang from starting now.
    pub(super) fn obstacle(&self, waiting: &Waiting, target: &Target, ahead: usize) -> Option<Why> {
        let absent = self.absent(target);
        if absent.count() == absent.all {
            return Some(self.nowhere(target, &absent));
        }
        if let Some(refused) = self.refusals(target, waiting) {
            return Some(Why {
                code: "not_served".into(),
                summary: format!("no node of {target} can have it"),
                constraint: Some(refused),
                help: Some(
                    "an admin can say which account is whose (`muster user set`), or see to the nodes".into(),
                ),
                starts_at: None,
            });
        }
        let obstacle = muster_scheduler::explain(&self.free_on(target), waiting, ahead)?;
        // A host that has not said yet what it has may have anything.
        if obstacle.code == "never_fits" && absent.is_any_unknown {
            return Some(Why {
                code: "no_node".into(),
                summary: "waits for hosts that have not said yet what they have".into(),
                constraint: Some(format!("{}{}", absent.counted(target), self.reasons(&absent, " (", ")"))),
                help: Some("see `muster nodes`; what is away is tried again by itself".into()),
                starts_at: None,
            });
        }
        let missing = (obstacle.code == "no_capacity" && absent.count() > 0)
            .then(|| format!("; {}{}", absent.counted(target), self.reasons(&absent, " (", ")")));
        Some(Why {
            code: obstacle.code.into(),
            summary: obstacle.summary,
            constraint: Some(obstacle.constraint + missing.as_deref().unwrap_or_default()),
            help: Some(obstacle.help),
            starts_at: None,
        })
    }

    fn absent(&self, target: &Target) -> Absent<'_> {
        let mut absent = Absent::default();
        let here = |node: &&super::Node| node.target == *target && node.is_shown();
        for node in self.nodes.values().filter(here) {
            absent.all += 1;
            absent.is_any_unknown |= node.free.capacity.slots == 0;
            match (node.drained, node.connection.is_some()) {
                (true, _) => absent.drained.push(&node.free.node),
                (false, false) => absent.away.push(&node.free.node),
                (false, true) => absent.ending += usize::from(!node.free.usable),
            }
        }
        absent
    }

    /// There is no node at all that could take a task now.
    fn nowhere(&self, target: &Target, absent: &Absent) -> Why {
        let why = |code: &str, summary: String, constraint: Option<String>, help: String| Why {
            code: code.into(),
            summary,
            constraint,
            help: Some(help),
            starts_at: None,
        };
        if let Target::Ssh(pool) = target
            && absent.all == 0
        {
            let add = format!("`muster pool add {pool} USER@HOST`");
            return match self.pools.contains_key(pool) {
                true => why("no_node", format!("pool {pool} has no hosts"), None, format!("{add} adds one")),
                false => {
                    let help = format!("{add} makes it again, `muster stop` ends the job");
                    why("no_pool", format!("there is no pool {pool} any more"), None, help)
                }
            };
        }
        let mut help = Vec::new();
        if let Some(node) = absent.drained.first() {
            help.push(format!("`muster nodes undrain {node}` lets it have tasks again"));
        }
        if absent.drained.len() < absent.all || absent.all == 0 {
            help.push("see `muster nodes`; what is away is tried again by itself".into());
        }
        let summary = match absent.all {
            0 => "there is no node".into(),
            _ => absent.counted(target),
        };
        let reasons = Some(self.reasons(absent, "", "")).filter(|text| !text.is_empty());
        why("no_node", summary, reasons, help.join("; "))
    }

    /// Why nodes are away, as far as is known.
    fn reasons(&self, absent: &Absent, open: &str, close: &str) -> String {
        let reason = |id: &&NodeId| Some(format!("{id}: {}", self.parts.starts.error(id)?.message));
        let known: Vec<String> = absent.away.iter().filter_map(reason).take(NAMED).collect();
        if known.is_empty() { String::new() } else { format!("{open}{}{close}", known.join("; ")) }
    }
}

impl Absent<'_> {
    fn count(&self) -> usize {
        self.away.len() + self.drained.len() + self.ending
    }

    /// `2 of the 4 hosts of pool gpu are away, 1 is drained`.
    fn counted(&self, target: &Target) -> String {
        let is = |count: usize| if count == 1 { "is" } else { "are" };
        let states =
            [(self.away.len(), "away"), (self.drained.len(), "drained"), (self.ending, "still ending tasks")];
        let mut parts = states.iter().filter(|(count, _)| *count > 0);
        let Some((first, word)) = parts.next() else { return "every node is there".into() };
        let mut text = match (target, self.all) {
            (Target::Local, 1) => format!("this machine is {word}"),
            (_, 1) => format!("the only host of {} is {word}", place(target)),
            (_, all) if *first == all => format!("all {all} hosts of {} are {word}", place(target)),
            (_, all) => format!("{first} of the {all} hosts of {} {} {word}", place(target), is(*first)),
        };
        for (count, word) in parts {
            text.push_str(&format!(", {count} {} {word}", is(*count)));
        }
        text
    }
}

/// A target, as people speak of it.
fn place(target: &Target) -> String {
    match target {
        Target::Local => "this machine".into(),
        Target::Ssh(pool) => format!("pool {pool}"),
        Target::Slurm(_) | Target::Kubernetes(_) => target.to_string(),
    }
}
