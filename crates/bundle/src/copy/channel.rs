//! One end of the conversation: frames in, frames out, and contents straight from and to files.

use std::fs::File;
use std::io::{self, Read};

use super::frame::{Ask, DATA, MAX_FRAME, Message, PIECE};
use super::{Error, Wire};
use crate::listing::MAX_PATH;

const HEADER: usize = 5;
/// What a sender has ready before it writes.
const OUT: usize = 2 * (PIECE + HEADER);

/// One end of the conversation. What is sent waits until there is enough of it or it is [flushed](Channel::flush).
pub struct Channel<W> {
    wire: W,
    out: Box<[u8]>,
    filled: usize,
    input: Vec<u8>,
    /// What of the input was read and is not consumed.
    from: usize,
    to: usize,
}

impl<W: Wire> Channel<W> {
    /// Speaks over this.
    pub fn new(wire: W) -> Self {
        let (out, input) = (vec![0; OUT].into(), vec![0; PIECE + HEADER]);
        Channel { wire, out, filled: 0, input, from: 0, to: 0 }
    }

    /// Says what the caller wants.
    pub fn ask(&mut self, ask: &Ask) -> Result<(), Error> {
        self.send(&Message::Ask(ask.clone()))?;
        self.flush()
    }

    /// Hears what the caller wants.
    pub fn asked(&mut self) -> Result<Ask, Error> {
        match self.receive()? {
            Message::Ask(ask) => Ok(ask),
            _ => Err(Error::Protocol("something else than a question")),
        }
    }

    /// The receiver's last word: everything is where it was to go.
    pub fn finish(&mut self) -> Result<(), Error> {
        self.send(&Message::Finished)?;
        self.flush()
    }

    /// Says how much is passed on to peers.
    pub fn passing(&mut self, bytes: u64) -> Result<(), Error> {
        self.send(&Message::Passing(bytes))?;
        self.flush()
    }

    /// Says that more of it is there.
    pub fn passed(&mut self, bytes: u64) -> Result<(), Error> {
        self.send(&Message::Passed(bytes))?;
        self.flush()
    }

    /// Says what went wrong with a file where it was passed on to.
    pub fn problem(&mut self, path: &[u8], reason: &str, is_failure: bool) -> Result<(), Error> {
        let path = path[..path.len().min(MAX_PATH - 1)].to_vec();
        self.send(&Message::Problem { path, reason: reason.to_owned(), is_failure })
    }

    /// Gives up, with a word about it, and waits until the other end has heard it: what lies on the way would be lost otherwise.
    pub fn give_up(&mut self, reason: &str) -> Error {
        /// What may be on its way to us, with room to spare.
        const ON_ITS_WAY: usize = 256 << 20;
        let said = self.send(&Message::Failed(reason.to_owned())).and_then(|()| self.flush());
        let mut heard = 0;
        while said.is_ok() && heard < ON_ITS_WAY {
            match self.wire.read(&mut self.input) {
                Ok(0) | Err(_) => break,
                Ok(count) => heard += count,
            }
        }
        Error::Here(reason.to_owned())
    }

    pub(super) fn send(&mut self, message: &Message) -> Result<(), Error> {
        let bytes = message.encode();
        let header = header(message.kind(), bytes.len());
        self.put(&header)?;
        self.put(&bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if self.filled + bytes.len() > self.out.len() {
            self.write_out()?;
        }
        if bytes.len() > self.out.len() {
            return self.wire.write_all(bytes).map_err(Error::Lost);
        }
        self.out[self.filled..self.filled + bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
        Ok(())
    }

    fn write_out(&mut self) -> Result<(), Error> {
        let filled = std::mem::take(&mut self.filled);
        self.wire.write_all(&self.out[..filled]).map_err(Error::Lost)
    }

    /// Sends the next piece of a file, of at most `limit` bytes. The inner error is the file's.
    pub(super) fn send_piece(&mut self, file: &mut File, limit: u64) -> Result<io::Result<usize>, Error> {
        if self.filled + HEADER + PIECE > self.out.len() {
            self.write_out()?;
        }
        let room = usize::try_from(limit).unwrap_or(PIECE).min(PIECE);
        let begin = self.filled + HEADER;
        let read = loop {
            match file.read(&mut self.out[begin..begin + room]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        if let Ok(count @ 1..) = read {
            self.out[self.filled..begin].copy_from_slice(&header(DATA, count));
            self.filled = begin + count;
        }
        if self.filled >= PIECE {
            self.write_out()?;
        }
        Ok(read)
    }

    pub(super) fn flush(&mut self) -> Result<(), Error> {
        self.write_out()?;
        self.wire.flush().map_err(Error::Lost)
    }

    /// Whether something was said that can be heard now.
    pub(super) fn is_ready(&mut self) -> Result<bool, Error> {
        Ok(self.from < self.to || self.wire.is_ready().map_err(Error::Lost)?)
    }

    pub(super) fn receive(&mut self) -> Result<Message, Error> {
        self.want(HEADER)?;
        let kind = self.input[self.from];
        let length = u32::from_le_bytes(
            self.input[self.from + 1..self.from + HEADER]
                .try_into()
                .map_err(|_| Error::Protocol("half a number"))?,
        ) as usize;
        if length > MAX_FRAME {
            return Err(Error::Protocol("a frame that is longer than allowed"));
        }
        self.from += HEADER;
        if kind == DATA {
            return Ok(Message::Data(length));
        }
        self.want(length)?;
        let message = Message::decode(kind, &self.input[self.from..self.from + length]);
        self.from += length;
        match message {
            Some(Message::Failed(reason)) => Err(Error::Peer(reason)),
            Some(message) => Ok(message),
            None => Err(Error::Protocol("a frame that cannot be read")),
        }
    }

    /// Hands on `length` bytes of content as they come.
    pub(super) fn content(&mut self, length: usize, mut take: impl FnMut(&[u8])) -> Result<(), Error> {
        let mut left = length;
        while left > 0 {
            if self.from == self.to {
                self.fill()?;
            }
            let count = left.min(self.to - self.from);
            take(&self.input[self.from..self.from + count]);
            self.from += count;
            left -= count;
        }
        Ok(())
    }

    /// Reads until so many bytes are there.
    fn want(&mut self, length: usize) -> Result<(), Error> {
        while self.to - self.from < length {
            self.fill()?;
        }
        Ok(())
    }

    fn fill(&mut self) -> Result<(), Error> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        } else if self.to == self.input.len() {
            self.input.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
            if self.to == self.input.len() {
                self.input.resize(MAX_FRAME + HEADER, 0);
            }
        }
        loop {
            match self.wire.read(&mut self.input[self.to..]) {
                Ok(0) => return Err(Error::Lost(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    self.to += count;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Lost(error)),
            }
        }
    }
}

fn header(kind: u8, length: usize) -> [u8; HEADER] {
    let mut header = [kind; HEADER];
    header[1..].copy_from_slice(&(length as u32).to_le_bytes());
    header
}
