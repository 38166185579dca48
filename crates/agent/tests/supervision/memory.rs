//! Out of memory is claimed when the kernel counted it, and only then.

use muster_agent::supervisor::Outcome;
use muster_agent::tree::Preference;

use crate::harness::Plan;

/// `tail` must hold all of a line that never ends.
const GREEDY: &[&str] = &["/bin/sh", "-c", "head -c 400000000 /dev/zero | tail -n 1 | wc -c"];

#[test]
fn a_task_beyond_its_limit_is_out_of_memory() {
    for way in [Preference::Cgroup1, Preference::Auto] {
        let script = "set -e; head -c 400000000 /dev/zero | tail -n 1 >/dev/null";
        let plan = Plan::with(&["/bin/sh", "-c", script], way, Some(64 << 20));
        assert!(plan.launch.tree.limits_memory(), "run this as root with a memory cgroup mounted");
        let (exit, task) = plan.run();
        assert_eq!(exit.outcome, Outcome::OutOfMemory, "{way:?}");
        task.assert_gone();
    }
}

#[test]
fn a_task_within_its_limit_is_not() {
    let (exit, task) =
        Plan::with(&["/bin/sh", "-c", "echo fine; kill -9 $$"], Preference::Auto, Some(64 << 20)).run();
    assert_eq!(exit.outcome, Outcome::Signaled { signal: 9 });
    task.assert_gone();
}

#[test]
fn a_task_that_lost_a_child_to_the_limit_and_succeeded_has_succeeded() {
    let (exit, _) = Plan::with(GREEDY, Preference::Auto, Some(64 << 20)).run();
    assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
}

#[test]
fn without_a_counter_nothing_is_claimed() {
    let plan = Plan::with(&["/bin/sh", "-c", "kill -9 $$"], Preference::Walk, Some(64 << 20));
    assert!(!plan.launch.tree.limits_memory());
    assert_eq!(plan.run().0.outcome, Outcome::Signaled { signal: 9 });
}
