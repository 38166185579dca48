use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use muster_bundle::listing::{self, Entry, Kind};

use super::*;

/// A code directory, and a place for its index.
struct Scene {
    folder: tempfile::TempDir,
}

/// What was taken, with every chunk that was to be sent.
struct Outcome {
    taken: Taken,
    sent: HashMap<String, Vec<u8>>,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("code")).unwrap();
        Self { folder }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("code")
    }

    fn shelf(&self) -> Shelf {
        Shelf::at(&self.folder.path().join("shelf"))
    }

    fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        File::open(&path).unwrap().set_modified(at).unwrap();
        self
    }

    fn try_take(&self, leave_out: &[PathBuf], trust: Trust) -> Result<Outcome, Error> {
        let order = Order::new(&self.root(), leave_out.to_vec(), Some(self.shelf()), trust);
        let (sender, mut messages) = mpsc::channel(1);
        let reader = std::thread::spawn(move || take::take(&order, &sender));
        let mut chunks = Vec::new();
        while let Some(message) = messages.blocking_recv() {
            if let take::Message::Batch(batch) = message {
                chunks.extend(batch.chunks);
            }
        }
        let mut taken = reader.join().unwrap()?;
        chunks.append(&mut taken.rest.chunks);
        let sent = chunks.into_iter().map(|(id, content)| (id.to_string(), content.to_vec())).collect();
        Ok(Outcome { taken, sent })
    }

    fn take(&self) -> Outcome {
        self.try_take(&[], Trust::Memory).unwrap()
    }

    /// As after a command that could send everything.
    fn remember(&self, result: Outcome) {
        let server = Server { endpoint: "unix:/x".into(), diff: None };
        if let Some(index) = remembered(result.taken, server) {
            self.shelf().save(&self.root(), &index).unwrap();
        }
    }

    /// The same, as if it had happened long after the files were written.
    fn remember_as_old(&self, mut result: Outcome) {
        result.taken.files.iter_mut().for_each(|file| file.is_settled = true);
        self.remember(result);
    }

    fn names(&self) -> Vec<String> {
        let entries = self.take().listing();
        entries.iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned()).collect()
    }
}

impl Outcome {
    fn bundle(&self) -> BundleId {
        chunk::bundle_id(&self.taken.manifest)
    }

    fn stream(&self, chunks: &[muster_api::model::bundle::Chunk]) -> Vec<u8> {
        chunks.iter().flat_map(|chunk| self.sent[chunk.id.as_str()].clone()).collect()
    }

    fn listing(&self) -> Vec<Entry> {
        listing::decode(&self.stream(&self.taken.manifest.listing)).unwrap()
    }

    /// The content of each file, put together from what was sent.
    fn files(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let content = self.stream(&self.taken.manifest.content);
        let mut rest = &content[..];
        let mut files = BTreeMap::new();
        for entry in self.listing() {
            if let Kind::File { size } = entry.kind {
                let (own, behind) = rest.split_at(size as usize);
                files.insert(entry.path, own.to_vec());
                rest = behind;
            }
        }
        assert!(rest.is_empty());
        files
    }
}

/// Bytes without a pattern, so that no two chunks are the same.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

#[test]
fn the_same_tree_gives_the_same_bundle() {
    let make = |order: &[&str]| {
        let scene = Scene::new();
        for path in order {
            scene.file(path, format!("content of {path}"));
        }
        scene.take().bundle()
    };
    assert_eq!(make(&["b.py", "a/x.py", "a.py", "Z"]), make(&["Z", "a.py", "a/x.py", "b.py"]));
    assert_ne!(make(&["a"]), make(&["b"]));
}

#[test]
fn everything_of_a_tree_is_in_its_bundle() {
    let scene = Scene::new();
    let long = format!("{}/{}", "d".repeat(90), "e".repeat(200));
    scene.file("run.sh", "#!/bin/sh\n").file(&long, "long").file("empty", "").file(".hidden", "x");
    scene.file("größe 训练\n\t'\"", "odd").file("big", noise(9_500_000));
    fs::set_permissions(scene.root().join("run.sh"), Permissions::from_mode(0o751)).unwrap();
    let bytes = OsStr::from_bytes(b"not-utf8-\xff");
    fs::write(scene.root().join(bytes), "raw").unwrap();
    fs::create_dir_all(scene.root().join("empty-folder/inner")).unwrap();
    symlink("a//b/../run.sh", scene.root().join("link")).unwrap();
    symlink(".", scene.root().join("loop")).unwrap();
    symlink("/nowhere/".repeat(20), scene.root().join("long-link")).unwrap();

    let result = scene.take();
    let files = result.files();
    assert_eq!(files[long.as_bytes()], b"long");
    assert_eq!(files["größe 训练\n\t'\"".as_bytes()], b"odd");
    assert_eq!(files[&b"not-utf8-\xff"[..]], b"raw");
    assert_eq!(files[&b"empty"[..]], b"");
    assert!(files[&b"big"[..]] == noise(9_500_000));
    let listing = result.listing();
    let entry = |path: &str| listing.iter().find(|entry| entry.path == path.as_bytes()).unwrap();
    assert_eq!((entry("run.sh").mode, entry("run.sh").mtime.seconds), (0o751, 1_700_000_000));
    assert_eq!(entry("empty-folder/inner").kind, Kind::Directory);
    assert_eq!(entry("link").kind, Kind::Link { target: b"a//b/../run.sh".to_vec() });
    assert_eq!(entry("loop").kind, Kind::Link { target: b".".to_vec() });
    assert_eq!(entry("long-link").kind, Kind::Link { target: "/nowhere/".repeat(20).into() });
}

#[test]
fn an_unchanged_tree_is_not_read_and_nothing_of_it_is_sent() {
    let scene = Scene::new();
    scene.file("big", noise(10_000_000)).file("a/small", "x").file("empty", "");
    let first = scene.take();
    let (bundle, read) = (first.bundle(), first.taken.bytes_read);
    assert_eq!(read, 10_000_001);
    assert!(first.taken.is_under_way);
    scene.remember_as_old(first);

    let second = scene.take();
    assert_eq!((second.bundle(), second.taken.bytes_read, second.sent.len()), (bundle.clone(), 0, 0));
    assert!(!second.taken.is_under_way);
    let server = Server { endpoint: "unix:/x".into(), diff: None };
    assert_eq!(remembered(second.taken, server), None, "there is nothing new to remember");

    scene.file("a/small", "y");
    let third = scene.take();
    assert_ne!(third.bundle(), bundle);
    assert!(third.taken.bytes_read < 2_500_000, "{}", third.taken.bytes_read);
    assert!(third.sent.len() <= 4, "{}", third.sent.len());
    let whole = scene.try_take(&[], Trust::Nothing).unwrap();
    assert_eq!(whole.bundle(), third.bundle());
    assert_eq!(whole.taken.bytes_read, 10_000_001);
}

#[test]
fn what_was_just_written_is_not_trusted() {
    let scene = Scene::new();
    scene.file("a", "one");
    let first = scene.take();
    let bundle = first.bundle();
    scene.remember(first);
    let second = scene.take();
    assert_eq!((second.bundle(), second.taken.bytes_read, second.sent.len()), (bundle, 3, 0));
}

#[test]
fn an_index_of_another_kind_is_no_harm() {
    let scene = Scene::new();
    scene.file("a", "one");
    let first = scene.take();
    let bundle = first.bundle();
    scene.remember(first);
    let index = fs::read_dir(scene.shelf().folder()).unwrap().next().unwrap().unwrap().path();
    fs::write(index, "something else").unwrap();
    let again = scene.take();
    assert_eq!((again.bundle(), again.sent.len()), (bundle, 2));
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
    scene.file("train.py", "");
    fs::write(scene.folder.path().join(".gitignore"), "*\n").unwrap();
    assert_eq!(scene.names(), ["train.py"]);
    fs::create_dir(scene.folder.path().join(".git")).unwrap();
    assert!(scene.names().is_empty());
}

#[test]
fn given_folders_are_left_out() {
    let scene = Scene::new();
    scene.file("a", "").file("home/server.json", "{}");
    let home = scene.root().join("home");
    let result = scene.try_take(&[home], Trust::Memory).unwrap();
    assert_eq!(result.listing().len(), 1);
}

#[test]
fn sockets_and_pipes_are_left_out_and_named() {
    let scene = Scene::new();
    scene.file("a", "");
    let _socket = std::os::unix::net::UnixListener::bind(scene.root().join("socket")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, scene.root().join("pipe"), fifo, 0o600.into(), 0).unwrap();
    let result = scene.take();
    assert_eq!(result.taken.skipped, [Path::new("pipe"), Path::new("socket")]);
    assert_eq!(result.listing().len(), 1);
}

#[test]
fn many_threads_find_what_one_finds() {
    let scene = Scene::new();
    for folder in 0..20 {
        for file in 0..20 {
            scene.file(&format!("d{folder}/x-{file}/f"), "x");
        }
    }
    scene.file(".gitignore", "d7/\nx-3\n").file("d1-", "").file("d1.x", "").file("d10/\u{1}", "");
    let [one, many] = [0, usize::MAX].map(|expected| walk::walk(&scene.root(), &[], expected).unwrap().found);
    assert_eq!(one.len(), 4 + 19 * (1 + 2 * 19));
    assert_eq!(one, many);
    assert!(one.is_sorted_by(|a, b| listing::compare(&a.entry.path, &b.entry.path).is_lt()));
}

#[test]
fn folders_without_end_are_refused() {
    let scene = Scene::new();
    fs::create_dir_all(scene.root().join("d/".repeat(listing::MAX_DEPTH + 1))).unwrap();
    assert!(matches!(scene.try_take(&[], Trust::Memory), Err(Error::Deep { .. })));
}

#[test]
fn an_empty_directory_is_a_bundle_too() {
    let result = Scene::new().take();
    assert_eq!((result.sent.len(), result.taken.manifest.chunks().count()), (0, 0));
}
