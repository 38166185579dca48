//! Our standard input and outputs, each with a thread of its own: whoever reads or writes us may take any time, and
//! signals and the connection must not wait for it. The threads end with the process, never before what they have is
//! written.

use std::io;
use std::os::fd::AsFd;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::sync::{mpsc, oneshot};

use crate::threads;

/// How much is read at once: what fits a packet.
const PIECE: usize = 32 << 10;
/// Pieces that wait to be written. Little is ahead, so that the connection feels a slow reader, and the command with it.
const AHEAD: usize = 8;

/// Our standard input, from the moment it is opened.
pub(crate) struct Stdin {
    pieces: mpsc::Receiver<Bytes>,
}

impl Stdin {
    pub fn open() -> io::Result<Self> {
        // One piece ahead and no more: what the command does not want is for whoever reads after us.
        let (sender, pieces) = mpsc::channel(1);
        let started = threads::start(move || {
            let mut piece = vec![0; PIECE];
            loop {
                match rustix::io::read(io::stdin(), &mut piece) {
                    Ok(0) => return,
                    Ok(count) => {
                        if sender.blocking_send(Bytes::copy_from_slice(&piece[..count])).is_err() {
                            return;
                        }
                    }
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => wait(io::stdin(), PollFlags::IN),
                    // A terminal that is gone, or an input that was never there.
                    Err(_) => return,
                }
            }
        });
        started.map_err(io::Error::other)?;
        Ok(Self { pieces })
    }

    /// The next piece; none at the end.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.pieces.recv().await
    }
}

/// One of our outputs. Its thread starts with the first piece: many commands write nothing.
pub(super) struct Sink {
    write: fn(&[u8]) -> io::Result<()>,
    running: Option<Running>,
}

struct Running {
    pieces: mpsc::Sender<Bytes>,
    done: oneshot::Receiver<io::Result<()>>,
}

impl Sink {
    pub fn stdout() -> Self {
        Self { write: |bytes| write_all(io::stdout(), bytes), running: None }
    }

    pub fn stderr() -> Self {
        Self { write: |bytes| write_all(io::stderr(), bytes), running: None }
    }

    /// Takes a piece, as soon as there is room for it.
    pub async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        let write = self.write;
        if self.running.is_none() {
            self.running = Some(Running::start(write)?);
        }
        let Some(running) = &self.running else { return Ok(()) };
        match running.pieces.send(bytes).await {
            Ok(()) => Ok(()),
            Err(_) => self.finish().await,
        }
    }

    /// Waits until everything is written.
    pub async fn finish(&mut self) -> io::Result<()> {
        let Some(running) = self.running.take() else { return Ok(()) };
        drop(running.pieces);
        running.done.await.unwrap_or(Ok(()))
    }
}

impl Running {
    fn start(write: fn(&[u8]) -> io::Result<()>) -> io::Result<Self> {
        let (pieces, mut receiver) = mpsc::channel::<Bytes>(AHEAD);
        let (sender, done) = oneshot::channel();
        let started = threads::start(move || {
            let mut written = Ok(());
            while let (Ok(()), Some(piece)) = (&written, receiver.blocking_recv()) {
                written = write(&piece);
            }
            // Nobody waits for it any more when the user leaves.
            let _ = sender.send(written);
        });
        started.map_err(io::Error::other)?;
        Ok(Self { pieces, done })
    }
}

/// Straight to the descriptor: our own buffers would only be in the way of what is not lines.
fn write_all(output: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(&output, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(&output, PollFlags::OUT),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// For a descriptor that somebody who shares it has made not to block.
fn wait(file: impl AsFd, flags: PollFlags) {
    // That it failed, the next try says.
    let _ = poll(&mut [PollFd::new(&file, flags)], None);
}
