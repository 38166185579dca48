//! A node whose disk is full: what can be said is said, what runs goes on, and all is well when there is room again.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use muster_testkit::{Home, wait_for};

use crate::{home, until};

/// A small disk of the node's own.
struct Disk {
    path: PathBuf,
}

impl Disk {
    /// None where mounting is not allowed.
    fn mount(home: &Home) -> Option<Disk> {
        let path = home.path().join("node");
        fs::create_dir_all(&path).expect("the node's directory");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m,mode=700", "muster-test"]).arg(&path);
        let mounted = mount.status();
        if !mounted.is_ok_and(|status| status.success()) {
            println!("not run: a small disk cannot be mounted here");
            return None;
        }
        Some(Disk { path })
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }

    /// Leave no room at all.
    fn fill(&self) {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(self.filler())
            .expect("a file to fill the disk with");
        for size in [64 << 10, 4096, 1] {
            while file.write_all(&vec![7; size]).is_ok() {}
        }
    }

    fn make_room(&self) {
        fs::remove_file(self.filler()).expect("the file goes");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

fn entries(dir: &Path) -> usize {
    fs::read_dir(dir).map(|entries| entries.count()).unwrap_or(0)
}

#[test]
fn a_full_node_says_so_harms_no_task_that_runs_and_recovers() {
    let home = home();
    let Some(disk) = Disk::mount(&home) else { return };
    home.write("a.txt", "x");
    let script = format!(
        "echo begun; touch $SHARED/begun; {}; head -c 200000 /dev/zero | tr '\\0' x; echo; touch $SHARED/wrote; {}; echo done",
        until("full"),
        until("room")
    );
    let running = home.submit(&["--", "sh", "-c", &script]);
    let stopped = home.submit(&["--", "sleep", "1000"]);
    home.wait_for_file("begun");
    home.wait_for_state(&stopped, "running");
    let bundles = disk.path.join("cache/bundles");
    let before = entries(&bundles);
    disk.fill();
    home.touch("full");
    // What is new fails, with the folder that is full.
    home.write("big.bin", vec![9; 300_000]);
    let done = home.run(["run", "--", "true"]);
    assert_ne!(done.code(), 0);
    let said = format!("{}{}", done.out(), done.err());
    assert!(said.contains("is full") && said.contains(disk.path.to_str().unwrap()), "{said}");
    assert!(said.contains("0 MB free"), "{said}");
    wait_for("nothing half to be left", || entries(&bundles) <= before);
    // What runs goes on, though its lines wait in their pipe.
    home.wait_for_file("wrote");
    assert_eq!(home.job(&running)["state"], "running");
    // And what is to stop does.
    let pid = || home.processes().into_iter().find(|process| process.words == ["sleep", "1000"]);
    home.ok(["stop", "--no-wait", &stopped]);
    wait_for("the task to stop", || pid().is_none());
    disk.make_room();
    home.touch("room");
    assert_eq!(home.run(["wait", &running]).code(), 0);
    let text = home.ok(["logs", &running]);
    assert_eq!(text.len(), "begun\n".len() + 200_001 + "done\n".len());
    home.wait_for_state(&stopped, "stopped");
    assert_eq!(home.run(["run", "--", "true"]).code(), 0);
}
