//! Output: every byte, from whom, in which order, while it is written and afterwards.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_testkit::http::Request;
use muster_testkit::{Home, peak_memory_kb, wait_for};
use serde_json::json;

use crate::{home, until};

#[test]
fn the_two_outputs_come_apart_and_byte_for_byte() {
    let home = home();
    // NUL, what is not UTF-8, a letter cut in two, no newline at the end.
    let script = r"printf 'a\000b\377\376c\303'; printf 'err\r\n\300' >&2; printf 'last'";
    let done = home.run(["run", "--", "sh", "-c", script]);
    assert_eq!(done.stdout, b"a\0b\xff\xfec\xc3last", "{}", done.err());
    let logs = home.run(["logs", "last"]);
    assert_eq!(
        (logs.stdout.as_slice(), logs.stderr.as_slice()),
        (&b"a\0b\xff\xfec\xc3last"[..], &b"err\r\n\xc0"[..])
    );
    let lines = home.ok(["logs", "last", "--json"]);
    let pieces: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(pieces.iter().any(|piece| piece["stream"] == "stderr" && piece["base64"].is_string()), "{lines}");
    assert!(pieces.iter().all(|piece| piece["rank"] == 0 && piece["attempt"] == 1), "{lines}");
}

#[test]
fn twenty_megabytes_of_noise_come_through_unchanged() {
    let home = home();
    let script = "head -c 20000000 /dev/urandom | tee \"$SHARED/written\"";
    let done = home.run(["run", "--", "sh", "-c", script]);
    let written = std::fs::read(home.shared().join("written")).unwrap();
    assert_eq!(written.len(), 20_000_000);
    // Not assert_eq: nobody wants to read them.
    assert!(done.stdout == written, "what `run` showed differs: {} bytes", done.stdout.len());
    let logs = home.run(["logs", "last"]);
    assert!(logs.stdout == written, "what `logs` showed differs: {} bytes", logs.stdout.len());
}

#[test]
fn the_last_line_is_cut_where_it_is_endless_and_that_is_said() {
    let home = home();
    let script = r#"perl -e 'print "x" x 3_000_000, "the end\n"'"#;
    assert_eq!(home.run(["run", "--detach", "--", script]).code(), 0);
    assert_eq!(home.run(["wait", "last"]).code(), 0);
    let tail = home.run(["logs", "last", "--tail", "1"]);
    assert!(
        tail.stdout.len() <= 1 << 20 && tail.stdout.ends_with(b"xthe end\n"),
        "{} bytes",
        tail.stdout.len()
    );
    assert!(tail.err().contains("only its end is shown"), "{}", tail.err());
    let whole = home.run(["logs", "last"]);
    assert_eq!((whole.stdout.len(), whole.err().as_str()), (3_000_008, ""));
}

#[test]
fn progress_bars_of_a_gang_are_shown_as_lines() {
    let home = home();
    let script = r#"i=0; while [ $i -lt 500 ]; do printf "\rstep $i of $RANK"; i=$((i + 1)); done
printf '\rdone of %s\nnext\r\nno end' $RANK; printf "odd bar\r" >&2"#;
    let done = home.run(["run", "-N", "2", "--", "sh", "-c", script]);
    assert_eq!(done.code(), 0, "{}", done.err());
    for shown in [done.out(), home.ok(["logs", "last"])] {
        assert!(!shown.contains('\r'), "{shown:?}");
        for rank in 0..2 {
            let label = format!("task{rank} | ");
            let own: Vec<&str> = shown.lines().filter_map(|line| line.strip_prefix(&label)).collect();
            let steps = own.iter().filter(|line| line.starts_with("step")).count();
            assert!((1..50).contains(&steps), "{steps} of 500 states of a bar were shown");
            assert!(own.ends_with(&[&format!("done of {rank}"), "next", "no end"]), "{own:?}");
        }
        assert!(shown.lines().all(|line| line.starts_with("task")), "{shown}");
    }
    assert!(home.run(["logs", "last"]).err().contains("task1 | odd bar\n"));
    // One task's output is its own business.
    let raw = home.run(["logs", "last", "--task", "1"]);
    assert_eq!(raw.out().matches('\r').count(), 502);
    assert_eq!(raw.err(), "odd bar\r");
}

#[test]
fn a_part_of_the_log_can_be_asked_for() {
    let home = home();
    let script = "i=1; while [ $i -le 100 ]; do echo \"$RANK line $i\"; i=$((i + 1)); done; printf 'no end'";
    let done = home.run(["run", "-N", "2", "--", "sh", "-c", script]);
    assert_eq!(done.code(), 0, "{}", done.err());
    assert_eq!(home.ok(["logs", "last", "--task", "1", "--tail", "3"]), "1 line 99\n1 line 100\nno end");
    let tail = home.ok(["logs", "last", "-n", "1"]);
    let mut lines: Vec<&str> = tail.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["task0 | no end", "task1 | no end"]);
    assert_eq!(home.ok(["logs", "last"]).lines().count(), 202);
    assert_eq!(home.ok(["logs", "last", "--task", "0"]).lines().count(), 101);
    assert_eq!(home.ok(["logs", "last", "--tail", "0"]), "");
    let done = home.run(["logs", "last", "--task", "2"]);
    assert_eq!(done.code(), 2, "{}", done.err());
    assert!(done.err().contains("0 to 1"), "{}", done.err());
}

#[test]
fn a_follower_sees_output_as_it_comes_and_ends_with_the_job() {
    let home = home();
    let script = format!("echo one; {}; echo two; {}; echo three", until("go1"), until("go2"));
    let id = home.submit(&["--", "sh", "-c", &script]);
    let mut early = home.start(["logs", "-f", &id]);
    early.wait_for_out("one\n");
    home.touch("go1");
    early.wait_for_out("two\n");
    let late = home.start(["logs", "--follow", "--tail", "1", &id]);
    late.wait_for_out("two\n");
    assert!(!early.is_over());
    assert_eq!(home.ok(["logs", &id]), "one\ntwo\n", "without --follow there is what is there");
    home.touch("go2");
    assert_eq!(early.finish().out(), "one\ntwo\nthree\n");
    assert_eq!(late.finish().out(), "two\nthree\n");
    assert_eq!(home.ok(["logs", "-f", &id]), "one\ntwo\nthree\n");
}

#[test]
fn a_follower_may_come_before_the_job_starts_and_stays_over_retries() {
    let home = crate::home_with("[local]\nslots = 1\n");
    let blocker = home.submit(&["--", "sh", "-c", &until("go")]);
    home.wait_for_state(&blocker, "running");
    let script = format!("echo try $MUSTER_ATTEMPT; {}; exit 3", until("again"));
    let id = home.submit(&["--retries", "2", "--", "sh", "-c", &script]);
    let early = home.door().follow(&Request::get(&format!("/api/v1/jobs/{id}/logs?follow=true")));
    assert_eq!(home.job(&id)["state"], "queued");
    home.touch("go");
    let late = home.start(["logs", "-f", &id]);
    late.wait_for_out("try 1\n");
    home.touch("again");
    assert_eq!(late.finish().out(), "try 1\ntry 2\ntry 3\n");
    let mut pieces: Vec<_> = early.collect();
    assert_eq!(pieces.pop().map(|end| end.kind), Some("end".into()));
    let shown: Vec<serde_json::Value> =
        pieces.iter().map(|piece| serde_json::from_str(&piece.data).unwrap()).collect();
    let texts: Vec<_> = shown.iter().map(|piece| (&piece["attempt"], &piece["text"])).collect();
    assert_eq!(
        texts,
        [(&json!(1), &json!("try 1\n")), (&json!(2), &json!("try 2\n")), (&json!(3), &json!("try 3\n"))]
    );
}

#[test]
fn what_a_job_wrote_last_is_there_when_it_is_over() {
    let home = home();
    home.wait_for_node();
    // More than can be on its way at once, written at the last moment.
    let print = ["--", "seq", "1", "2000000"];
    let first = home.submit(&print);
    home.wait_for_state(&first, "succeeded");
    let tail = home.ok(["logs", &first, "--tail", "2"]);
    assert!(tail == "1999999\n2000000\n", "{} lines are not the last two", tail.lines().count());
    let second = home.submit(&print);
    home.wait_for_state(&second, "succeeded");
    let shown = home.ok(["logs", &second]);
    assert_eq!((shown.lines().count(), shown.lines().last()), (2_000_000, Some("2000000")));
}

#[test]
fn a_reader_that_goes_away_hurts_nobody() {
    let home = home();
    let script = "i=0; while [ $i -lt 20000 ]; do echo \"line $i\"; i=$((i + 1)); done; exit 4";
    let run = |line: &str| {
        let mut shell = Command::new("bash");
        shell.args(["-c", line]).env("MUSTER", env!("CARGO_BIN_EXE_muster")).env("MUSTER_HOME", home.path());
        let done = shell.env("SCRIPT", script).current_dir(home.work()).output().expect("bash starts");
        (
            String::from_utf8_lossy(&done.stdout).into_owned(),
            String::from_utf8_lossy(&done.stderr).into_owned(),
        )
    };
    // The job and its exit code do not depend on who reads along.
    let (shown, said) = run("\"$MUSTER\" run -- sh -c \"$SCRIPT\" | head -n 2; echo ${PIPESTATUS[0]}");
    assert_eq!(shown, "line 0\nline 1\n4\n", "{said}");
    assert_eq!(home.job("last")["exit_code"], 4);
    for words in ["logs last", "logs -f last", "logs last --json", "ps -a", "show last"] {
        let (shown, said) = run(&format!("\"$MUSTER\" {words} | head -n 1; echo ${{PIPESTATUS[0]}}"));
        let code = shown.lines().last().unwrap_or_default();
        assert!(["0", "141"].contains(&code), "{words}: {shown}{said}");
        assert!(!said.contains("panicked") && !said.contains("error"), "{words}: {said}");
    }
    assert_eq!(home.ok(["logs", "last"]).lines().count(), 20_000);
}

#[test]
fn python_prints_without_being_asked_to_flush() {
    let home = home();
    home.write("slow.py", "import os, time\nprint('begun')\nwhile not os.path.exists(os.environ['SHARED'] + '/go'): time.sleep(0.02)\n");
    let client = home.start(["run", "--", crate::python(), "slow.py"]);
    client.wait_for_out("begun\n");
    home.touch("go");
    assert_eq!(client.finish().code(), 0);
}

#[test]
fn a_log_is_searched_and_cut_by_time_on_the_server() {
    let home = home();
    let script = format!("echo early $RANK; {}; echo late $RANK; printf 'late, no end'", until("go"));
    let id = home.submit(&["-N", "2", "--", "sh", "-c", &script]);
    let early = home.start(["logs", "-f", "--grep", "^late", &id]);
    wait_for("both tasks have begun", || home.ok(["logs", &id]).matches("early").count() == 2);
    // Between the two there is a moment, on the clock that the tasks have too.
    let shown = home.json(["logs", &id, "--task", "0", "--json"]);
    let begun = shown["at"].as_str().unwrap().to_owned();
    wait_for("time passes", || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
        let begun: u128 = shown["at"].as_str().and_then(micros).unwrap();
        now > begun + 2_000_000
    });
    home.touch("go");
    home.wait_for_state(&id, "succeeded");
    let mut lines: Vec<String> = early.finish().out().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["task0 | late 0", "task0 | late, no end", "task1 | late 1", "task1 | late, no end"]);
    let shown = |words: &[&str]| home.ok(["logs", &id, "--task", "0"].iter().chain(words));
    assert_eq!(shown(&["--until", &begun]), "early 0\n");
    assert_eq!(shown(&["--since", "1h"]), "early 0\nlate 0\nlate, no end");
    assert_eq!(shown(&["--until", "1h"]), "");
    assert_eq!(shown(&["--grep", "LATE [0-9]", "-i"]), "late 0\n");
    assert_eq!(shown(&["--grep", "late", "-v"]), "early 0\n");
    assert_eq!(shown(&["--grep", "e", "--tail", "2"]), "late 0\nlate, no end");
    let timed = home.ok(["logs", &id, "--timestamps", "--grep", "early"]);
    for line in timed.lines() {
        let (label, rest) = line.split_once(" | ").unwrap();
        let (time, text) = rest.split_once(' ').unwrap();
        assert!(label.starts_with("task") && text.starts_with("early"), "{line}");
        assert!(micros(time).is_some(), "{line}");
    }
    let path = format!("/api/v1/jobs/{id}/logs?grep=%5Ba");
    let problem = home.get(&path).problem(422, "invalid_fields");
    assert_eq!(problem["errors"][0]["field"], "grep", "{problem}");
    let done = home.run(["logs", &id, "--grep", "loss=("]);
    assert_eq!(done.code(), 2);
    assert!(done.err().contains("unclosed group"), "{}", done.err());
}

/// An RFC 3339 time in UTC, as far as this test needs it.
fn micros(text: &str) -> Option<u128> {
    text.parse::<muster_api::model::Timestamp>().ok().map(|at| at.as_microsecond() as u128)
}

#[test]
fn a_log_is_downloaded_whole_or_not_at_all() {
    let home = home();
    let script = r"head -c 3000000 /dev/urandom > $SHARED/$RANK; cat $SHARED/$RANK; echo of $RANK >&2";
    let id = home.submit(&["-N", "2", "--", "sh", "-c", script]);
    home.wait_for_state(&id, "succeeded");
    let said = home.ok(["logs", &id, "--output", "all/"]);
    assert_eq!(said.lines().count(), 2, "{said}");
    for rank in 0..2 {
        let mut expected = std::fs::read(home.shared().join(rank.to_string())).unwrap();
        expected.extend_from_slice(format!("of {rank}\n").as_bytes());
        let written = std::fs::read(home.work().join(format!("all/{id}-task{rank}.log"))).unwrap();
        assert!(written == expected, "{} bytes instead of {}", written.len(), expected.len());
        let reply = home.get(&format!("/api/v1/jobs/{id}/logs/download?task={rank}"));
        assert!(reply.status == 200 && reply.body == expected);
        assert!(reply.header("content-disposition").is_some_and(|value| value.starts_with("attachment")));
    }
    home.ok(["logs", &id, "-o", "one.log", "--grep", "^of [0-9]$"]);
    let text = std::fs::read_to_string(home.work().join("one.log")).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["task0 | of 0", "task1 | of 1"]);
    let done = home.run(["logs", &id, "-o", "nowhere/one.log"]);
    assert_eq!(done.code(), 125, "{}", done.err());
    let left: Vec<_> =
        std::fs::read_dir(home.work()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("partial")), "{left:?}");
}

/// How many files of its logs, and how many connections, a server has open.
fn held(home: &Home, server: u32) -> (usize, usize) {
    let logs = home.path().canonicalize().expect("the data directory").join("logs");
    let entries = std::fs::read_dir(format!("/proc/{server}/fd")).expect("the server lives").flatten();
    let targets: Vec<_> = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
    let files = targets.iter().filter(|target| target.starts_with(&logs)).count();
    (files, targets.iter().filter(|target| target.to_string_lossy().starts_with("socket:")).count())
}

#[test]
fn a_reader_that_is_gone_holds_nothing_however_silent_the_job_is() {
    let home = home();
    let script = format!("head -c 30000000 /dev/zero | tr '\\0' x; echo; {}", until("go"));
    let id = home.submit(&["--", "sh", "-c", &script]);
    home.wait_for_state(&id, "running");
    wait_for("all of it is here", || home.ok(["logs", &id]).len() == 30_000_001);
    let server = home.server_pid();
    let before = held(&home, server);
    // One waits for what never comes, and one does not read what there is.
    let follow = format!("/api/v1/jobs/{id}/logs?follow=true&tail=1");
    let mut waits = home.door().follow(&Request::get(&follow));
    assert!(waits.next().is_some());
    let mut stuck = home.door().connect().unwrap();
    let request = format!("GET /api/v1/jobs/{id}/logs/download HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stuck.write_all(request.as_bytes()).unwrap();
    wait_for("both have the log open", || held(&home, server).0 >= before.0 + 2);
    drop((waits, stuck));
    wait_for("neither holds a file or a connection", || {
        let now = held(&home, server);
        now.0 <= before.0 && now.1 <= before.1
    });
    home.touch("go");
    home.wait_for_state(&id, "succeeded");
}

#[test]
fn a_search_goes_on_over_a_killed_server_without_loss_or_repetition() {
    let home = home();
    let line = "i=0; while [ $i -lt 3000 ]; do echo \"row $i\"; echo \"noise $i\" >&2; i=$((i + 1))";
    let script = format!("{line}; [ $i = 1500 ] && {}; done", until("go"));
    let id = home.submit(&["--", "sh", "-c", &script]);
    let reader = home.start(["logs", "-f", &id, "--grep", "row [0-9]*[05]$"]);
    reader.wait_for_out("row 1495\n");
    home.kill("server");
    home.touch("go");
    let expected: String = (0..3000).step_by(5).map(|i| format!("row {i}\n")).collect();
    assert_eq!(reader.finish().out(), expected);
}

/// How much the flood prints; `MUSTER_TEST_FLOOD_MB` raises it.
fn flood_megabytes() -> u64 {
    std::env::var("MUSTER_TEST_FLOOD_MB").ok().and_then(|text| text.parse().ok()).unwrap_or(256)
}

/// The server's memory may not grow with what passes through it.
const MOST_SERVER_MEMORY_KB: u64 = 80 << 10;
/// How late another job's follower may be meanwhile.
const MOST_DELAY: Duration = Duration::from_secs(2);

#[test]
fn a_flood_loses_nothing_bounds_the_server_and_delays_no_other_job() {
    let home = home();
    home.wait_for_node();
    let server = home.server_pid();
    // Numbered lines: what is lost, doubled or out of order shows.
    let bytes = flood_megabytes() << 20;
    let numbers = format!("seq 1 99999999999 | head -c {bytes}");
    let beacon = "while [ ! -e \"$SHARED/over\" ]; do date +%s%N; sleep 0.1; done";
    let other = home.submit(&["--name", "beacon", "--", "sh", "-c", beacon]);
    let follower = Follower::start(&home, &other);
    let flood = home.submit(&["--name", "flood", "--", "sh", "-c", &numbers]);
    // Someone reads along, and someone comes late.
    let live = compare(&home, &["logs", "-f", &flood], &numbers);
    assert!(live, "what a follower saw differs from what was written");
    home.wait_for_state(&flood, "succeeded");
    assert!(compare(&home, &["logs", &flood], &numbers), "what is kept differs from what was written");
    home.touch("over");
    home.wait_for_state(&other, "succeeded");
    let delays = follower.finish();
    assert!(delays.len() >= 10, "only {} lines were seen", delays.len());
    let worst = delays.iter().max().unwrap();
    assert!(*worst < MOST_DELAY, "a line of another job was seen {worst:?} after it was written");
    assert_eq!(home.server_pid(), server, "the same server did all of it");
    let peak = peak_memory_kb(server).unwrap();
    assert!(peak < MOST_SERVER_MEMORY_KB, "the server used {peak} kB");
}

/// How many follow a flood, and how many of them stop reading.
const FOLLOWERS: usize = 30;
const STOPPED: usize = 10;
/// Held for each of those who stopped, it would be four times what is allowed for all.
const FOLLOWED_BYTES: usize = 32 << 20;
/// What the server may need for a follower, whether it reads or not, and for the rest of its work meanwhile. A follower who reads holds
/// pieces, their events and what the connection buffers: a busy machine was seen to need 1.7 MB for each, whatever the length of the flood.
const MOST_OF_FOLLOWER_KB: u64 = 2 << 10;
const MOST_OF_REST_KB: u64 = 16 << 10;

#[test]
fn followers_who_stop_reading_cost_the_server_no_more_than_their_pieces() {
    let home = home();
    let flood = format!("{}; seq 1 99999999 | head -c {FOLLOWED_BYTES}; echo; echo the end", until("go"));
    let id = home.submit(&["--", "sh", "-c", &flood]);
    home.wait_for_state(&id, "running");
    let server = home.server_pid();
    let follow = || {
        let mut connection = home.door().connect().unwrap();
        let request = format!("GET /api/v1/jobs/{id}/logs?follow=true HTTP/1.1\r\nhost: localhost\r\n\r\n");
        connection.write_all(request.as_bytes()).unwrap();
        let mut head = [0; 12];
        connection.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        connection
    };
    let mut stopped: Vec<_> = (0..STOPPED).map(|_| follow()).collect();
    let reading: Vec<_> = (STOPPED..FOLLOWERS).map(|_| follow()).collect();
    let before = peak_memory_kb(server).unwrap();
    std::thread::scope(|scope| {
        for connection in reading {
            scope.spawn(move || read_to_end_of_job(connection));
        }
        home.touch("go");
    });
    let grown = peak_memory_kb(server).unwrap() - before;
    // Those who go on then miss nothing.
    stopped.drain(..).for_each(read_to_end_of_job);
    let most = FOLLOWERS as u64 * MOST_OF_FOLLOWER_KB + MOST_OF_REST_KB;
    println!("{FOLLOWERS} followers cost {grown} kB of at most {most} kB");
    assert!(grown < most, "{FOLLOWERS} followers cost the server {grown} kB");
    assert_eq!(home.server_pid(), server);
}

/// Reads a stream of events up to the one that says that the job is over, after all of its output.
fn read_to_end_of_job(mut connection: Box<dyn muster_testkit::http::Connection>) {
    let (mut buffer, mut last) = (vec![0; 256 << 10], Vec::new());
    let mut count = 0;
    while !last.windows(10).any(|part| part == b"event: end") {
        let read = connection.read(&mut buffer).expect("the server sends on");
        assert!(read > 0, "the server ended the stream after {count} bytes");
        count += read;
        last.extend_from_slice(&buffer[..read]);
        last.drain(..last.len().saturating_sub(4096));
    }
    assert!(count > FOLLOWED_BYTES && String::from_utf8_lossy(&last).contains("the end"));
}

/// Whether a command prints exactly what a shell line does, compared as it comes.
fn compare(home: &Home, words: &[&str], line: &str) -> bool {
    let mut shown = home.command(words).stdout(Stdio::piped()).spawn().expect("the binary starts");
    let expected = Command::new("sh").args(["-c", line]).stdout(Stdio::piped()).spawn();
    let mut expected = expected.expect("a shell starts");
    let (mut a, mut b) = (shown.stdout.take().expect("a pipe"), expected.stdout.take().expect("a pipe"));
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let same = loop {
        let count = a.read(&mut left).expect("the pipe can be read");
        match b.read_exact(&mut right[..count]) {
            Ok(()) if count > 0 && left[..count] == right[..count] => {}
            Ok(()) => break count == 0 && b.read(&mut right).expect("the pipe can be read") == 0,
            Err(_) => break false,
        }
    };
    drop((a, b));
    let _ = expected.kill();
    let (status, _) = (shown.wait().expect("it ends"), expected.wait());
    same && status.success()
}

/// Reads a job's output as it comes: each line is the time at which it was written.
struct Follower {
    reader: std::thread::JoinHandle<Vec<Duration>>,
}

impl Follower {
    fn start(home: &Home, job: &str) -> Self {
        let mut child =
            home.command(["logs", "-f", job]).stdout(Stdio::piped()).spawn().expect("the binary starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let reader = std::thread::spawn(move || {
            let delay = |line: std::io::Result<String>| {
                let written = Duration::from_nanos(line.expect("a line").trim().parse().expect("a time"));
                let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
                now.saturating_sub(written)
            };
            let delays = lines.map(delay).collect();
            child.wait().expect("it ends");
            delays
        });
        Self { reader }
    }

    fn finish(self) -> Vec<Duration> {
        self.reader.join().expect("the follower's reader does not panic")
    }
}
