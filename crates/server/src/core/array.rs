//! Arrays: what lanes are told, and what their logs say.
//!
//! A lane's log is the only word about its elements. It is here before it is acknowledged, so whatever of it was not written
//! to the database yet is read again, from where the lane is known to be: after a failed batch, after a start, and before a
//! lane's end means anything. Only marks are read here, which takes little more than a look at where they are.

use std::collections::BTreeMap;

use muster_launch::{Gang, Parts};
use muster_link::message::{Elements, Launch, ToAgent};
use muster_model::array::Grant;
use muster_model::job::Event;
use muster_model::task::{TaskEnd, TaskPhase};
use muster_model::{JobId, TaskId, Timestamp};
use muster_scheduler::{Fate, Running, Shape, Start};

use super::Core;
use super::apply::launch_of;
use super::batch::Batch;
use super::live::Live;
use super::schedule::millis;
use super::workspace::workspace_of;

/// Marks that are read at once: a turn of the core stays short.
const MOST_MARKS: usize = 4096;
/// The first version of the protocol in which a task may be a lane.
const KNOWS_LANES: u32 = 4;

impl Core {
    /// The log of a lane may say more, or a task may be no lane.
    pub(super) fn on_log_grown(&mut self, task: &TaskId, batch: &mut Batch, now: Timestamp) {
        self.account(task, batch, now);
        let Some(end) = self.parked.get(task).map(|(end, _)| end.clone()) else { return };
        if self.is_accounted(task, &end)
            && let Some((end, at)) = self.parked.remove(task)
        {
            let event = Event::TaskEnded { attempt: task.attempt.number, rank: task.rank, end, at };
            self.apply_quietly(&task.attempt.job, event, batch, now);
        }
    }

    /// What could not be read before, or was read in a batch that failed.
    pub(super) fn read_on(&mut self, batch: &mut Batch, now: Timestamp) {
        for task in std::mem::take(&mut self.unread) {
            self.on_log_grown(&task, batch, now);
        }
    }

    /// Where the lanes' logs may say more than is known: all of them.
    pub(super) fn doubt_lanes(&mut self) {
        let lanes = self.jobs.values().filter(|live| live.job.array.is_some()).flat_map(|live| {
            let alive = live.job.ranks(|task| !task.is_over());
            alive.into_iter().map(|rank| live.job.task_id(rank))
        });
        self.unread = lanes.collect();
    }

    /// How far the log of a lane is accounted for; nothing, for any other task.
    fn offset_of(&self, task: &TaskId) -> Option<u64> {
        let live = self.jobs.get(&task.attempt.job)?;
        let lane = live.job.array.as_ref()?.lane(task.rank)?;
        (live.job.attempt_of(task.rank) == task.attempt).then_some(lane.offset)
    }

    /// Whether all that a lane's log says is known; of one whose node died, more will not come.
    fn is_accounted(&self, task: &TaskId, end: &TaskEnd) -> bool {
        let offset = self.offset_of(task);
        offset.zip(end.log_bytes).is_none_or(|(offset, length)| offset >= length)
    }

    /// Takes in what a lane's log says.
    pub(super) fn account(&mut self, task: &TaskId, batch: &mut Batch, now: Timestamp) {
        let Some(from) = self.offset_of(task) else { return };
        let (marks, offset) = match self.parts.logs.dir(task).marks(from, MOST_MARKS) {
            Ok(read) => read,
            Err(error) => return tracing::error!(%task, %error, "the log of a lane cannot be read"),
        };
        if marks.len() >= MOST_MARKS {
            self.unread.insert(task.clone());
        }
        if offset > from {
            let (attempt, rank) = (task.attempt.number, task.rank);
            let is_crowded = self.is_crowded(&task.attempt.job);
            let event = Event::Marks { attempt, rank, marks, offset, is_crowded };
            self.apply_quietly(&task.attempt.job, event, batch, now);
        }
    }

    /// Keeps the end of a lane until all of its log is here: what it says counts first. Whether there is nothing to wait for.
    pub(super) fn may_end(
        &mut self,
        task: &TaskId,
        end: &TaskEnd,
        at: Timestamp,
        batch: &mut Batch,
        now: Timestamp,
    ) -> bool {
        self.account(task, batch, now);
        let may = self.is_accounted(task, end);
        if !may {
            // Said again by its node on every connection, so it need not be written down.
            self.parked.insert(task.clone(), (end.clone(), at));
        }
        may
    }

    /// Whether lanes of this job get no further elements: somebody else waits for room, or the owner may not run it any more.
    fn is_crowded(&self, id: &JobId) -> bool {
        let Some(live) = self.jobs.get(id) else { return false };
        self.scheduler.is_contended(&live.target().to_string(), id) || self.owner_obstacle(live).is_some()
    }

    /// A lane has a place.
    pub(super) fn start_lane(&mut self, start: Start, batch: &mut Batch, now: Timestamp) {
        let Start { job, element: rank, placements } = start;
        // One write holds one attempt of a rank: one that ended in this batch starts in the next.
        if batch.jobs.get(&job).is_some_and(|touched| touched.ranks.contains(&rank)) {
            self.scheduler.ended(&job, rank, Fate::Again, millis(now));
            self.dirty = true;
            return;
        }
        let started = placements.into_iter().next().is_some_and(|placement| {
            self.apply(&job, Event::StartTask { rank, placement }, batch, now).is_ok()
        });
        if started {
            self.note_usage(now);
        } else {
            // There was nothing left for it to do.
            self.scheduler.ended(&job, rank, Fate::Over, millis(now));
            self.untold.jobs.insert(job);
        }
    }

    /// A lane is over: another may come in its place, if there is something left to do and others still do it.
    pub(super) fn release_lane(&mut self, live: &Live, rank: u32, now: Timestamp) {
        let is_wanted = live.job.is_under_way() && live.job.lanes_wanted() > 0;
        let fate = if is_wanted { Fate::Again } else { Fate::Over };
        self.scheduler.ended(&live.job.id, rank, fate, millis(now));
        self.note_usage(now);
    }

    /// Has the scheduler know that a job wants no further lanes.
    pub(super) fn tell_lanes(&mut self, live: &Live) {
        if live.job.lanes_wanted() == 0 {
            self.scheduler.withdraw(&live.job.id);
        }
    }

    /// Tells a lane which elements it has besides.
    pub(super) fn send_grant(&mut self, live: &Live, rank: u32, grant: Grant) {
        // It runs, since its log has said something, even if its node has yet to say so.
        if let Some(node) = live.job.tasks.get(rank as usize).map(|task| task.placement.node.clone()) {
            self.send(&node, ToAgent::Elements { task: live.job.task_id(rank), grant });
        }
    }

    /// A lane whose node was away may have missed what it was given.
    pub(super) fn grant_again(&self, task: &TaskId, batch: &mut Batch) {
        let Some(live) = self.jobs.get(&task.attempt.job) else { return };
        let Some(progress) = live.job.array.as_ref().filter(|_| self.offset_of(task).is_some()) else {
            return;
        };
        let Some(known) = live.job.tasks.get(task.rank as usize) else { return };
        if known.phase == TaskPhase::Running {
            let grants = progress.granted(task.rank).into_iter();
            let message = |grant| ToAgent::Elements { task: task.clone(), grant };
            batch.messages.extend(grants.map(|grant| (known.placement.node.clone(), message(grant))));
        }
    }

    /// Lanes know nothing of each other: each is launched as if it were alone.
    pub(super) fn send_lane_launches(
        &mut self,
        live: &Live,
        ranks: &[u32],
        environment: &BTreeMap<String, String>,
    ) {
        let (secrets, withheld) = self.secrets_of(live);
        for rank in ranks {
            let Some(message) = self.lane_launch(live, *rank, environment) else { continue };
            let message = Launch { secrets: secrets.clone(), withheld: withheld.clone(), ..message };
            let node = live.job.tasks[*rank as usize].placement.node.clone();
            let protocol =
                self.nodes.get(&node).and_then(|node| node.connection.as_ref()).map(|it| it.protocol);
            // An older agent would run the command once. It changes over to this version, and then says again that it is ready.
            if protocol.is_some_and(|protocol| protocol >= KNOWS_LANES) {
                self.send(&node, ToAgent::Launch(Box::new(message)));
            }
        }
    }

    fn lane_launch(&self, live: &Live, rank: u32, environment: &BTreeMap<String, String>) -> Option<Launch> {
        let (array, progress) = (live.spec.array.as_ref()?, live.job.array.as_ref()?);
        let task = live.job.tasks.get(rank as usize).filter(|task| task.phase == TaskPhase::Ready)?;
        let gang = Gang {
            members: vec![self.member(task)?],
            attempt: live.job.attempt_of(rank),
            job_name: live.name.clone(),
            workspace: workspace_of(&live.spec).to_owned(),
            spec: &live.spec,
            shares_directories: self.shares_directories(live.target()),
        };
        let part = Parts::of(&gang).part(0);
        let peers = self.peers(live, &gang);
        let mut launch = launch_of(live, part, gang.attempt.task(rank), environment, &peers);
        launch.env.extend(muster_launch::array::variables(&live.spec, &launch.env));
        launch.elements = Some(Elements { array: array.clone(), grants: progress.granted(rank) });
        Some(launch)
    }
}

/// How many lanes a job has, and may have, where it is an array.
pub(super) fn shape(live: &Live) -> Option<Shape> {
    let array = live.spec.array.as_ref()?;
    let is_live = |rank: &u32| live.job.tasks.get(*rank as usize).is_some_and(|task| !task.is_over());
    // One that waits until an element may be tried again wants one then.
    let wanted = live.job.lanes_wanted().max(u32::from(live.job.is_waiting()));
    let free = (0..array.lanes()).filter(|rank| !is_live(rank)).take(wanted as usize);
    Some(Shape::Many { elements: free.map(|rank| rank..=rank).collect(), at_once: array.lanes() })
}

/// The lanes that run, as the scheduler is told of them.
pub(super) fn running(live: &Live, now: Timestamp) -> Vec<Running> {
    let lane = |rank: u32| {
        let task = &live.job.tasks[rank as usize];
        Running {
            job: live.job.id.clone(),
            element: rank,
            placements: vec![Some(task.placement.clone())],
            started_at: millis(task.started_at.unwrap_or(now)),
            saved_at: None,
            is_leaving: live.job.is_leaving(rank),
        }
    };
    live.job.ranks(|task| !task.is_over()).into_iter().map(lane).collect()
}
