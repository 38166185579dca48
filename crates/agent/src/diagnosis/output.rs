//! The lines at the end of a task's log, in the order in which they ended.

use muster_link::log::{Error, Reader, SegmentDir, Stream};

/// One line of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub stream: Stream,
    /// When its last byte was read.
    pub time_micros: u64,
    pub text: String,
}

/// The lines of the records from `from` on, where one must begin; the first may be the end of a line. A progress bar is drawn over and over in one line: what it showed
/// last counts.
pub(super) fn read_lines(log: &SegmentDir, from: u64, end: u64) -> Result<Vec<Line>, Error> {
    let mut reader = Reader::new(log.clone(), from);
    let mut lines = Vec::new();
    let mut open = [Vec::new(), Vec::new()];
    let mut times = [0, 0];
    while let Some(record) = reader.next_record()? {
        if record.offset >= end {
            break;
        }
        for piece in record.bytes.split_inclusive(|byte| *byte == b'\n') {
            times[record.stream.index()] = record.time_micros;
            let bytes = &mut open[record.stream.index()];
            bytes.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                lines.push(line(record.stream, record.time_micros, bytes));
                bytes.clear();
            }
        }
    }
    for stream in Stream::ALL {
        let bytes = &open[stream.index()];
        if !bytes.is_empty() {
            lines.push(line(stream, times[stream.index()], bytes));
        }
    }
    Ok(lines)
}

fn line(stream: Stream, time_micros: u64, bytes: &[u8]) -> Line {
    let text = String::from_utf8_lossy(bytes);
    let shown = text.trim_end().rsplit('\r').next().unwrap_or_default();
    Line { stream, time_micros, text: without_colours(shown) }
}

/// The text without the escape sequences that give it colours, which some loggers put between the words of a traceback.
fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("\u{1b}[") {
        plain.push_str(&rest[..start]);
        let sequence = &rest[start + 2..];
        let end =
            sequence.find(|letter: char| ('@'..='~').contains(&letter)).map_or(sequence.len(), |at| at + 1);
        rest = &sequence[end..];
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_what_a_progress_bar_drew_before_are_left_out() {
        assert_eq!(without_colours("\u{1b}[31mValueError\u{1b}[0m: x"), "ValueError: x");
        assert_eq!(without_colours("cut \u{1b}[3"), "cut ");
        assert_eq!(line(Stream::Stderr, 0, b" 10%|#\r 20%|##\r\n").text, " 20%|##");
    }
}
