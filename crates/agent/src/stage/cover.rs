//! What a task of somebody else's sees of the directories that only root can enter: its own, and nothing else.
//!
//! The agent's directory is closed, and so may be the home that it lies in, while the task's directory is in there. For the
//! task's processes alone, the outermost closed directory on the way is replaced by one that has nothing in it but the way. So
//! paths are the same to everybody, no directory of the machine's is opened, and other tasks are not even seen.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen, move_mount,
};

use super::mount::{attach, clone};

/// Whether others than its owner cannot enter a directory.
pub(crate) fn is_closed(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_dir() && metadata.mode() & 0o001 == 0)
}

/// Show this process and those it starts only these of what lies in closed directories. Its mounts are its own already.
pub(crate) fn cover(kept: &[PathBuf]) -> io::Result<()> {
    let mut by_closed: BTreeMap<&Path, Vec<&PathBuf>> = BTreeMap::new();
    for path in kept {
        let mut ways: Vec<&Path> = path.ancestors().skip(1).collect();
        ways.reverse();
        if let Some(closed) = ways.into_iter().find(|way| is_closed(way)) {
            by_closed.entry(closed).or_default().push(path);
        }
    }
    for (closed, kept) in by_closed {
        // One that lies in another comes with it.
        let kept: Vec<_> =
            kept.iter().filter(|path| !kept.iter().any(|it| it != *path && path.starts_with(it))).collect();
        let clones = kept.iter().map(|path| clone(path)).collect::<io::Result<Vec<_>>>()?;
        let is_dir: Vec<bool> = kept.iter().map(|path| path.is_dir()).collect();
        replace(closed)?;
        for ((path, clone), is_dir) in kept.iter().zip(&clones).zip(is_dir) {
            let way = path.parent().unwrap_or(closed);
            DirBuilder::new().recursive(true).mode(0o711).create(way)?;
            match is_dir {
                true => DirBuilder::new().mode(0o711).create(path)?,
                false => File::create_new(path).map(drop)?,
            }
            attach(clone, path)?;
        }
    }
    Ok(())
}

/// Put an empty directory in the place of this one. It holds nothing but names, and so takes no room to speak of.
fn replace(closed: &Path) -> io::Result<()> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in [("source", "muster"), ("mode", "0711"), ("size", "1m")] {
        fsconfig_set_string(&context, name, value)?;
    }
    fsconfig_create(&context)?;
    let quiet = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, quiet)?;
    Ok(move_mount(&mount, "", CWD, closed, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::overlay::isolate;

    #[test]
    fn only_what_is_kept_is_seen_and_by_nobody_else() {
        let home = tempfile::tempdir().unwrap();
        fs::set_permissions(home.path(), Permissions::from_mode(0o700)).unwrap();
        let (own, other) = (home.path().join("tasks/own"), home.path().join("tasks/other"));
        for dir in [&own, &other] {
            fs::create_dir_all(dir).unwrap();
            fs::write(dir.join("file"), "content").unwrap();
        }
        let binary = home.path().join("bin");
        fs::write(&binary, "binary").unwrap();
        let kept = [own.clone(), own.join("file"), binary.clone()];
        let (own_there, other_there) = (own.clone(), other.clone());
        std::thread::spawn(move || {
            isolate().unwrap();
            cover(&kept).unwrap();
            assert_eq!(fs::read_to_string(own_there.join("file")).unwrap(), "content");
            assert_eq!(fs::read_to_string(&binary).unwrap(), "binary");
            assert!(!other_there.exists());
            fs::write(own_there.join("made"), "").unwrap();
        })
        .join()
        .unwrap();
        assert!(own.join("made").exists() && other.exists());
    }
}
