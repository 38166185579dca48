//! Parts of a log against the slow way, and the end of a log that does not come.

use std::sync::Arc;
use std::time::Duration;

use muster_engine::local;
use muster_link::log::{Appender, Header, SegmentDir, Stream};
use muster_link::message::{Hello, PROTOCOL, ToServer};
use muster_model::node::Capacity;
use muster_model::spec::JobSpec;
use muster_model::task::{Address, TaskEnd};
use muster_model::{AttemptId, JobId, TaskId};
use proptest::prelude::{Just, ProptestConfig, Strategy, prop_assert_eq, prop_oneof, proptest};
use serde_json::json;
use tokio::sync::mpsc;

use super::cursor::Mark;
use super::follower::{Follower, Patience, Turn};
use super::source::{Piece, Selection, Source, read_on};
use super::*;
use crate::core::{ConnectionId, Input, Submission};
use crate::disk::DiskFloor;
use crate::log_store::LogStore;
use crate::service::{Unserved, local_options};

type Written = Vec<(Stream, Vec<u8>)>;

/// A log on disk, a record each millisecond, in segments of a few records.
struct OnDisk {
    _home: tempfile::TempDir,
    logs: LogStore,
    task: TaskId,
}

fn time_of(record: usize) -> u64 {
    1_000_000 + record as u64 * 1000
}

fn append(dir: SegmentDir, records: &[(Stream, Vec<u8>)]) -> u64 {
    append_of(dir, records, |_| None)
}

/// The same, with the process of each record.
fn append_of(
    dir: SegmentDir,
    records: &[(Stream, Vec<u8>)],
    process_of: impl Fn(usize) -> Option<u8>,
) -> u64 {
    let mut log = Appender::open(dir).unwrap();
    let mut segment = 0;
    for (i, (stream, bytes)) in records.iter().enumerate() {
        if i % 4 == 0 {
            segment = log.end();
        }
        let header = Header {
            length: bytes.len() as u32,
            stream: *stream,
            time_micros: time_of(i),
            is_mark: false,
            process: process_of(i),
        };
        let record = [&header.encode()[..], bytes].concat();
        log.append_at(segment, log.end(), &record).unwrap();
    }
    log.sync().unwrap();
    log.end()
}

impl OnDisk {
    fn new(records: &[(Stream, Vec<u8>)]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let logs = LogStore::new(home.path().into(), Arc::new(DiskFloor::new(home.path().into(), Some(0))));
        let task = AttemptId { job: JobId::from_random(1), number: 1 }.task(0);
        append(logs.dir(&task), records);
        Self { _home: home, logs, task }
    }

    fn pieces(&self, selection: &Selection, mark: Option<&Mark>) -> Vec<Piece> {
        let mut sources = [Source::open(&self.logs, &self.task, selection, mark)];
        let mut pieces = Vec::new();
        loop {
            let step = read_on(&mut sources).unwrap();
            pieces.extend(step.pieces);
            if !step.is_news {
                break;
            }
        }
        sources[0].finish(&mut pieces);
        pieces
    }

    fn shown(&self, selection: &Selection) -> [String; 2] {
        joined(&self.pieces(selection, None))
    }
}

fn joined(pieces: &[Piece]) -> [String; 2] {
    Stream::ALL.map(|stream| {
        let bytes =
            pieces.iter().filter(|piece| piece.stream == stream).flat_map(|piece| piece.bytes.clone());
        String::from_utf8(bytes.collect()).unwrap()
    })
}

/// The lines of one stream.
fn lines_of(records: &[(Stream, Vec<u8>)], stream: Stream) -> Vec<String> {
    let own = records.iter().filter(|(of, _)| *of == stream).flat_map(|(_, bytes)| bytes.clone());
    let text = String::from_utf8(own.collect()).unwrap();
    text.split_inclusive('\n').map(str::to_owned).collect()
}

fn grep(pattern: &str) -> Selection {
    Selection { grep: Some(Grep::new(pattern, false, false).unwrap()), ..Selection::default() }
}

fn written() -> impl Strategy<Value = Written> {
    let byte = prop_oneof![3 => Just(b'a'), 2 => Just(b'b'), 1 => Just(b' '), 2 => Just(b'\n')];
    let stream = prop_oneof![Just(Stream::Stdout), Just(Stream::Stderr)];
    proptest::collection::vec((stream, proptest::collection::vec(byte, 0..12)), 0..24)
}

fn patterns() -> impl Strategy<Value = &'static str> {
    let all = ["a", "^b", "b$", "aa", "^$", "a b", "\\s", "[^b]*a$", "\\Aa", "a\\z", "(?-m)^a", "", "b\\b"];
    proptest::sample::select(all.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn grep_is_what_a_look_at_each_line_says(records in written(), pattern in patterns(), invert: bool) {
        let log = OnDisk::new(&records);
        let wanted = Grep::new(pattern, false, invert).unwrap();
        let selection = Selection { grep: Some(wanted), ..Selection::default() };
        let alone = regex::Regex::new(pattern).unwrap();
        let expected = Stream::ALL.map(|stream| {
            let lines = lines_of(&records, stream).into_iter();
            lines.filter(|line| alone.is_match(line.trim_end_matches('\n')) != invert).collect::<String>()
        });
        prop_assert_eq!(log.shown(&selection), expected);
    }

    #[test]
    fn a_search_goes_on_from_any_piece_without_loss_or_repetition(records in written(), pattern in patterns()) {
        let log = OnDisk::new(&records);
        let selection = grep(pattern);
        let all = log.pieces(&selection, None);
        for (i, piece) in all.iter().enumerate() {
            let mark = Mark { offset: piece.next, skip: piece.skip };
            let rest = log.pieces(&selection, Some(&mark));
            let whole: Vec<Piece> = all[..=i].iter().cloned().chain(rest).collect();
            // What never ended has no place of its own, and is shown last.
            if piece.bytes.ends_with(b"\n") {
                prop_assert_eq!(joined(&whole), joined(&all), "after {:?}", piece);
            }
        }
    }

    #[test]
    fn the_last_matches_are_the_end_of_all_matches(records in written(), count in 0..6u32) {
        let only: Written = records.into_iter().filter(|(stream, _)| *stream == Stream::Stdout).collect();
        let log = OnDisk::new(&only);
        let matches: Vec<String> =
            lines_of(&only, Stream::Stdout).into_iter().filter(|line| line.contains('a')).collect();
        let last = matches[matches.len().saturating_sub(count as usize)..].concat();
        let selection = Selection { tail: Some(count), ..grep("a") };
        prop_assert_eq!(&log.shown(&selection)[0], &last);
    }
}

fn numbered(count: usize) -> Written {
    (0..count).map(|i| (Stream::Stdout, format!("line {i}\n").into_bytes())).collect()
}

#[test]
fn one_process_is_read_as_if_it_were_alone() {
    let records = numbered(30);
    let log = OnDisk::new(&[]);
    append_of(log.logs.dir(&log.task), &records, |record| Some(record as u8 % 3));
    let own: Vec<String> = (0..30).filter(|i| i % 3 == 1).map(|i| format!("line {i}\n")).collect();
    let of_one = Selection { process: Some(1), ..Selection::default() };
    assert_eq!(log.shown(&of_one)[0], own.concat());
    assert!(log.pieces(&of_one, None).iter().all(|piece| piece.process == Some(1)));
    let last = Selection { tail: Some(2), ..of_one.clone() };
    assert_eq!(log.shown(&last)[0], own[8..].concat());
    let found = Selection { process: Some(1), ..grep("7$") };
    assert_eq!(log.shown(&found)[0], "line 7\n");
    for (i, piece) in log.pieces(&of_one, None).iter().enumerate() {
        let rest = log.pieces(&of_one, Some(&Mark { offset: piece.next, skip: piece.skip }));
        assert_eq!(joined(&rest)[0], own[i + 1..].concat());
    }
}

#[test]
fn a_part_is_chosen_by_time() {
    let log = OnDisk::new(&numbered(30));
    let part = |since: Option<usize>, until: Option<usize>, tail| {
        let (since, until) = (since.map(time_of), until.map(time_of));
        let [shown, _] = log.shown(&Selection { since, until, tail, ..Selection::default() });
        shown.lines().map(|line| line[5..].parse().unwrap()).collect::<Vec<usize>>()
    };
    assert_eq!(part(Some(27), None, None), [27, 28, 29]);
    assert_eq!(part(None, Some(2), None), [0, 1, 2]);
    assert_eq!(part(Some(10), Some(12), None), [10, 11, 12]);
    assert_eq!(part(Some(10), Some(20), Some(2)), [19, 20]);
    assert_eq!(part(Some(28), None, Some(5)), [28, 29]);
    assert_eq!(part(Some(99), None, None), [0; 0]);
    let both = Selection { since: Some(time_of(15)), ..grep("line .*[02468]$") };
    assert_eq!(log.shown(&both)[0].lines().count(), 7);
}

#[test]
fn the_rest_of_a_line_that_began_too_early_is_not_shown() {
    let parts = ["one\ntw", "o\nthree\n", "1%", "\r2%", "\r3%\n"];
    let records: Written = parts.iter().map(|part| (Stream::Stdout, part.as_bytes().to_vec())).collect();
    let log = OnDisk::new(&records);
    let since =
        |record| log.shown(&Selection { since: Some(time_of(record)), ..Selection::default() })[0].clone();
    assert_eq!(since(1), "three\n1%\r2%\r3%\n");
    assert_eq!(since(3), "2%\r3%\n", "a line that is redrawn for hours is shown from its next state on");
}

#[test]
fn an_endless_line_is_searched_in_parts() {
    let records: Written = (0..40).map(|_| (Stream::Stdout, vec![b'x'; 10_000])).collect();
    let log = OnDisk::new(&records);
    let pieces = log.pieces(&grep("x"), None);
    assert!(pieces.len() > 3 && pieces.iter().all(|piece| piece.bytes.len() < 100_000));
    assert_eq!(pieces.iter().map(|piece| piece.bytes.len()).sum::<usize>(), 400_000 + pieces.len() - 1);
}

#[test]
fn a_long_record_is_sent_in_parts_and_a_reader_goes_on_from_each() {
    let text: String = (0..90_000).map(|i| if i % 9000 == 0 { '\n' } else { 'ü' }).collect();
    let endless = "ü".repeat(90_000);
    for (stream, text) in [(Stream::Stdout, text), (Stream::Stderr, endless)] {
        let records = [(Stream::Stdout, b"before\n".to_vec()), (stream, text.into_bytes())];
        let log = OnDisk::new(&records);
        let all = log.pieces(&Selection::default(), None);
        assert!(all.len() > 3 && all.iter().all(|piece| piece.bytes.len() <= 64 << 10));
        assert!(all.iter().all(|piece| std::str::from_utf8(&piece.bytes).is_ok()));
        for (i, piece) in all.iter().enumerate() {
            let mark = Mark { offset: piece.next, skip: piece.skip };
            let rest = log.pieces(&Selection::default(), Some(&mark));
            let whole: Vec<Piece> = all[..=i].iter().cloned().chain(rest).collect();
            assert_eq!(joined(&whole), joined(&all));
        }
    }
}

#[test]
fn wrong_queries_name_their_fields() {
    let now = Timestamp::UNIX_EPOCH + Duration::from_secs(1000);
    let fields = |query: LogsQuery| {
        let problem = selection(&query, now).unwrap_err();
        problem.errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect::<Vec<_>>()
    };
    let text = |text: &str| Some(text.to_owned());
    let wrong = fields(LogsQuery {
        since: text("yesterday"),
        until: text("soon"),
        grep: text("loss=(nan"),
        ..LogsQuery::default()
    });
    assert_eq!(wrong.len(), 3, "{wrong:?}");
    assert!(wrong[0].starts_with("since: `yesterday` is not a time"), "{wrong:?}");
    assert!(wrong[2].starts_with("grep: is not a regular expression: unclosed group"), "{wrong:?}");
    assert!(wrong[2].contains("loss=(nan"), "{wrong:?}");
    let big = fields(LogsQuery { grep: text("(a{1000}){1000}"), ..LogsQuery::default() });
    assert!(big[0].contains("simpler"), "{big:?}");
    let backwards = LogsQuery { since: text("1m"), until: text("2m"), ..LogsQuery::default() };
    assert!(fields(backwards)[0].starts_with("until: "));
    assert!(
        fields(LogsQuery { invert_match: true, ..LogsQuery::default() })[0].starts_with("invert_match: ")
    );
    let right =
        LogsQuery { since: text("100s"), until: text("1970-01-01T00:16:00Z"), ..LogsQuery::default() };
    let right = selection(&right, now).unwrap();
    assert_eq!((right.since, right.until), (Some(900_000_000), Some(960_000_000)));
}

/// What is read of a log whose task is over, and where it is damaged.
fn over(log: &OnDisk) -> (String, Vec<(u64, u64)>, bool) {
    let mut sources = [Source::open(&log.logs, &log.task, &Selection::default(), None)];
    sources[0].is_over = true;
    let mut pieces = Vec::new();
    loop {
        let step = read_on(&mut sources).unwrap();
        if !step.is_news {
            break;
        }
        pieces.extend(step.pieces);
    }
    let [shown, _] = joined(&pieces);
    (shown, std::mem::take(&mut sources[0].damage), sources[0].is_cut_off)
}

#[test]
fn damage_is_noted_and_the_rest_is_read() {
    let lines = |range: std::ops::Range<usize>| range.map(|i| format!("line {i}\n")).collect::<String>();
    let log = OnDisk::new(&numbered(12));
    let dir = log.logs.dir(&log.task);
    let starts = dir.starts().unwrap();
    assert_eq!(starts.len(), 3);
    let end = dir.end().unwrap();
    assert_eq!(over(&log), (lines(0..12), vec![], false));
    let segment = |index: usize| dir.segment_path(starts[index]);
    let whole = std::fs::read(segment(1)).unwrap();

    let mut flipped = whole.clone();
    let place = flipped.windows(6).position(|part| part == b"line 5").unwrap();
    flipped[place] = b'x';
    std::fs::write(segment(1), &flipped).unwrap();
    let shown = lines(0..12).replace("line 5", "xine 5");
    assert_eq!(over(&log), (shown, vec![(starts[1], starts[2])], false));

    flipped[0] ^= 0xff;
    flipped[6] ^= 0xff;
    std::fs::write(segment(1), &flipped).unwrap();
    assert_eq!(over(&log), (lines(0..4) + &lines(8..12), vec![(starts[1], starts[2])], false));

    std::fs::write(segment(1), &whole[..whole.len() - 3]).unwrap();
    let (shown, damage, is_cut_off) = over(&log);
    assert_eq!((shown, is_cut_off), (lines(0..7) + &lines(8..12), false));
    assert!(damage.len() == 1 && damage[0].0 > starts[1] && damage[0].1 == starts[2], "{damage:?}");

    std::fs::remove_file(segment(1)).unwrap();
    assert_eq!(over(&log), (lines(0..4) + &lines(8..12), vec![(starts[1], starts[2])], false));
    std::fs::write(segment(1), &whole).unwrap();

    std::fs::write(segment(2), "").unwrap();
    assert_eq!(over(&log), (lines(0..8), vec![(starts[2], end)], true));
    std::fs::remove_file(segment(2)).unwrap();
    assert_eq!(over(&log), (lines(0..8), vec![(starts[2], end)], true));
    // Without checksums nothing is known about what is not there.
    std::fs::remove_file(dir.path().join("sums")).unwrap();
    assert_eq!(over(&log), (lines(0..8), vec![], false));
}

fn hello() -> Hello {
    Hello {
        protocol: PROTOCOL,
        version: "1".into(),
        build: "build".into(),
        node: local::NODE.parse().unwrap(),
        incarnation: "a".into(),
        pid: 1,
        host: "host".into(),
        capacity: Capacity { cpu_millis: 4000, memory_bytes: 1 << 30, slots: 4, devices: Vec::new() },
        account: Default::default(),
        tasks: Vec::new(),
    }
}

#[tokio::test]
async fn a_log_that_no_node_has_is_damaged_and_not_waited_for() {
    let home = tempfile::tempdir().unwrap();
    let server = Unserved::start(local_options(home.path())).await.unwrap();
    let (job, messages) = job_with_a_missing_end(&server.shared).await;
    server.shared.core.ask(Input::Nodes).await.unwrap();
    drop(messages);
    server.stop().await;
    // Its node comes to the next server and knows nothing of the task.
    let server = Unserved::start(local_options(home.path())).await.unwrap();
    let (outbox, _messages) = mpsc::channel(100);
    let (connection, hello) = (ConnectionId(2), Box::new(hello()));
    let here = Input::AgentConnected { connection, hello, outbox, is_tcp: false };
    server.shared.core.tell(here).await.unwrap();
    server.shared.core.ask(Input::Nodes).await.unwrap();
    let mut follower = follower(&server.shared, &job, Duration::from_secs(3600)).begin(None).await;
    let end = async {
        loop {
            if let Turn::End(end) = follower.turn().await.unwrap() {
                return end;
            }
        }
    };
    let end = tokio::time::timeout(Duration::from_secs(20), end).await.expect("nothing is waited for");
    assert!(end.missing.is_empty(), "no node is blamed");
    let damaged: Vec<_> = end.damaged.iter().map(|it| (it.attempt, it.rank, it.bytes)).collect();
    assert_eq!(damaged, [(1, 0, 1000)]);
    drop(follower);
    server.stop().await;
}

/// A job whose only task said it wrote 1000 bytes more than the server has.
async fn job_with_a_missing_end(shared: &Shared) -> (JobId, mpsc::Receiver<muster_link::message::ToAgent>) {
    let (connection, node) = (ConnectionId(1), hello().node);
    let (outbox, messages) = mpsc::channel(100);
    shared
        .core
        .tell(Input::AgentConnected { connection, hello: Box::new(hello()), outbox, is_tcp: false })
        .await
        .unwrap();
    let submission = Submission {
        spec: JobSpec::from_value(json!({ "nodes": 1, "command": ["true"] })).unwrap(),
        owner: "me".into(),
        bundle: None,
        source: None,
        environment: None,
        idempotency: None,
        sight: muster_store::Sight::All,
    };
    let job = shared.core.ask(|reply| Input::Submit(Box::new(submission), reply)).await.unwrap();
    let task = AttemptId { job: job.clone(), number: 1 }.task(0);
    let here = append(shared.logs.dir(&task), &numbered(3));
    let address = Address::new([127, 64, 0, 1], vec![4000]);
    let end = TaskEnd::new(None, Some(here + 1000));
    for message in [
        ToServer::Ready { task: task.clone(), address },
        ToServer::Ended { task: task.clone(), end, at: crate::core::now() },
    ] {
        shared.core.tell(Input::AgentSaid { connection, node: node.clone(), message }).await.unwrap();
    }
    (job, messages)
}

fn follower(shared: &Arc<Shared>, job: &JobId, away: Duration) -> Follower {
    let query = LogsQuery { follow: true, ..LogsQuery::default() };
    let patience = Patience { arrival: Duration::from_millis(10), away };
    let row = shared.readers.job(job).unwrap().unwrap();
    Follower::new(shared.clone(), row, query, Selection::default(), patience)
}

#[tokio::test]
async fn a_follower_does_not_wait_for_ever_for_a_node_that_is_away() {
    let home = tempfile::tempdir().unwrap();
    let server = Unserved::start(local_options(home.path())).await.unwrap();
    let (job, _messages) = job_with_a_missing_end(&server.shared).await;
    let node = hello().node;
    // Its answer comes after everything that was said before.
    server.shared.core.ask(Input::Nodes).await.unwrap();
    let mut patient = follower(&server.shared, &job, Duration::from_millis(20)).begin(None).await;
    let mut shown = Vec::new();
    // Many times its patience, and until something has come: a node that is there is waited for.
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_millis(200) || shown.is_empty() {
        match patient.turn().await.unwrap() {
            Turn::Pieces(_, pieces) => shown.extend(pieces),
            Turn::Again => {}
            Turn::End(_) | Turn::Stopped => panic!("it did not wait for a node that is there"),
        }
    }
    assert_eq!(joined(&shown)[0], "line 0\nline 1\nline 2\n");
    server
        .shared
        .core
        .tell(Input::AgentGone { connection: ConnectionId(1), node: node.clone() })
        .await
        .unwrap();
    let end = async {
        loop {
            match patient.turn().await.unwrap() {
                Turn::End(end) => return end,
                Turn::Stopped => panic!("the server does not stop"),
                Turn::Pieces(..) | Turn::Again => {}
            }
        }
    };
    let end = tokio::time::timeout(Duration::from_secs(20), end).await.expect("it ends without the node");
    let missing: Vec<_> = end.missing.iter().map(|it| (it.attempt, it.rank, &it.node, it.bytes)).collect();
    assert_eq!(missing, [(1, 0, &node, 1000)]);
    drop(patient);
    server.stop().await;
}
