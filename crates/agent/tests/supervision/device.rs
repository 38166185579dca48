//! A task opens no accelerator but its own, whatever its variables say. `/dev/zero` and `/dev/full` stand for them.

use muster_agent::supervisor::Outcome;
use muster_agent::tree::{DeviceNumber, Preference};

use crate::harness::Plan;

const ZERO: DeviceNumber = DeviceNumber { major: 1, minor: 5 };

/// Also what the task starts, and what has left its session.
const TRIES: &str = "set -e; : < /dev/full; : < /dev/null; : > /dev/null; head -c 1 /dev/urandom > /dev/null
    if head -c 1 /dev/zero; then exit 3; fi
    if setsid sh -c 'sh -c \": < /dev/zero\"'; then exit 4; fi
    if mknod made c 1 5; then exit 5; fi
    exit 0";

#[test]
fn a_task_cannot_open_a_device_that_is_not_its_own() {
    for way in [Preference::Auto, Preference::Cgroup2, Preference::Cgroup1] {
        let mut plan = Plan::with(&["/bin/sh", "-c", TRIES], way, None);
        plan.launch.tree = plan.launch.tree.without_devices(&[ZERO]);
        assert!(plan.launch.tree.limits_devices(), "run this as root with a device cgroup: {way:?}");
        let (exit, task) = plan.run();
        assert_eq!(exit.outcome, Outcome::Exited { code: 0 }, "{way:?}");
        task.assert_gone();
    }
}

#[test]
fn a_task_with_a_memory_limit_is_limited_to_its_devices_too() {
    let mut plan = Plan::with(&["/bin/sh", "-c", TRIES], Preference::Cgroup1, Some(64 << 20));
    plan.launch.tree = plan.launch.tree.without_devices(&[ZERO]);
    assert!(plan.launch.tree.limits_memory() && plan.launch.tree.limits_devices());
    let (exit, task) = plan.run();
    assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
    task.assert_gone();
}
