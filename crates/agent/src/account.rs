//! Whom a task runs as, where that is not the agent itself.
//!
//! An agent of root's runs a task under the account that the server names, with what a login of that account has: its groups,
//! its umask, its limits, its variables. Any other agent runs tasks of its own account alone. The supervisor stays root's, and
//! so do the task's log and record: the task cannot change what is said of it.
//!
//! What root does in a place that belongs to somebody else, it does as they: a link that they have put there then leads
//! root nowhere that they could not go.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use muster_model::node::Account;
use nix::unistd::{User, getgrouplist};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, chownat, openat};
use rustix::process::{Gid, Uid, getegid, geteuid, getgroups};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde::{Deserialize, Serialize};

use crate::environment;

/// Why a task cannot run under the account that it should. In words for the user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "this machine has no account `{0}`, which the task is to run under; make one, or have an admin say which is yours: \
         `muster user set NAME --account ACCOUNT`"
    )]
    Unknown(String),
    #[error(
        "tasks never run as root, which `{0}` is here; an admin says which account is yours: `muster user set NAME --account ACCOUNT`"
    )]
    Root(String),
    #[error(
        "this agent is not root's, so it runs tasks of its own account `{own}` alone, and not of `{wanted}`"
    )]
    NotOurs { wanted: String, own: String },
    #[error("the account `{name}` cannot be looked up")]
    Lookup {
        name: String,
        #[source]
        source: io::Error,
    },
}

/// An account, and what the kernel wants to know of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Person {
    #[serde(flatten)]
    pub account: Account,
    /// All groups it is in.
    pub groups: Vec<u32>,
    pub shell: String,
}

/// Whom a task runs as; none if that is the agent's own account.
pub(crate) fn of(wanted: Option<&str>) -> Result<Option<Person>, Error> {
    let Some(name) = wanted else { return Ok(None) };
    if !geteuid().is_root() {
        let own = environment::account().name;
        return if own == name { Ok(None) } else { Err(Error::NotOurs { wanted: name.to_owned(), own }) };
    }
    let failed = |source: nix::Error| Error::Lookup { name: name.to_owned(), source: source.into() };
    let user = User::from_name(name).map_err(failed)?.ok_or_else(|| Error::Unknown(name.to_owned()))?;
    if user.uid.is_root() {
        return Err(Error::Root(name.to_owned()));
    }
    let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
    let c_name = CString::new(name).map_err(|_| Error::Unknown(name.to_owned()))?;
    let groups = getgrouplist(&c_name, user.gid).map_err(failed)?;
    Ok(Some(Person {
        account: Account { name: user.name, uid, gid, home: user.dir.to_string_lossy().into_owned() },
        groups: groups.into_iter().map(|group| group.as_raw()).collect(),
        shell: user.shell.to_string_lossy().into_owned(),
    }))
}

impl Person {
    /// An account that a task runs under, by what was found when it was prepared.
    pub(crate) fn of_known(account: &Account) -> io::Result<Person> {
        let name = CString::new(account.name.as_str())?;
        let groups = getgrouplist(&name, account.gid.into())?;
        let groups = groups.into_iter().map(|group| group.as_raw()).collect();
        Ok(Person { account: account.clone(), groups, shell: String::new() })
    }

    pub(crate) fn uid(&self) -> Uid {
        Uid::from_raw(self.account.uid)
    }

    pub(crate) fn gid(&self) -> Gid {
        Gid::from_raw(self.account.gid)
    }

    /// Do this with the rights of the account, and no others. This thread alone has them meanwhile.
    pub(crate) fn act<T>(&self, act: impl FnOnce() -> T) -> io::Result<T> {
        let before = Rights { uid: geteuid(), gid: getegid(), groups: getgroups()? };
        // If the first steps fail, nothing has been done with more than the account's rights; `before` puts all back.
        set_thread_groups(&self.groups.iter().map(|group| Gid::from_raw(*group)).collect::<Vec<_>>())?;
        set_thread_res_gid(None, self.gid(), None)?;
        set_thread_res_uid(None, self.uid(), None)?;
        let done = act();
        drop(before);
        Ok(done)
    }

    pub(crate) fn owner(&self) -> Owner {
        Owner { uid: self.account.uid, gid: self.account.gid }
    }
}

/// Whose a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Owner {
    fn ids(self) -> (Option<Uid>, Option<Gid>) {
        (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
    }

    /// Make it theirs, and nothing below it.
    pub(crate) fn give_alone(self, path: &Path) -> io::Result<()> {
        let (uid, gid) = self.ids();
        Ok(chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Make it theirs, with all below. Nothing that they have made themselves may be there.
    pub(crate) fn give(self, path: &Path) -> io::Result<()> {
        self.give_below(path)?;
        self.give_alone(path)
    }

    /// Make theirs what is below.
    fn give_below(self, path: &Path) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.give_in(&rustix::fs::open(path, flags, Mode::empty())?)
    }

    fn give_in(self, directory: &OwnedFd) -> io::Result<()> {
        let (uid, gid) = self.ids();
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if entry.file_type() == FileType::Directory {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                self.give_in(&openat(directory, name, flags, Mode::empty())?)?;
            }
            chownat(directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }
}

/// Do this with the rights of a task's account, where it has one of its own.
pub(crate) fn act_as<T>(person: Option<&Person>, act: impl FnOnce() -> T) -> io::Result<T> {
    match person {
        Some(person) => person.act(act),
        None => Ok(act()),
    }
}

/// What a thread could do before.
struct Rights {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl Drop for Rights {
    fn drop(&mut self) {
        let restored = set_thread_res_uid(None, self.uid, None)
            .and_then(|()| set_thread_res_gid(None, self.gid, None))
            .and_then(|()| set_thread_groups(&self.groups));
        if let Err(error) = restored {
            // A thread of the agent's that is somebody else would do everything wrong from now on.
            tracing::error!(%error, "a thread cannot become root again");
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn somebody() -> Person {
        let account = Account { name: "somebody".into(), uid: 54_321, gid: 54_322, home: "/".into() };
        Person { account, groups: vec![54_322, 54_323], shell: "/bin/sh".into() }
    }

    #[test]
    fn what_is_done_as_somebody_is_done_with_their_rights_alone() {
        assert!(geteuid().is_root(), "this test changes accounts: run it as root");
        let home = tempfile::tempdir().unwrap();
        fs::set_permissions(home.path(), Permissions::from_mode(0o777)).unwrap();
        let secret = home.path().join("secret");
        fs::write(&secret, "of root").unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        let made = home.path().join("made");
        let (read, written) =
            somebody().act(|| (fs::read(&secret).map_err(|e| e.kind()), fs::write(&made, ""))).unwrap();
        assert_eq!(read, Err(io::ErrorKind::PermissionDenied));
        written.unwrap();
        let made = fs::metadata(made).unwrap();
        assert_eq!((made.uid(), made.gid()), (54_321, 54_322));
        assert_eq!(fs::read_to_string(&secret).unwrap(), "of root", "this thread is root again");
    }

    #[test]
    fn what_is_given_is_given_whole_and_no_link_is_followed() {
        let home = tempfile::tempdir().unwrap();
        let (given, other) = (home.path().join("given"), home.path().join("other"));
        fs::create_dir_all(given.join("a/b")).unwrap();
        fs::write(given.join("a/b/file"), "").unwrap();
        fs::write(&other, "").unwrap();
        symlink(&other, given.join("link")).unwrap();
        somebody().owner().give(&given).unwrap();
        for path in ["", "a", "a/b", "a/b/file", "link"] {
            assert_eq!(fs::symlink_metadata(given.join(path)).unwrap().uid(), 54_321, "{path}");
        }
        assert_eq!(fs::metadata(&other).unwrap().uid(), 0);
    }

    #[test]
    fn nobody_runs_as_root_or_as_an_account_that_is_not_there() {
        assert!(of(None).unwrap().is_none());
        assert!(matches!(of(Some("root")), Err(Error::Root(_))));
        assert!(matches!(of(Some("no-such-account")), Err(Error::Unknown(_))));
        let nobody = of(Some("nobody")).unwrap().unwrap();
        assert_eq!(nobody.account.name, "nobody");
        assert!(nobody.account.uid > 0 && nobody.groups.contains(&nobody.account.gid));
    }
}
