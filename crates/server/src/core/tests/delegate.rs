//! Jobs at somebody else's scheduler, turn by turn: what the core says to the delegate, what it hears, and what agents say.

mod account;

use muster_engine::{Observed, Status, TimeLimit, Verdict, Wait};
use muster_model::account::UserState;
use muster_model::job::Event;
use muster_model::launch::Work;
use muster_model::node::{Device, Vendor};
use muster_model::reason::TimeLimitSource;
use muster_model::{Reason, TaskPhase};

use super::*;
use crate::delegate::{News, Word as Task};

/// An agent of a gang.
struct Agent {
    node: NodeId,
    connection: ConnectionId,
    messages: mpsc::Receiver<ToAgent>,
}

impl Fixture {
    fn submit_to_cluster(&mut self, nodes: u32, retries: u32) -> JobId {
        self.submit(json!({ "command": ["true"], "on": "slurm/gpu", "nodes": nodes, "retries": retries }))
    }

    /// What the delegate was told, in short.
    fn asked(&mut self) -> Vec<String> {
        let short = |word| match word {
            Task::HandOver { attempt, nodes, .. } => {
                format!("hand over {} of {}", attempt.number, nodes.len())
            }
            Task::Watch { attempt, .. } => format!("watch {}", attempt.number),
            Task::Look(attempt) => format!("look {}", attempt.number),
            Task::TakeBack { attempt, .. } => format!("take back {}", attempt.number),
            Task::Salvage { attempt, .. } => format!("salvage {}", attempt.number),
            Task::Closed { attempt, .. } => format!("closed {}", attempt.number),
            Task::Remove { .. } => "remove".into(),
        };
        std::iter::from_fn(|| self.delegated.try_recv().ok()).map(short).collect()
    }

    fn hear(&mut self, attempt: &AttemptId, news: News) {
        self.turn(Input::Delegated { attempt: attempt.clone(), news });
        self.again();
    }

    fn see(&mut self, attempt: &AttemptId, status: Status) {
        let observed =
            Observed { status, external: Some("17".into()), hosts: vec!["n1".into(), "n2".into()] };
        self.hear(attempt, News::Observed(observed));
    }

    fn come(&mut self, task: &TaskId, reports: Vec<TaskReport>) -> Agent {
        self.connection += 1;
        let (outbox, messages) = mpsc::channel(100);
        let node = self.core.allocations[&task.attempt].row.nodes[task.rank as usize].clone();
        let device = Device {
            index: 3,
            vendor: Vendor::Nvidia,
            model: "H100".into(),
            uuid: "GPU-3".into(),
            memory_bytes: 1 << 30,
            simulated: true,
            ip: None,
        };
        let hello = Hello {
            protocol: PROTOCOL,
            version: "1".into(),
            build: "other".into(),
            node: node.clone(),
            incarnation: format!("of {node}"),
            pid: 1,
            host: format!("n{}", task.rank + 1),
            capacity: Capacity { cpu_millis: 4000, memory_bytes: 1 << 30, slots: 4, devices: vec![device] },
            account: Default::default(),
            tasks: reports,
        };
        let connection = ConnectionId(self.connection);
        self.turn(Input::AgentConnected { connection, hello: Box::new(hello), outbox, is_tcp: false });
        Agent { node, connection, messages }
    }

    fn tell(&mut self, agent: &Agent, message: ToServer) {
        self.turn(Input::AgentSaid { connection: agent.connection, node: agent.node.clone(), message });
    }

    fn go(&mut self, agent: Agent) {
        self.turn(Input::AgentGone { connection: agent.connection, node: agent.node });
    }

    /// A gang of one that runs, with its agent.
    fn run_one(&mut self, retries: u32) -> (TaskId, Agent) {
        let job = self.submit_to_cluster(1, retries);
        self.run_only(&job)
    }

    fn run_only(&mut self, job: &JobId) -> (TaskId, Agent) {
        let task = task(job, 1, 0);
        self.hear(&task.attempt, News::Accepted { external: Some("17".into()) });
        let agent = self.come(&task, Vec::new());
        self.start_on(&agent, &task);
        self.asked();
        (task, agent)
    }

    fn start_on(&mut self, agent: &Agent, task: &TaskId) {
        self.tell(agent, ToServer::Ready { task: task.clone(), address: address(1) });
        self.tell(agent, ToServer::Started { task: task.clone(), at: now() });
    }

    fn reason(&self, job: &JobId) -> Option<Reason> {
        self.core.parts.readers.job(job).unwrap().unwrap().job.reason
    }

    fn is_kept(&self) -> bool {
        !self.core.parts.readers.open_allocations().unwrap().is_empty()
    }

    /// Another turn, without anything new.
    fn again(&mut self) {
        self.core.turn(std::iter::empty());
    }
}

fn over(task: &TaskId, failure: Option<Reason>) -> TaskReport {
    let phase = ReportPhase::Ended {
        end: TaskEnd::new(failure, Some(0)),
        at: now(),
        started_at: Some(now()),
        address: Some(address(1)),
    };
    TaskReport { task: task.clone(), phase }
}

#[test]
fn outputs_of_a_script_are_not_written_to_a_folder_of_a_cluster_elsewhere() {
    let mut fixture = Fixture::new();
    let job = fixture.submit(json!({ "command": ["job.sh"], "on": "slurm/gpu", "workdir": "/home/me/code",
        "batch": { "script": "#!/bin/sh\n", "output": "out/x.txt" }, "faces": ["slurm"] }));
    let first = task(&job, 1, 0);
    fixture.hear(&first.attempt, News::Accepted { external: Some("17".into()) });
    let mut agent = fixture.come(&first, Vec::new());
    fixture.tell(&agent, ToServer::Ready { task: first, address: address(1) });
    let said = all(&mut agent.messages);
    let launched = said.iter().find_map(|m| if let ToAgent::Launch(l) = m { Some(l) } else { None }).unwrap();
    let Work::Run(processes) = &launched.work else { panic!("{:?}", launched.work) };
    assert_eq!(processes[0].argv, ["muster-batch", "--output=out/x.txt", "--", "/muster/slurm_script"]);
}

fn waiting(summary: &str) -> Status {
    Status::Waiting(Wait {
        code: "no_capacity",
        summary: summary.into(),
        help: None,
        starts_at: Some(Timestamp::UNIX_EPOCH),
    })
}

#[test]
fn a_gang_waits_in_the_other_queue_with_that_queues_words() {
    let mut fixture = Fixture::new();
    let job = fixture.submit_to_cluster(2, 0);
    let attempt = task(&job, 1, 0).attempt;
    assert_eq!((fixture.state(&job), fixture.asked()), (State::Queued, vec!["hand over 1 of 2".into()]));
    assert_eq!(fixture.why(&job).summary, "handed over to slurm/gpu");
    assert!(fixture.core.node_views().iter().all(|node| node.id == super::node()), "its places are no nodes");
    fixture.hear(&attempt, News::Accepted { external: Some("17".into()) });
    assert!(fixture.why(&job).summary.contains("17"));
    fixture.see(&attempt, waiting("waits for 4 other jobs"));
    let why = fixture.why(&job);
    assert_eq!((why.code.as_str(), why.summary.as_str()), ("no_capacity", "waits for 4 other jobs"));
    assert_eq!(why.starts_at, Some(Timestamp::UNIX_EPOCH));
    fixture.again();
    assert_eq!(fixture.asked(), Vec::<String>::new(), "nothing is done twice");
    let row = fixture.core.parts.readers.open_allocations().unwrap().remove(0);
    assert_eq!((row.external.as_deref(), row.hosts.len()), (Some("17"), 2));
}

#[test]
fn a_gang_runs_when_its_agents_have_come_and_leaves_nothing() {
    let mut fixture = Fixture::new();
    let job = fixture.submit_to_cluster(2, 0);
    let tasks = [task(&job, 1, 0), task(&job, 1, 1)];
    fixture.hear(&tasks[0].attempt, News::Accepted { external: Some("17".into()) });
    let mut agents = tasks.each_ref().map(|task| fixture.come(task, Vec::new()));
    for agent in &mut agents {
        let said = all(&mut agent.messages);
        assert!(
            matches!(&said[..], [ToAgent::Welcome { .. }, ToAgent::Prepare(p)] if p.devices == [3]),
            "{said:?}"
        );
    }
    assert_eq!(fixture.state(&job), State::Queued);
    for (agent, task) in agents.iter().zip(&tasks) {
        fixture.tell(agent, ToServer::Ready { task: task.clone(), address: address(task.rank as u8) });
    }
    assert_eq!(fixture.state(&job), State::Starting);
    for (agent, task) in agents.iter_mut().zip(&tasks) {
        assert!(matches!(&all(&mut agent.messages)[..], [ToAgent::Launch(_)]));
        fixture.tell(agent, ToServer::Started { task: task.clone(), at: now() });
    }
    assert_eq!(fixture.state(&job), State::Running);
    for (agent, task) in agents.iter().zip(&tasks) {
        fixture.tell(agent, ended(task.clone(), None));
    }
    assert_eq!(fixture.state(&job), State::Succeeded);
    fixture.again();
    for agent in &mut agents {
        let said = all(&mut agent.messages);
        assert!(matches!(&said[..], [ToAgent::Forget { .. }, ToAgent::Shutdown]), "{said:?}");
    }
    assert!(fixture.is_kept());
    fixture.asked();
    agents.into_iter().for_each(|agent| fixture.go(agent));
    fixture.see(&tasks[0].attempt, Status::Ended(Verdict::Completed));
    assert!(!fixture.is_kept());
    assert_eq!(fixture.asked().last().unwrap(), "closed 1");
    assert_eq!(fixture.core.nodes.len(), 1);
    let shown = fixture.core.parts.readers.allocations(&job).unwrap();
    assert_eq!(shown[0].external.as_deref(), Some("17"), "what it had is remembered");
    let events = fixture.core.parts.readers.events(Some(&job), 0, 100).unwrap();
    let starting = events.iter().find(|event| event.kind == "starting").unwrap();
    assert_eq!(starting.body["tasks"][1]["node"], "n2", "people are told of machines");
}

#[test]
fn what_does_not_end_by_itself_is_taken_back_within_seconds() {
    let mut fixture = Fixture::new();
    let (task, agent) = fixture.run_one(0);
    fixture.tell(&agent, ended(task.clone(), Some(Reason::exited(3))));
    assert_eq!(fixture.state(&task.attempt.job), State::Failed);
    fixture.again();
    fixture.go(agent);
    fixture.later(Duration::from_secs(6));
    assert!(fixture.asked().contains(&"take back 1".into()));
    fixture.hear(&task.attempt, News::TakenBack);
    assert!(!fixture.is_kept());
}

#[test]
fn an_agent_that_never_finishes_sending_does_not_keep_its_place() {
    let mut fixture = Fixture::new();
    let (task, mut agent) = fixture.run_one(0);
    let end = TaskEnd::new(None, Some(1 << 20));
    fixture.tell(&agent, ToServer::Ended { task: task.clone(), end, at: now() });
    fixture.again();
    assert!(!all(&mut agent.messages).contains(&ToAgent::Shutdown), "its log is not here");
    fixture.later(Duration::from_secs(31));
    assert_eq!(fixture.asked(), ["take back 1"]);
    fixture.go(agent);
    fixture.hear(&task.attempt, News::TakenBack);
    assert!(fixture.asked().contains(&"salvage 1".into()), "the rest is read from the disk");
    assert!(fixture.is_kept());
    fixture.later(Duration::from_secs(91));
    assert!(!fixture.is_kept(), "what nobody can tell is not waited for");
}

#[test]
fn files_that_go_with_their_place_are_sent_for_as_long_as_that_takes_within_reason() {
    let mut fixture = Fixture::new();
    let spec = json!({ "command": ["true"], "on": "k8s", "outputs": ["@output/**"] });
    for is_sent in [true, false] {
        let job = fixture.submit(spec.clone());
        let (task, mut agent) = fixture.run_only(&job);
        fixture.tell(&agent, ended(task.clone(), None));
        fixture.again();
        for seconds in (0..3600).step_by(20) {
            fixture.later(Duration::from_secs(seconds));
        }
        assert_eq!(fixture.asked(), Vec::<String>::new(), "it is there, and sends");
        if is_sent {
            fixture.tell(&agent, collected(task.clone()));
            fixture.again();
            assert!(all(&mut agent.messages).contains(&ToAgent::Shutdown));
            fixture.go(agent);
            fixture.see(&task.attempt, Status::Ended(Verdict::Completed));
        } else {
            fixture.later(Duration::from_secs(3601));
            assert_eq!(fixture.asked(), ["take back 1"], "nobody waits for ever");
            fixture.go(agent);
            fixture.hear(&task.attempt, News::TakenBack);
            fixture.later(Duration::from_secs(3700));
            let outputs = fixture.core.parts.readers.outputs(&job, 1).unwrap();
            assert!(matches!(&outputs[&0], Outputs::Failed { message } if message.contains("volume")));
        }
        assert!(!fixture.is_kept());
    }
}

#[test]
fn a_gang_that_waits_is_taken_back_when_it_is_stopped() {
    let mut fixture = Fixture::new();
    let job = fixture.submit_to_cluster(2, 3);
    fixture.asked();
    let (reply, mut answer) = oneshot::channel();
    fixture.turn(Input::Job(job.clone(), Event::Stop { grace: None }, reply));
    answer.try_recv().unwrap().unwrap();
    assert_eq!((fixture.state(&job), fixture.asked()), (State::Stopping, vec!["take back 1".into()]));
    fixture.hear(&task(&job, 1, 0).attempt, News::TakenBack);
    assert_eq!((fixture.state(&job), fixture.is_kept()), (State::Stopped, false));
}

#[test]
fn why_a_place_was_taken_back_is_what_the_scheduler_says() {
    let by = Some("root".to_owned());
    let verdicts = [
        (Verdict::Cancelled { by: by.clone() }, Reason::CancelledOutside { by }),
        (Verdict::OutOfMemory, Reason::OutOfMemory),
        (Verdict::NodeFailed { node: Some("n7".into()) }, Reason::NodeLost { node: "n7".into() }),
        (
            Verdict::TimeLimit { limit: None },
            Reason::Timeout { limit_ms: 0, set_by: TimeLimitSource::Cluster },
        ),
        (Verdict::Refused { message: "no".into() }, Reason::Refused { message: "no".into() }),
        (Verdict::ImagePull { message: "no".into() }, Reason::ImagePullFailed { message: "no".into() }),
        (Verdict::Completed, Reason::Evicted),
        (Verdict::Unknown, Reason::Evicted),
    ];
    for (verdict, reason) in verdicts {
        let mut fixture = Fixture::new();
        let (task, agent) = fixture.run_one(0);
        let job = &task.attempt.job;
        fixture.tell(&agent, ended(task.clone(), Some(Reason::Evicted)));
        assert_eq!((fixture.state(job), fixture.asked()), (State::Running, vec!["look 1".into()]));
        fixture.see(&task.attempt, Status::Running);
        assert_eq!(fixture.state(job), State::Running);
        fixture.later(Duration::from_secs(3));
        assert_eq!(fixture.asked(), ["look 1"], "it is asked again");
        fixture.see(&task.attempt, Status::Ended(verdict));
        assert_eq!((fixture.state(job), fixture.reason(job)), (State::Failed, Some(reason)));
    }
}

#[test]
fn a_time_limit_is_the_jobs_own_or_the_one_that_the_scheduler_gave_it() {
    let given = |seconds, set_by| Some(TimeLimit { span: Duration::from_secs(seconds), set_by });
    let (job, cluster) = (TimeLimitSource::Job, TimeLimitSource::Cluster);
    let default = TimeLimitSource::PartitionDefault;
    for (timeout, limit, (seconds, set_by)) in [
        (None, given(120, default), (120, default)),
        (None, given(90, cluster), (90, cluster)),
        (Some("5m"), given(300, TimeLimitSource::PartitionLimit), (300, job)),
        (Some("1m"), given(120, cluster), (60, job)),
        (Some("1m"), None, (60, job)),
        // An administrator has shortened it.
        (Some("5m"), given(60, cluster), (60, cluster)),
    ] {
        let mut fixture = Fixture::new();
        let job = fixture.submit(json!({ "command": ["true"], "on": "slurm/gpu", "timeout": timeout }));
        let (task, agent) = fixture.run_only(&job);
        fixture.tell(&agent, ended(task.clone(), Some(Reason::Evicted)));
        fixture.see(&task.attempt, Status::Ended(Verdict::TimeLimit { limit }));
        let expected = Reason::Timeout { limit_ms: seconds * 1000, set_by };
        assert_eq!(fixture.reason(&job), Some(expected), "{timeout:?} {limit:?}");
    }
}

#[test]
fn who_was_preempted_there_waits_again_and_who_got_no_verdict_was_evicted() {
    let mut fixture = Fixture::new();
    let (task, agent) = fixture.run_one(0);
    fixture.tell(&agent, ended(task.clone(), Some(Reason::Evicted)));
    fixture.see(&task.attempt, Status::Ended(Verdict::Preempted));
    let job = &task.attempt.job;
    assert_eq!((fixture.state(job), fixture.reason(job)), (State::Queued, Some(Reason::Preempted)));
    let mut fixture = Fixture::new();
    let (task, agent) = fixture.run_one(0);
    fixture.tell(&agent, ended(task.clone(), Some(Reason::Evicted)));
    let message = String::from("n1 is drained");
    fixture.see(&task.attempt, Status::Ended(Verdict::Evicted { message: message.clone() }));
    let job = &task.attempt.job;
    assert_eq!(
        (fixture.state(job), fixture.reason(job)),
        (State::Queued, Some(Reason::Displaced { message }))
    );
    let mut fixture = Fixture::new();
    let (task, agent) = fixture.run_one(0);
    fixture.tell(&agent, ended(task.clone(), Some(Reason::Evicted)));
    fixture.later(Duration::from_secs(31));
    assert_eq!(fixture.reason(&task.attempt.job), Some(Reason::Evicted));
}

#[test]
fn a_gang_whose_allocation_ended_may_still_tell_how() {
    let mut fixture = Fixture::new();
    let (task, agent) = fixture.run_one(0);
    let job = &task.attempt.job;
    fixture.go(agent);
    fixture.see(&task.attempt, Status::Ended(Verdict::TimeLimit { limit: None }));
    assert_eq!(
        (fixture.state(job), fixture.asked()),
        (State::Running, vec!["look 1".into(), "salvage 1".into()])
    );
    let _agent = fixture.come(&task, vec![over(&task, None)]);
    assert_eq!(fixture.state(job), State::Succeeded, "it had ended before");

    let mut fixture = Fixture::new();
    let (task, agent) = fixture.run_one(0);
    let job = &task.attempt.job;
    fixture.go(agent);
    fixture.see(&task.attempt, Status::Ended(Verdict::OutOfMemory));
    let _agent = fixture.come(&task, vec![over(&task, Some(Reason::SupervisorLost))]);
    assert_eq!(fixture.reason(job), Some(Reason::OutOfMemory), "nobody there knows better");
}

#[test]
fn who_stays_silent_after_the_end_has_ended_as_the_scheduler_says() {
    for (verdict, reason) in [
        (Verdict::NodeFailed { node: None }, Reason::NodeLost { node: "n1".into() }),
        (Verdict::Cancelled { by: None }, Reason::CancelledOutside { by: None }),
        (Verdict::Unknown, Reason::NodeLost { node: "n1".into() }),
    ] {
        let mut fixture = Fixture::new();
        let (task, agent) = fixture.run_one(0);
        fixture.go(agent);
        fixture.see(&task.attempt, Status::Ended(verdict));
        fixture.later(Duration::from_secs(19));
        assert_eq!(fixture.state(&task.attempt.job), State::Running);
        fixture.later(Duration::from_secs(21));
        assert_eq!(fixture.reason(&task.attempt.job), Some(reason));
        fixture.again();
        assert!(!fixture.is_kept(), "it is over there, and nothing is owed");
    }
}

#[test]
fn a_lost_node_is_the_one_that_fell_silent() {
    let mut fixture = Fixture::new();
    let job = fixture.submit_to_cluster(2, 0);
    let tasks = [task(&job, 1, 0), task(&job, 1, 1)];
    let attempt = &tasks[0].attempt;
    fixture.hear(attempt, News::Accepted { external: Some("17".into()) });
    let [first, second] = tasks.each_ref().map(|task| fixture.come(task, Vec::new()));
    for (agent, task) in [&first, &second].into_iter().zip(&tasks) {
        fixture.tell(agent, ToServer::Ready { task: task.clone(), address: address(task.rank as u8) });
    }
    for (agent, task) in [&first, &second].into_iter().zip(&tasks) {
        fixture.tell(agent, ToServer::Started { task: task.clone(), at: now() });
    }
    // The second node is off. Slurm ends what runs on the first, whose agent says so and leaves.
    fixture.go(second);
    fixture.tell(&first, ended(tasks[0].clone(), Some(Reason::Evicted)));
    fixture.go(first);
    fixture.see(attempt, Status::Ended(Verdict::NodeFailed { node: None }));
    fixture.later(Duration::from_secs(21));
    assert_eq!(fixture.state(&job), State::Failed);
    assert_eq!(fixture.reason(&job), Some(Reason::NodeLost { node: "n2".into() }));
}

#[test]
fn a_gang_that_ended_before_its_agents_came_has_a_reason_of_its_own() {
    let mut fixture = Fixture::new();
    let job = fixture.submit_to_cluster(2, 0);
    let message = "prolog failed on n1".to_owned();
    fixture.see(&task(&job, 1, 0).attempt, Status::Ended(Verdict::Failed { message: message.clone() }));
    assert_eq!(fixture.reason(&job), Some(Reason::AllocationFailed { message }));
    assert_eq!((fixture.state(&job), fixture.is_kept()), (State::Failed, false));
}

#[test]
fn a_gang_of_which_nothing_has_run_is_handed_over_again_at_no_cost() {
    for status in [Status::Ended(Verdict::Completed), Status::Ended(Verdict::Unknown), Status::Gone] {
        let mut fixture = Fixture::new();
        let job = fixture.submit_to_cluster(2, 0);
        let attempt = task(&job, 1, 0).attempt;
        fixture.hear(&attempt, News::Accepted { external: Some("17".into()) });
        fixture.see(&attempt, waiting("waits"));
        fixture.see(&attempt, status.clone());
        assert!(matches!(fixture.reason(&job), Some(Reason::AllocationLapsed { .. })), "{status:?}");
        assert_eq!(fixture.state(&job), State::Queued);
        fixture.again();
        assert!(fixture.asked().contains(&"hand over 2 of 2".into()), "{status:?}");
        assert_eq!(fixture.core.jobs[&job].job.retried, 0);
    }
    // Agents that were seen to have begun, and never came, do not find the way; another attempt would not, either.
    let mut fixture = Fixture::new();
    let job = fixture.submit_to_cluster(1, 0);
    let attempt = task(&job, 1, 0).attempt;
    fixture.see(&attempt, Status::Running);
    fixture.see(&attempt, Status::Ended(Verdict::Completed));
    assert!(matches!(fixture.reason(&job), Some(Reason::AllocationFailed { .. })));
    assert_eq!(fixture.state(&job), State::Failed);
}

#[test]
fn agents_that_left_before_anything_began_do_not_cost_an_attempt() {
    let mut fixture = Fixture::new();
    let job = fixture.submit_to_cluster(2, 0);
    let tasks = [task(&job, 1, 0), task(&job, 1, 1)];
    let attempt = &tasks[0].attempt;
    fixture.hear(attempt, News::Accepted { external: Some("17".into()) });
    let agent = fixture.come(&tasks[0], Vec::new());
    fixture.tell(&agent, ToServer::Ready { task: tasks[0].clone(), address: address(1) });
    fixture.go(agent);
    fixture.see(attempt, Status::Ended(Verdict::Completed));
    let _agent = fixture.come(
        &tasks[0],
        vec![TaskReport {
            task: tasks[0].clone(),
            phase: ReportPhase::Ended {
                end: TaskEnd::new(Some(Reason::Evicted), Some(0)),
                at: now(),
                started_at: None,
                address: Some(address(1)),
            },
        }],
    );
    fixture.later(Duration::from_secs(21));
    assert!(matches!(fixture.reason(&job), Some(Reason::AllocationLapsed { .. })));
    assert_eq!(fixture.core.jobs[&job].job.retried, 0);
}

#[test]
fn what_keeps_the_last_attempt_from_being_taken_back_is_said() {
    let mut fixture = Fixture::new();
    let (task, agent) = fixture.run_one(1);
    fixture.tell(&agent, ended(task.clone(), Some(Reason::exited(3))));
    fixture.again();
    fixture.go(agent);
    fixture.later(Duration::from_secs(6));
    fixture.hear(&task.attempt, News::Lingering { message: "n1 does not answer".into() });
    let why = fixture.why(&task.attempt.job);
    assert_eq!((why.code.as_str(), why.constraint.as_deref()), ("closing", Some("n1 does not answer")));
}

#[test]
fn the_next_attempt_waits_until_nothing_is_left_of_the_last() {
    let mut fixture = Fixture::new();
    let (task, agent) = fixture.run_one(1);
    let job = task.attempt.job.clone();
    fixture.tell(&agent, ended(task.clone(), Some(Reason::exited(3))));
    assert_eq!(fixture.state(&job), State::Queued);
    fixture.again();
    assert_eq!(fixture.why(&job).code, "closing");
    let mut fixture = fixture.restart();
    assert_eq!(fixture.asked(), ["watch 1"]);
    fixture.again();
    fixture.later(Duration::from_secs(6));
    assert_eq!(fixture.asked().last().unwrap(), "take back 1");
    fixture.hear(&task.attempt, News::TakenBack);
    fixture.again();
    let mut asked = fixture.asked();
    asked.sort_unstable();
    assert_eq!(asked, ["closed 1", "hand over 2 of 1"]);
    fixture.tell(&agent, ended(task, None));
    assert_eq!(
        fixture.core.jobs[&job].job.tasks[0].phase,
        TaskPhase::Assigned,
        "the first attempt is nobody's"
    );
}

#[test]
fn a_server_may_be_killed_at_every_step() {
    for killed_before in 0..9 {
        let mut fixture = Fixture::new();
        let job = fixture.submit_to_cluster(1, 0);
        let task = task(&job, 1, 0);
        let mut agent: Option<Agent> = None;
        let mut phase = Vec::new();
        for step in 0..9 {
            if step == killed_before {
                fixture = fixture.restart();
                fixture.again();
                let words = fixture.asked();
                let expected = if step == 0 { "hand over 1 of 1" } else { "watch 1" };
                let is_kept = fixture.is_kept();
                assert_eq!(words.first().map(String::as_str), is_kept.then_some(expected), "step {step}");
                agent = agent.is_some().then(|| fixture.come(&task, phase.clone()));
            }
            let report = |phase| vec![TaskReport { task: task.clone(), phase }];
            match step {
                0 => fixture.hear(&task.attempt, News::Accepted { external: Some("17".into()) }),
                1 => fixture.see(&task.attempt, waiting("waits")),
                2 => fixture.see(&task.attempt, Status::Running),
                3 => agent = Some(fixture.come(&task, Vec::new())),
                4 => {
                    fixture.tell(
                        agent.as_ref().unwrap(),
                        ToServer::Ready { task: task.clone(), address: address(1) },
                    );
                    phase = report(ReportPhase::Ready { address: address(1) });
                }
                5 => {
                    fixture
                        .tell(agent.as_ref().unwrap(), ToServer::Started { task: task.clone(), at: now() });
                    phase = report(ReportPhase::Running { at: now(), address: Some(address(1)) });
                }
                6 => {
                    fixture.tell(agent.as_ref().unwrap(), ended(task.clone(), None));
                    phase = vec![over(&task, None)];
                }
                7 => {
                    fixture.again();
                    agent.take().into_iter().for_each(|agent| fixture.go(agent));
                }
                _ => fixture.see(&task.attempt, Status::Ended(Verdict::Completed)),
            }
        }
        fixture.again();
        assert_eq!(fixture.state(&job), State::Succeeded, "killed before {killed_before}");
        fixture.later(Duration::from_secs(6));
        assert!(!fixture.is_kept(), "killed before {killed_before}");
        let attempts = fixture.core.parts.readers.attempts(&job).unwrap();
        assert_eq!(attempts.len(), 1, "nothing ran twice");
    }
}

#[test]
fn an_agent_is_not_lost_while_nobody_can_say_whether_its_allocation_goes_on() {
    let mut fixture = Fixture::new();
    let (task, agent) = fixture.run_one(0);
    let job = &task.attempt.job;
    fixture.go(agent);
    fixture.asked();
    fixture.later(Duration::from_secs(3600));
    assert_eq!((fixture.state(job), fixture.asked()), (State::Running, vec!["look 1".into()]));
    fixture.see(&task.attempt, Status::Running);
    assert_eq!(fixture.state(job), State::Running, "it has a moment to come back");
    fixture.later(Duration::from_secs(6));
    assert_eq!(fixture.reason(job), Some(Reason::NodeLost { node: "n1".into() }));
    fixture.again();
    fixture.later(Duration::from_secs(20));
    assert!(fixture.asked().contains(&"take back 1".into()), "it does not keep its place");
}

#[test]
fn a_hand_over_that_is_not_written_has_not_happened() {
    let mut fixture = Fixture::new();
    let job = fixture.submit_to_cluster(1, 0);
    let (reply, _answer) = oneshot::channel();
    fixture.turn(Input::Job(job.clone(), Event::Stop { grace: None }, reply));
    fixture.hear(&task(&job, 1, 0).attempt, News::TakenBack);
    let other = fixture.core.try_hand_over_unwritten(&mut fixture.delegated);
    assert!(other, "nothing was said, and nothing is kept");
    assert_eq!((fixture.core.nodes.len(), fixture.core.allocations.len()), (1, 0));
}

impl Core {
    /// Submits a job in a batch that cannot be written; whether nothing came of it.
    fn try_hand_over_unwritten(&mut self, delegated: &mut mpsc::UnboundedReceiver<Task>) -> bool {
        while delegated.try_recv().is_ok() {}
        let (reply, mut answer) = oneshot::channel();
        let submission = Submission {
            spec: JobSpec::from_value(json!({ "command": ["true"], "on": "slurm/gpu" })).unwrap(),
            owner: "me".into(),
            bundle: None,
            source: None,
            environment: None,
            idempotency: None,
            sight: muster_store::Sight::All,
        };
        let mut batch = Batch::default();
        self.handle(Input::Submit(Box::new(submission), reply), &mut batch, now());
        self.schedule(&mut batch, now());
        assert_eq!(self.allocations.len(), 1);
        let nobody = JobId::from_random(99);
        batch.last.push(Change::Rename { job: nobody, generation: 0, name: "nobody".into() });
        self.commit(batch, now());
        answer.try_recv().unwrap().is_err() && delegated.try_recv().is_err()
    }
}

#[test]
fn what_was_heard_in_a_batch_that_is_not_written_is_heard_again() {
    let mut fixture = Fixture::new();
    let job = fixture.submit_to_cluster(1, 0);
    let attempt = task(&job, 1, 0).attempt;
    let mut batch = Batch::default();
    let news = News::Refused { message: "no".into() };
    fixture.core.handle(Input::Delegated { attempt, news }, &mut batch, now());
    let nobody = JobId::from_random(99);
    batch.last.push(Change::Rename { job: nobody, generation: 0, name: "nobody".into() });
    fixture.core.commit(batch, now());
    assert_eq!(fixture.state(&job), State::Queued);
    fixture.again();
    fixture.again();
    assert_eq!((fixture.state(&job), fixture.is_kept()), (State::Failed, false));
}

#[test]
fn an_allocation_outlives_its_job_when_that_is_removed() {
    let mut fixture = Fixture::new();
    let (task, agent) = fixture.run_one(0);
    fixture.tell(&agent, ended(task.clone(), None));
    fixture.again();
    let (reply, mut answer) = oneshot::channel();
    fixture.turn(Input::Remove(task.attempt.job.clone(), reply));
    answer.try_recv().unwrap().unwrap();
    let mut fixture = fixture.restart();
    assert_eq!(fixture.asked(), ["watch 1"]);
    fixture.again();
    fixture.later(Duration::from_secs(6));
    assert_eq!(fixture.asked().last().unwrap(), "take back 1");
    fixture.hear(&task.attempt, News::TakenBack);
    assert!(!fixture.is_kept());
}

#[test]
fn files_of_an_attempt_that_is_over_can_be_looked_at() {
    let mut fixture = Fixture::new();
    let (task, agent) = fixture.run_one(0);
    fixture.tell(&agent, ended(task.clone(), None));
    fixture.again();
    fixture.go(agent);
    fixture.see(&task.attempt, Status::Ended(Verdict::Completed));
    assert!(!fixture.is_kept());
    fixture.asked();
    let (reply, mut answer) = oneshot::channel();
    fixture.turn(Input::Visit(task.attempt.clone(), reply));
    assert!(answer.try_recv().unwrap().unwrap());
    assert_eq!(fixture.asked(), ["salvage 1"]);
    let mut agent = fixture.come(&task, Vec::new());
    fixture.again();
    assert!(matches!(&all(&mut agent.messages)[..], [ToAgent::Welcome { .. }]), "it is let alone");
    fixture.go(agent);
    fixture.later(Duration::from_secs(121));
    assert_eq!(fixture.core.nodes.len(), 1);
}

#[test]
fn many_jobs_are_handed_over_in_their_order_some_at_a_time() {
    let mut fixture = Fixture::new();
    fixture.core.scheduler = Scheduler::new(Policy { starts_per_pass: 100, ..Policy::default() });
    let submissions = (0..150).map(|_| {
        let submission = Submission {
            spec: JobSpec::from_value(json!({ "command": ["true"], "on": "slurm/gpu" })).unwrap(),
            owner: "me".into(),
            bundle: None,
            source: None,
            environment: None,
            idempotency: None,
            sight: muster_store::Sight::All,
        };
        Input::Submit(Box::new(submission), oneshot::channel().0)
    });
    fixture.core.turn(submissions.collect::<Vec<_>>().into_iter());
    assert_eq!(fixture.asked().len(), 100);
    fixture.again();
    assert_eq!(fixture.asked().len(), 50);
    let why = fixture.core.jobs.values().filter(|live| live.job.is_handed_over()).count();
    assert_eq!(why, 150);
}
