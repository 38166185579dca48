//! Names the error of a program that failed, in one line, from what its task left behind.
//!
//! The rules are tried in order, the most reliable first: the error file that torchrun's workers write, the last Python traceback
//! of the process that failed first, the last line of standard error. A rule is a pure function of text; what is read here is
//! bounded, and everything read is the task's word: it may be wrong or hostile, and decides nothing.

mod error_file;
mod last_words;
mod output;
mod traceback;

use std::path::Path;

use muster_link::log::SegmentDir;
use muster_model::ErrorLine;

pub(crate) use error_file::set_variable;
use output::{Line, read_lines};

/// How much of the end of a log is read. Tracebacks of the processes of one node and a launcher's summary fit several times.
const TAIL_BYTES: u64 = 256 << 10;

/// The error of a task whose log ends at `end`.
pub(crate) fn error_line(task_dir: &Path, log: &SegmentDir, end: u64) -> Option<ErrorLine> {
    let text = error_file::read(task_dir).or_else(|| {
        // A log that cannot be read names no error; readers of the log get the cause.
        let lines = read_lines(log, end.saturating_sub(TAIL_BYTES), end).unwrap_or_default();
        from_output(&lines)
    })?;
    ErrorLine::new(&text)
}

/// The error that the end of a log shows.
fn from_output(lines: &[Line]) -> Option<String> {
    traceback::error_of_first_failure(lines).or_else(|| last_words::last_error_line(lines)).map(str::to_owned)
}
