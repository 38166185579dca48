//! Kill -9 at any moment: every commit that was reported is there, and no half of any other.
//!
//! The test runs itself as a child process that commits and says so, and kills it.

#![expect(clippy::unwrap_used, reason = "a test: a panic is how it fails")]

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use muster_model::job::Policy;
use muster_model::task::Placement;
use muster_model::{Event, Job, JobId, JobSpec, State, Timestamp};
use muster_store::{Change, NewEvent, NewJob, Store};
use serde_json::json;

const NAME: &str = "every_reported_commit_survives_kill_9";
/// Where the child finds the database; set only for it.
const DIRECTORY: &str = "MUSTER_STORE_CRASH_DIRECTORY";

fn new_job(number: u64) -> NewJob {
    let spec = JobSpec::from_value(json!({"command": "true"})).unwrap();
    let policy = Policy::from(&spec);
    NewJob {
        job: Job::new(JobId::from_random(number), policy),
        name: "crash".into(),
        owner: "ada".into(),
        workspace: "default".into(),
        spec,
        parent: None,
        index: None,
        bundle: None,
        source: None,
        environment: Some([("PATH".to_owned(), "/bin:".repeat(200))].into()),
        idempotency: Some((format!("key-{number}"), "digest".into())),
        submitted_at: Timestamp::UNIX_EPOCH,
    }
}

fn event(job: &JobId, kind: &str) -> Change {
    let (job, kind) = (Some(job.clone()), kind.to_owned());
    Change::Event(NewEvent { job, attempt: None, at: Timestamp::UNIX_EPOCH, kind, body: json!({}) })
}

/// Two commits for each number, each said aloud once it is done: the job is accepted, the job is admitted.
fn commit_for_ever(directory: &Path) {
    let mut writer = Store::open(directory).unwrap().writer;
    let mut out = std::io::stdout().lock();
    // The harness has begun a line with the test's name.
    writeln!(out).unwrap();
    for number in 0.. {
        let new = new_job(number);
        let mut job = new.job.clone();
        let batch = [Change::NewJob(Box::new(new)), event(&job.id, "submitted")];
        writer.commit(&batch).unwrap();
        writeln!(out, "submitted {number}").unwrap();
        let placements = vec![Placement { node: "node_local".parse().unwrap(), devices: vec![] }];
        let applied = job.apply(Event::Admit { placements }, Timestamp::UNIX_EPOCH).unwrap();
        let id = job.id.clone();
        let (touched, at) = (applied.touched, Timestamp::UNIX_EPOCH);
        let moved = Change::Job { before_generation: 0, job: Box::new(job), touched, at };
        writer.commit(&[moved, event(&id, "starting")]).unwrap();
        writeln!(out, "starting {number}").unwrap();
    }
}

/// Runs the child, kills it some time after it has spoken so often, and returns all it had said.
fn killed(directory: &Path, words: usize, later: Duration) -> Vec<String> {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let is_word = |line: &String| line.starts_with("submitted ") || line.starts_with("starting ");
    let mut said: Vec<String> = lines.by_ref().filter(is_word).take(words).collect();
    thread::sleep(later);
    child.kill().unwrap();
    child.wait().unwrap();
    said.extend(lines.filter(is_word));
    said
}

/// What the database says, in the child's words; and that each job has all of its rows.
fn stored(directory: &Path) -> Vec<String> {
    let readers = Store::open(directory).unwrap().readers;
    let mut words = Vec::new();
    for row in readers.load_unfinished().unwrap() {
        let number = row.seq - 1;
        words.push(format!("submitted {number}"));
        let mut kinds = vec!["submitted"];
        if row.job.state == State::Starting {
            words.push(format!("starting {number}"));
            kinds.push("starting");
        }
        let events = readers.events(Some(&row.job.id), 0, 10).unwrap();
        assert_eq!(events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), kinds, "job {number}");
        assert_eq!(row.job.tasks.len(), kinds.len() - 1);
        assert_eq!(readers.attempts(&row.job.id).unwrap().len(), kinds.len() - 1);
        assert!(readers.environment(&row.job.id).unwrap().is_some());
        let request = readers.idempotent(&format!("key-{number}")).unwrap();
        assert_eq!(request.map(|request| request.job), Some(row.job.id));
    }
    words
}

#[test]
fn every_reported_commit_survives_kill_9() {
    if let Ok(directory) = env::var(DIRECTORY) {
        return commit_for_ever(Path::new(&directory));
    }
    for seed in 0..12u8 {
        let random = blake3::hash(&[seed]);
        let [words, micros, ..] = *random.as_bytes();
        let directory = tempfile::tempdir().unwrap();
        // Up to 765 commits, so that some kills meet a checkpoint; then up to 2.5 ms, about a commit's length.
        let said =
            killed(directory.path(), usize::from(words) * 3, Duration::from_micros(u64::from(micros) * 10));
        let stored = stored(directory.path());
        assert!(stored.starts_with(&said), "seed {seed}: reported {said:?}, stored {stored:?}");
        assert!(stored.len() <= said.len() + 1, "seed {seed}: at most the last commit went unreported");
    }
}
