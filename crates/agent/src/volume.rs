//! Volumes on a node: directories of the machine that hold every user's and every workspace's part, and that tasks find at
//! the same path everywhere.
//!
//! A part that is not there is made. A user's is for that user alone. Who may use a workspace's is known where the machine has a
//! group of its name, or where nobody but root can enter what it lies in: then only tasks to which it is shown get there.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use muster_link::descriptor::register;
use muster_link::message::{GivenVolume, Volume};
use nix::unistd::Group;
use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, fchmod, fchown, mkdirat, openat, renameat_with, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use tokio::io::Interest;

use crate::account::{Owner, Person};
use crate::identity::random_name;
use crate::{stage, trusted};

/// The directory that is a task's part.
pub(crate) fn directory(volume: &GivenVolume) -> PathBuf {
    Path::new(&volume.root).join(&volume.below)
}

/// See that a task's part is there, or say why not.
pub(crate) fn make(volume: &GivenVolume, person: Option<&Person>) -> Result<(), String> {
    let root = Path::new(&volume.root);
    // The server has made it of names that it has checked; whoever speaks for the server must not write elsewhere.
    let is_below = !volume.below.is_empty()
        && Path::new(&volume.below).components().all(|part| matches!(part, Component::Normal(_)));
    if !is_below || !root.is_absolute() {
        return Err(format!("`{}` of `{}` is no part of it", volume.below, volume.root));
    }
    if !root.is_dir() {
        return Err(missing(&volume.root));
    }
    let path = directory(volume);
    let failed = |error: io::Error| format!("`{}` cannot be used: {error}", path.display());
    let Some(person) = person else {
        let mode = if volume.is_private { 0o700 } else { 0o770 };
        return DirBuilder::new().mode(mode).recursive(true).create(&path).map_err(failed);
    };
    match trusted::open_for(person, &path) {
        Ok(found) => check(&found, volume, person).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make_for(volume, person),
        Err(error) => Err(failed(error)),
    }
}

/// Whether what is there can be a task's part.
fn check(found: &OwnedFd, volume: &GivenVolume, person: &Person) -> io::Result<()> {
    let owner = trusted::owner(found)?;
    if volume.is_private && owner != person.account.uid {
        let message =
            format!("it belongs to the account with the number {owner}, not to `{}`", person.account.name);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(())
}

/// Make a part for this person, and the directories on the way to it.
fn make_for(volume: &GivenVolume, person: &Person) -> Result<(), String> {
    let path = directory(volume);
    let failed = |error: io::Error| format!("`{}` cannot be made: {error}", path.display());
    let mut way = PathBuf::from(&volume.root);
    let mut names = Path::new(&volume.below).components().peekable();
    while let Some(name) = names.next() {
        let parent = trusted::open_for(person, &way).map_err(failed)?;
        way.push(name);
        let (mode, owner) = match names.peek() {
            Some(_) => (0o755, Owner { uid: 0, gid: 0 }),
            None if volume.is_private => (0o700, person.owner()),
            None => shared(&volume.root, &path)?,
        };
        make_in(&parent, name.as_os_str(), mode, owner, person).map_err(failed)?;
    }
    Ok(())
}

/// Make a directory, unless it is there. In one of the person's own it is made by them. In one of root's it appears only once it
/// is what it is to be: whatever a kill leaves is not taken for it.
fn make_in(parent: &OwnedFd, name: &OsStr, mode: u32, owner: Owner, person: &Person) -> io::Result<()> {
    let made = if trusted::owner(parent)? == person.account.uid {
        person.act(|| mkdirat(parent, name, Mode::from_raw_mode(mode)))?
    } else {
        let new = OsString::from(format!(".muster-{}", random_name()?));
        mkdirat(parent, &new, Mode::from_raw_mode(0o700))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = openat(parent, &new, flags, Mode::empty()).and_then(|made| {
            fchown(&made, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
            fchmod(&made, Mode::from_raw_mode(mode))?;
            renameat_with(parent, &new, parent, name, RenameFlags::NOREPLACE)
        });
        if made.is_err() {
            // Whoever was faster has made it; this one is empty.
            let _ = unlinkat(parent, &new, AtFlags::REMOVEDIR);
        }
        made
    };
    match made {
        Err(Errno::EXIST) => Ok(()),
        made => Ok(made?),
    }
}

/// How a directory is made that several people use.
fn shared(root: &str, path: &Path) -> Result<(u32, Owner), String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if let Ok(Some(group)) = Group::from_name(&name) {
        return Ok((0o2770, Owner { uid: 0, gid: group.gid.as_raw() }));
    }
    // Where nobody but root enters, only tasks to which it is shown get there.
    let is_roots =
        |dir: &Path| fs::metadata(dir).is_ok_and(|found| found.uid() == 0 && found.mode() & 0o011 == 0);
    if Path::new(root).ancestors().any(is_roots) {
        return Ok((0o2777, Owner { uid: 0, gid: 0 }));
    }
    Err(format!(
        "`{}` is not there, and everybody could enter one that is made; make it for those who share it, or a group `{name}`",
        path.display()
    ))
}

/// Which volumes tasks cannot have here, and why.
pub(crate) fn lacks(volumes: &[Volume]) -> BTreeMap<String, String> {
    let can_mount = volumes.iter().any(|volume| volume.is_elsewhere) && stage::can_mount();
    let why = |volume: &Volume| {
        if !Path::new(&volume.root).is_dir() {
            return Some(missing(&volume.root));
        }
        (volume.is_elsewhere && !can_mount)
            .then(|| "tasks are to see it at another path, and the agent there may not mount".into())
    };
    volumes.iter().filter_map(|volume| Some((volume.name.clone(), why(volume)?))).collect()
}

fn missing(root: &str) -> String {
    format!("there is no directory `{root}` there; mount it, or make it")
}

/// Wait until something is mounted or unmounted on this machine.
pub(crate) async fn mounts_changed() -> io::Result<()> {
    let mounts = OwnedFd::from(fs::File::open("/proc/self/mountinfo")?);
    register(mounts, Interest::PRIORITY)?.ready(Interest::PRIORITY).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use muster_model::node::Account;

    use super::*;

    fn ada() -> Person {
        let account = Account { name: "ada".into(), uid: 54_321, gid: 54_322, home: "/".into() };
        Person { account, groups: vec![54_322], shell: String::new() }
    }

    fn part(root: &Path, below: &str, is_private: bool) -> GivenVolume {
        let (root, below) = (root.display().to_string(), below.to_owned());
        GivenVolume { name: "v".into(), path: "/v".into(), root, below, is_private }
    }

    #[test]
    fn a_users_part_is_made_for_that_user_alone() {
        let root = tempfile::tempdir().unwrap();
        make(&part(root.path(), "ada", true), Some(&ada())).unwrap();
        let made = fs::metadata(root.path().join("ada")).unwrap();
        assert_eq!((made.uid(), made.mode() & 0o7777), (54_321, 0o700));
        make(&part(root.path(), "ada", true), Some(&ada())).unwrap();
    }

    #[test]
    fn a_users_part_is_nobody_elses_and_no_link_of_theirs_leads_to_it() {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
        // As if a kill, or a file server, had kept it from getting its owner.
        fs::create_dir(root.path().join("ada")).unwrap();
        let why = make(&part(root.path(), "ada", true), Some(&ada())).unwrap_err();
        assert!(why.contains("number 0") && why.contains("`ada`"), "{why}");
        chown(root.path().join("ada"), Some(54_321), None).unwrap();
        make(&part(root.path(), "ada", true), Some(&ada())).unwrap();
        // In what is theirs, they make it themselves.
        make(&part(root.path(), "ada/data", true), Some(&ada())).unwrap();
        assert_eq!(fs::metadata(root.path().join("ada/data")).unwrap().uid(), 54_321);
        ada().act(|| symlink("/etc", root.path().join("ada/link"))).unwrap().unwrap();
        let why = make(&part(root.path(), "ada/link/muster-test", true), Some(&ada())).unwrap_err();
        assert!(why.contains("54321") && !Path::new("/etc/muster-test").exists(), "{why}");
        // Nothing that was not finished is left.
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_workspaces_part_is_made_only_where_its_people_are_known() {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
        let why = make(&part(root.path(), "no-such-group", false), Some(&ada())).unwrap_err();
        assert!(why.contains("group `no-such-group`"), "{why}");
        fs::set_permissions(root.path(), Permissions::from_mode(0o700)).unwrap();
        make(&part(root.path(), "no-such-group", false), Some(&ada())).unwrap();
        let mode = fs::metadata(root.path().join("no-such-group")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o2777);
    }

    #[test]
    fn nothing_is_made_elsewhere_or_in_the_place_of_what_is_not_mounted() {
        let root = tempfile::tempdir().unwrap();
        for below in ["", "..", "../x", "/etc", "a/../../b"] {
            assert!(make(&part(root.path(), below, true), None).is_err(), "{below}");
        }
        let absent = root.path().join("absent");
        assert!(make(&part(&absent, "ada", true), None).unwrap_err().contains("mount it"));
        assert!(!absent.exists());
        let asked =
            |root: &Path| Volume { name: "v".into(), root: root.display().to_string(), is_elsewhere: false };
        assert!(lacks(&[asked(root.path())]).is_empty());
        assert!(lacks(&[asked(&absent)]).contains_key("v"));
    }
}
