//! Who makes room for whom, and that nobody forgets it.

use muster_scheduler::{Policy, Scheduler};

use super::*;

impl Fixture {
    /// One whose scheduler waits for nothing before it ends work for other work.
    fn hasty() -> Self {
        let mut fixture = Self::new();
        fixture.core.parts.policy =
            Policy { min_run_time: Duration::ZERO, preempt_after: Duration::ZERO, ..Policy::default() };
        fixture.core.scheduler = Scheduler::new(fixture.core.parts.policy.clone());
        fixture
    }

    fn running(&mut self, spec: serde_json::Value) -> JobId {
        let job = self.submit(spec);
        let id = task(&job, 1, 0);
        self.say(ToServer::Ready { task: id.clone(), address: address(1) });
        self.say(ToServer::Started { task: id, at: now() });
        job
    }
}

fn filler(cpus: u32) -> serde_json::Value {
    json!({ "command": ["sleep"], "resources": { "cpus": cpus }, "preemptible": true, "priority": 100 })
}

#[test]
fn whoever_has_saved_last_makes_room() {
    let mut fixture = Fixture::hasty();
    let mut messages = fixture.connect("a", vec![]);
    let first = fixture.running(filler(2));
    let second = fixture.running(filler(2));
    fixture.say(ToServer::Saved { task: task(&first, 1, 0), at: now() + Duration::from_secs(1) });
    // Of a task that is somebody else's, or nobody's, a node has no say.
    fixture.say(ToServer::Saved { task: task(&second, 7, 0), at: now() + Duration::from_secs(9) });
    all(&mut messages);
    let urgent = fixture.submit(json!({ "command": ["true"], "resources": { "cpus": 2 }, "priority": 900 }));
    assert_eq!((fixture.state(&first), fixture.state(&second)), (State::Stopping, State::Running));
    let stop = all(&mut messages).into_iter().find_map(|message| match message {
        ToAgent::Stop { task, reason, .. } => Some((task, reason)),
        _ => None,
    });
    assert_eq!(stop, Some((task(&first, 1, 0), "preempted".into())));
    assert_eq!(fixture.state(&urgent), State::Queued);
    fixture.say(ended(task(&first, 1, 0), None));
    fixture.core.turn(std::iter::empty());
    assert_eq!((fixture.state(&urgent), fixture.state(&first)), (State::Starting, State::Queued));
    // It has its old place, and how often it made room is known to the next server.
    let fixture = fixture.restart();
    let live = &fixture.core.jobs[&first];
    assert_eq!((live.preempted.len(), live.job.retried), (1, 0));
}

#[test]
fn what_was_used_is_known_to_the_next_server() {
    let mut fixture = Fixture::new();
    // What is as good as nothing is not kept, and this lasts for a moment only.
    let half_life = Duration::from_millis(1);
    fixture.core.scheduler = Scheduler::new(Policy { half_life, ..Policy::default() });
    let _messages = fixture.connect("a", vec![]);
    fixture.running(json!({ "command": ["sleep"], "resources": { "cpus": 4 } }));
    fixture.core.usage_due = Some(now());
    fixture.core.turn(std::iter::empty());
    let kept = fixture.core.parts.readers.usage().unwrap();
    let whose: Vec<Option<&str>> = kept.iter().map(|row| row.user.as_deref()).collect();
    assert_eq!(whose, [None, Some("me")], "{kept:?}");
    let fixture = fixture.restart();
    let known = fixture.core.scheduler.usage(crate::core::schedule::millis(now()));
    assert!(known.iter().all(|used| used.mean > 0.0) && known.len() == 2, "{known:?}");
}
