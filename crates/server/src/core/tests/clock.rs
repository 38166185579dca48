//! The clock is set back while jobs wait.

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
