//! What runs and what is promised a place: claims on nodes, charges on quotas, use on accounts, all of them made and undone together.

mod told;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use smallvec::smallvec;

use crate::policy::{Millis, millis};
use crate::queue::JobIx;
use crate::quota::{CPU, Charge, DEVICES, MEMORY, Verdict};
use crate::room::{KindIx, NodeIx, RunIx};
use crate::state::{Left, Scheduler};

/// A place for one task.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seat {
    pub node: NodeIx,
    pub devices: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Phase {
    /// Its place is kept, and is free when these have ended.
    Promised(BTreeSet<RunIx>),
    Running,
    /// It was told to end for another.
    Leaving,
}

/// A gang, or an element of a job of many, that has a place.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub job: JobIx,
    pub element: u32,
    pub pool: u32,
    pub kind: Option<KindIx>,
    pub seats: Vec<Option<Seat>>,
    pub charge: Charge,
    /// Devices that it weighs as much as.
    pub cost: f64,
    /// It was more than its workspace's own when it started.
    pub borrows: bool,
    pub phase: Phase,
    pub started_at: Millis,
    pub saved_at: Millis,
    /// Not before this moment is it ended for others.
    pub protected_until: Millis,
    pub ends_at: Option<Millis>,
}

impl Run {
    /// What would be lost if it ended now: device-seconds since it started or saved.
    pub fn loses(&self, now: Millis) -> f64 {
        now.saturating_sub(self.saved_at.max(self.started_at)) as f64 / 1000.0 * self.cost
    }
}

/// A job's way to start, found and not yet taken.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub kind: Option<KindIx>,
    pub seats: Vec<Seat>,
    pub charge: Charge,
    pub borrows: bool,
}

pub(crate) const DAY: Millis = 24 * 3600 * 1000;

impl Scheduler {
    /// What a run counts for. Who has a node alone has all of it.
    pub(crate) fn charge_of(&self, group: u32, kind: Option<KindIx>, seats: &[Seat]) -> Charge {
        let size = u64::from(self.groups[group].size);
        let need = &self.classes[self.groups[group].class].need;
        let mut charge: Charge = smallvec![
            (CPU, need.cpu_millis.saturating_mul(size)),
            (MEMORY, need.memory_bytes.saturating_mul(size)),
        ];
        if need.exclusive && !seats.is_empty() {
            let nodes = || seats.iter().map(|seat| &self.nodes[seat.node]);
            charge[0].1 = nodes().map(|node| node.state.capacity.cpu_millis).sum();
            charge[1].1 = nodes().map(|node| node.state.capacity.memory_bytes).sum();
            for devices in nodes().flat_map(|node| &node.devices) {
                add(&mut charge, DEVICES, devices.all.len() as u64);
                add(&mut charge, self.kinds[devices.kind as usize].dim, devices.all.len() as u64);
            }
        } else if let Some(request) = &need.devices {
            let count = u64::from(request.count) * size;
            add(&mut charge, DEVICES, count);
            let model = request.model.as_deref().and_then(|model| self.known_dim(model));
            if let Some(dim) = kind.map(|kind| self.kinds[kind as usize].dim).or(model) {
                add(&mut charge, dim, count);
            }
        }
        charge.retain(|(_, amount)| *amount > 0);
        charge
    }

    /// How many devices a run weighs as much as: of all that it holds, what weighs most.
    fn cost_of(&self, charge: &Charge) -> f64 {
        let policy = &self.policy;
        let weigh = |(dim, amount): &(u32, u64)| match *dim {
            CPU => *amount as f64 / 1000.0 / policy.cpus_per_device,
            MEMORY => *amount as f64 / f64::from(1 << 30) / policy.memory_gib_per_device,
            DEVICES => 0.0,
            dim => {
                *amount as f64 * self.kinds.iter().find(|kind| kind.dim == dim).map_or(1.0, |it| it.weight)
            }
        };
        let models: f64 = charge.iter().filter(|(dim, _)| *dim > DEVICES).map(weigh).sum();
        let unnamed = charge.iter().find(|(dim, _)| *dim == DEVICES).map_or(0.0, |(_, count)| *count as f64);
        let devices = if models > 0.0 { models } else { unnamed };
        let most = charge.iter().filter(|(dim, _)| *dim < DEVICES).map(weigh).fold(devices, f64::max);
        // Nothing is for nothing: a slot weighs something, too.
        most.max(0.001)
    }

    /// Takes an offer: from now on its place is taken.
    pub(crate) fn seat(&mut self, job: JobIx, offer: Offer, phase: Phase, now: Millis) -> RunIx {
        let element = self.jobs[job].next_element();
        let seats = offer.seats.into_iter().map(Some).collect();
        let ix = self.add_run(job, element, seats, offer.kind, offer.charge, now);
        self.runs[ix].borrows = offer.borrows;
        self.take_element(job, element);
        match phase {
            Phase::Running => self.begin(ix, now),
            phase => {
                self.runs[ix].phase = phase;
                self.promised.insert(ix);
                self.jobs[job].is_promised = true;
            }
        }
        self.unreserve(job);
        self.queue(job);
        ix
    }

    fn add_run(
        &mut self,
        job: JobIx,
        element: u32,
        seats: Vec<Option<Seat>>,
        kind: Option<KindIx>,
        charge: Charge,
        at: Millis,
    ) -> RunIx {
        let it = &self.jobs[job];
        let (workspace, user, group) = (it.workspace, it.user, it.group);
        let pool = self.classes[self.groups[group].class].pool;
        let cost = self.cost_of(&charge);
        self.ledger.charge(workspace, &charge, true);
        self.people[user as usize].running += 1;
        let run = Run {
            job,
            element,
            pool,
            kind,
            seats,
            charge,
            cost,
            borrows: false,
            phase: Phase::Running,
            started_at: at,
            saved_at: at,
            protected_until: 0,
            ends_at: None,
        };
        let ix = self.runs.insert(run);
        self.pools[pool as usize].runs.insert(ix);
        self.jobs[job].runs.insert(element, ix);
        self.lay(ix);
        ix
    }

    /// A run begins to use what it has.
    pub(crate) fn begin(&mut self, ix: RunIx, now: Millis) {
        let half_life = self.half_life;
        let run = &mut self.runs[ix];
        let job = &mut self.jobs[run.job];
        job.is_promised = false;
        run.phase = Phase::Running;
        (run.started_at, run.saved_at) = (now, now);
        run.ends_at = job.expected.map(|expected| now.saturating_add(expected));
        let pool = &mut self.pools[run.pool as usize];
        pool.ends.extend(run.ends_at.map(|at| (at, ix)));
        self.promised.remove(&ix);
        let cost = run.cost;
        self.workspaces[job.workspace as usize].1.hold(cost, now, half_life);
        self.members[job.member as usize].account.hold(cost, now, half_life);
        let job = run.job;
        self.list(ix);
        self.queue(job);
    }

    /// Lists a run among those that may be ended for others, if it may, from when its least time is over.
    fn list(&mut self, ix: RunIx) {
        let run = &self.runs[ix];
        if self.jobs[run.job].preemptible || run.borrows {
            let until = self.protected_until(run);
            self.runs[ix].protected_until = until;
            self.young.insert((until, ix));
        }
    }

    /// Those whose least time is over may be ended from now on.
    pub(crate) fn ripen(&mut self, now: Millis) {
        while let Some((until, ix)) = self.young.first().copied().filter(|(until, _)| *until <= now) {
            self.young.remove(&(until, ix));
            let run = &self.runs[ix];
            let (pool, job) = (&mut self.pools[run.pool as usize], &self.jobs[run.job]);
            if job.preemptible {
                let entry = (job.priority, Reverse(run.saved_at), ix);
                pool.preemptible.insert(entry);
                self.lesser[job.workspace as usize].insert(entry);
            }
            if run.borrows {
                pool.borrowing.insert((Reverse(run.saved_at), ix));
            }
        }
    }

    /// It may not be ended for others any more; whether it was listed.
    pub(crate) fn unlist(&mut self, ix: RunIx) -> bool {
        let run = &self.runs[ix];
        let pool = &mut self.pools[run.pool as usize];
        let saved_at = Reverse(run.saved_at);
        let job = &self.jobs[run.job];
        let entry = (job.priority, saved_at, ix);
        self.lesser[job.workspace as usize].remove(&entry);
        let was_preemptible = pool.preemptible.remove(&entry);
        let was_young = self.young.remove(&(run.protected_until, ix));
        pool.borrowing.remove(&(saved_at, ix)) || was_preemptible || was_young
    }

    /// Claims a run's places. `lay` and `lift` undo each other exactly, and are also used to try what would be.
    pub(crate) fn lay(&mut self, ix: RunIx) {
        self.move_claims(ix, true);
    }

    /// Gives a run's places back.
    pub(crate) fn lift(&mut self, ix: RunIx) {
        self.move_claims(ix, false);
    }

    fn move_claims(&mut self, ix: RunIx, is_in: bool) {
        let run = &self.runs[ix];
        let need = &self.classes[self.groups[self.jobs[run.job].group].class].need;
        for seat in run.seats.iter().flatten() {
            let node = &mut self.nodes[seat.node];
            let room = &mut self.pools[node.pool as usize].room;
            if node.is_present {
                room.remove(seat.node, node);
            }
            match is_in {
                true => node.claim(ix, need, &seat.devices),
                false => node.release(ix, need, &seat.devices),
            }
            if node.is_present {
                room.add(seat.node, node);
            }
        }
    }

    fn take_element(&mut self, job: JobIx, element: u32) {
        let Left::Many { elements, .. } = &mut self.jobs[job].left else { return };
        let Some(at) = elements.iter().position(|range| range.contains(&element)) else { return };
        let range = elements.remove(at);
        let (start, end) = (*range.start(), *range.end());
        if element < end {
            elements.insert(at, element + 1..=end);
        }
        if start < element {
            elements.insert(at, start..=element - 1);
        }
    }

    /// A run goes back to being nothing: ended, or never begun.
    fn remove_run(&mut self, ix: RunIx, now: Millis) {
        self.lift(ix);
        self.unlist(ix);
        self.promised.remove(&ix);
        self.leaving.remove(&ix);
        let run = self.runs.remove(ix);
        let pool = &mut self.pools[run.pool as usize];
        pool.runs.remove(&ix);
        for reserved in pool.reserved.iter_mut().flatten() {
            reserved.outgoing.remove(&ix);
        }
        if let Some(at) = run.ends_at {
            pool.ends.remove(&(at, ix));
        }
        pool.give_back(run.seats.iter().flatten().map(|seat| seat.node));
        let half_life = self.half_life;
        let job = &mut self.jobs[run.job];
        job.runs.remove(&run.element);
        self.people[job.user as usize].running -= 1;
        self.ledger.charge(job.workspace, &run.charge, false);
        if !matches!(run.phase, Phase::Promised(_)) {
            self.workspaces[job.workspace as usize].1.hold(-run.cost, now, half_life);
            self.members[job.member as usize].account.hold(-run.cost, now, half_life);
        }
        for seat in run.seats.iter().flatten() {
            if self.nodes.get(seat.node).is_some() {
                self.forget_node(seat.node);
            }
        }
        self.left_by(ix);
    }

    /// Whoever was promised what a run had is one step nearer to it.
    fn left_by(&mut self, gone: RunIx) {
        for ix in &self.promised {
            if let Phase::Promised(waits) = &mut self.runs[*ix].phase {
                waits.remove(&gone);
            }
        }
    }

    /// Gives back what a job was promised; those who leave for it leave anyway.
    pub(crate) fn break_promise(&mut self, job: JobIx) {
        let of_job: Vec<RunIx> = self.jobs[job].runs.values().copied().collect();
        self.jobs[job].is_promised = false;
        for ix in of_job {
            if matches!(self.runs[ix].phase, Phase::Promised(_)) {
                let element = self.runs[ix].element;
                // It never ran, so no time passes for it.
                self.remove_run(ix, 0);
                if let Left::Many { elements, .. } = &mut self.jobs[job].left {
                    elements.insert(0, element..=element);
                }
            }
        }
        self.queue(job);
    }

    /// A node takes nothing new: what was promised there is not to be had.
    pub(crate) fn break_promises(&mut self, node: NodeIx) {
        let promised = |(ix, _): &(RunIx, u32)| {
            matches!(self.runs[*ix].phase, Phase::Promised(_)).then(|| self.runs[*ix].job)
        };
        let jobs: Vec<JobIx> = self.nodes[node].runs.iter().filter_map(promised).collect();
        jobs.into_iter().for_each(|job| self.break_promise(job));
    }

    /// After a workspace's quotas changed: which of its runs are beyond them, the newest first.
    pub(crate) fn mark_borrowers(&mut self, workspace: u32) {
        let of: Vec<(Millis, RunIx)> = self
            .runs
            .iter()
            .filter(|(_, run)| self.jobs[run.job].workspace == workspace)
            .map(|(ix, run)| (run.started_at, ix))
            .collect();
        let mut sorted = of;
        sorted.sort_unstable();
        for (_, ix) in &sorted {
            self.ledger.charge(workspace, &self.runs[*ix].charge, false);
        }
        for (_, ix) in sorted {
            let run = &mut self.runs[ix];
            run.borrows =
                !matches!(self.ledger.check(workspace, &run.charge), Verdict::Nominal | Verdict::Lent(_));
            self.ledger.charge(workspace, &run.charge, true);
            self.unlist(ix);
            if self.runs[ix].phase == Phase::Running {
                self.list(ix);
            }
        }
    }

    /// From when on a run may be ended for others.
    fn protected_until(&self, run: &Run) -> Millis {
        let young = run.started_at.saturating_add(millis(self.policy.min_run_time));
        let often = self.policy.preemptions_per_day as usize;
        if often == 0 {
            return Millis::MAX;
        }
        let before = self.jobs[run.job].preempted.iter().rev().filter(|(element, _)| *element == run.element);
        let weary = before.map(|(_, at)| *at).nth(often - 1).map_or(0, |at| at.saturating_add(DAY));
        young.max(weary)
    }
}

fn add(charge: &mut Charge, dim: u32, amount: u64) {
    match charge.iter_mut().find(|(it, _)| *it == dim) {
        Some((_, sum)) => *sum += amount,
        None => charge.push((dim, amount)),
    }
}
