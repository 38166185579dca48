//! Chunks come, are there, are refreshed, damaged, swept.

use bytes::Bytes;
use muster_bundle::chunk::Encoder;

use super::pack::Error;
use super::sweep::{Marks, Swept};
use super::*;

const HOUR: Duration = Duration::from_secs(3600);

struct Fixture {
    store: ChunkStore,
    _dir: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { store: ChunkStore::open(dir.path().join("chunks"), 2 * HOUR).unwrap(), _dir: dir }
    }

    fn put(&self, content: &[u8]) -> ChunkId {
        let id = chunk::id(content);
        let mut writer = self.store.writer();
        writer.push(&self.store, id.clone(), &[Encoder::default().encode(content).into()], false).unwrap();
        writer.finish(&self.store).unwrap();
        id
    }

    fn has(&self, id: &ChunkId) -> bool {
        self.store.missing(std::iter::once(id.clone())).unwrap().is_empty()
    }

    fn age(&self, id: &ChunkId, by: Duration) {
        let file = File::options().write(true).open(self.store.path(id)).unwrap();
        file.set_modified(SystemTime::now() - by).unwrap();
    }

    fn modified(&self, id: &ChunkId) -> Duration {
        fs::metadata(self.store.path(id)).unwrap().modified().unwrap().elapsed().unwrap_or_default()
    }

    fn incoming(&self) -> usize {
        fs::read_dir(self.store.root.join(INCOMING)).unwrap().count()
    }

    fn sweep(&self, marked: &[&ChunkId], dry_run: bool) -> Swept {
        let mut marks = Marks::default();
        marked.iter().for_each(|id| marks.add(id.as_str()));
        self.store.sweep(&marks.finish(), SystemTime::now(), dry_run).unwrap()
    }
}

#[test]
fn a_chunk_is_kept_under_its_own_digest_only() {
    let fixture = Fixture::new();
    let store = &fixture.store;
    let (right, stored) = (chunk::id(b"hello"), Bytes::from(Encoder::default().encode(b"hello")));
    let mut writer = store.writer();
    let wrong = writer.push(store, chunk::id(b"other"), std::slice::from_ref(&stored), false);
    assert!(matches!(wrong, Err(Error::Chunk(chunk::Error::Mismatch))), "{wrong:?}");
    assert!(!fixture.has(&right));
    writer.push(store, right.clone(), std::slice::from_ref(&stored), false).unwrap();
    assert!(!fixture.has(&right), "what is not on disk has no name");
    writer.finish(store).unwrap();
    assert_eq!(
        store.missing([right.clone(), right.clone(), chunk::id(b"other")].into_iter()).unwrap(),
        [chunk::id(b"other")]
    );
    assert_eq!(store.read(&right).unwrap(), Some(stored.to_vec()));
    store.settle().unwrap();
    assert_eq!(fixture.incoming(), 0);
}

#[test]
fn a_chunk_that_is_hidden_from_its_sender_is_written_though_it_is_here() {
    let fixture = Fixture::new();
    let id = fixture.put(b"known");
    for (is_hidden, written) in [(false, 0), (true, 1)] {
        let mut writer = fixture.store.writer();
        let stored = Bytes::from(Encoder::default().encode(b"known"));
        writer.push(&fixture.store, id.clone(), &[stored], is_hidden).unwrap();
        assert_eq!(fixture.incoming(), written, "hidden: {is_hidden}");
        writer.finish(&fixture.store).unwrap();
    }
    assert!(fixture.has(&id) && fixture.incoming() == 0);
    let all = [chunk::digest(&id), chunk::digest(&chunk::id(b"other"))];
    let missing = fixture.store.missing_for(all.into_iter(), |_| false).unwrap();
    assert_eq!(missing, [id, chunk::id(b"other")], "nothing is there for somebody who has shown nothing");
}

#[test]
fn what_was_not_finished_leaves_nothing() {
    let fixture = Fixture::new();
    let mut writer = fixture.store.writer();
    writer.push(&fixture.store, chunk::id(b"a"), &[Encoder::default().encode(b"a").into()], false).unwrap();
    assert_eq!(fixture.incoming(), 1);
    drop(writer);
    assert_eq!(fixture.incoming(), 0);
    assert!(!fixture.has(&chunk::id(b"a")));
}

#[test]
fn a_damaged_chunk_goes_and_can_be_sent_again() {
    let fixture = Fixture::new();
    let zeros = vec![0; 5000];
    let id = fixture.put(&zeros);
    let path = fixture.store.path(&id);
    let stored = fs::read(&path).unwrap();
    for damaged in [&b""[..], &stored[..stored.len() - 1], b"\x07what"] {
        fs::write(&path, damaged).unwrap();
        assert_eq!(fixture.store.read(&id).unwrap(), None, "{damaged:?}");
        assert!(!fixture.has(&id));
        assert_eq!(fixture.put(&zeros), id);
        assert!(fixture.has(&id));
    }
    // Of this, only a close look says that it is wrong.
    fs::write(&path, Encoder::default().encode(b"another")).unwrap();
    fixture.store.inspect(&id).unwrap();
    assert!(!fixture.has(&id));
    fixture.put(&zeros);
    fixture.store.inspect(&id).unwrap();
    assert!(fixture.has(&id), "a good one stays, whatever is said about it");
}

#[test]
fn an_empty_file_counts_as_missing() {
    let fixture = Fixture::new();
    let id = fixture.put(b"a");
    fs::write(fixture.store.path(&id), b"").unwrap();
    assert!(!fixture.has(&id));
    fixture.put(b"a");
    assert!(fixture.has(&id));
}

#[test]
fn the_sweep_takes_what_is_neither_marked_nor_young() {
    let fixture = Fixture::new();
    let [old, young, marked] = [&b"old"[..], b"young", b"marked"].map(|content| fixture.put(content));
    fixture.age(&old, 3 * HOUR);
    fixture.age(&marked, 3 * HOUR);
    let would = fixture.sweep(&[&marked], true);
    assert!(fixture.store.path(&old).exists());
    assert_eq!(fixture.sweep(&[&marked], false), would);
    assert_eq!(would, Swept { chunks: 1, bytes: 4 });
    assert!(!fixture.has(&old));
    assert!(fixture.has(&young) && fixture.has(&marked));
    assert_eq!(fixture.sweep(&[&marked], false), Swept::default());
}

#[test]
fn a_chunk_that_was_reported_present_is_not_swept_for_half_a_grace() {
    let fixture = Fixture::new();
    let id = fixture.put(b"a");
    fixture.age(&id, HOUR / 2);
    assert!(fixture.has(&id));
    assert!(fixture.modified(&id) > HOUR / 4, "while it is young enough, nothing is written");
    fixture.age(&id, 3 * HOUR);
    assert!(fixture.has(&id));
    assert!(fixture.modified(&id) < HOUR / 4);
    assert_eq!(fixture.sweep(&[], false), Swept::default());
}

#[test]
fn marks_take_manifests_and_many_of_them() {
    let fixture = Fixture::new();
    let ids: Vec<ChunkId> = (0..40_u32).map(|i| fixture.put(&i.to_le_bytes())).collect();
    ids.iter().for_each(|id| fixture.age(id, 3 * HOUR));
    let chunk = |id: &ChunkId| muster_model::bundle::Chunk { id: id.clone(), bytes: 4 };
    let manifest = muster_model::bundle::Manifest {
        listing: vec![chunk(&ids[0])],
        content: ids[1..30].iter().map(chunk).collect(),
    };
    let mut marks = Marks::default();
    (0..10_000).for_each(|_| marks.add_manifest(&manifest.text()));
    let swept = fixture.store.sweep(&marks.finish(), SystemTime::now(), false).unwrap();
    assert_eq!(swept.chunks, 10);
    assert_eq!(fixture.store.missing(ids.iter().cloned()).unwrap(), ids[30..]);
}

#[test]
fn a_restart_removes_what_was_half_sent() {
    let fixture = Fixture::new();
    let kept = fixture.put(b"kept");
    fs::write(fixture.store.root.join(INCOMING).join("half"), b"x").unwrap();
    // As they once were.
    fs::create_dir(fixture.store.root.join("ab")).unwrap();
    fs::write(fixture.store.root.join("ab/abcdef"), b"x").unwrap();
    let store = ChunkStore::open(fixture.store.root.clone(), HOUR).unwrap();
    assert_eq!(fs::read_dir(store.root.join(INCOMING)).unwrap().count(), 0);
    assert!(!store.root.join("ab").exists());
    assert!(store.missing(std::iter::once(kept.clone())).unwrap().is_empty());
}
