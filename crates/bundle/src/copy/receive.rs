//! The end that gets the files.

use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};

use globset::GlobMatcher;
use rustix::fs::FileType;

use super::channel::Channel;
use super::frame::{Choice, Done, Message};
use super::part::Part;
use super::place::{Destination, Place, is_directory};
use super::send::{Source, hash, mtime};
use super::source::{base, has_pattern, is_match, matcher};
use super::{Error, Watch, Wire, reason};
use crate::listing::{Entry, Kind, Time, shown};

/// A part of a smaller file is not worth looking at.
const WORTH_RESUMING: u64 = 1 << 20;
/// Parts of one batch that go on. A copy that was cut off leaves one; more are begun anew.
const MAX_RESUMED: usize = 16;

/// What was asked for, so that nothing else is written: who sends may be anybody's program.
#[derive(Debug)]
pub struct Expected {
    bases: Vec<Vec<u8>>,
    patterns: Vec<GlobMatcher>,
    is_anything: bool,
}

impl Expected {
    /// Whatever comes.
    pub fn anything() -> Expected {
        Expected { bases: Vec::new(), patterns: Vec::new(), is_anything: true }
    }

    /// What these names mean. A directory without a name may have anything in it.
    pub fn of<'a>(asked: impl IntoIterator<Item = &'a [u8]>) -> Expected {
        let mut expected = Expected { is_anything: false, ..Expected::anything() };
        for text in asked {
            match base(text) {
                Some(base) => {
                    expected.patterns.extend(matcher(base).filter(|_| has_pattern(base)));
                    expected.bases.push(base.to_vec());
                }
                None => expected.is_anything = true,
            }
        }
        expected
    }

    fn includes(&self, path: &[u8]) -> bool {
        let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
        self.is_anything
            || self.bases.iter().any(|base| base == first)
            || self.patterns.iter().any(|pattern| is_match(pattern, first))
    }
}

/// Receives files.
pub struct Receiver<'a, W> {
    /// From there.
    pub channel: &'a mut Channel<W>,
    /// To here.
    pub to: Destination,
    /// These.
    pub expected: Expected,
    /// Also what is the same.
    pub force: bool,
    /// Who is told.
    pub watch: &'a mut dyn Watch,
}

/// What came, for whoever passes it on.
#[derive(Debug, Default)]
pub struct Arrived {
    /// What it is made of, where it is now.
    pub sources: Vec<Source>,
    /// It can only go into a directory.
    pub is_several: bool,
    /// How large it is.
    pub bytes: u64,
    hasher: RandomState,
    /// All of it: in a directory that was there, other things lie beside it.
    paths: HashSet<u64>,
}

impl Arrived {
    /// Whether this came. A path is as its source was named, whatever it is called here.
    pub fn has(&self, path: &[u8]) -> bool {
        self.paths.contains(&self.hasher.hash_one(path))
    }

    fn add(&mut self, entry: &Entry, place: &Place) {
        self.paths.insert(self.hasher.hash_one(&entry.path));
        self.bytes += entry.size();
        if !entry.path.is_empty() && !entry.path.contains(&b'/') {
            let base = Some(entry.path.clone());
            self.sources.push(Source { path: place.path(&entry.path), base });
        }
    }
}

/// A directory that gets its mode and its time when all is in it.
struct Unsealed {
    name: Vec<u8>,
    mode: u32,
    mtime: Time,
}

impl<W: Wire> Receiver<'_, W> {
    /// Receives everything.
    pub fn run(mut self) -> Result<(), Error> {
        self.receive(None)?;
        self.channel.finish()
    }

    /// Receives everything, and says what it was. The sender waits for the [last word](Channel::finish).
    pub fn take(mut self) -> Result<Arrived, Error> {
        let mut arrived = Arrived::default();
        self.receive(Some(&mut arrived))?;
        Ok(arrived)
    }

    fn receive(&mut self, mut arrived: Option<&mut Arrived>) -> Result<(), Error> {
        let base = match self.next()? {
            Message::Begin { is_several, base } => {
                self.to.is_directory |= is_several;
                base
            }
            _ => return Err(Error::Protocol("no beginning")),
        };
        let mut place = match Place::find(&self.to, base.as_deref()) {
            Ok(place) => place,
            Err(reason) => return Err(self.channel.give_up(&reason)),
        };
        let mut unsealed = Vec::new();
        if let Some(arrived) = &mut arrived {
            arrived.is_several = !place.is_renamed();
        }
        loop {
            match self.next()? {
                Message::Batch(entries) => {
                    self.batch(&entries, &mut place, &mut unsealed)?;
                    if let Some(arrived) = &mut arrived {
                        entries.iter().for_each(|entry| arrived.add(entry, &place));
                    }
                }
                Message::End => break,
                _ => return Err(Error::Protocol("a word out of turn")),
            }
        }
        seal(&mut place, &mut unsealed, None);
        place.finish();
        Ok(())
    }

    /// The next word that is not about what went wrong there.
    fn next(&mut self) -> Result<Message, Error> {
        loop {
            match self.channel.receive()? {
                Message::Problem { path, reason, is_failure } => {
                    self.watch.problem(&path, &reason, is_failure);
                }
                message => return Ok(message),
            }
        }
    }

    fn batch(
        &mut self,
        entries: &[Entry],
        place: &mut Place,
        unsealed: &mut Vec<Unsealed>,
    ) -> Result<(), Error> {
        let files = entries.iter().filter(|entry| entry.kind != Kind::Directory).count();
        let bytes = entries.iter().fold(0, |sum: u64, entry| sum.saturating_add(entry.size()));
        self.watch.found(files as u64, bytes);
        let mut parts = Vec::new();
        let mut choices = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            if !self.expected.includes(&entry.path) {
                let what = format!("`{}` was sent, which was not asked for", shown(&entry.path));
                return Err(self.channel.give_up(&what));
            }
            let name = place.name(&entry.path);
            let choice = match &entry.kind {
                Kind::Directory => self.directory(entry, name, place, unsealed),
                Kind::Link { target } => self.link(entry, &name, target, place),
                Kind::File { size } => self.file(entry, &name, *size, place, (index, &mut parts)),
            };
            choices.push(choice.unwrap_or_else(|reason| {
                self.watch.moved(entry.size());
                self.watch.problem(&entry.path, &reason, true);
                Choice::Refused(reason)
            }));
        }
        let plan = Message::Plan(choices);
        self.channel.send(&plan)?;
        self.channel.flush()?;
        let Message::Plan(choices) = plan else { return Ok(()) };
        let failed = self.contents(entries, &choices, place, parts)?;
        self.channel.send(&Message::Report(failed))?;
        self.channel.flush()?;
        let last = entries.last().map(|entry| place.name(&entry.path));
        seal(place, unsealed, last.as_deref());
        Ok(())
    }

    fn directory(
        &mut self,
        entry: &Entry,
        name: Vec<u8>,
        place: &mut Place,
        unsealed: &mut Vec<Unsealed>,
    ) -> Result<Choice, String> {
        if !entry.path.contains(&b'/') {
            place.begin_directory(&entry.path);
        }
        place.directory(&name)?;
        // The directory that the user named is the user's.
        if !name.is_empty() {
            unsealed.push(Unsealed { name, mode: entry.mode, mtime: entry.mtime });
        }
        Ok(Choice::Made)
    }

    fn link(
        &mut self,
        entry: &Entry,
        name: &[u8],
        target: &[u8],
        place: &mut Place,
    ) -> Result<Choice, String> {
        if place.link(entry, name, target)? {
            self.watch.done(&entry.path, 0);
            return Ok(Choice::Made);
        }
        self.watch.skipped(&entry.path, 0);
        Ok(Choice::Same)
    }

    fn file(
        &mut self,
        entry: &Entry,
        name: &[u8],
        size: u64,
        place: &mut Place,
        (index, parts): (usize, &mut Vec<(usize, Part)>),
    ) -> Result<Choice, String> {
        if let Some(there) = place.stat(name)? {
            if is_directory(&there) {
                return Err("a directory of that name is there, and is not replaced".into());
            }
            let is_same = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile
                && u64::try_from(there.st_size) == Ok(size)
                && mtime(&there) == entry.mtime;
            if is_same && (!self.force || self.watch.is_done(&entry.path)) {
                if there.st_mode & 0o777 != entry.mode {
                    place.set_mode(name, entry.mode);
                }
                self.watch.moved(size);
                self.watch.skipped(&entry.path, size);
                return Ok(Choice::Same);
            }
        }
        if size < WORTH_RESUMING || parts.len() >= MAX_RESUMED {
            return Ok(Choice::Whole);
        }
        let Some(mut part) = place.part(name, false)? else { return Ok(Choice::Whole) };
        let offset = part.length;
        // One that cannot be read, or is longer than what it would be a part of, is none.
        let digest = hash(&mut part.file, offset).ok().flatten().filter(|_| (1..=size).contains(&offset));
        let choice = match digest {
            Some(digest) => Choice::From { offset, digest },
            None => Choice::From { offset: 0, digest: *blake3::hash(b"").as_bytes() },
        };
        parts.push((index, part));
        Ok(choice)
    }

    /// The contents that were chosen; which of them could not be written.
    fn contents(
        &mut self,
        entries: &[Entry],
        choices: &[Choice],
        place: &mut Place,
        parts: Vec<(usize, Part)>,
    ) -> Result<Vec<(u32, String)>, Error> {
        let mut failed = Vec::new();
        let mut parts = parts.into_iter().peekable();
        for (index, (entry, choice)) in entries.iter().zip(choices).enumerate() {
            if !matches!(choice, Choice::Whole | Choice::From { .. }) {
                continue;
            }
            let part = parts.next_if(|(of, _)| *of == index).map(|(_, part)| part);
            let name = place.name(&entry.path);
            let file = Incoming { name: &name, entry, part, problem: None };
            if let Some(reason) = self.content(file, place)? {
                self.watch.problem(&entry.path, &reason, true);
                failed.push((index as u32, reason));
            }
        }
        Ok(failed)
    }

    /// The content of one file; why it could not be written, if it could not.
    fn content(&mut self, mut file: Incoming<'_>, place: &mut Place) -> Result<Option<String>, Error> {
        let mut length = 0;
        let is_resumed = file.part.is_some();
        let mut is_started = !is_resumed;
        loop {
            match self.next()? {
                Message::Start(offset) if !is_started => {
                    is_started = true;
                    let part = file.part.as_mut().filter(|part| offset == 0 || offset == part.length);
                    let Some(part) = part else { return Err(Error::Protocol("a wrong beginning")) };
                    file.problem = part.cut(offset).err().map(|error| reason(&error));
                    self.watch.moved(offset);
                    length = offset;
                }
                Message::Data(count) if is_started => {
                    file.open(place);
                    let full = self.write(count, &mut file)?;
                    if let Some(error) = full {
                        let what = format!("cannot write {}: {}", shown(file.name), reason(&error));
                        return Err(self.channel.give_up(&what));
                    }
                    length += count as u64;
                    self.watch.moved(count as u64);
                }
                Message::Done(Done::Whole { mode, mtime }) if is_started => {
                    file.open(place);
                    let problem = file.finish(place, mode, mtime);
                    if problem.is_none() {
                        self.watch.done(&file.entry.path, length);
                    }
                    return Ok(problem);
                }
                Message::Done(Done::Failed(reason)) => {
                    // The sender knows.
                    self.watch.problem(&file.entry.path, &reason, true);
                    if let Some(part) = file.part.take_if(|_| !is_resumed) {
                        place.remove_part(part, file.name);
                    }
                    return Ok(None);
                }
                _ => return Err(Error::Protocol("something else than content")),
            }
        }
    }

    /// Writes a piece of a file. The error is one that would meet every other file, too: there is no use in going on.
    fn write(&mut self, count: usize, file: &mut Incoming<'_>) -> Result<Option<io::Error>, Error> {
        let mut error = None;
        self.channel.content(count, |bytes| {
            let Some(part) = file.part.as_mut().filter(|_| error.is_none() && file.problem.is_none()) else {
                return;
            };
            error = (&part.file as &File).write_all(bytes).err();
        })?;
        match error {
            Some(error) if is_everywhere(&error) => Ok(Some(error)),
            Some(error) => {
                file.problem = Some(reason(&error));
                Ok(None)
            }
            None => Ok(None),
        }
    }
}

/// A file whose content comes.
struct Incoming<'a> {
    name: &'a [u8],
    entry: &'a Entry,
    part: Option<Part>,
    /// Why it cannot be written; its content is read all the same.
    problem: Option<String>,
}

impl Incoming<'_> {
    fn open(&mut self, place: &mut Place) {
        if self.part.is_some() || self.problem.is_some() {
            return;
        }
        let opened = place.part(self.name, true).and_then(|part| match part {
            Some(mut part) => part.cut(0).map(|()| part).map_err(|error| reason(&error)),
            None => Err("it cannot be made".into()),
        });
        match opened {
            Ok(part) => self.part = Some(part),
            Err(problem) => self.problem = Some(problem),
        }
    }

    fn finish(&mut self, place: &mut Place, mode: u32, mtime: Time) -> Option<String> {
        let part = self.part.take()?;
        match self.problem.take() {
            None => place.finish_part(part, self.name, mode, mtime).err(),
            problem => {
                place.remove_part(part, self.name);
                problem
            }
        }
    }
}

fn is_everywhere(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Gives directories their modes and times, save those that `within` lies in: more may come there.
fn seal(place: &mut Place, unsealed: &mut Vec<Unsealed>, within: Option<&[u8]>) {
    let is_open = |name: &[u8]| {
        within.is_some_and(|path| {
            path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        })
    };
    let (keep, done): (Vec<_>, Vec<_>) = unsealed.drain(..).partition(|directory| is_open(&directory.name));
    for Unsealed { name, mode, mtime } in done.into_iter().rev() {
        place.seal(&name, mode, mtime);
    }
    *unsealed = keep;
}
