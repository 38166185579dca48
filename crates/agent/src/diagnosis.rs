//! Names the error of a program that failed, in one line, from what its task left behind.
//!
//! The rules are tried in order, the most reliable first: the error file that torchrun's workers write, the last Python traceback
//! of the process that failed first, the last line of standard error. What only follows from the failure of a peer, or stands
//! in a file that is older than the error in the log, counts less. A rule is a pure function of text; what is read here is
//! bounded, and everything read is the task's word: it may be wrong or hostile, and decides nothing.

mod error_file;
mod last_words;
mod output;
mod traceback;

use std::ops::Range;
use std::path::Path;

use muster_link::log::SegmentDir;
use muster_model::ErrorLine;

use error_file::RecordedError;
pub(crate) use error_file::{ErrorFileVersion, set_variables};
use output::{Line, read_lines};
use traceback::{Origin, TracebackError, Tracebacks};

/// How much of the end of a log is read. Tracebacks of the processes of one node and a launcher's summary fit several times.
const TAIL_BYTES: u64 = 256 << 10;

/// The error of a task whose log ends at `end`.
pub(crate) fn error_line(task_dir: &Path, log: &SegmentDir, end: u64) -> Option<ErrorLine> {
    ErrorLine::new(&most_telling(error_file::first(task_dir), &last_lines(log, 0..end))?)
}

/// The error of an element of an array that wrote this part of its lane's log. An error file that was there before is another's.
pub(crate) fn element_error_line(
    task_dir: &Path,
    before: Option<&ErrorFileVersion>,
    log: &SegmentDir,
    output: Range<u64>,
) -> Option<ErrorLine> {
    let is_new = ErrorFileVersion::of(task_dir).as_ref() != before;
    let recorded = is_new.then(|| error_file::first(task_dir)).flatten();
    ErrorLine::new(&most_telling(recorded, &last_lines(log, output))?)
}

/// The last lines of a part of a log. A log that cannot be read names no error; readers of the log get the cause.
fn last_lines(log: &SegmentDir, part: Range<u64>) -> Vec<Line> {
    let tail = part.end.saturating_sub(TAIL_BYTES);
    let from = if tail > part.start { log.align(tail) } else { Ok(part.start) };
    from.and_then(|from| read_lines(log, from, part.end)).unwrap_or_default()
}

/// A process writes its error down before it ends, and prints it then. One that was written down much earlier was another's.
const MOST_MICROS_BETWEEN: u64 = 10_000_000;

/// The error that is recorded, or that the end of a log shows.
fn most_telling(recorded: Option<RecordedError>, lines: &[Line]) -> Option<String> {
    let tracebacks = Tracebacks::of(lines);
    let shown = tracebacks.first_failure();
    let counts = |recorded: &RecordedError, shown: &TracebackError| {
        recorded.origin >= shown.origin
            && recorded.time_micros.saturating_add(MOST_MICROS_BETWEEN) >= shown.time_micros
    };
    let recorded = recorded
        .filter(|recorded| recorded.origin > Origin::Launcher)
        .filter(|recorded| shown.as_ref().is_none_or(|shown| counts(recorded, shown)));
    recorded
        .map(|recorded| recorded.text)
        .or_else(|| shown.map(|shown| shown.error.to_owned()))
        .or_else(|| last_words::last_error_line(&tracebacks.others()).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use muster_link::log::Stream;

    use super::*;

    fn lines(second: u64, text: &str) -> Vec<Line> {
        let line = |text: &str| Line {
            stream: Stream::Stderr,
            time_micros: second * 1_000_000,
            text: text.to_owned(),
        };
        text.lines().map(line).collect()
    }

    fn recorded(second: u64, text: &str) -> Option<RecordedError> {
        let (origin, text) = (traceback::origin(text), text.to_owned());
        Some(RecordedError { text, origin, time_micros: second * 1_000_000 })
    }

    #[test]
    fn a_recorded_error_counts_unless_another_came_first_or_later() {
        let shown = "Traceback (most recent call last):\n  File \"t.py\", line 3\nValueError: bad sample 42";
        for (record, expected) in [
            (None, "ValueError: bad sample 42"),
            (recorded(99, "IndexError: 3"), "IndexError: 3"),
            (recorded(101, "IndexError: 3"), "IndexError: 3"),
            (
                recorded(101, "RuntimeError: Connection closed by peer [10.0.0.1]:1"),
                "ValueError: bad sample 42",
            ),
            (recorded(101, "ChildFailedError: t.py FAILED"), "ValueError: bad sample 42"),
            (recorded(5, "IndexError: 3"), "ValueError: bad sample 42"),
        ] {
            assert_eq!(most_telling(record, &lines(100, shown)).unwrap(), expected);
        }
        let of_peer = "RuntimeError: Connection closed by peer [10.0.0.1]:1";
        assert_eq!(most_telling(recorded(1, of_peer), &lines(1, "bye")).unwrap(), of_peer);
        assert_eq!(most_telling(recorded(1, "ChildFailedError:"), &lines(1, "bye")).unwrap(), "bye");
    }

    #[test]
    fn an_error_that_was_caught_is_not_told_as_last_words() {
        let mut printed =
            lines(1, "Traceback (most recent call last):\n  File \"t.py\", line 3\nOSError: no cache");
        let epoch =
            |epoch| Line { stream: Stream::Stdout, time_micros: 1_000_000, text: format!("epoch {epoch}") };
        printed.extend((0..9).map(epoch));
        assert_eq!(most_telling(None, &printed), None);
        printed.extend(lines(1, "no data in /data"));
        assert_eq!(most_telling(None, &printed).unwrap(), "no data in /data");
        printed.drain(4..12);
        assert_eq!(most_telling(None, &printed).unwrap(), "no data in /data", "{printed:?}");
    }
}
