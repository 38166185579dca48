//! What requests do: the files of the task, seen from the process that answers in it.
//!
//! Everything here may wait for a disk, so it runs beside the process's one thread. A relative path is relative to the task's
//! directory, which is this process's own. There is no jail: who is let in may run commands as well.

use std::fs::{self, File, Metadata, Permissions, ReadDir};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, fchown, lchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::listing::{Listing, home_of};
use super::wire::{Attributes, Entries, Fields, Flags, MAX_DATA, Malformed, Replies, Request, Status, parse};

/// Files open at once in one session. A client that wants more has forgotten some.
const MAX_HANDLES: usize = 512;
/// An answer with names of a directory is not much longer: people see the first of them soon.
const ENTRIES_BYTES: usize = 64 * 1024;
/// A copy on this side goes through a buffer of this size.
const COPY_BYTES: u64 = 256 * 1024;
/// What may be set of a mode; the rest says what kind of file it is.
const MODE_BITS: u32 = 0o7777;

/// Why a request is answered with something other than what it asked for.
#[derive(Debug)]
enum Refusal {
    Eof,
    Unsupported,
    Handle,
    Message,
    Io(io::Error),
}

impl<E: Into<io::Error>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Refusal::Io(error.into())
    }
}

impl Refusal {
    fn status(&self) -> Status {
        match self {
            Refusal::Eof => Status::Eof,
            Refusal::Unsupported => Status::Unsupported,
            Refusal::Handle => Status::Failure,
            Refusal::Message => Status::BadMessage,
            Refusal::Io(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Status::NoSuchFile,
                Some(Errno::PERM | Errno::ACCESS | Errno::ROFS) => Status::PermissionDenied,
                Some(Errno::NOSYS | Errno::OPNOTSUPP) => Status::Unsupported,
                _ => Status::Failure,
            },
        }
    }

    fn text(&self) -> String {
        match self {
            Refusal::Eof => "end of file".to_owned(),
            Refusal::Unsupported => "operation unsupported".to_owned(),
            Refusal::Handle => "no such handle".to_owned(),
            Refusal::Message => "bad message".to_owned(),
            Refusal::Io(error) => {
                let text = error.to_string();
                // The number means nothing on the machine where it is read.
                text.split(" (os error").next().unwrap_or(&text).to_owned()
            }
        }
    }
}

#[derive(Debug)]
enum Open {
    File(File),
    Dir { path: PathBuf, entries: ReadDir, is_begun: bool },
}

/// One client's open files.
#[derive(Debug, Default)]
pub(super) struct Files {
    open: Vec<Option<Open>>,
    listing: Option<Listing>,
}

impl Files {
    /// Answers packets, each with its length before it, in the order in which they came, in about so many bytes.
    pub fn answer(&mut self, mut packets: &[u8], expected: usize) -> Result<Vec<u8>, Malformed> {
        let mut replies = Replies::with_capacity(expected);
        while let Some((length, rest)) = packets.split_first_chunk() {
            let (packet, rest) =
                rest.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or(Malformed)?;
            packets = rest;
            let (id, request) = parse(packet)?;
            let done = request
                .map_err(|Malformed| Refusal::Message)
                .and_then(|request| self.act(id, request, &mut replies));
            if let Err(refusal) = done {
                replies.status(id, refusal.status(), &refusal.text());
            }
        }
        Ok(replies.into_bytes())
    }

    fn act(&mut self, id: u32, request: Request<'_>, replies: &mut Replies) -> Result<(), Refusal> {
        match request {
            Request::Init => replies.version(),
            Request::Open { path, flags, attributes } => {
                let file = open(path, flags, attributes)?;
                replies.handle(id, &self.keep(Open::File(file))?);
            }
            Request::OpenDir(path) => {
                let dir = Open::Dir { path: path.to_owned(), entries: fs::read_dir(path)?, is_begun: false };
                replies.handle(id, &self.keep(dir)?);
            }
            Request::Read { handle, offset, length } => {
                let file = self.file(handle)?;
                let length = length.min(MAX_DATA) as usize;
                replies.data(id, length, |body| read(file, offset, length, body))?;
            }
            Request::ReadDir(handle) => replies.entries(id, &self.read_dir(handle)?),
            Request::LinkStat(path) => replies.attributes(id, &fs::symlink_metadata(path)?),
            Request::Stat(path) => replies.attributes(id, &fs::metadata(path)?),
            Request::HandleStat(handle) => replies.attributes(id, &self.metadata(handle)?),
            Request::RealPath(path) => replies.name(id, real_path(path)?.as_os_str().as_bytes()),
            Request::ExpandPath(path) => replies.name(id, real_path(&expand(path)?)?.as_os_str().as_bytes()),
            Request::ReadLink(path) => replies.name(id, &fs::read_link(path)?.into_os_string().into_vec()),
            Request::Home(user) => replies.name(id, home(user)?.as_os_str().as_bytes()),
            Request::StatVfs(path) => replies.filesystem(id, &rustix::fs::statvfs(path)?),
            Request::HandleStatVfs(handle) => {
                replies.filesystem(id, &rustix::fs::fstatvfs(self.file(handle)?)?);
            }
            Request::Limits => replies.limits(id, MAX_HANDLES as u64),
            Request::Names { users, groups } => self.names(id, users, groups, replies)?,
            request => {
                self.change(request)?;
                replies.status(id, Status::Ok, "");
            }
        }
        Ok(())
    }

    /// Requests that are answered with nothing but that they are done.
    fn change(&mut self, request: Request<'_>) -> Result<(), Refusal> {
        match request {
            Request::Write { handle, offset, data } => write(self.file(handle)?, offset, data)?,
            Request::Close(handle) => {
                let slot = self.open.get_mut(index(handle)?).ok_or(Refusal::Handle)?;
                slot.take().ok_or(Refusal::Handle)?;
            }
            Request::SetStat { path, attributes } => set(path, attributes)?,
            Request::LinkSetStat { path, attributes } => set_link(path, attributes)?,
            Request::HandleSetStat { handle, attributes } => set_file(self.file(handle)?, attributes)?,
            Request::Remove(path) => rustix::fs::unlink(path)?,
            Request::MakeDir { path, attributes } => {
                let mode = attributes.mode.map_or(0o777, |mode| mode & MODE_BITS);
                fs::DirBuilder::new().mode(mode).create(path)?;
            }
            Request::RemoveDir(path) => fs::remove_dir(path)?,
            Request::Rename { from, to } => rename(from, to)?,
            Request::PosixRename { from, to } => fs::rename(from, to)?,
            Request::HardLink { from, to } => fs::hard_link(from, to)?,
            Request::Symlink { target, link } => std::os::unix::fs::symlink(target, link)?,
            Request::Sync(handle) => self.file(handle)?.sync_all()?,
            Request::CopyData { from, offset, length, to, to_offset } => {
                copy((self.file(from)?, offset), (self.file(to)?, to_offset), length)?;
            }
            _ => return Err(Refusal::Unsupported),
        }
        Ok(())
    }

    fn keep(&mut self, open: Open) -> Result<[u8; 4], Refusal> {
        let free = self.open.iter().position(Option::is_none).unwrap_or(self.open.len());
        if free >= MAX_HANDLES {
            return Err(Errno::MFILE.into());
        }
        if free == self.open.len() {
            self.open.push(None);
        }
        self.open[free] = Some(open);
        Ok((free as u32).to_be_bytes())
    }

    fn get(&self, handle: &[u8]) -> Result<&Open, Refusal> {
        self.open.get(index(handle)?).and_then(Option::as_ref).ok_or(Refusal::Handle)
    }

    fn file(&self, handle: &[u8]) -> Result<&File, Refusal> {
        match self.get(handle)? {
            Open::File(file) => Ok(file),
            Open::Dir { .. } => Err(Errno::ISDIR.into()),
        }
    }

    fn metadata(&self, handle: &[u8]) -> Result<Metadata, Refusal> {
        Ok(match self.get(handle)? {
            Open::File(file) => file.metadata()?,
            Open::Dir { path, .. } => fs::metadata(path)?,
        })
    }

    fn read_dir(&mut self, handle: &[u8]) -> Result<Entries, Refusal> {
        let listing = self.listing.get_or_insert_with(Listing::new);
        let open = self.open.get_mut(index(handle)?).and_then(Option::as_mut).ok_or(Refusal::Handle)?;
        let Open::Dir { path, entries, is_begun } = open else {
            return Err(Errno::NOTDIR.into());
        };
        let mut answer = Entries::default();
        let mut push = |name: &[u8], of: &Metadata| {
            answer.push(name, &listing.line(name, of), of);
            answer.len() < ENTRIES_BYTES
        };
        if !*is_begun {
            *is_begun = true;
            for name in [".", ".."] {
                if let Ok(of) = fs::metadata(path.join(name)) {
                    push(name.as_bytes(), &of);
                }
            }
        }
        for entry in entries {
            let entry = entry?;
            // One that has gone since is none.
            if let Ok(of) = entry.metadata()
                && !push(entry.file_name().as_bytes(), &of)
            {
                break;
            }
        }
        if answer.is_empty() { Err(Refusal::Eof) } else { Ok(answer) }
    }

    fn names(&mut self, id: u32, users: &[u8], groups: &[u8], replies: &mut Replies) -> Result<(), Refusal> {
        let listing = self.listing.get_or_insert_with(Listing::new);
        let users: Vec<&str> = ids(users).map(|id| listing.user(id).unwrap_or_default()).collect();
        let groups: Vec<&str> = ids(groups).map(|id| listing.group(id).unwrap_or_default()).collect();
        replies.names(id, &users, &groups);
        Ok(())
    }
}

/// Handles are places in a list.
fn index(handle: &[u8]) -> Result<usize, Refusal> {
    handle.try_into().map(|bytes| u32::from_be_bytes(bytes) as usize).map_err(|_| Refusal::Handle)
}

fn ids(list: &[u8]) -> impl Iterator<Item = u32> {
    let mut fields = Fields::of(list);
    std::iter::from_fn(move || fields.u32().ok())
}

fn open(path: &Path, flags: Flags, attributes: Attributes) -> io::Result<File> {
    let mut how = match (flags.has(Flags::READ), flags.has(Flags::WRITE)) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        (_, false) => OFlags::RDONLY,
    };
    for (flag, means) in [
        (Flags::APPEND, OFlags::APPEND),
        (Flags::CREATE, OFlags::CREATE),
        (Flags::TRUNCATE, OFlags::TRUNC),
        (Flags::EXCLUSIVE, OFlags::EXCL),
    ] {
        how.set(means, flags.has(flag));
    }
    let mode = Mode::from_raw_mode(attributes.mode.unwrap_or(0o666) & MODE_BITS);
    // A terminal that is opened here is nobody's terminal.
    Ok(rustix::fs::open(path, how | OFlags::CLOEXEC | OFlags::NOCTTY, mode)?.into())
}

/// Appends what is there, up to a length. Only the end of the file makes it less.
fn read(file: &File, offset: u64, length: usize, to: &mut Vec<u8>) -> Result<(), Refusal> {
    let start = to.len();
    to.resize(start + length, 0);
    let outcome = fill(file, offset, &mut to[start..]);
    to.truncate(start + *outcome.as_ref().unwrap_or(&0));
    match outcome? {
        0 if length > 0 => Err(Refusal::Eof),
        _ => Ok(()),
    }
}

fn fill(file: &File, offset: u64, to: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < to.len() {
        match rustix::io::pread(file, &mut to[filled..], offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            // A pipe or a terminal has no places: what comes next is what there is.
            Err(Errno::SPIPE) => return io::Read::read(&mut &*file, to),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}

fn write(file: &File, mut offset: u64, mut data: &[u8]) -> Result<(), Refusal> {
    while !data.is_empty() {
        match rustix::io::pwrite(file, data, offset) {
            Ok(written) => {
                offset += written as u64;
                data = &data[written..];
            }
            Err(Errno::INTR) => {}
            Err(Errno::SPIPE) => return Ok(io::Write::write_all(&mut &*file, data)?),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Copies here what would otherwise go to the client and back. A length of 0 means to the end.
fn copy(from: (&File, u64), to: (&File, u64), length: u64) -> Result<(), Refusal> {
    let is_to_the_end = length == 0;
    let mut done = 0;
    let mut buffer = Vec::new();
    while is_to_the_end || done < length {
        let part = if is_to_the_end { COPY_BYTES } else { COPY_BYTES.min(length - done) };
        buffer.clear();
        buffer.reserve(part as usize);
        match read(from.0, from.1 + done, part as usize, &mut buffer) {
            Err(Refusal::Eof) => break,
            outcome => outcome?,
        }
        write(to.0, to.1 + done, &buffer)?;
        done += buffer.len() as u64;
    }
    Ok(())
}

/// As in version 3: what is there already is not replaced.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some filesystems cannot promise it; a look before is the best there is.
        Err(Errno::INVAL | Errno::NOSYS) => match fs::symlink_metadata(to) {
            Ok(_) => Err(Errno::EXIST.into()),
            Err(_) => fs::rename(from, to),
        },
        outcome => Ok(outcome?),
    }
}

fn set(path: &Path, attributes: Attributes) -> io::Result<()> {
    if let Some(size) = attributes.size {
        let file =
            rustix::fs::open(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::ftruncate(file, size)?;
    }
    if let Some(mode) = attributes.mode {
        fs::set_permissions(path, Permissions::from_mode(mode & MODE_BITS))?;
    }
    if let Some(times) = attributes.times {
        rustix::fs::utimensat(CWD, path, &timestamps(times), AtFlags::empty())?;
    }
    if let Some((user, group)) = attributes.owner {
        chown(path, Some(user), Some(group))?;
    }
    Ok(())
}

/// The same, of a link rather than of what it leads to.
fn set_link(path: &Path, attributes: Attributes) -> Result<(), Refusal> {
    if !fs::symlink_metadata(path)?.is_symlink() {
        return Ok(set(path, attributes)?);
    }
    if attributes.size.is_some() || attributes.mode.is_some() {
        // A link has neither.
        return Err(Refusal::Unsupported);
    }
    if let Some(times) = attributes.times {
        rustix::fs::utimensat(CWD, path, &timestamps(times), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if let Some((user, group)) = attributes.owner {
        lchown(path, Some(user), Some(group))?;
    }
    Ok(())
}

fn set_file(file: &File, attributes: Attributes) -> io::Result<()> {
    if let Some(size) = attributes.size {
        file.set_len(size)?;
    }
    if let Some(mode) = attributes.mode {
        file.set_permissions(Permissions::from_mode(mode & MODE_BITS))?;
    }
    if let Some(times) = attributes.times {
        rustix::fs::futimens(file, &timestamps(times))?;
    }
    if let Some((user, group)) = attributes.owner {
        fchown(file, Some(user), Some(group))?;
    }
    Ok(())
}

fn timestamps((read, written): (u32, u32)) -> Timestamps {
    let at = |second: u32| Timespec { tv_sec: second.into(), tv_nsec: 0 };
    Timestamps { last_access: at(read), last_modification: at(written) }
}

/// The one name of a path. Its last part need not be there: that is how clients ask where a new file would be.
fn real_path(path: &Path) -> io::Result<PathBuf> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or(error)?;
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            Ok(fs::canonicalize(parent.unwrap_or(Path::new(".")))?.join(name))
        }
        outcome => outcome,
    }
}

/// `~` and `~user` at the beginning of a path, as a shell has them.
fn expand(path: &Path) -> Result<PathBuf, Refusal> {
    let bytes = path.as_os_str().as_bytes();
    let Some(rest) = bytes.strip_prefix(b"~") else { return Ok(path.to_owned()) };
    let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
    let (user, below) = rest.split_at(end);
    let below = Path::new(std::ffi::OsStr::from_bytes(below.strip_prefix(b"/").unwrap_or(below)));
    let home = home(user)?;
    Ok(if below.as_os_str().is_empty() { home } else { home.join(below) })
}

/// The home of a user, or the task's own.
fn home(user: &[u8]) -> Result<PathBuf, Refusal> {
    let own = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let home = match std::str::from_utf8(user) {
        Ok("") => own,
        Ok(user) => home_of(user),
        Err(_) => None,
    };
    home.ok_or_else(|| Errno::NOENT.into())
}
