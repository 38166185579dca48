//! Listings that were made to harm, and entries that no listing could hold.

use std::fs;
use std::os::unix::fs::MetadataExt;

use proptest::collection::vec;
use proptest::prelude::{
    Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest,
};
use tempfile::TempDir;

use super::*;
use crate::listing;

struct Place {
    home: TempDir,
}

/// A root to unpack into, with something beside it that must stay as it is.
fn place() -> Place {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("root")).unwrap();
    fs::create_dir(home.path().join("outside")).unwrap();
    fs::write(home.path().join("outside/file"), "untouched").unwrap();
    Place { home }
}

impl Place {
    fn root(&self) -> std::path::PathBuf {
        self.home.path().join("root")
    }

    fn assert_outside_is_untouched(&self) {
        let outside = self.home.path().join("outside");
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "untouched");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        assert_eq!(fs::read_dir(self.home.path()).unwrap().count(), 2);
    }

    /// How many files are in the root; nothing but files, directories and links, with nine bits.
    fn files(&self) -> usize {
        let (mut waiting, mut files) = (vec![self.root()], 0);
        while let Some(directory) = waiting.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let metadata = fs::symlink_metadata(&path).unwrap();
                assert_eq!(metadata.mode() & 0o7000, 0);
                if metadata.is_dir() {
                    waiting.push(path);
                } else if !metadata.is_symlink() {
                    assert!(metadata.is_file() && metadata.nlink() == 1);
                    files += 1;
                }
            }
        }
        files
    }
}

fn hostile_path() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        6 => prop_oneof![Just(b"a".to_vec()), Just(b"b".to_vec()), Just(b"\xff\n".to_vec())],
        1 => prop_oneof![
            Just(b"..".to_vec()), Just(b".".to_vec()), Just(vec![]), Just(b"x\0".to_vec()), Just(vec![b'x'; 300])
        ],
    ];
    vec(part, 1..4).prop_map(|parts| parts.join(&b'/'))
}

fn hostile_entry() -> impl Strategy<Value = Entry> {
    let targets = [b"..".as_slice(), b"../outside", b"/", b"a", b"../outside/file", b".", b"", b"x\0"];
    let kind = prop_oneof![
        Just(Kind::Directory),
        prop_oneof![9 => 0..70_000_u64, 1 => any::<u64>()].prop_map(|size| Kind::File { size }),
        proptest::sample::select(targets.to_vec()).prop_map(|target| Kind::Link { target: target.to_vec() }),
    ];
    let time = (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(seconds, nanos)| Time { seconds, nanos });
    (hostile_path(), kind, any::<u32>(), time).prop_map(|(path, kind, mode, mtime)| Entry {
        path,
        kind,
        mode,
        mtime,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_entries_write_outside_whether_or_not_they_could_be_listed(
        entries in vec(hostile_entry(), 1..12), length in 0..100_000_usize
    ) {
        let place = place();
        let content = vec![7; length];
        let _ = unpack(&entries, &mut content.as_slice(), &place.root());
        place.assert_outside_is_untouched();
        prop_assert!(place.files() <= entries.len());
    }

    #[test]
    fn any_bytes_as_a_listing_write_nothing_outside(
        bytes in vec(prop_oneof![
            any::<u8>(), 0..4_u8, Just(b'd'), Just(b'f'), Just(b'l'), Just(b'/'), Just(b'.')
        ], 0..80)
    ) {
        if let Ok(entries) = listing::decode(&bytes) {
            let place = place();
            let _ = unpack(&entries, &mut [9; 500].as_slice(), &place.root());
            place.assert_outside_is_untouched();
            place.files();
        }
    }

    #[test]
    fn a_listing_is_unpacked_as_it_says(sizes in vec(0..3000_usize, 1..8), mode in 0..0o1000_u32) {
        let place = place();
        let time = Time { seconds: 1_600_000_000, nanos: 7 };
        let mut entries =
            vec![Entry { path: b"d".into(), kind: Kind::Directory, mode: 0o500, mtime: Time::default() }];
        let mut content = Vec::new();
        for (index, size) in sizes.iter().enumerate() {
            let kind = Kind::File { size: *size as u64 };
            entries.push(Entry { path: format!("d/{index}").into(), kind, mode, mtime: time });
            content.extend(std::iter::repeat_n(index as u8, *size));
        }
        unpack(&entries, &mut content.as_slice(), &place.root()).unwrap();
        for (index, size) in sizes.iter().enumerate() {
            let path = place.root().join(format!("d/{index}"));
            let metadata = fs::metadata(&path).unwrap();
            prop_assert_eq!(metadata.mode() & 0o7777, mode | 0o400);
            prop_assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (1_600_000_000, 7));
            prop_assert_eq!(fs::read(&path).unwrap(), vec![index as u8; *size]);
        }
        prop_assert_eq!(fs::metadata(place.root().join("d")).unwrap().mode() & 0o7777, 0o500);
    }
}

#[test]
fn a_file_is_not_written_through_a_link_that_was_there_first() {
    let place = place();
    let mut writer = Writer::open(&place.root()).unwrap();
    writer.link(b"link", b"../outside").unwrap();
    assert!(matches!(writer.file(b"link/new"), Err(Error::Conflict { .. })));
    assert!(matches!(writer.directory(b"link/new"), Err(Error::Conflict { .. })));
    assert!(matches!(writer.file(b"link"), Err(Error::Conflict { .. })));
    assert!(matches!(writer.again(b"link"), Err(Error::Conflict { .. })));
    place.assert_outside_is_untouched();
}

#[test]
fn a_file_that_claims_more_than_there_is_takes_no_memory_for_it() {
    let place = place();
    let kind = Kind::File { size: u64::MAX };
    let entry = Entry { path: b"f".into(), kind, mode: 0o644, mtime: Time::default() };
    let refused = unpack(&[entry], &mut [0; 100].as_slice(), &place.root());
    assert!(matches!(refused, Err(Error::Content { .. })));
}

#[test]
fn a_hard_link_shares_the_file_of_another_tree_and_never_leaves_either() {
    let place = place();
    let base = place.home.path().join("outside");
    let mut walk = Walk::open(&base).unwrap();
    let mut writer = Writer::open(&place.root()).unwrap();
    writer.hard_link(&mut walk, b"file", b"d/same").unwrap();
    assert!(writer.hard_link(&mut walk, b"../root/d/same", b"x").is_err());
    assert!(writer.hard_link(&mut walk, b"file", b"../x").is_err());
    let inode = |path: std::path::PathBuf| fs::metadata(path).unwrap().ino();
    assert_eq!(inode(base.join("file")), inode(place.root().join("d/same")));
    place.assert_outside_is_untouched();
}
