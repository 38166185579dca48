//! What keeps a gang from starting: what the scheduler says of it, and where it is the nodes: away, drained, or not there at all.
//!
//! The scheduler tries what would help, which on a large cluster takes longer than the core may stand still. So the core gives whoever
//! asks a copy of it, and the answer is found beside the core.

use muster_api::view::{Why, WhyOption};
use muster_model::spec::Target;
use muster_model::{JobId, NodeId, Timestamp};
use muster_scheduler::{Alternative, Explanation, Millis, Request, Scheduler, Tier};

use super::Core;
use super::schedule::{millis, timestamp};

/// How many nodes are named one by one.
const NAMED: usize = 3;

/// What is asked about: a job that waits, or one that nobody has submitted yet.
#[derive(Debug)]
pub(crate) enum About {
    Job(JobId),
    New(Box<Request>),
}

/// Why a job waits: known, or to be found out by whoever asked.
#[derive(Debug)]
pub(crate) enum Question {
    Answered(Box<Why>),
    Open(Box<Open>),
}

/// A question that takes a while.
#[derive(Debug)]
pub(crate) struct Open {
    about: About,
    scheduler: Scheduler,
    target: Target,
    at: Millis,
    /// Which nodes take nothing now, in words; and whether one of them has never said what it has.
    missing: Option<String>,
    is_any_unknown: bool,
}

impl Question {
    /// The answer for the caller: `highest_priority` is what they may give the job, and `name` says what another is called, if
    /// they may know it.
    pub fn answer(self, highest_priority: u32, name: impl Fn(&JobId) -> Option<String>) -> Why {
        let why = match self {
            Self::Answered(why) => *why,
            Self::Open(open) => open.answer(highest_priority, name),
        };
        let is_told = why.starts_at.is_some() || why.no_estimate.is_some();
        let no_estimate = if is_told { why.no_estimate } else { unforeseen(&why.code).map(str::to_owned) };
        Why { no_estimate, ..why }
    }
}

/// Why the start of a job cannot be foreseen that the scheduler is not asked about, if it waits at all.
fn unforeseen(code: &str) -> Option<&'static str> {
    match code {
        "held" => Some("it starts only after it is released"),
        "dependency" => Some("it depends on when the jobs before it end"),
        "backoff" => Some("it is considered after its pause"),
        "closing" => Some("it is considered once its last attempt is taken back"),
        "no_node" | "no_pool" => Some("no node that it could have takes tasks now"),
        "delegated" => Some("the other scheduler says when, once it has the job"),
        _ => None,
    }
}

impl Open {
    fn answer(mut self, highest_priority: u32, name: impl Fn(&JobId) -> Option<String>) -> Why {
        let (scheduler, at) = (&mut self.scheduler, self.at);
        let (explained, at_once) = match self.about {
            About::Job(id) => (scheduler.explain_up_to(&id, at, highest_priority), "it starts now"),
            About::New(request) => (scheduler.preview(*request, at, highest_priority), "it would start now"),
        };
        let Some(explained) = explained.filter(|it| it.tier != Tier::StartsNow) else {
            return Why { code: "starts_now".into(), summary: at_once.into(), ..Why::default() };
        };
        // A host that has not said yet what it has may have anything.
        if explained.tier == Tier::NeverFits && self.is_any_unknown {
            return Why {
                code: "no_node".into(),
                summary: "waits for hosts that have not said yet what they have".into(),
                constraint: self.missing,
                help: Some("see `muster nodes`; what is away is tried again by itself".into()),
                ..Why::default()
            };
        }
        let missing = self.missing.filter(|_| explained.tier == Tier::NoCapacity);
        let missing = missing.map(|missing| format!("; {missing}")).unwrap_or_default();
        let mut why = words(explained, &self.target, name);
        why.constraint = why.constraint.map(|constraint| constraint + &missing);
        why
    }
}

/// What the scheduler says, as it is shown.
fn words(explained: Explanation, target: &Target, name: impl Fn(&JobId) -> Option<String>) -> Why {
    let explained = explained.with_names(&name);
    let summary = match explained.tier {
        Tier::NotServed => format!("no node of {target} can have it"),
        _ => explained.summary,
    };
    let option = |alternative: &Alternative| WhyOption {
        change: alternative.flag(),
        summary: format!("starts now {}", alternative.words()),
    };
    Why {
        code: explained.tier.code().into(),
        summary,
        // The caller named the job.
        display_name: None,
        constraint: Some(explained.constraint),
        help: Some(explained.help),
        starts_at: explained.estimate.as_ref().and_then(|estimate| timestamp(estimate.at)),
        starts_after: explained
            .estimate
            .and_then(|estimate| estimate.when_ends)
            .map(|job| name(&job).unwrap_or_else(|| "another job".into())),
        no_estimate: explained.no_estimate,
        ahead: explained.ahead.map(|ahead| ahead as u64),
        options: explained.alternatives.iter().map(option).collect(),
    }
}

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
    pub(super) fn question(&mut self, about: About, target: &Target, now: Timestamp) -> Question {
        self.tell_nodes();
        let absent = self.absent(target);
        // Nodes of another scheduler are not ours to count: a job that waits here waits for something else.
        if !self.is_delegated(target) && absent.count() == absent.all {
            return Question::Answered(Box::new(self.nowhere(target, &absent)));
        }
        let missing = (absent.count() > 0)
            .then(|| format!("{}{}", absent.counted(target), self.reasons(&absent, " (", ")")));
        Question::Open(Box::new(Open {
            about,
            scheduler: self.scheduler.clone(),
            target: target.clone(),
            at: millis(now),
            missing,
            is_any_unknown: absent.is_any_unknown,
        }))
    }

    fn absent(&self, target: &Target) -> Absent<'_> {
        let mut absent = Absent::default();
        for node in self.nodes_of(target) {
            absent.all += 1;
            absent.is_any_unknown |= node.capacity.slots == 0;
            match (node.drained, node.connection.is_some()) {
                (true, _) => absent.drained.push(&node.id),
                (false, false) => absent.away.push(&node.id),
                (false, true) => absent.ending += usize::from(!node.usable),
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
            ..Why::default()
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
