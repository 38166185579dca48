//! Lanes of arrays, by what their logs say.

use muster_link::log::{Appender, Header};
use muster_model::array::Mark;

use super::*;

/// The numbers of what a lane was given; one that is said twice counts once.
fn granted(messages: &mut mpsc::Receiver<ToAgent>) -> BTreeSet<u32> {
    let number =
        |message| if let ToAgent::Elements { grant, .. } = message { Some(grant.number) } else { None };
    all(messages).into_iter().filter_map(number).collect()
}

#[test]
fn what_a_lane_did_while_its_agent_was_away_is_counted_on_its_return() {
    let mut fixture = Fixture::new();
    let mut messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "array": "0-99%1", "command": ["true"] }));
    let lane = task(&job, 1, 0);
    fixture.say(ToServer::Ready { task: lane.clone(), address: address(1) });
    fixture.say(ToServer::Started { task: lane.clone(), at: now() });
    assert_eq!(granted(&mut messages), BTreeSet::new(), "it has the first element from its launch");
    fixture.turn(Input::AgentGone { connection: ConnectionId(fixture.connection), node: node() });
    let marks = [
        Header::mark(&Mark::Began { element: 0 }, 1000),
        Header::mark(&Mark::Ended { element: 0, failure: None, stopped: false }, 2000),
    ]
    .concat();
    Appender::open(fixture.core.parts.logs.dir(&lane)).unwrap().append_at(0, 0, &marks).unwrap();
    let report = TaskReport { task: lane, phase: ReportPhase::Running { at: now(), address: None } };
    let mut messages = fixture.connect("a", vec![report]);
    assert_eq!(granted(&mut messages), BTreeSet::from([2]), "its log does not grow before it has more to do");
}
