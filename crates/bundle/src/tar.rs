//! Writing archives: what `muster get` of a directory is sent as, so that any other client can read it, too.
//!
//! Names are written as they are, also those that are not UTF-8, which the library's own builder refuses at times.

use std::io::{self, Read, Write};

use tar::{EntryType, Header};

use crate::listing::{Entry, Kind};

const BLOCK: usize = 512;
/// The room a header has for a name and for a link's target.
const SHORT: usize = 100;

/// Writes an archive entry by entry.
pub struct Writer<W> {
    to: W,
}

impl<W: Write> Writer<W> {
    /// An archive that goes there.
    pub fn new(to: W) -> Self {
        Self { to }
    }

    /// Adds an entry. A file's content must have the size the entry says: what is missing is an error, and what is more
    /// is left out, since a file that is being written to is longer than it was.
    pub fn entry(&mut self, entry: &Entry, content: &mut dyn Read) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_mode(entry.mode);
        header.set_mtime(u64::try_from(entry.mtime.seconds).unwrap_or(0));
        header.set_size(entry.size());
        let mut name = entry.path.clone();
        match &entry.kind {
            Kind::Directory => {
                header.set_entry_type(EntryType::Directory);
                name.push(b'/');
            }
            Kind::File { .. } => header.set_entry_type(EntryType::Regular),
            Kind::Link { target } => {
                header.set_entry_type(EntryType::Symlink);
                if target.len() > SHORT {
                    self.long(EntryType::GNULongLink, target)?;
                }
                let short = &target[..target.len().min(SHORT)];
                header.as_old_mut().linkname[..short.len()].copy_from_slice(short);
            }
        }
        if name.len() > SHORT {
            self.long(EntryType::GNULongName, &name)?;
        }
        let short = &name[..name.len().min(SHORT)];
        header.as_old_mut().name[..short.len()].copy_from_slice(short);
        self.block(header, content)
    }

    /// Ends the archive and gives back where it went.
    pub fn finish(mut self) -> io::Result<W> {
        self.to.write_all(&[0; 2 * BLOCK])?;
        self.to.flush()?;
        Ok(self.to)
    }

    /// The record that holds what the header of the next entry has no room for.
    fn long(&mut self, kind: EntryType, text: &[u8]) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..13].copy_from_slice(b"././@LongLink");
        header.set_entry_type(kind);
        header.set_size(text.len() as u64 + 1);
        self.block(header, &mut text.chain(&[0][..]))
    }

    fn block(&mut self, mut header: Header, content: &mut dyn Read) -> io::Result<()> {
        header.set_uid(0);
        header.set_gid(0);
        header.set_cksum();
        self.to.write_all(header.as_bytes())?;
        let size = header.entry_size()?;
        if io::copy(&mut content.take(size), &mut self.to)? != size {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "a file became shorter while it was read",
            ));
        }
        let padding = (BLOCK - (size % BLOCK as u64) as usize) % BLOCK;
        self.to.write_all(&[0; BLOCK][..padding])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::Time;

    fn entry(path: &[u8], kind: Kind) -> Entry {
        Entry { path: path.to_vec(), kind, mode: 0o751, mtime: Time { seconds: 1_700_000_000, nanos: 0 } }
    }

    #[test]
    fn any_reader_of_archives_finds_what_was_written() {
        let long = [b"d".repeat(90), b"/".to_vec(), b"\xff".repeat(200)].concat();
        let target = b"/nowhere".repeat(30);
        let mut writer = Writer::new(Vec::new());
        writer.entry(&entry(b"dir\xff", Kind::Directory), &mut io::empty()).unwrap();
        writer.entry(&entry(&long, Kind::File { size: 600 }), &mut io::repeat(b'x')).unwrap();
        writer.entry(&entry(b"link", Kind::Link { target: target.clone() }), &mut io::empty()).unwrap();
        let bytes = writer.finish().unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut found = Vec::new();
        for read in archive.entries().unwrap() {
            let mut read = read.unwrap();
            let mut content = Vec::new();
            read.read_to_end(&mut content).unwrap();
            found.push((
                read.path_bytes().into_owned(),
                read.link_name_bytes().map(|name| name.into_owned()),
                content.len(),
                read.header().mode().unwrap(),
            ));
        }
        assert_eq!(
            found,
            [
                (b"dir\xff/".to_vec(), None, 0, 0o751),
                (long, None, 600, 0o751),
                (b"link".to_vec(), Some(target), 0, 0o751)
            ]
        );
    }

    #[test]
    fn a_file_that_became_shorter_is_an_error() {
        let mut writer = Writer::new(Vec::new());
        let short = writer.entry(&entry(b"a", Kind::File { size: 5 }), &mut &b"four"[..]);
        assert_eq!(short.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
