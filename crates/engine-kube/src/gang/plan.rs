//! Which gang is opened, taken back or let wait: a pure decision over what is seen.
//!
//! One gang of several pods is open at a time, until each of its pods has a node; so two that are half placed never wait for
//! each other. A gang is opened when there is room for all of it, those that count for more first, then the oldest. One that
//! has no room is passed by others at first. When it has waited long it holds them back for a while, then lets them pass, then
//! holds them back for longer: so neither it nor they wait for ever.
//!
//! What it judges room by is in [`super::needs`]; where the scheduler knows better, not all pods get a node, and the gang is
//! taken back after a time. What has to be remembered between decisions is small and may be lost: it is how long a gang has
//! been open, and who forgets that waits longer, once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use muster_engine::Wait;
use muster_model::Timestamp;

use super::ground::{Ground, Room};
use super::needs::Needs;

/// For how long a gang may be open before each of its pods has a node. The scheduler places hundreds of pods in a second;
/// what is not placed by now waits for something that was not seen.
pub(crate) const OPEN_FOR: Duration = Duration::from_secs(30);
/// The same when the scheduler has said of every pod left that it has no node for it.
const OPEN_IN_VAIN: Duration = Duration::from_secs(10);
/// The same when the scheduler has chosen nodes and waits for those whom it pushed out there: they may take their time to end.
const OPEN_PUSHING: Duration = Duration::from_secs(300);
/// Before a gang that was taken back is opened again; it doubles each time up to the longest.
const PAUSE: Duration = Duration::from_secs(15);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// For how long others pass a gang that has no room, before it holds them back and between the times when it does.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// Gangs that are opened by one decision; only those of one pod are opened side by side.
const AT_ONCE: usize = 32;

/// What is seen of a gang that has not ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    /// Its Job: `namespace/name`.
    pub id: String,
    /// When it was handed over.
    pub created: Timestamp,
    /// How many pods it is.
    pub size: usize,
    /// What each of them asks for; unknown until there is one to look at.
    pub needs: Arc<Needs>,
    /// Pods that are gated.
    pub gated: usize,
    /// Pods that are not gated and have no node.
    pub open: usize,
    /// Those among them that the scheduler has no node for.
    pub refused: usize,
    /// Those among them that have a node to come, where others are being pushed out.
    pub promised: usize,
    /// Pods that have a node.
    pub bound: usize,
    /// Pods that are on their way out.
    pub leaving: usize,
    /// Its Job makes no pods.
    pub is_suspended: bool,
    /// How often it was taken back.
    pub taken_back: u32,
    /// It is not opened before this.
    pub not_before: Option<Timestamp>,
}

/// Something to do about a gang. Each may be done again without harm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Remove the gates of all its pods.
    Open(String),
    /// Suspend its Job, so that its pods go.
    TakeBack {
        /// Which.
        id: String,
        /// How often that was done, this time included.
        times: u32,
        /// It is not opened again before this.
        not_before: Timestamp,
    },
    /// Have its Job make pods again, gated.
    Resume(String),
}

impl Step {
    /// About whom.
    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Open(id) | Self::Resume(id) | Self::TakeBack { id, .. } => id,
        }
    }
}

/// What was decided.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// What to do now, in order.
    pub steps: Vec<Step>,
    /// Why each of the others waits.
    pub waits: BTreeMap<String, Wait>,
    /// Time alone changes something then.
    pub again_at: Option<Timestamp>,
}

/// What is remembered between decisions.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Since when a gang is seen to be open, and how many of its pods had a node when that last grew.
    open: HashMap<String, Progress>,
}

#[derive(Debug, Clone, Copy)]
struct Progress {
    since: Timestamp,
}

/// Decides for all gangs of a cluster that are ours. `ground` is none where we may not look at it.
pub(crate) fn decide(
    gangs: &[Seen],
    mut ground: Option<&mut Ground>,
    memory: &mut Memory,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::default();
    memory.open.retain(|id, _| gangs.iter().any(|gang| gang.id == *id && gang.is_open()));
    let mut waiting = Vec::new();
    let mut open = Vec::new();
    for gang in gangs {
        match gang.phase() {
            Phase::Settled => {}
            Phase::Leaving => plan.wait(gang, leaving(gang)),
            Phase::Left => plan.steps.push(Step::Resume(gang.id.clone())),
            Phase::Made => plan.wait(gang, made(gang)),
            Phase::Open => open.push(gang),
            Phase::Gated => waiting.push(gang),
        }
    }
    open.sort_by_key(|gang| gang.rank());
    waiting.sort_by_key(|gang| gang.rank());
    let is_busy = plan.tend(&open, memory, now);
    if let Some(ground) = ground.as_deref_mut() {
        for gang in &open {
            (0..gang.open + gang.gated).for_each(|_| ground.suppose(&gang.needs));
        }
    }
    let ahead = is_busy.then(|| open.iter().find(|gang| gang.size > 1)).flatten();
    Admission {
        ground: ground.as_deref_mut(),
        ahead: ahead.map(|gang| gang.id.clone()),
        holding: Vec::new(),
        opened: 0,
    }
    .admit(&waiting, &mut plan, memory, now);
    if let Some(ground) = ground {
        ground.forget_supposed();
        ground.forget_unused();
    }
    plan
}

/// How far a gang is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Every pod has a node.
    Settled,
    /// It was taken back, and pods are on their way out.
    Leaving,
    /// It was taken back, and no pod is left.
    Left,
    /// Pods are still to be made.
    Made,
    /// Some pods are not gated, and not all have a node.
    Open,
    /// Every pod is gated.
    Gated,
}

impl Seen {
    fn phase(&self) -> Phase {
        let pods = self.gated + self.open + self.bound;
        match () {
            () if self.is_suspended && pods + self.leaving == 0 => Phase::Left,
            () if self.is_suspended || self.leaving > 0 => Phase::Leaving,
            () if self.bound >= self.size => Phase::Settled,
            () if self.open + self.bound > 0 => Phase::Open,
            () if self.gated < self.size => Phase::Made,
            () => Phase::Gated,
        }
    }

    fn is_open(&self) -> bool {
        self.phase() == Phase::Open
    }

    /// Those who come first sort first.
    fn rank(&self) -> (i64, Timestamp, String) {
        (-i64::from(self.needs.priority), self.created, self.id.clone())
    }

    /// When it will have been open for too long.
    fn open_until(&self, since: Timestamp) -> Timestamp {
        let span = match () {
            () if self.promised > 0 => OPEN_PUSHING,
            () if self.gated == 0 && self.open > 0 && self.refused == self.open => OPEN_IN_VAIN,
            () => OPEN_FOR,
        };
        since + span
    }

    /// When it may be opened again if it is taken back now. Two servers that got in each other's way must not do so again,
    /// so the pause differs by up to a quarter between gangs.
    fn pause_until(&self, now: Timestamp) -> Timestamp {
        let doubled = PAUSE.saturating_mul(1_u32.checked_shl(self.taken_back).unwrap_or(u32::MAX));
        let pause = doubled.min(LONGEST_PAUSE);
        let hash = blake3::hash(format!("{} {}", self.id, self.taken_back).as_bytes());
        now + pause + pause.mul_f64(f64::from(hash.as_bytes()[0]) / 1024.0)
    }

    /// Whether it holds back others now that it has no room, and when that changes: it is passed for a while, holds back for
    /// as long, is passed, holds back for twice as long, and so on.
    fn holds_back(&self, now: Timestamp) -> (bool, Timestamp) {
        let mut turn = self.created;
        let mut hold = PATIENCE;
        loop {
            turn += PATIENCE;
            if now < turn {
                return (false, turn);
            }
            turn += hold;
            if now < turn {
                return (true, turn);
            }
            hold = hold.saturating_mul(2);
        }
    }
}

impl Plan {
    fn wait(&mut self, gang: &Seen, wait: Wait) {
        self.waits.insert(gang.id.clone(), wait);
    }

    fn look_again(&mut self, at: Timestamp) {
        self.again_at = Some(self.again_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Goes on with gangs that are open; true if one of several pods stays so.
    fn tend(&mut self, open: &[&Seen], memory: &mut Memory, now: Timestamp) -> bool {
        let mut is_busy = false;
        for gang in open {
            let since = memory.open.entry(gang.id.clone()).or_insert(Progress { since: now }).since;
            let until = gang.open_until(since);
            // Two that are open were opened by somebody else or by two of us. The first goes on.
            let is_in_the_way = gang.size > 1 && is_busy;
            if is_in_the_way || now >= until {
                let not_before = gang.pause_until(now);
                let (id, times) = (gang.id.clone(), gang.taken_back + 1);
                self.steps.push(Step::TakeBack { id, times, not_before });
                self.wait(gang, leaving(gang));
                continue;
            }
            is_busy |= gang.size > 1;
            self.look_again(until);
            if gang.gated > 0 {
                self.steps.push(Step::Open(gang.id.clone()));
            }
            self.wait(gang, opening(gang));
        }
        is_busy
    }
}

/// What is left to give away in one decision.
struct Admission<'a> {
    ground: Option<&'a mut Ground>,
    /// A gang that is being opened, for which all others wait.
    ahead: Option<String>,
    /// Gangs that hold others back.
    holding: Vec<(String, Arc<Needs>)>,
    opened: usize,
}

impl Admission<'_> {
    fn admit(mut self, waiting: &[&Seen], plan: &mut Plan, memory: &mut Memory, now: Timestamp) {
        for gang in waiting {
            if let Some(wait) = self.obstacle(gang, plan, now) {
                plan.wait(gang, wait);
                continue;
            }
            memory.open.insert(gang.id.clone(), Progress { since: now });
            plan.steps.push(Step::Open(gang.id.clone()));
            plan.wait(gang, opening(gang));
            plan.look_again(now + OPEN_FOR);
            self.opened += 1;
            if gang.size > 1 || self.ground.is_none() {
                self.ahead = Some(gang.id.clone());
            } else if let Some(ground) = self.ground.as_deref_mut() {
                ground.suppose(&gang.needs);
            }
        }
    }

    /// Why this one is not opened now.
    fn obstacle(&mut self, gang: &Seen, plan: &mut Plan, now: Timestamp) -> Option<Wait> {
        if let Some(until) = gang.not_before.filter(|until| *until > now) {
            plan.look_again(until);
            return Some(paused(gang, until, now));
        }
        let Some(ground) = self.ground.as_deref_mut() else {
            return self.ahead.as_deref().map(behind);
        };
        let room = ground.room(&gang.needs);
        let size = gang.size as u64;
        if room.ever < size {
            return Some(never(gang, room, ground));
        }
        if room.now < size {
            let (holds_back, until) = gang.holds_back(now);
            plan.look_again(until);
            if holds_back {
                self.holding.push((gang.id.clone(), gang.needs.clone()));
            }
            return Some(full(gang, room));
        }
        if let Some(ahead) = &self.ahead {
            return Some(behind(ahead));
        }
        let holding = self.holding.iter().find(|(_, needs)| ground.share(needs, &gang.needs));
        if let Some((id, _)) = holding {
            return Some(held_back(id));
        }
        (self.opened >= AT_ONCE).then(|| behind("others"))
    }
}

fn wait(code: &'static str, summary: String, help: Option<&str>) -> Wait {
    Wait { code, summary, help: help.map(str::to_owned), starts_at: None }
}

fn name(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or(id)
}

fn leaving(gang: &Seen) -> Wait {
    let times = gang.taken_back.max(1);
    let summary = format!(
        "not all of its {} pods got a node in time: they are taken back together ({times}×)",
        gang.size
    );
    wait("no_capacity", summary, Some("it is tried again by itself; `muster nodes` shows what is free"))
}

fn made(gang: &Seen) -> Wait {
    let there = gang.gated + gang.open + gang.bound;
    wait("scheduler", format!("Kubernetes is making its pods: {there} of {} are there", gang.size), None)
}

fn opening(gang: &Seen) -> Wait {
    wait(
        "scheduler",
        format!("the scheduler is placing its pods: {} of {} have a node", gang.bound, gang.size),
        None,
    )
}

fn paused(gang: &Seen, until: Timestamp, now: Timestamp) -> Wait {
    let seconds = until.duration_since(now).as_secs().max(1);
    let times = gang.taken_back;
    let summary = format!(
        "not all of its {} pods got a node in time ({times}×); it is tried again in {seconds} s",
        gang.size
    );
    wait("no_capacity", summary, Some("`muster nodes` shows what is free"))
}

fn behind(ahead: &str) -> Wait {
    wait("behind_others", format!("{} is being placed first: one gang at a time", name(ahead)), None)
}

fn held_back(holder: &str) -> Wait {
    let summary = format!("{} has waited long for room and goes first", name(holder));
    wait("behind_others", summary, Some("it is held back only for a time, and then passes"))
}

fn full(gang: &Seen, room: Room) -> Wait {
    let summary =
        format!("needs room for {} pods of {}; there is room for {} now", gang.size, asked(gang), room.now);
    wait("no_capacity", summary, Some("`muster nodes` shows what is free"))
}

fn never(gang: &Seen, room: Room, ground: &Ground) -> Wait {
    let all = ground.obstacles(&gang.needs);
    let counted = [(all.labels, "with other labels"), (all.taints, "with taints"), (all.small, "too small")];
    let counted: Vec<String> = counted
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, why)| format!("{number} {why}"))
        .collect();
    let but = if counted.is_empty() { String::new() } else { format!(" ({})", counted.join(", ")) };
    let summary = format!(
        "needs room for {} pods of {}; if all {} nodes{but} were empty there would be room for {}",
        gang.size,
        asked(gang),
        all.nodes,
        room.ever
    );
    wait("never_fits", summary, Some("ask for less or for other nodes; `muster nodes` shows what there is"))
}

fn asked(gang: &Seen) -> String {
    let words = gang.needs.requests.iter().filter(|(name, amount)| *name != "pods" && **amount > 0);
    let words: Vec<String> = words.map(|(name, amount)| amount_in_words(name, *amount)).collect();
    if words.is_empty() { "nothing in particular".to_owned() } else { words.join(", ") }
}

fn amount_in_words(name: &str, amount: i64) -> String {
    const UNITS: [(i64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let is_bytes = name == "memory" || name == "ephemeral-storage" || name.starts_with("hugepages-");
    let unit = UNITS.iter().find(|(unit, _)| is_bytes && amount >= *unit && amount % unit == 0);
    match unit {
        Some((unit, word)) => format!("{} {word} {name}", amount / unit),
        None if name == "cpu" && amount % 1000 == 0 => format!("{} {name}", amount / 1000),
        None if name == "cpu" => format!("{amount}m {name}"),
        None => format!("{amount} {name}"),
    }
}
