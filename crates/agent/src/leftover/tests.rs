//! What is printed can be put back, and says the truth whatever is missing.

use std::fs;
use std::path::Path;

use muster_link::leftover::Found;
use muster_link::message::Prepare;
use muster_model::task::TaskEnd;
use tempfile::TempDir;

use super::*;
use crate::disk;
use crate::record;

/// Noise, which does not compress, so that sizes are what they look like.
fn noise(bytes: usize, mut state: u64) -> Vec<u8> {
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn task(home: &Path, outputs: &[&str]) -> Owed {
    let id: TaskId = "task0.job_8nn4hvzat0.1".parse().unwrap();
    let dir = TaskDir::new(&home.join("tasks"), &id);
    for path in [dir.path().to_owned(), dir.work(), dir.output(), dir.log().path().to_owned()] {
        fs::create_dir_all(path).unwrap();
    }
    let prepare = Prepare {
        task: id.clone(),
        bundle: None,
        previous: None,
        outputs: outputs.iter().map(|pattern| pattern.to_string()).collect(),
        in_place: None,
        goes_on: false,
        ports: 1,
        shared_port: None,
        devices: vec![],
        memory_bytes: None,
        account: None,
        volumes: vec![],
        disk: Default::default(),
    };
    let record = Record::new(prepare, None);
    let ended =
        Ended { end: TaskEnd::new(None, None), at: Timestamp::UNIX_EPOCH, started_at: None, outputs: None };
    Owed { id, dir, record, ended, acked: 0 }
}

/// Adds records to its log, in segments as the supervisor makes them.
fn write_log(owed: &mut Owed, records: impl Iterator<Item = Vec<u8>>) {
    let log = owed.dir.log();
    let mut cut = Cut { entries: Vec::new(), start: 0, segment: Vec::new() };
    for bytes in records {
        cut.push(
            owed,
            &log,
            &Output {
                offset: 0,
                stream: Stream::Stdout,
                time_micros: 1,
                process: None,
                bytes,
                before: 0,
                after: 0,
            },
        );
    }
    let (entries, end) = cut.finish(owed, &log);
    for entry in entries {
        fs::write(owed.dir.path().parent().unwrap().parent().unwrap().join(&entry.path), entry.content)
            .unwrap();
    }
    owed.ended.end.log_bytes = Some(end);
}

fn print(owed: &Owed, may_wait: bool) -> (Left, Vec<String>) {
    let identity = Identity { pid: 1, start_ticks: None, incarnation: "me".into(), boot_id: "this".into() };
    let cache =
        std::sync::Arc::new(crate::bundle::Cache::open(owed.dir.path().join("cache"), "boot").unwrap());
    let tasks = owed.dir.path().parent().unwrap().to_owned();
    let reader = crate::files::Reader::new(tasks, cache);
    // What the reader opens goes by what is on disk.
    owed.dir.write(&owed.record).unwrap();
    let mut out = Vec::new();
    let left =
        leave(&identity, std::slice::from_ref(owed), |id| reader.open(id), may_wait, &mut out).unwrap();
    (left, String::from_utf8(out).unwrap().lines().map(str::to_owned).collect())
}

/// Puts back what was found, as the server's machine does.
fn put_back<'a>(lines: impl IntoIterator<Item = &'a String>) -> (TempDir, Owed) {
    let mut found = Found::default();
    lines.into_iter().for_each(|line| found.line(line));
    let home = tempfile::tempdir().unwrap();
    for entry in found.files().unwrap() {
        let path = home.path().join(&entry.path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match entry.kind {
            Kind::Directory => fs::create_dir_all(path).unwrap(),
            Kind::Link => {
                std::os::unix::fs::symlink(String::from_utf8(entry.content).unwrap(), path).unwrap()
            }
            Kind::File | Kind::Program => fs::write(path, entry.content).unwrap(),
        }
    }
    let identity: Identity = disk::read_json(&home.path().join("agent.json")).unwrap().unwrap();
    assert_eq!((identity.incarnation.as_str(), identity.boot_id.as_str()), ("me", "over"));
    let id = record::scan(&home.path().join("tasks")).unwrap().remove(0);
    let dir = TaskDir::new(&home.path().join("tasks"), &id);
    assert!(dir.was_launched());
    let record::Found::Task(record, ended) = dir.read().unwrap() else { panic!("there is no record") };
    (home, Owed { id, dir, record: *record, ended: ended.unwrap(), acked: 0 })
}

fn read_log(owed: &Owed, from: u64) -> Vec<u8> {
    let mut reader = Reader::new(owed.dir.log(), from);
    let mut all = Vec::new();
    while let Some(output) = reader.next_record().unwrap() {
        all.extend(output.bytes);
    }
    assert_eq!(reader.offset(), owed.ended.end.log_bytes.unwrap());
    all
}

#[test]
fn what_is_little_is_printed_whole_and_can_be_put_back() {
    let home = tempfile::tempdir().unwrap();
    let mut owed = task(home.path(), &["*.pt", "@output/**"]);
    write_log(&mut owed, (0..50).map(|number| format!("line {number}\n").into_bytes()));
    fs::write(owed.dir.work().join("model.pt"), noise(300_000, 5)).unwrap();
    fs::write(owed.dir.work().join("train.py"), "code").unwrap();
    fs::write(owed.dir.output().join("result"), "42").unwrap();
    owed.acked = 2 * (16 + 7);
    let (left, lines) = print(&owed, true);
    assert_eq!(left, Left::Printed);
    let (_there, back) = put_back(&lines);
    assert_eq!(back.ended, owed.ended);
    let text = String::from_utf8(read_log(&back, owed.acked)).unwrap();
    assert!(text.starts_with("line 2\n") && text.ends_with("line 48\nline 49\n"), "{text}");
    assert!(read_log(&back, 0).starts_with(&[0; 14]), "what the server has is not printed again");
    assert_eq!(fs::read(back.dir.work().join("model.pt")).unwrap(), noise(300_000, 5));
    assert_eq!(fs::read(back.dir.output().join("result")).unwrap(), b"42");
    assert!(!back.dir.work().join("train.py").exists(), "only what the job asked for");
}

#[test]
fn a_text_that_lost_its_beginning_still_tells_the_end() {
    let home = tempfile::tempdir().unwrap();
    let mut owed = task(home.path(), &["*.pt"]);
    write_log(&mut owed, (0..50).map(|_| noise(1000, 3)));
    fs::write(owed.dir.work().join("model.pt"), noise(300_000, 5)).unwrap();
    owed.acked = 1016 * 3;
    let (_, lines) = print(&owed, true);
    let (_there, back) = put_back(&lines[2..]);
    assert_eq!(back.ended.end.failure, owed.ended.end.failure);
    assert_eq!(back.ended.end.log_bytes, Some(owed.acked), "as much as the server has");
    assert_eq!(back.ended.outputs, Some(Outputs::Failed { message: LOST.into() }));
}

#[test]
fn what_is_too_much_waits_and_then_its_end_is_printed() {
    let home = tempfile::tempdir().unwrap();
    let mut owed = task(home.path(), &["*.pt"]);
    let line = |number: u64| [noise(65_000, number + 1), format!("\nline {number}\n").into_bytes()].concat();
    write_log(&mut owed, (0..400).map(line));
    owed.acked = 100 * (line(0).len() as u64 + 16 + 2);
    owed.acked = owed.dir.log().align(owed.acked).unwrap();
    let (left, lines) = print(&owed, true);
    assert_eq!((left, lines.len()), (Left::TooMuch, 0));
    let (left, lines) = print(&owed, false);
    assert_eq!(left, Left::Printed);
    let printed: usize = lines.iter().map(String::len).sum();
    assert!(printed < 8 << 20, "{printed}");
    let (_there, back) = put_back(&lines);
    assert_eq!(back.ended.outputs, Some(Outputs::Failed { message: NO_ROOM.into() }));
    // The server may have a little more than it is known to have.
    let (mut old, mut new) =
        (Reader::new(owed.dir.log(), owed.acked), Reader::new(back.dir.log(), owed.acked));
    while old.offset() < owed.acked + HEAD / 2 {
        assert_eq!(old.next_record().unwrap().unwrap(), new.next_record().unwrap().unwrap());
    }
    let text = String::from_utf8_lossy(&read_log(&back, new.offset())).into_owned();
    assert!(text.contains("MB of output were lost here") && text.ends_with("\nline 399\n"));
}
