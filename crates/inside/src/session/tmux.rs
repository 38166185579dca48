//! Terminals in tmux: a server of the task's own, which nothing but the task's end takes away. Never the user's own.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::{Geometry, SIZE};

/// tmux answers at once, or is stuck.
const PATIENCE: Duration = Duration::from_secs(10);
/// The kernel takes 107 bytes for a socket's path.
const LONGEST_SOCKET: usize = 100;
/// A pane stays when its shell has ended, so that the shell's status can be asked for.
const CONFIG: &str = "set -g history-limit 50000\nset -g remain-on-exit on\nset -g mouse on\nset -g default-terminal screen-256color\n";

/// The task's tmux.
#[derive(Debug, Clone)]
pub(super) struct Tmux {
    program: PathBuf,
    /// Where its socket is.
    dir: PathBuf,
}

/// A shell in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pane {
    pub id: String,
    pub pid: i32,
}

/// How a pane is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PaneState {
    Lives,
    /// Its shell has ended; with this status, where tmux says so.
    Dead(Option<i32>),
    /// There is no such pane.
    Gone,
}

impl Tmux {
    /// The tmux of this machine, for the sessions in `dir`; none if it has none.
    pub(super) fn find(dir: &Path) -> Option<Tmux> {
        let path = std::env::var_os("PATH")?;
        let program =
            std::env::split_paths(&path).map(|folder| folder.join("tmux")).find(|file| file.is_file())?;
        Some(Tmux { program, dir: dir.to_owned() })
    }

    /// Starts a shell. Its terminal has this name.
    pub(super) async fn open(&self, name: &str, cwd: &Path, shell: &Path) -> io::Result<Pane> {
        std::fs::write(self.dir.join("tmux.conf"), CONFIG)?;
        // One whose shell has ended may still be there, if whoever knew of it was killed.
        let _ = self.ask(["kill-session", "-t", &format!("={}", terminal_name(name))]).await;
        let (name, cwd) = (terminal_name(name), cwd.to_string_lossy());
        let (columns, rows) = (SIZE.columns.to_string(), SIZE.rows.to_string());
        let shell = shell.to_string_lossy();
        let words = ["new-session", "-d", "-s", &name, "-x", &columns, "-y", &rows, "-c", &cwd, "-P", "-F"];
        let what = ["#{pane_id} #{pane_pid}", "--", &shell, "-i"];
        let said = self.ask(words.into_iter().chain(what)).await?;
        let pane = said.trim().split_once(' ').and_then(|(id, pid)| Some((id.to_owned(), pid.parse().ok()?)));
        let (id, pid) = pane.ok_or_else(|| io::Error::other(format!("tmux said `{}`", said.trim())))?;
        Ok(Pane { id, pid })
    }

    /// Types a line. It reaches the shell also when somebody has scrolled the terminal back.
    pub(super) async fn type_line(&self, pane: &Pane, line: &str) -> io::Result<()> {
        let set = ["set-buffer", "-b", "muster", "--", line, ";"];
        self.ask(set.into_iter().chain(["paste-buffer", "-d", "-b", "muster", "-t", &pane.id]))
            .await
            .map(drop)
    }

    pub(super) async fn look(&self, pane: &Pane) -> io::Result<PaneState> {
        let format = "#{pane_id} #{pane_pid} #{pane_dead} #{pane_dead_status} #{pane_dead_signal}";
        let said = match self.ask(["list-panes", "-a", "-F", format]).await {
            Ok(said) => said,
            // The server is gone, and everything in it.
            Err(error) if error.kind() == io::ErrorKind::Other => return Ok(PaneState::Gone),
            Err(error) => return Err(error),
        };
        Ok(parse_state(&said, pane))
    }

    pub(super) async fn close(&self, pane: &Pane) {
        // It may be gone already.
        let _ = self.ask(["kill-pane", "-t", &pane.id]).await;
    }

    /// What shows the terminal to somebody.
    pub(super) fn attach(&self, pane: &Pane) -> pty_process::Command {
        let mut command = pty_process::Command::new(&self.program);
        for word in self.socket() {
            command = command.arg(word);
        }
        command.args(["attach-session", "-t", &pane.id]).current_dir(&self.dir).env("TERM", "xterm-256color")
    }

    /// The socket as tmux is to be given it: where its path is too long, by its name alone from its directory. And that terminals
    /// are to be taken for such that know Unicode, whatever the task's locale.
    fn socket(&self) -> [String; 3] {
        let path = self.dir.join("tmux.sock");
        let path = if path.as_os_str().len() <= LONGEST_SOCKET { path } else { PathBuf::from("tmux.sock") };
        ["-u".to_owned(), "-S".to_owned(), path.to_string_lossy().into_owned()]
    }

    async fn ask<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> io::Result<String> {
        let mut command = Command::new(&self.program);
        command.args(self.socket()).args(["-f", "tmux.conf"]).args(words).current_dir(&self.dir);
        // It must not take a terminal of others for its own.
        command.env_remove("TMUX").env_remove("TMUX_PANE").stdin(Stdio::null()).kill_on_drop(true);
        let stuck = || io::Error::new(io::ErrorKind::TimedOut, "tmux does not answer");
        let done = timeout(PATIENCE, command.output()).await.map_err(|_| stuck())??;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
            return Err(io::Error::other(format!("tmux: {said}")));
        }
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }
}

/// A session's name as tmux can have it.
pub(super) fn terminal_name(name: &str) -> String {
    name.replace('.', "=")
}

fn parse_state(said: &str, pane: &Pane) -> PaneState {
    let pid = pane.pid.to_string();
    for line in said.lines() {
        let mut words = line.split(' ');
        if words.next() != Some(pane.id.as_str()) || words.next() != Some(&pid) {
            continue;
        }
        if words.next() != Some("1") {
            return PaneState::Lives;
        }
        let mut number = || words.next().and_then(|word| word.parse::<i32>().ok());
        let (status, signal) = (number(), number());
        return PaneState::Dead(status.or(signal.map(|signal| 128 + signal)));
    }
    PaneState::Gone
}

impl Geometry {
    pub(super) fn size(self) -> pty_process::Size {
        pty_process::Size::new(self.rows.max(1), self.columns.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_pane_is_read() {
        let pane = |id: &str, pid| Pane { id: id.into(), pid };
        let said = "%0 10 0  \n%1 11 1 3 \n%2 12 1  9\n%3 13 1  \n";
        assert_eq!(parse_state(said, &pane("%0", 10)), PaneState::Lives);
        assert_eq!(parse_state(said, &pane("%1", 11)), PaneState::Dead(Some(3)));
        assert_eq!(parse_state(said, &pane("%2", 12)), PaneState::Dead(Some(137)));
        assert_eq!(parse_state(said, &pane("%3", 13)), PaneState::Dead(None));
        // Of another server, which counts anew.
        assert_eq!(parse_state(said, &pane("%0", 99)), PaneState::Gone);
    }

    #[test]
    fn a_dot_is_no_part_of_a_terminals_name() {
        assert_eq!(terminal_name("task0.bert"), "task0=bert");
    }
}
