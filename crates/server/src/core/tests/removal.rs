//! Removed jobs, and nodes that are away.

use super::*;

fn removed(messages: &mut mpsc::Receiver<ToAgent>) -> Vec<JobId> {
    let job = |message| if let ToAgent::Remove { job } = message { Some(job) } else { None };
    all(messages).into_iter().filter_map(job).collect()
}

/// A job that is over.
fn ended_job(fixture: &mut Fixture) -> JobId {
    let job = fixture.submit(json!({ "command": ["true"] }));
    fixture.say(ended(task(&job, 1, 0), None));
    assert_eq!(fixture.state(&job), State::Succeeded);
    job
}

fn remove(fixture: &mut Fixture, job: &JobId) {
    let (reply, mut answer) = oneshot::channel();
    fixture.turn(Input::Remove(job.clone(), reply));
    answer.try_recv().unwrap().unwrap();
}

#[test]
fn a_node_that_was_away_removes_the_files_of_a_removed_job_on_its_return() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = ended_job(&mut fixture);
    fixture.turn(Input::AgentGone { connection: ConnectionId(fixture.connection), node: node() });
    remove(&mut fixture, &job);
    let mut fixture = fixture.restart();
    for _ in 0..2 {
        let mut messages = fixture.connect("a", vec![]);
        assert_eq!(removed(&mut messages), std::slice::from_ref(&job), "until it says that it has");
    }
    fixture.say(ToServer::Removed { job });
    let mut messages = fixture.connect("a", vec![]);
    assert_eq!(removed(&mut messages), []);
}

#[test]
fn a_node_that_is_there_is_told_once() {
    let mut fixture = Fixture::new();
    let mut messages = fixture.connect("a", vec![]);
    let job = ended_job(&mut fixture);
    all(&mut messages);
    remove(&mut fixture, &job);
    assert_eq!(removed(&mut messages), std::slice::from_ref(&job));
    fixture.say(ToServer::Removed { job });
    let mut messages = fixture.connect("a", vec![]);
    assert_eq!(removed(&mut messages), []);
}

/// Says hello as an agent that does not confirm removals.
fn connect_older(fixture: &mut Fixture, build: &str) -> mpsc::Receiver<ToAgent> {
    fixture.connection += 1;
    let (outbox, messages) = mpsc::channel(100);
    let hello = Hello { protocol: 4, ..fixture.hello(&node(), build, "a", vec![]) };
    let connection = ConnectionId(fixture.connection);
    fixture.turn(Input::AgentConnected { connection, hello: Box::new(hello), outbox, is_tcp: false });
    messages
}

#[test]
fn an_agent_that_does_not_confirm_is_told_once() {
    let mut fixture = Fixture::new();
    let _messages = connect_older(&mut fixture, "build");
    let job = ended_job(&mut fixture);
    remove(&mut fixture, &job);
    assert_eq!(removed(&mut connect_older(&mut fixture, "build")), std::slice::from_ref(&job));
    assert_eq!(removed(&mut connect_older(&mut fixture, "build")), []);
    assert_eq!(fixture.core.parts.readers.owed_removals().unwrap(), []);
}

#[test]
fn an_older_agent_is_told_once_it_has_changed_over() {
    let mut fixture = Fixture::new();
    let _messages = connect_older(&mut fixture, "older");
    let job = ended_job(&mut fixture);
    remove(&mut fixture, &job);
    let said = all(&mut connect_older(&mut fixture, "older"));
    assert!(matches!(&said[..], [ToAgent::Welcome { .. }, ToAgent::Upgrade { .. }]), "{said:?}");
    let mut messages = fixture.connect("a", vec![]);
    assert_eq!(removed(&mut messages), std::slice::from_ref(&job));
    let owed = fixture.core.parts.readers.owed_removals().unwrap();
    assert_eq!((owed[0].jobs, owed[0].since.is_some()), (1, true), "until it confirms it");
}
