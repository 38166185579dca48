//! Volumes on a node: directories of the machine that hold every user's and every workspace's part, and that tasks find at
//! the same path everywhere.
//!
//! A part that is not there is made. A user's is for that user alone. Who may use a workspace's is known where the machine has a
//! group of its name, or where nobody but root can enter what it lies in: then only tasks to which it is shown get there.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use muster_link::descriptor::register;
use muster_link::message::{GivenVolume, Volume};
use nix::unistd::{Group, geteuid};
use tokio::io::Interest;

use crate::account::{Owner, Person};
use crate::stage;

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
    if path.is_dir() {
        return Ok(());
    }
    let failed = |error: io::Error| format!("`{}` cannot be made: {error}", path.display());
    let parent = path.parent().unwrap_or(root);
    fs::create_dir_all(parent).map_err(failed)?;
    let (mode, owner) =
        if volume.is_private { (0o700, person.map(Person::owner)) } else { shared(root, &path, person)? };
    // Closed until it has its owner.
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        made => made.map_err(failed)?,
    }
    owner.map_or(Ok(()), |owner| owner.give_alone(&path)).map_err(failed)?;
    fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(failed)
}

/// How a directory is made that several people use.
fn shared(root: &Path, path: &Path, person: Option<&Person>) -> Result<(u32, Option<Owner>), String> {
    if person.is_none() {
        return Ok((0o770, None));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if let Ok(Some(group)) = Group::from_name(&name) {
        return Ok((0o2770, Some(Owner { uid: geteuid().as_raw(), gid: group.gid.as_raw() })));
    }
    if root.ancestors().any(stage::is_closed) {
        return Ok((0o2777, None));
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
    use std::os::unix::fs::MetadataExt;

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
