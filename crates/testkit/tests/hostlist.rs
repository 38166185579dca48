//! Lists of hosts are read and written as Slurm's own `scontrol` does it.

use std::io::Write;
use std::process::{Command, Stdio};

use muster_model::hostlist;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// A host that none of the lists has; between the answers.
const MARK: &str = "no-such-host";
const CASES: usize = 2000;

/// What one `scontrol` answers to many questions. It needs no cluster for these, only a configuration.
fn scontrol(question: &str, lists: &[String]) -> Vec<Vec<String>> {
    let directory = tempfile::tempdir().expect("a directory");
    let conf = directory.path().join("slurm.conf");
    std::fs::write(&conf, "ClusterName=none\nSlurmctldHost=localhost\nNodeName=n1\n")
        .expect("a configuration");
    let mut process = Command::new("scontrol")
        .env("SLURM_CONF", conf)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("scontrol, of Debian's package slurm-client, starts");
    let mut input = process.stdin.take().expect("a pipe");
    let text: String =
        lists.iter().map(|list| format!("show {question} {list}\nshow hostnames {MARK}\n")).collect();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = process.wait_with_output().expect("scontrol ends");
    writer.join().expect("no panic").expect("scontrol reads to the end");
    let text = String::from_utf8(output.stdout).expect("text");
    // It repeats the questions, after its name.
    let lines = text.lines().filter(|line| !line.starts_with("scontrol:")).collect::<Vec<_>>();
    let answers =
        lines.split(|line| *line == MARK).map(|lines| lines.iter().map(|&line| line.to_owned()).collect());
    answers.take(lists.len()).collect()
}

fn some<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>) -> Vec<T> {
    // Always the same, so that a difference is seen again.
    let mut runner = TestRunner::deterministic();
    (0..CASES).map(|_| strategy.new_tree(&mut runner).expect("a value").current()).collect()
}

/// Between brackets: something good.
fn ranges() -> impl Strategy<Value = String> {
    let range = (0..120_u32, 0..12_u32, 1..4_usize)
        .prop_map(|(first, more, width)| format!("{first:0width$}-{:0width$}", first + more));
    let part = prop_oneof!["[0-9]{1,3}".boxed(), range.boxed()];
    prop::collection::vec(part, 1..4).prop_map(|parts| format!("[{}]", parts.join(",")))
}

/// Lists as people write them, and some that are none. Several brackets in one name are always good ones here: where they are
/// not, Slurm leaves hosts out and says nothing.
fn list() -> impl Strategy<Value = String> {
    let dimension = ("[a-c]{0,2}", ranges()).prop_map(|(text, ranges)| text + &ranges);
    let item = prop_oneof![
        4 => "[a-c]{1,2}[0-9]{0,3}".boxed(),
        12 => prop::collection::vec(dimension, 1..4).prop_map(|parts| parts.concat()).boxed(),
        1 => "n\\[[0-9]{1,2}-[0-9]{1,2}\\]".boxed(),
        1 => "n\\[[0-2],?(a|-1|1-2-)?\\]z?".boxed(),
    ];
    prop::collection::vec(item, 1..4).prop_map(|items| items.join(","))
}

#[test]
fn lists_are_read_as_scontrol_reads_them() {
    let lists = some(list());
    let answers = scontrol("hostnames", &lists);
    assert_eq!(answers.len(), lists.len());
    let mut read = 0;
    for (list, answer) in lists.iter().zip(answers) {
        // What it refuses, it says elsewhere.
        let theirs = (!answer.is_empty()).then_some(answer);
        read += usize::from(theirs.is_some());
        assert_eq!(hostlist::parse(list).ok(), theirs, "{list}");
    }
    assert!((CASES / 4..CASES).contains(&read), "{read} of the lists were good, which tests one side alone");
}

#[test]
fn hosts_are_written_as_scontrol_writes_them() {
    let host = prop_oneof!["[a-b]{0,1}[0-9]", "n[0-9]{1,2}", "n0{0,2}(9|10|99|100)", "[a-b]", "n[1-2]b[1-3]"];
    let hosts = some(prop::collection::vec(host, 1..12));
    // Neighbours are what there is to gain from, and chance seldom has them.
    let rows = some((0..120_u32, 1..30_u32, 1..4_usize)).into_iter().map(|(first, count, width)| {
        (first..first + count).map(|number| format!("n{number:0width$}")).collect::<Vec<_>>()
    });
    let all: Vec<Vec<String>> = hosts.into_iter().chain(rows).collect();
    let answers = scontrol("hostlist", &all.iter().map(|hosts| hosts.join(",")).collect::<Vec<_>>());
    assert_eq!(answers.len(), all.len());
    for (hosts, answer) in all.iter().zip(answers) {
        assert_eq!([hostlist::print(hosts)].as_slice(), answer, "{hosts:?}");
    }
}
