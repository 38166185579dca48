//! The secrets of a task, on its node: in memory where the node has a file system there, and gone when the task is over.
//!
//! `TASKDIR/secrets` is a link to a directory of `/dev/shm`, or a directory where that cannot be had. The link is made first, so
//! that whatever a kill leaves behind is found by it. In it are `variables`, which the supervisor takes and removes before
//! anything runs, and `files`, which is what the task sees. So no value is ever in `launch.json` or in a record.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use muster_link::message::GivenSecret;
use rustix::fs::{FsWord, statfs};

use crate::account::Person;
use crate::disk;
use crate::identity::random_name;

/// The variable that says where the files are.
pub(crate) const VARIABLE: &str = "MUSTER_SECRETS_DIR";
const SECRETS: &str = "secrets";
const VARIABLES: &str = "variables";
const FILES: &str = "files";

/// Where memory is a file system, on every Linux that people train on.
const MEMORY: &str = "/dev/shm";
/// What begins the names there.
const PREFIX: &str = "muster-secrets-";
/// `TMPFS_MAGIC`.
const TMPFS: FsWord = 0x0102_1994;

/// Where the files of a task's secrets are.
pub(crate) fn files(dir: &Path) -> PathBuf {
    dir.join(SECRETS).join(FILES)
}

/// Lay out what a task is given. What an earlier try has left goes first.
pub(crate) fn make(dir: &Path, given: &[GivenSecret], person: Option<&Person>) -> io::Result<()> {
    remove(dir)?;
    if given.is_empty() {
        return Ok(());
    }
    make_place(dir)?;
    make_private(&files(dir))?;
    let mut variables = BTreeMap::new();
    for secret in given {
        if let Some(name) = &secret.env {
            let text = str::from_utf8(&secret.value.0);
            let text =
                text.map_err(|_| io::Error::new(ErrorKind::InvalidData, format!("{name} is not a text")))?;
            variables.insert(name.as_str(), text);
        }
        if let Some(name) = &secret.file {
            // The server has checked it; whoever speaks for the server must not write elsewhere.
            if Path::new(name).file_name() != Some(name.as_ref()) {
                return Err(io::Error::new(
                    ErrorKind::InvalidInput,
                    format!("`{name}` is not the name of a file"),
                ));
            }
            write(&files(dir).join(name), 0o400, &secret.value.0)?;
        }
    }
    write(&dir.join(SECRETS).join(VARIABLES), 0o600, &serde_json::to_vec(&variables)?)?;
    let Some(person) = person else { return Ok(()) };
    // What root reads again stays root's, and so does the place: whoever owns a directory may put anything into it, or take it away.
    fs::set_permissions(dir.join(SECRETS), Permissions::from_mode(0o711))?;
    person.owner().give(&files(dir))
}

/// Take the variables, once: from then on they are in memory alone.
pub(crate) fn take(dir: &Path) -> io::Result<BTreeMap<String, String>> {
    let path = dir.join(SECRETS).join(VARIABLES);
    let variables = serde_json::from_slice(&fs::read(&path)?)
        // Without the reader's own words, which would show a part of it.
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "the variables of its secrets cannot be read"))?;
    fs::remove_file(path)?;
    Ok(variables)
}

/// Remove all of it, also what is only partly there.
pub(crate) fn remove(dir: &Path) -> io::Result<()> {
    let path = dir.join(SECRETS);
    match fs::read_link(&path) {
        Ok(target) => {
            // Nothing that was not made here, whatever somebody has done to the link.
            let is_ours = target.parent() == Some(Path::new(MEMORY))
                && target
                    .file_name()
                    .and_then(|name| name.to_str())
                    .is_some_and(|name| name.starts_with(PREFIX));
            if is_ours {
                disk::remove_tree(&target)?;
            }
            disk::remove_file(&path)
        }
        // Not a link.
        Err(error) if error.kind() == ErrorKind::InvalidInput => disk::remove_tree(&path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn make_place(dir: &Path) -> io::Result<()> {
    let path = dir.join(SECRETS);
    if statfs(MEMORY).is_ok_and(|found| found.f_type == TMPFS) {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let target = Path::new(MEMORY).join(format!("{PREFIX}{name}-{}", random_name()?));
        symlink(&target, &path)?;
        // It fails if anything is there by that name, so nobody can have put it there for us.
        if make_private(&target).is_ok() {
            return Ok(());
        }
        fs::remove_file(&path)?;
    }
    make_private(&path)
}

fn make_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

fn write(path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use muster_link::message::SecretValue;
    use muster_model::node::Account;

    use super::*;

    fn given(env: Option<&str>, file: Option<&str>, value: &[u8]) -> GivenSecret {
        GivenSecret { env: env.map(Into::into), file: file.map(Into::into), value: SecretValue(value.into()) }
    }

    fn dir() -> tempfile::TempDir {
        tempfile::Builder::new().prefix("task0.job_0123456789.1").tempdir().unwrap()
    }

    #[test]
    fn what_is_laid_out_is_taken_once_and_then_gone() {
        let dir = dir();
        let all = [given(Some("TOKEN"), None, b"hunter2"), given(None, Some("key.bin"), &[0, 255])];
        make(dir.path(), &all, None).unwrap();
        let file = files(dir.path()).join("key.bin");
        assert_eq!(fs::read(&file).unwrap(), [0, 255]);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o400);
        let place = fs::canonicalize(dir.path().join(SECRETS)).unwrap();
        assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o700);
        let taken = take(dir.path()).unwrap();
        assert_eq!(taken, BTreeMap::from([("TOKEN".to_owned(), "hunter2".to_owned())]));
        assert_eq!(take(dir.path()).unwrap_err().kind(), ErrorKind::NotFound);
        // Made anew, the place before it goes.
        make(dir.path(), &all[..1], None).unwrap();
        assert!(!place.exists() && !file.exists());
        let place = fs::canonicalize(dir.path().join(SECRETS)).unwrap();
        remove(dir.path()).unwrap();
        assert!(!place.exists() && fs::symlink_metadata(dir.path().join(SECRETS)).is_err());
        remove(dir.path()).unwrap();
    }

    #[test]
    fn somebody_else_gets_their_files_and_nothing_that_root_reads_again() {
        let dir = dir();
        let account = Account { name: "ada".into(), uid: 54_321, gid: 54_322, home: "/".into() };
        let ada = Person { account, groups: vec![54_322], shell: String::new() };
        let all = [given(Some("TOKEN"), None, b"hunter2"), given(None, Some("key.bin"), &[0, 255])];
        make(dir.path(), &all, Some(&ada)).unwrap();
        let place = fs::canonicalize(dir.path().join(SECRETS)).unwrap();
        let whose = |path: &Path| {
            let found = fs::metadata(path).unwrap();
            (found.uid(), found.mode() & 0o777)
        };
        assert_eq!(whose(&place), (0, 0o711));
        assert_eq!(whose(&place.join(VARIABLES)), (0, 0o600));
        assert_eq!(whose(&place.join(FILES)), (54_321, 0o700));
        assert_eq!(whose(&place.join(FILES).join("key.bin")), (54_321, 0o400));
        remove(dir.path()).unwrap();
        assert!(!place.exists());
    }

    #[test]
    fn nothing_else_is_written_or_removed() {
        let dir = dir();
        assert!(make(dir.path(), &[given(None, Some("../x"), b"")], None).is_err());
        remove(dir.path()).unwrap();
        let other = dir.path().join("other");
        fs::create_dir(&other).unwrap();
        symlink(&other, dir.path().join(SECRETS)).unwrap();
        remove(dir.path()).unwrap();
        assert!(other.is_dir());
    }
}
