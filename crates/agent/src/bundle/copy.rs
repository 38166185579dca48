//! A task's own copy of an unpacked bundle.
//!
//! Never hard links: a task that writes into its files would write into everyone's. The blocks are shared where the
//! file system can; elsewhere the kernel copies.

use std::fs::{self, File, FileTimes, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::ioctl_ficlone;
use rustix::process::geteuid;

use crate::account::Owner;

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("`{path}` cannot be copied")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    /// The disk's own error, where it was the disk's.
    pub(crate) fn disk(&self) -> Option<&io::Error> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::Cancelled => None,
        }
    }
}

/// Copy what is in `from` to the new directory `to`: contents, modes, times and symbolic links, and whose it is where that is
/// not ourselves.
pub(crate) fn copy_tree(from: &Path, to: &Path, is_cancelled: impl Fn() -> bool) -> Result<(), Error> {
    let failed = |path: &Path| {
        let path = path.strip_prefix(from).unwrap_or(path).to_owned();
        move |source| Error::Io { path, source }
    };
    fs::create_dir(to).and_then(|()| keep_owner(&fs::metadata(from)?, to)).map_err(failed(to))?;
    let mut waiting = vec![(from.to_owned(), to.to_owned())];
    let mut directories = Vec::new();
    while let Some((source, target)) = waiting.pop() {
        for entry in fs::read_dir(&source).map_err(failed(&source))? {
            if is_cancelled() {
                return Err(Error::Cancelled);
            }
            let entry = entry.map_err(failed(&source))?;
            let (path, copy) = (entry.path(), target.join(entry.file_name()));
            let kind = entry.file_type().map_err(failed(&path))?;
            if kind.is_dir() {
                fs::create_dir(&copy).map_err(failed(&path))?;
                directories.push((path.clone(), copy.clone()));
                waiting.push((path, copy));
            } else if kind.is_symlink() {
                let copied = fs::read_link(&path).and_then(|link| symlink(link, &copy));
                copied
                    .and_then(|()| keep_owner(&fs::symlink_metadata(&path)?, &copy))
                    .map_err(failed(&path))?;
            } else {
                copy_file(&path, &copy).map_err(failed(&path))?;
            }
        }
    }
    // Last, because a directory that may not be written to could not have been filled.
    for (source, target) in directories.iter().rev() {
        copy_directory_mode(source, target).map_err(failed(source))?;
    }
    Ok(())
}

/// Copy the bytes of a file to an empty one, and give how many there are.
pub(super) fn copy_content(from: &mut File, to: &mut File) -> io::Result<u64> {
    match ioctl_ficlone(&*to, &*from) {
        Ok(()) => Ok(to.metadata()?.len()),
        Err(_) => io::copy(from, to),
    }
}

/// So little is copied faster than the kernel is asked how.
const SMALL: u64 = 32 << 10;

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::open(from)?;
    let metadata = source.metadata()?;
    let mut target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    if metadata.len() <= SMALL {
        let mut content = Vec::with_capacity(metadata.len() as usize);
        source.read_to_end(&mut content)?;
        target.write_all(&content)?;
    } else {
        copy_content(&mut source, &mut target)?;
    }
    keep_owner(&metadata, to)?;
    target.set_permissions(Permissions::from_mode(metadata.permissions().mode() & 0o777))?;
    target.set_times(FileTimes::new().set_modified(metadata.modified()?))
}

fn copy_directory_mode(from: &Path, to: &Path) -> io::Result<()> {
    let metadata = fs::metadata(from)?;
    keep_owner(&metadata, to)?;
    File::open(to)?.set_times(FileTimes::new().set_modified(metadata.modified()?))?;
    fs::set_permissions(to, Permissions::from_mode(metadata.permissions().mode() & 0o777))
}

/// Only root has trees that are somebody else's.
fn keep_owner(metadata: &Metadata, to: &Path) -> io::Result<()> {
    match metadata.uid() == geteuid().as_raw() {
        true => Ok(()),
        false => Owner { uid: metadata.uid(), gid: metadata.gid() }.give_alone(to),
    }
}
