//! The `sftp` subsystem: a task's files, for whatever client people have.
//!
//! Requests are answered in order, many at a time: while one batch is at the disk, on a thread of its own, the answers of the one
//! before are on their way and the requests of the next come in. So a copy runs at the pace of the slowest of disk, cipher and
//! network, and not of their sum.
//!
//! Requests are taken in even while answers cannot be sent. A client may ask for a whole file at once, and only then look at
//! what comes; nothing would come if its next word, that there is room again, were behind requests that nobody takes.
//! That, and names that are not UTF-8, are why this is not the server of `russh-sftp`.

mod files;
mod listing;
mod wire;

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use russh::server::Msg;
use russh::{Channel, ChannelMsg};
use tokio::task::{JoinHandle, spawn_blocking};

use self::files::Files;
use self::wire::{MAX_PACKET, Malformed};

/// What one batch may have of requests, or answer with. Large enough that handing it over costs nothing.
const BATCH_BYTES: usize = 1024 * 1024;
/// Answers that are made before those ahead of them are sent.
const AHEAD_BYTES: usize = 4 * 1024 * 1024;
/// Requests that are taken before those ahead of them are answered. OpenSSH has 16 MiB of a file on its way at most, so a disk that
/// hangs holds up this session and never its connection.
const INBOX_BYTES: usize = 20 * 1024 * 1024;
/// The same while answers wait for the client: what it takes to read 250 GB that were asked for at once.
const INBOX_MAX: usize = 256 * 1024 * 1024;

/// Answers requests until the client has no more.
pub(super) async fn serve(channel: Channel<Msg>) {
    let (mut from, to) = channel.split();
    let mut session = Session::default();
    let sending = to.data_bytes(Bytes::new());
    tokio::pin!(sending);
    let mut is_sending = false;
    let outcome = loop {
        if let Err(error) = session.work() {
            break Err(error);
        }
        if !is_sending && let Some(answers) = session.next_answers() {
            sending.set(to.data_bytes(answers));
            is_sending = true;
        }
        if !is_sending && session.is_over() {
            break Ok(());
        }
        let step = tokio::select! {
            message = from.wait(), if session.has_room(is_sending) => match message {
                None | Some(ChannelMsg::Close) => break Ok(()),
                Some(message) => session.take(message),
            },
            worked = session.worked(), if session.work.is_some() => worked,
            sent = &mut sending, if is_sending => {
                is_sending = false;
                if sent.is_err() { break Ok(()) } else { Ok(()) }
            }
        };
        if step.is_err() {
            break step;
        }
    };
    // A client that has left needs no answer.
    let _ = to.exit_status(u32::from(outcome.is_err())).await;
    let _ = to.eof().await;
    let _ = to.close().await;
}

/// The files come back with their answers.
type Worked = (Files, Result<Vec<u8>, Malformed>);

/// Requests and answers between the client and the files.
#[derive(Default)]
struct Session {
    inbox: BytesMut,
    has_said_all: bool,
    /// They are away while they are at work.
    files: Files,
    work: Option<JoinHandle<Worked>>,
    answers: VecDeque<Bytes>,
}

impl Session {
    /// Whether requests are to be taken in.
    fn has_room(&self, is_sending: bool) -> bool {
        self.inbox.len() < INBOX_BYTES || is_sending
    }

    fn take(&mut self, message: ChannelMsg) -> Result<(), Malformed> {
        match message {
            ChannelMsg::Data { data } => self.inbox.extend_from_slice(&data),
            ChannelMsg::Eof => self.has_said_all = true,
            _ => {}
        }
        if self.inbox.len() < INBOX_MAX { Ok(()) } else { Err(Malformed) }
    }

    /// Hands the next requests over, if there are any and nothing stands in their way.
    fn work(&mut self) -> Result<(), Malformed> {
        let ahead: usize = self.answers.iter().map(Bytes::len).sum();
        if self.work.is_some() || ahead >= AHEAD_BYTES {
            return Ok(());
        }
        let (length, expected) = batch(&self.inbox)?;
        if length > 0 {
            let packets = self.inbox.split_to(length).freeze();
            let mut files = std::mem::take(&mut self.files);
            self.work = Some(spawn_blocking(move || {
                let answers = files.answer(&packets, expected);
                (files, answers)
            }));
        }
        Ok(())
    }

    async fn worked(&mut self) -> Result<(), Malformed> {
        let Some(work) = &mut self.work else { return Ok(()) };
        let worked = work.await;
        self.work = None;
        // It breaks off only when the process ends.
        let (files, answers) = worked.map_err(|_| Malformed)?;
        self.files = files;
        self.answers.push_back(answers?.into());
        Ok(())
    }

    fn next_answers(&mut self) -> Option<Bytes> {
        self.answers.pop_front()
    }

    fn is_over(&self) -> bool {
        // Half a request at the end is nobody's request.
        self.has_said_all && self.work.is_none() && self.answers.is_empty()
    }
}

/// How many bytes of the inbox are whole packets that can be answered together, and about how long the answer is.
fn batch(inbox: &[u8]) -> Result<(usize, usize), Malformed> {
    let (mut taken, mut expected) = (0, 0);
    while let Some((length, rest)) = inbox[taken..].split_first_chunk() {
        let length = u32::from_be_bytes(*length) as usize;
        if length > MAX_PACKET {
            return Err(Malformed);
        }
        let Some(packet) = rest.get(..length) else { break };
        expected += wire::expected(packet);
        taken += 4 + length;
        if taken >= BATCH_BYTES || expected >= BATCH_BYTES {
            break;
        }
    }
    Ok((taken, expected))
}
