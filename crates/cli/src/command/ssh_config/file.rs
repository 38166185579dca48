//! The user's `~/.ssh/config`, of which two lines are ours: everything else stays as it is, byte for byte.

use std::env;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Code, Error};

/// The first of our two lines. An `Include` holds for all hosts only before the first `Host`, hence at the top.
const MARK: &str =
    "# Added by `muster ssh-config --install`; `muster ssh-config --uninstall` takes it away.\n";
/// The same in a file that was not there before.
const MARK_OF_NEW: &str =
    "# Made by `muster ssh-config --install`; `muster ssh-config --uninstall` takes these lines away.\n";
const PRIVATE: u32 = 0o600;

/// Where ssh looks for it.
pub(super) fn of_user() -> Result<PathBuf, Error> {
    let home = env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.ok_or_else(|| Error::new(Code::NoHome, "there is no ~/.ssh: HOME is not set"))?;
    Ok(Path::new(&home).join(".ssh/config"))
}

/// Writes muster's own file, and has the user's include it. Done again, it is the same.
pub(super) fn install(users: &Path, own: &Path, text: &str) -> Result<(), Error> {
    replace(own, text.as_bytes(), PRIVATE)?;
    let before = read(users)?;
    let (mark, rest) = match &before {
        None => (MARK_OF_NEW, &[][..]),
        Some(bytes) => split(bytes).unwrap_or((MARK, bytes)),
    };
    let mut after = Vec::from(mark);
    after.extend_from_slice(include(own)?.as_bytes());
    after.extend_from_slice(rest);
    if before.as_deref() == Some(&after) {
        return Ok(());
    }
    if let Some(folder) = users.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| failed("make", folder, &error))?;
    }
    replace(users, &after, PRIVATE)
}

/// Takes both away; false if there was nothing.
pub(super) fn uninstall(users: &Path, own: &Path) -> Result<bool, Error> {
    let was_there = match fs::remove_file(own) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(failed("remove", own, &error)),
    };
    let Some(before) = read(users)? else { return Ok(was_there) };
    match split(&before) {
        None => Ok(was_there),
        Some((MARK_OF_NEW, [])) => {
            fs::remove_file(users).map_err(|error| failed("remove", users, &error))?;
            Ok(true)
        }
        Some((_, rest)) => replace(users, rest, PRIVATE).map(|()| true),
    }
}

pub(super) fn is_installed(users: &Path, own: &Path) -> bool {
    own.exists() && read(users).is_ok_and(|text| text.is_some_and(|text| split(&text).is_some()))
}

/// Our mark at the top of a file, and what stands below our two lines; none if it is not there.
fn split(text: &[u8]) -> Option<(&'static str, &[u8])> {
    let mark = [MARK, MARK_OF_NEW].into_iter().find(|mark| text.starts_with(mark.as_bytes()))?;
    let below = &text[mark.len()..];
    let line = below.iter().position(|byte| *byte == b'\n').map_or(below.len(), |end| end + 1);
    below.starts_with(b"Include ").then(|| (mark, &below[line..]))
}

fn include(own: &Path) -> Result<String, Error> {
    Ok(format!("Include {}\n", super::quoted(own)?))
}

/// A file's content; none if there is no file. A link that leads nowhere is not a file to be made.
fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => Ok(None),
        Err(error) => Err(failed("read", path, &error)),
    }
}

/// Writes a file so that whoever reads it meanwhile sees the old one or the new one. What a link leads to is replaced,
/// not the link; a file that is there keeps its mode.
fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let cannot = |error: &io::Error| failed("write", path, error);
    let target = match fs::canonicalize(path) {
        Ok(target) => target,
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(cannot(&error)),
    };
    let mode = fs::metadata(&target).map_or(mode, |file| file.permissions().mode() & 0o7777);
    let mut name = target.clone().into_os_string();
    name.push(format!(".muster.{}", std::process::id()));
    let new = PathBuf::from(name);
    let write = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(PRIVATE).open(&new)?;
        file.write_all(bytes)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&new, &target)
    };
    write().map_err(|error| {
        // What is left of it would only be in the way.
        let _ = fs::remove_file(&new);
        cannot(&error)
    })
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::io(Code::SshConfigUnusable, format!("{what} {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place {
        folder: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            Self { folder: tempfile::tempdir().unwrap() }
        }

        fn users(&self) -> PathBuf {
            self.folder.path().join("home/.ssh/config")
        }

        fn own(&self) -> PathBuf {
            fs::create_dir_all(self.folder.path().join("muster")).unwrap();
            self.folder.path().join("muster/config")
        }

        fn given(&self, text: &str) {
            fs::create_dir_all(self.users().parent().unwrap()).unwrap();
            fs::write(self.users(), text).unwrap();
        }

        fn mode(&self, name: &str) -> u32 {
            fs::metadata(self.folder.path().join(name)).unwrap().permissions().mode() & 0o777
        }
    }

    #[test]
    fn what_is_there_stays_byte_for_byte_and_comes_back() {
        let place = Place::new();
        let (users, own) = (place.users(), place.own());
        let mine = "# mine\r\n\n\tHost *\n  User me\nno newline at the end";
        place.given(mine);
        fs::set_permissions(&users, Permissions::from_mode(0o640)).unwrap();
        install(&users, &own, "one\n").unwrap();
        let once = fs::read_to_string(&users).unwrap();
        assert_eq!(once, format!("{MARK}Include \"{}\"\n{mine}", own.display()));
        install(&users, &own, "two\n").unwrap();
        assert_eq!(
            (fs::read_to_string(&users).unwrap(), fs::read_to_string(&own).unwrap()),
            (once, "two\n".into())
        );
        assert!(is_installed(&users, &own));
        assert_eq!(place.mode("home/.ssh/config"), 0o640);
        assert!(uninstall(&users, &own).unwrap());
        assert_eq!(fs::read_to_string(&users).unwrap(), mine);
        assert!(!own.exists() && !is_installed(&users, &own));
        assert!(!uninstall(&users, &own).unwrap());
    }

    #[test]
    fn what_was_not_there_is_made_for_the_user_alone_and_goes_again() {
        let place = Place::new();
        let (users, own) = (place.users(), place.own());
        install(&users, &own, "one\n").unwrap();
        assert_eq!((place.mode("home/.ssh"), place.mode("home/.ssh/config")), (0o700, 0o600));
        assert_eq!(place.mode("muster/config"), 0o600);
        let added = format!("{}Host mine\n", fs::read_to_string(&users).unwrap());
        fs::write(&users, added).unwrap();
        uninstall(&users, &own).unwrap();
        assert_eq!(fs::read_to_string(&users).unwrap(), "Host mine\n", "what came later stays");
        fs::remove_file(&users).unwrap();
        install(&users, &own, "one\n").unwrap();
        uninstall(&users, &own).unwrap();
        assert!(!users.exists());
    }

    #[test]
    fn a_link_is_followed_and_not_replaced() {
        let place = Place::new();
        let (users, own) = (place.users(), place.own());
        fs::create_dir_all(users.parent().unwrap()).unwrap();
        let real = place.folder.path().join("dotfiles");
        fs::write(&real, "Host mine\n").unwrap();
        std::os::unix::fs::symlink(&real, &users).unwrap();
        install(&users, &own, "one\n").unwrap();
        assert!(users.is_symlink());
        assert!(fs::read_to_string(&real).unwrap().ends_with("Host mine\n"));
        uninstall(&users, &own).unwrap();
        assert_eq!(fs::read_to_string(&real).unwrap(), "Host mine\n");
        fs::remove_file(&real).unwrap();
        let refused = install(&users, &own, "one\n").unwrap_err();
        assert_eq!(refused.code(), "ssh_config_unusable", "a link to nowhere: {refused}");
    }
}
