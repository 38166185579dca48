//! Damage to what the server has on disk: it is said, with its remedy, and never shown as the truth.

use std::fs;
use std::path::Path;

use muster_testkit::{Home, wait_for};

use crate::crash::Random;
use crate::{home, until};

/// A home with a job that has ended, whose server was killed.
fn killed() -> (Home, String) {
    let home = home();
    let job = home.submit(&["--", "echo", "output"]);
    home.wait_for_state(&job, "succeeded");
    home.kill("server");
    (home, job)
}

fn remove(home: &Home, names: &[&str]) {
    for name in names {
        let path = home.path().join(name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

fn cut_in_half(path: &Path) {
    let file = fs::File::options().write(true).open(path).expect("the file");
    file.set_len(file.metadata().expect("its length").len() / 2).expect("it is cut");
}

#[test]
fn a_server_without_its_database_does_not_begin_anew_until_that_is_meant() {
    let (home, _) = killed();
    remove(&home, &["muster.db", "muster.db-wal", "muster.db-shm"]);
    let refused = |what: &str| {
        let ps = home.run(["ps", "--all"]);
        assert_ne!(ps.code(), 0, "{what}: {}", ps.out());
        let said = ps.err();
        assert!(
            said.contains("missing or empty") && said.contains("muster server restore"),
            "{what}: {said}"
        );
    };
    refused("a missing database");
    fs::write(home.path().join("muster.db"), "").expect("an empty database");
    refused("an empty database");
    remove(&home, &["muster.commit"]);
    refused("logs without a mark");
    remove(&home, &["logs"]);
    home.write("code.py", "print('some code')");
    fs::create_dir_all(home.path().join("chunks/0")).expect("a directory of chunks");
    fs::write(home.path().join("chunks/0/0123"), "a chunk").expect("a chunk");
    refused("code without a mark");
    remove(&home, &["chunks"]);
    assert_eq!(home.ok(["ps", "--all", "--quiet"]), "");
}

#[test]
fn changes_that_the_database_has_lost_are_said_until_going_on_without_them_is_meant() {
    let (home, job) = killed();
    let log = home.path().join("muster.db-wal");
    let whole = fs::read(&log).expect("the log of the database");
    cut_in_half(&log);
    for _ in 0..2 {
        let ps = home.run(["ps", "--all"]);
        assert_ne!(ps.code(), 0, "{}", ps.out());
        assert!(ps.err().contains("lacks its last") && ps.err().contains("muster.commit"), "{}", ps.err());
    }
    fs::write(&log, whole).expect("the log is put back");
    assert_eq!(home.ok(["ps", "--all", "--quiet"]).trim(), job);
    home.kill("server");
    cut_in_half(&log);
    remove(&home, &["muster.commit"]);
    home.ok(["ps", "--all"]);
}

#[test]
fn a_damaged_log_is_shown_with_a_note_and_an_error() {
    let home = home();
    // Enough for two segments.
    let job = home.submit(&["--", "seq", "1", "2000000"]);
    home.wait_for_state(&job, "succeeded");
    wait_for("the whole log", || home.ok(["logs", &job]).lines().count() == 2_000_000);
    let log = home.path().join("logs").join(&job).join("1/0");
    let mut segments: Vec<_> = fs::read_dir(&log)
        .expect("the log")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "seg"))
        .collect();
    segments.sort();
    assert!(segments.len() >= 2, "{segments:?}");

    let whole = fs::read(&segments[0]).expect("a segment");
    let mut flipped = whole.clone();
    let place = flipped.windows(8).position(|part| part == b"\n123456\n").expect("a line") + 1;
    flipped[place] = b'7';
    fs::write(&segments[0], flipped).expect("damage");
    let check = |words: &[&str], lines: std::ops::RangeInclusive<usize>| {
        let done = home.run(words);
        assert_ne!(done.code(), 0, "{words:?}");
        let said = done.err();
        assert!(
            said.contains("log_damaged") && said.contains("server's disk") && !said.contains("away"),
            "{said}"
        );
        let shown = done.out().lines().count();
        assert!(lines.contains(&shown), "{words:?}: {shown} lines");
    };
    check(&["logs", &job], 2_000_000..=2_000_000);
    fs::write(&segments[0], &whole).expect("the damage goes");
    home.ok(["logs", &job]);

    let last = segments.last().expect("a segment");
    cut_in_half(last);
    check(&["logs", &job], 1_000_000..=1_999_999);
    check(&["logs", "--follow", &job], 1_000_000..=1_999_999);
    let file = home.work().join("out.log");
    home.ok(["logs", &job, "--output", file.to_str().expect("a plain path")]);
    let text = fs::read_to_string(file).expect("the file");
    assert!(text.lines().last().is_some_and(|line| line.contains("damaged")), "the file says it");
    fs::remove_file(last).expect("a segment");
    check(&["logs", "--follow", &job], 1_000_000..=1_999_999);
}

#[test]
fn damaged_code_is_named_at_once_and_sent_anew_with_the_next_job() {
    let home = home();
    // Of a few chunks, none of which can be compressed.
    let mut random = Random(22);
    let bytes: Vec<u8> = (0..4 << 17).flat_map(|_| random.below(u64::MAX).to_le_bytes()).collect();
    home.write("data.bin", &bytes);
    let held = home.submit(&["--hold", "--", "wc", "-c", "data.bin"]);
    let chunks = home.path().join("chunks");
    let mut damaged = 0;
    for directory in fs::read_dir(&chunks).expect("the chunks").flatten() {
        for entry in fs::read_dir(directory.path()).expect("a directory of chunks").flatten() {
            let mut stored = fs::read(entry.path()).expect("a chunk");
            if stored.len() > 100_000 {
                let middle = stored.len() / 2;
                stored[middle] ^= 1;
                fs::write(entry.path(), stored).expect("damage");
                damaged += 1;
            }
        }
    }
    assert!(damaged >= 3, "{damaged} chunks");
    home.ok(["release", &held]);
    let failed = home.wait_for_state(&held, "failed");
    assert_eq!(failed["reason"]["code"], "code_damaged", "{failed}");
    let message = failed["message"].as_str().expect("a message");
    assert!(message.contains("chunk_") && message.contains("server's disk"), "{message}");
    // All that was damaged is sent at once.
    assert!(home.ok(["run", "--", "wc", "-c", "data.bin"]).contains(&bytes.len().to_string()));
}

#[test]
fn a_damaged_record_of_a_node_stops_its_task_with_a_clear_error() {
    let home = home();
    let job = home.submit(&["--", "sh", "-c", &format!("echo first; {}", until("never"))]);
    wait_for("its first line", || home.ok(["logs", &job]).contains("first"));
    assert_eq!(home.run(["server", "check"]).code(), 0, "{}", home.run(["server", "check"]).out());
    home.kill("agent");
    let record = home.path().join("node/tasks").join(format!("task0.{job}.1")).join("record");
    let text = fs::read(&record).expect("the record");
    fs::write(&record, text.iter().map(|byte| byte ^ 0x10).collect::<Vec<u8>>()).expect("damage");
    let ended = home.wait_for_state(&job, "failed");
    assert_eq!(ended["reason"]["code"], "record_damaged", "{ended}");
    assert!(home.ok(["logs", &job]).contains("first"), "its log comes");
    home.wait_for_no_tasks();
}

#[test]
fn a_job_ends_although_its_start_is_damaged_on_the_node() {
    let home = home();
    let job = home.submit(&["--", "sh", "-c", &format!("echo first; {}; exit 7", until("go"))]);
    wait_for("its first line", || home.ok(["logs", &job]).contains("first"));
    let started = home.path().join("node/tasks").join(format!("task0.{job}.1")).join("started.json");
    fs::write(&started, "{ damaged").expect("damage");
    let check = home.run(["server", "check"]);
    assert_eq!(check.code(), 1, "{}", check.out());
    assert!(check.out().contains("started.json"), "{}", check.out());
    home.kill("agent");
    home.touch("go");
    let ended = home.wait_for_state(&job, "failed");
    assert_eq!(ended["exit_code"], 7, "{ended}");
}

#[test]
fn a_task_without_agent_and_supervisor_ends_although_its_launch_is_damaged() {
    let home = home();
    let job = home.submit(&["--", "sh", "-c", &format!("echo first; {}", until("never"))]);
    wait_for("its first line", || home.ok(["logs", &job]).contains("first"));
    let launch = home.path().join("node/tasks").join(format!("task0.{job}.1")).join("launch.json");
    fs::write(&launch, "{ damaged").expect("damage");
    let check = home.run(["server", "check"]);
    assert_eq!(check.code(), 1, "{}", check.out());
    assert!(check.out().contains("launch.json"), "{}", check.out());
    home.kill("supervise");
    home.kill("agent");
    let ended = home.wait_for_state(&job, "failed");
    assert_eq!(ended["reason"]["code"], "supervisor_lost", "{ended}");
    home.wait_for_no_tasks();
}

#[test]
fn a_check_finds_all_that_is_damaged_beside_the_server_and_without_it() {
    let home = home();
    home.write("data.bin", "of the code ".repeat(1000));
    let job = home.submit(&["--", "seq", "1", "1000"]);
    home.wait_for_state(&job, "succeeded");
    wait_for("the whole log", || home.ok(["logs", &job]).lines().count() == 1000);
    let broken = || {
        let done = home.run(["server", "check", "--json"]);
        let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
        let names = report["checks"].as_array().expect("checks").iter();
        let broken = names.filter(|check| check["status"] == "broken").map(|check| check["name"].to_string());
        let broken: Vec<_> = broken.collect();
        assert_eq!(done.code(), i32::from(!broken.is_empty()), "{report}");
        broken.join(" ")
    };
    wait_for("its log to be sealed", || {
        home.run(["server", "check"]).out().contains("1 segments are whole\n")
    });
    assert_eq!(broken(), "");
    home.ok(["server", "stop"]);
    assert_eq!(broken(), "");
    let segment = home.path().join("logs").join(&job).join("1/0/00000000000000000000.seg");
    cut_in_half(&segment);
    assert_eq!(broken(), r#""logs""#);
    for directory in fs::read_dir(home.path().join("chunks")).expect("the chunks").flatten() {
        for entry in fs::read_dir(directory.path()).expect("a directory of chunks").flatten() {
            cut_in_half(&entry.path());
        }
    }
    assert_eq!(broken(), r#""logs" "code""#);
    remove(&home, &["chunks"]);
    assert_eq!(broken(), r#""logs" "code""#);
    cut_in_half(&home.path().join("muster.db"));
    assert!(broken().starts_with(r#""database""#));
}
