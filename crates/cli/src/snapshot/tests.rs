use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use super::*;

struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }

    fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        File::open(&path)
            .unwrap()
            .set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000))
            .unwrap();
        self
    }

    fn take(&self) -> Snapshot {
        Snapshot::take(self.root(), &[]).unwrap()
    }

    /// The names in the archive.
    fn names(&self) -> Vec<String> {
        self.take().archive.entries().iter().map(|entry| entry.path.display().to_string()).collect()
    }

    /// The archive unpacked somewhere else.
    fn unpacked(&self) -> tempfile::TempDir {
        let target = tempfile::tempdir().unwrap();
        tar::Archive::new(whole(&self.take()).as_slice()).unpack(target.path()).unwrap();
        target
    }
}

fn whole(snapshot: &Snapshot) -> Vec<u8> {
    (0..snapshot.archive.chunk_count()).flat_map(|index| snapshot.archive.chunk(index).unwrap()).collect()
}

fn ids(snapshot: &Snapshot) -> Vec<String> {
    snapshot.chunks.iter().map(|chunk| chunk.id.to_string()).collect()
}

#[test]
fn the_same_tree_gives_the_same_bundle() {
    let make = |order: &[&str]| {
        let scene = Scene::new();
        for path in order {
            scene.file(path, format!("content of {path}"));
        }
        ids(&scene.take())
    };
    assert_eq!(make(&["b.py", "a/x.py", "a.py", "Z"]), make(&["Z", "a.py", "a/x.py", "b.py"]));
    assert_ne!(make(&["a"]), make(&["b"]));
}

#[test]
fn what_is_unpacked_is_what_was_there() {
    let scene = Scene::new();
    let long = format!("{}/{}", "d".repeat(90), "e".repeat(200));
    scene.file("run.sh", "#!/bin/sh\n").file(&long, "long").file("empty", "").file(".hidden", "x");
    scene.file("größe 训练\n\t'\"", "odd");
    fs::set_permissions(scene.root().join("run.sh"), Permissions::from_mode(0o751)).unwrap();
    let bytes = OsStr::from_bytes(b"not-utf8-\xff");
    fs::write(scene.root().join(bytes), "raw").unwrap();
    fs::create_dir_all(scene.root().join("empty-folder/inner")).unwrap();
    symlink("a//b/../run.sh", scene.root().join("link")).unwrap();
    symlink("/nowhere/".repeat(20), scene.root().join("long-link")).unwrap();

    let target = scene.unpacked();
    let at = |path: &str| target.path().join(path);
    assert_eq!(fs::read(at("run.sh")).unwrap(), b"#!/bin/sh\n");
    assert_eq!(fs::metadata(at("run.sh")).unwrap().permissions().mode() & 0o777, 0o751);
    let mtime = fs::metadata(at("run.sh")).unwrap().modified().unwrap();
    assert_eq!(mtime, SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    assert_eq!(fs::read(at(&long)).unwrap(), b"long");
    assert_eq!(fs::read(at("empty")).unwrap(), b"");
    assert_eq!(fs::read(at(".hidden")).unwrap(), b"x");
    assert_eq!(fs::read(at("größe 训练\n\t'\"")).unwrap(), b"odd");
    assert_eq!(fs::read(target.path().join(bytes)).unwrap(), b"raw");
    assert!(at("empty-folder/inner").is_dir());
    assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("a//b/../run.sh"));
    assert_eq!(fs::read_link(at("long-link")).unwrap(), Path::new(&"/nowhere/".repeat(20)));
}

#[test]
fn owners_and_times_of_directories_are_left_out() {
    let scene = Scene::new();
    scene.file("a/b", "x");
    let archive = whole(&scene.take());
    let mut archive = tar::Archive::new(archive.as_slice());
    for entry in archive.entries().unwrap() {
        let entry = entry.unwrap();
        assert_eq!((entry.header().uid().unwrap(), entry.header().gid().unwrap()), (0, 0));
        if entry.header().entry_type().is_dir() {
            assert_eq!(entry.header().mtime().unwrap(), 0);
        }
    }
}

#[test]
fn ignore_files_are_honoured_without_a_repository() {
    let scene = Scene::new();
    scene.file(".gitignore", "*.ckpt\n/data/\n").file(".musterignore", "notes.txt\n!keep.ckpt\n");
    scene
        .file("train.py", "")
        .file("a.ckpt", "")
        .file("keep.ckpt", "")
        .file("data/x", "")
        .file("notes.txt", "");
    scene
        .file("sub/.gitignore", "local\n")
        .file("sub/local", "")
        .file("sub/data/x", "")
        .file(".git/HEAD", "");
    scene.file("sub/.git", "gitdir: elsewhere").file(".ignore", "train.py\n");
    assert_eq!(
        scene.names(),
        [
            ".gitignore",
            ".ignore",
            ".musterignore",
            "keep.ckpt",
            "sub",
            "sub/.gitignore",
            "sub/data",
            "sub/data/x",
            "train.py"
        ]
    );
}

#[test]
fn an_ignore_file_above_counts_only_within_a_repository() {
    let scene = Scene::new();
    scene.file(".gitignore", "*\n").file("project/train.py", "");
    let names = |scene: &Scene| {
        let snapshot = Snapshot::take(&scene.root().join("project"), &[]).unwrap();
        snapshot.archive.entries().len()
    };
    assert_eq!(names(&scene), 1);
    fs::create_dir(scene.root().join(".git")).unwrap();
    assert_eq!(names(&scene), 0);
}

#[test]
fn given_folders_are_left_out() {
    let scene = Scene::new();
    scene.file("a", "").file("home/server.json", "{}");
    let home = scene.root().join("home");
    let snapshot = Snapshot::take(scene.root(), &[&home]).unwrap();
    assert_eq!(snapshot.size(), (1, 0));
}

#[test]
fn sockets_and_pipes_are_left_out_and_named() {
    let scene = Scene::new();
    scene.file("a", "");
    let _socket = std::os::unix::net::UnixListener::bind(scene.root().join("socket")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, scene.root().join("pipe"), fifo, 0o600.into(), 0).unwrap();
    let snapshot = scene.take();
    assert_eq!(snapshot.skipped, [Path::new("pipe"), Path::new("socket")]);
    assert_eq!(snapshot.size().0, 1);
}

#[test]
fn large_trees_are_cut_into_chunks_that_can_be_read_again() {
    let scene = Scene::new();
    let noise: Vec<u8> = (0..9_500_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    scene.file("big", &noise).file("after", "x").file("before", "y");
    let snapshot = scene.take();
    assert!(snapshot.kept.is_none(), "a tree of this size is not kept in memory");
    assert_eq!(snapshot.chunks.len() as u64, snapshot.archive.bytes().div_ceil(1 << 20));
    assert!(snapshot.chunks[..9].iter().all(|chunk| chunk.bytes == 1 << 20));
    for index in 0..snapshot.chunks.len() {
        assert_eq!(digest(&snapshot.content(index).unwrap()), snapshot.chunks[index].id);
    }
    let mut read = BTreeMap::new();
    let archive = whole(&snapshot);
    for entry in tar::Archive::new(archive.as_slice()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        read.insert(entry.path().unwrap().display().to_string(), content);
    }
    assert_eq!(read["big"], noise);
    assert_eq!((read["after"].as_slice(), read["before"].as_slice()), (b"x".as_slice(), b"y".as_slice()));
}

#[test]
fn an_edited_file_is_noticed_and_a_grown_one_is_taken_as_it_was() {
    let scene = Scene::new();
    scene.file("a", vec![b'a'; 10 << 20]);
    let snapshot = scene.take();
    let path = scene.root().join("a");

    let mut longer = vec![b'a'; 10 << 20];
    longer.extend_from_slice(b"more");
    fs::write(&path, &longer).unwrap();
    assert_eq!(digest(&snapshot.content(1).unwrap()), snapshot.chunks[1].id);

    fs::write(&path, vec![b'b'; 10 << 20]).unwrap();
    assert!(matches!(snapshot.content(1), Err(Error::Changed { path }) if path == Path::new("a")));
    fs::write(&path, "short").unwrap();
    assert!(matches!(snapshot.content(1), Err(Error::Changed { .. })));
    fs::remove_file(&path).unwrap();
    assert!(matches!(snapshot.content(1), Err(Error::Changed { .. })));
    symlink("/etc/passwd", &path).unwrap();
    assert!(snapshot.content(1).is_err());
}

#[test]
fn an_empty_directory_is_a_bundle_too() {
    let snapshot = Scene::new().take();
    assert_eq!((snapshot.chunks.len(), snapshot.size()), (1, (0, 0)));
}
