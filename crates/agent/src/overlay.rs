//! A working directory that shows a tree of the cache and keeps what a task changes to itself.
//!
//! The kernel's overlay: below is the tree, which stays as it is, above it a directory of the task's own. It is mounted
//! where only the task's own processes see it, in a namespace of its supervisor, so nothing is ever left mounted on the
//! machine: it goes with the last process. Whoever may not mount, or sits on a file system that cannot, copies instead.
//!
//! Directories are given by descriptors and named through `/proc/self/fd`: the kernel takes no long paths here, and
//! gives some characters a meaning.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::fs::{Gid, Uid};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount,
};
use rustix::thread::UnshareFlags;
use serde::{Deserialize, Serialize};

use crate::disk;

/// What a working directory is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlay {
    /// The tree below.
    pub lower: PathBuf,
    /// Where the task's changes go.
    pub upper: PathBuf,
    /// The kernel's own, beside `upper`.
    pub scratch: PathBuf,
}

/// How the lifetime of an overlay's changes is meant.
#[derive(Clone, Copy, PartialEq)]
enum Sync {
    Honest,
    /// The kernel need not wait for the disk for it, at no time.
    Never,
}

/// Where the kernel marks what an overlay needs to know of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum OverlayMarks {
    /// Where only root can.
    Trusted,
    /// Where the owner of a user namespace can as well. Directories of the lower tree are copied to be renamed.
    User,
}

impl Overlay {
    /// Show the working directory at `target` to this process and those it starts, and to nobody else. The process has
    /// one thread.
    pub(crate) fn enter(&self, target: &Path) -> io::Result<()> {
        // Before the namespace is left: it may fail, and then nothing has happened.
        let mount = self.mount(Sync::Honest, OverlayMarks::Trusted, MountAttrFlags::empty())?;
        isolate()?;
        move_mount(&mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        Ok(())
    }

    /// A home directory that has no place yet.
    pub(crate) fn mount_home(&self, marks: OverlayMarks) -> io::Result<OwnedFd> {
        // As the file system of homes may be mounted.
        self.mount(Sync::Honest, marks, MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID)
    }

    /// A mount that has no place yet; it goes when its descriptor is closed.
    fn mount(&self, sync: Sync, marks: OverlayMarks, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
        let [lower, upper, scratch] = [&self.lower, &self.upper, &self.scratch].map(|path| directory(path));
        let (lower, upper, scratch) = (lower?, upper?, scratch?);
        let context = context()?;
        fsconfig_set_string(&context, "lowerdir", name(&lower))?;
        fsconfig_set_string(&context, "upperdir", name(&upper))?;
        fsconfig_set_string(&context, "workdir", name(&scratch))?;
        match marks {
            // Programs rename directories, and few of them know what to do when that is refused.
            OverlayMarks::Trusted => fsconfig_set_string(&context, "redirect_dir", "on")?,
            OverlayMarks::User => fsconfig_set_flag(&context, "userxattr")?,
        }
        if sync == Sync::Never {
            fsconfig_set_flag(&context, "volatile")?;
        }
        create(&context, attributes)
    }
}

/// The files of a task that is over, to be read: what it changed, and below it the tree.
pub(crate) fn view(upper: &Path, lower: &Path) -> io::Result<OwnedFd> {
    let (upper, lower) = (directory(upper)?, directory(lower)?);
    let context = context()?;
    fsconfig_set_string(&context, "lowerdir", format!("{}:{}", name(&upper), name(&lower)))?;
    fsconfig_set_string(&context, "redirect_dir", "follow")?;
    let quiet = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    create(&context, quiet)
}

/// Whether tasks whose directories are in `dir` can have overlays: by making one.
pub(crate) fn is_possible(dir: &Path) -> bool {
    let place = dir.join("overlay.probe");
    let tried = probe(&place);
    let _ = disk::remove_tree(&place);
    match tried {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!(error = %error, "working directories are copied, since overlays cannot be mounted here");
            false
        }
    }
}

fn probe(place: &Path) -> io::Result<()> {
    disk::remove_tree(place)?;
    let overlay =
        Overlay { lower: place.join("lower"), upper: place.join("upper"), scratch: place.join("scratch") };
    for dir in [&overlay.lower, &overlay.upper, &overlay.scratch] {
        fs::create_dir_all(dir)?;
    }
    fs::write(overlay.lower.join("file"), "")?;
    // The disk is waited for when an overlay goes, which would cost every start of an agent.
    let mount = |sync| overlay.mount(sync, OverlayMarks::Trusted, MountAttrFlags::empty());
    let mount = mount(Sync::Never).or_else(|_| mount(Sync::Honest))?;
    // Some file systems are only found unfit when a change is to be kept.
    let made = rustix::fs::openat(&mount, "file", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    drop(made);
    rustix::fs::renameat(&mount, "file", &mount, "renamed")?;
    drop(mount);
    view(&overlay.upper, &overlay.lower).map(|_| ())
}

fn context() -> io::Result<OwnedFd> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", "muster")?;
    // Neither is of use to a directory that is mounted once, and both have their own demands on what is below.
    fsconfig_set_string(&context, "index", "off")?;
    fsconfig_set_string(&context, "xino", "off")?;
    Ok(context)
}

fn create(context: &OwnedFd, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    fsconfig_create(context)?;
    Ok(fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

fn directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn name(directory: &OwnedFd) -> String {
    let directory: BorrowedFd<'_> = directory.as_fd();
    format!("/proc/self/fd/{}", directory.as_raw_fd())
}

/// See the machine's mounts, and keep ours to ourselves.
#[expect(unsafe_code, reason = "a thread of its own namespaces can surprise the other threads")]
pub(crate) fn isolate() -> io::Result<()> {
    // SAFETY: only the mounts are taken apart, and no descriptor, for a process or a thread that does nothing else.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(())
}

/// The same in a user namespace, where an account that is not root may mount. There is no way back from it, and programs that
/// become root by their file, such as `sudo`, do not in it.
#[expect(unsafe_code, reason = "a thread of its own namespaces can surprise the other threads")]
pub(crate) fn isolate_as_user(uid: Uid, gid: Gid) -> io::Result<()> {
    // SAFETY: only users and mounts are taken apart, and no descriptor, for a process that has one thread.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }?;
    // The kernel refuses a group map to a process that may still drop groups.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{0} {0} 1", uid.as_raw()))?;
    fs::write("/proc/self/gid_map", format!("{0} {0} 1", gid.as_raw()))?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(())
}
