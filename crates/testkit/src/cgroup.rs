//! Control groups that tasks were put into, as directories.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::process;
use crate::wait::DEADLINE;

/// The directories of the groups that `/proc/PID/cgroup` names, save those that are none of ours.
pub fn directories(text: &str) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let found = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let mount = mounts.lines().find_map(|mount| place(mount, controllers))?;
        Some(Path::new(mount).join(path.trim_start_matches('/')))
    });
    found.filter(|path| path.to_string_lossy().contains("/muster-")).collect()
}

/// Where a hierarchy is mounted, if this line of `/proc/mounts` is about it.
fn place<'a>(mount: &'a str, controllers: &str) -> Option<&'a str> {
    let mut fields = mount.split(' ').skip(1);
    let (point, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
    let ours = match controllers {
        "" => kind == "cgroup2",
        names => {
            kind == "cgroup" && names.split(',').all(|name| options.split(',').any(|option| option == name))
        }
    };
    ours.then_some(point)
}

/// Ends what is still in a group, also what moves too fast to be killed one by one, and removes it.
pub(crate) fn end(group: &Path) {
    // A group of version 2 has the one file, a freezer the other; what a group lacks is not created by this.
    let write = |file: &str, text: &str| {
        let _ = OpenOptions::new()
            .write(true)
            .open(group.join(file))
            .and_then(|mut file| file.write_all(text.as_bytes()));
    };
    let begun = Instant::now();
    while fs::remove_dir(group).is_err() && group.exists() && begun.elapsed() < DEADLINE {
        write("cgroup.kill", "1");
        write("freezer.state", "FROZEN");
        let pids = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        pids.lines().filter_map(|pid| pid.parse().ok()).for_each(process::kill);
        write("freezer.state", "THAWED");
        std::thread::sleep(Duration::from_millis(5));
    }
}
