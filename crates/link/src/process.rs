//! Single processes, told apart from later ones with the same number, and signalled only if they are the ones meant.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

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
pub struct Stat {
    pub process: Process,
    pub parent: i32,
    pub group: i32,
    pub is_dead: bool,
}

impl Stat {
    pub fn of(pid: i32) -> Option<Stat> {
        // Some fifty numbers and a name of 16 bytes. In one read: a walk looks at every process of the machine.
        let mut buffer = [0; 1024];
        let count = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut buffer).ok()?;
        Stat::parse(pid, &buffer[..count])
    }

    pub fn parse(pid: i32, text: &[u8]) -> Option<Stat> {
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

/// Sends a signal to a process that a file names, if that process runs under the account of this one. A file may be old, and
/// the number another process's by now; without a start time the account alone is compared.
pub fn signal_own(pid: Pid, start_ticks: Option<u64>, signal: Signal) -> io::Result<()> {
    let descriptor = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(descriptor) => Some(descriptor),
        Err(Errno::SRCH) => return Ok(()),
        // Kernels before 5.3.
        Err(Errno::NOSYS) => None,
        Err(errno) => return Err(errno.into()),
    };
    // The descriptor is open: what is read now is of the process that it refers to, or of none.
    let number = pid.as_raw_nonzero().get();
    let Some(stat) = Stat::of(number) else { return Ok(()) };
    if start_ticks.is_some_and(|started| started != stat.process.start_ticks) {
        return Ok(());
    }
    if !is_own(number)? {
        let message = format!("process {number} runs under another account");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    let sent = match descriptor {
        Some(descriptor) => pidfd_send_signal(descriptor, signal),
        None => kill_process(pid, signal),
    };
    match sent {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether all user ids of a process are the effective one of this process.
fn is_own(pid: i32) -> io::Result<bool> {
    let status = match fs::read_to_string(format!("/proc/{pid}/status")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        status => status?,
    };
    let uid = rustix::process::geteuid().as_raw().to_string();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    Ok(!ids.trim().is_empty() && ids.split_ascii_whitespace().all(|id| id == uid))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;

    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse_the_fields() {
        let text = b"77 (evil) R 1 (x)) S 5 6 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 424242 9 10";
        let stat = Stat::parse(77, text).unwrap();
        let process = Process { pid: 77, start_ticks: 424_242 };
        assert_eq!(stat, Stat { process, parent: 5, group: 6, is_dead: false });
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

    #[test]
    fn only_the_process_that_was_meant_is_signalled() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let started = Process::of(pid).unwrap().start_ticks;
        signal_own(pid, Some(started + 1), Signal::KILL).unwrap();
        assert!(child.try_wait().unwrap().is_none());
        signal_own(pid, Some(started), Signal::KILL).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        signal_own(pid, Some(started), Signal::KILL).unwrap();
    }

    #[test]
    fn a_process_of_another_account_is_never_signalled() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let mut child = Command::new("sleep").arg("600").uid(54_321).spawn().unwrap();
        let refused = signal_own(Pid::from_child(&child), None, Signal::KILL).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
