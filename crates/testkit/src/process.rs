//! Processes as the kernel shows them.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

/// A process that belongs to a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its command line.
    pub words: Vec<String>,
}

impl Process {
    /// Whether it was started with this word as its first argument: `supervise`, `agent`, `server`.
    pub fn is(&self, role: &str) -> bool {
        self.words.get(1).is_some_and(|word| word == role)
    }
}

/// Every living process of this data directory: server, agent, supervisors and tasks alike. It is in their environment
/// or command line, or they work in it.
pub fn of_home(home: &Path) -> Vec<Process> {
    let mark = format!("MUSTER_HOME={}", home.display()).into_bytes();
    // A task that was given a clean environment still has this.
    let output = format!("MUSTER_OUTPUT_DIR={}/", home.display()).into_bytes();
    living(|pid| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|entry| entry == mark || entry.starts_with(&output))
            || fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|directory| directory.starts_with(home))
            || words(pid).iter().any(|word| Path::new(word).starts_with(home))
    })
}

/// Every living process with this word, or part of one, in its command line.
pub fn with_word(word: &str) -> Vec<Process> {
    living(|pid| words(pid).iter().any(|known| known.contains(word)))
}

pub(crate) fn living(is_wanted: impl Fn(u32) -> bool) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != std::process::id() && is_wanted(*pid) && is_alive(*pid))
        .map(|pid| Process { pid, words: words(pid) })
        .collect()
}

/// Those of living processes that one of these has started, or one that was started by it.
pub(crate) fn started_by(above: &[Process]) -> Vec<Process> {
    let parent = |pid: u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    living(|pid| {
        let mut line = std::iter::successors(parent(pid), |pid| parent(*pid));
        line.any(|pid| above.iter().any(|process| process.pid == pid))
    })
}

/// The file a process runs.
pub fn executable(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// The most memory a process ever had at once.
pub fn peak_memory_kb(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    peak.trim().trim_end_matches("kB").trim().parse().ok()
}

fn words(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Whether a process exists and is not just a zombie. One whose first thread has ended has its files, sockets among them, for as
/// long as another has not.
pub fn is_alive(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.into_iter().any(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    })
}

/// Stops a process where it is.
pub fn freeze(pid: u32) {
    signal(pid, Signal::STOP);
}

/// Lets a stopped process go on.
pub fn thaw(pid: u32) {
    signal(pid, Signal::CONT);
}

/// `kill -9`.
pub fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

/// The process may have ended already.
fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Copies a program so that it can be started at once. Another process does it: what this one has open for writing while another of its
/// threads starts something is busy for as long as that has not begun.
pub fn copy_program(from: &Path, to: &Path) {
    let done = std::process::Command::new("cp").arg(from).arg(to).status();
    assert!(done.is_ok_and(|status| status.success()), "{} is not copied", from.display());
}
