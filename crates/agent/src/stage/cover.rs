//! What a task of somebody else's sees of the directories that its user cannot enter: its own, and nothing else.
//!
//! The agent's directory is closed, and so may be the home that it lies in, while the task's directory is in there. For the
//! task's processes alone, the outermost closed directory on the way is replaced by one that has nothing in it but the way. So
//! paths are the same to everybody, no directory of the machine's is opened, and other tasks are not even seen. What its user can
//! enter anyway is left as it is.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Mode, accessat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen, move_mount,
};
use rustix::process::umask;

use super::mount::{attach, clone};
use crate::account::Person;

/// Show this process and those it starts only these of what lies in directories that are closed to this person. Its mounts are
/// its own already, and it has one thread.
pub(crate) fn cover(kept: &[PathBuf], person: &Person) -> io::Result<()> {
    // What is made here is for that person to pass, whatever root makes otherwise.
    let before = umask(Mode::empty());
    let covered = cover_for(kept, person);
    umask(before);
    covered
}

fn cover_for(kept: &[PathBuf], person: &Person) -> io::Result<()> {
    let is_closed = |way: &Path| accessat(CWD, way, Access::EXEC_OK, AtFlags::EACCESS).is_err();
    let mut by_closed: BTreeMap<&Path, Vec<&PathBuf>> = BTreeMap::new();
    for path in kept {
        let mut ways: Vec<&Path> = path.ancestors().skip(1).collect();
        ways.reverse();
        let closed = person.act(|| ways.into_iter().find(|way| is_closed(way)))?;
        if let Some(closed) = closed {
            by_closed.entry(closed).or_default().push(path);
        }
    }
    for (closed, kept) in by_closed {
        // One that lies in another comes with it.
        let kept: Vec<_> =
            kept.iter().filter(|path| !kept.iter().any(|it| it != *path && path.starts_with(it))).collect();
        let clones = kept.iter().map(|path| clone(path, Some(person))).collect::<io::Result<Vec<_>>>()?;
        let is_dir: Vec<bool> = kept.iter().map(|path| path.is_dir()).collect();
        replace(closed)?;
        for ((path, clone), is_dir) in kept.iter().zip(&clones).zip(is_dir) {
            let way = path.parent().unwrap_or(closed);
            DirBuilder::new().recursive(true).mode(0o711).create(way)?;
            match is_dir {
                true => DirBuilder::new().mode(0o711).create(path)?,
                false => File::create_new(path).map(drop)?,
            }
            attach(clone, path, Some(person))?;
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
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown};

    use muster_model::node::Account;

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
        let account = Account { name: "ada".into(), uid: 54_321, gid: 54_322, home: "/".into() };
        let ada = Person { account, groups: vec![54_322], shell: String::new() };
        let binary = home.path().join("bin");
        fs::write(&binary, "binary").unwrap();
        let kept = [own.clone(), own.join("file"), binary.clone()];
        let (own_there, other_there) = (own.clone(), other.clone());
        std::thread::spawn(move || {
            isolate().unwrap();
            cover(&kept, &ada).unwrap();
            assert_eq!(fs::read_to_string(own_there.join("file")).unwrap(), "content");
            assert_eq!(fs::read_to_string(&binary).unwrap(), "binary");
            assert!(!other_there.exists());
            fs::write(own_there.join("made"), "").unwrap();
        })
        .join()
        .unwrap();
        assert!(own.join("made").exists() && other.exists());
    }

    #[test]
    fn what_its_user_can_enter_is_left_as_it_is() {
        let home = tempfile::tempdir().unwrap();
        fs::set_permissions(home.path(), Permissions::from_mode(0o755)).unwrap();
        let (own, group) = (home.path().join("own"), home.path().join("group"));
        for (dir, uid, gid) in [(&own, 54_321, 0), (&group, 0, 54_323)] {
            fs::create_dir_all(dir.join("volume")).unwrap();
            fs::write(dir.join("beside"), "").unwrap();
            chown(dir, Some(uid), Some(gid)).unwrap();
            fs::set_permissions(dir, Permissions::from_mode(if uid == 0 { 0o750 } else { 0o700 })).unwrap();
        }
        chown(own.join("volume"), Some(54_321), None).unwrap();
        let account = Account { name: "ada".into(), uid: 54_321, gid: 54_322, home: "/".into() };
        let ada = Person { account, groups: vec![54_322, 54_323], shell: String::new() };
        std::thread::spawn(move || {
            isolate().unwrap();
            cover(&[own.join("volume"), group.join("volume")], &ada).unwrap();
            assert!(own.join("beside").exists() && group.join("beside").exists());
        })
        .join()
        .unwrap();
    }
}
