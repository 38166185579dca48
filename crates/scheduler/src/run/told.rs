//! What the scheduler is told of runs: that they are there, that they end, what changes about them.

use muster_model::JobId;
use muster_model::task::Placement;

use super::{Phase, Seat};
use crate::policy::Millis;
use crate::quota::Verdict;
use crate::request::{Change, Fate, Running, Standing};
use crate::room::RunIx;
use crate::state::{Left, Scheduler};

impl Scheduler {
    /// A run told of when the scheduler is made anew, after its job was submitted.
    pub fn started(&mut self, running: Running) {
        let Some(job) = self.job_index.get(&running.job).copied() else { return };
        if self.jobs[job].runs.contains_key(&running.element) {
            return;
        }
        let seats: Vec<Option<Seat>> = running.placements.iter().map(|place| self.seat_at(place)).collect();
        let sitting: Vec<Seat> = seats.iter().flatten().cloned().collect();
        let device = sitting.iter().find_map(|seat| Some((seat.node, *seat.devices.first()?)));
        let kind = device.and_then(|(node, device)| {
            self.nodes[node].devices.iter().find(|it| it.all.contains(&device)).map(|it| it.kind)
        });
        let charge = self.charge_of(self.jobs[job].group, kind, &sitting);
        let borrows = self.ledger.check(self.jobs[job].workspace, &charge) != Verdict::Nominal;
        let ix = self.add_run(job, running.element, seats, kind, charge, running.started_at);
        self.runs[ix].borrows = borrows;
        self.take_element(job, running.element);
        self.begin(ix, running.started_at);
        self.unlist(ix);
        self.runs[ix].saved_at = running.saved_at.unwrap_or(running.started_at);
        if running.is_leaving {
            self.runs[ix].phase = Phase::Leaving;
            self.leaving.insert(ix);
        } else {
            self.list(ix);
        }
    }

    fn seat_at(&self, place: &Option<Placement>) -> Option<Seat> {
        let Placement { node, devices } = place.as_ref()?;
        Some(Seat { node: *self.node_index.get(node)?, devices: devices.clone() })
    }

    /// One task of a gang is over, and the others go on.
    pub fn task_ended(&mut self, id: &JobId, element: u32, rank: u32) {
        let Some(ix) = self.run_of(id, element) else { return };
        self.lift(ix);
        let seat = self.runs[ix].seats.get_mut(rank as usize).and_then(Option::take);
        self.lay(ix);
        if let Some(seat) = seat {
            self.pools[self.runs[ix].pool as usize].give_back(std::iter::once(seat.node));
            self.forget_node(seat.node);
        }
    }

    /// A gang, or an element of a job of many, is over.
    pub fn ended(&mut self, id: &JobId, element: u32, fate: Fate, now: Millis) {
        let Some(ix) = self.run_of(id, element) else { return };
        let job = self.runs[ix].job;
        let is_promised = matches!(self.runs[ix].phase, Phase::Promised(_));
        self.remove_run(ix, now);
        let it = &mut self.jobs[job];
        it.is_promised &= !is_promised;
        if let (Left::Many { elements, .. }, Fate::Again) = (&mut it.left, fate) {
            elements.push(element..=element);
            elements.sort_unstable_by_key(|range| *range.start());
        }
        let is_over = match &it.left {
            Left::Gang => fate == Fate::Over,
            Left::Many { elements, .. } => elements.is_empty() && it.runs.is_empty(),
        };
        match is_over {
            true => self.drop_job(job),
            false => self.queue(job),
        }
    }

    fn run_of(&self, id: &JobId, element: u32) -> Option<RunIx> {
        self.jobs[*self.job_index.get(id)?].runs.get(&element).copied()
    }

    /// Something about a job is otherwise than it was.
    pub fn change(&mut self, id: &JobId, change: Change) {
        let Some(ix) = self.job_index.get(id).copied() else { return };
        match change {
            Change::Saved { element, at } => {
                if let Some(run) = self.jobs[ix].runs.get(&element).copied() {
                    let was_listed = self.unlist(run);
                    self.runs[run].saved_at = at;
                    if was_listed {
                        self.list(run);
                    }
                }
                return;
            }
            Change::Priority(priority) => {
                let runs: Vec<RunIx> = self.jobs[ix].runs.values().copied().collect();
                let listed: Vec<RunIx> = runs.into_iter().filter(|run| self.unlist(*run)).collect();
                let standing = std::mem::replace(&mut self.jobs[ix].standing, Standing::Held);
                self.queue(ix);
                self.jobs[ix].standing = standing;
                self.jobs[ix].priority = priority;
                listed.into_iter().for_each(|run| self.list(run));
            }
            Change::Standing(standing) => {
                if let Standing::Paused(until) = self.jobs[ix].standing {
                    self.paused.remove(&(until, ix));
                }
                self.jobs[ix].standing = standing;
            }
        }
        if self.jobs[ix].is_promised {
            self.break_promise(ix);
        }
        self.unreserve(ix);
        self.queue(ix);
    }
}
