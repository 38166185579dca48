//! Batches are whole or nothing, fences hold, and what was removed is gone.

use std::fs;
use std::time::Duration;

use muster_model::bundle::{Chunk, Manifest};
use muster_model::job::Policy;
use muster_model::node::Capacity;
use muster_model::task::{Address, Parting, Placement, TaskEnd};
use muster_model::{BundleId, ChunkId, Event, Job, JobId, JobSpec, Reason, State};
use proptest::prelude::*;
use serde_json::json;

use crate::change::{Change, NewJob, NodeRow};
use crate::error::{Class, Error};
use crate::fixture::{Fixture, admit, at, change, event, finished, new_job};

#[test]
fn a_batch_is_stored_whole_or_not_at_all() {
    let mut store = Fixture::new();
    let mut job = store.add(new_job(1)).job;
    let before = store.readers.job(&job.id).unwrap().unwrap();

    let nobody = JobId::from_random(99);
    let batch = [
        Change::NewJob(Box::new(new_job(2))),
        change(&mut job, admit(2), at(10)),
        event(Some(&job.id), "starting"),
        Change::RemoveJob { job: nobody.clone(), at: at(30) },
    ];
    let error = store.writer.commit(&batch).unwrap_err();
    assert!(matches!(&error, Error::NoJob { job } if *job == nobody));
    assert_eq!(error.class(), Class::NotFound);

    assert_eq!(store.readers.job(&job.id).unwrap().unwrap(), before);
    assert_eq!(
        [store.count("job"), store.count("attempt"), store.count("task"), store.count("event")],
        [1, 0, 0, 0]
    );

    let committed = store.writer.commit(&batch[..3]).unwrap();
    assert_eq!((committed.last_event(), committed.jobs), (Some(1), vec![2]));
    assert_eq!(store.readers.job(&job.id).unwrap().unwrap().job, job);
}

#[test]
fn a_write_based_on_an_older_generation_is_refused() {
    let mut store = Fixture::new();
    let mut job = store.add(new_job(1)).job;
    let mut other = job.clone();
    store.apply(&mut job, Event::Hold, at(10));

    let stale = [event(Some(&job.id), "stopped"), change(&mut other, Event::Stop { grace: None }, at(11))];
    let error = store.writer.commit(&stale).unwrap_err();
    assert!(matches!(&error, Error::Stale { job: stale } if *stale == job.id));
    assert_eq!(error.class(), Class::Conflict);
    assert_eq!((store.count("event"), store.readers.job(&job.id).unwrap().unwrap().job), (0, job));
}

#[test]
fn the_writer_works_again_once_the_disk_has_room() {
    let mut store = Fixture::new();
    let mut job = store.add(new_job(1)).job;
    let pages = |store: &Fixture, pages: i64| {
        let sql = format!("PRAGMA max_page_count = {pages}");
        store.writer.connection.query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    pages(&store, 1); // SQLite makes it as many as there are.

    let mut large = new_job(2);
    large.environment = Some([("A".to_owned(), "x".repeat(100_000))].into());
    let batch = [change(&mut job, admit(2), at(10)), Change::NewJob(Box::new(large))];
    let error = store.writer.commit(&batch).unwrap_err();
    assert_eq!(error.class(), Class::Retryable);
    assert_eq!(error.to_string(), "cannot store a new job: the disk that holds the database is full");
    assert_eq!((store.count("job"), store.count("task")), (1, 0));

    pages(&store, 1_000_000);
    store.writer.commit(&batch).unwrap();
    assert_eq!(store.readers.job(&job.id).unwrap().unwrap().job, job);
}

#[test]
fn a_key_is_used_once() {
    let mut store = Fixture::new();
    let mut first = new_job(1);
    first.idempotency = Some(("key".into(), "digest".into()));
    let mut second = new_job(2);
    second.idempotency = Some(("key".into(), "other".into()));
    store.add(first.clone());
    let error = store.writer.commit(&[Change::NewJob(Box::new(second.clone()))]).unwrap_err();
    assert_eq!((error.class(), store.count("job")), (Class::Conflict, 1));

    let found = store.readers.idempotent("key").unwrap().unwrap();
    assert_eq!((found.request_digest.as_str(), found.job), ("digest", first.job.id));
    store.writer.commit(&[Change::ForgetIdempotency { before: first.submitted_at }]).unwrap();
    assert!(store.readers.idempotent("key").unwrap().is_some(), "the key is as old as the limit, not older");
    store.writer.commit(&[Change::ForgetIdempotency { before: at(i64::from(u32::MAX)) }]).unwrap();
    assert_eq!(store.readers.idempotent("key").unwrap(), None);
    store.add(second);
}

#[test]
fn what_refers_to_nothing_is_refused() {
    let mut store = Fixture::new();
    let nobody = JobId::from_random(99);
    let mut orphan = new_job(1);
    orphan.parent = Some(nobody.clone());
    let mut codeless = new_job(2);
    codeless.bundle = Some(BundleId::from_digest(&"0".repeat(64)).unwrap());
    for change in
        [event(Some(&nobody), "x"), Change::NewJob(Box::new(orphan)), Change::NewJob(Box::new(codeless))]
    {
        assert_eq!(store.writer.commit(&[change]).unwrap_err().class(), Class::Conflict);
    }
    assert_eq!((store.count("job"), store.count("event"), store.count("spec")), (0, 0, 0));
}

#[test]
fn every_state_can_be_stored() {
    let mut store = Fixture::new();
    for (i, state) in (0..).zip(State::ALL) {
        let mut new = new_job(i);
        new.job.state = state;
        new.job.ending = (state == State::Stopping).then_some(muster_model::Ending::Stop);
        store.add(new);
    }
    let mut stored: Vec<State> =
        store.readers.counts_by_state().unwrap().into_iter().map(|(s, _)| s).collect();
    stored.sort_by_key(|state| State::ALL.iter().position(|other| other == state));
    assert_eq!(stored, State::ALL);
}

#[test]
fn an_attempt_has_a_start_an_end_and_a_reason_that_later_changes_leave_alone() {
    let mut store = Fixture::new();
    let mut job = store.add(new_job(1)).job;
    let end = |rank, failure| Event::TaskEnded {
        attempt: 1,
        rank,
        end: TaskEnd::new(failure, Some(7)),
        at: at(30),
    };
    let failure = Some(Reason::exited(3));
    store.apply(&mut job, admit(2), at(10));
    store.apply(&mut job, end(1, failure.clone()), at(30));
    assert_eq!(store.readers.attempts(&job.id).unwrap()[0].ended_at, None, "rank 0 is still there");
    store.apply(&mut job, end(0, None), at(40));
    assert_eq!(job.state, State::Queued, "the spec has one retry");
    store.apply(&mut job, Event::Suspend, at(50));
    store.apply(&mut job, Event::Resume, at(60));
    store.apply(&mut job, admit(2), at(70));

    let attempts = store.readers.attempts(&job.id).unwrap();
    assert_eq!(attempts.len(), 2);
    let first = &attempts[0];
    assert_eq!((first.number, first.started_at, first.ended_at), (1, at(10), Some(at(40))));
    assert_eq!((&first.reason, first.failed_rank), (&failure, Some(1)));
    assert_eq!((attempts[1].number, attempts[1].started_at, attempts[1].ended_at), (2, at(70), None));
    let first_gang = store.readers.tasks(&job.id, 1).unwrap();
    assert_eq!(
        first_gang.iter().map(|task| task.end.clone().unwrap().failure).collect::<Vec<_>>(),
        [None, failure]
    );
    assert_eq!(store.readers.tasks(&job.id, 2).unwrap(), job.tasks);
}

/// Two machines, of which each is on its own.
fn group(number: u64) -> NewJob {
    let mut new = new_job(number);
    new.spec = JobSpec::from_value(json!({"kind": "machine", "name": "m", "nodes": 2})).unwrap();
    new.job = Job::new(new.job.id, Policy::from(&new.spec));
    new
}

#[test]
fn members_that_start_one_by_one_have_attempts_of_their_own() {
    let mut store = Fixture::new();
    let mut job = store.add(group(1)).job;
    let end = |attempt, rank| Event::TaskEnded { attempt, rank, end: TaskEnd::new(None, None), at: at(30) };
    let suspend = Event::StopTask { rank: 1, parting: Parting::Suspend };
    let placement = Placement { node: "node_n9".parse().unwrap(), devices: vec![] };
    store.apply(&mut job, admit(2), at(10));
    store.apply(&mut job, suspend.clone(), at(20));
    assert_eq!(store.readers.job(&job.id).unwrap().unwrap().job, job, "that it was asked is not forgotten");
    store.apply(&mut job, end(1, 1), at(30));
    let before = job.tasks.clone();
    store.apply(&mut job, Event::StartTask { rank: 1, placement }, at(40));
    let store = &mut store.reopen();
    assert_eq!(store.readers.load_unfinished().unwrap()[0].job, job);
    assert_eq!(store.readers.tasks(&job.id, 1).unwrap(), before, "as the gang was then");
    assert_eq!(store.readers.tasks(&job.id, 2).unwrap(), job.tasks, "as it is now");
    assert_eq!(store.readers.tasks(&job.id, 3).unwrap(), [], "there was no such attempt");
    let ended = |store: &Fixture| -> Vec<_> {
        let attempts = store.readers.attempts(&job.id).unwrap();
        attempts.into_iter().map(|attempt| (attempt.ended_at, attempt.reason)).collect()
    };
    assert_eq!(ended(store), [(None, None), (None, None)]);
    let mut job = job.clone();
    store.apply(&mut job, suspend, at(50));
    store.apply(&mut job, end(2, 1), at(60));
    assert_eq!(ended(store), [(None, None), (Some(at(60)), Some(Reason::Suspended))]);
    store.apply(&mut job, end(1, 0), at(70));
    assert_eq!(job.state, State::Suspended);
    assert_eq!(ended(store)[0], (Some(at(70)), Some(Reason::Suspended)));
}

/// A job with a row in every table that can name one.
fn job_with_everything(store: &mut Fixture, number: u64) -> Job {
    let mut new = new_job(number);
    new.environment = Some([("SECRET".to_owned(), format!("hunter2-{}", "x".repeat(9000)))].into());
    new.idempotency = Some((format!("key-{number}"), "digest".into()));
    let mut job = store.add(new).job;
    let start = change(&mut job, admit(2), at(10));
    store.writer.commit(&[start, event(Some(&job.id), "starting")]).unwrap();
    job
}

#[test]
fn a_removed_job_leaves_no_row_and_no_byte_of_its_environment() {
    let mut store = Fixture::new();
    let job = job_with_everything(&mut store, 1);
    let secret = &store.readers.environment(&job.id).unwrap().unwrap()["SECRET"][..20];
    let tables: Vec<String> = store
        .rows_with(job.id.as_str())
        .iter()
        .map(|row| row.split(':').next().unwrap().to_owned())
        .collect();
    assert_eq!(tables, ["job", "attempt", "task", "task", "event", "job_environment", "idempotency"]);

    store.writer.commit(&[Change::RemoveJob { job: job.id.clone(), at: at(30) }]).unwrap();
    assert_eq!(store.readers.job(&job.id).unwrap(), None);
    assert_eq!(store.rows_with(job.id.as_str()), [""; 0]);
    assert_eq!(store.rows_with("hunter2"), [""; 0]);
    assert_eq!(store.count("spec"), 0, "nobody else has its spec");

    assert!(store.writer.checkpoint().unwrap());
    for entry in fs::read_dir(store.dir.path()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!found, "the environment is still in {}", path.display());
    }
}

#[test]
fn a_spec_stays_while_a_job_has_it_and_jobs_that_share_it_share_one_row() {
    let mut store = Fixture::new();
    let (first, second) = (store.add(new_job(1)).job.id, store.add(new_job(2)).job.id);
    assert_eq!(store.count("spec"), 1);
    store.writer.commit(&[Change::RemoveJob { job: first, at: at(30) }]).unwrap();
    assert_eq!(store.readers.job(&second).unwrap().unwrap().spec.nodes, 2);
    store.writer.commit(&[Change::RemoveJob { job: second, at: at(30) }]).unwrap();
    assert_eq!(store.count("spec"), 0);
}

#[test]
fn a_parent_goes_only_after_its_children() {
    let mut store = Fixture::new();
    let parent = store.add(new_job(1)).job.id;
    let mut child = new_job(2);
    child.parent = Some(parent.clone());
    child.index = Some(0);
    let child = store.add(child).job.id;
    let row = store.readers.job(&child).unwrap().unwrap();
    assert_eq!((row.parent.as_ref(), row.index), (Some(&parent), Some(0)));
    let error = store.writer.commit(&[Change::RemoveJob { job: parent.clone(), at: at(30) }]).unwrap_err();
    assert_eq!(error.class(), Class::Conflict);
    store
        .writer
        .commit(&[
            Change::RemoveJob { job: child, at: at(30) },
            Change::RemoveJob { job: parent, at: at(30) },
        ])
        .unwrap();
    assert_eq!(store.count("job"), 0);
}

#[test]
fn numbers_are_never_given_twice() {
    let mut store = Fixture::new();
    let first = store.add(finished(1)).job.id;
    store
        .writer
        .commit(&[event(Some(&first), "submitted"), Change::RemoveJob { job: first, at: at(30) }])
        .unwrap();
    assert_eq!(
        (store.readers.largest_job_seq().unwrap(), store.readers.largest_event_seq().unwrap()),
        (1, 1)
    );
    let batch = [Change::NewJob(Box::new(new_job(2))), event(None, "started")];
    let committed = store.writer.commit(&batch).unwrap();
    assert_eq!((committed.jobs, committed.events), (vec![2], vec![2]));
}

#[test]
fn nodes_and_bundles_read_back_what_was_written() {
    let mut store = Fixture::new();
    let mut node = NodeRow {
        id: "node_local".parse().unwrap(),
        engine: "local".into(),
        name: "local".into(),
        host: "laptop".into(),
        incarnation: None,
        capacity: Capacity::default(),
        token_hash: Some("hash".into()),
        last_seen_at: None,
    };
    let digest = "a".repeat(64);
    let id = BundleId::from_digest(&digest).unwrap();
    let content = vec![Chunk { id: ChunkId::from_digest(&digest).unwrap(), bytes: 5 }];
    let manifest = Manifest { listing: Vec::new(), content }.text();
    let bundle = |micros| Change::Bundle { id: id.clone(), manifest: manifest.clone(), at: at(micros) };
    store.writer.commit(&[Change::Node(Box::new(node.clone())), bundle(1), bundle(2)]).unwrap();
    node.incarnation = Some("second life".into());
    node.capacity.slots = 32;
    node.last_seen_at = Some(at(3));
    store.writer.commit(&[Change::Node(Box::new(node.clone()))]).unwrap();
    let mut new = new_job(1);
    new.bundle = Some(id.clone());
    store.add(new.clone());

    let store = store.reopen();
    assert_eq!(store.readers.nodes().unwrap(), [node]);
    let stored = store.readers.bundle(&id).unwrap().unwrap();
    assert_eq!((stored.manifest, stored.created_at, stored.used_at), (manifest, at(1), at(2)));
    assert_eq!(store.readers.job(&new.job.id).unwrap().unwrap().bundle, Some(id));
}

/// An event that fits, or nearly fits, whatever the job is doing.
fn life() -> impl Strategy<Value = Vec<(u8, u32, u64)>> {
    prop::collection::vec((0u8..15, 0u32..2, 0u64..1000), 1..30)
}

fn event_of(kind: u8, rank: u32, number: u64, job: &Job) -> Event {
    let attempt = job.attempt_of(rank).number;
    let moment = at(number as i64);
    let address = Address::new([127, 0, 1, 1], vec![number as u16]);
    let reasons = Reason::examples();
    let failure = reasons[number as usize % reasons.len()].clone();
    match kind {
        0..=2 => Event::TaskReady { attempt, rank, address },
        3 | 4 => Event::TaskStarted { attempt, rank, at: moment },
        5 => Event::TaskEnded { attempt, rank, end: TaskEnd::new(None, None), at: moment },
        6 => {
            let end = TaskEnd::new(Some(failure), Some(number));
            Event::TaskEnded { attempt, rank, end, at: moment }
        }
        7 => Event::Preempt { attempt: job.attempt, reason: Reason::Preempted },
        8 => Event::Suspend,
        9 if job.state == State::Suspended => Event::Resume,
        9 if job.hold => Event::Release,
        9 => Event::Hold,
        10 if number > 900 => Event::Stop { grace: Some(Duration::ZERO) },
        12 => Event::StopTask { rank, parting: Parting::Suspend },
        13 if number > 500 => Event::StopTask { rank, parting: Parting::Stop },
        13 | 14 => {
            let node = format!("node_n{number}").parse().unwrap();
            Event::StartTask { rank, placement: Placement { node, devices: vec![] } }
        }
        _ => admit(job.wanted().len() as u32),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_job_rebuilt_from_the_database_is_the_job_that_was_written(life in life(), is_group: bool) {
        let mut store = Fixture::new();
        let new = store.add(if is_group { group(1) } else { new_job(1) });
        let mut job = new.job.clone();
        for (i, (kind, rank, number)) in (0..).zip(life) {
            let before_generation = job.generation;
            let Ok(applied) = job.apply(event_of(kind, rank, number, &job), at(i)) else { continue };
            let (touched, at) = (applied.touched, at(i));
            let step = Change::Job { before_generation, job: Box::new(job.clone()), touched, at };
            store.writer.commit(&[step, event(Some(&job.id), "step")]).unwrap();
            prop_assert_eq!(&store.readers.job(&job.id).unwrap().unwrap().job, &job);
        }
        prop_assert_eq!(store.count("event"), job.generation);
        let store = store.reopen();
        let loaded = store.readers.load_unfinished().unwrap();
        prop_assert_eq!(loaded.is_empty(), job.state.is_terminal());
        for row in loaded {
            prop_assert_eq!(&row.job, &job);
            prop_assert_eq!((&*row.spec, row.name.as_str(), row.submitted_at), (&new.spec, "train", new.submitted_at));
        }
    }
}
