//! Terminals held by this process, where the machine has no tmux. Its end is theirs.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use pty_process::{OwnedReadPty, OwnedWritePty};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;
use tokio::sync::broadcast;

use super::{Geometry, SIZE};

/// What is shown to somebody who sits down: a few screens.
const RECENT: usize = 64 << 10;
/// Pieces that a slow viewer may be behind before it misses some.
const BEHIND: usize = 256;

/// A terminal.
pub(super) struct Held {
    keyboard: tokio::sync::Mutex<OwnedWritePty>,
    screen: Screen,
}

/// What it shows, to whoever looks.
#[derive(Clone)]
pub(super) struct Screen {
    recent: Arc<Mutex<VecDeque<u8>>>,
    live: broadcast::Sender<Arc<[u8]>>,
}

impl Held {
    /// Starts a shell; whoever calls has to let [`Screen::show`] run.
    pub(super) fn open(cwd: &Path, shell: &Path) -> io::Result<(Held, OwnedReadPty, Child)> {
        let (pty, pts) = pty_process::open().map_err(io::Error::other)?;
        pty.resize(SIZE.size()).map_err(io::Error::other)?;
        let command = pty_process::Command::new(shell).arg("-i").current_dir(cwd);
        let command = command.env("TERM", "xterm-256color").kill_on_drop(true);
        let child = command.spawn(pts).map_err(io::Error::other)?;
        let (read, write) = pty.into_split();
        let screen = Screen { recent: Arc::default(), live: broadcast::channel(BEHIND).0 };
        Ok((Held { keyboard: write.into(), screen }, read, child))
    }

    pub(super) async fn type_in(&self, bytes: &[u8]) -> io::Result<()> {
        self.keyboard.lock().await.write_all(bytes).await
    }

    pub(super) async fn resize(&self, geometry: Geometry) {
        // A terminal of the wrong size is better than none.
        let _ = self.keyboard.lock().await.resize(geometry.size());
    }

    pub(super) fn screen(&self) -> Screen {
        self.screen.clone()
    }
}

impl Screen {
    /// Reads what the terminal shows, for as long as it is there. It must be read also when nobody looks, or its programs would
    /// wait.
    pub(super) async fn show(self, mut terminal: OwnedReadPty) {
        let mut piece = [0; 16 << 10];
        while let Ok(count @ 1..) = terminal.read(&mut piece).await {
            let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            recent.extend(&piece[..count]);
            let excess = recent.len().saturating_sub(RECENT);
            recent.drain(..excess);
            // Nobody may be looking.
            let _ = self.live.send(piece[..count].into());
        }
    }

    /// What is there, and what will come.
    pub(super) fn look(&self) -> (Vec<u8>, broadcast::Receiver<Arc<[u8]>>) {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        (recent.iter().copied().collect(), self.live.subscribe())
    }
}
