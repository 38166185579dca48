//! The end that has the files.
//!
//! Symbolic links below a source are sent as links. A source that is itself a link is followed: whoever names it means what
//! it leads to. Pipes, sockets and devices are left out, with a note.

use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};

use super::channel::Channel;
use super::frame::{self, BATCH_BYTES, BATCH_ENTRIES, Choice, Done, Message, PIECE};
use super::{Error, Watch, Wire, part, reason, source};
use crate::listing::{Entry, Kind, MAX_DEPTH, MAX_PATH, Time};
use crate::unpack::Walk;

/// A batch of so many bytes of content is full, so that the receiver's word on them is not too far behind. Large, because what
/// is known of the size of a copy is what was found for the batch.
const BATCH_CONTENT: u64 = 16 << 30;

/// Something to be copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Where it is.
    pub path: PathBuf,
    /// What it is called where it goes; its contents go there themselves if it has no name.
    pub base: Option<Vec<u8>>,
}

/// Sends sources. `is_several` where they were more to begin with, so that they can only go into a directory.
pub fn send<W: Wire>(
    channel: &mut Channel<W>,
    sources: &[Source],
    is_several: bool,
    watch: &mut dyn Watch,
) -> Result<(), Error> {
    let base = match sources {
        [one] if !is_several => one.base.clone(),
        _ => None,
    };
    channel.send(&Message::Begin { is_several: is_several || base.is_none(), base })?;
    let mut sender =
        Sender { channel, watch, sources, batch: Batch::default(), sent: Vec::new(), open: None };
    let mut names = HashSet::new();
    for (index, source) in sources.iter().enumerate() {
        if source.base.as_ref().is_some_and(|base| !names.insert(base)) {
            let path = source::bytes(&source.path);
            sender.problem(
                &path,
                "another source has the same name, and one would replace the other",
                true,
            )?;
            continue;
        }
        sender.source(index)?;
    }
    sender.finish()
}

/// Entries that were found and not yet named to the receiver.
#[derive(Default)]
struct Batch {
    entries: Vec<Entry>,
    /// Which source each is of.
    sources: Vec<usize>,
    length: usize,
    content: u64,
}

struct Sender<'a, W> {
    channel: &'a mut Channel<W>,
    watch: &'a mut dyn Watch,
    sources: &'a [Source],
    batch: Batch,
    /// Entries whose content was sent, and which the receiver has yet to report on: those of the last batch.
    sent: Vec<Option<(Vec<u8>, u64)>>,
    /// The source whose files were read last.
    open: Option<(usize, Walk)>,
}

impl<W: Wire> Sender<'_, W> {
    fn source(&mut self, index: usize) -> Result<(), Error> {
        let Source { path, base } = &self.sources[index];
        let name = source::bytes(path);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let stat = match rustix::fs::stat(path) {
            Ok(stat) => stat,
            Err(errno) => return self.problem(&name, &reason(&errno.into()), true),
        };
        let mut at = base.clone().unwrap_or_default();
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => match rustix::fs::open(path, flags | OFlags::DIRECTORY, Mode::empty()) {
                Ok(opened) => {
                    self.push(index, entry(at.clone(), Kind::Directory, &stat))?;
                    self.level(index, opened, &mut at, 0)
                }
                Err(errno) => self.problem(&name, &reason(&errno.into()), true),
            },
            FileType::RegularFile if base.is_some() => {
                self.push(index, entry(at, Kind::File { size: size(&stat) }, &stat))
            }
            _ => self.problem(&name, "it is neither a file nor a directory", true),
        }
    }

    /// Everything in a directory, as the directory gives it.
    fn level(
        &mut self,
        index: usize,
        opened: OwnedFd,
        path: &mut Vec<u8>,
        depth: usize,
    ) -> Result<(), Error> {
        let listing = match Dir::read_from(&opened) {
            Ok(listing) => listing,
            Err(errno) => return self.problem(path, &reason(&errno.into()), true),
        };
        for found in listing {
            let found = match found {
                Ok(found) => found,
                Err(errno) => return self.problem(path, &reason(&errno.into()), true),
            };
            let name = found.file_name();
            if matches!(name.to_bytes(), b"." | b"..") || part::is_part(name.to_bytes()) {
                continue;
            }
            let length = path.len();
            if length > 0 {
                path.push(b'/');
            }
            path.extend(name.to_bytes());
            self.found(index, opened.as_fd(), name, path, depth)?;
            path.truncate(length);
        }
        Ok(())
    }

    fn found(
        &mut self,
        index: usize,
        at: BorrowedFd<'_>,
        name: &CStr,
        path: &mut Vec<u8>,
        depth: usize,
    ) -> Result<(), Error> {
        let stat = match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // It has gone since the directory was read.
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(errno) => return self.problem(path, &reason(&errno.into()), true),
        };
        if path.len() >= MAX_PATH || depth >= MAX_DEPTH {
            return self.problem(path, "it lies too deep", true);
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                self.push(index, entry(path.clone(), Kind::File { size: size(&stat) }, &stat))
            }
            FileType::Symlink => match rustix::fs::readlinkat(at, name, Vec::new()) {
                Ok(target) => {
                    let kind = Kind::Link { target: target.into_bytes() };
                    self.push(index, entry(path.clone(), kind, &stat))
                }
                Err(errno) => self.problem(path, &reason(&errno.into()), true),
            },
            FileType::Directory => {
                self.push(index, entry(path.clone(), Kind::Directory, &stat))?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                match rustix::fs::openat(at, name, flags, Mode::empty()) {
                    Ok(opened) => self.level(index, opened, path, depth + 1),
                    Err(errno) => self.problem(path, &reason(&errno.into()), true),
                }
            }
            _ => self.problem(path, "it is a pipe, a socket or a device, and left out", false),
        }
    }

    fn push(&mut self, index: usize, entry: Entry) -> Result<(), Error> {
        if self.watch.is_done(&entry.path) {
            return Ok(());
        }
        self.batch.length += frame::length(&entry);
        self.batch.content += entry.size();
        self.batch.entries.push(entry);
        self.batch.sources.push(index);
        let batch = &self.batch;
        let is_full = batch.entries.len() >= BATCH_ENTRIES
            || batch.length >= BATCH_BYTES
            || batch.content >= BATCH_CONTENT;
        if is_full { self.exchange() } else { Ok(()) }
    }

    /// Names what was found, hears what is wanted of it, and sends that.
    fn exchange(&mut self) -> Result<(), Error> {
        let Batch { entries, sources, content, .. } = std::mem::take(&mut self.batch);
        let files = entries.iter().filter(|entry| entry.kind != Kind::Directory).count();
        self.watch.found(files as u64, content);
        let batch = Message::Batch(entries);
        self.channel.send(&batch)?;
        self.channel.flush()?;
        let Message::Batch(entries) = batch else { return Ok(()) };
        self.settle()?;
        let choices = match self.channel.receive()? {
            Message::Plan(choices) if choices.len() == entries.len() => choices,
            _ => return Err(Error::Protocol("no plan for what was named")),
        };
        for ((entry, index), choice) in entries.into_iter().zip(sources).zip(choices) {
            let is_sent = self.act(index, &entry, choice)?;
            let size = entry.size();
            self.sent.push(is_sent.then_some((entry.path, size)));
        }
        self.channel.flush()
    }

    /// Does what the receiver chose; whether content was sent that it has yet to report on.
    fn act(&mut self, index: usize, entry: &Entry, choice: Choice) -> Result<bool, Error> {
        let size = entry.size();
        let is_file = matches!(entry.kind, Kind::File { .. });
        match choice {
            Choice::Refused(reason) => {
                self.watch.moved(size);
                self.watch.problem(&entry.path, &reason, true);
            }
            Choice::Same => {
                self.watch.moved(size);
                if entry.kind != Kind::Directory {
                    self.watch.skipped(&entry.path, size);
                }
            }
            Choice::Made if is_file => return Err(Error::Protocol("a file that makes itself")),
            Choice::Made => {
                if entry.kind != Kind::Directory {
                    self.watch.done(&entry.path, 0);
                }
            }
            Choice::Whole if is_file => return self.content(index, entry, None),
            Choice::From { offset, digest } if is_file => {
                return self.content(index, entry, Some((offset, digest)));
            }
            Choice::Whole | Choice::From { .. } => {
                return Err(Error::Protocol("a wish for the content of what has none"));
            }
        }
        Ok(false)
    }

    fn content(&mut self, index: usize, entry: &Entry, have: Option<(u64, [u8; 32])>) -> Result<bool, Error> {
        let opened = self.open(index, &entry.path).and_then(|file| Ok((rustix::fs::fstat(&file)?, file)));
        let (stat, mut file) = match opened {
            Ok((stat, file)) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                (stat, file)
            }
            Ok(_) => return self.unreadable(entry, "it is not a file any more"),
            Err(error) => return self.unreadable(entry, &reason(&error)),
        };
        let mut at = 0;
        if let Some((offset, digest)) = have {
            match begins_with(&mut file, offset, &digest) {
                Ok(true) => at = offset,
                Ok(false) => {}
                Err(error) => return self.unreadable(entry, &reason(&error)),
            }
            if let Err(error) = file.seek(SeekFrom::Start(at)) {
                return self.unreadable(entry, &reason(&error));
            }
            self.channel.send(&Message::Start(at))?;
            self.watch.moved(at);
        }
        // What is being written to is longer later: what it is now is sent.
        let size = size(&stat);
        while at < size {
            match self.channel.send_piece(&mut file, size - at)? {
                Ok(0) => break,
                Ok(count) => {
                    at += count as u64;
                    self.watch.moved(count as u64);
                }
                Err(error) => return self.unreadable(entry, &reason(&error)),
            }
            if at < size && self.channel.is_ready()? {
                // Only that it gives up can be said now.
                self.channel.receive()?;
                return Err(Error::Protocol("a word out of turn"));
            }
        }
        if rustix::fs::fstat(&file)
            .is_ok_and(|now| mtime(&now) != mtime(&stat) || now.st_size != stat.st_size)
        {
            self.problem(&entry.path, "it changed while it was copied", false)?;
        }
        self.channel.send(&Message::Done(Done::Whole { mode: stat.st_mode & 0o777, mtime: mtime(&stat) }))?;
        Ok(true)
    }

    fn open(&mut self, index: usize, path: &[u8]) -> io::Result<File> {
        let Source { path: root, base } = &self.sources[index];
        let base = base.as_deref().unwrap_or_default();
        let below = path[base.len()..].strip_prefix(b"/").unwrap_or(&path[base.len()..]);
        if below.is_empty() {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
            return Ok(rustix::fs::open(root, flags, Mode::empty())?.into());
        }
        let walk = match &mut self.open {
            Some((open, walk)) if *open == index => walk,
            other => &mut other.insert((index, Walk::open(root)?)).1,
        };
        walk.read(below).map_err(|error| match error.disk() {
            Some(source) => source.kind().into(),
            None => io::Error::other(error.to_string()),
        })
    }

    /// A file whose content does not come, or not all of it.
    fn unreadable(&mut self, entry: &Entry, reason: &str) -> Result<bool, Error> {
        self.watch.problem(&entry.path, reason, true);
        self.channel.send(&Message::Done(Done::Failed(reason.to_owned())))?;
        Ok(false)
    }

    /// What goes wrong here the other end is to know, too.
    fn problem(&mut self, path: &[u8], reason: &str, is_failure: bool) -> Result<(), Error> {
        self.watch.problem(path, reason, is_failure);
        self.channel.problem(path, reason, is_failure)
    }

    /// Hears what became of the last batch.
    fn settle(&mut self) -> Result<(), Error> {
        if self.sent.is_empty() {
            return Ok(());
        }
        let Message::Report(failed) = self.channel.receive()? else {
            return Err(Error::Protocol("no report on what was sent"));
        };
        let mut sent = std::mem::take(&mut self.sent);
        for (index, reason) in failed {
            let Some(place) = sent.get_mut(index as usize) else {
                return Err(Error::Protocol("a report on something else"));
            };
            if let Some((path, _)) = place.take() {
                self.watch.problem(&path, &reason, true);
            }
        }
        for (path, size) in sent.into_iter().flatten() {
            self.watch.done(&path, size);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), Error> {
        if !self.batch.entries.is_empty() {
            self.exchange()?;
        }
        self.channel.send(&Message::End)?;
        self.channel.flush()?;
        self.settle()?;
        loop {
            match self.channel.receive()? {
                Message::Finished => return Ok(()),
                Message::Passing(bytes) => self.watch.found(0, bytes),
                Message::Passed(bytes) => self.watch.moved(bytes),
                Message::Problem { path, reason, is_failure } => {
                    self.watch.problem(&path, &reason, is_failure);
                }
                _ => return Err(Error::Protocol("something else than its last word")),
            }
        }
    }
}

/// Whether a file begins with so many bytes of this digest.
fn begins_with(file: &mut File, length: u64, digest: &[u8; 32]) -> io::Result<bool> {
    Ok(hash(file, length)?.is_some_and(|found| found == *digest))
}

/// The digest of the first bytes of a file; none if it has fewer.
pub(super) fn hash(file: &mut File, length: u64) -> io::Result<Option<[u8; 32]>> {
    file.seek(SeekFrom::Start(0))?;
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; PIECE];
    let mut left = length;
    while left > 0 {
        let room = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        match file.read(&mut block[..room]) {
            Ok(0) => return Ok(None),
            Ok(count) => {
                hasher.update(&block[..count]);
                left -= count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(*hasher.finalize().as_bytes()))
}

fn entry(path: Vec<u8>, kind: Kind, stat: &Stat) -> Entry {
    Entry { path, kind, mode: stat.st_mode & 0o777, mtime: mtime(stat) }
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

pub(super) fn mtime(stat: &Stat) -> Time {
    Time { seconds: stat.st_mtime, nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) }
}
