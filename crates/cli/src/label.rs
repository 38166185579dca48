//! Output of several tasks in one place: whole lines, each to be labelled with its task.
//!
//! A task's output arrives in pieces that end anywhere, also in the middle of a letter, so lines are put together as
//! bytes and never interpreted. A progress bar redraws its line with `\r`: only its latest state is kept, and shown
//! when the line ends or once a second. Nothing here reads a clock: time is that of the output itself, so that a log
//! read later looks as it did at the time.

use std::collections::BTreeMap;
use std::time::Duration;

use memchr::memchr2;
use muster_api::model::Timestamp;
use muster_api::view::LogStream;

use crate::duration::between;

/// How often the state of a redrawn line is shown.
const REDRAW: Duration = Duration::from_secs(1);
/// A longer line is shown in parts; binary output may never have an end of line.
const MAX_LINE: usize = 64 << 10;

/// Who wrote a line: a task or, where that is known, one of its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LineWriter {
    pub task: u32,
    pub process_rank: Option<u32>,
}

impl From<u32> for LineWriter {
    fn from(task: u32) -> Self {
        Self { task, process_rank: None }
    }
}

/// Puts the lines of a job together.
#[derive(Default)]
pub(crate) struct Labeller {
    lines: BTreeMap<(LineWriter, bool), Line>,
}

/// A line that has not ended yet.
#[derive(Default)]
struct Line {
    bytes: Vec<u8>,
    /// The last byte was `\r`: the next one tells whether the line ends or is drawn again.
    returned: bool,
    /// It was drawn more than once.
    redrawn: bool,
    /// When its present state began.
    began: Option<Timestamp>,
    /// Its present state was shown.
    shown: bool,
    shown_at: Option<Timestamp>,
}

/// A line to show: who wrote it to which stream, when it began, and the bytes without an end of line.
pub(crate) type Emit<'a> = dyn FnMut(LineWriter, LogStream, Timestamp, &[u8]) + 'a;

/// The same for one stream of one task.
type EmitLine<'a> = dyn FnMut(Timestamp, &[u8]) + 'a;

impl Labeller {
    /// Takes a piece of output that was read at a moment.
    pub fn push(
        &mut self,
        writer: impl Into<LineWriter>,
        stream: LogStream,
        piece: &[u8],
        at: Timestamp,
        emit: &mut Emit,
    ) {
        let writer = writer.into();
        let line = self.lines.entry((writer, stream == LogStream::Stderr)).or_default();
        line.push(piece, at, &mut |at, bytes| emit(writer, stream, at, bytes));
    }

    /// Time passes: shows the state of lines that are being redrawn, unless that was done less than a second ago.
    pub fn tick(&mut self, now: Timestamp, emit: &mut Emit) {
        for (key, line) in &mut self.lines {
            if line.redrawn || line.returned {
                line.show_state(now, &mut |at, bytes| emit(key.0, stream_of(key.1), at, bytes));
            }
        }
    }

    /// Nothing more comes: shows what never ended.
    pub fn finish(&mut self, emit: &mut Emit) {
        for ((writer, is_stderr), mut line) in std::mem::take(&mut self.lines) {
            if !line.bytes.is_empty() {
                line.end(&mut |at, bytes| emit(writer, stream_of(is_stderr), at, bytes));
            }
        }
    }
}

fn stream_of(is_stderr: bool) -> LogStream {
    if is_stderr { LogStream::Stderr } else { LogStream::Stdout }
}

impl Line {
    fn push(&mut self, piece: &[u8], at: Timestamp, emit: &mut EmitLine) {
        let mut rest = piece;
        while let Some(&first) = rest.first() {
            // Several `\r` in a row are one: none of them clears what is drawn.
            if self.returned && first != b'\n' && first != b'\r' {
                self.redraw(at, emit);
            }
            let end = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
            self.began.get_or_insert(at);
            self.append(&rest[..end], at, emit);
            match rest.get(end) {
                Some(b'\n') => self.end(emit),
                Some(_) => self.returned = true,
                None => {}
            }
            rest = &rest[(end + 1).min(rest.len())..];
        }
    }

    fn append(&mut self, bytes: &[u8], at: Timestamp, emit: &mut EmitLine) {
        if bytes.is_empty() {
            return;
        }
        self.shown = false;
        self.bytes.extend_from_slice(bytes);
        while self.bytes.len() > MAX_LINE {
            let cut = letter_boundary(&self.bytes, MAX_LINE);
            emit(self.began.replace(at).unwrap_or(at), &self.bytes[..cut]);
            self.bytes.drain(..cut);
        }
    }

    /// The line is drawn again from its beginning.
    fn redraw(&mut self, at: Timestamp, emit: &mut EmitLine) {
        self.show_state(at, emit);
        self.bytes.clear();
        self.began = None;
        self.returned = false;
        self.redrawn = true;
        self.shown = false;
    }

    fn show_state(&mut self, now: Timestamp, emit: &mut EmitLine) {
        let due = self.shown_at.is_none_or(|shown_at| between(shown_at, now) >= REDRAW);
        if due && !self.shown && !self.bytes.is_empty() {
            emit(self.began.unwrap_or(now), &self.bytes);
            self.shown = true;
            self.shown_at = Some(now);
        }
    }

    fn end(&mut self, emit: &mut EmitLine) {
        if let Some(began) = self.began.filter(|_| !self.shown) {
            emit(began, &self.bytes);
        }
        self.bytes.clear();
        *self = Self { bytes: std::mem::take(&mut self.bytes), ..Self::default() };
    }
}

/// The last place up to `most` where no letter is cut in two; `most` itself in what is not UTF-8.
fn letter_boundary(bytes: &[u8], most: usize) -> usize {
    let is_inside = |i: usize| bytes.get(i).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000);
    (most - 3..=most).rev().find(|i| !is_inside(*i)).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::UNIX_EPOCH + Duration::from_millis(millis)
    }

    #[derive(Default)]
    struct Scene {
        labeller: Labeller,
        shown: Vec<String>,
    }

    impl Scene {
        fn run(&mut self, act: impl FnOnce(&mut Labeller, &mut Emit)) -> Vec<String> {
            let shown = &mut self.shown;
            act(&mut self.labeller, &mut |writer, stream, _, bytes| {
                let (rank, mark) = (writer.task, if stream == LogStream::Stderr { "!" } else { "" });
                shown.push(format!("{rank}{mark}: {}", String::from_utf8_lossy(bytes)));
            });
            std::mem::take(&mut self.shown)
        }

        fn push(&mut self, piece: &[u8], millis: u64) -> Vec<String> {
            self.run(|labeller, emit| labeller.push(0_u32, LogStream::Stdout, piece, at(millis), emit))
        }

        fn tick(&mut self, millis: u64) -> Vec<String> {
            self.run(|labeller, emit| labeller.tick(at(millis), emit))
        }

        fn finish(&mut self) -> Vec<String> {
            self.run(|labeller, emit| labeller.finish(emit))
        }
    }

    const NOTHING: [&str; 0] = [];

    #[test]
    fn lines_are_shown_when_they_end() {
        let mut scene = Scene::default();
        assert_eq!(scene.push(b"one\ntw", 0), ["0: one"]);
        assert_eq!(scene.push(b"o\n\nthree", 1), ["0: two", "0: "]);
        assert_eq!(scene.tick(5000), NOTHING);
        assert_eq!(scene.finish(), ["0: three"]);
        assert_eq!(scene.finish(), NOTHING);
    }

    #[test]
    fn tasks_and_streams_have_lines_of_their_own() {
        let mut scene = Scene::default();
        let shown = scene.run(|labeller, emit| {
            labeller.push(1_u32, LogStream::Stdout, b"a", at(0), emit);
            labeller.push(1_u32, LogStream::Stderr, b"b", at(0), emit);
            labeller.push(0_u32, LogStream::Stdout, b"c", at(0), emit);
            labeller.push(1_u32, LogStream::Stdout, b"d\n", at(0), emit);
        });
        assert_eq!(shown, ["1: ad"]);
        assert_eq!(scene.finish(), ["0: c", "1!: b"]);
    }

    #[test]
    fn letters_that_arrive_in_parts_stay_whole() {
        let mut scene = Scene::default();
        let text = "größe 训练\n".as_bytes();
        for cut in 0..text.len() {
            let mut shown = scene.push(&text[..cut], 0);
            shown.extend(scene.push(&text[cut..], 0));
            assert_eq!(shown, ["0: größe 训练"]);
        }
    }

    #[test]
    fn a_line_that_ends_in_return_and_newline_is_one_line() {
        for pieces in [&[b"a\r\nb\r\n".as_slice()] as &[&[u8]], &[b"a\r", b"\nb\r", b"\n"], &[b"a\r\r\nb\n"]]
        {
            let mut scene = Scene::default();
            let shown: Vec<String> = pieces.iter().flat_map(|piece| scene.push(piece, 0)).collect();
            assert_eq!(shown, ["0: a", "0: b"], "{pieces:?}");
        }
    }

    #[test]
    fn a_progress_bar_is_shown_once_a_second_and_at_its_end() {
        let mut scene = Scene::default();
        let mut shown = Vec::new();
        for i in 0..=100u64 {
            shown.extend(scene.push(format!("\r{i}%").as_bytes(), i * 25));
        }
        shown.extend(scene.push(b"\nbye\n", 2600));
        assert_eq!(shown, ["0: 0%", "0: 40%", "0: 80%", "0: 100%", "0: bye"]);
    }

    #[test]
    fn a_progress_bar_that_stands_still_is_shown_and_not_repeated() {
        let mut scene = Scene::default();
        assert_eq!(scene.push(b"1%\r2%\r", 0), ["0: 1%"]);
        assert_eq!(scene.tick(500), NOTHING);
        assert_eq!(scene.tick(1500), ["0: 2%"]);
        assert_eq!(scene.tick(9000), NOTHING);
        assert_eq!(scene.push(b"\n", 9100), NOTHING);
        assert_eq!(scene.push(b"after\n", 9200), ["0: after"]);
    }

    #[test]
    fn endless_lines_are_shown_in_parts_without_cutting_letters() {
        let mut scene = Scene::default();
        let text = "é".repeat(MAX_LINE);
        let mut shown = scene.push(format!("x{text}").as_bytes(), 0);
        shown.extend(scene.finish());
        assert!(shown.iter().all(|part| part.len() <= MAX_LINE + 3 && !part.contains('\u{fffd}')));
        assert_eq!(shown.iter().map(|part| &part[3..]).collect::<String>(), format!("x{text}"));
    }

    #[test]
    fn a_line_has_the_time_of_its_first_byte() {
        let mut shown = Vec::new();
        let mut labeller = Labeller::default();
        for (piece, millis) in [
            ("o", 1),
            ("ne\ntwo", 2),
            ("\n\n", 3),
            ("1%\r", 4),
            ("2%\r", 2000),
            ("3%", 3500),
            ("\nend", 4000),
        ] {
            labeller.push(0_u32, LogStream::Stdout, piece.as_bytes(), at(millis), &mut |_, _, at, line| {
                shown.push((at.as_millisecond(), String::from_utf8_lossy(line).into_owned()));
            });
        }
        labeller.finish(&mut |_, _, at, line| {
            shown.push((at.as_millisecond(), String::from_utf8_lossy(line).into_owned()));
        });
        let expected =
            [(1, "one"), (2, "two"), (3, ""), (4, "1%"), (2000, "2%"), (3500, "3%"), (4000, "end")];
        assert_eq!(shown, expected.map(|(at, line)| (at, line.to_owned())));
    }

    #[test]
    fn what_is_not_text_comes_through() {
        let mut bytes = Vec::new();
        let mut labeller = Labeller::default();
        let binary: Vec<u8> = (0..=255).filter(|byte| !b"\r\n".contains(byte)).collect();
        labeller.push(0_u32, LogStream::Stdout, &binary, at(0), &mut |_, _, _, _| ());
        labeller.finish(&mut |_, _, _, line| bytes.extend_from_slice(line));
        assert_eq!(bytes, binary);
    }
}
