//! The log against a plain list of records: whatever is written, cut off, sent twice or followed by garbage.

use std::fs::{self, OpenOptions};
use std::io::Write;

use proptest::prelude::{
    Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest,
};
use tempfile::TempDir;

use super::{Appender, Chunk, Error, Header, Reader, Record, SegmentDir, Shipper, Stream};

/// A log written by hand, with segments short enough to have many.
struct Log {
    _home: TempDir,
    dir: SegmentDir,
    start: u64,
    end: u64,
    records: Vec<Record>,
}

impl Log {
    fn new() -> Log {
        let home = tempfile::tempdir().unwrap();
        let dir = SegmentDir::new(home.path().join("log"));
        fs::create_dir(dir.path()).unwrap();
        dir.create_segment(0).unwrap();
        Log { _home: home, dir, start: 0, end: 0, records: Vec::new() }
    }

    fn of(records: &[(Stream, Vec<u8>)], segment_bytes: u64) -> Log {
        let mut log = Log::new();
        for (stream, bytes) in records {
            if log.end - log.start >= segment_bytes {
                log.rotate();
            }
            log.write(*stream, bytes);
        }
        log
    }

    fn rotate(&mut self) {
        self.start = self.end;
        self.dir.create_segment(self.start).unwrap();
    }

    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        let time_micros = 1_700_000_000_000_000 + self.end;
        let process = u8::try_from(self.end % 128).ok().filter(|process| *process < Header::MOST_PROCESSES);
        let header = Header { length: bytes.len() as u32, stream, time_micros, is_mark: false, process };
        let bytes = bytes.to_vec();
        let record = Record { offset: self.end, stream, time_micros, process, bytes, before: 0, after: 0 };
        self.raw(&header.encode());
        self.raw(&record.bytes);
        self.end = record.end();
        self.records.push(record);
    }

    /// Bytes at the end that the list of records does not know.
    fn raw(&self, bytes: &[u8]) {
        let path = self.dir.segment_path(self.start);
        OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
    }

    fn reader(&self) -> Reader {
        Reader::new(self.dir.clone(), 0)
    }
}

fn rest(reader: &mut Reader) -> Vec<Record> {
    std::iter::from_fn(|| reader.next_record().unwrap()).collect()
}

/// Everything a shipper gives now, sent to a copy.
fn ship(shipper: &mut Shipper, copy: &mut Appender, buffer: usize) -> Vec<Chunk> {
    let mut buffer = vec![0; buffer];
    let mut chunks = Vec::new();
    while let Some(chunk) = shipper.next_chunk(&mut buffer).unwrap() {
        copy.append_at(chunk.segment, chunk.offset, &buffer[..chunk.length]).unwrap();
        chunks.push(chunk);
    }
    chunks
}

fn assert_same_bytes(one: &SegmentDir, other: &SegmentDir) {
    assert_eq!(one.starts().unwrap(), other.starts().unwrap());
    for start in one.starts().unwrap() {
        assert!(fs::read(one.segment_path(start)).unwrap() == fs::read(other.segment_path(start)).unwrap());
    }
}

fn streams() -> impl Strategy<Value = Stream> {
    prop_oneof![Just(Stream::Stdout), Just(Stream::Stderr)]
}

fn records() -> impl Strategy<Value = Vec<(Stream, Vec<u8>)>> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..300);
    proptest::collection::vec((streams(), bytes), 0..60)
}

/// Output with many line ends, for the tests that count lines.
fn lines() -> impl Strategy<Value = Vec<(Stream, Vec<u8>)>> {
    let byte = prop_oneof![3 => Just(b'a'), 1 => Just(b'\n'), 1 => Just(b'\r')];
    proptest::collection::vec((streams(), proptest::collection::vec(byte, 0..12)), 0..40)
}

/// The last lines the slow way: all lines of both streams in the order in which they end, so far as they do.
fn last_lines(records: &[Record], count: usize) -> [Vec<u8>; 2] {
    let mut lines: Vec<(usize, Stream, Vec<u8>)> = Vec::new();
    let mut open: [Option<(usize, Stream, Vec<u8>)>; 2] = [None, None];
    let bytes = records.iter().flat_map(|record| record.bytes.iter().map(|byte| (record.stream, *byte)));
    for (position, (stream, byte)) in bytes.enumerate() {
        let line = open[stream.index()].get_or_insert((position, stream, Vec::new()));
        line.0 = position;
        line.2.push(byte);
        if byte == b'\n' {
            lines.extend(open[stream.index()].take());
        }
    }
    lines.extend(open.into_iter().flatten());
    lines.sort_by_key(|(position, ..)| *position);
    let kept = &lines[lines.len().saturating_sub(count)..];
    Stream::ALL.map(|of| kept.iter().filter(|line| line.1 == of).flat_map(|line| line.2.clone()).collect())
}

fn tail_bytes(dir: &SegmentDir, lines: usize) -> [Vec<u8>; 2] {
    let mut tail = dir.tail(lines).unwrap();
    let mut shown = [Vec::new(), Vec::new()];
    for record in rest(&mut Reader::new(dir.clone(), tail.offset)) {
        shown[record.stream.index()].extend_from_slice(tail.trim(record.stream, &record.bytes));
    }
    shown
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_header_survives_the_round_trip(length in 0..=Header::MAX_LENGTH, stream in streams(), time_micros: u64) {
        let header = Header { length, stream, time_micros, is_mark: false, process: None };
        prop_assert_eq!(Header::decode(&header.encode()), Some(header));
    }

    #[test]
    fn sixteen_random_bytes_are_a_header_only_if_they_encode_back(bytes: [u8; 16]) {
        if let Some(header) = Header::decode(&bytes) {
            prop_assert_eq!(header.encode(), bytes);
        }
    }

    #[test]
    fn a_reader_gives_what_was_written(written in records(), segment_bytes in 1..2000u64) {
        let log = Log::of(&written, segment_bytes);
        prop_assert_eq!(rest(&mut log.reader()), log.records.clone());
        prop_assert_eq!(log.dir.whole_end().unwrap(), log.end);
        prop_assert_eq!(log.dir.end().unwrap(), log.end);
        for record in &log.records {
            let mut reader = Reader::new(log.dir.clone(), record.offset);
            let read = reader.next_record().unwrap();
            prop_assert_eq!(read.as_ref(), Some(record));
            for inside in [record.offset, record.offset + 1, record.end() - 1] {
                prop_assert_eq!(log.dir.align(inside).unwrap(), record.offset);
            }
        }
    }

    #[test]
    fn a_cut_anywhere_leaves_the_whole_records_before_it(written in records(), segment_bytes in 1..2000u64, cut: u64) {
        let log = Log::of(&written, segment_bytes);
        let kept = log.start + cut % (log.end - log.start + 1);
        log.dir.open_segment(log.start).unwrap().set_len(kept - log.start).unwrap();
        let expected: Vec<_> = log.records.iter().filter(|record| record.end() <= kept).cloned().collect();
        let whole = expected.last().map_or(0, Record::end);
        prop_assert_eq!(rest(&mut log.reader()), expected);
        prop_assert_eq!(log.dir.whole_end().unwrap(), whole);
    }

    #[test]
    fn a_log_that_grows_byte_by_byte_is_read_without_loss(written in records(), step in 1..97usize) {
        let source = Log::of(&written, 700);
        let grown = Log::new();
        fs::remove_file(grown.dir.segment_path(0)).unwrap();
        let mut reader = grown.reader();
        let mut seen = rest(&mut reader);
        for start in source.dir.starts().unwrap() {
            grown.dir.create_segment(start).unwrap();
            for piece in fs::read(source.dir.segment_path(start)).unwrap().chunks(step) {
                let mut file = OpenOptions::new().append(true).open(grown.dir.segment_path(start)).unwrap();
                file.write_all(piece).unwrap();
                seen.extend(rest(&mut reader));
            }
        }
        seen.extend(rest(&mut reader));
        prop_assert_eq!(seen, source.records);
    }

    #[test]
    fn garbage_at_the_end_is_never_shown(written in records(), garbage in proptest::collection::vec(any::<u8>(), 1..200)) {
        let log = Log::of(&written, 700);
        log.raw(&garbage);
        let mut reader = log.reader();
        let mut seen = Vec::new();
        while let Ok(Some(record)) = reader.next_record() {
            seen.push(record);
        }
        prop_assert!(seen.starts_with(&log.records));
        prop_assert!(log.dir.whole_end().unwrap() >= log.end);
        prop_assert!(log.dir.tail(3).is_ok());
        prop_assert!(log.dir.align(log.end + 5).is_ok());
    }

    #[test]
    fn a_copy_gets_every_byte_once_however_it_is_sent(
        written in records(),
        segment_bytes in 1..2000u64,
        buffer in 1..900usize,
        setbacks in proptest::collection::vec(any::<u64>(), 0..6),
    ) {
        let log = Log::of(&written, segment_bytes);
        let copy_dir = SegmentDir::new(log.dir.path().with_extension("copy"));
        let mut copy = Appender::open(copy_dir.clone()).unwrap();
        let mut shipper = Shipper::new(log.dir.clone(), 0);
        ship(&mut shipper, &mut copy, buffer);
        for setback in setbacks {
            // The other side restarts, the connection is lost, and the sender begins somewhere behind.
            copy = Appender::open(copy_dir.clone()).unwrap();
            shipper.seek(setback % (log.end + 1));
            ship(&mut shipper, &mut copy, buffer);
        }
        prop_assert_eq!(copy.end(), log.end);
        copy.sync().unwrap();
        let sums = copy_dir.sums().unwrap();
        prop_assert_eq!(sums.last_key_value().map_or(0, |(start, sum)| start + sum.length), log.end);
        for (start, sum) in &sums {
            prop_assert!(copy_dir.matches(*start, sum).unwrap(), "the segment at {}", start);
        }
        if log.end > 0 {
            // The shipper sends no empty segment, so an unused last one is not there yet.
            fs::remove_file(log.dir.segment_path(log.end)).ok();
            assert_same_bytes(&log.dir, &copy_dir);
        }
    }

    #[test]
    fn a_moment_is_found_without_reading_the_log(written in records(), segment_bytes in 1..2000u64, back in 0..30_000u64) {
        let log = Log::of(&written, segment_bytes);
        let moment = (1_700_000_000_000_000 + log.end + 5).saturating_sub(back);
        let after = log.records.iter().find(|record| record.time_micros > moment).map_or(log.end, |record| record.offset);
        prop_assert_eq!(log.dir.offset_after(moment).unwrap(), after);
        let start = log.dir.segment_at(moment).unwrap();
        prop_assert!(log.dir.starts().unwrap().contains(&start));
        let since = log.records.iter().find(|record| record.time_micros >= moment).map_or(log.end, |record| record.offset);
        prop_assert!(start <= since);
        prop_assert!(since - start <= segment_bytes + 400, "{} bytes too many", since - start);
    }

    #[test]
    fn the_tail_of_a_part_is_what_a_full_read_says(written in lines(), segment_bytes in 1..200u64, count in 0..12usize, cut in 0..40usize) {
        let log = Log::of(&written, segment_bytes);
        let kept = &log.records[..cut.min(log.records.len())];
        let end = kept.last().map_or(0, Record::end);
        let mut tail = log.dir.tail_before(count, end).unwrap();
        let mut shown = [Vec::new(), Vec::new()];
        for record in rest(&mut Reader::new(log.dir.clone(), tail.offset)) {
            if record.offset < end {
                shown[record.stream.index()].extend_from_slice(tail.trim(record.stream, &record.bytes));
            }
        }
        prop_assert_eq!(shown, last_lines(kept, count));
    }

    #[test]
    fn the_tail_is_what_a_full_read_says(written in lines(), segment_bytes in 1..200u64, count in 0..12usize) {
        let log = Log::of(&written, segment_bytes);
        prop_assert_eq!(tail_bytes(&log.dir, count), last_lines(&log.records, count));
    }
}

#[test]
fn the_tail_has_no_more_of_a_line_than_its_end() {
    let most = SegmentDir::TAIL_LINE as usize;
    let long = |end: &[u8]| [&vec![b'x'; 3 * most][..], end].concat();
    let records =
        |text: &[u8]| text.chunks(100_000).map(|part| (Stream::Stdout, part.to_vec())).collect::<Vec<_>>();
    // As it may come: with and without an end, alone and before others.
    for (text, lines, shown) in [
        (long(b""), 1, most),
        (long(b"\n"), 1, most),
        (long(b"\nshort\n"), 1, 6),
        (long(b"\nshort\n"), 2, most + 6),
        ([b"one\n".to_vec(), long(b"\n")].concat(), 2, most),
    ] {
        let log = Log::of(&records(&text), 1 << 20);
        let is_cut = shown >= most;
        assert_eq!(log.dir.tail(lines).unwrap().is_cut, [is_cut, false], "{lines} of {}", text.len());
        let [stdout, _] = tail_bytes(&log.dir, lines);
        assert_eq!(stdout, text[text.len() - shown..]);
    }
}

#[test]
fn bytes_that_leave_a_hole_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let mut copy = Appender::open(SegmentDir::new(home.path().join("log"))).unwrap();
    assert_eq!(copy.append_at(0, 0, b"0123456789").unwrap(), 10);
    for (segment, offset) in [(0, 11), (11, 11), (3, 8), (5, 10), (10, 11), (u64::MAX, u64::MAX)] {
        let refused = copy.append_at(segment, offset, b"abcdefgh");
        assert!(matches!(refused, Err(Error::Gap { end: 10, .. })), "{segment} {offset}");
    }
    assert_eq!(copy.append_at(0, 5, b"56789ab").unwrap(), 12);
    assert_eq!(copy.append_at(12, 12, b"c").unwrap(), 13);
    copy.sync().unwrap();
    assert_eq!(copy.dir_starts(), [0, 12]);
}

#[test]
fn damage_of_a_copy_is_found_and_never_made_good() {
    let home = tempfile::tempdir().unwrap();
    let dir = SegmentDir::new(home.path().join("log"));
    let mut copy = Appender::open(dir.clone()).unwrap();
    copy.append_at(0, 0, b"0123456789").unwrap();
    copy.append_at(10, 10, b"abcde").unwrap();
    copy.sync().unwrap();
    let is_whole = |start| dir.matches(start, &dir.sums().unwrap()[&start]).unwrap();
    assert!(is_whole(0) && is_whole(10));
    assert_eq!(dir.sums().unwrap()[&10].length, 5);
    // More of it, by a later life: what was covered stays covered.
    let mut copy = Appender::open(dir.clone()).unwrap();
    copy.append_at(10, 15, b"fgh").unwrap();
    assert!(is_whole(10), "the beginning is what it was");
    copy.sync().unwrap();
    assert_eq!(dir.sums().unwrap()[&10].length, 8);
    fs::write(dir.segment_path(0), b"0123x56789").unwrap();
    fs::write(dir.segment_path(10), b"abcdeFgh").unwrap();
    assert!(!is_whole(0) && !is_whole(10));
    let mut copy = Appender::open(dir.clone()).unwrap();
    copy.append_at(10, 18, b"ij").unwrap();
    copy.sync().unwrap();
    assert!(!is_whole(10), "what comes after damage does not make it good");
    fs::write(dir.segment_path(0), b"0123").unwrap();
    assert!(!is_whole(0));
    fs::remove_file(dir.segment_path(0)).unwrap();
    assert!(!is_whole(0));
    // Half a line, as a kill leaves it, says nothing, and the next one stands alone.
    let sums = dir.path().join("sums");
    let text = fs::read_to_string(&sums).unwrap();
    fs::write(&sums, &text[..text.len() - 3]).unwrap();
    assert_eq!(dir.sums().unwrap()[&10].length, 5);
}

#[test]
fn nothing_unfinished_is_shipped() {
    let mut log = Log::new();
    log.write(Stream::Stdout, b"whole");
    let header =
        Header { length: 100, stream: Stream::Stdout, time_micros: 1, is_mark: false, process: None };
    log.raw(&header.encode());
    log.raw(b"half");
    let mut shipper = Shipper::new(log.dir.clone(), 0);
    let mut buffer = [0; 1000];
    assert_eq!(shipper.next_chunk(&mut buffer).unwrap(), Some(Chunk { segment: 0, offset: 0, length: 21 }));
    assert_eq!(shipper.next_chunk(&mut buffer).unwrap(), None);
}

#[test]
fn old_segments_go_and_the_last_stays() {
    let mut log = Log::new();
    for text in ["one", "two", "three"] {
        log.write(Stream::Stdout, text.as_bytes());
        log.rotate();
    }
    let starts = log.dir.starts().unwrap();
    log.dir.remove_before(starts[2] - 1).unwrap();
    assert_eq!(log.dir.starts().unwrap(), starts[1..]);
    log.dir.remove_before(u64::MAX).unwrap();
    assert_eq!(log.dir.starts().unwrap(), starts[3..]);
    assert_eq!(log.dir.end().unwrap(), log.end);
    assert_eq!(log.dir.whole_end().unwrap(), log.end);
}

#[test]
fn a_reader_goes_on_when_what_it_has_not_read_was_removed() {
    let mut log = Log::new();
    let mut reader = log.reader();
    log.write(Stream::Stdout, b"one");
    assert_eq!(rest(&mut reader).len(), 1);
    log.rotate();
    log.write(Stream::Stdout, b"two");
    log.rotate();
    log.write(Stream::Stderr, b"three");
    log.dir.remove_before(u64::MAX).unwrap();
    let left = rest(&mut reader);
    assert_eq!(left, log.records[2..]);
}

#[test]
fn a_missing_log_is_an_empty_one() {
    let dir = SegmentDir::new("/nonexistent/log");
    assert_eq!(dir.end().unwrap(), 0);
    assert_eq!(dir.whole_end().unwrap(), 0);
    assert_eq!(dir.align(7).unwrap(), 0);
    assert_eq!(dir.tail(10).unwrap().offset, 0);
    assert_eq!(dir.segment_at(1).unwrap(), 0);
    assert_eq!(dir.offset_after(1).unwrap(), 0);
    assert!(Reader::new(dir.clone(), 0).next_record().unwrap().is_none());
    assert!(Shipper::new(dir, 0).next_chunk(&mut [0; 8]).unwrap().is_none());
}

#[test]
fn foreign_files_in_the_directory_are_ignored() {
    let mut log = Log::new();
    log.write(Stream::Stdout, b"one");
    for name in ["notes.txt", "1.seg", "000000000000000000x1.seg", "00000000000000000099.tmp"] {
        fs::write(log.dir.path().join(name), "not ours").unwrap();
    }
    assert_eq!(log.dir.starts().unwrap(), [0]);
}

impl Appender {
    fn dir_starts(&self) -> Vec<u64> {
        self.dir.starts().unwrap()
    }
}

#[test]
fn marks_are_found_between_the_output_and_never_among_it() {
    use muster_model::array::Mark;

    let home = tempfile::tempdir().unwrap();
    let dir = SegmentDir::new(home.path());
    let output = |text: &[u8]| {
        let header = Header {
            length: text.len() as u32,
            stream: Stream::Stdout,
            time_micros: 5,
            is_mark: false,
            process: None,
        };
        [&header.encode()[..], text].concat()
    };
    let began = |element| Header::mark(&Mark::Began { element }, 7);
    let ended = |element| Header::mark(&Mark::Ended { element, failure: None, stopped: false }, 9);
    let first = [began(1), output(b"one\n"), ended(1), began(2), output(&[b'\n'; 40_000])].concat();
    let second = [output(b"two\n"), ended(2), began(3)].concat();
    fs::write(dir.segment_path(0), &first).unwrap();
    fs::write(dir.segment_path(first.len() as u64), &second).unwrap();
    let (all, end) = dir.marks(0, 100).unwrap();
    assert_eq!(
        all.iter().map(|marked| marked.mark.clone()).collect::<Vec<_>>(),
        [
            Mark::Began { element: 1 },
            Mark::Ended { element: 1, failure: None, stopped: false },
            Mark::Began { element: 2 },
            Mark::Ended { element: 2, failure: None, stopped: false },
            Mark::Began { element: 3 },
        ]
    );
    assert_eq!(end, dir.end().unwrap());
    // What lies between a beginning and an end is the element's output.
    assert_eq!(all[1].offset - all[0].end, 20);
    // A few at a time, from where the last look ended, gives the same.
    let (mut some, mut from) = (Vec::new(), 0);
    loop {
        let (found, end) = dir.marks(from, 2).unwrap();
        if found.is_empty() {
            break;
        }
        some.extend(found);
        from = end;
    }
    assert_eq!((some, from), (all, end));
    let mut reader = Reader::new(dir.clone(), 0);
    let read: Vec<Vec<u8>> =
        std::iter::from_fn(|| reader.next_record().unwrap()).map(|record| record.bytes).collect();
    assert_eq!(read, [b"one\n".to_vec(), vec![b'\n'; 40_000], b"two\n".to_vec()]);
    assert_eq!(reader.offset(), end);
    let tail = dir.tail(1).unwrap();
    assert_eq!(Reader::new(dir.clone(), tail.offset).next_record().unwrap().unwrap().bytes, b"two\n");
}

#[test]
fn a_long_record_is_given_in_parts_that_end_with_a_line_or_a_character() {
    let lines: String = (0..20_000).map(|number| format!("line {number}\n")).collect();
    let endless = "\u{20ac}".repeat(70_000);
    let binary = vec![0x80; 150_000];
    for bytes in [lines.as_bytes(), endless.as_bytes(), &binary] {
        let mut log = Log::of(&[], 1 << 20);
        for (stream, bytes) in
            [(Stream::Stderr, &b"before"[..]), (Stream::Stdout, bytes), (Stream::Stdout, b"after")]
        {
            log.write(stream, bytes);
        }
        let mut reader = log.reader().in_parts(1);
        let parts = rest(&mut reader);
        assert!(parts.len() > 3 && parts.iter().all(|part| part.bytes.len() <= 64 << 10));
        let long = parts.iter().filter(|part| part.offset == log.records[1].offset);
        let mut joined = Vec::new();
        for part in long {
            assert_eq!((part.before, part.end()), (joined.len(), log.records[1].end()));
            joined.extend_from_slice(&part.bytes);
            assert_eq!(part.after, bytes.len() - joined.len());
            let is_text = std::str::from_utf8(bytes).is_ok();
            assert!(!is_text || std::str::from_utf8(&part.bytes).is_ok());
            assert!(!bytes.contains(&b'\n') || part.bytes.ends_with(b"\n"));
        }
        assert_eq!(joined, bytes);
        assert_eq!(parts.last(), log.records.last());
    }
}

#[test]
fn nothing_of_a_long_record_is_given_before_all_of_it_is_there() {
    let mut log = Log::of(&[], 1 << 20);
    log.write(Stream::Stdout, &[b'x'; 200_000]);
    let path = log.dir.segment_path(0);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..150_000]).unwrap();
    let mut reader = log.reader().in_parts(1);
    assert_eq!(rest(&mut reader), []);
    fs::write(&path, &whole).unwrap();
    assert_eq!(rest(&mut reader).iter().map(|part| part.bytes.len()).sum::<usize>(), 200_000);
}
