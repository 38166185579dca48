//! One machine of a group: how it is, and what is asked of it alone.

use muster_api::client::{self, EventItem};
use muster_api::model::spec::Kind;
use muster_api::model::task::{Parting, TaskPhase};
use muster_api::model::{Reason, State};
use muster_api::view::{EventView, EventsQuery, JobDetail, JobSummary, TaskView};

use super::Named;
use crate::error::{Code, Error};
use crate::session::Session;

/// A group, or one of its machines where there are several.
#[derive(Debug, Clone)]
pub(crate) struct Meant {
    pub job: JobSummary,
    pub rank: Option<u32>,
}

impl Meant {
    /// The names of the machines that are meant.
    pub fn names(&self, job: &JobDetail) -> Vec<String> {
        let ranks = self.rank.map_or_else(|| kept(job), |rank| vec![rank]);
        ranks.into_iter().map(|rank| Member::of(job, rank).name).collect()
    }
}

/// How one machine is.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub name: String,
    pub state: State,
    /// Why it failed, in words.
    pub message: Option<String>,
}

impl Member {
    pub fn of(job: &JobDetail, rank: u32) -> Self {
        let task = task(job, rank);
        Self {
            name: task.and_then(|task| task.name.clone()).unwrap_or_else(|| by_group(&job.summary, rank)),
            state: state(&job.summary, task),
            message: task.and_then(|task| task.message.clone()),
        }
    }

    /// `failed: lost node_gpu.h2`.
    pub fn words(&self) -> String {
        match (self.state, &self.message) {
            (State::Failed, Some(message)) => format!("failed: {message}"),
            _ => self.state.to_string(),
        }
    }

    /// What is to run and does not.
    pub fn must_run(self) -> Result<Self, Error> {
        match self.state {
            State::Running => Ok(self),
            _ => {
                let message = format!("{} is not ready: {}", self.name, self.words());
                let hint = format!("`muster machine start {}` tries it again", self.name);
                Err(Error::new(Code::TaskNotRunning, message).hint(hint))
            }
        }
    }
}

/// What a machine is called that has no name of its own.
pub(crate) fn by_group(group: &JobSummary, rank: u32) -> String {
    Named { group: group.name.clone(), rank: Some(rank) }.to_string()
}

/// The machine of a group that has this name of its own.
pub(super) fn named(job: &JobDetail, name: &str) -> Option<u32> {
    let tasks = &job.attempts.last()?.tasks;
    tasks.iter().find(|task| task.name.as_deref() == Some(name)).map(|task| task.rank)
}

/// The newest task of a rank.
fn task(job: &JobDetail, rank: u32) -> Option<&TaskView> {
    job.attempts.last()?.tasks.iter().find(|task| task.rank == rank)
}

fn is_killed(task: &TaskView) -> bool {
    task.phase == TaskPhase::Ended && task.parting == Some(Parting::Stop)
}

/// How a machine is: as its group, save where it has gone its own way.
pub(super) fn state(group: &JobSummary, task: Option<&TaskView>) -> State {
    let Some(task) = task else { return group.state };
    if is_killed(task) {
        return State::Stopped;
    }
    match group.state {
        // What its machines were before says nothing of how they are.
        State::Queued | State::Succeeded | State::Failed | State::Stopped => group.state,
        State::Starting | State::Running | State::Stopping | State::Suspended => match task.phase {
            TaskPhase::Ended => match (task.parting, &task.failure) {
                (Some(_), _) | (None, Some(Reason::Suspended)) => State::Suspended,
                (None, Some(_)) => State::Failed,
                (None, None) => State::Succeeded,
            },
            _ if task.parting.is_some() || group.state == State::Stopping => State::Stopping,
            TaskPhase::Running => State::Running,
            TaskPhase::Assigned | TaskPhase::Ready => State::Starting,
        },
    }
}

/// The machines of a group that were not given back for good.
pub(crate) fn kept(job: &JobDetail) -> Vec<u32> {
    (0..job.summary.nodes).filter(|rank| !task(job, *rank).is_some_and(is_killed)).collect()
}

/// Those that are over and can be started anew, while others run.
pub(crate) fn over(job: &JobDetail) -> Vec<u32> {
    if !matches!(job.summary.state, State::Starting | State::Running) {
        return Vec::new();
    }
    let is_over = |rank: &u32| {
        matches!(Member::of(job, *rank).state, State::Suspended | State::Failed | State::Succeeded)
    };
    kept(job).into_iter().filter(is_over).collect()
}

/// The tasks that something can be done on: of machines those that run, of other jobs all.
pub(crate) fn reachable(job: &JobDetail) -> Vec<u32> {
    let all = 0..job.summary.nodes;
    match (job.summary.kind, job.summary.state) {
        (Kind::Machine, State::Running) => {
            all.filter(|rank| Member::of(job, *rank).state == State::Running).collect()
        }
        _ => all.collect(),
    }
}

/// Parks one machine; one that is parked already is left as it is.
pub(crate) async fn suspend_one(session: &Session, id: &str, rank: u32) -> Result<JobSummary, Error> {
    session.call(async |client| client.suspend_task(id, rank).await).await
}

/// Starts one machine anew; one that is there already is left as it is, and one that is being parked is waited for.
pub(crate) async fn resume_one(session: &Session, id: &str, rank: u32) -> Result<JobSummary, Error> {
    until_one(session, id, rank, |state| state != State::Stopping).await?;
    session.call(async |client| client.resume_task(id, rank).await).await
}

/// Ends one machine for good. Nothing is asked of a group that is over with the last of them.
pub(crate) async fn kill_one(session: &Session, id: &str, rank: u32) -> Result<JobSummary, Error> {
    session
        .call(async |client| match client.stop_task(id, rank).await {
            Err(error) if error.code() == Some(muster_api::Code::InvalidState) => {
                let job = client.job(id).await?;
                if Member::of(&job, rank).state.is_terminal() { Ok(job.summary) } else { Err(error) }
            }
            stopped => stopped,
        })
        .await
}

/// Waits until a machine is in a state that will do, or its job is over.
pub(crate) async fn until_one(
    session: &Session,
    id: &str,
    rank: u32,
    will_do: impl Fn(State) -> bool,
) -> Result<Member, Error> {
    let query = EventsQuery { after: None, follow: true };
    session
        .call(async |client| {
            let now = async || client.job(id).await.map(|job| Member::of(&job, rank));
            let member = now().await?;
            if will_do(member.state) {
                return Ok(member);
            }
            let mut events = client.events(id, &query).await?;
            while let Some(item) = events.next().await? {
                match item {
                    EventItem::End(_) => return now().await,
                    EventItem::Event(event) if concerns(&event, rank) => {
                        let member = now().await?;
                        if will_do(member.state) {
                            return Ok(member);
                        }
                    }
                    EventItem::Event(_) => {}
                }
            }
            Err(client::Error::Lost { source: None })
        })
        .await
}

fn concerns(event: &EventView, rank: u32) -> bool {
    event.kind.parse::<State>().is_ok() || event.body["rank"].as_u64() == Some(rank.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn group(state: &str) -> JobSummary {
        let value = json!({
            "id": "job_0123456789", "name": "v100", "kind": "machine", "labels": {}, "state": state, "reason": null,
            "message": null, "nodes": 2, "gpus": null, "command": "", "on": "local", "owner": "me", "attempt": 1,
            "exit_code": null, "submitted_at": "2026-11-15T10:00:00Z", "started_at": null, "ended_at": null,
        });
        serde_json::from_value(value).unwrap()
    }

    fn member(phase: &str, parting: Option<&str>, failure: Option<&str>) -> TaskView {
        let value = json!({
            "rank": 1, "attempt": 1, "node": "node_local", "devices": [], "phase": phase, "parting": parting,
            "address": null, "failure": failure.map(|node| json!({"code": "node_lost", "node": node})), "message": null,
            "outputs": null, "now": null, "usage": null, "started_at": null, "ended_at": null,
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_machine_is_as_its_group_save_where_it_has_gone_its_own_way() {
        let seen = |group_state: &str, task: TaskView| state(&group(group_state), Some(&task));
        assert_eq!(seen("running", member("running", None, None)), State::Running);
        assert_eq!(seen("running", member("running", Some("suspend"), None)), State::Stopping);
        assert_eq!(seen("running", member("ended", Some("suspend"), None)), State::Suspended);
        assert_eq!(seen("running", member("ended", Some("stop"), None)), State::Stopped);
        assert_eq!(seen("running", member("ended", None, Some("h2"))), State::Failed);
        assert_eq!(seen("running", member("ready", None, None)), State::Starting);
        assert_eq!(seen("queued", member("ended", Some("suspend"), None)), State::Queued);
        assert_eq!(seen("stopping", member("running", None, None)), State::Stopping);
        assert_eq!(seen("suspended", member("ended", Some("suspend"), None)), State::Suspended);
        assert_eq!(state(&group("queued"), None), State::Queued);
    }
}
