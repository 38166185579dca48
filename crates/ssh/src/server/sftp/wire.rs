//! The packets of sftp, version 3 with OpenSSH's extensions (draft-ietf-secsh-filexfer-02 and OpenSSH's `PROTOCOL`).
//!
//! Requests are borrowed from the bytes they came in, and replies are written one after the other into one buffer: what
//! is copied is copied once. Names are bytes, as they are on the disk. Nothing here touches a file.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::StatVfs;

/// The version that everyone speaks.
pub(super) const VERSION: u32 = 3;
/// No packet of a client is longer, and none of ours; as in OpenSSH.
pub(super) const MAX_PACKET: usize = 256 * 1024;
/// What a read or write may carry, so that the packet around it is not too long.
pub(super) const MAX_DATA: u32 = (MAX_PACKET - 1024) as u32;

/// What this server can do beyond version 3, and which version of it.
const EXTENSIONS: [(&str, &str); 11] = [
    ("posix-rename@openssh.com", "1"),
    ("statvfs@openssh.com", "2"),
    ("fstatvfs@openssh.com", "2"),
    ("hardlink@openssh.com", "1"),
    ("fsync@openssh.com", "1"),
    ("lsetstat@openssh.com", "1"),
    ("limits@openssh.com", "1"),
    ("expand-path@openssh.com", "1"),
    ("copy-data", "1"),
    ("home-directory", "1"),
    ("users-groups-by-id@openssh.com", "1"),
];

/// How a request ended, as a number of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Status {
    Ok = 0,
    Eof = 1,
    NoSuchFile = 2,
    PermissionDenied = 3,
    Failure = 4,
    BadMessage = 5,
    Unsupported = 8,
}

/// How a file is to be opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flags(u32);

impl Flags {
    pub const READ: u32 = 0x01;
    pub const WRITE: u32 = 0x02;
    pub const APPEND: u32 = 0x04;
    pub const CREATE: u32 = 0x08;
    pub const TRUNCATE: u32 = 0x10;
    pub const EXCLUSIVE: u32 = 0x20;

    pub fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }
}

/// What is to be set of a file; what is absent stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    pub size: Option<u64>,
    pub owner: Option<(u32, u32)>,
    pub mode: Option<u32>,
    /// Last read, last written.
    pub times: Option<(u32, u32)>,
}

const HAS_SIZE: u32 = 0x01;
const HAS_OWNER: u32 = 0x02;
const HAS_MODE: u32 = 0x04;
const HAS_TIMES: u32 = 0x08;
const HAS_EXTENDED: u32 = 0x8000_0000;

/// What a client asks for. A handle is the name that we gave to an open file.
#[derive(Debug)]
pub(super) enum Request<'a> {
    Init,
    Open { path: &'a Path, flags: Flags, attributes: Attributes },
    Close(&'a [u8]),
    Read { handle: &'a [u8], offset: u64, length: u32 },
    Write { handle: &'a [u8], offset: u64, data: &'a [u8] },
    LinkStat(&'a Path),
    HandleStat(&'a [u8]),
    SetStat { path: &'a Path, attributes: Attributes },
    HandleSetStat { handle: &'a [u8], attributes: Attributes },
    OpenDir(&'a Path),
    ReadDir(&'a [u8]),
    Remove(&'a Path),
    MakeDir { path: &'a Path, attributes: Attributes },
    RemoveDir(&'a Path),
    RealPath(&'a Path),
    Stat(&'a Path),
    Rename { from: &'a Path, to: &'a Path },
    ReadLink(&'a Path),
    Symlink { target: &'a Path, link: &'a Path },
    PosixRename { from: &'a Path, to: &'a Path },
    StatVfs(&'a Path),
    HandleStatVfs(&'a [u8]),
    HardLink { from: &'a Path, to: &'a Path },
    Sync(&'a [u8]),
    LinkSetStat { path: &'a Path, attributes: Attributes },
    Limits,
    ExpandPath(&'a Path),
    CopyData { from: &'a [u8], offset: u64, length: u64, to: &'a [u8], to_offset: u64 },
    Home(&'a [u8]),
    Names { users: &'a [u8], groups: &'a [u8] },
    Unknown,
}

/// A packet that is not one of the protocol.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Reads a packet without its length: the number it is to be answered under, and what it asks for.
pub(super) fn parse(packet: &[u8]) -> Result<(u32, Result<Request<'_>, Malformed>), Malformed> {
    let mut fields = Fields(packet);
    let (kind, id) = (fields.u8()?, fields.u32()?);
    Ok((id, fields.request(kind)))
}

/// About how long the answer to a packet will be, length and all.
pub(super) fn expected(packet: &[u8]) -> usize {
    const HEADER: usize = 64;
    match (packet.first(), packet.last_chunk()) {
        // A read, which has the length it wants at its end.
        (Some(5), Some(length)) => HEADER + u32::from_be_bytes(*length).min(MAX_DATA) as usize,
        _ => HEADER,
    }
}

/// What is left of a packet.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub fn of(bytes: &'a [u8]) -> Self {
        Fields(bytes)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_be_bytes)
    }

    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()? as usize;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn path(&mut self) -> Result<&'a Path, Malformed> {
        self.bytes().map(path)
    }

    fn attributes(&mut self) -> Result<Attributes, Malformed> {
        let flags = self.u32()?;
        let mut attributes = Attributes::default();
        if flags & HAS_SIZE != 0 {
            attributes.size = Some(self.u64()?);
        }
        if flags & HAS_OWNER != 0 {
            attributes.owner = Some((self.u32()?, self.u32()?));
        }
        if flags & HAS_MODE != 0 {
            attributes.mode = Some(self.u32()?);
        }
        if flags & HAS_TIMES != 0 {
            attributes.times = Some((self.u32()?, self.u32()?));
        }
        if flags & HAS_EXTENDED != 0 {
            // Nobody has agreed on any, so they are passed over.
            for _ in 0..self.u32()? {
                let _ = (self.bytes()?, self.bytes()?);
            }
        }
        Ok(attributes)
    }

    fn request(&mut self, kind: u8) -> Result<Request<'a>, Malformed> {
        Ok(match kind {
            // The number that follows is the client's version and not a request's, which makes no difference to the answer.
            1 => Request::Init,
            3 => {
                let (path, flags) = (self.path()?, Flags(self.u32()?));
                Request::Open { path, flags, attributes: self.attributes()? }
            }
            4 => Request::Close(self.bytes()?),
            5 => Request::Read { handle: self.bytes()?, offset: self.u64()?, length: self.u32()? },
            6 => Request::Write { handle: self.bytes()?, offset: self.u64()?, data: self.bytes()? },
            7 => Request::LinkStat(self.path()?),
            8 => Request::HandleStat(self.bytes()?),
            9 => Request::SetStat { path: self.path()?, attributes: self.attributes()? },
            10 => Request::HandleSetStat { handle: self.bytes()?, attributes: self.attributes()? },
            11 => Request::OpenDir(self.path()?),
            12 => Request::ReadDir(self.bytes()?),
            13 => Request::Remove(self.path()?),
            14 => Request::MakeDir { path: self.path()?, attributes: self.attributes()? },
            15 => Request::RemoveDir(self.path()?),
            16 => Request::RealPath(self.path()?),
            17 => Request::Stat(self.path()?),
            18 => Request::Rename { from: self.path()?, to: self.path()? },
            19 => Request::ReadLink(self.path()?),
            // The draft has the link first. OpenSSH has always had the target first, and everyone does as it does.
            20 => Request::Symlink { target: self.path()?, link: self.path()? },
            200 => self.extension()?,
            _ => Request::Unknown,
        })
    }

    fn extension(&mut self) -> Result<Request<'a>, Malformed> {
        Ok(match self.bytes()? {
            b"posix-rename@openssh.com" => Request::PosixRename { from: self.path()?, to: self.path()? },
            b"statvfs@openssh.com" => Request::StatVfs(self.path()?),
            b"fstatvfs@openssh.com" => Request::HandleStatVfs(self.bytes()?),
            b"hardlink@openssh.com" => Request::HardLink { from: self.path()?, to: self.path()? },
            b"fsync@openssh.com" => Request::Sync(self.bytes()?),
            b"lsetstat@openssh.com" => {
                Request::LinkSetStat { path: self.path()?, attributes: self.attributes()? }
            }
            b"limits@openssh.com" => Request::Limits,
            b"expand-path@openssh.com" => Request::ExpandPath(self.path()?),
            b"copy-data" => Request::CopyData {
                from: self.bytes()?,
                offset: self.u64()?,
                length: self.u64()?,
                to: self.bytes()?,
                to_offset: self.u64()?,
            },
            b"home-directory" => Request::Home(self.bytes()?),
            b"users-groups-by-id@openssh.com" => {
                Request::Names { users: self.bytes()?, groups: self.bytes()? }
            }
            _ => Request::Unknown,
        })
    }
}

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Answers, in the bytes in which they are sent.
#[derive(Debug, Default)]
pub(super) struct Replies(Vec<u8>);

impl Replies {
    pub fn with_capacity(bytes: usize) -> Self {
        Replies(Vec::with_capacity(bytes))
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub fn version(&mut self) {
        self.packet(2, VERSION, |body| {
            for (name, version) in EXTENSIONS {
                put_bytes(body, name.as_bytes());
                put_bytes(body, version.as_bytes());
            }
        });
    }

    pub fn status(&mut self, id: u32, status: Status, text: &str) {
        self.packet(101, id, |body| {
            put_u32(body, status as u32);
            put_bytes(body, text.as_bytes());
            put_bytes(body, b"en");
        });
    }

    pub fn handle(&mut self, id: u32, handle: &[u8]) {
        self.packet(102, id, |body| put_bytes(body, handle));
    }

    /// What `read` appends to the buffer, at most `length` bytes. Whatever it appended before it failed is taken back.
    pub fn data<E>(
        &mut self,
        id: u32,
        length: usize,
        read: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let before = self.0.len();
        let mut outcome = Ok(());
        self.0.reserve(length + 16);
        self.packet(103, id, |body| {
            let start = body.len();
            put_u32(body, 0);
            outcome = read(body);
            let length = (body.len() - start - 4) as u32;
            body[start..start + 4].copy_from_slice(&length.to_be_bytes());
        });
        if outcome.is_err() {
            self.0.truncate(before);
        }
        outcome
    }

    /// One name, which is all that is known of it.
    pub fn name(&mut self, id: u32, name: &[u8]) {
        self.packet(104, id, |body| {
            put_u32(body, 1);
            put_bytes(body, name);
            put_bytes(body, name);
            put_u32(body, 0);
        });
    }

    /// Names of a directory.
    pub fn entries(&mut self, id: u32, entries: &Entries) {
        self.packet(104, id, |body| {
            put_u32(body, entries.count);
            body.extend_from_slice(&entries.bytes);
        });
    }

    pub fn attributes(&mut self, id: u32, of: &Metadata) {
        self.packet(105, id, |body| put_attributes(body, of));
    }

    pub fn filesystem(&mut self, id: u32, of: &StatVfs) {
        // The bits of the protocol, which are not those of the system.
        let read_only = u64::from(of.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
        let no_suid = u64::from(of.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID)) << 1;
        let fields = [of.f_bsize, of.f_frsize, of.f_blocks, of.f_bfree, of.f_bavail, of.f_files];
        let more = [of.f_ffree, of.f_favail, of.f_fsid, read_only | no_suid, of.f_namemax];
        self.packet(201, id, |body| fields.into_iter().chain(more).for_each(|field| put_u64(body, field)));
    }

    pub fn limits(&mut self, id: u32, handles: u64) {
        let data = u64::from(MAX_DATA);
        self.packet(201, id, |body| {
            [MAX_PACKET as u64, data, data, handles].into_iter().for_each(|field| put_u64(body, field));
        });
    }

    /// Two lists of names, in the order in which they were asked for.
    pub fn names(&mut self, id: u32, users: &[&str], groups: &[&str]) {
        self.packet(201, id, |body| {
            for names in [users, groups] {
                let mut list = Vec::new();
                names.iter().for_each(|name| put_bytes(&mut list, name.as_bytes()));
                put_bytes(body, &list);
            }
        });
    }

    fn packet(&mut self, kind: u8, id: u32, fill: impl FnOnce(&mut Vec<u8>)) {
        let start = self.0.len();
        put_u32(&mut self.0, 0);
        self.0.push(kind);
        put_u32(&mut self.0, id);
        fill(&mut self.0);
        let length = (self.0.len() - start - 4) as u32;
        self.0[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }
}

/// Names of a directory, as many as go into one answer.
#[derive(Debug, Default)]
pub(super) struct Entries {
    count: u32,
    bytes: Vec<u8>,
}

impl Entries {
    pub fn push(&mut self, name: &[u8], long: &[u8], of: &Metadata) {
        self.count += 1;
        put_bytes(&mut self.bytes, name);
        put_bytes(&mut self.bytes, long);
        put_attributes(&mut self.bytes, of);
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }
}

fn put_attributes(to: &mut Vec<u8>, of: &Metadata) {
    put_u32(to, HAS_SIZE | HAS_OWNER | HAS_MODE | HAS_TIMES);
    put_u64(to, of.size());
    put_u32(to, of.uid());
    put_u32(to, of.gid());
    put_u32(to, of.mode());
    put_u32(to, seconds(of.atime()));
    put_u32(to, seconds(of.mtime()));
}

/// The protocol has 32 bits for a time and begins in 1970.
fn seconds(time: i64) -> u32 {
    time.clamp(0, i64::from(u32::MAX)) as u32
}

fn put_u32(to: &mut Vec<u8>, number: u32) {
    to.extend_from_slice(&number.to_be_bytes());
}

fn put_u64(to: &mut Vec<u8>, number: u64) {
    to.extend_from_slice(&number.to_be_bytes());
}

fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(to, bytes.len() as u32);
    to.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(kind: u8, id: u32, fields: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![kind];
        put_u32(&mut bytes, id);
        fields.iter().for_each(|field| bytes.extend_from_slice(field));
        bytes
    }

    fn string(text: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_bytes(&mut bytes, text);
        bytes
    }

    #[test]
    fn a_name_need_not_be_utf8() {
        let bytes = packet(17, 7, &[&string(b"caf\xe9")]);
        let (id, request) = parse(&bytes).unwrap();
        assert!(id == 7 && matches!(request, Ok(Request::Stat(path)) if path.as_os_str().len() == 4));
    }

    #[test]
    fn attributes_are_read_with_whatever_nobody_knows_behind_them() {
        let mut set = Vec::new();
        put_u32(&mut set, HAS_SIZE | HAS_MODE | HAS_TIMES | HAS_EXTENDED);
        put_u64(&mut set, 1 << 40);
        [0o644, 5, 6, 1].into_iter().for_each(|field| put_u32(&mut set, field));
        set.extend([string(b"a@b"), string(b"value")].concat());
        let bytes = packet(9, 1, &[&string(b"f"), &set]);
        let Ok((1, Ok(Request::SetStat { attributes, .. }))) = parse(&bytes) else { panic!() };
        let meant = Attributes { size: Some(1 << 40), owner: None, mode: Some(0o644), times: Some((5, 6)) };
        assert_eq!(attributes, meant);
    }

    #[test]
    fn what_breaks_off_is_malformed_wherever_it_does() {
        let whole = packet(6, 1, &[&string(b"1234"), &[0; 8], &string(b"data")]);
        assert!(matches!(parse(&whole), Ok((1, Ok(Request::Write { data: b"data", .. })))));
        for length in 0..whole.len() {
            let parsed = parse(&whole[..length]);
            assert!(matches!(parsed, Err(Malformed) | Ok((1, Err(Malformed)))), "{length}");
        }
        // A length that promises more than there is.
        assert!(matches!(parse(&packet(17, 1, &[&[0xff; 4]])), Ok((1, Err(Malformed)))));
    }

    #[test]
    fn what_was_read_is_taken_back_when_reading_fails() {
        let mut replies = Replies::default();
        replies.status(1, Status::Ok, "");
        let before = replies.0.len();
        let failed = replies.data(2, 10, |body| {
            body.extend_from_slice(b"some");
            Err("broken")
        });
        assert_eq!((failed, replies.0.len()), (Err("broken"), before));
    }
}
