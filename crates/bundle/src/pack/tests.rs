use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

use muster_model::ChunkId;
use proptest::prelude::*;

use super::*;

/// Long enough ago that every stamp can be trusted.
const AGES_AGO: i64 = 1_000_000_000;

/// A tree in memory. Each write gives a file a new time, as a file system would.
#[derive(Default, Clone)]
struct Memory {
    files: BTreeMap<Vec<u8>, (Vec<u8>, Stamp)>,
    clock: i64,
}

impl Memory {
    fn write(&mut self, path: &str, content: Vec<u8>) {
        self.clock += 1;
        let time = Time { seconds: AGES_AGO + self.clock, nanos: 0 };
        let stamp = Stamp {
            size: content.len() as u64,
            mtime: time,
            ctime: time,
            inode: self.clock as u64,
            device: 1,
            mode: 0o644,
        };
        self.files.insert(path.into(), (content, stamp));
    }

    fn found(&self) -> Vec<Found> {
        let mut found: Vec<Found> = self
            .files
            .iter()
            .map(|(path, (_, stamp))| Found {
                entry: Entry {
                    path: path.clone(),
                    kind: Kind::File { size: stamp.size },
                    mode: stamp.mode,
                    mtime: stamp.mtime,
                },
                stamp: *stamp,
                is_settled: false,
            })
            .collect();
        found.sort_by(|a, b| listing::compare(&a.entry.path, &b.entry.path));
        found
    }

    fn content(&self) -> Vec<u8> {
        self.found().iter().flat_map(|found| self.files[&found.entry.path].0.clone()).collect()
    }
}

impl Source for &Memory {
    type File = Vec<u8>;

    fn open(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        Ok(path.to_vec())
    }

    fn stamp(&self, file: &Vec<u8>) -> io::Result<Option<Stamp>> {
        Ok(Some(self.files[file].1))
    }

    fn read_at(&self, file: &Vec<u8>, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = &self.files[file].0[offset as usize..];
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
}

/// Bytes that cut as any others do.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Packs it all, and makes sure that the chunks give the content.
fn pack(tree: &Memory, known: Option<&Index>) -> (Tree, u64, HashMap<ChunkId, Bytes>) {
    let known =
        known.map_or_else(Known::default, |index| Known { files: &index.files, content: &index.content });
    let mut packer = Packer::new(tree, tree.found(), known);
    let mut chunks = HashMap::new();
    while let Some(packed) = packer.next().unwrap() {
        if let Some(content) = packed.content {
            chunks.insert(packed.chunk.id, content);
        }
    }
    let read = packer.bytes_read();
    (packer.finish().unwrap(), read, chunks)
}

struct Index {
    files: Vec<KnownFile>,
    content: Vec<Chunk>,
}

fn known(tree: &Tree) -> Index {
    let files = tree.found.iter().filter(|found| found.entry.size() > 0).map(|found| KnownFile {
        path: found.entry.path.clone(),
        stamp: found.stamp,
        is_settled: found.is_settled,
    });
    Index { files: files.collect(), content: tree.manifest.content.clone() }
}

#[derive(Debug, Clone)]
enum Edit {
    Write(usize, usize, u64),
    /// In place: the length stays.
    Patch(usize, usize),
    Append(usize, usize),
    Remove(usize),
    Rename(usize, usize),
    Touch(usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    // Lengths around those at which the cutter decides differently, and odd ones.
    let length = prop_oneof![
        Just(0),
        Just(1),
        Just(2),
        1..5000_usize,
        60_000..70_000_usize,
        200_000..300_000_usize,
        Just(cut::MAX),
        900_000..2_500_000_usize,
    ];
    prop_oneof![
        3 => (0..30_usize, length.clone(), any::<u64>()).prop_map(|(file, length, seed)| Edit::Write(file, length, seed)),
        3 => (0..30_usize, any::<usize>()).prop_map(|(file, at)| Edit::Patch(file, at)),
        2 => (0..30_usize, length).prop_map(|(file, length)| Edit::Append(file, length)),
        2 => (0..30_usize).prop_map(Edit::Remove),
        1 => (0..30_usize, 0..30_usize).prop_map(|(from, to)| Edit::Rename(from, to)),
        1 => (0..30_usize).prop_map(Edit::Touch),
    ]
}

fn name(file: usize) -> String {
    // Slashes and what sorts around them.
    format!("{}{}", ["d/", "d-", "d.", ""][file % 4], file)
}

fn apply(tree: &mut Memory, edit: &Edit) {
    let content = |tree: &Memory, file: usize| {
        tree.files.get(name(file).as_bytes()).map(|(content, _)| content.clone())
    };
    match *edit {
        Edit::Write(file, length, seed) => tree.write(&name(file), noise(length, seed)),
        Edit::Patch(file, at) => {
            if let Some(mut content) = content(tree, file).filter(|content| !content.is_empty()) {
                let at = at % content.len();
                content[at] ^= 0x5a;
                tree.write(&name(file), content);
            }
        }
        Edit::Append(file, length) => {
            if let Some(mut content) = content(tree, file) {
                content.extend(noise(length, 7));
                tree.write(&name(file), content);
            }
        }
        Edit::Remove(file) => drop(tree.files.remove(name(file).as_bytes())),
        Edit::Rename(from, to) => {
            if let Some(content) = content(tree, from) {
                tree.files.remove(name(from).as_bytes());
                tree.write(&name(to), content);
            }
        }
        Edit::Touch(file) => {
            if let Some(content) = content(tree, file) {
                tree.write(&name(file), content);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn the_same_tree_gives_the_same_bundle_whatever_is_known_of_it(
        first in prop::collection::vec(edit(), 1..20),
        generations in prop::collection::vec(prop::collection::vec(edit(), 0..4), 1..5),
    ) {
        let mut tree = Memory::default();
        first.iter().for_each(|edit| apply(&mut tree, edit));
        let (packed, _, mut chunks) = pack(&tree, None);
        let mut index = known(&packed);
        for edits in generations {
            edits.iter().for_each(|edit| apply(&mut tree, edit));
            let (with, _, new) = pack(&tree, Some(&index));
            let (without, _, _) = pack(&tree, None);
            prop_assert_eq!(&with, &without);
            chunks.extend(new);
            // Whoever keeps all chunks has every byte.
            let whole: Vec<u8> = with.manifest.content.iter().flat_map(|chunk| chunks[&chunk.id].clone()).collect();
            prop_assert!(whole == tree.content());
            let (again, read, _) = pack(&tree, Some(&known(&with)));
            prop_assert_eq!(again.manifest, with.manifest.clone());
            prop_assert_eq!(read, 0);
            index = known(&with);
        }
    }
}

#[test]
fn a_small_change_in_a_large_tree_reads_little() {
    let mut tree = Memory::default();
    for file in 0..600 {
        tree.write(&format!("f{file:04}"), noise(50_000, file));
    }
    let (packed, read, _) = pack(&tree, None);
    assert_eq!(read, 30_000_000);
    let index = known(&packed);
    tree.write("f0300", noise(50_001, 9));
    tree.write("f0500x", noise(10, 9));
    tree.files.remove(&b"f0100"[..]);
    let (with, read, new) = pack(&tree, Some(&index));
    assert_eq!(with, pack(&tree, None).0);
    assert!(read < 12 * cut::MAX as u64, "{read}");
    assert!(new.len() < 20, "{}", new.len());
}

#[test]
fn a_file_that_was_young_when_it_was_read_is_read_again() {
    let mut tree = Memory::default();
    tree.write("a", noise(1000, 1));
    tree.clock = now() as i64 / 1_000_000_000 - AGES_AGO - 2;
    tree.write("b", noise(1000, 2));
    let (packed, _, _) = pack(&tree, None);
    let settled: Vec<bool> = packed.found.iter().map(|found| found.is_settled).collect();
    assert_eq!(settled, [true, false]);
    // Other bytes under the same stamp.
    tree.files.get_mut(&b"b"[..]).unwrap().0 = noise(1000, 3);
    assert_eq!(pack(&tree, Some(&known(&packed))).0.manifest, pack(&tree, None).0.manifest);
}

#[test]
fn a_known_tree_that_makes_no_sense_is_not_used() {
    let mut tree = Memory::default();
    tree.write("a", noise(200_000, 1));
    let (packed, _, _) = pack(&tree, None);
    let mut index = known(&packed);
    index.content.pop();
    assert_eq!(pack(&tree, Some(&index)).0, packed);
}

/// A tree in which someone writes whenever a file is read.
struct Restless {
    tree: RefCell<Memory>,
    writes: Cell<u32>,
    grows: bool,
}

impl Source for &Restless {
    type File = Vec<u8>;

    fn open(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        Ok(path.to_vec())
    }

    fn stamp(&self, file: &Vec<u8>) -> io::Result<Option<Stamp>> {
        Ok(self.tree.borrow().files.get(file).map(|(_, stamp)| *stamp))
    }

    fn read_at(&self, file: &Vec<u8>, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let read = (&&*self.tree.borrow()).read_at(file, into, offset)?;
        if self.writes.get() > 0 && file == b"restless" {
            self.writes.set(self.writes.get() - 1);
            let mut tree = self.tree.borrow_mut();
            let (content, stamp) = tree.files[file].clone();
            let longer = content.len() + usize::from(self.grows);
            tree.write("restless", noise(longer, u64::from(self.writes.get())));
            // The same file, written again.
            tree.files.get_mut(file).unwrap().1.inode = stamp.inode;
        }
        Ok(read)
    }
}

fn pack_restless(writes: u32, size: usize, grows: bool) -> (Result<Tree, Error>, Memory) {
    let mut tree = Memory::default();
    tree.write("before", noise(300_000, 1));
    tree.write("restless", noise(size, 2));
    tree.write("then", noise(300_000, 3));
    let found = tree.found();
    let source = Restless { tree: RefCell::new(tree), writes: Cell::new(writes), grows };
    let mut packer = Packer::new(&source, found, Known::default());
    let result = loop {
        match packer.next() {
            Ok(Some(_)) => {}
            Ok(None) => break packer.finish(),
            Err(error) => break Err(error),
        }
    };
    (result, source.tree.into_inner())
}

#[test]
fn a_file_that_changes_while_it_is_read_is_read_again_and_then_named() {
    for size in [1000, 9 << 20] {
        let (packed, tree) = pack_restless(2, size, false);
        assert_eq!(packed.unwrap().manifest, pack(&tree, None).0.manifest, "{size}");
        let (refused, _) = pack_restless(1000, size, false);
        assert!(matches!(refused, Err(Error::Changed { path }) if path == b"restless"), "{size}");
    }
}

#[test]
fn a_file_that_only_grows_is_taken_as_it_was() {
    let (packed, _) = pack_restless(1000, 1000, true);
    let packed = packed.unwrap();
    let size = packed.found[1].entry.size();
    assert_eq!(packed.manifest.bytes(), 600_000 + size);
    assert!(size > 1000);
}

#[test]
fn a_folder_is_read_without_following_links_or_waiting_for_pipes() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("d")).unwrap();
    std::fs::write(folder.path().join("d/file"), "content").unwrap();
    std::os::unix::fs::symlink("d", folder.path().join("link")).unwrap();
    std::os::unix::fs::symlink("d/file", folder.path().join("other")).unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let source = Folder::open(folder.path()).unwrap();
    let file = source.open(b"d/file").unwrap();
    let metadata = std::fs::symlink_metadata(folder.path().join("d/file")).unwrap();
    assert_eq!(source.stamp(&file).unwrap(), Some(Stamp::of(&metadata)));
    assert!(source.open(b"link/file").is_err());
    assert!(source.open(b"other").is_err());
    let pipe = source.open(b"pipe").unwrap();
    assert_eq!(source.stamp(&pipe).unwrap(), None);
}
