//! Machines of a group, one by one: the others go on, what one held is free, and nothing is forgotten by a kill.

use muster_api::Code;
use muster_model::Reason;
use muster_model::job::Event;
use muster_model::task::Parting;
use serde_json::Value;

use super::*;

impl Fixture {
    fn wish(&mut self, job: &JobId, rank: u32, wish: Wish) -> Result<(), Problem> {
        let (reply, mut answer) = oneshot::channel();
        self.turn(Input::Task { job: job.clone(), rank, wish, reply });
        answer.try_recv().unwrap()
    }

    fn started(&mut self, task: &TaskId, at: u8) {
        self.say(ToServer::Ready { task: task.clone(), address: address(at) });
        self.say(ToServer::Started { task: task.clone(), at: now() });
    }

    fn slots(&self) -> u32 {
        self.core.nodes[&node()].capacity.slots - self.core.scheduler.used(&node()).slots
    }

    /// Two machines that run.
    fn pair(&mut self) -> JobId {
        let job = self.submit(json!({ "kind": "machine", "name": "m", "nodes": 2 }));
        for rank in [0, 1] {
            self.say(ToServer::Ready { task: task(&job, 1, rank), address: address(rank as u8 + 1) });
        }
        for rank in [0, 1] {
            self.say(ToServer::Started { task: task(&job, 1, rank), at: now() });
        }
        assert_eq!(self.state(&job), State::Running);
        job
    }

    fn stop_one(&mut self, job: &JobId, wish: Wish) {
        self.wish(job, 1, wish).unwrap();
        self.say(ended(task(job, 1, 1), Some(Reason::Signal { signal: 15 })));
    }
}

fn running(job: &JobId, attempt: u32, rank: u32) -> TaskReport {
    TaskReport { task: task(job, attempt, rank), phase: ReportPhase::Running { at: now(), address: None } }
}

/// The addresses of peers that a task was told last.
fn introduced(messages: &[ToAgent], to: &TaskId) -> Option<Vec<String>> {
    let told = messages.iter().rev().find_map(|message| match message {
        ToAgent::Peers { task, peers } if task == to => Some(peers),
        _ => None,
    });
    told.map(|peers| peers.members.iter().map(|peer| peer.ip.to_string()).collect())
}

#[test]
fn one_machine_is_given_back_and_taken_again_beside_the_other() {
    let mut fixture = Fixture::new();
    let mut messages = fixture.connect("a", vec![]);
    let job = fixture.pair();
    let secret = all(&mut messages).into_iter().find_map(|message| match message {
        ToAgent::Launch(launch) => launch.peers.map(|peers| peers.secret),
        _ => None,
    });
    let held = fixture.slots();
    fixture.wish(&job, 1, Wish::Suspend).unwrap();
    let told = all(&mut messages);
    assert!(
        matches!(&told[..], [ToAgent::Stop { task: stopped, .. }] if *stopped == task(&job, 1, 1)),
        "{told:?}"
    );
    fixture.say(ended(task(&job, 1, 1), None));
    fixture.say(ended(task(&job, 1, 1), None));
    assert_eq!((fixture.state(&job), fixture.slots()), (State::Running, held + 1), "free, and once");
    let told = all(&mut messages);
    assert_eq!(introduced(&told, &task(&job, 1, 0)).unwrap(), ["127.64.0.1", "0.0.0.0"]);
    assert!(told.contains(&ToAgent::Forget { task: task(&job, 1, 1), continues: true }), "its files stay");

    fixture.wish(&job, 1, Wish::Resume).unwrap();
    assert_eq!(fixture.slots(), held);
    let told = all(&mut messages);
    let prepared =
        told.iter().any(|m| matches!(m, ToAgent::Prepare(p) if p.task == task(&job, 2, 1) && p.goes_on));
    assert!(prepared, "{told:?}");
    fixture.say(ToServer::Started { task: task(&job, 1, 1), at: now() });
    fixture.started(&task(&job, 2, 1), 9);
    let told = all(&mut messages);
    let launched = told.iter().find_map(|m| if let ToAgent::Launch(l) = m { Some(l) } else { None }).unwrap();
    assert_eq!((launched.env["MUSTER_ATTEMPT"].as_str(), &launched.task), ("2", &task(&job, 2, 1)));
    assert_eq!(launched.peers.clone().map(|peers| peers.secret), secret, "they let each other in as before");
    assert_eq!(introduced(&told, &task(&job, 1, 0)).unwrap(), ["127.64.0.1", "127.64.0.9"]);
    let running =
        fixture.core.jobs[&job].job.ranks(|task| task.phase == muster_model::task::TaskPhase::Running);
    assert_eq!(running, [0, 1]);

    fixture.wish(&job, 1, Wish::Resume).unwrap();
    assert_eq!(all(&mut messages), [], "it is there: nothing is done again");
    fixture.apply_event(&job, Event::Stop { grace: None });
    fixture.say(ended(task(&job, 1, 0), None));
    fixture.say(ended(task(&job, 2, 1), None));
    assert_eq!((fixture.state(&job), fixture.slots()), (State::Stopped, held + 2));
}

impl Fixture {
    fn apply_event(&mut self, job: &JobId, event: Event) {
        let (reply, mut answer) = oneshot::channel();
        self.turn(Input::Job(job.clone(), event, reply));
        answer.try_recv().unwrap().unwrap();
    }
}

#[test]
fn a_killed_server_still_knows_what_one_machine_was_asked() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.pair();
    fixture.wish(&job, 1, Wish::Suspend).unwrap();
    let mut fixture = fixture.restart();
    let mut messages = fixture.connect("a", vec![running(&job, 1, 0), running(&job, 1, 1)]);
    let told = all(&mut messages);
    assert!(
        told.iter().any(|m| matches!(m, ToAgent::Stop { task: stopped, .. } if *stopped == task(&job, 1, 1))),
        "{told:?}"
    );
    fixture.say(ended(task(&job, 1, 1), None));
    fixture.wish(&job, 1, Wish::Resume).unwrap();
    let mut fixture = fixture.restart();
    let mut messages = fixture.connect("a", vec![running(&job, 1, 0)]);
    let told = all(&mut messages);
    assert!(told.iter().any(|m| matches!(m, ToAgent::Prepare(p) if p.task == task(&job, 2, 1))), "{told:?}");
    fixture.say(ToServer::Ready { task: task(&job, 2, 1), address: address(9) });
    let mut fixture = fixture.restart();
    let ready = ReportPhase::Ready { address: address(9) };
    let ready = TaskReport { task: task(&job, 2, 1), phase: ready };
    let mut messages = fixture.connect("a", vec![running(&job, 1, 0), ready]);
    let told = all(&mut messages);
    assert!(told.iter().any(|m| matches!(m, ToAgent::Launch(l) if l.task == task(&job, 2, 1))), "{told:?}");
    assert_eq!(introduced(&told, &task(&job, 1, 0)).unwrap(), ["127.64.0.1", "127.64.0.9"]);
    assert_eq!(fixture.state(&job), State::Running);
}

#[test]
fn one_that_ends_and_starts_in_one_batch_leaves_both_attempts_behind() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.pair();
    fixture.wish(&job, 1, Wish::Suspend).unwrap();
    let (reply, mut answer) = oneshot::channel();
    let connection = ConnectionId(fixture.connection);
    let over = Input::AgentSaid { connection, node: node(), message: ended(task(&job, 1, 1), None) };
    let wish = Input::Task { job: job.clone(), rank: 1, wish: Wish::Resume, reply };
    fixture.core.turn([over, wish].into_iter());
    assert!(answer.try_recv().is_err() && fixture.core.until_next_timer().is_zero());
    fixture.core.turn(std::iter::empty());
    answer.try_recv().unwrap().unwrap();
    let readers = &fixture.core.parts.readers;
    let first = readers.tasks(&job, 1).unwrap();
    assert!(first[1].is_suspended() && first[1].attempt == 1);
    assert_eq!(readers.job(&job).unwrap().unwrap().job.tasks[1].attempt, 2);
}

#[test]
fn without_room_a_machine_does_not_start_and_does_not_wait() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.pair();
    fixture.stop_one(&job, Wish::Suspend);
    let others: Vec<JobId> = (0..3).map(|_| fixture.submit(json!({ "command": ["sleep", "1"] }))).collect();
    let refused = fixture.wish(&job, 1, Wish::Resume).unwrap_err();
    assert_eq!((refused.code, refused.status), (Code::NoRoom, 409));
    assert!(refused.detail.starts_with("there is no room for task1.m now: "), "{}", refused.detail);
    assert!(refused.hint.is_some());
    fixture.say(ended(task(&others[0], 1, 0), None));
    fixture.wish(&job, 1, Wish::Resume).unwrap();
    assert_eq!(fixture.slots(), 0);
}

#[test]
fn the_host_of_one_machine_is_lost_and_the_other_goes_on() {
    let mut fixture = Fixture::new();
    let mut messages = fixture.connect("a", vec![]);
    let job = fixture.pair();
    all(&mut messages);
    // The node's records of one of them are gone.
    let mut messages = fixture.connect("a", vec![running(&job, 1, 0)]);
    let row = fixture.core.parts.readers.job(&job).unwrap().unwrap().job;
    assert_eq!((row.state, row.failed_rank), (State::Running, Some(1)));
    assert!(!all(&mut messages).iter().any(|message| matches!(message, ToAgent::Stop { .. })));
    fixture.wish(&job, 1, Wish::Resume).unwrap();
    fixture.started(&task(&job, 2, 1), 3);
    assert_eq!(fixture.core.jobs[&job].job.reason, None);
}

#[test]
fn one_that_was_killed_stays_away_and_the_group_comes_back_without_it() {
    let mut fixture = Fixture::new();
    let mut messages = fixture.connect("a", vec![]);
    let job = fixture.pair();
    fixture.stop_one(&job, Wish::Stop);
    assert!(fixture.wish(&job, 1, Wish::Resume).unwrap_err().hint.unwrap().contains("does not come back"));
    fixture.apply_event(&job, Event::Suspend);
    fixture.say(ended(task(&job, 1, 0), None));
    let mut fixture = fixture.restart();
    drop(messages);
    messages = fixture.connect("a", vec![]);
    let whole = fixture.slots();
    fixture.apply_event(&job, Event::Resume);
    assert_eq!((fixture.state(&job), fixture.slots()), (State::Starting, whole - 1), "one place is enough");
    fixture.started(&task(&job, 2, 0), 1);
    let sent = all(&mut messages);
    assert!(sent.iter().any(|m| matches!(m, ToAgent::Launch(l) if l.task == task(&job, 2, 0))), "{sent:?}");
    assert_eq!(fixture.state(&job), State::Running);
    fixture.wish(&job, 0, Wish::Stop).unwrap();
    fixture.say(ended(task(&job, 2, 0), None));
    assert_eq!((fixture.state(&job), fixture.slots()), (State::Stopped, whole));
}

#[test]
fn tasks_of_other_jobs_are_not_stopped_alone() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "command": ["true"], "nodes": 2 }));
    for wish in [Wish::Suspend, Wish::Resume, Wish::Stop] {
        let refused = fixture.wish(&job, 0, wish).unwrap_err();
        assert!(refused.code == Code::InvalidState && refused.detail.contains("together"), "{refused:?}");
    }
}

#[test]
fn what_followers_see_of_one_machine_is_in_the_events() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.pair();
    fixture.stop_one(&job, Wish::Suspend);
    fixture.wish(&job, 1, Wish::Suspend).unwrap();
    fixture.wish(&job, 1, Wish::Resume).unwrap();
    fixture.wish(&job, 1, Wish::Resume).unwrap();
    fixture.started(&task(&job, 2, 1), 3);
    let events = fixture.core.parts.readers.events(Some(&job), 0, 100).unwrap();
    let seen: Vec<(&str, Option<u32>, &Value)> =
        events.iter().map(|event| (event.kind.as_str(), event.attempt, &event.body["rank"])).collect();
    let one = json!(1);
    let expected = [
        ("task_stopping", Some(1), &one),
        ("task_ended", Some(1), &one),
        ("task_starting", Some(2), &one),
        ("task_running", Some(2), &one),
    ];
    assert_eq!(seen[seen.len() - 4..], expected);
    assert_eq!(fixture.core.jobs[&job].job.tasks[0].parting, None::<Parting>);
}
