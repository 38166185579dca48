//! Moves a task's output from its pipes into its log, such that a kill at any instant loses nothing.
//!
//! The bytes never pass through this process: after the header of a record, `splice` moves them inside the kernel, and
//! no signal ends it between taking them from the pipe and having them in the file. So at every instant a byte is in
//! the pipe or in the file. Whoever continues the log finds at most one unfinished record, and finishes it.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

use muster_link::log::{Header, SEGMENT_BYTES, SegmentDir, Stream};
use muster_link::message::DiskLimits;
use muster_model::quantity::format_bytes;
use rustix::io::{Errno, ioctl_fionread};
use rustix::pipe::{SpliceFlags, splice};

use crate::disk;

/// Who wrote a piece of output, and to which of its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) stream: Stream,
    /// The number of the process in the task; none for the streams that all of it shares.
    pub(crate) process: Option<u8>,
}

impl From<Stream> for Origin {
    fn from(stream: Stream) -> Origin {
        Origin { stream, process: None }
    }
}

/// The only writer of a task's log.
pub(crate) struct Capture {
    dir: SegmentDir,
    start: u64,
    file: File,
    /// The whole records in the current segment, in bytes.
    length: u64,
    /// For filesystems that cannot be spliced into. Made when the first such is met.
    copy_buffer: Option<Box<[u8]>>,
    limits: DiskLimits,
    /// The log length at which free disk space is measured next.
    measure_at: u64,
    /// Output is dropped, and the log says so at this place.
    is_cut: bool,
    /// How much output was dropped, and of which stream the last of it.
    dropped_bytes: u64,
    dropped_of: Stream,
}

/// How much is written between two measurements of free disk space. A log that stays shorter is never held back.
const MEASURE_EVERY: u64 = 4 << 20;
/// How much output beyond the limit is read and dropped at a time.
const DROP_BYTES: usize = 64 << 10;

impl Capture {
    /// Begin a log. Its first segment is also the sign that a supervisor has come this far.
    pub(super) fn create(dir: SegmentDir) -> io::Result<Capture> {
        let file = dir.create_segment(0).map_err(io::Error::other)?;
        Ok(Capture::at(dir, 0, file, 0))
    }

    fn at(dir: SegmentDir, start: u64, file: File, length: u64) -> Capture {
        Capture {
            dir,
            start,
            file,
            length,
            copy_buffer: None,
            limits: DiskLimits::default(),
            measure_at: start + length + MEASURE_EVERY,
            is_cut: false,
            dropped_bytes: 0,
            dropped_of: Stream::Stdout,
        }
    }

    /// Sets how long the log may become, and how much disk space stays free.
    pub(crate) fn limit(&mut self, limits: DiskLimits) {
        self.limits = limits;
    }

    /// Continue the log of a supervisor that was killed. `pipes` are those of its streams that could be kept: an
    /// unfinished record is finished from its pipe or, without one, ends with what there is of it.
    pub(crate) fn resume(dir: SegmentDir, pipes: [Option<BorrowedFd<'_>>; 2]) -> io::Result<Capture> {
        let whole = dir.whole_end().map_err(io::Error::other)?;
        let Some(start) = dir.start_for(whole).map_err(io::Error::other)? else {
            return Capture::create(dir);
        };
        let file = dir.open_segment(start).map_err(io::Error::other)?;
        let mut capture = Capture::at(dir, start, file, whole - start);
        capture.finish(pipes)?;
        Ok(capture)
    }

    /// The length of the log.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.length
    }

    /// Make a record of what the pipe holds now. Zero if it holds nothing. After an error nothing is lost: what was
    /// not moved is still in the pipe.
    pub(crate) fn take(&mut self, pipe: BorrowedFd<'_>, origin: impl Into<Origin>) -> io::Result<u32> {
        let held = ioctl_fionread(pipe)?;
        self.take_some(pipe, origin.into(), u32::try_from(held).unwrap_or(u32::MAX))
    }

    /// The same for so many bytes, which the pipe holds.
    pub(super) fn take_some(&mut self, pipe: BorrowedFd<'_>, origin: Origin, length: u32) -> io::Result<u32> {
        let Origin { stream, process } = origin;
        let length = length.min(Header::MAX_LENGTH);
        if length == 0 {
            return Ok(0);
        }
        if self.end() >= self.limits.log_bytes {
            return self.discard(pipe, stream);
        }
        self.measure_disk()?;
        if self.length >= SEGMENT_BYTES {
            self.rotate()?;
        }
        let header = Header { length, stream, time_micros: now_micros(), is_mark: false, process };
        let written = self.file.write_all_at(&header.encode(), self.length);
        let (moved, result) = match written {
            Ok(()) => self.fill(pipe, self.length + Header::BYTES as u64, length),
            Err(error) => (0, Err(error)),
        };
        self.close(Header { length: moved, ..header }, length)?;
        // A disk that fills up in the middle has taken something: the next record will tell.
        if moved > 0 { Ok(moved) } else { result.map(|()| 0) }
    }

    /// Write marks, whole and in one piece. The output that follows belongs to another element, whose part of the log
    /// says for itself that it was cut.
    pub(super) fn mark(&mut self, records: &[u8]) -> io::Result<()> {
        self.is_cut = false;
        self.append(records)
    }

    /// Ends a log that was cut with how much is missing.
    pub(super) fn close_cut(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.dropped_bytes) {
            0 => Ok(()),
            bytes => self.say(&format!("[muster] {} of output were dropped\n", format_bytes(bytes))),
        }
    }

    /// Drops output beyond the limit. The pipe is drained, so the task goes on.
    fn discard(&mut self, pipe: BorrowedFd<'_>, stream: Stream) -> io::Result<u32> {
        self.dropped_of = stream;
        if !self.is_cut {
            let limit = format_bytes(self.limits.log_bytes);
            self.say(&format!(
                "\n[muster] log cut here: it has reached the limit of {limit} (limits.task_log); later output is dropped\n"
            ))?;
            self.is_cut = true;
        }
        let mut buffer = [0; DROP_BYTES];
        match rustix::io::read(pipe, &mut buffer) {
            Ok(count) => {
                self.dropped_bytes += count as u64;
                Ok(count as u32)
            }
            Err(Errno::INTR | Errno::AGAIN) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a line of the supervisor's own into the log, among the output that it is about.
    fn say(&mut self, text: &str) -> io::Result<()> {
        let length = text.len() as u32;
        let header = Header {
            length,
            stream: self.dropped_of,
            time_micros: now_micros(),
            is_mark: false,
            process: None,
        };
        self.append(&[&header.encode()[..], text.as_bytes()].concat())
    }

    /// Fails like a full disk while free space is below the floor: output then waits in its pipe.
    fn measure_disk(&mut self) -> io::Result<()> {
        if self.end() < self.measure_at {
            return Ok(());
        }
        if let Ok(stat) = rustix::fs::fstatvfs(&self.file) {
            disk::check_measured(&stat, self.limits.free_bytes, 0)?;
        }
        self.measure_at = self.end() + MEASURE_EVERY;
        Ok(())
    }

    fn append(&mut self, records: &[u8]) -> io::Result<()> {
        if self.length >= SEGMENT_BYTES {
            self.rotate()?;
        }
        let written = self.file.write_all_at(records, self.length);
        if written.is_err() {
            self.file.set_len(self.length)?;
        }
        self.length += if written.is_ok() { records.len() as u64 } else { 0 };
        written
    }

    fn rotate(&mut self) -> io::Result<()> {
        let start = self.end();
        self.file = self.dir.create_segment(start).map_err(io::Error::other)?;
        self.start = start;
        self.length = 0;
        Ok(())
    }

    /// End the current record with the length it has got, if that is not the one it announced.
    fn close(&mut self, header: Header, announced: u32) -> io::Result<()> {
        if header.length == 0 {
            return self.file.set_len(self.length);
        }
        if header.length < announced {
            self.file.write_all_at(&header.encode(), self.length)?;
        }
        self.length += header.record_bytes();
        Ok(())
    }

    /// Deal with what a killed supervisor left after the last whole record.
    fn finish(&mut self, pipes: [Option<BorrowedFd<'_>>; 2]) -> io::Result<()> {
        let mut bytes = [0; Header::BYTES];
        let left = self.file.metadata()?.len() - self.length;
        let header = match left.checked_sub(Header::BYTES as u64) {
            Some(_) => self.file.read_exact_at(&mut bytes, self.length).map(|()| Header::decode(&bytes))?,
            None => None,
        };
        // Less than a header, or a power cut's garbage: nothing was taken from a pipe for it.
        let Some(header) = header.filter(|header| !header.is_mark) else {
            return self.file.set_len(self.length);
        };
        let have = (left - Header::BYTES as u64) as u32;
        // What a process wrote is in a pipe of its own, and becomes another record.
        let pipe = pipes[header.stream.index()].filter(|_| header.process.is_none());
        let moved = match pipe {
            Some(pipe) => {
                let at = self.length + left;
                let (moved, result) = self.fill(pipe, at, header.length - have);
                result?;
                moved
            }
            None => 0,
        };
        self.close(Header { length: have + moved, ..header }, header.length)
    }

    /// Move `wanted` bytes from a pipe that has them to this place in the segment. Less only with an error, or if
    /// someone else has read the pipe.
    fn fill(&mut self, pipe: BorrowedFd<'_>, mut at: u64, wanted: u32) -> (u32, io::Result<()>) {
        let mut moved = 0;
        while moved < wanted {
            let left = (wanted - moved) as usize;
            let step = match &mut self.copy_buffer {
                Some(buffer) => copy(pipe, &self.file, buffer, &mut at, left),
                None => splice(pipe, None, &self.file, Some(&mut at), left, SpliceFlags::NONBLOCK)
                    .map_err(io::Error::from),
            };
            match step.as_ref().map_err(io::Error::raw_os_error) {
                Ok(0) => break,
                Ok(count) => moved += *count as u32,
                Err(Some(code)) if code == Errno::INTR.raw_os_error() => {}
                Err(Some(code)) if code == Errno::AGAIN.raw_os_error() => break,
                Err(Some(code)) if code == Errno::INVAL.raw_os_error() && self.copy_buffer.is_none() => {
                    self.copy_buffer = Some(vec![0; COPY_BYTES].into());
                }
                Err(_) => return (moved, step.map(|_| ())),
            }
        }
        (moved, Ok(()))
    }
}

/// What a kill at the wrong instant can lose on a filesystem without `splice`. Small for that reason.
const COPY_BYTES: usize = 16 << 10;

fn copy(
    pipe: BorrowedFd<'_>,
    file: &File,
    buffer: &mut [u8],
    at: &mut u64,
    left: usize,
) -> io::Result<usize> {
    let room = left.min(buffer.len());
    let count = rustix::io::read(pipe, &mut buffer[..room])?;
    file.write_all_at(&buffer[..count], *at)?;
    *at += count as u64;
    Ok(count)
}

fn now_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::{AsFd, OwnedFd};

    use muster_link::log::Reader;
    use rustix::pipe::{PipeFlags, pipe_with};
    use tempfile::TempDir;

    use super::*;

    fn log() -> (TempDir, SegmentDir) {
        let home = tempfile::tempdir().unwrap();
        let dir = SegmentDir::new(home.path());
        (home, dir)
    }

    fn pipe_with_bytes(bytes: &[u8]) -> (OwnedFd, OwnedFd) {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        assert_eq!(rustix::io::write(&write, bytes).unwrap(), bytes.len());
        (read, write)
    }

    fn output(dir: &SegmentDir) -> Vec<u8> {
        let mut reader = Reader::new(dir.clone(), 0);
        std::iter::from_fn(|| reader.next_record().unwrap()).flat_map(|record| record.bytes).collect()
    }

    #[test]
    fn a_killed_supervisors_record_is_finished_from_its_pipe_wherever_it_was_cut() {
        let bytes = b"what the task wrote";
        let header = Header {
            length: bytes.len() as u32,
            stream: Stream::Stderr,
            time_micros: 7,
            is_mark: false,
            process: None,
        };
        let record = [&header.encode()[..], bytes].concat();
        for cut in 0..record.len() {
            let (_home, dir) = log();
            fs::write(dir.segment_path(0), &record[..cut]).unwrap();
            // The bytes that had not been moved yet are still in the pipe, and some that came later.
            let taken = cut.saturating_sub(Header::BYTES);
            let (read, _write) = pipe_with_bytes(&[&bytes[taken..], b" and more"].concat());
            let mut capture = Capture::resume(dir.clone(), [None, Some(read.as_fd())]).unwrap();
            while capture.take(read.as_fd(), Stream::Stderr).unwrap() > 0 {}
            assert_eq!(output(&dir), b"what the task wrote and more", "cut at {cut}");
            assert_eq!(capture.end(), dir.end().unwrap());
        }
    }

    #[test]
    fn a_record_whose_pipe_is_lost_ends_with_what_there_is() {
        let (_home, dir) = log();
        let header =
            Header { length: 100, stream: Stream::Stdout, time_micros: 7, is_mark: false, process: None };
        fs::write(dir.segment_path(0), [&header.encode()[..], b"half"].concat()).unwrap();
        let capture = Capture::resume(dir.clone(), [None, None]).unwrap();
        assert_eq!(output(&dir), b"half");
        assert_eq!(capture.end(), 20);
    }

    #[test]
    fn garbage_after_the_last_record_is_dropped() {
        let (_home, dir) = log();
        fs::write(dir.segment_path(0), [0; 4096]).unwrap();
        let mut capture = Capture::resume(dir.clone(), [None, None]).unwrap();
        assert_eq!(capture.end(), 0);
        let (read, _write) = pipe_with_bytes(b"new");
        assert_eq!(capture.take(read.as_fd(), Stream::Stdout).unwrap(), 3);
        assert_eq!(output(&dir), b"new");
    }

    #[test]
    fn output_beyond_the_limit_is_drained_and_dropped_with_a_mark_at_the_cut() {
        let (_home, dir) = log();
        let mut capture = Capture::create(dir.clone()).unwrap();
        capture.limit(DiskLimits { log_bytes: 1000, ..DiskLimits::default() });
        for round in 0..50 {
            let (read, _write) = pipe_with_bytes(&[b'x'; 600]);
            while capture.take(read.as_fd(), Stream::Stdout).unwrap() > 0 {}
            assert_eq!(ioctl_fionread(&read).unwrap(), 0, "the task is never blocked, round {round}");
        }
        capture.close_cut().unwrap();
        let text = String::from_utf8(output(&dir)).unwrap();
        assert_eq!(text.matches("log cut here").count(), 1, "{text}");
        assert!(
            text.starts_with(&"x".repeat(1200)) && text.contains("28.1 KB of output were dropped"),
            "{text}"
        );
        assert!(capture.end() < 2000 && capture.end() == dir.end().unwrap());
    }

    #[test]
    fn each_element_of_a_cut_log_says_that_it_was_cut() {
        let (_home, dir) = log();
        let mut capture = Capture::create(dir.clone()).unwrap();
        capture.limit(DiskLimits { log_bytes: 10, ..DiskLimits::default() });
        for element in 0..3 {
            capture.mark(&Header::mark(&muster_model::array::Mark::Began { element }, 1)).unwrap();
            let (read, _write) = pipe_with_bytes(b"output of an element");
            while capture.take(read.as_fd(), Stream::Stdout).unwrap() > 0 {}
        }
        let text = String::from_utf8(output(&dir)).unwrap();
        assert_eq!(text.matches("log cut here").count(), 3, "{text}");
    }

    #[test]
    fn output_waits_in_its_pipe_while_the_disk_is_below_its_floor() {
        let (_home, dir) = log();
        let mut capture = Capture::create(dir.clone()).unwrap();
        capture.limit(DiskLimits { free_bytes: Some(u64::MAX), ..DiskLimits::default() });
        let (read, _write) = pipe_with_bytes(b"short logs are never held back");
        assert_eq!(capture.take(read.as_fd(), Stream::Stdout).unwrap(), 30);
        capture.measure_at = 0;
        let (read, _write) = pipe_with_bytes(b"waits");
        for _ in 0..2 {
            let error = capture.take(read.as_fd(), Stream::Stdout).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
        capture.limit(DiskLimits { free_bytes: Some(0), ..DiskLimits::default() });
        assert_eq!(capture.take(read.as_fd(), Stream::Stdout).unwrap(), 5);
    }

    #[test]
    fn a_pipe_is_also_read_where_splice_does_not_work() {
        let (_home, dir) = log();
        let bytes: Vec<u8> = (0..60_000u32).map(|number| number as u8).collect();
        let (read, _write) = pipe_with_bytes(&bytes);
        let mut capture = Capture::create(dir.clone()).unwrap();
        capture.copy_buffer = Some(vec![0; COPY_BYTES].into());
        assert_eq!(capture.take(read.as_fd(), Stream::Stdout).unwrap(), 60_000);
        assert_eq!(capture.take(read.as_fd(), Stream::Stdout).unwrap(), 0);
        assert_eq!(output(&dir), bytes);
    }
}
