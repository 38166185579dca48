//! Boots of a machine, and processes that are ended and awaited.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

pub use muster_link::process::Process;
pub(super) use muster_link::process::Stat;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, kill_process, pidfd_send_signal};

/// This boot of this machine. Processes and cgroups of another one are gone. A machine that is a container is started anew
/// while its kernel goes on: that is told by when its first process started, where that may be seen.
pub fn boot_id() -> io::Result<String> {
    let kernel = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let first = Stat::of(1).map(|stat| format!("{FIRST}{}", stat.process.start_ticks));
    Ok(format!("{}{}", kernel.trim(), first.unwrap_or_default()))
}

/// What stands between the kernel's boot and the start of the first process.
const FIRST: char = '.';

/// Whether two boots are the same one. One of them may have been written down without knowing of a first process.
pub fn is_same_boot(one: &str, other: &str) -> bool {
    match (one.split_once(FIRST), other.split_once(FIRST)) {
        (Some(one), Some(other)) => one == other,
        _ => kernel_boot(one) == kernel_boot(other),
    }
}

/// The part of a boot that is the kernel's.
pub fn kernel_boot(boot: &str) -> &str {
    boot.split(FIRST).next().unwrap_or(boot)
}

/// Processes that are to be ended and awaited.
#[derive(Default)]
pub(super) struct Doomed {
    handles: Vec<Handle>,
}

struct Handle {
    process: Process,
    /// Missing on kernels before 5.3, and when there are more processes than descriptors.
    descriptor: Option<OwnedFd>,
}

impl Doomed {
    /// Take hold of a process, unless it is gone.
    pub(super) fn add(&mut self, process: Process) {
        let descriptor = match process.pidfd() {
            Ok(descriptor) => Some(descriptor),
            Err(_) if !process.is_alive() => return,
            Err(_) => None,
        };
        self.handles.push(Handle { process, descriptor });
    }

    pub(super) fn contains(&self, process: Process) -> bool {
        self.handles.iter().any(|handle| handle.process == process)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    pub(super) fn signal(&self, process: Process, signal: Signal) {
        for handle in self.handles.iter().filter(|handle| handle.process == process) {
            handle.signal(signal);
        }
    }

    pub(super) fn signal_all(&self, signal: Signal) {
        for handle in &self.handles {
            handle.signal(signal);
        }
    }

    /// Wait until all have ended, and return those that have not by the deadline.
    pub(super) fn wait(mut self, deadline: Instant) -> Vec<i32> {
        loop {
            self.handles.retain(|handle| handle.process.is_alive());
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(handle) = self.handles.first() else { return Vec::new() };
            if left.is_zero() {
                return self.handles.iter().map(|handle| handle.process.pid).collect();
            }
            handle.wait(left);
        }
    }
}

impl Handle {
    // A process that is gone meanwhile needs no signal, and one that is not ours to signal will show as a survivor.
    fn signal(&self, signal: Signal) {
        match (&self.descriptor, self.process.pid()) {
            (Some(descriptor), _) => _ = pidfd_send_signal(descriptor, signal),
            (None, Some(pid)) => _ = kill_process(pid, signal),
            (None, None) => {}
        }
    }

    fn wait(&self, at_most: Duration) {
        match &self.descriptor {
            Some(descriptor) => wait_for(descriptor, PollFlags::IN, at_most),
            // Nothing tells of the end of someone else's process on such a kernel but looking again.
            None => std::thread::sleep(at_most.min(Duration::from_millis(2))),
        }
    }
}

/// Wait until a descriptor has an event. An interrupted or failed wait ends early: callers look again in any case.
pub(super) fn wait_for(descriptor: &impl std::os::fd::AsFd, events: PollFlags, at_most: Duration) {
    let timeout = Timespec::try_from(at_most).ok();
    let _ = poll(&mut [PollFd::new(descriptor, events)], timeout.as_ref());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_is_the_kernels_and_that_of_the_first_process() {
        let now = boot_id().unwrap();
        assert!(is_same_boot(&now, &boot_id().unwrap()));
        for (one, other, same) in [
            ("a.1", "a.1", true),
            ("a.1", "a.2", false),
            ("a.1", "b.1", false),
            ("a", "a.2", true),
            ("a.2", "a", true),
            ("a", "b", false),
        ] {
            assert_eq!(is_same_boot(one, other), same, "{one} and {other}");
        }
    }
}
