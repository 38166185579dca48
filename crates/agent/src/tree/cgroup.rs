//! What both generations of cgroups share: finding a hierarchy, making a place in it, listing and removing.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};
use rustix::process::getuid;

/// A hierarchy: version 2, or the version 1 one with a certain controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hierarchy {
    Unified,
    Controller(&'static str),
}

impl Hierarchy {
    /// Make the directory of a task below the cgroup this process is in: there a container or a service manager has
    /// put us, and there it lets us work, if anywhere.
    pub(super) fn prepare(self, task: &str) -> io::Result<PathBuf> {
        let own = self.own()?;
        // Moving a process needs the right to write to where it comes from, too. Better to know now than at the start.
        access(own.join(PROCS), Access::WRITE_OK)?;
        let path = own.join(format!("muster-{}", getuid().as_raw())).join(directory_name(task));
        fs::create_dir_all(&path)?;
        access(path.join(PROCS), Access::WRITE_OK)?;
        Ok(path)
    }

    /// The directory of the cgroup this process is in.
    pub(super) fn own(self) -> io::Result<PathBuf> {
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        self.find(mounts()?, &groups).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn find(self, mounts: &str, groups: &str) -> Option<PathBuf> {
        let own = groups.lines().find_map(|line| self.own_group(line))?;
        let (root, point) = mounts.lines().find_map(|line| self.mount(line))?;
        // In a container, the mount may show only part of the hierarchy, and our own place may lie outside of it.
        match Path::new(own).strip_prefix(root) {
            Ok(below) if !below.starts_with("..") => Some(Path::new(point).join(below)),
            _ => Some(PathBuf::from(point)),
        }
    }

    /// Our place, from a line `number:controllers:path` of `/proc/self/cgroup`.
    fn own_group(self, line: &str) -> Option<&str> {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let ours = match self {
            Hierarchy::Unified => controllers.is_empty(),
            Hierarchy::Controller(name) => controllers.split(',').any(|controller| controller == name),
        };
        ours.then_some(path)
    }

    /// The root and the mount point, from a line of `/proc/self/mountinfo`:
    /// `id parent device root point options [tags…] - type source super-options`.
    fn mount(self, line: &str) -> Option<(&str, &str)> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        let ours = match self {
            Hierarchy::Unified => kind == "cgroup2",
            Hierarchy::Controller(name) => {
                kind == "cgroup" && options.split(',').any(|option| option == name)
            }
        };
        ours.then_some((root, point))
    }
}

const PROCS: &str = "cgroup.procs";

/// What is mounted. Asked for once: the kernel takes its time to tell, in which a task could have started, and cgroups are
/// mounted before anything runs that would have tasks.
fn mounts() -> io::Result<&'static str> {
    static MOUNTS: OnceLock<String> = OnceLock::new();
    if let Some(mounts) = MOUNTS.get() {
        return Ok(mounts);
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(MOUNTS.get_or_init(|| mounts))
}

fn directory_name(task: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
    // The prefix keeps it apart from the kernel's own files, which share the name space.
    format!("task-{}", task.chars().map(plain).collect::<String>())
}

/// The file to which a process writes `0` to move itself there.
pub(super) fn open_procs(path: &Path) -> io::Result<OwnedFd> {
    Ok(OpenOptions::new().write(true).open(path.join(PROCS))?.into())
}

pub(super) fn write(path: &Path, file: &str, value: &str) -> io::Result<()> {
    // Without `create`: what the kernel does not offer must not appear.
    io::Write::write_all(&mut OpenOptions::new().write(true).open(path.join(file))?, value.as_bytes())
}

pub(super) fn read(path: &Path, file: &str) -> io::Result<String> {
    fs::read_to_string(path.join(file))
}

/// Every process in a cgroup and in those that the task made below it.
pub(super) fn members(path: &Path) -> io::Result<Vec<i32>> {
    let mut pids: Vec<i32> = read(path, PROCS)?.lines().filter_map(|line| line.parse().ok()).collect();
    for below in directories(path)? {
        // One that vanishes during the walk had no process.
        pids.extend(members(&below).unwrap_or_default());
    }
    Ok(pids)
}

/// Remove a cgroup and those below it. A process that is just ending may hold it for a moment.
pub(super) fn remove(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(1);
    while let Err(error) = remove_once(path) {
        if error.kind() != io::ErrorKind::ResourceBusy || Instant::now() >= deadline {
            // What cannot be removed is empty, or has survivors that were reported: nothing more to be done here.
            return;
        }
        // Nothing announces when it can be removed.
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn remove_once(path: &Path) -> io::Result<()> {
    for below in directories(path)? {
        remove_once(&below)?;
    }
    fs::remove_dir(path)
}

fn directories(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut directories = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            directories.push(entry.path());
        }
    }
    Ok(directories)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
36 25 0:31 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
37 25 0:32 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:15 - cgroup cgroup rw,cpu,cpuacct
38 25 0:33 / /sys/fs/cgroup/unified rw,relatime shared:4 - cgroup2 cgroup2 rw";

    #[test]
    fn a_hierarchy_is_found_by_its_mount_and_our_place_in_it() {
        let groups = "9:cpu,cpuacct:/user.slice\n4:freezer:/a/b\n0::/user.slice/session-1.scope\n";
        let find = |hierarchy: Hierarchy| hierarchy.find(HYBRID, groups);
        assert_eq!(
            find(Hierarchy::Unified),
            Some("/sys/fs/cgroup/unified/user.slice/session-1.scope".into())
        );
        assert_eq!(find(Hierarchy::Controller("freezer")), Some("/sys/fs/cgroup/freezer/a/b".into()));
        assert_eq!(
            find(Hierarchy::Controller("cpuacct")),
            Some("/sys/fs/cgroup/cpu,cpuacct/user.slice".into())
        );
        assert_eq!(find(Hierarchy::Controller("memory")), None);
    }

    #[test]
    fn a_mount_that_shows_only_our_part_is_used_from_its_root() {
        let mounts = "40 30 0:28 /docker/abc /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate";
        for group in ["0::/docker/abc", "0::/", "0::/../elsewhere"] {
            assert_eq!(Hierarchy::Unified.find(mounts, group), Some("/sys/fs/cgroup".into()), "{group}");
        }
        let below = Hierarchy::Unified.find(mounts, "0::/docker/abc/init");
        assert_eq!(below, Some("/sys/fs/cgroup/init".into()));
    }

    #[test]
    fn a_task_name_stays_one_directory() {
        assert_eq!(directory_name("../../etc"), "task-.._.._etc");
        assert_eq!(directory_name("task_01h.3"), "task-task_01h.3");
    }
}
