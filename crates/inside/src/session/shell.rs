//! A session's shell, in whichever terminal.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_model::session::Terminal;
use tokio::process::Child;

use super::process;
use super::pty::Held;
use super::tmux::{Pane, PaneState, Tmux};

/// Where a shell is.
#[derive(Clone)]
pub(super) enum Shell {
    Tmux(Tmux, Pane),
    Pty(Arc<Held>, i32),
}

/// What tells of its end.
pub(super) enum Life {
    Tmux(Tmux, Pane),
    Pty(Box<Child>),
}

impl Shell {
    pub(super) fn terminal(&self) -> Terminal {
        match self {
            Shell::Tmux(..) => Terminal::Tmux,
            Shell::Pty(..) => Terminal::Pty,
        }
    }

    pub(super) fn pid(&self) -> i32 {
        match self {
            Shell::Tmux(_, pane) => pane.pid,
            Shell::Pty(_, pid) => *pid,
        }
    }

    pub(super) async fn type_line(&self, line: &str) -> io::Result<()> {
        match self {
            Shell::Tmux(tmux, pane) => tmux.type_line(pane, line).await,
            Shell::Pty(held, _) => held.type_in(line.as_bytes()).await,
        }
    }

    /// Takes its terminal away, and with it the shell and what runs in it.
    pub(super) async fn close(&self) {
        use rustix::process::{Pid, Signal, kill_process, kill_process_group};
        if let Shell::Tmux(tmux, pane) = self {
            tmux.close(pane).await;
        }
        let Some(pid) = Pid::from_raw(self.pid()) else { return };
        let foreground = process::Look::at(self.pid()).ok().and_then(|look| look.group());
        // They may be gone already.
        let _ = kill_process(pid, Signal::HUP);
        let _ = foreground.map(|group| kill_process_group(group, Signal::HUP));
    }
}

impl Life {
    /// Waits for the shell's end, and says with which status, where that can be known. 128 and its number for a signal.
    pub(super) async fn ended(&mut self) -> Option<i32> {
        match self {
            Life::Tmux(tmux, pane) => {
                process::gone(pane.pid).await;
                // The kernel tells us as soon as it tells tmux.
                for _ in 0..50 {
                    match tmux.look(pane).await {
                        Ok(PaneState::Dead(Some(status))) => return Some(status),
                        Ok(PaneState::Gone) | Err(_) => return None,
                        Ok(PaneState::Lives | PaneState::Dead(None)) => {
                            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                        }
                    }
                }
                None
            }
            Life::Pty(child) => {
                let status = child.wait().await.ok()?;
                status.code().or(status.signal().map(|signal| 128 + signal))
            }
        }
    }
}

/// The user's shell, if it is one that can be told what to do, or one that is there.
pub(super) fn choose() -> PathBuf {
    let wanted = std::env::var_os("SHELL").map(PathBuf::from).filter(|shell| is_posix(shell));
    let known = ["/bin/bash", "/usr/bin/bash", "/bin/sh"].map(PathBuf::from);
    wanted.into_iter().chain(known).find(|shell| can_run(shell)).unwrap_or_else(|| PathBuf::from("/bin/sh"))
}

fn is_posix(shell: &Path) -> bool {
    let name = shell.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    shell.is_absolute() && ["bash", "zsh", "sh", "dash", "ksh", "mksh", "ash"].contains(&name)
}

fn can_run(file: &Path) -> bool {
    file.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}
