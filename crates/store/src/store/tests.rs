//! A database that is damaged, or gone, beside the mark of what it should contain.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::fixture::{Fixture, new_job};

const LOG: &str = "muster.db-wal";

/// What a killed server leaves after some commits, the last of them in the log alone.
fn killed(jobs: u64) -> TempDir {
    let mut store = Fixture::new();
    (0..jobs).for_each(|number| drop(store.add(new_job(number))));
    let copy = tempfile::tempdir().unwrap();
    for name in [Store::FILE, LOG, Store::MARK] {
        fs::copy(store.dir.path().join(name), copy.path().join(name)).unwrap();
    }
    copy
}

fn jobs(dir: &Path) -> Result<usize> {
    Ok(Store::open(dir)?.readers.load_unfinished()?.len())
}

#[test]
fn a_killed_server_has_lost_nothing_and_is_not_told_so() {
    let dir = killed(5);
    for _ in 0..3 {
        assert_eq!(jobs(dir.path()).unwrap(), 5);
    }
    // Killed between a commit and its mark.
    let dir = killed(5);
    CommitMark::begin(dir.path().join(Store::MARK), 2);
    assert_eq!(jobs(dir.path()).unwrap(), 5);
    assert_eq!(CommitMark::read(&dir.path().join(Store::MARK)), Some(5));
    // A mark that is gone or damaged is made anew.
    fs::write(dir.path().join(Store::MARK), "muster-commit 1 +0000009999 0\n").unwrap();
    assert_eq!(jobs(dir.path()).unwrap(), 5);
    fs::remove_file(dir.path().join(Store::MARK)).unwrap();
    assert_eq!(jobs(dir.path()).unwrap(), 5);
    assert_eq!(CommitMark::read(&dir.path().join(Store::MARK)), Some(5));
}

#[test]
fn a_log_that_is_damaged_or_gone_is_said_and_left_as_it_is() {
    let damage: [fn(&Path); 3] = [
        |log| {
            let mut bytes = fs::read(log).unwrap();
            let place = bytes.len() - 5000;
            bytes[place] ^= 0x10;
            fs::write(log, bytes).unwrap();
        },
        |log| {
            let file = fs::OpenOptions::new().write(true).open(log).unwrap();
            file.set_len(file.metadata().unwrap().len() - 5000).unwrap();
        },
        |log| fs::remove_file(log).unwrap(),
    ];
    for damage in damage {
        let dir = killed(5);
        let log = dir.path().join(LOG);
        damage(&log);
        let before = fs::read(&log).ok();
        for _ in 0..2 {
            let error = jobs(dir.path()).unwrap_err();
            assert!(matches!(error, Error::Lost { commits: 1.. }), "{error}");
        }
        assert_eq!(fs::read(&log).ok().filter(|log| !log.is_empty()), before, "the log is left as it is");
        fs::remove_file(dir.path().join(Store::MARK)).unwrap();
        assert!(jobs(dir.path()).unwrap() < 5, "whoever removes the mark goes on without them");
    }
}

#[test]
fn a_database_that_is_missing_or_empty_is_not_made_anew_beside_its_mark() {
    for content in [None, Some("")] {
        let dir = killed(1);
        fs::remove_file(dir.path().join(LOG)).unwrap();
        fs::remove_file(dir.path().join(Store::FILE)).unwrap();
        content.into_iter().for_each(|text| fs::write(dir.path().join(Store::FILE), text).unwrap());
        let error = Store::open(dir.path()).unwrap_err();
        assert!(matches!(error, Error::Missing { .. }), "{error}");
        assert!(!Store::exists(dir.path()), "nothing was made");
    }
}

#[test]
fn a_database_that_a_failed_write_left_has_no_number_for_it() {
    let mut store = Fixture::new();
    let job = store.add(new_job(1));
    let twice = [crate::Change::NewJob(Box::new(new_job(2))), crate::Change::NewJob(Box::new(job))];
    store.writer.commit(&twice).unwrap_err();
    store.add(new_job(3));
    let number = CommitMark::read(&store.dir.path().join(Store::MARK));
    assert_eq!(number, Some(2));
    assert_eq!(store.reopen().readers.load_unfinished().unwrap().len(), 2);
}

#[test]
fn a_check_finds_damaged_pages_and_lost_commits_and_changes_nothing() {
    let found = |dir: &Path| Store::check(dir, 10).map(|(_, found)| found);
    let mut store = Fixture::new();
    (0..50).for_each(|number| drop(store.add(new_job(number))));
    assert_eq!(found(store.dir.path()).unwrap(), [""; 0], "beside its writer");
    assert!(store.writer.checkpoint().unwrap());
    let dir = store.dir.path();
    let copy = tempfile::tempdir().unwrap();
    let mut bytes = fs::read(dir.join(Store::FILE)).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 4096].fill(0x5a);
    fs::write(copy.path().join(Store::FILE), &bytes).unwrap();
    assert!(found(copy.path()).map_or(true, |found| !found.is_empty()));
    assert_eq!(fs::read(copy.path().join(Store::FILE)).unwrap(), bytes);
    let lost = killed(5);
    fs::remove_file(lost.path().join(LOG)).unwrap();
    assert!(found(lost.path()).unwrap()[0].contains("lacks its last"));
    assert!(matches!(found(&lost.path().join("none")), Err(Error::Missing { .. })));
}
