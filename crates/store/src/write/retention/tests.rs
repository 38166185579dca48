//! What is kept, how much it is, what of it can go, and what never does.

use muster_model::bundle::Source;
use muster_model::task::{Outputs, TaskEnd};
use muster_model::{BundleId, ChunkId, Event, Job, TaskId, Timestamp};

use crate::change::Change;
use crate::fixture::{Fixture, admit, at, new_job};
use crate::{Debt, KeptRow};

fn bundle(digit: char) -> BundleId {
    BundleId::from_digest(&digit.to_string().repeat(64)).unwrap()
}

fn put(store: &mut Fixture, digit: char, used_at: Timestamp) -> BundleId {
    let manifest = format!("muster bundle 1\nc {} 5\n", chunk(digit));
    let id = bundle(digit);
    store.writer.commit(&[Change::Bundle { id: id.clone(), manifest, at: used_at }]).unwrap();
    id
}

fn chunk(digit: char) -> ChunkId {
    ChunkId::from_digest(&digit.to_string().repeat(64)).unwrap()
}

fn remove_unused(store: &mut Fixture, unused_since: Timestamp) -> u64 {
    let change = Change::RemoveBundles { unused_since, limit: 100 };
    store.writer.commit(&[change]).unwrap().removed_bundles
}

/// A job of two tasks that wants outputs and has ended, with so much log for each task.
fn ended(store: &mut Fixture, number: u64, moment: i64, log_bytes: u64) -> Job {
    let mut new = new_job(number);
    new.spec.outputs = vec!["*.pt".into()];
    let mut job = store.add(new).job;
    store.apply(&mut job, admit(2), at(moment));
    let address = || muster_model::task::Address::new([127, 0, 0, 1], vec![]);
    for rank in 0..2 {
        store.apply(&mut job, Event::TaskReady { attempt: 1, rank, address: address() }, at(moment));
    }
    for rank in 0..2 {
        store.apply(&mut job, Event::TaskStarted { attempt: 1, rank, at: at(moment) }, at(moment));
        let end = TaskEnd::new(None, Some(log_bytes));
        store.apply(&mut job, Event::TaskEnded { attempt: 1, rank, end, at: at(moment) }, at(moment));
    }
    assert!(job.state.is_terminal());
    job
}

fn task(job: &Job, rank: u32) -> TaskId {
    job.attempt_id().task(rank)
}

#[test]
fn a_bundle_goes_only_when_nobody_has_it_and_nobody_asked_for_it() {
    let mut store = Fixture::new();
    let [of_job, of_task, asked, unused] = ['a', 'b', 'c', 'd'].map(|digit| put(&mut store, digit, at(1)));
    put(&mut store, 'c', at(10));
    let mut new = new_job(1);
    new.bundle = Some(of_job.clone());
    store.add(new.clone());
    let other = ended(&mut store, 2, 5, 0);
    let outputs = Outputs::Collected { bundle: of_task.clone(), files: 1, bytes: 7 };
    store.writer.commit(&[Change::Outputs { task: task(&other, 1), outputs }]).unwrap();

    assert_eq!(store.readers.unused_bundles(at(10)).unwrap(), 1);
    assert_eq!(remove_unused(&mut store, at(10)), 1);
    assert_eq!(store.readers.bundle_used_at(&unused).unwrap(), None);
    assert_eq!(store.readers.bundle_used_at(&asked).unwrap(), Some(at(10)));
    for gone in [
        Change::RemoveJob { job: new.job.id, at: at(30) },
        Change::RemoveOutputs { job: other.id, at: at(20) },
    ] {
        store.writer.commit(&[gone]).unwrap();
        assert_eq!(remove_unused(&mut store, at(10)), 1);
    }
    assert_eq!(remove_unused(&mut store, at(11)), 1);
    assert_eq!(store.count("bundle"), 0);
}

#[test]
fn every_chunk_that_something_names_is_shown() {
    let mut store = Fixture::new();
    put(&mut store, 'a', at(1));
    put(&mut store, 'b', at(9));
    let mut new = new_job(1);
    let source = Source { commit: "c0ffee".into(), branch: None, dirty: true, diff: Some(chunk('e')) };
    new.source = Some(source.clone());
    store.add(new.clone());
    assert_eq!(store.readers.job(&new.job.id).unwrap().unwrap().source, Some(source));
    let shown = |unused_since| {
        let (mut manifests, mut chunks) = (Vec::new(), Vec::new());
        let manifest = |text: &str| manifests.push(text.to_owned());
        store.readers.each_manifest(unused_since, manifest, |id| chunks.push(id.to_owned())).unwrap();
        (manifests.len(), chunks)
    };
    assert_eq!(shown(None), (2, vec![chunk('e').to_string()]));
    assert_eq!(shown(Some(at(5))).0, 1);
}

#[test]
fn the_first_word_about_outputs_counts_and_what_is_owed_is_known() {
    let mut store = Fixture::new();
    let job = ended(&mut store, 1, 5, 0);
    let owed = |outputs| Some(Debt { node: "node_n0".parse().unwrap(), outputs, log: true });
    assert_eq!(store.readers.debt(&task(&job, 0)).unwrap(), owed(true));
    let failed = |message: &str| Outputs::Failed { message: message.into() };
    for word in ["first", "second"] {
        let outputs = failed(word);
        store.writer.commit(&[Change::Outputs { task: task(&job, 0), outputs }]).unwrap();
    }
    assert_eq!(store.readers.debt(&task(&job, 0)).unwrap(), owed(false));
    assert_eq!(store.readers.outputs(&job.id, 1).unwrap(), [(0, failed("first"))].into());
    // What has failed is not there to be removed.
    store.writer.commit(&[Change::RemoveOutputs { job: job.id.clone(), at: at(9) }]).unwrap();
    assert_eq!(store.readers.outputs(&job.id, 1).unwrap(), [(0, failed("first"))].into());
    let stranger = muster_model::AttemptId { job: muster_model::JobId::from_random(9), number: 1 }.task(0);
    assert_eq!(store.readers.debt(&stranger).unwrap(), None);
}

#[test]
fn outputs_are_added_up_and_the_oldest_come_first() {
    let mut store = Fixture::new();
    let jobs: Vec<Job> = [(1, 50), (2, 30)].map(|(number, end)| ended(&mut store, number, end, 0)).into();
    for (job, rank, bytes) in [(&jobs[0], 0, 7), (&jobs[0], 1, 8), (&jobs[1], 0, 9)] {
        let outputs = Outputs::Collected { bundle: bundle('a'), files: 1, bytes };
        store.writer.commit(&[Change::Outputs { task: task(job, rank), outputs }]).unwrap();
    }
    let kept = |job: &Job, ended_at, bytes| KeptRow { job: job.id.clone(), ended_at: at(ended_at), bytes };
    assert_eq!(store.readers.output_total().unwrap(), 24);
    let oldest = store.readers.oldest_outputs(at(0), 10).unwrap();
    assert_eq!(oldest, [kept(&jobs[1], 30, 9), kept(&jobs[0], 50, 15)]);
    store.writer.commit(&[Change::RemoveOutputs { job: jobs[1].id.clone(), at: at(60) }]).unwrap();
    assert_eq!(store.readers.output_total().unwrap(), 15);
    assert_eq!(store.readers.oldest_outputs(at(0), 10).unwrap().len(), 1);
    let removed = Outputs::Removed { at: at(60) };
    assert_eq!(store.readers.outputs(&jobs[1].id, 1).unwrap(), [(0, removed)].into());
}

#[test]
fn logs_are_measured_once_and_gone_for_good() {
    let mut store = Fixture::new();
    let job = ended(&mut store, 1, 5, 100);
    store.add(new_job(2));
    let row = KeptRow { job: job.id.clone(), ended_at: at(5), bytes: 200 };
    assert_eq!(store.readers.unmeasured_logs(at(0), 10).unwrap(), std::slice::from_ref(&row));
    store.writer.commit(&[Change::LogBytes { job: job.id.clone(), bytes: 210 }]).unwrap();
    assert_eq!(store.readers.unmeasured_logs(at(0), 10).unwrap(), []);
    assert_eq!(store.readers.log_total().unwrap(), 210);
    assert_eq!(store.readers.oldest_logs(at(0), 10).unwrap(), [KeptRow { bytes: 210, ..row }]);
    assert!(store.readers.has_log(&job.id).unwrap());
    store.writer.commit(&[Change::RemoveLogs { job: job.id.clone(), at: at(9) }]).unwrap();
    assert_eq!(store.readers.log_total().unwrap(), 0);
    assert!(!store.readers.has_log(&job.id).unwrap());
    assert_eq!(store.readers.oldest_logs(at(0), 10).unwrap(), []);
    assert_eq!(store.readers.job(&job.id).unwrap().unwrap().logs_removed_at, Some(at(9)));
    assert!(!store.readers.debt(&task(&job, 0)).unwrap().unwrap().log);
}
