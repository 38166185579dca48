//! A home directory of a machine's own, at the path where machines of a cloud have it.
//!
//! It shows the account's home directory, so that programs, settings and keys are found there, and keeps what the machine
//! changes to itself: an overlay, whose upper directory is the machine's working directory. It is mounted in the supervisor's
//! own namespace, and so nothing is ever left mounted. Root mounts it as it is. Any other account needs a user namespace for
//! it, in which `sudo` has no effect, and files of other accounts belong to `nobody`: ssh, which refuses its settings then, sees a copy of
//! them. A process of root's that may not mount gets none: in a user namespace it could not
//! install packages any more.
//!
//! What lies in the account's home and is not the account's is shown as it is: other file systems that are mounted there, and
//! the directories of muster, whose sockets would not answer through an overlay.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use muster_model::node::Account;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, WaitOptions, geteuid, getgid, getuid, waitpid};
use serde::{Deserialize, Serialize};

use super::mount::{attach, clone};
use super::{check, mount};
use crate::disk;
use crate::overlay::{Overlay, OverlayMarks, isolate, isolate_as_user};
use crate::record::TaskDir;
use crate::supervisor::{Launch, complain};

const MOUNTS: &str = "/proc/self/mountinfo";
/// Where the machine's settings of ssh are, and which of them its client reads.
const SSH: &str = "/etc/ssh";
const SSH_FILES: [&str; 2] = ["ssh_config", "ssh_known_hosts"];
const SSH_INCLUDED: &str = "ssh_config.d";

/// A home directory of a task's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnHome {
    /// Where the task sees it.
    path: PathBuf,
    /// The account's home directory, which it shows.
    lower: PathBuf,
    /// The overlay's own directory, beside the task's working directory.
    scratch: PathBuf,
    /// Directories that are shown as they are, where they lie in the account's home.
    kept: Vec<PathBuf>,
}

impl OwnHome {
    /// Make a place for it.
    pub(crate) fn make(
        dir: &TaskDir,
        path: &str,
        account: &Account,
        kept: &[PathBuf],
    ) -> io::Result<OwnHome> {
        check(path)?;
        disk::make_dir(&dir.scratch())?;
        // Programs of root's have the path in their files, whatever the environment says.
        let lower = if account.uid == 0 { path } else { &account.home };
        Ok(OwnHome { path: path.into(), lower: lower.into(), scratch: dir.scratch(), kept: kept.to_vec() })
    }

    /// Show it to this process and those it starts, as the place where the task begins. A task that cannot have it is started
    /// all the same. Whether the mounts of this process are now its own. The process has one thread.
    pub(crate) fn enter(&self, launch: &mut Launch, isolated: bool) -> bool {
        let (isolated, shown) = if isolated {
            (true, self.show(&launch.cwd, OverlayMarks::Trusted))
        } else {
            self.isolate_and_show(&launch.cwd)
        };
        match shown {
            Ok(()) => {
                launch.cwd.clone_from(&self.path);
                launch.env.insert("HOME".into(), self.path.display().to_string());
            }
            Err(error) => complain(&format!("cannot show {} as the task's own", self.path.display()), &error),
        }
        isolated
    }

    fn isolate_and_show(&self, work: &Path) -> (bool, io::Result<()>) {
        match isolate() {
            Ok(()) => (true, self.show(work, OverlayMarks::Trusted)),
            Err(error) if geteuid().is_root() => (false, Err(error)),
            // Some systems permit the namespace and refuse mounts in it, and a process cannot leave it again.
            Err(_) => match probe_in_child().and_then(|()| isolate_as_user(getuid(), getgid())) {
                Ok(()) => (true, self.show(work, OverlayMarks::User)),
                Err(error) => (false, Err(error)),
            },
        }
    }

    fn show(&self, work: &Path, marks: OverlayMarks) -> io::Result<()> {
        let before = fs::metadata(work)?;
        let kept = self.kept_mounts();
        let overlay =
            Overlay { lower: self.lower.clone(), upper: work.to_owned(), scratch: self.scratch.clone() };
        let mount = match (overlay.mount_home(marks), marks) {
            // Its own directory without the account's, whose programs are found by the paths where they are.
            (Err(_), OverlayMarks::User) => clone(work, None),
            (mount, _) => mount,
        };
        attach(&mount?, &self.path, None)?;
        for (target, mount) in kept {
            match attach(&mount, &target, None) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    complain(&format!("cannot show {}", target.display()), &error);
                }
                _ => {}
            }
        }
        if marks == OverlayMarks::User
            && let Err(error) = self.show_ssh_settings()
        {
            complain("cannot show the settings of ssh", &error);
        }
        // A path may lead into the home by another name, and the supervisor's own files are looked up all the time.
        let after = fs::metadata(work);
        if after.is_ok_and(|after| (after.dev(), after.ino()) == (before.dev(), before.ino())) {
            return Ok(());
        }
        unmount(&self.path, UnmountFlags::DETACH)?;
        Err(io::Error::other("the directory of the agent would be hidden"))
    }

    /// Show the machine's settings of ssh as files of the account.
    fn show_ssh_settings(&self) -> io::Result<()> {
        let copy = self.scratch.with_file_name("ssh-settings");
        fs::create_dir_all(copy.join(SSH_INCLUDED))?;
        let included = fs::read_dir(Path::new(SSH).join(SSH_INCLUDED)).into_iter().flatten().flatten();
        let included = included.map(|entry| Path::new(SSH_INCLUDED).join(entry.file_name()));
        for name in SSH_FILES.iter().map(PathBuf::from).chain(included) {
            match fs::read(Path::new(SSH).join(&name)) {
                Ok(content) => fs::write(copy.join(&name), content)?,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => complain(&format!("cannot read {SSH}/{}", name.display()), &error),
            }
        }
        attach(&clone(&copy, None)?, Path::new(SSH), None)
    }

    /// What is shown as it is, with where it is to be seen.
    fn kept_mounts(&self) -> Vec<(PathBuf, OwnedFd)> {
        let mounts = fs::read(MOUNTS).map(|mounts| mount_points(&mounts)).unwrap_or_default();
        let mut mounts_in_home = Vec::new();
        for path in outermost(self.kept.iter().cloned().chain(mounts), &self.lower) {
            let Ok(rest) = path.strip_prefix(&self.lower) else { continue };
            match clone(&path, None) {
                Ok(mount) => mounts_in_home.push((self.path.join(rest), mount)),
                Err(error) => complain(&format!("cannot show {}", path.display()), &error),
            }
        }
        mounts_in_home
    }
}

/// Those paths that lie in a directory and not in another one of them.
fn outermost(paths: impl Iterator<Item = PathBuf>, dir: &Path) -> Vec<PathBuf> {
    let mut inside: Vec<PathBuf> = paths.filter(|path| path != dir && path.starts_with(dir)).collect();
    inside.sort();
    inside.dedup_by(|path, outer| path.starts_with(outer));
    inside
}

/// The paths of a table of mounts, in which spaces and such are octal numbers.
fn mount_points(table: &[u8]) -> Vec<PathBuf> {
    let point = |line: &[u8]| {
        let field = line.split(|byte| *byte == b' ').nth(4)?;
        let mut path = Vec::with_capacity(field.len());
        let mut rest = field;
        while let Some((byte, after)) = rest.split_first() {
            let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
            let escaped =
                digits.filter(|_| *byte == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok());
            path.push(escaped.unwrap_or(*byte));
            rest = if escaped.is_some() { &after[3..] } else { after };
        }
        Some(PathBuf::from(OsString::from_vec(path)))
    };
    table
        .split(|byte| *byte == b'\n')
        .filter_map(point)
        .filter(|path| !path.as_os_str().as_bytes().is_empty())
        .collect()
}

/// Try to mount something in a user namespace, in a process of its own.
#[expect(unsafe_code, reason = "neither std nor rustix can fork")]
fn probe_in_child() -> io::Result<()> {
    let (uid, gid) = (getuid(), getgid());
    // SAFETY: this process has one thread, so the child may do whatever this process may.
    match unsafe { libc::fork() } {
        0 => {
            let tried = isolate_as_user(uid, gid).and_then(|()| mount::probe_mount());
            let code = tried.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0);
            // SAFETY: the child ends here, and leaves what it has inherited to its parent.
            unsafe { libc::_exit(code) }
        }
        child => {
            let child = Pid::from_raw(child.max(0)).ok_or_else(io::Error::last_os_error)?;
            let ended = waitpid(Some(child), WaitOptions::empty())?;
            match ended.and_then(|(_, status)| status.exit_status()) {
                Some(0) => Ok(()),
                Some(code) => Err(io::Error::from_raw_os_error(code)),
                None => Err(io::Error::other("the attempt to mount was killed")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_whatever_their_names_have() {
        let table = b"27 1 254:0 / / rw - ext4 /dev/vda rw\n30 27 0:27 / /root/my\\040data rw - tmpfs t rw\n\
            31 27 0:27 / /root/a\\134b rw - tmpfs t rw\n32 27\n";
        let expected = ["/", "/root/my data", "/root/a\\b"].map(PathBuf::from);
        assert_eq!(mount_points(table), expected);
    }

    #[test]
    fn of_what_lies_in_the_home_the_outermost_is_kept() {
        let paths =
            ["/root", "/root/b/c", "/root/a", "/rooted", "/root/b", "/root/b", "/var"].map(PathBuf::from);
        let kept = outermost(paths.into_iter(), Path::new("/root"));
        assert_eq!(kept, ["/root/a", "/root/b"].map(PathBuf::from));
    }
}
