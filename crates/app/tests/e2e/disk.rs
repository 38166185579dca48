//! A server whose disk is full: a real one, small, that the test fills. And what the server removes by itself.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use muster_testkit::{Home, wait_for, wait_for_some};

use crate::{home, home_with, until};

/// A small disk for a data directory; the node's files are elsewhere, so that only the server runs out of room.
pub(crate) struct SmallDisk {
    home: PathBuf,
}

impl SmallDisk {
    /// Made before the home is used, and dropped after it.
    pub(crate) fn under(home: &Home, size: &str) -> Self {
        let path = home.path();
        fs::create_dir_all(&path).expect("the data directory");
        let mount = |words: &[&str]| {
            let done =
                Command::new("mount").args(words).output().expect("mount, of Debian's package of that name");
            assert!(done.status.success(), "needs root: {}", String::from_utf8_lossy(&done.stderr));
        };
        let text = path.to_str().expect("a plain path");
        mount(&["-t", "tmpfs", "-o", &format!("size={size},mode=700"), "tmpfs", text]);
        let node = path.parent().expect("a directory around it").join("node");
        fs::create_dir(&node).expect("a directory for the node");
        std::os::unix::fs::symlink(&node, path.join("node")).expect("a link to it");
        Self { home: path }
    }

    fn filler(&self) -> PathBuf {
        self.home.join("filler")
    }

    /// Writes until nothing fits any more.
    pub(crate) fn fill(&self) {
        let mut file = fs::File::create(self.filler()).expect("a file");
        for size in [1 << 20, 4096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    /// Takes what became free since.
    fn fill_rest(&self) {
        let mut file = fs::File::options().append(true).open(self.filler()).expect("the file");
        for size in [4096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    pub(crate) fn make_room(&self) {
        fs::remove_file(self.filler()).expect("the file goes");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.home).status();
        let _ = fs::remove_dir_all(self.home.parent().unwrap_or(Path::new("/nonexistent")));
    }
}

#[test]
fn on_a_full_disk_nothing_is_taken_nothing_is_harmed_and_all_is_well_once_there_is_room() {
    let disk;
    let home = home();
    disk = SmallDisk::under(&home, "16m");
    home.wait_for_node();
    let pid = home.server_pid();
    let script = format!("echo before; {}; seq 1 200000; touch \"$SHARED/done\"; exit 7", until("go"));
    let job = home.submit(&["--name", "runs", "--", "sh", "-c", &script]);
    wait_for("its first line", || home.ok(["logs", &job]).contains("before"));

    disk.fill();
    home.write("new.bin", vec![7; 3000]);
    let refused = home.run(["run", "--detach", "--", "true"]);
    let words = refused.err();
    assert_ne!(refused.code(), 0, "{words}");
    assert!(words.contains("is full") && words.contains(home.path().to_str().unwrap()), "{words}");
    assert!(words.contains("hint: "), "{words}");
    let copy = home.shared().join("all.backup");
    let backup = home.run(["server", "backup", copy.to_str().unwrap()]);
    assert!(backup.err().contains("server_disk_full") && !copy.exists(), "{}", backup.err());
    home.touch("go");
    home.wait_for_file("done");
    assert_eq!(home.ok(["ps", "--all", "--quiet"]).lines().count(), 1, "nothing was made");

    disk.make_room();
    let ended = home.wait_for_state(&job, "failed");
    assert_eq!(ended["exit_code"], 7);
    let log = home.ok(["logs", &job]);
    assert_eq!(log.lines().count(), 200_001, "the whole log came");
    assert_eq!(log.lines().last(), Some("200000"));
    assert!(home.run(["run", "--", "true"]).status.success());
    home.ok(["server", "backup", copy.to_str().unwrap()]);
    assert_eq!(home.server_pid(), pid, "it is the same server");
    assert!(
        fs::read_dir(home.path().join("chunks/new")).unwrap().next().is_none(),
        "nothing half done is left"
    );
    drop(home);
    drop(disk);
}

#[test]
fn on_a_full_disk_jobs_are_stopped_and_removed_and_a_killed_server_starts_again() {
    let disk;
    let home = home();
    disk = SmallDisk::under(&home, "16m");
    home.wait_for_node();
    let ended = home.submit(&["--name", "ended", "--", "sh", "-c", "seq 1 100000"]);
    home.wait_for_state(&ended, "succeeded");
    let runs = home.submit(&["--name", "runs", "--", "sh", "-c", &format!("echo first; {}", until("never"))]);
    wait_for("its first line", || home.ok(["logs", &runs]).contains("first"));
    wait_for("the reserve", || home.path().join("disk.reserve").exists());

    disk.fill();
    home.write("value", "x");
    // The server does not measure the disk for every request.
    wait_for("the server to see that the disk is full", || {
        let secret = home.run(["secret", "put", "key", "--from-file", "value"]).err();
        secret.contains("server_disk_full") && secret.contains("nothing more can be kept")
    });
    assert!(home.run(["run", "--detach", "--", "true"]).err().contains("server_disk_full"));
    home.ok(["stop", &runs]);
    home.wait_for_state(&runs, "stopped");
    let doctor = home.run(["doctor"]).out();
    assert!(doctor.contains("disk reserve") && doctor.contains("muster gc"), "{doctor}");
    disk.fill_rest();
    home.kill("server");
    assert_eq!(home.ok(["ps", "--all", "--quiet"]).lines().count(), 2, "the killed server starts again");
    home.ok(["gc"]);
    home.ok(["rm", &ended]);
    assert_eq!(home.ok(["ps", "--all", "--quiet"]).trim(), runs);

    disk.make_room();
    wait_for("the reserve to be whole again", || !home.run(["doctor"]).out().contains("disk reserve"));
    home.ok(["run", "--", "true"]);
    drop(home);
    drop(disk);
}

#[test]
fn without_its_reserve_a_server_on_a_full_disk_starts_and_answers() {
    let disk;
    let home = home();
    disk = SmallDisk::under(&home, "16m");
    home.wait_for_node();
    let runs = home.submit(&["--name", "runs", "--", "sh", "-c", &format!("echo first; {}", until("go"))]);
    wait_for("its first line", || home.ok(["logs", &runs]).contains("first"));
    home.kill("server");
    for name in ["disk.reserve", "muster.db-shm"] {
        fs::remove_file(home.path().join(name)).expect("it is there, and goes");
    }
    disk.fill();

    assert_eq!(home.ok(["ps", "--quiet"]).trim(), runs);
    assert!(home.ok(["logs", &runs]).contains("first"));
    let pid = home.server_pid();
    let stop = home.run(["stop", &runs]);
    assert!(stop.err().contains("read-only") && !stop.err().contains("muster gc"), "{}", stop.err());
    let doctor = home.run(["doctor"]);
    assert_eq!(doctor.code(), 1);
    assert!(
        doctor.out().contains("✗ disk reserve") && doctor.out().contains("read-only"),
        "{}",
        doctor.out()
    );

    disk.make_room();
    wait_for("the server to take changes", || home.run(["stop", &runs]).status.success());
    home.wait_for_state(&runs, "stopped");
    assert_eq!(home.server_pid(), pid, "it goes on by itself");
    drop(home);
    drop(disk);
}

#[test]
fn logs_over_the_limit_go_the_oldest_first_and_the_jobs_stay() {
    let home = home_with("[keep]\nlogs = '150KB'\nunused = '0s'\n");
    let jobs: Vec<String> = (0..2)
        .map(|i| {
            let job = home.submit(&["--name", &format!("job{i}"), "--", "sh", "-c", "seq 1 20000"]);
            home.wait_for_state(&job, "succeeded");
            wait_for("its whole log", || home.ok(["logs", &job]).lines().count() == 20_000);
            job
        })
        .collect();
    let would = home.json(["gc", "--dry-run", "--json"]);
    assert!(would["logs_bytes"].as_u64().unwrap() > 100_000, "{would}");
    assert_eq!(home.ok(["logs", &jobs[0]]).lines().count(), 20_000, "a dry run removes nothing");
    let said = home.ok(["gc"]);
    assert!(said.starts_with("removed:\n"), "{said}");
    let gone = home.run(["logs", &jobs[0]]);
    assert_ne!(gone.code(), 0);
    assert!(gone.err().contains("was removed to make room"), "{}", gone.err());
    assert_eq!(home.ok(["logs", &jobs[1]]).lines().count(), 20_000);
    assert_eq!(home.job(&jobs[0])["state"], "succeeded");
    let events = home.get(&format!("/api/v1/jobs/{}/events", jobs[0])).text();
    assert!(events.contains("logs_removed"), "{events}");
    assert_eq!(home.json(["gc", "--json"])["logs_bytes"], 0);
}

#[test]
fn code_of_removed_jobs_goes_with_the_next_collection_and_that_of_others_stays() {
    let home = home_with("[keep]\nunused = '0s'\n");
    home.write("keep.py", "print('kept')");
    let kept = home.submit(&["--", "cat", "keep.py"]);
    home.wait_for_state(&kept, "succeeded");
    home.write("other.bin", vec![3; 100_000]);
    let removed = home.submit(&["--", "true"]);
    home.wait_for_state(&removed, "succeeded");
    home.ok(["rm", &removed]);
    let report = wait_for_some("the code to go", || {
        let report = home.json(["gc", "--json"]);
        (report["bundles"] == 1).then_some(report)
    });
    assert!(report["chunks"].as_u64().unwrap() >= 1, "{report}");
    assert_eq!(report["nodes"].as_array().unwrap().len(), 1, "the node answered: {report}");
    assert!(home.run(["run", "--", "cat", "keep.py"]).out().contains("kept"));
}
