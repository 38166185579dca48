//! Plays a trace: what happens next, what the scheduler does about it, and again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use muster_model::{JobId, NodeId};

use super::report::{Meter, NeverStarted, Report};
use super::trace::{JobLine, Trace};
use crate::policy::{Millis, Policy};
use crate::request::{Change, Fate, Request, Shape};
use crate::room::NodeState;
use crate::state::Scheduler;
use crate::{Need, Serves};

/// How long a job takes to end once it was told to.
const GRACE: Millis = 30_000;
/// The one pool of a simulated cluster.
const POOL: &str = "cluster";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    /// A run is over; which try it was tells it from one that was ended before.
    Ends(u32, u32),
    /// It saves what it has done.
    Saves(u32, u32),
    /// It has left for another.
    Leaves(u32, u32),
    Arrives(u32),
    /// Nothing, but a pass is worthwhile.
    Look,
}

/// A job as it is played.
struct Played {
    /// How much of it is still to be done.
    left: Millis,
    started_at: Millis,
    saved_at: Millis,
    tries: u32,
    is_over: bool,
}

struct Player<'a> {
    trace: &'a Trace,
    scheduler: Scheduler,
    to_come: BinaryHeap<Reverse<(Millis, Happens)>>,
    jobs: Vec<Played>,
    by_id: HashMap<JobId, u32>,
    meter: Meter,
}

/// Plays a trace with a policy. `watch` is told how many jobs of how many are over, now and then.
pub fn play(trace: &Trace, policy: &Policy, mut watch: impl FnMut(usize, usize)) -> Report {
    let mut player = Player::new(trace, policy);
    let all = trace.jobs.len();
    let (mut told, mut at) = (0, 0);
    while let Some(Reverse((now, happens))) = player.to_come.pop() {
        at = now;
        player.meter.advance(now);
        player.apply(now, happens);
        while let Some(Reverse((_, next))) = player.to_come.peek().filter(|next| next.0.0 == now).copied() {
            player.to_come.pop();
            player.apply(now, next);
        }
        player.plan(now);
        if player.meter.over() >= told + 1000 {
            told = player.meter.over();
            watch(told, all);
        }
    }
    watch(player.meter.over(), all);
    let never = player.never_started(at);
    player.meter.report(all, never)
}

fn millis(seconds: f64) -> Millis {
    (seconds * 1000.0).round() as Millis
}

impl<'a> Player<'a> {
    fn new(trace: &'a Trace, policy: &Policy) -> Self {
        let mut scheduler = Scheduler::new(policy.clone());
        trace.cluster(&mut scheduler);
        let devices = trace.nodes.iter().map(|line| u64::from(line.count) * u64::from(line.devices)).sum();
        let weights: BTreeMap<String, f64> =
            trace.workspaces.iter().map(|line| (line.name.clone(), line.weight)).collect();
        let arrivals = (0..).zip(&trace.jobs);
        let to_come = arrivals.map(|(ix, job)| Reverse((millis(job.at), Happens::Arrives(ix)))).collect();
        let jobs = trace.jobs.iter().map(|job| Played {
            left: millis(job.runs),
            started_at: 0,
            saved_at: 0,
            tries: 0,
            is_over: false,
        });
        Self {
            scheduler,
            to_come,
            jobs: jobs.collect(),
            by_id: (0..trace.jobs.len() as u32).map(|ix| (id(ix), ix)).collect(),
            meter: Meter::new(devices, weights),
            trace,
        }
    }

    fn apply(&mut self, now: Millis, happens: Happens) {
        match happens {
            Happens::Arrives(ix) => {
                let line = &self.trace.jobs[ix as usize];
                self.meter.arrives(line);
                self.scheduler.submit(request(ix, line, now));
            }
            Happens::Ends(ix, tries) if self.jobs[ix as usize].tries == tries => {
                let job = &mut self.jobs[ix as usize];
                job.tries += 1;
                job.is_over = true;
                self.scheduler.ended(&id(ix), 0, Fate::Over, now);
                self.meter.stops(&self.trace.jobs[ix as usize]);
                self.meter.ends(&self.trace.jobs[ix as usize]);
            }
            Happens::Saves(ix, tries) if self.jobs[ix as usize].tries == tries => {
                let job = &mut self.jobs[ix as usize];
                job.saved_at = now;
                self.scheduler.change(&id(ix), Change::Saved { element: 0, at: now });
                self.save_again(ix, now);
            }
            Happens::Leaves(ix, tries) if self.jobs[ix as usize].tries == tries => {
                let job = &mut self.jobs[ix as usize];
                job.tries += 1;
                // What it saved is not done again.
                let kept = job.saved_at.saturating_sub(job.started_at);
                let lost = now - job.saved_at.max(job.started_at);
                job.left -= kept.min(job.left);
                self.scheduler.ended(&id(ix), 0, Fate::Again, now);
                self.meter.stops(&self.trace.jobs[ix as usize]);
                self.meter.preempted(&self.trace.jobs[ix as usize], lost);
            }
            Happens::Ends(..) | Happens::Saves(..) | Happens::Leaves(..) | Happens::Look => {}
        }
    }

    fn save_again(&mut self, ix: u32, now: Millis) {
        let line = &self.trace.jobs[ix as usize];
        // What may not be ended for others has no need to tell.
        if let Some(every) = line.saves.filter(|every| *every > 0.0 && line.preemptible) {
            let tries = self.jobs[ix as usize].tries;
            self.to_come.push(Reverse((now + millis(every), Happens::Saves(ix, tries))));
        }
    }

    /// The jobs that still wait when nothing happens any more, by what the scheduler says of them.
    fn never_started(&self, now: Millis) -> Vec<NeverStarted> {
        let mut reasons: BTreeMap<(String, &'static str, String), usize> = BTreeMap::new();
        // Jobs that ask alike wait for the same reason, and there may be very many.
        let mut asked: BTreeMap<String, (&'static str, String)> = BTreeMap::new();
        for ix in (0..).zip(&self.jobs).filter(|(_, job)| !job.is_over).map(|(ix, _)| ix) {
            let line = &self.trace.jobs[ix as usize];
            let (nodes, gpus) = (line.nodes, line.gpus.as_ref().map(ToString::to_string));
            let asks = (nodes, gpus, line.cpus, line.memory_gib, line.exclusive, &line.workspace, &line.user);
            let (code, reason) = asked.entry(format!("{asks:?}")).or_insert_with(|| {
                let words = self.scheduler.reason(&id(ix), now);
                words.map_or(("unknown", String::new()), |(tier, reason)| (tier.code(), reason))
            });
            *reasons.entry((line.workspace.clone(), code, reason.clone())).or_default() += 1;
        }
        let never = reasons.into_iter().map(|((workspace, code, reason), jobs)| NeverStarted {
            jobs,
            workspace,
            code,
            reason,
        });
        let mut never: Vec<NeverStarted> = never.collect();
        never.sort_by_key(|it| Reverse(it.jobs));
        never
    }

    fn plan(&mut self, now: Millis) {
        let plan = self.scheduler.pass(now);
        for start in &plan.starts {
            let ix = self.by_id[&start.job];
            let job = &mut self.jobs[ix as usize];
            (job.started_at, job.saved_at) = (now, now);
            let (left, tries) = (job.left, job.tries);
            self.meter.starts(&self.trace.jobs[ix as usize], tries == 0, now);
            self.to_come.push(Reverse((now + left, Happens::Ends(ix, tries))));
            self.save_again(ix, now);
        }
        for preemption in &plan.preemptions {
            let ix = self.by_id[&preemption.job];
            self.to_come.push(Reverse((now + GRACE, Happens::Leaves(ix, self.jobs[ix as usize].tries))));
        }
        if let Some(at) = plan.next_at {
            self.to_come.push(Reverse((at.max(now + 1), Happens::Look)));
        }
    }
}

impl Trace {
    /// Tells a scheduler of the nodes and the workspaces.
    pub fn cluster(&self, scheduler: &mut Scheduler) {
        let nodes = self.nodes.iter().flat_map(|line| (0..line.count).map(move |_| line));
        for (number, line) in (0..).zip(nodes) {
            scheduler.set_node(node(number, line));
        }
        for line in &self.workspaces {
            scheduler.set_workspace(&line.name, line.due());
        }
    }

    /// The jobs, as if all of them were submitted at once.
    pub fn requests(&self) -> impl Iterator<Item = Request> {
        (0..).zip(&self.jobs).map(|(ix, line)| request(ix, line, 0))
    }
}

fn id(ix: u32) -> JobId {
    JobId::from_random(u64::from(ix))
}

fn node(number: u32, line: &super::trace::NodeLine) -> NodeState {
    let id: NodeId = format!("{}{number}", NodeId::PREFIX).parse().expect("a number is a name");
    NodeState {
        node: id,
        pool: POOL.into(),
        capacity: line.capacity(),
        labels: line.labels(number),
        usable: true,
        serves: Serves { only: None, lacks: Some(BTreeMap::new()) },
    }
}

fn request(ix: u32, line: &JobLine, now: Millis) -> Request {
    let mut request = Request::new(id(ix), &line.workspace, &line.user, POOL);
    request.priority = line.priority;
    request.preemptible = line.preemptible;
    request.submitted_at = now;
    request.place = u64::from(ix);
    request.expected = line.says.map(millis);
    request.shape = Shape::Gang(line.nodes);
    request.need = Need {
        cpu_millis: (line.cpus * 1000.0) as u64,
        memory_bytes: (line.memory_gib * f64::from(1 << 30)) as u64,
        devices: line.gpus.clone(),
        exclusive: line.exclusive,
        ..Need::default()
    };
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_fits_is_named_and_each_workspace_has_its_figures() {
        let text = r#"
            {"nodes": {"count": 2, "cpus": 64, "memory_gib": 512, "devices": 8, "model": "H100"}}
            {"job": {"at": 0, "runs": 3600, "workspace": "nlp", "nodes": 2, "gpus": "8"}}
            {"job": {"at": 10, "runs": 60, "workspace": "cv", "gpus": "1"}}
            {"job": {"at": 20, "runs": 60, "workspace": "cv", "gpus": "16"}}
            {"job": {"at": 30, "runs": 60, "workspace": "cv", "gpus": "16"}}
            {"job": {"at": 40, "runs": 60, "workspace": "nlp", "gpus": "A100:1"}}"#;
        let report = play(&Trace::parse(text).unwrap(), &Policy::default(), |_, _| ());
        assert_eq!((report.jobs, report.over), (5, 2));
        let never: Vec<_> = report.never.iter().map(|it| (it.jobs, &*it.workspace, it.code)).collect();
        assert_eq!(never, [(2, "cv", "never_fits"), (1, "nlp", "never_fits")]);
        assert!(report.never[0].reason.contains("16 devices"), "{:?}", report.never);
        let (cv, nlp) = (&report.workspaces["cv"], &report.workspaces["nlp"]);
        assert_eq!((cv.jobs, cv.over, nlp.jobs, nlp.over), (3, 1, 2, 1));
        assert_eq!((nlp.device_hours, cv.waits.max), (16.0, 3590.0));
    }
}
