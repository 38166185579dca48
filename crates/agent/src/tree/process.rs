//! Single processes: who they are, beyond a number that is used again, and how they are signalled and awaited.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

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

/// A process, told apart from a later one with the same number by when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    /// Clock ticks after boot: field 22 of `/proc/PID/stat`.
    pub start_ticks: u64,
}

impl Process {
    pub fn of(pid: Pid) -> io::Result<Process> {
        let found = Stat::of(pid.as_raw_nonzero().get()).map(|stat| stat.process);
        found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    pub fn current() -> io::Result<Process> {
        Process::of(getpid())
    }

    /// Whether it still runs. A zombie does not.
    pub fn is_alive(&self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| stat.process == *self && !stat.is_dead)
    }

    pub fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.pid)
    }

    /// A descriptor that becomes readable when it ends.
    pub fn pidfd(&self) -> io::Result<OwnedFd> {
        let pid = self.pid().ok_or(io::ErrorKind::NotFound)?;
        let descriptor = pidfd_open(pid, PidfdFlags::empty())?;
        // Only now can the number no longer change its meaning between the check and the use.
        match Stat::of(self.pid) {
            Some(stat) if stat.process == *self => Ok(descriptor),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// What `/proc/PID/stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) process: Process,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) is_dead: bool,
}

impl Stat {
    pub(super) fn of(pid: i32) -> Option<Stat> {
        // Some fifty numbers and a name of 16 bytes. In one read: a walk looks at every process of the machine.
        let mut buffer = [0; 1024];
        let count = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut buffer).ok()?;
        Stat::parse(pid, &buffer[..count])
    }

    pub(super) fn parse(pid: i32, text: &[u8]) -> Option<Stat> {
        // The name in parentheses may contain anything, parentheses included, so fields are counted from the last one.
        let after_name = text.iter().rposition(|byte| *byte == b')')? + 1;
        let fields: Vec<&str> =
            std::str::from_utf8(&text[after_name..]).ok()?.split_ascii_whitespace().collect();
        Some(Stat {
            process: Process { pid, start_ticks: fields.get(19)?.parse().ok()? },
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            is_dead: matches!(*fields.first()?, "Z" | "X" | "x"),
        })
    }
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
    fn a_name_with_parentheses_does_not_confuse_the_fields() {
        let text = b"77 (evil) R 1 (x)) S 5 6 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 424242 9 10";
        let stat = Stat::parse(77, text).unwrap();
        let process = Process { pid: 77, start_ticks: 424_242 };
        assert_eq!(stat, Stat { process, parent: 5, group: 6, is_dead: false });
    }

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

    #[test]
    fn garbage_is_no_process() {
        for text in [&b""[..], b")", b"1 (x", b"1 (x) S a b c", b"1 (x) S 1 2 3", b"\xff) \xff"] {
            assert_eq!(Stat::parse(1, text), None);
        }
    }

    #[test]
    fn this_process_is_alive_and_another_with_its_number_is_not() {
        let current = Process::current().unwrap();
        assert!(current.is_alive());
        let earlier = Process { start_ticks: current.start_ticks - 1, ..current };
        assert!(!earlier.is_alive());
        assert!(earlier.pidfd().is_err());
    }
}
