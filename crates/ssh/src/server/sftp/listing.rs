//! A line of `ls -l` for a file: some clients show it to people as it is.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// What `ls` calls recent: of such a file the hour is shown, of an older one the year.
const RECENT_SECONDS: i64 = 182 * 24 * 3600;

/// The names of this machine's users and groups, and its clock.
#[derive(Debug)]
pub(super) struct Listing {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
    zone: TimeZone,
    now: i64,
}

impl Listing {
    /// Names come from the machine's own files: the directory services that it may have are libc's affair. An unknown
    /// one is shown as its number.
    pub fn new() -> Listing {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Listing {
            users: names(&read("/etc/passwd")),
            groups: names(&read("/etc/group")),
            zone: TimeZone::system(),
            now: Timestamp::now().as_second(),
        }
    }

    pub fn user(&self, id: u32) -> Option<&str> {
        self.users.get(&id).map(String::as_str)
    }

    pub fn group(&self, id: u32) -> Option<&str> {
        self.groups.get(&id).map(String::as_str)
    }

    pub fn line(&self, name: &[u8], of: &Metadata) -> Vec<u8> {
        let named = |name: Option<&str>, id: u32| name.map_or_else(|| id.to_string(), str::to_owned);
        let line = format!(
            "{} {:>3} {:<8} {:<8} {:>8} {} ",
            mode(of.mode()),
            of.nlink(),
            named(self.user(of.uid()), of.uid()),
            named(self.group(of.gid()), of.gid()),
            of.size(),
            self.time(of.mtime())
        );
        [line.as_bytes(), name].concat()
    }

    fn time(&self, second: i64) -> String {
        let format =
            if (0..RECENT_SECONDS).contains(&(self.now - second)) { "%b %e %H:%M" } else { "%b %e  %Y" };
        match Timestamp::from_second(second) {
            Ok(time) => time.to_zoned(self.zone.clone()).strftime(format).to_string(),
            Err(_) => "?".to_owned(),
        }
    }
}

/// The home of a user of this machine.
pub(super) fn home_of(user: &str) -> Option<PathBuf> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.split(':').next() == Some(user))?;
    line.split(':').nth(5).map(PathBuf::from)
}

/// `name:password:id:…`, which both files are made of.
fn names(lines: &str) -> HashMap<u32, String> {
    let entry = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    lines.lines().filter_map(entry).collect()
}

fn mode(mode: u32) -> String {
    let kind = match mode & 0o170_000 {
        0o040_000 => 'd',
        0o120_000 => 'l',
        0o010_000 => 'p',
        0o140_000 => 's',
        0o020_000 => 'c',
        0o060_000 => 'b',
        _ => '-',
    };
    let mut text = String::from(kind);
    // Three bits each for the owner, the group and everyone, and one more that is shown in place of the third.
    for (shift, special, mark) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => mark,
            (true, false) => mark.to_ascii_uppercase(),
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_written_as_ls_writes_them() {
        for (bits, text) in [
            (0o100_644, "-rw-r--r--"),
            (0o040_755, "drwxr-xr-x"),
            (0o120_777, "lrwxrwxrwx"),
            (0o104_755, "-rwsr-xr-x"),
            (0o041_777, "drwxrwxrwt"),
            (0o102_640, "-rw-r-S---"),
        ] {
            assert_eq!(mode(bits), text);
        }
    }

    #[test]
    fn a_recent_file_has_its_hour_and_an_old_one_its_year() {
        let listing = Listing {
            users: names("root:x:0:0::/root:/bin/sh\nbroken\n"),
            groups: HashMap::new(),
            zone: TimeZone::UTC,
            now: 1_700_000_000,
        };
        assert_eq!(listing.time(1_699_999_000), "Nov 14 21:56");
        assert_eq!(listing.time(1_600_000_000), "Sep 13  2020");
        assert_eq!((listing.user(0), listing.user(1)), (Some("root"), None));
    }
}
