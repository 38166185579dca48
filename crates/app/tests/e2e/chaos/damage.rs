//! Damage to files of a run, and what must be said of it: docs/concepts/crashes.md has the table.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use muster_testkit::{Home, wait_for};
use rustix::fs::{FlockOperation, flock};

use super::plan::{DatabaseDamage, LastDamage, TaskFile};
use crate::crash::Random;

const DATABASE: [&str; 4] = ["muster.db", "muster.db-wal", "muster.db-shm", MARK];
/// Has the number of the last commit.
const MARK: &str = "muster.commit";
const MOMENT: Duration = Duration::from_secs(1);

/// A database that cannot be used until it is put back.
pub(super) struct DamagedDatabase {
    whole: Vec<(PathBuf, Vec<u8>)>,
    pub repaired_at: Instant,
}

impl DamagedDatabase {
    /// Damages the database of a server that was killed. None if there is no database yet, or a server again.
    pub fn make(home: &Home, kind: DatabaseDamage, repaired_at: Instant) -> Option<Self> {
        let _lock = lock_out_server(home)?;
        let paths = DATABASE.map(|name| home.path().join(name));
        let [database, log, ..] = &paths;
        if !database.exists() {
            return None;
        }
        let read = |path: &PathBuf| Some((path.clone(), fs::read(path).ok()?));
        let whole = paths.iter().filter_map(read).collect();
        match kind {
            DatabaseDamage::Missing => paths[..3].iter().for_each(|path| drop(fs::remove_file(path))),
            DatabaseDamage::Empty => {
                fs::write(database, "").expect("the database can be written");
                paths[1..3].iter().for_each(|path| drop(fs::remove_file(path)));
            }
            DatabaseDamage::CutLog => cut_in_half(log),
        }
        Some(Self { whole, repaired_at })
    }

    /// Puts back what was there when the server was killed, unless a server went on from what was left: a log may lack only what
    /// the database has.
    pub fn repair(&self, home: &Home) {
        let Some(_lock) = lock_out_server(home) else { return };
        let mark = home.path().join(MARK);
        let before = self.whole.iter().find(|(path, _)| *path == mark).map(|(_, bytes)| bytes.as_slice());
        if fs::read(&mark).ok().as_deref() != before {
            return;
        }
        for name in DATABASE {
            let _ = fs::remove_file(home.path().join(name));
        }
        for (path, bytes) in &self.whole {
            fs::write(path, bytes).expect("the database can be put back");
        }
    }
}

/// Keeps servers from running; none if one runs. One that refuses its database has the lock for a moment.
fn lock_out_server(home: &Home) -> Option<File> {
    let file = File::options().write(true).open(home.path().join("server.lock")).ok()?;
    let begun = Instant::now();
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if begun.elapsed() > MOMENT {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(file)
}

/// Whether a command says what is wrong with the database, and what helps.
pub(super) fn is_said_of_database(err: &str) -> bool {
    let is_named = err.contains("missing or empty") || err.contains("lacks its last");
    is_named && err.contains("muster server restore")
}

/// Damages a file of a task that runs or has just ended. False if there is none.
pub(super) fn damage_task(home: &Home, file: TaskFile, pick: usize) -> bool {
    let name = match file {
        TaskFile::Record => "record",
        TaskFile::Launch => "launch.json",
        TaskFile::Started => "started.json",
    };
    // Lanes of an array and jobs that end by a command have other rules.
    let is_plain = |path: &Path| {
        let launch = fs::read_to_string(path.with_file_name("launch.json")).unwrap_or_default();
        let names = ["plain", "flood", "again", "later", "gang"];
        names.iter().any(|name| launch.contains(&format!("\"task.pl\",\"{name}\"")))
    };
    let mut found: Vec<PathBuf> = fs::read_dir(home.path().join("node/tasks"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|task| task.path().join(name))
        .filter(|path| path.exists() && is_plain(path))
        .collect();
    found.sort();
    let Some(path) = found.get(pick % found.len().max(1)) else { return false };
    let bytes = fs::read(path).expect("the file of a task");
    let damaged: Vec<u8> = bytes.iter().map(|byte| byte ^ 0x10).collect();
    let opened = File::options().write(true).open(path).expect("the file of a task");
    opened.write_all_at(&damaged, 0).expect("the file of a task can be written");
    true
}

/// Damages what the server keeps, once all has ended, and looks at what is said.
pub(super) fn check_last(home: &Home, seed: u64, kind: LastDamage) {
    match kind {
        LastDamage::Code => check_damaged_code(home, seed),
        LastDamage::FlippedLog | LastDamage::CutLog | LastDamage::MissingLog => {
            check_damaged_log(home, kind);
        }
    }
}

/// A log that is damaged is shown with an error, at once, also to those who would wait for more.
fn check_damaged_log(home: &Home, kind: LastDamage) {
    // Its first attempt has a log whatever happened in the run.
    let done = home.run(["run", "--name", "damaged", "--", "seq", "1", "20000"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let job = home.json(["ps", "--all", "--json"]);
    let jobs = job.as_array().expect("a list of jobs").iter();
    let id = jobs.filter(|job| job["name"] == "damaged").find_map(|job| job["id"].as_str());
    let log = home.path().join("logs").join(id.expect("the job")).join("1/0");
    wait_for("the log to have its checksums", || log.join("sums").exists());
    let segment = log.join("00000000000000000000.seg");
    match kind {
        LastDamage::CutLog => cut_in_half(&segment),
        LastDamage::MissingLog => fs::remove_file(&segment).expect("a segment"),
        LastDamage::FlippedLog | LastDamage::Code => {
            let file = File::options().read(true).write(true).open(&segment).expect("a segment");
            let place = file.metadata().expect("its length").len() / 2;
            let mut byte = [0];
            file.read_exact_at(&mut byte, place).expect("a byte");
            file.write_all_at(&[byte[0] ^ 1], place).expect("damage");
        }
    }
    for words in [&["logs", "damaged"][..], &["logs", "--follow", "damaged"]] {
        let done = home.run(words);
        let said = done.err();
        assert_eq!(done.code(), 125, "{kind:?}: {words:?}: {said}");
        assert!(said.contains("log_damaged") && said.contains("server's disk"), "{kind:?}: {said}");
    }
    let check = home.run(["server", "check"]);
    assert_eq!(check.code(), 1, "{kind:?}: {}", check.out());
}

/// Damaged code fails the job that needs it, once, and is sent anew with the next one.
fn check_damaged_code(home: &Home, seed: u64) {
    let mut random = Random(seed);
    let bytes: Vec<u8> = (0..1 << 15).flat_map(|_| random.below(u64::MAX).to_le_bytes()).collect();
    home.write("data.bin", &bytes);
    let before = chunks(home);
    let held = home.submit(&["--hold", "--", "wc", "-c", "data.bin"]);
    let own: Vec<_> = chunks(home).into_iter().filter(|chunk| !before.contains(chunk)).collect();
    assert!(!own.is_empty(), "the code has chunks of its own");
    own.iter().for_each(|chunk| cut_in_half(chunk));
    home.ok(["release", &held]);
    let failed = home.wait_for_state(&held, "failed");
    assert_eq!(failed["reason"]["code"], "code_damaged", "{failed}");
    assert!(home.ok(["run", "--", "wc", "-c", "data.bin"]).contains(&bytes.len().to_string()));
}

fn chunks(home: &Home) -> Vec<PathBuf> {
    let entries =
        |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    entries(home.path().join("chunks")).flat_map(entries).collect()
}

fn cut_in_half(path: &Path) {
    if let Ok(file) = File::options().write(true).open(path) {
        file.set_len(file.metadata().expect("its length").len() / 2).expect("it is cut");
    }
}
