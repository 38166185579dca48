//! The second way: a cgroup v1 freezer. What is frozen cannot fork, so a list of it is complete.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Killed;
use super::cgroup::{self, Hierarchy};
use super::process::{Doomed, Stat};

const STATE: &str = "freezer.state";

pub(super) fn prepare(task: &str) -> io::Result<PathBuf> {
    Hierarchy::Controller("freezer").prepare(task)
}

pub(super) fn kill(path: &Path, deadline: Instant) -> io::Result<Killed> {
    loop {
        if cgroup::members(path)?.is_empty() {
            return Ok(Killed::default());
        }
        let frozen = freeze(path);
        let doomed = cgroup::members(path).map(condemn);
        // Thawed in any case: processes that stay frozen would be worse than any error.
        cgroup::write(path, STATE, "THAWED")?;
        frozen?;
        let survivors = doomed?.wait(deadline);
        if !survivors.is_empty() || Instant::now() >= deadline {
            return Ok(Killed { survivors });
        }
    }
}

fn condemn(pids: Vec<i32>) -> Doomed {
    let mut doomed = Doomed::default();
    for stat in pids.into_iter().filter_map(Stat::of) {
        doomed.add(stat.process);
    }
    doomed.signal_all(Signal::KILL);
    doomed
}

/// Freeze, and wait a little until all are. One that sleeps in the kernel may take long; the next round gets it.
fn freeze(path: &Path) -> io::Result<()> {
    cgroup::write(path, STATE, "FROZEN")?;
    let deadline = Instant::now() + Duration::from_millis(100);
    while Instant::now() < deadline && cgroup::read(path, STATE)?.trim() != "FROZEN" {
        // The freezer has no event to wait for.
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
