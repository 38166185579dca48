//! Where the private server lives: its folder, and the files in it that client and server share.

use std::env;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_api::own_dir::check_home;
use rustix::fs::{FlockOperation, flock};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::error::{Code, Error};

/// How often a lock that another process holds is tried again: it is held for milliseconds.
const LOCK_POLL: Duration = Duration::from_millis(5);

/// The private server's folder.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    folder: PathBuf,
}

/// What the running server wrote about itself, before it listened.
#[derive(Debug, Deserialize)]
pub(crate) struct Running {
    pub pid: u32,
    pub build: String,
    pub version: String,
}

/// Held until dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Home {
    /// The folder this user's environment names.
    pub fn from_environment() -> Result<Self, Error> {
        let current = env::current_dir().map_err(|error| {
            Error::io(Code::CurrentDirectoryMissing, "find the current directory", &error)
        })?;
        Self::find(&current, |name| env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn find(current: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, Error> {
        let folder = match (variable("MUSTER_HOME"), variable("XDG_DATA_HOME"), variable("HOME")) {
            (Some(home), _, _) => PathBuf::from(home),
            // The standard says that a relative one is to be ignored.
            (None, Some(data), _) if Path::new(&data).is_absolute() => Path::new(&data).join("muster"),
            (None, _, Some(home)) => Path::new(&home).join(".local/share/muster"),
            (None, _, None) => {
                return Err(Error::new(Code::NoHome, "there is no place for muster's data: HOME is not set"));
            }
        };
        Ok(Self { folder: current.join(folder) })
    }

    #[cfg(test)]
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("server.sock")
    }

    pub fn config(&self) -> PathBuf {
        self.folder.join("config.toml")
    }

    pub fn log(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// Makes the folder, for this user alone.
    pub fn create(&self) -> Result<(), Error> {
        self.check()?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)
            .map_err(|error| Error::io(Code::HomeUnusable, format!("make {}", self.folder.display()), &error))
    }

    /// Checks that no other account owns the folder or can replace it: it could pose as this user's server.
    pub fn check(&self) -> Result<(), Error> {
        check_home(&self.folder).map_err(|error| {
            let error = Error::new(Code::HomeUnusable, format!("MUSTER_HOME: {error}"));
            error.hint("set MUSTER_HOME to a directory of your own, or run the command as the account that owns this one")
        })
    }

    /// What the running server says of itself; none if it never said it, or not in words we know.
    pub fn running(&self) -> Option<Running> {
        serde_json::from_slice(&std::fs::read(self.folder.join("server.json")).ok()?).ok()
    }

    /// Makes this process the only one that may start or replace the server.
    pub async fn lock_start(&self, patience: Duration) -> Result<Lock, Error> {
        let busy = || {
            let message = "another muster command is starting the server and does not come to an end";
            Error::new(Code::ServerStuck, message).hint(format!("see {}", self.log().display()))
        };
        self.lock("start.lock", patience).await?.ok_or_else(busy)
    }

    /// Whether no server runs: each holds this lock for as long as it lives.
    pub async fn is_free(&self) -> Result<bool, Error> {
        Ok(self.lock("server.lock", Duration::ZERO).await?.is_some())
    }

    /// Takes a lock, or gives up: a process that waits inside the kernel could not be interrupted.
    async fn lock(&self, name: &str, patience: Duration) -> Result<Option<Lock>, Error> {
        let path = self.folder.join(name);
        let failed =
            |error: &io::Error| Error::io(Code::HomeUnusable, format!("lock {}", path.display()), error);
        let file = OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(|error| failed(&error))?;
        let deadline = Instant::now() + patience;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Lock { _file: file })),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(&error.into())),
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            sleep(LOCK_POLL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variables: &[(&str, &str)]) -> Result<PathBuf, Error> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(*value))
        };
        Home::find(Path::new("/data"), variable).map(|home| home.folder)
    }

    #[test]
    fn muster_home_goes_before_xdg_before_home() {
        let all = [("MUSTER_HOME", "here"), ("XDG_DATA_HOME", "/data"), ("HOME", "/home/me")];
        assert_eq!(find(&all).unwrap(), Path::new("/data/here"));
        assert_eq!(find(&all[1..]).unwrap(), Path::new("/data/muster"));
        assert_eq!(find(&all[2..]).unwrap(), Path::new("/home/me/.local/share/muster"));
        assert_eq!(
            find(&[("XDG_DATA_HOME", "x"), all[2]]).unwrap(),
            Path::new("/home/me/.local/share/muster")
        );
    }

    #[test]
    fn without_any_of_them_the_remedy_is_named() {
        assert!(find(&[]).unwrap_err().to_string().contains("HOME is not set"));
    }

    #[tokio::test]
    async fn a_lock_is_held_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home { folder: folder.path().to_owned() };
        let lock = home.lock_start(Duration::ZERO).await.unwrap();
        assert!(home.lock_start(Duration::ZERO).await.is_err());
        drop(lock);
        assert!(home.lock_start(Duration::ZERO).await.is_ok());
        assert!(home.is_free().await.unwrap());
    }
}
