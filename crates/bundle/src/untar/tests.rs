//! Archives against a plain tree, and archives made to harm.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::{
    Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest,
};
use tar::{EntryType, Header};
use tempfile::TempDir;

use super::{Error, untar};
use crate::unpack::Error as Unpack;

#[derive(Clone, Debug, PartialEq)]
enum Node {
    File { mode: u32, content: Vec<u8> },
    Directory { mode: u32 },
    Link { target: Vec<u8> },
}

/// What is below a directory, by name.
fn tree(root: &Path) -> BTreeMap<Vec<u8>, Node> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let mode = metadata.permissions().mode() & 0o7777;
            let node = if metadata.is_dir() {
                waiting.push(path.clone());
                Node::Directory { mode }
            } else if metadata.is_symlink() {
                Node::Link { target: fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec() }
            } else {
                Node::File { mode, content: fs::read(&path).unwrap() }
            };
            found.insert(path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec(), node);
        }
    }
    found
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(1_700_000_000);
    header
}

/// An entry with any name, also one the library would refuse to write.
fn raw_entry(archive: &mut Vec<u8>, mut header: Header, name: &[u8], content: &[u8]) {
    if name.len() > 100 {
        let mut long = Header::new_gnu();
        long.set_entry_type(EntryType::GNULongName);
        long.set_size(name.len() as u64 + 1);
        raw_entry(archive, long, b"././@LongLink", &[name, b"\0"].concat());
    }
    let field = &mut header.as_old_mut().name;
    let length = name.len().min(field.len());
    field[..length].copy_from_slice(&name[..length]);
    header.set_cksum();
    archive.write_all(header.as_bytes()).unwrap();
    archive.write_all(content).unwrap();
    archive.resize(archive.len().next_multiple_of(512), 0);
}

fn link(target: &[u8]) -> Header {
    let mut header = header(EntryType::Symlink, 0o777, 0);
    let field = &mut header.as_old_mut().linkname;
    field[..target.len()].copy_from_slice(target);
    header
}

struct Place {
    _home: TempDir,
    root: PathBuf,
    outside: PathBuf,
}

/// A root to unpack into, with something beside it that must stay as it is.
fn place() -> Place {
    let home = tempfile::tempdir().unwrap();
    let (root, outside) = (home.path().join("root"), home.path().join("outside"));
    fs::create_dir(&root).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "untouched").unwrap();
    Place { _home: home, root, outside }
}

impl Place {
    fn assert_outside_is_untouched(&self) {
        assert_eq!(fs::read_to_string(self.outside.join("file")).unwrap(), "untouched");
        assert_eq!(fs::read_dir(&self.outside).unwrap().count(), 1);
        assert_eq!(fs::read_dir(self.root.parent().unwrap()).unwrap().count(), 2);
    }
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    // Few and short, so that names meet; with everything that is odd but allowed.
    prop_oneof![
        4 => prop_oneof![Just(b"a".to_vec()), Just(b"b".to_vec()), Just(b"c".to_vec())],
        1 => prop_oneof![Just(b"\xff\xfe".to_vec()), Just(b"new\nline".to_vec()), Just(b" ".to_vec()), Just(vec![b'x'; 200])],
    ]
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    vec(name(), 1..4).prop_map(|names| names.join(&b'/'))
}

fn node() -> impl Strategy<Value = Node> {
    let mode = prop_oneof![Just(0o644), Just(0o755), Just(0o400), Just(0o600)];
    let directory_mode = prop_oneof![Just(0o755), Just(0o700), Just(0o555)];
    let target =
        prop_oneof![Just(b"a".to_vec()), Just(b"../outside".to_vec()), Just(b"/etc/passwd".to_vec())];
    prop_oneof![
        (mode, vec(any::<u8>(), 0..600)).prop_map(|(mode, content)| Node::File { mode, content }),
        directory_mode.prop_map(|mode| Node::Directory { mode }),
        target.prop_map(|target| Node::Link { target }),
    ]
}

/// A tree in which nothing lies below what is not a directory.
fn whole_tree() -> impl Strategy<Value = BTreeMap<Vec<u8>, Node>> {
    vec((path(), node()), 0..12).prop_map(|entries| {
        let mut tree: BTreeMap<Vec<u8>, Node> = BTreeMap::new();
        for (path, node) in entries {
            let parents: Vec<_> = path
                .iter()
                .enumerate()
                .filter(|(_, byte)| **byte == b'/')
                .map(|(at, _)| path[..at].to_vec())
                .collect();
            let fits = !tree.contains_key(&path)
                && parents
                    .iter()
                    .all(|parent| matches!(tree.get(parent), None | Some(Node::Directory { .. })));
            if fits {
                for parent in parents {
                    tree.entry(parent).or_insert(Node::Directory { mode: 0o755 });
                }
                tree.insert(path, node);
            }
        }
        tree
    })
}

fn pack(tree: &BTreeMap<Vec<u8>, Node>) -> Vec<u8> {
    let mut archive = Vec::new();
    for (path, node) in tree {
        match node {
            Node::File { mode, content } => {
                let header = header(EntryType::Regular, *mode, content.len() as u64);
                raw_entry(&mut archive, header, path, content);
            }
            Node::Directory { mode } => {
                let path = [path, b"/".as_slice()].concat();
                raw_entry(&mut archive, header(EntryType::Directory, *mode, 0), &path, b"");
            }
            Node::Link { target } => raw_entry(&mut archive, link(target), path, b""),
        }
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

/// A name that may try anything.
fn hostile_name() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        4 => name(),
        1 => prop_oneof![Just(b"..".to_vec()), Just(b".".to_vec()), Just(vec![]), Just(b"outside".to_vec())],
    ];
    (any::<bool>(), vec(part, 1..5)).prop_map(|(absolute, parts)| {
        let name = parts.join(&b'/');
        if absolute && name.len() % 3 == 0 { [b"/".as_slice(), &name].concat() } else { name }
    })
}

fn hostile_header() -> impl Strategy<Value = (Header, Vec<u8>)> {
    let kind = prop_oneof![
        6 => Just(EntryType::Regular),
        3 => Just(EntryType::Directory),
        1 => prop_oneof![
            Just(EntryType::Link), Just(EntryType::Char), Just(EntryType::Block), Just(EntryType::Fifo),
            Just(EntryType::GNUSparse), Just(EntryType::XHeader), Just(EntryType::GNULongLink),
        ],
    ];
    let other = (kind, any::<u32>(), vec(any::<u8>(), 0..40))
        .prop_map(|(kind, mode, content)| (header(kind, mode & 0o7777, content.len() as u64), content));
    let targets = [b"..".as_slice(), b"../outside", b"/", b"a", b"../outside/file", b"."];
    let links = proptest::sample::select(targets.to_vec()).prop_map(|target| (link(target), Vec::new()));
    prop_oneof![3 => other, 2 => links]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_tree_survives_packing_and_unpacking(expected in whole_tree()) {
        let place = place();
        untar(pack(&expected).as_slice(), &place.root).unwrap();
        prop_assert_eq!(&tree(&place.root), &expected);
    }

    #[test]
    fn no_archive_writes_outside_or_leaves_more_than_files_directories_and_links(
        entries in vec((hostile_name(), hostile_header()), 1..10),
    ) {
        let place = place();
        let mut archive = Vec::new();
        for (name, (header, content)) in entries {
            raw_entry(&mut archive, header, &name, &content);
        }
        let _ = untar(archive.as_slice(), &place.root);
        place.assert_outside_is_untouched();
        for (path, node) in tree(&place.root) {
            let metadata = fs::symlink_metadata(place.root.join(OsStr::from_bytes(&path))).unwrap();
            prop_assert_eq!(metadata.mode() & 0o7000, 0);
            if let Node::File { content, .. } = node {
                prop_assert!(metadata.is_file() && metadata.nlink() == 1);
                prop_assert!(content.len() <= archive.len());
            }
        }
    }

    #[test]
    fn random_bytes_are_refused_without_a_panic(
        expected in whole_tree(),
        damage in vec((any::<usize>(), any::<u8>()), 1..30),
        cut in any::<usize>(),
    ) {
        let place = place();
        let mut archive = pack(&expected);
        for (at, byte) in damage {
            let at = at % archive.len();
            archive[at] = byte;
        }
        archive.truncate(cut % (archive.len() + 1));
        let _ = untar(archive.as_slice(), &place.root);
        place.assert_outside_is_untouched();
    }
}

fn unpack_one(header: Header, name: &[u8], content: &[u8]) -> (Place, Result<(), Error>) {
    let place = place();
    let mut archive = Vec::new();
    raw_entry(&mut archive, header, name, content);
    let result = untar(archive.as_slice(), &place.root);
    (place, result)
}

#[test]
fn names_that_lead_outside_are_refused_by_name() {
    let deep = vec!["d"; 300].join("/");
    let long = "x".repeat(5000);
    for name in ["/etc/x", "..", "../x", "a/../../x", "a/..", &deep, &long] {
        let (place, result) = unpack_one(header(EntryType::Regular, 0o644, 1), name.as_bytes(), b"x");
        assert!(matches!(result, Err(Error::Unpack(Unpack::BadName { .. }))), "{name}: {result:?}");
        place.assert_outside_is_untouched();
    }
}

#[test]
fn a_file_is_not_written_through_a_link() {
    for name in [b"link/file".as_slice(), b"link"] {
        let place = place();
        let mut archive = Vec::new();
        raw_entry(&mut archive, link(b"../outside"), b"link", b"");
        raw_entry(&mut archive, header(EntryType::Regular, 0o644, 1), name, b"x");
        let result = untar(archive.as_slice(), &place.root);
        assert!(matches!(result, Err(Error::Unpack(Unpack::Conflict { .. }))), "{result:?}");
        place.assert_outside_is_untouched();
    }
}

#[test]
fn devices_pipes_and_hard_links_are_refused() {
    for kind in [EntryType::Char, EntryType::Block, EntryType::Fifo, EntryType::Link, EntryType::GNUSparse] {
        let (_place, result) = unpack_one(header(kind, 0o644, 0), b"thing", b"");
        assert!(matches!(result, Err(Error::BadKind { .. })), "{kind:?}");
    }
}

#[test]
fn a_file_that_claims_more_than_the_archive_holds_is_refused() {
    for size in [600, 1000, 1 << 40, u64::MAX / 2, u64::MAX] {
        let (_place, result) = unpack_one(header(EntryType::Regular, 0o644, size), b"file", b"x");
        assert!(result.is_err(), "{size}");
    }
}

#[test]
fn names_and_times_of_other_archivers_are_understood() {
    let place = place();
    let mut archive = Vec::new();
    let name = "d/naïve\nname";
    let pair = format!(" path={name}\n");
    let attributes = format!("{}{pair}", pair.len() + 2);
    raw_entry(
        &mut archive,
        header(EntryType::XHeader, 0, attributes.len() as u64),
        b"x",
        attributes.as_bytes(),
    );
    raw_entry(&mut archive, header(EntryType::Regular, 0o4755, 1), b"short", b"y");
    untar(archive.as_slice(), &place.root).unwrap();
    let metadata = fs::metadata(place.root.join(name)).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.mtime()), (0o755, 1_700_000_000));
}
