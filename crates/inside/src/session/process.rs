//! What the kernel says of a session's shell.

use std::fs;
use std::io;
use std::time::Duration;

use muster_link::descriptor::register;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;

/// How often to look for a process that cannot be watched, on kernels before 5.3.
const LOOK: Duration = Duration::from_millis(250);

/// A shell as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Look {
    /// The process group in the foreground of its terminal.
    pub foreground: i32,
    /// Where the stack of its program begins: another one for every program that the process becomes. 0 if it is not ours
    /// to know.
    stack: u64,
}

impl Look {
    pub(super) fn at(pid: i32) -> io::Result<Look> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Look::parse(&stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// From a process's `stat`.
    pub(super) fn parse(stat: &str) -> Option<Look> {
        // The name may contain anything; what follows its last parenthesis begins with the third field.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(Look { foreground: fields.get(5)?.parse().ok()?, stack: fields.get(25)?.parse().ok()? })
    }

    /// The group in the foreground; none when the terminal is gone.
    pub(super) fn group(&self) -> Option<Pid> {
        Pid::from_raw(self.foreground.max(0))
    }

    /// Whether it is the same program still, and not one that took its place.
    pub(super) fn is_same_program(&self, before: &Look) -> bool {
        self.stack == before.stack
    }
}

/// Whether a process's program is a shell, which waits for input and does not end by itself.
pub(super) fn is_shell(pid: i32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe"));
    program.is_ok_and(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        ["bash", "sh", "dash", "zsh", "ksh", "fish", "ash", "tcsh", "csh"].contains(&name)
    })
}

/// Returns when there is no such process any more.
pub(super) async fn gone(pid: i32) {
    let watched = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok());
    if let Some(watched) = watched
        && let Ok(watched) = register(watched, Interest::READABLE)
        && watched.readable().await.is_ok()
    {
        return;
    }
    while Look::at(pid).is_ok() {
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let fields = (3..=52).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        let look = Look::parse(&format!("17 (a) b (c)) {fields}\n")).unwrap();
        assert_eq!((look.foreground, look.stack), (8, 28));
        assert!(Look::at(std::process::id() as i32).unwrap().stack > 0);
    }
}
