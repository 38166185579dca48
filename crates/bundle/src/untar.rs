//! Unpacking a tar archive that may have been made to harm.
//!
//! What may be written is [`Writer`]'s to say. Here only what an archive can say is narrowed: files, directories and
//! symbolic links, names of bounded length, and never more bytes than the archive has, since sparse files are refused.

use std::io::{self, Read};
use std::path::Path;

use tar::{Archive, EntryType, Header};

use crate::listing::{Entry, Kind, MAX_PATH, Time, shown};
use crate::unpack::{self, Writer, seal};

/// Attributes of one entry: names and times.
const MAX_ATTRIBUTES: u64 = 64 * 1024;

/// Why an archive was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No archive, or a part of one.
    #[error("the archive cannot be read")]
    Unreadable(#[source] io::Error),
    /// A device, a pipe, a hard link, a sparse file.
    #[error("the archive has `{name}`, which is neither a file nor a directory nor a symbolic link")]
    BadKind {
        /// The name, readable.
        name: String,
    },
    /// Something in it cannot or must not be written.
    #[error(transparent)]
    Unpack(#[from] unpack::Error),
}

/// Unpacks an archive into `root`, a directory. What is there already is an error, never overwritten.
pub fn untar(archive: impl Read, root: &Path) -> Result<(), Error> {
    let mut unpacker =
        Unpacker { writer: Writer::open(root)?, directories: Vec::new(), extended: Extended::default() };
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
    writer: Writer,
    /// Modes and times of directories, to be set when all is in them.
    directories: Vec<Entry>,
    extended: Extended,
}

impl Unpacker {
    fn entry(&mut self, mut entry: tar::Entry<'_, impl Read>) -> Result<(), Error> {
        match entry.header().entry_type() {
            EntryType::GNULongName => self.extended.name = Some(text(&mut entry)?),
            EntryType::GNULongLink => self.extended.link = Some(text(&mut entry)?),
            EntryType::XHeader => self.attributes(&mut entry)?,
            EntryType::XGlobalHeader => {}
            kind => {
                let extended = std::mem::take(&mut self.extended);
                let name = extended.name.unwrap_or_else(|| entry.header().path_bytes().into_owned());
                self.make(kind, &name, extended.link, entry)?;
            }
        }
        Ok(())
    }

    fn make(
        &mut self,
        kind: EntryType,
        name: &[u8],
        link: Option<Vec<u8>>,
        mut entry: tar::Entry<'_, impl Read>,
    ) -> Result<(), Error> {
        let mut made = described(plain(name)?, entry.header());
        match kind {
            EntryType::Directory => self.directory(made),
            // Archives of the oldest kind say that it is a directory by its name alone.
            EntryType::Regular if name.ends_with(b"/") => self.directory(made),
            EntryType::Regular | EntryType::Continuous => {
                let size = entry.header().entry_size().map_err(Error::Unreadable)?;
                made.kind = Kind::File { size };
                self.file(&made, &mut entry)
            }
            EntryType::Symlink => {
                let target = link.or_else(|| entry.header().link_name_bytes().map(|link| link.into_owned()));
                Ok(self.writer.link(&made.path, &target.unwrap_or_default())?)
            }
            _ => Err(Error::BadKind { name: shown(&made.path) }),
        }
    }

    fn directory(&mut self, entry: Entry) -> Result<(), Error> {
        // The root itself is the caller's.
        if !entry.path.is_empty() {
            self.writer.directory(&entry.path)?;
            self.directories.push(entry);
        }
        Ok(())
    }

    fn file(&mut self, entry: &Entry, content: &mut impl Read) -> Result<(), Error> {
        let mut file = self.writer.file(&entry.path)?;
        let failed = |source| unpack::Error::Write { name: shown(&entry.path), source };
        let written = io::copy(content, &mut file).map_err(failed)?;
        if written != entry.size() {
            return Err(Error::Unreadable(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(seal(&file, entry)?)
    }

    fn attributes(&mut self, entry: &mut tar::Entry<'_, impl Read>) -> Result<(), Error> {
        let bytes = bounded(entry, MAX_ATTRIBUTES)?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let malformed = || Error::Unreadable(io::ErrorKind::InvalidData.into());
            let (key, value) = attribute(&mut rest).ok_or_else(malformed)?;
            match key {
                b"path" => self.extended.name = Some(value.to_vec()),
                b"linkpath" => self.extended.link = Some(value.to_vec()),
                // These change how many bytes belong to an entry. Nobody who archives results needs them.
                key if key == b"size" || key.starts_with(b"GNU.sparse") => {
                    return Err(Error::BadKind { name: shown(key) });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), Error> {
        for entry in self.directories.iter().rev() {
            self.writer.seal_directory(&entry.path, entry.mode, Some(entry.mtime))?;
        }
        Ok(())
    }
}

fn described(path: Vec<u8>, header: &Header) -> Entry {
    let seconds = header.mtime().ok().and_then(|seconds| i64::try_from(seconds).ok()).unwrap_or(0);
    let mode = header.mode().unwrap_or(0o644) & 0o777;
    Entry { path, kind: Kind::Directory, mode, mtime: Time { seconds, nanos: 0 } }
}

/// A name as listings have it: archives also write `./a`, `a/` and `a//b`.
fn plain(name: &[u8]) -> Result<Vec<u8>, unpack::Error> {
    let bad = || unpack::Error::BadName { name: shown(name) };
    if name.is_empty() || name.len() >= MAX_PATH || name[0] == b'/' {
        return Err(bad());
    }
    let components = name.split(|byte| *byte == b'/').filter(|component| !matches!(*component, b"" | b"."));
    Ok(components.collect::<Vec<_>>().join(&b'/'))
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

/// A long name or link: text that ends with a zero byte.
fn text(entry: &mut tar::Entry<'_, impl Read>) -> Result<Vec<u8>, Error> {
    let mut bytes = bounded(entry, MAX_PATH as u64 + 1)?;
    if bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}

fn bounded(entry: &mut tar::Entry<'_, impl Read>, limit: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    entry.take(limit + 1).read_to_end(&mut bytes).map_err(Error::Unreadable)?;
    if bytes.len() as u64 > limit {
        return Err(unpack::Error::BadName { name: shown(&bytes) }.into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
