//! Launches that go out before their batch is on disk, and what becomes of them when it never is.

use muster_model::task::TaskPhase;

use super::*;

/// How far a batch comes.
#[derive(Clone, Copy, PartialEq)]
enum Disk {
    /// The server is killed before it is written.
    Never,
    /// It cannot be written.
    Fails,
}

impl Fixture {
    /// A turn whose batch does not reach the disk.
    fn turn_unwritten(&mut self, inputs: Vec<Input>, disk: Disk) {
        let mut batch = Batch::default();
        inputs.into_iter().for_each(|input| self.core.handle(input, &mut batch, now()));
        self.core.schedule(&mut batch, now());
        self.core.launch_ahead(&mut batch);
        if disk == Disk::Fails {
            // A job that is not there cannot be renamed.
            let job = JobId::from_random(99);
            batch.last.push(Change::Rename { job, generation: 0, name: "nobody".into() });
            self.core.commit(batch, now());
        }
    }

    fn said(&self, message: ToServer) -> Input {
        Input::AgentSaid { connection: ConnectionId(self.connection), node: node(), message }
    }

    fn ready(&self, task: &TaskId) -> Input {
        self.said(ToServer::Ready { task: task.clone(), address: place(task) })
    }

    fn phases(&self, job: &JobId) -> Vec<TaskPhase> {
        let stored = self.core.parts.readers.job(job).unwrap().unwrap();
        stored.job.tasks.iter().map(|task| task.phase).collect()
    }
}

fn place(task: &TaskId) -> Address {
    address(task.rank as u8 + 1)
}

fn running(task: &TaskId) -> TaskReport {
    TaskReport { task: task.clone(), phase: ReportPhase::Running { at: now(), address: Some(place(task)) } }
}

fn waiting(task: &TaskId) -> TaskReport {
    TaskReport { task: task.clone(), phase: ReportPhase::Ready { address: place(task) } }
}

fn over(task: &TaskId, failure: Option<muster_model::Reason>) -> TaskReport {
    let end = TaskEnd::new(failure, Some(0));
    let (started_at, address) = (Some(now()), Some(place(task)));
    TaskReport { task: task.clone(), phase: ReportPhase::Ended { end, at: now(), started_at, address } }
}

/// The ranks that were launched, and whom each was told to be its master.
fn launched(messages: &mut mpsc::Receiver<ToAgent>) -> Vec<(u32, String)> {
    let launch = |message| match message {
        ToAgent::Launch(launch) => Some((launch.task.rank, launch.env["MASTER_ADDR"].clone())),
        _ => None,
    };
    all(messages).into_iter().filter_map(launch).collect()
}

fn ranks(messages: &mut mpsc::Receiver<ToAgent>) -> Vec<u32> {
    launched(messages).into_iter().map(|(rank, _)| rank).collect()
}

#[test]
fn a_launch_does_not_wait_for_the_disk() {
    let mut fixture = Fixture::new();
    let mut messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "command": ["true"] }));
    let ready = fixture.ready(&task(&job, 1, 0));
    fixture.turn_unwritten(vec![ready], Disk::Never);
    assert_eq!(ranks(&mut messages), [0]);
    assert_eq!(fixture.phases(&job), [TaskPhase::Assigned], "on disk it is not ready");
}

#[test]
fn a_server_killed_between_launch_and_commit_finds_the_task_running() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "command": ["true"] }));
    let task = task(&job, 1, 0);
    let ready = fixture.ready(&task);
    fixture.turn_unwritten(vec![ready], Disk::Never);
    let mut fixture = fixture.restart();
    let mut messages = fixture.connect("a", vec![running(&task)]);
    assert_eq!(fixture.state(&job), State::Running);
    assert!(ranks(&mut messages).is_empty(), "it is not told to start what runs");
    let stored = fixture.core.parts.readers.job(&job).unwrap().unwrap();
    assert_eq!(stored.job.tasks[0].address, Some(place(&task)), "where it is was not lost");
}

#[test]
fn a_server_killed_between_launch_and_commit_finds_the_task_over() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "command": ["true"] }));
    let task = task(&job, 1, 0);
    let ready = fixture.ready(&task);
    fixture.turn_unwritten(vec![ready], Disk::Never);
    let mut fixture = fixture.restart();
    let mut messages = fixture.connect("a", vec![over(&task, None)]);
    assert_eq!(fixture.state(&job), State::Succeeded);
    assert!(forgets(&all(&mut messages), &task));
}

/// Both members said that they are ready, one of them got its launch, and then there was nobody to hear of it.
fn half_launched(disk: Disk) -> (Fixture, [TaskId; 2]) {
    let mut fixture = Fixture::new();
    let mut messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "nodes": 2, "command": ["true"], "on_failure": "continue" }));
    let members = [task(&job, 1, 0), task(&job, 1, 1)];
    let inputs = members.iter().map(|task| fixture.ready(task)).collect();
    fixture.turn_unwritten(inputs, disk);
    assert_eq!(ranks(&mut messages), [0, 1]);
    assert_eq!(fixture.phases(&job), [TaskPhase::Assigned; 2]);
    let fixture = if disk == Disk::Never { fixture.restart() } else { fixture };
    (fixture, members)
}

#[test]
fn a_member_that_missed_its_launch_gets_it_whichever_of_the_two_it_is() {
    for disk in [Disk::Never, Disk::Fails] {
        for missed in [0, 1] {
            let (mut fixture, members) = half_launched(disk);
            let (lost, other) = (&members[missed], &members[1 - missed]);
            let mut messages = fixture.connect("a", vec![waiting(lost), running(other)]);
            assert_eq!(launched(&mut messages), [(lost.rank, "127.64.0.1".into())]);
            fixture.say(ToServer::Started { task: lost.clone(), at: now() });
            assert_eq!(fixture.state(&lost.attempt.job), State::Running);
        }
    }
}

#[test]
fn a_member_that_missed_its_launch_gets_it_also_when_the_other_is_done() {
    let (mut fixture, [first, second]) = half_launched(Disk::Never);
    let mut messages = fixture.connect("a", vec![over(&first, None), waiting(&second)]);
    assert_eq!(launched(&mut messages), [(1, "127.64.0.1".into())]);
    fixture.say(ToServer::Started { task: second.clone(), at: now() });
    fixture.say(ended(second, None));
    assert_eq!(fixture.state(&first.attempt.job), State::Succeeded);
}

#[test]
fn a_gang_that_was_launched_is_known_by_one_that_has_started() {
    let (mut fixture, [first, second]) = half_launched(Disk::Never);
    let failure = Some(muster_model::Reason::exited(3));
    let mut messages = fixture.connect("a", vec![over(&first, failure), running(&second)]);
    let stops = all(&mut messages).into_iter().filter(|message| matches!(message, ToAgent::Stop { .. }));
    assert_eq!(stops.count(), 0, "`continue` goes on after a failure");
    fixture.say(ended(second, None));
    assert_eq!(fixture.state(&first.attempt.job), State::Failed);
}

#[test]
fn a_batch_that_fails_after_its_launch_is_heard_again_from_those_who_spoke() {
    let mut fixture = Fixture::new();
    let mut messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "command": ["true"] }));
    let task = task(&job, 1, 0);
    let ready = fixture.ready(&task);
    fixture.turn_unwritten(vec![ready], Disk::Fails);
    assert_eq!(ranks(&mut messages), [0]);
    assert!(messages.is_closed(), "the agent is disconnected");
    assert_eq!(fixture.core.jobs[&job].job.tasks[0].phase, TaskPhase::Assigned, "memory is as the disk is");
    let started = fixture.said(ToServer::Started { task: task.clone(), at: now() });
    fixture.turn(started);
    assert_eq!(
        fixture.phases(&job),
        [TaskPhase::Assigned],
        "what it says on the old connection is not heard"
    );
    let mut messages = fixture.connect("a", vec![running(&task)]);
    assert_eq!(fixture.state(&job), State::Running);
    assert!(ranks(&mut messages).is_empty());
}

#[test]
fn a_job_that_is_stopped_while_its_launch_was_not_written_is_stopped_where_it_runs() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "command": ["true"] }));
    let task = task(&job, 1, 0);
    let ready = fixture.ready(&task);
    fixture.turn_unwritten(vec![ready], Disk::Never);
    let mut fixture = fixture.restart();
    let (reply, _) = oneshot::channel();
    fixture.turn(Input::Job(job.clone(), muster_model::job::Event::Stop { grace: None }, reply));
    let mut messages = fixture.connect("a", vec![running(&task)]);
    let said = all(&mut messages);
    assert!(
        said.iter().any(|message| matches!(message, ToAgent::Stop { task: stopped, .. } if *stopped == task))
    );
    fixture.say(ended(task, None));
    assert_eq!(fixture.state(&job), State::Stopped);
}

#[test]
fn what_is_stopped_or_renamed_in_the_same_breath_is_not_launched_ahead() {
    let stop = |job: &JobId| {
        Input::Job(job.clone(), muster_model::job::Event::Stop { grace: None }, oneshot::channel().0)
    };
    let rename = |job: &JobId| Input::Rename(job.clone(), "other".into(), oneshot::channel().0);
    let wishes: [&dyn Fn(&JobId) -> Input; 2] = [&stop, &rename];
    for wish in wishes {
        let mut fixture = Fixture::new();
        let mut messages = fixture.connect("a", vec![]);
        let job = fixture.submit(json!({ "command": ["true"] }));
        let inputs = vec![fixture.ready(&task(&job, 1, 0)), wish(&job)];
        fixture.turn_unwritten(inputs, Disk::Never);
        assert!(ranks(&mut messages).is_empty());
    }
}

#[test]
fn a_group_of_which_one_is_stopped_in_the_same_breath_waits_for_the_disk() {
    let mut fixture = Fixture::new();
    let mut messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "kind": "machine", "name": "m", "nodes": 2 }));
    let mut inputs: Vec<Input> = [0, 1].map(|rank| fixture.ready(&task(&job, 1, rank))).into();
    let (job, reply) = (job.clone(), oneshot::channel().0);
    inputs.push(Input::Task { job, rank: 1, wish: Wish::Stop, reply });
    fixture.turn_unwritten(inputs, Disk::Never);
    assert!(ranks(&mut messages).is_empty());
}

#[test]
fn an_agent_is_welcomed_before_it_is_told_to_start_something() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "command": ["true"] }));
    let mut fixture = fixture.restart();
    let said = all(&mut fixture.connect("a", vec![waiting(&task(&job, 1, 0))]));
    assert!(matches!(&said[..], [ToAgent::Welcome { .. }, ToAgent::Launch(_)]), "{said:?}");
}

#[test]
fn a_gang_of_agents_that_do_not_say_where_a_running_task_is_waits_for_the_disk() {
    let mut fixture = Fixture::new();
    let mut messages = fixture.connect("a", vec![]);
    fixture.core.nodes.get_mut(&node()).unwrap().connection.as_mut().unwrap().protocol = 1;
    let job = fixture.submit(json!({ "nodes": 2, "command": ["true"] }));
    fixture.say(ToServer::Ready { task: task(&job, 1, 0), address: address(1) });
    let ready = fixture.ready(&task(&job, 1, 1));
    fixture.turn_unwritten(vec![ready], Disk::Never);
    assert!(ranks(&mut messages).is_empty());
}

#[test]
fn a_node_that_lost_its_records_says_so_again_after_a_batch_that_failed() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "command": ["true"] }));
    let ready = fixture.ready(&task(&job, 1, 0));
    fixture.turn(ready);
    let (outbox, _messages) = mpsc::channel(100);
    let (connection, hello) = (ConnectionId(7), Box::new(fixture.hello(&node(), "build", "b", vec![])));
    fixture.turn_unwritten(
        vec![Input::AgentConnected { connection, hello, outbox, is_tcp: false }],
        Disk::Fails,
    );
    assert_eq!(fixture.state(&job), State::Starting);
    let _messages = fixture.connect("b", vec![]);
    assert_eq!(fixture.state(&job), State::Failed, "what it had may have run, and does not run twice");
}
