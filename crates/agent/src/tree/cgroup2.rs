//! The first way: a cgroup v2 directory, ended by one write that no fork can outrun.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::fs::{Access, access};

use super::Killed;
use super::cgroup::{self, Hierarchy};
use super::process::wait_for;

const KILL: &str = "cgroup.kill";

pub(super) fn prepare(task: &str) -> io::Result<PathBuf> {
    let path = Hierarchy::Unified.prepare(task)?;
    // Kernels before 5.14 have the directory but not the file.
    access(path.join(KILL), Access::WRITE_OK)?;
    offer_memory(&path);
    Ok(path)
}

/// Let the task's cgroup have the memory controller, if ours has it to give. The kernel refuses that to a cgroup
/// with processes of its own, as ours mostly is one; then nothing is limited or counted, which is no error.
fn offer_memory(path: &Path) {
    let Some((ours, own)) = path.parent().and_then(|ours| Some((ours, ours.parent()?))) else { return };
    let offered = |file: &str| {
        cgroup::read(own, file).is_ok_and(|text| text.split_ascii_whitespace().any(|name| name == "memory"))
    };
    if offered("cgroup.controllers") {
        let _ = cgroup::write(own, "cgroup.subtree_control", "+memory");
        let _ = cgroup::write(ours, "cgroup.subtree_control", "+memory");
    }
}

pub(super) fn kill(path: &Path, deadline: Instant) -> io::Result<Killed> {
    cgroup::write(path, KILL, "1")?;
    let mut events = File::open(path.join("cgroup.events"))?;
    let mut text = String::new();
    loop {
        text.clear();
        events.rewind()?;
        events.read_to_string(&mut text)?;
        if text.lines().any(|line| line == "populated 0") {
            return Ok(Killed::default());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Killed { survivors: cgroup::members(path)? });
        }
        wait_for(&events, PollFlags::PRI, left);
    }
}
