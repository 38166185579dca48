//! Unpacking an archive that may have been made to harm.
//!
//! Every name is walked from the root one component at a time, and never through a symbolic link, so that nothing is
//! ever written outside. Only files, directories and symbolic links are made. Nothing is made twice, no bit beyond the
//! nine permissions survives, and what is read never exceeds the archive, whose length the caller knows: an archive
//! cannot say more than it is, since sparse files are refused.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType, Header};

/// As long as a path may be for the kernel.
const MAX_PATH: usize = 4096;
/// Deeper than anyone's code, and shallow enough that a removal, which holds one descriptor for each level, succeeds.
const MAX_DEPTH: usize = 256;
/// Attributes of one entry: names and times.
const MAX_ATTRIBUTES: u64 = 64 * 1024;

/// Why an archive was not unpacked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the archive cannot be read")]
    Unreadable(#[source] io::Error),
    #[error("the archive has the name `{name}`, which leads outside, is too long or is too deep")]
    BadName { name: String },
    #[error("the archive has `{name}` twice, or below something that is not a directory")]
    Conflict { name: String },
    #[error("the archive has `{name}`, which is neither a file nor a directory nor a symbolic link")]
    BadKind { name: String },
    #[error("`{name}` cannot be written")]
    Write {
        name: String,
        #[source]
        source: io::Error,
    },
}

/// Unpack into `root`, an empty directory.
pub(crate) fn unpack(archive: impl Read, root: &Path) -> Result<(), Error> {
    let write_error = |source| Error::Write { name: root.display().to_string(), source };
    let mut unpacker = Unpacker {
        root: File::open(root).map_err(write_error)?.into(),
        parent: None,
        directories: Vec::new(),
        extended: Extended::default(),
    };
    let mut archive = Archive::new(archive);
    // Raw entries, because the library would read names of any length into memory.
    for entry in archive.entries().map_err(Error::Unreadable)?.raw(true) {
        unpacker.entry(entry.map_err(Error::Unreadable)?)?;
    }
    unpacker.finish()
}

/// What the entries before an entry say about it.
#[derive(Default)]
struct Extended {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

struct Unpacker {
    root: OwnedFd,
    /// The directory that was written to last: the next entry is most often beside it.
    parent: Option<(Vec<CString>, OwnedFd)>,
    /// Modes and times of directories, to be set when all is in them.
    directories: Vec<(Name, Header)>,
    extended: Extended,
}

impl Unpacker {
    fn entry(&mut self, mut entry: Entry<'_, impl Read>) -> Result<(), Error> {
        match entry.header().entry_type() {
            EntryType::GNULongName => self.extended.name = Some(text(&mut entry)?),
            EntryType::GNULongLink => self.extended.link = Some(text(&mut entry)?),
            EntryType::XHeader => self.attributes(&mut entry)?,
            EntryType::XGlobalHeader => {}
            kind => {
                let extended = std::mem::take(&mut self.extended);
                let name = extended.name.unwrap_or_else(|| entry.header().path_bytes().into_owned());
                self.make(kind, Name::parse(&name)?, extended.link, entry)?;
            }
        }
        Ok(())
    }

    fn make(
        &mut self,
        kind: EntryType,
        name: Name,
        link: Option<Vec<u8>>,
        mut entry: Entry<'_, impl Read>,
    ) -> Result<(), Error> {
        match kind {
            EntryType::Directory => self.directory(name, entry.header().clone()),
            // Archives of the oldest kind say that it is a directory by its name alone.
            EntryType::Regular if name.is_directory => self.directory(name, entry.header().clone()),
            EntryType::Regular | EntryType::Continuous => self.file(&name, &mut entry),
            EntryType::Symlink => {
                let target = link.or_else(|| entry.header().link_name_bytes().map(|link| link.into_owned()));
                self.link(&name, &target.unwrap_or_default())
            }
            _ => Err(Error::BadKind { name: name.text() }),
        }
    }

    fn directory(&mut self, name: Name, header: Header) -> Result<(), Error> {
        self.enter(&name, name.components.len())?;
        self.directories.push((name, header));
        Ok(())
    }

    fn file(&mut self, name: &Name, entry: &mut Entry<'_, impl Read>) -> Result<(), Error> {
        let (parent, last) = self.parent_of(name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(parent, last, flags, Mode::RUSR | Mode::WUSR);
        let mut file = File::from(made.map_err(|errno| name.failed(errno))?);
        let size = entry.header().entry_size().map_err(Error::Unreadable)?;
        let written = io::copy(entry, &mut file);
        let written = written.map_err(|source| Error::Write { name: name.text(), source })?;
        if written != size {
            return Err(Error::Unreadable(io::ErrorKind::UnexpectedEof.into()));
        }
        // We must be able to copy from it.
        rustix::fs::fchmod(&file, mode(entry.header(), 0o400)).map_err(|errno| name.failed(errno))?;
        rustix::fs::futimens(&file, &times(entry.header())).map_err(|errno| name.failed(errno))
    }

    fn link(&mut self, name: &Name, target: &[u8]) -> Result<(), Error> {
        let target = CString::new(target).ok().filter(|target| !target.is_empty());
        let target = target.filter(|target| target.count_bytes() < MAX_PATH);
        let target = target.ok_or_else(|| Error::BadName { name: name.text() })?;
        let (parent, last) = self.parent_of(name)?;
        rustix::fs::symlinkat(target, parent, last).map_err(|errno| name.failed(errno))
    }

    fn attributes(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<(), Error> {
        let bytes = bounded(entry, MAX_ATTRIBUTES)?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let malformed = || Error::Unreadable(io::ErrorKind::InvalidData.into());
            let (key, value) = attribute(&mut rest).ok_or_else(malformed)?;
            match key {
                b"path" => self.extended.name = Some(value.to_vec()),
                b"linkpath" => self.extended.link = Some(value.to_vec()),
                // These change how many bytes belong to an entry. Nobody who bundles code needs them.
                key if key == b"size" || key.starts_with(b"GNU.sparse") => {
                    let name = String::from_utf8_lossy(key).into_owned();
                    return Err(Error::BadKind { name });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn parent_of<'a>(&mut self, name: &'a Name) -> Result<(&OwnedFd, &'a CString), Error> {
        let Some(last) = name.components.last() else {
            return Err(Error::Conflict { name: name.text() });
        };
        Ok((self.enter(name, name.components.len() - 1)?, last))
    }

    /// The directory of the first `depth` components, made where it is missing.
    fn enter(&mut self, name: &Name, depth: usize) -> Result<&OwnedFd, Error> {
        let components = &name.components[..depth];
        if self.parent.as_ref().is_none_or(|(at, _)| at != components) {
            let failed = |errno| name.failed(errno);
            let mut at =
                self.root.try_clone().map_err(|source| Error::Write { name: name.text(), source })?;
            for component in components {
                at = open_or_make(&at, component).map_err(failed)?;
            }
            self.parent = Some((components.to_vec(), at));
        }
        match &self.parent {
            Some((_, directory)) => Ok(directory),
            None => Ok(&self.root),
        }
    }

    fn finish(mut self) -> Result<(), Error> {
        for (name, header) in std::mem::take(&mut self.directories).iter().rev() {
            // The root itself is ours.
            if name.components.is_empty() {
                continue;
            }
            let (parent, last) = self.parent_of(name)?;
            let failed = |errno| name.failed(errno);
            // Nothing here ever turns a directory into something else, so that this follows no link.
            rustix::fs::chmodat(parent, last, mode(header, 0o500), AtFlags::empty()).map_err(failed)?;
            rustix::fs::utimensat(parent, last, &times(header), AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        }
        Ok(())
    }
}

/// Takes one `LENGTH KEY=VALUE\n`. By its length and not by its line, as names may have line ends in them.
fn attribute<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let space = rest.iter().take(20).position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
    let (whole, after) = rest.split_at_checked(length)?;
    *rest = after;
    let pair = whole.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    Some((&pair[..equals], &pair[equals + 1..]))
}

fn open_or_make(at: &OwnedFd, component: &CString) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(at, component, flags, Mode::empty()) {
        Err(Errno::NOENT) => {
            rustix::fs::mkdirat(at, component, Mode::RWXU)?;
            rustix::fs::openat(at, component, flags, Mode::empty())
        }
        opened => opened,
    }
}

/// A name below the root.
struct Name {
    components: Vec<CString>,
    is_directory: bool,
}

impl Name {
    fn parse(bytes: &[u8]) -> Result<Name, Error> {
        let bad = || Error::BadName { name: shown(bytes) };
        if bytes.is_empty() || bytes.len() >= MAX_PATH || bytes[0] == b'/' {
            return Err(bad());
        }
        let mut components = Vec::new();
        for component in bytes.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." => return Err(bad()),
                component => components.push(CString::new(component).map_err(|_| bad())?),
            }
        }
        if components.len() > MAX_DEPTH {
            return Err(bad());
        }
        Ok(Name { components, is_directory: bytes.ends_with(b"/") })
    }

    fn text(&self) -> String {
        let components: Vec<_> = self.components.iter().map(|component| component.as_bytes()).collect();
        shown(&components.join(&b'/'))
    }

    fn failed(&self, errno: Errno) -> Error {
        match errno {
            Errno::EXIST | Errno::NOTDIR | Errno::LOOP => Error::Conflict { name: self.text() },
            Errno::NAMETOOLONG => Error::BadName { name: self.text() },
            errno => Error::Write { name: self.text(), source: errno.into() },
        }
    }
}

/// A name as a person can read it, in a message of bounded length.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().take(200).flat_map(char::escape_default).collect()
}

fn mode(header: &Header, always: u32) -> Mode {
    Mode::from_raw_mode(header.mode().unwrap_or(0o644) & 0o777 | always)
}

fn times(header: &Header) -> Timestamps {
    let seconds = header.mtime().ok().and_then(|seconds| i64::try_from(seconds).ok()).unwrap_or(0);
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

/// A long name or link: text that ends with a zero byte.
fn text(entry: &mut Entry<'_, impl Read>) -> Result<Vec<u8>, Error> {
    let mut bytes = bounded(entry, MAX_PATH as u64 + 1)?;
    if bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}

fn bounded(entry: &mut Entry<'_, impl Read>, limit: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    entry.take(limit + 1).read_to_end(&mut bytes).map_err(Error::Unreadable)?;
    if bytes.len() as u64 > limit {
        return Err(Error::BadName { name: shown(&bytes) });
    }
    Ok(bytes)
}
