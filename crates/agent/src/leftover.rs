//! What the agent owes its server when its place is given back, where its files go with the place: it is printed.
//!
//! The order of what is printed is that of what may be lost: whoever keeps the text of a container keeps its end. So the
//! record of how tasks ended comes last, and says what became of the rest if that is missing.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use muster_bundle::listing;
use muster_link::leftover::{Entry, KINDS, Kind, Parcel, RECORD, WITHOUT};
use muster_link::log::{Header, Reader, Record as Output, SEGMENT_BYTES, SegmentDir, Stream};
use muster_model::TaskId;
use muster_model::task::Outputs;

use crate::files::Files;
use crate::files::collect::gather_here;
use crate::identity::Identity;
use crate::record::{Ended, Record, TaskDir};
use crate::supervisor::LAUNCH;

/// What may be printed, compressed: in base64 it is below what a kubelet keeps of a container's output by default.
const MOST: usize = 6 << 20;
/// Of which the log may be so much, where not all of it can be printed.
const MOST_OF_LOG: usize = 4 << 20;
/// What is longer than this is not even tried.
const MOST_PLAIN: u64 = 192 << 20;
/// The beginning of a log that is cut. The server may have some of it without the agent's having heard so, and the log goes on
/// from there: it is more than can be on its way.
const HEAD: u64 = 1 << 20;
/// The end of a log that is cut, if it can be.
const TAIL: u64 = 32 << 20;
const NO_ROOM: &str =
    "they were lost with the pod: no server came for them in time, and they were too much to keep in its log";
const LOST: &str = "they were lost with the pod: not all of its log was kept";

/// A task that is over and that the server has not heard all of.
#[derive(Debug, Clone)]
pub(crate) struct Owed {
    pub(crate) id: TaskId,
    pub(crate) dir: TaskDir,
    pub(crate) record: Record,
    pub(crate) ended: Ended,
    /// How much of its log the server has.
    pub(crate) acked: u64,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    Printed,
    /// It is worth waiting for the server.
    TooMuch,
}

/// Prints what is owed. If that is too much, and nobody `may_wait`, as much of it as is allowed.
pub(crate) fn leave(
    identity: &Identity,
    owed: &[Owed],
    open: impl Fn(&TaskId) -> io::Result<Option<Files>>,
    may_wait: bool,
    out: &mut impl Write,
) -> io::Result<Left> {
    let parcels = match whole(identity, owed, &open)? {
        Some(parcels) => parcels,
        None if may_wait => return Ok(Left::TooMuch),
        None => in_part(identity, owed)?,
    };
    for line in parcels.iter().flat_map(Parcel::lines) {
        out.write_all(line.as_bytes())?;
    }
    out.flush()?;
    Ok(Left::Printed)
}

/// Everything; none if it is too much.
fn whole(
    identity: &Identity,
    owed: &[Owed],
    open: &impl Fn(&TaskId) -> io::Result<Option<Files>>,
) -> io::Result<Option<Vec<Parcel>>> {
    let (mut logs, mut outputs, mut plain) = (Vec::new(), Vec::new(), 0);
    for task in owed {
        let start = task.dir.log().start_for(task.acked).map_err(io::Error::other)?;
        plain += task.dir.log().end().map_err(io::Error::other)?.saturating_sub(start.unwrap_or(0));
        if plain > MOST_PLAIN {
            return Ok(None);
        }
        logs.extend(task.log(start.unwrap_or(0)).map_err(io::Error::other)?);
        let Some(entries) = task.outputs(open, &mut plain)? else { return Ok(None) };
        outputs.extend(entries);
    }
    let tasks = owed.iter().map(|task| (task, task.ended.clone())).collect::<Vec<_>>();
    let parcels = [
        Parcel::pack("outputs", &outputs)?,
        Parcel::pack("log", &logs)?,
        record(identity, &tasks, "outputs log")?,
    ];
    drop((outputs, logs));
    let bytes: usize = parcels.iter().map(Parcel::bytes).sum();
    Ok((bytes <= MOST).then(|| parcels.into()))
}

/// How tasks ended, and the beginning and the end of their logs.
fn in_part(identity: &Identity, owed: &[Owed]) -> io::Result<Vec<Parcel>> {
    let mut tail = TAIL / owed.len().max(1) as u64;
    loop {
        let (mut logs, mut tasks) = (Vec::new(), Vec::new());
        for task in owed {
            let (entries, end) = task.cut_log(tail).map_err(io::Error::other)?;
            logs.extend(entries);
            let mut ended = task.without(NO_ROOM);
            ended.end.log_bytes = Some(end);
            tasks.push((task, ended));
        }
        let log = Parcel::pack("log", &logs)?;
        if log.bytes() <= MOST_OF_LOG || tail == 0 {
            return Ok(vec![log, record(identity, &tasks, "log")?]);
        }
        tail = if tail < HEAD / 16 { 0 } else { tail / 2 };
    }
}

/// The parcel that says how tasks ended, with all of what they leave and without it.
fn record(identity: &Identity, tasks: &[(&Owed, Ended)], kinds: &str) -> io::Result<Parcel> {
    // Nothing of what ran there runs where this is put back, whatever kernel that is.
    let identity = Identity { boot_id: "over".into(), pid: 0, ..identity.clone() };
    let mut entries =
        vec![Entry::file(KINDS, kinds), Entry::file("agent.json", serde_json::to_vec(&identity)?)];
    for (task, ended) in tasks {
        let path = |name: &str| task.path(name);
        for name in ["", "work", "output", "log"] {
            entries.push(Entry::directory(path(name)));
        }
        let name = path(TaskDir::RECORD);
        let mut without = task.without(LOST);
        without.end.log_bytes = Some(task.acked);
        entries.push(Entry::file(format!("{name}{WITHOUT}"), TaskDir::text(&task.record, &without)?));
        entries.push(Entry::file(name, TaskDir::text(&task.record, ended)?));
        // That it was launched, and not how: its environment is nobody's to read.
        entries.push(Entry::file(path(LAUNCH), "{}"));
    }
    Parcel::pack(RECORD, &entries)
}

impl Owed {
    /// Where something of it is in the agent's directory.
    fn path(&self, name: &str) -> String {
        let path: PathBuf = Path::new("tasks").join(self.id.to_string()).join(name);
        path.to_string_lossy().trim_end_matches('/').to_owned()
    }

    /// How it ended, without the files that it was to leave.
    fn without(&self, why: &str) -> Ended {
        let mut ended = self.ended.clone();
        if self.leaves_files() {
            ended.outputs = Some(Outputs::Failed { message: why.into() });
        }
        ended
    }

    fn leaves_files(&self) -> bool {
        !self.record.prepare.outputs.is_empty() && self.ended.outputs.is_none()
    }

    fn segment(&self, log: &SegmentDir, start: u64, content: Vec<u8>) -> Entry {
        let name = log.segment_path(start);
        let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Entry::file(self.path(&format!("log/{name}")), content)
    }

    /// Its log from this segment on.
    fn log(&self, start: u64) -> Result<Vec<Entry>, muster_link::log::Error> {
        let log = self.dir.log();
        let read = |start: u64| {
            let mut content = std::fs::read(log.segment_path(start)).unwrap_or_default();
            blank(&mut content, start, self.acked);
            content
        };
        let starts = log.starts()?.into_iter().filter(|segment| *segment >= start);
        Ok(starts.map(|segment| self.segment(&log, segment, read(segment))).collect())
    }

    /// The beginning of its log that the server may lack, a word about what is missing, and its end; and where that ends.
    fn cut_log(&self, tail: u64) -> Result<(Vec<Entry>, u64), muster_link::log::Error> {
        let log = self.dir.log();
        let end = log.whole_end()?;
        let start = log.start_for(self.acked)?.unwrap_or(self.acked);
        let head = log.align(self.acked.saturating_add(HEAD).min(end))?;
        let from = log.align(end.saturating_sub(tail))?.max(head);
        let mut cut = Cut { entries: Vec::new(), start, segment: Vec::new() };
        let mut reader = Reader::new(log.clone(), start);
        while reader.offset() < head
            && let Some(mut output) = reader.next_record()?
        {
            if output.end() <= self.acked {
                output.bytes.fill(0);
            }
            cut.push(self, &log, &output);
        }
        if from > head {
            let text =
                format!("\n[muster: {} MB of output were lost here, with the pod]\n", (from - head) >> 20);
            let time_micros = Timestamp::now().as_microsecond().unsigned_abs();
            cut.push(
                self,
                &log,
                &Output {
                    offset: 0,
                    stream: Stream::Stderr,
                    time_micros,
                    process: None,
                    bytes: text.into(),
                    before: 0,
                    after: 0,
                },
            );
        }
        let mut reader = Reader::new(log.clone(), from);
        while reader.offset() < end
            && let Some(output) = reader.next_record()?
        {
            cut.push(self, &log, &output);
        }
        Ok(cut.finish(self, &log))
    }

    /// The files that it is to leave; none if they are too much.
    fn outputs(
        &self,
        open: &impl Fn(&TaskId) -> io::Result<Option<Files>>,
        plain: &mut u64,
    ) -> io::Result<Option<Vec<Entry>>> {
        if !self.leaves_files() {
            return Ok(Some(Vec::new()));
        }
        let Some(view) = open(&self.id)? else { return Ok(Some(Vec::new())) };
        let mut entries = Vec::new();
        for found in gather_here(&view, &self.record.prepare.outputs)? {
            // What cannot be named in text is not printed, and missed by few.
            let Ok(path) = std::str::from_utf8(&found.path) else { continue };
            *plain += found.size();
            if *plain > MOST_PLAIN {
                return Ok(None);
            }
            let (kind, content) = match found.kind {
                listing::Kind::Directory => (Kind::Directory, Vec::new()),
                listing::Kind::Link { target } => (Kind::Link, target),
                listing::Kind::File { .. } => {
                    let kind = if found.mode & 0o100 != 0 { Kind::Program } else { Kind::File };
                    (kind, std::fs::read(self.dir.path().join(path))?)
                }
            };
            entries.push(Entry::new(self.path(path), kind, content));
        }
        Ok(Some(entries))
    }
}

/// Takes the text from what the server has: its place in the segment is needed, and nothing else of it.
fn blank(segment: &mut [u8], start: u64, acked: u64) {
    let mut at = 0;
    while let Some(bytes) = segment[at..].first_chunk()
        && let Some(header) = Header::decode(bytes)
        && start + at as u64 + header.record_bytes() <= acked
    {
        let (from, to) = (at + Header::BYTES, at + header.record_bytes() as usize);
        let Some(text) = segment.get_mut(from..to) else { return };
        text.fill(0);
        at = to;
    }
}

/// A log that is put together anew.
struct Cut {
    entries: Vec<Entry>,
    start: u64,
    segment: Vec<u8>,
}

impl Cut {
    fn push(&mut self, task: &Owed, log: &SegmentDir, output: &Output) {
        let Output { stream, time_micros, process, bytes, .. } = output;
        let length = u32::try_from(bytes.len()).unwrap_or(0);
        self.segment.extend(
            Header { length, stream: *stream, time_micros: *time_micros, is_mark: false, process: *process }
                .encode(),
        );
        self.segment.extend(bytes);
        if self.segment.len() as u64 >= SEGMENT_BYTES {
            self.roll(task, log);
        }
    }

    fn roll(&mut self, task: &Owed, log: &SegmentDir) {
        let content = std::mem::take(&mut self.segment);
        let length = content.len() as u64;
        self.entries.push(task.segment(log, self.start, content));
        self.start += length;
    }

    fn finish(mut self, task: &Owed, log: &SegmentDir) -> (Vec<Entry>, u64) {
        if !self.segment.is_empty() {
            self.roll(task, log);
        }
        (self.entries, self.start)
    }
}

#[cfg(test)]
mod tests;
