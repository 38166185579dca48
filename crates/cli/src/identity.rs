//! The key by which this user's calls are known to tasks: made at the first use, for this user alone.
//!
//! A server that lets a call through names its public half to the task, which lets in nobody else. So nothing has to be
//! given to anyone beforehand, and an ordinary `ssh` can use it too.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_ssh::keys::{self, PrivateKey};

use crate::error::{Code, Error};
use crate::home::Home;

/// A user's key.
pub(crate) struct Identity {
    key: Arc<PrivateKey>,
    file: PathBuf,
}

impl Identity {
    /// This user's key, made if there is none.
    pub fn of_user() -> Result<Self, Error> {
        let folder = Home::from_environment()?.folder().join("ssh");
        let failed = |error: &io::Error| {
            Error::io(Code::HomeUnusable, format!("keep a key in {}", folder.display()), error)
        };
        let file = folder.join("id");
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new()
                    .recursive(true)
                    .mode(0o700)
                    .create(&folder)
                    .map_err(|error| failed(&error))?;
                make(&folder, &file).map_err(|error| failed(&error))?
            }
            Err(error) => return Err(failed(&error)),
        };
        let key = keys::from_file(&text).map_err(|error| failed(&io::Error::other(error)))?;
        Ok(Self { key: Arc::new(key), file })
    }

    /// The key itself, to show it.
    pub fn key(&self) -> Arc<PrivateKey> {
        self.key.clone()
    }

    /// Where it is kept, for an ordinary `ssh`.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Its public half, as a line of `authorized_keys`.
    pub fn line(&self) -> Result<String, Error> {
        let failed = |error: keys::Error| {
            Error::io(Code::SystemFailed, "write the key down", &io::Error::other(error))
        };
        keys::line(self.key.public_key()).map_err(failed)
    }
}

/// Makes a key. Of two commands that do so at once, the first one's is taken.
fn make(folder: &Path, file: &Path) -> io::Result<String> {
    let key = keys::random().map_err(io::Error::other)?;
    let text = keys::to_file(&key).map_err(io::Error::other)?;
    let own = folder.join(format!(".id.{}", std::process::id()));
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&own)?
        .write_all(text.as_bytes())?;
    let linked = fs::hard_link(&own, file);
    fs::remove_file(&own)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::read_to_string(file)
}
