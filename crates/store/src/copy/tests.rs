//! A copy is one moment of the database, and whoever goes on from it starts nothing by itself.

use std::os::unix::fs::PermissionsExt;

use muster_model::State;
use muster_model::node::Capacity;

use crate::change::{Change, NodeRow};
use crate::error::Error;
use crate::fixture::{Fixture, admit, at, finished, new_job};
use crate::store::Store;

#[test]
fn a_copy_is_the_database_of_one_moment_and_for_its_user_alone() {
    let mut store = Fixture::new();
    let kept = store.add(finished(1)).job;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(Store::FILE);
    store.readers.copy_to(&path).unwrap();
    let later = store.add(finished(2)).job;
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let copy = Store::open(dir.path()).unwrap().readers;
    assert_eq!(copy.job(&kept.id).unwrap().unwrap().job, kept);
    assert!(copy.job(&later.id).unwrap().is_none());
    // Never over something else.
    assert!(store.readers.copy_to(&path).is_err());
}

#[test]
fn what_was_not_over_is_held_and_what_was_is_as_it_was() {
    let mut store = Fixture::new();
    let over = store.add(finished(1)).job;
    let queued = store.add(new_job(2)).job;
    let mut running = store.add(new_job(3)).job;
    store.apply(&mut running, admit(2), at(10));
    let node = Change::Node(Box::new(NodeRow {
        id: "node_n0".parse().unwrap(),
        engine: "local".into(),
        name: "local".into(),
        host: "here".into(),
        incarnation: Some("first".into()),
        capacity: Capacity::default(),
        token_hash: None,
        last_seen_at: None,
    }));
    store.writer.commit(&[node]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    store.readers.copy_to(&dir.path().join(Store::FILE)).unwrap();
    assert_eq!(Store::take_over(dir.path(), at(20)).unwrap(), 2);
    // A restore that was tried twice holds nothing twice.
    assert_eq!(Store::take_over(dir.path(), at(21)).unwrap(), 0);

    let copy = Store::open(dir.path()).unwrap().readers;
    assert_eq!(copy.job(&over.id).unwrap().unwrap().job, over);
    let job = |id| copy.job(id).unwrap().unwrap().job;
    assert!(job(&queued.id).hold && !job(&queued.id).is_eligible(at(i64::from(u32::MAX))));
    assert_eq!((job(&running.id).hold, job(&running.id).state), (true, State::Starting));
    assert_eq!(copy.nodes().unwrap()[0].incarnation.as_deref(), Some(super::NOBODY));
    assert!(!store.readers.job(&queued.id).unwrap().unwrap().job.hold, "the original is as it was");
}

#[test]
fn a_damaged_copy_is_refused() {
    let store = Fixture::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(Store::FILE);
    store.readers.copy_to(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].fill(0xff);
    std::fs::write(&path, bytes).unwrap();
    let error = Store::take_over(dir.path(), at(20)).unwrap_err();
    assert!(matches!(error, Error::Damaged { .. } | Error::Sqlite { .. }), "{error}");
}
