//! Which device files a task may not open. Variables such as `CUDA_VISIBLE_DEVICES` are advice that a task can change;
//! a device cgroup is not, for a task that does not run as root.
//!
//! Everything is allowed but the devices that are named: what else a task opens is no concern of this module.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Kill;
use super::cgroup::{self, Hierarchy};
use super::device_program;

/// The number of a character device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

impl DeviceNumber {
    /// A device that no driver has, to try whether devices can be denied.
    pub const UNUSED: DeviceNumber = DeviceNumber { major: 4095, minor: 0 };
}

/// Where the kernel denies device files to a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceLimit {
    /// A program on the cgroup that also holds the task's processes.
    Cgroup2,
    /// A cgroup of its own: version 1 has a hierarchy for each controller.
    Cgroup1 { path: PathBuf },
}

impl DeviceLimit {
    /// Version 1 needs the process to be moved once more at its start, so it is the second choice. None where neither
    /// can be had: without root, or where cgroups belong to somebody else.
    pub(super) fn prepare(task: &str, kill: &Kill, denied: &[DeviceNumber]) -> Option<DeviceLimit> {
        if denied.is_empty() {
            return None;
        }
        if let Kill::Cgroup2 { path } = kill
            && device_program::attach(path, denied).is_ok()
        {
            return Some(DeviceLimit::Cgroup2);
        }
        let path = Hierarchy::Controller("devices").prepare(task).ok()?;
        if let Err(error) = deny(&path, denied) {
            tracing::warn!(%error, "the device cgroup was not set");
            cgroup::remove(&path);
            return None;
        }
        Some(DeviceLimit::Cgroup1 { path })
    }

    /// The directory that is not also the tree's.
    pub(super) fn own_path(&self) -> Option<&PathBuf> {
        match self {
            DeviceLimit::Cgroup2 => None,
            DeviceLimit::Cgroup1 { path } => Some(path),
        }
    }
}

/// Opening for reading and writing, and making another file of the same number.
fn deny(path: &Path, denied: &[DeviceNumber]) -> io::Result<()> {
    denied.iter().try_for_each(|device| {
        cgroup::write(path, "devices.deny", &format!("c {}:{} rwm", device.major, device.minor))
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::tree::{Preference, Tree};

    /// What `/dev/zero` and `/dev/full` are.
    const ZERO: DeviceNumber = DeviceNumber { major: 1, minor: 5 };
    const FULL: DeviceNumber = DeviceNumber { major: 1, minor: 7 };

    /// Which of some device files a process of the tree can open.
    fn opened(tree: &Tree, held: &[&Path]) -> String {
        let script = "for door in \"$@\"; do echo $$ > \"$door/cgroup.procs\" || exit 1; done; \
            for file in zero full null urandom; do (: < /dev/$file) 2>/dev/null && echo $file; done; \
            mknod $TMPDIR/made c 1 5 2>/dev/null && echo made";
        let folder = tempfile::tempdir().unwrap();
        let done = Command::new("sh")
            .args(["-c", script, "sh"])
            .args(held)
            .env("TMPDIR", folder.path())
            .output()
            .unwrap();
        tree.remove();
        String::from_utf8(done.stdout).unwrap()
    }

    fn limited(preference: Preference) -> Option<Tree> {
        let name = format!("device-limit-{}-{preference:?}", std::process::id());
        let tree = Tree::prepare(&name, preference, None).ok()?.without_devices(&[ZERO, FULL]);
        // A machine that gives no device cgroup limits nothing, as is documented.
        if !tree.limits_devices() {
            assert!(
                !rustix::process::getuid().is_root() || preference != Preference::Auto,
                "root can limit devices"
            );
            tree.remove();
            return None;
        }
        Some(tree)
    }

    #[test]
    fn a_task_opens_every_device_but_those_it_is_denied() {
        for preference in [Preference::Auto, Preference::Cgroup1, Preference::Cgroup2] {
            let Some(tree) = limited(preference) else { continue };
            let held = match (tree.way(), tree.devices.as_ref().and_then(DeviceLimit::own_path)) {
                (_, Some(path)) => path.clone(),
                (Kill::Cgroup2 { path } | Kill::Cgroup1 { path }, None) => path.clone(),
                (Kill::Walk, None) => panic!("a limit without a cgroup"),
            };
            assert_eq!(opened(&tree, &[&held]), "null\nurandom\n", "{preference:?}: {tree:?}");
            assert!(!held.exists(), "{} is left", held.display());
        }
    }

    #[test]
    fn a_tree_that_is_denied_nothing_has_no_limit() {
        let name = format!("device-limit-{}-none", std::process::id());
        let tree = Tree::prepare(&name, Preference::Auto, None).unwrap().without_devices(&[]);
        assert!(!tree.limits_devices());
        tree.remove();
    }

    #[test]
    fn records_of_older_agents_are_read() {
        let tree: Tree = serde_json::from_str(r#"{"task":"t","kill":"walk","memory":null}"#).unwrap();
        assert!(!tree.limits_devices());
    }
}
