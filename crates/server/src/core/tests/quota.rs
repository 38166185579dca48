//! Quotas, priorities and emptied nodes, as the core sees them.

use muster_api::quota::{ChangeQuota, ChangeUserQuota};
use muster_model::Reason;
use muster_model::quota::Quota;

use super::*;
use crate::core::{QueueAsked, QuotaAsked, QuotaChange};

impl Fixture {
    fn change_quota(&mut self, change: QuotaChange) -> Result<(), Problem> {
        let (reply, mut answer) = oneshot::channel();
        self.turn(Input::ChangeQuota(Box::new(change), reply));
        answer.try_recv().unwrap()
    }

    fn bound(&mut self, workspace: &str, slots_worth: u64) {
        let cpu_millis = Some(Quota::fixed(slots_worth));
        let change = ChangeQuota { cpu_millis, ..ChangeQuota::default() };
        self.change_quota(QuotaChange::Workspace(workspace.into(), change)).unwrap();
    }

    fn queued(&mut self) -> Vec<(Option<u64>, JobId, String)> {
        let asked =
            QueueAsked { sight: muster_store::Sight::All, workspace: None, user: None, on: None, limit: 10 };
        let (reply, mut answer) = oneshot::channel();
        self.turn(Input::Queue(Box::new(asked), reply));
        let page = answer.try_recv().unwrap().unwrap();
        page.items.into_iter().map(|one| (one.position, one.job, one.code)).collect()
    }

    fn reprioritise(&mut self, job: &JobId, priority: u32) {
        let (reply, mut answer) = oneshot::channel();
        self.turn(Input::Reprioritise(job.clone(), priority, reply));
        answer.try_recv().unwrap().unwrap();
    }
}

fn one(workspace: &str) -> serde_json::Value {
    json!({ "command": ["true"], "workspace": workspace, "resources": { "cpus": 1 } })
}

#[test]
fn a_workspace_gets_no_more_than_its_quota_also_after_a_restart() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    fixture.bound("vision", 1000);
    let first = fixture.submit(one("vision"));
    let second = fixture.submit(one("vision"));
    let other = fixture.submit(one("nlp"));
    assert_eq!(
        [&first, &second, &other].map(|job| fixture.state(job)),
        [State::Starting, State::Queued, State::Starting]
    );
    let mut fixture = fixture.restart();
    let _messages = fixture.connect("a", vec![]);
    assert_eq!(fixture.queued(), [(Some(1), second.clone(), "out_of_quota".into())]);
    fixture.change_quota(QuotaChange::ClearWorkspace("vision".into())).unwrap();
    assert_eq!(fixture.state(&second), State::Starting);
}

#[test]
fn a_job_for_another_scheduler_waits_for_its_quota_and_not_for_nodes() {
    let mut fixture = Fixture::new();
    fixture.bound("vision", 1000);
    let on_cluster = || {
        let mut spec = one("vision");
        spec["on"] = json!("slurm/gpu");
        spec
    };
    let _first = fixture.submit(on_cluster());
    let second = fixture.submit(on_cluster());
    let why = fixture.why(&second);
    assert_eq!(why.code, "out_of_quota", "{why:?}");
    let queued = fixture.queued();
    let (_, _, code) = queued.iter().find(|(_, job, _)| *job == second).expect("it is in the queue");
    assert_eq!(code, "out_of_quota");
}

#[test]
fn the_queue_has_also_what_waits_at_another_scheduler() {
    let mut fixture = Fixture::new();
    let spec = json!({ "command": ["true"], "on": "slurm/gpu", "nodes": 2 });
    let job = fixture.submit(spec);
    let attempt = task(&job, 1, 0).attempt;
    let here = fixture.submit(one("vision"));
    let starts_at = now() + Duration::from_secs(300);
    let wait = muster_engine::Wait {
        code: "behind_others",
        summary: "jobs with a higher priority in Slurm go first".into(),
        help: None,
        starts_at: Some(starts_at),
    };
    let observed = muster_engine::Status::Waiting(wait).into();
    fixture.turn(Input::Delegated { attempt, news: News::Observed(observed) });
    let asked = |on: Option<&str>, limit| QueueAsked {
        sight: muster_store::Sight::All,
        workspace: None,
        user: None,
        on: on.map(str::to_owned),
        limit,
    };
    let queue = fixture.core.queue_view(&asked(None, 10));
    assert_eq!(queue.waiting, 2);
    assert_eq!([&queue.items[0].job, &queue.items[1].job], [&here, &job]);
    let there = &queue.items[1];
    assert_eq!((there.position, there.code.as_str(), there.nodes), (None, "behind_others", 2));
    assert_eq!((there.on.as_str(), there.starts_at), ("slurm/gpu", Some(starts_at)));
    assert_eq!(fixture.core.queue_view(&asked(None, 1)).items.len(), 1);
    assert_eq!(fixture.core.queue_view(&asked(Some("slurm/gpu"), 10)).items.len(), 1);
    assert_eq!(fixture.core.queue_view(&asked(Some("slurm/main"), 10)).items.len(), 0);
}

#[test]
fn what_everybody_may_run_is_counted_for_each() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let most = |most| ChangeUserQuota { max_running: Some(most), weight: None };
    fixture.change_quota(QuotaChange::User("*".into(), most(1))).unwrap();
    let jobs = [(); 3].map(|()| fixture.submit(one("vision")));
    assert_eq!(fixture.queued().len(), 2);
    fixture.change_quota(QuotaChange::User("me".into(), most(2))).unwrap();
    assert_eq!(jobs.map(|job| fixture.state(&job)), [State::Starting, State::Starting, State::Queued]);
    let asked = QuotaAsked {
        sight: muster_store::Sight::All,
        user: "me".into(),
        is_admin: false,
        only: None,
        workspace: Some("vision".into()),
    };
    let (view, _) = fixture.core.quota_view(&asked);
    assert_eq!((view.max_running, view.users[0].running), (Some(1), 2));
    assert_eq!(view.workspaces[0].resources[0].used, 2000);
    let wrong = ChangeUserQuota { weight: Some(-1.0), max_running: None };
    let refused = fixture.change_quota(QuotaChange::User("me".into(), wrong)).unwrap_err();
    assert_eq!(refused.errors[0].field, "weight");
}

#[test]
fn another_priority_is_another_place_and_is_remembered() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    fixture.bound("vision", 1000);
    fixture.submit(one("vision"));
    let jobs = [(); 3].map(|()| fixture.submit(one("vision")));
    fixture.reprioritise(&jobs[2], 900);
    let order =
        |fixture: &mut Fixture| fixture.queued().into_iter().map(|(_, job, _)| job).collect::<Vec<_>>();
    let expected = [&jobs[2], &jobs[0], &jobs[1]].map(Clone::clone);
    assert_eq!(order(&mut fixture), expected);
    let mut fixture = fixture.restart();
    assert_eq!(order(&mut fixture), expected);
    let stored = |job| fixture.core.parts.readers.job(job).unwrap().unwrap();
    assert_eq!((stored(&jobs[2]).spec.priority, stored(&jobs[0]).spec.priority), (900, 500));
}

#[test]
fn what_runs_on_a_node_that_is_emptied_goes_elsewhere_and_keeps_its_retries() {
    let mut fixture = Fixture::new();
    let mut messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "command": ["true"], "retries": 1 }));
    fixture.say(ToServer::Ready { task: task(&job, 1, 0), address: address(1) });
    fixture.say(ToServer::Started { task: task(&job, 1, 0), at: now() });
    assert_eq!(fixture.state(&job), State::Running);
    all(&mut messages);
    let (reply, _answer) = oneshot::channel();
    fixture.turn(Input::Drain { node: "local".into(), drained: true, evict: true, reply });
    assert_eq!(fixture.state(&job), State::Stopping);
    let told = all(&mut messages);
    let is_notice =
        |message: &ToAgent| matches!(message, ToAgent::Stop { reason, .. } if reason == "displaced");
    assert!(told.iter().any(is_notice), "{told:?}");
    fixture.say(ended(task(&job, 1, 0), None));
    let stored = fixture.core.parts.readers.job(&job).unwrap().unwrap().job;
    assert_eq!((stored.state, stored.retried), (State::Queued, 0));
    assert!(matches!(stored.reason, Some(Reason::Displaced { .. })), "{:?}", stored.reason);
    let (reply, _answer) = oneshot::channel();
    fixture.turn(Input::Drain { node: "local".into(), drained: false, evict: false, reply });
    assert_eq!((fixture.state(&job), fixture.core.jobs[&job].job.attempt), (State::Starting, 2));
}
