//! Processes as the kernel shows them.

use std::fs;
use std::path::Path;

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

/// Every living process with this data directory in its environment: server, agent, supervisors and tasks alike.
pub fn of_home(home: &Path) -> Vec<Process> {
    let mark = format!("MUSTER_HOME={}", home.display());
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != std::process::id())
        .filter(|pid| {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
        })
        .filter(|pid| is_alive(*pid))
        .map(|pid| Process { pid, words: words(pid) })
        .collect()
}

fn words(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Whether a process exists and is not just a zombie.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// `kill -9`.
pub fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may be gone already, which is what is wanted.
        let _ = kill_process(pid, Signal::KILL);
    }
}
