//! A backup of a server that is busy, and what comes of it: what was over is as it was, what was not starts nothing by itself, and what is
//! no whole backup changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use muster_testkit::{Home, wait_for, wait_for_some};
use serde_json::Value;

use crate::{home, home_with, until};

/// Notes that it ran, prints on both outputs, leaves a file behind, and ends with a code of its own.
const JOB: &str = "\
command: |
  echo $I >> $SHARED/ran
  seq 1 400; seq 1 40 >&2; echo \"end of $I\"
  echo result $I > result.txt
  exit $((I % 3))
outputs: ['*.txt']
";

fn submit(home: &Home, i: usize) -> String {
    let (name, variable) = (format!("job-{i}"), format!("I={i}"));
    home.submit(&["job.yaml", "--name", &name, "--env", &variable])
}

fn jobs(home: &Home) -> BTreeMap<String, Value> {
    let list = home.json(["ps", "-a", "--json"]);
    let id = |job: &Value| job["id"].as_str().expect("a job has an id").to_owned();
    list.as_array().expect("a list").iter().map(|job| (id(job), job.clone())).collect()
}

fn is_over(job: &Value) -> bool {
    ["succeeded", "failed", "stopped"].contains(&job["state"].as_str().expect("a state"))
}

/// All that a user can see of a job that is over.
fn seen(home: &Home, id: &str) -> (Value, String, String) {
    let job = home.job(id);
    let outputs = home.ok(["get", id, "result.txt", "-o", "-"]);
    (job, home.ok(["logs", id]), outputs)
}

/// Ends the load also when the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn backup(home: &Home) -> PathBuf {
    let file = home.shared().join("all.backup");
    home.ok(["server", "backup", "--force", file.to_str().expect("a plain path")]);
    file
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name"))
        .collect();
    names.sort();
    names
}

#[test]
fn a_backup_taken_under_load_restores_every_job_that_was_over_and_starts_none_of_the_others() {
    let old = home_with("[local]\ndevices = [\"H100:1\"]\nslots = 4\n");
    old.write("job.yaml", JOB);
    let holder = old.submit(&["--gpus", "1", "--name", "holder", "--", "sh", "-c", &until("end")]);
    old.wait_for_state(&holder, "running");
    let waits = old.submit(&[
        "--gpus",
        "1",
        "--name",
        "waits",
        "--",
        "sh",
        "-c",
        "echo ran >> $SHARED/waited; echo went",
    ]);

    let over = AtomicBool::new(false);
    let (before, file) = std::thread::scope(|scope| {
        let _end = End(&over);
        let load = scope.spawn(|| {
            let mut submitted = 0;
            while !over.load(Ordering::Relaxed) {
                submit(&old, submitted);
                submitted += 1;
            }
            submitted
        });
        wait_for("some jobs to be over", || jobs(&old).values().filter(|job| is_over(job)).count() >= 8);
        let before: Vec<String> =
            jobs(&old).into_iter().filter(|(_, job)| is_over(job)).map(|(id, _)| id).collect();
        let collecting = scope.spawn(|| old.ok(["gc"]));
        let file = backup(&old);
        collecting.join().unwrap();
        // It went on while the backup was taken, and does after it.
        let during = jobs(&old).len();
        wait_for("more jobs to come", || jobs(&old).len() > during + 2);
        over.store(true, Ordering::Relaxed);
        assert!(load.join().unwrap() > before.len());
        (before, file)
    });
    assert!(!old.path().join("backup").exists(), "nothing is left of it");

    let new = home();
    let restored = new.json(["server", "restore", file.to_str().unwrap(), "--json"]);
    assert!(restored["held_jobs"].as_u64().unwrap() >= 2, "{restored}");
    new.wait_for_node();
    for id in &before {
        assert_eq!(seen(&new, id), seen(&old, id), "{id}");
    }
    // Whatever else is over there has all that it had, too.
    let known = jobs(&new);
    for (id, job) in known.iter().filter(|(_, job)| is_over(job) && job["reason"]["code"] != "node_lost") {
        assert_eq!(job["exit_code"], jobs(&old)[id]["exit_code"], "{id}");
        assert_eq!(new.ok(["logs", id]), old.ok(["logs", id]), "{id}");
    }
    // What ran then is not known to the node here: it is lost, and not begun anew.
    let lost = new.wait_for_state(&holder, "failed");
    assert_eq!(lost["reason"]["code"], "node_lost", "{lost}");
    wait_for("what ran to be lost", || {
        jobs(&new).values().all(|job| is_over(job) || job["state"] == "queued")
    });
    let why = new.ok(["why", &waits]);
    assert!(why.contains("held") && why.contains("muster release"), "{why}");
    assert!(new.ok(["events", &waits]).contains("restored from a backup"));
    assert!(!old.shared().join("waited").exists(), "nothing was started by itself");
    new.ok(["resume", &waits]);
    new.wait_for_state(&waits, "succeeded");
    assert_eq!(new.ok(["logs", &waits]), "went\n");

    old.touch("end");
    wait_for("everything to be over", || jobs(&old).values().all(is_over));
    let mut ran: Vec<usize> = fs::read_to_string(old.shared().join("ran"))
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    ran.sort_unstable();
    assert_eq!(ran, (0..ran.len()).collect::<Vec<_>>(), "every job ran once");
}

#[test]
fn what_is_no_whole_backup_changes_nothing_and_neither_does_a_directory_that_is_in_use() {
    let old = home();
    assert_eq!(old.run(["run", "--", "sh", "-c", "seq 1 20000; exit 3"]).code(), 3);
    let file = backup(&old);
    let whole = fs::read(&file).unwrap();
    let new = home();
    let bad = new.shared().join("bad.backup");
    let mut cases: Vec<(Vec<u8>, &str)> = vec![
        (Vec::new(), "not complete"),
        (b"not a backup".to_vec(), "no backup at all"),
        (whole[..whole.len() - 1].to_vec(), ""),
        (whole[..whole.len() / 2].to_vec(), ""),
        ([whole.as_slice(), b"x"].concat(), ""),
    ];
    for at in [20, whole.len() / 3, whole.len() - 12] {
        let mut changed = whole.clone();
        changed[at] ^= 0x40;
        cases.push((changed, ""));
    }
    for (content, words) in cases {
        fs::write(&bad, &content).unwrap();
        let refused = new.run(["server", "restore", bad.to_str().unwrap()]);
        let said = refused.err();
        assert!(refused.code() == 2 && said.contains("backup_unusable") && said.contains(words), "{said}");
        assert_eq!(names(&new.path()), ["server.lock"], "{said}");
    }
    let nowhere = old.run(["server", "backup", "nowhere/all.backup"]);
    assert!(nowhere.code() == 2 && nowhere.err().contains("nowhere/all.backup"), "{}", nowhere.err());
    let missing = new.run(["server", "restore", "nothing.backup"]);
    assert!(missing.code() == 2 && missing.err().contains("nothing.backup"), "{}", missing.err());

    let running = old.run(["server", "restore", file.to_str().unwrap()]);
    assert!(running.code() == 2 && running.err().contains("home_not_empty"), "{}", running.err());
    old.ok(["server", "stop"]);
    let full = old.run(["server", "restore", file.to_str().unwrap()]);
    assert!(full.err().contains("is not empty"), "{}", full.err());
    assert_eq!(old.job("last")["exit_code"], 3, "nothing was changed");
    // A file that is there stays, and none has the name before it is whole.
    let twice = old.run(["server", "backup", file.to_str().unwrap()]);
    assert!(twice.code() == 2 && twice.err().contains("file_exists"), "{}", twice.err());
    assert_eq!(fs::read(&file).unwrap(), whole);

    new.ok(["server", "restore", file.to_str().unwrap()]);
    assert_eq!(new.job("last")["exit_code"], 3);
}

#[test]
fn a_restore_that_is_killed_leaves_nothing_that_a_server_starts_on_and_can_be_tried_again() {
    let old = home();
    // Too random to become small.
    let noise = "head -c 3000000 /dev/urandom | base64";
    assert_eq!(old.run(["run", "--", "sh", "-c", noise]).code(), 0);
    let file = backup(&old);
    let whole = fs::read(&file).unwrap();
    let new = home();
    let mut restore = new.command(["server", "restore", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = restore.stdin.take().unwrap();
    input.write_all(&whole[..whole.len() - 1000]).unwrap();
    input.flush().unwrap();
    let unfinished = new.path().join("restoring");
    wait_for("files to be there", || unfinished.is_dir() && !names(&unfinished).is_empty());
    // Nobody else may begin meanwhile.
    let other = new.run(["server", "restore", file.to_str().unwrap()]);
    assert!(other.err().contains("home_not_empty"), "{}", other.err());
    restore.kill().unwrap();
    restore.wait().unwrap();

    let refused = new.run(["server", "run"]);
    assert!(refused.code() == 125 && refused.err().contains("muster server restore"), "{}", refused.err());
    assert!(!new.path().join("muster.db").exists());
    new.ok(["server", "restore", file.to_str().unwrap()]);
    assert!(!unfinished.exists());
    assert_eq!(new.ok(["logs", "last"]), old.ok(["logs", "last"]));
}

#[test]
fn tasks_that_outlived_the_servers_data_go_on_and_what_ended_since_does_not_run_again() {
    let home = home();
    let long = home.submit(&[
        "--name",
        "long",
        "--",
        "sh",
        "-c",
        &format!("echo up; {}; echo done; exit 4", until("end")),
    ]);
    let line = format!("echo ran >> $SHARED/ran; {}", until("soon"));
    let short = home.submit(&["--name", "short", "--retries", "1", "--", "sh", "-c", &line]);
    [&long, &short].iter().for_each(|id| drop(home.wait_for_state(id, "running")));
    home.wait_for_file("ran");
    let file = backup(&home);
    home.touch("soon");
    home.wait_for_state(&short, "succeeded");
    home.ok(["server", "stop"]);
    for name in names(&home.path()).iter().filter(|name| *name != "node") {
        let path = home.path().join(name);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }

    home.ok(["server", "restore", file.to_str().unwrap()]);
    home.wait_for_node();
    let held = wait_for_some("what ended since to be lost", || {
        let job = home.job(&short);
        (job["state"] == "queued").then_some(job)
    });
    assert_eq!(held["reason"]["code"], "node_lost", "{held}");
    assert!(home.ok(["why", &short]).contains("held"));
    assert_eq!(home.job(&long)["state"], "running");
    home.touch("end");
    home.wait_for_state(&long, "failed");
    let job = home.job(&long);
    assert_eq!((&job["exit_code"], &job["attempt"]), (&4.into(), &1.into()));
    assert_eq!(home.ok(["logs", &long]), "up\ndone\n");
    assert_eq!(fs::read_to_string(home.shared().join("ran")).unwrap(), "ran\n", "it ran once");
    home.ok(["stop", &short]);
}
