//! The clock is set while jobs and nodes are waited for.

use super::*;

#[test]
fn a_pause_between_attempts_does_not_become_an_hour_when_the_clock_is_set_back() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({
        "nodes": 1, "command": ["false"], "retries": { "max": 1, "backoff": "3s" }
    }));
    let failure = Some(muster_model::Reason::exited(3));
    fixture.say(ended(task(&job, 1, 0), failure));
    fixture.core.turn(std::iter::empty());
    assert_eq!(fixture.state(&job), State::Queued);
    let earlier = now() - Duration::from_secs(3600);
    fixture.core.follow_clock(earlier, Instant::now());
    let eligible_at = fixture.core.jobs[&job].job.eligible_at.unwrap();
    assert!(eligible_at <= earlier + Duration::from_secs(4), "{eligible_at}");
    // The scheduler knows, too, when to look again.
    let later = earlier + Duration::from_secs(5);
    let mut batch = Batch::default();
    fixture.core.on_timers(&mut batch, later);
    fixture.core.schedule(&mut batch, later);
    fixture.core.commit(batch, later);
    assert_eq!(fixture.state(&job), State::Starting);
}

#[test]
fn a_node_that_is_away_is_not_given_up_when_the_clock_is_set_forward() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "nodes": 1, "command": ["true"] }));
    fixture.turn(Input::AgentGone { connection: ConnectionId(fixture.connection), node: node() });
    let waits = |core: &Core, now: Timestamp| core.nodes[&node()].lost_at.unwrap().duration_since(now);
    let left = waits(&fixture.core, now());
    let later = now() + Duration::from_secs(3600);
    fixture.core.follow_clock(later, Instant::now());
    let mut batch = Batch::default();
    fixture.core.on_timers(&mut batch, later);
    fixture.core.commit(batch, later);
    assert_eq!(fixture.state(&job), State::Starting, "it has as long as before to come back");
    assert!((waits(&fixture.core, later) - left).abs() < jiff::SignedDuration::from_secs(2));
    let mut batch = Batch::default();
    let lost = later + Duration::try_from(left).unwrap() + Duration::from_secs(2);
    fixture.core.on_timers(&mut batch, lost);
    fixture.core.commit(batch, lost);
    assert_eq!(fixture.state(&job), State::Failed, "and no longer");
}
