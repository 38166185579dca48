//! Fresh files, old files, files from the future, files that are something else.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rusqlite::Connection;

use super::{ALL, Migration, migrate};
use crate::connection::{WalIndex, open_writer};
use crate::error::{Class, Error};
use crate::fixture::{Fixture, new_job};
use crate::read::list::JobFilter;
use crate::store::Store;

const FIRST: Migration = Migration { number: 1, name: "first", sql: "CREATE TABLE a (x)" };
const SECOND: Migration = Migration { number: 2, name: "second", sql: "INSERT INTO a VALUES (1)" };

fn open(dir: &Path) -> Connection {
    open_writer(&dir.join(Store::FILE), WalIndex::File).unwrap()
}

fn rows(connection: &Connection, sql: &str) -> i64 {
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn a_fresh_database_has_every_migration_and_an_old_one_keeps_its_jobs() {
    let mut store = Fixture::new();
    assert_eq!(store.count("migration"), ALL.len() as u64);
    let job = store.add(new_job(1)).job;
    let store = store.reopen();
    assert_eq!(store.count("migration"), ALL.len() as u64);
    assert_eq!(store.readers.job(&job.id).unwrap().unwrap().job, job);
}

#[test]
fn bundles_of_the_first_format_go_and_no_job_goes_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut connection = open(dir.path());
    migrate(&mut connection, &ALL[..1]).unwrap();
    let states = ["queued", "starting", "running", "stopping", "succeeded", "failed", "stopped", "suspended"];
    connection.execute("INSERT INTO spec VALUES (1, 'd', '{}', 1, NULL, 'true')", []).unwrap();
    for (i, state) in states.iter().enumerate() {
        let bundle = format!("bundle_{i}");
        connection.execute("INSERT INTO bundle VALUES (?1, '{\"chunks\":[]}', 1)", [&bundle]).unwrap();
        let ending = if *state == "stopping" { "'{}'" } else { "NULL" };
        let sql = format!(
            "INSERT INTO job (id, name, kind, owner, workspace, spec, priority, target, bundle, submitted_at, state,
                 ending, hold, attempt, retried, generation)
             VALUES ('job_{i}', 'n', 'training', 'o', 'w', 1, 0, 'local', ?1, 1, ?2, {ending}, 0, 0, 0, 0)"
        );
        connection.execute(&sql, [&bundle, *state]).unwrap();
    }
    connection.execute("INSERT INTO bundle VALUES ('bundle_unused', '{}', 1)", []).unwrap();
    migrate(&mut connection, ALL).unwrap();
    assert_eq!(rows(&connection, "SELECT count(*) FROM job"), 8);
    assert_eq!(rows(&connection, "SELECT count(*) FROM job WHERE bundle IS NOT NULL"), 5);
    assert_eq!(rows(&connection, "SELECT count(*) FROM bundle"), 5);
    assert_eq!(rows(&connection, "SELECT count(*) FROM bundle WHERE manifest <> ''"), 0);
}

#[test]
fn removals_owed_before_the_moment_was_written_down_stay() {
    let dir = tempfile::tempdir().unwrap();
    let mut connection = open(dir.path());
    migrate(&mut connection, &ALL[..13]).unwrap();
    let node =
        "INSERT INTO node (id, engine, name, host, capacity) VALUES ('node_a', 'ssh', 'ssh/p', 'a', '{}')";
    connection.execute(node, []).unwrap();
    connection.execute("INSERT INTO removal (node, job) VALUES ('node_a', 'job_0123456789')", []).unwrap();
    migrate(&mut connection, ALL).unwrap();
    drop(connection);
    let owed = Store::open(dir.path()).unwrap().readers.owed_removals().unwrap();
    assert_eq!((owed[0].node.as_str(), owed[0].jobs, owed[0].since), ("node_a", 1, None));
}

#[test]
fn jobs_users_and_workspaces_of_before_display_names_have_none() {
    let dir = tempfile::tempdir().unwrap();
    let mut connection = open(dir.path());
    migrate(&mut connection, &ALL[..14]).unwrap();
    let rows = "
        INSERT INTO user (name, state, admin, created_at) VALUES ('ada', 'active', 0, 1);
        INSERT INTO workspace (name, created_at) VALUES ('nlp', 1);
        INSERT INTO spec VALUES (1, 'd', '{}', 1, NULL, 'true');
        INSERT INTO job (id, name, kind, owner, workspace, spec, priority, target, submitted_at, state, hold, attempt,
                retried, generation)
            VALUES ('job_0123456789', 'n', 'training', 'ada', 'nlp', 1, 0, 'local', 1, 'succeeded', 0, 0, 0, 0);";
    connection.execute_batch(rows).unwrap();
    migrate(&mut connection, ALL).unwrap();
    drop(connection);
    let readers = Store::open(dir.path()).unwrap().readers;
    let accounts = readers.accounts().unwrap();
    assert_eq!((&accounts.users[0].display_name, &accounts.workspaces[0].display_name), (&None, &None));
    let jobs = readers.jobs(&JobFilter::default(), 10).unwrap();
    assert_eq!((jobs.len(), &jobs[0].display_name), (1, &None));
}

#[test]
fn what_was_handed_over_before_accounts_were_written_down_has_none() {
    let dir = tempfile::tempdir().unwrap();
    let mut connection = open(dir.path());
    migrate(&mut connection, &ALL[..16]).unwrap();
    let row = "INSERT INTO allocation (job, attempt, target, nodes, external, hosts, since, closing)
               VALUES ('job_0123456789', 1, 'slurm/gpu', '[]', '17', '[]', 5, 0)";
    connection.execute(row, []).unwrap();
    migrate(&mut connection, ALL).unwrap();
    drop(connection);
    let open = Store::open(dir.path()).unwrap().readers.open_allocations().unwrap();
    assert_eq!((open[0].external.as_deref(), &open[0].account), (Some("17"), &None));
}

#[test]
fn only_what_is_missing_is_applied() {
    let dir = tempfile::tempdir().unwrap();
    let mut connection = open(dir.path());
    migrate(&mut connection, &[FIRST]).unwrap();
    for _ in 0..2 {
        migrate(&mut connection, &[FIRST, SECOND]).unwrap();
        assert_eq!(rows(&connection, "SELECT count(*) FROM a"), 1);
    }
}

#[test]
fn a_migration_that_fails_leaves_nothing_behind() {
    const BROKEN: Migration =
        Migration { number: 2, name: "broken", sql: "INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)" };
    let dir = tempfile::tempdir().unwrap();
    let mut connection = open(dir.path());
    assert!(migrate(&mut connection, &[FIRST, BROKEN]).is_err());
    assert_eq!(rows(&connection, "SELECT count(*) FROM a"), 0);
    migrate(&mut connection, &[FIRST, SECOND]).unwrap();
}

#[test]
fn a_database_of_a_newer_muster_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    migrate(&mut open(dir.path()), &[FIRST, SECOND]).unwrap();
    let error = migrate(&mut open(dir.path()), &[FIRST]).unwrap_err();
    assert!(matches!(error, Error::Newer { found: 2, known: 1 }), "{error}");
    assert_eq!(error.class(), Class::Terminal);
}

#[test]
fn an_edited_migration_is_refused() {
    const EDITED: Migration = Migration { sql: "CREATE TABLE a (x, y)", ..FIRST };
    let dir = tempfile::tempdir().unwrap();
    migrate(&mut open(dir.path()), &[FIRST]).unwrap();
    let error = migrate(&mut open(dir.path()), &[EDITED, SECOND]).unwrap_err();
    assert!(matches!(&error, Error::Edited { number: 1, name } if name == "first"), "{error}");
    assert_eq!(rows(&open(dir.path()), "SELECT count(*) FROM a"), 0);
}

#[test]
fn migrations_are_numbered_from_one_without_a_gap() {
    assert!(ALL.iter().map(|migration| migration.number).eq(1..=ALL.len() as u32));
}

#[test]
fn another_file_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(Store::FILE);
    let text = "not a database ".repeat(100);
    fs::write(&path, &text).unwrap();
    let error = Store::open(dir.path()).unwrap_err();
    assert_eq!(
        (error.class(), error.to_string().as_str()),
        (Class::Terminal, "cannot open the database: the database is damaged")
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = Store::open(&dir.path().join("gone")).unwrap_err();
    assert_eq!(error.class(), Class::NotFound);
    assert!(error.to_string().ends_with("gone/muster.db"), "{error}");
}

#[test]
fn the_files_are_its_users_alone_even_if_they_were_not() {
    let mut store = Fixture::new();
    fs::set_permissions(store.dir.path().join(Store::FILE), Permissions::from_mode(0o644)).unwrap();
    store = store.reopen();
    store.add(new_job(1));
    let mut names = Vec::new();
    for entry in fs::read_dir(store.dir.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.path());
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(names, ["muster.commit", "muster.db", "muster.db-shm", "muster.db-wal"]);
}
