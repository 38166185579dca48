//! Machines of a group, one by one: what is asked of one of them, and who the others learn is there.

use muster_api::problem::{Code, Problem};
use muster_link::message::ToAgent;
use muster_model::job::{Event, Invalid, Standing, State};
use muster_model::spec::MAX_PRIORITY;
use muster_model::task::{Parting, Placement, TaskPhase};
use muster_model::{JobId, TaskId, Timestamp};
use muster_scheduler::{Request, Shape};

use super::Core;
use super::apply::refusal;
use super::batch::Batch;
use super::input::{Input, Reply, Wish};
use super::schedule::millis;
use super::why::About;

impl Core {
    /// What someone wants of one task.
    pub(super) fn on_task_wish(
        &mut self,
        (id, rank): (JobId, u32),
        wish: Wish,
        reply: Reply<()>,
        batch: &mut Batch,
        now: Timestamp,
    ) {
        let event = match wish {
            Wish::Suspend => Ok(Event::StopTask { rank, parting: Parting::Suspend }),
            Wish::Stop => Ok(Event::StopTask { rank, parting: Parting::Stop }),
            // A client that lost the answer asks again.
            Wish::Resume if self.is_live(&id, rank) => return batch.answer(reply, Ok(())),
            Wish::Resume => match self.check_start(&id, rank) {
                // One write holds one attempt of a rank: one that ended in this batch starts in the next.
                Ok(()) if batch.jobs.get(&id).is_some_and(|touched| touched.ranks.contains(&rank)) => {
                    return self.later.push(Input::Task { job: id, rank, wish, reply });
                }
                Ok(()) => {
                    self.place_one(&id, rank, now).map(|placement| Event::StartTask { rank, placement })
                }
                Err(problem) => Err(problem),
            },
        };
        let apply = |event| self.apply(&id, event, batch, now).map_err(|invalid| refusal(&invalid, ""));
        let done = event.and_then(apply);
        batch.answer(reply, done);
    }

    /// Whether a member starts or runs already, in a group that goes on.
    fn is_live(&self, id: &JobId, rank: u32) -> bool {
        let checked = self.jobs.get(id).map(|live| live.job.check_start(rank));
        matches!(checked, Some(Err(Invalid::Task { standing: Standing::Live, .. })))
    }

    /// Whether a task could start if there were room for it: asked first, since who cannot start needs no room.
    fn check_start(&self, id: &JobId, rank: u32) -> Result<(), Problem> {
        let checked = self.jobs.get(id).map_or(Err(Invalid::Stale), |live| live.job.check_start(rank));
        checked.map_err(|invalid| refusal(&invalid, ""))?;
        self.check_owner(id)?;
        match self.jobs.get(id).map(|live| live.target()).filter(|target| self.is_delegated(target)) {
            Some(target) => {
                let what = format!("{target} places whole groups, and not one machine of them");
                Err(Problem::new(Code::NoRoom, what).hint("stop the group, then start it"))
            }
            None => Ok(()),
        }
    }

    /// A place for one task: the node that it had, or any that has room and that nobody waits for before it.
    fn place_one(&mut self, id: &JobId, rank: u32, now: Timestamp) -> Result<Placement, Problem> {
        let live = &self.jobs[id];
        let had = live.job.tasks[rank as usize].placement.node.clone();
        let (owner, spec) = (live.owner.clone(), live.spec.clone());
        let task = format!("task{rank}.{}", live.name);
        let request = self.request_of(&owner, &spec, now);
        let one = Request { shape: Shape::Gang(1), prefer: vec![had], ..request };
        let found = self.scheduler.place(one.clone(), millis(now));
        let found = found.and_then(|places| places.into_iter().next());
        found.ok_or_else(|| {
            let why = self
                .question(About::New(Box::new(one)), &spec.on, now)
                .answer(MAX_PRIORITY, |id| Some(id.to_string()));
            let what = why.constraint.unwrap_or(why.summary);
            let help = why.help.unwrap_or_else(|| "`muster nodes` shows what is free".into());
            Problem::new(Code::NoRoom, format!("there is no room for {task} now: {what}")).hint(help)
        })
    }

    /// Tells the members of a group that run who is there now.
    pub(super) fn introduce(&mut self, id: &JobId) {
        let Some(live) = self.jobs.get(id).cloned() else { return };
        if !matches!(live.job.state, State::Starting | State::Running) {
            return;
        }
        let Some(peers) = self.peers_of(&live) else { return };
        let running = |task: &muster_model::Task| task.phase == TaskPhase::Running && task.parting.is_none();
        for rank in live.job.ranks(running) {
            let node = live.job.tasks[rank as usize].placement.node.clone();
            self.send(&node, ToAgent::Peers { task: live.job.task_id(rank), peers: peers.clone() });
        }
    }

    /// A member whose node was away may have missed who came and went.
    pub(super) fn introduce_again(&self, task: &TaskId, batch: &mut Batch) {
        let Some(live) = self.jobs.get(&task.attempt.job) else { return };
        let Some(known) = live.job.tasks.get(task.rank as usize) else { return };
        if live.job.has_members()
            && known.standing() == Standing::Live
            && known.phase == TaskPhase::Running
            && let Some(peers) = self.peers_of(live)
        {
            let message = ToAgent::Peers { task: task.clone(), peers };
            batch.messages.push((known.placement.node.clone(), message));
        }
    }
}
