//! Control groups that tasks were put into, as directories.

use std::fs;
use std::path::{Path, PathBuf};

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
