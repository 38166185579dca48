//! The cache: how trees are made of each other, what is kept, and what goes.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use muster_bundle::chunk;
use muster_bundle::listing::{Entry, Kind, Time};
use proptest::collection::vec;
use proptest::prelude::{
    Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest,
};

use super::fetch::Sink;
use super::*;

/// A tree as a listing and a content, by path.
type Plan = BTreeMap<String, (u32, i64, Vec<u8>)>;

fn layout_of(plan: &Plan, cut: usize) -> (Layout, HashMap<[u8; 32], Vec<u8>>) {
    let mut entries = Vec::new();
    let mut content = Vec::new();
    for directory in ["d", "e"] {
        entries.push(Entry {
            path: directory.into(),
            kind: Kind::Directory,
            mode: 0o755,
            mtime: Time::default(),
        });
        for (path, (mode, seconds, bytes)) in plan.iter().filter(|(path, _)| path.starts_with(directory)) {
            let (kind, mtime) =
                (Kind::File { size: bytes.len() as u64 }, Time { seconds: *seconds, nanos: 5 });
            entries.push(Entry { path: path.clone().into(), kind, mode: *mode, mtime });
            content.extend_from_slice(bytes);
        }
    }
    let chunks: HashMap<_, _> =
        content.chunks(cut).map(|bytes| (chunk::digest(&chunk::id(bytes)), bytes.to_vec())).collect();
    let pieces = content
        .chunks(cut)
        .map(|bytes| Piece { digest: chunk::digest(&chunk::id(bytes)), bytes: bytes.len() as u32 });
    (Layout::new(entries, pieces.collect()).unwrap(), chunks)
}

/// Make a tree as the cache does, and give how many bytes had to come from elsewhere.
fn make(plan: &Plan, cut: usize, root: &Path, base: Option<Base<'_>>) -> (Layout, u64) {
    fs::create_dir(root).unwrap();
    let (layout, chunks) = layout_of(plan, cut);
    let mut build = Build::begin(layout, root, base, Some(0)).unwrap();
    let bytes = build.bytes();
    while let Some(wanted) = build.missing().first().cloned() {
        build.take(&chunks[&chunk::digest(&wanted.id)]).unwrap();
    }
    (build.finish().unwrap(), bytes)
}

fn read(plan: &Plan, root: &Path) -> Plan {
    let one = |path: &String| {
        let metadata = fs::metadata(root.join(path)).unwrap();
        (metadata.mode() & 0o7777, metadata.mtime(), fs::read(root.join(path)).unwrap())
    };
    plan.keys().map(|path| (path.clone(), one(path))).collect()
}

fn plan() -> impl Strategy<Value = Plan> {
    let path = (prop_oneof![Just("d"), Just("e")], 0..6_u8).prop_map(|(dir, name)| format!("{dir}/{name}"));
    // Few contents, so that files have the same bytes at other places.
    let bytes = (0..3_u8, 0..30_usize).prop_map(|(seed, length)| {
        (0..length).map(|index| (index as u8).wrapping_mul(seed + 1)).collect::<Vec<u8>>()
    });
    let file = (prop_oneof![Just(0o644), Just(0o755)], 0..2_i64, bytes);
    vec((path, file), 0..10).prop_map(|files| files.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_tree_is_the_same_whatever_it_was_made_from(old in plan(), new in plan(), cut in 1..20_usize) {
        let home = tempfile::tempdir().unwrap();
        let (first, second) = (home.path().join("first"), home.path().join("second"));
        let (layout, _) = make(&old, cut, &first, None);
        let before = read(&old, &first);
        prop_assert_eq!(&before, &old);
        let base = Base { tree: &first, layout: &layout };
        make(&new, cut, &second, Some(base));
        prop_assert_eq!(read(&new, &second), new.clone());
        prop_assert_eq!(read(&old, &first), old.clone());
        // No two files of a tree are one, or a program would take them for hard links.
        let inodes: std::collections::BTreeSet<_> =
            new.keys().map(|path| fs::metadata(second.join(path)).unwrap().ino()).collect();
        prop_assert_eq!(inodes.len(), new.len());
        // The same again needs nothing.
        let again = home.path().join("again");
        let base = Base { tree: &first, layout: &layout };
        let (_, fetched) = make(&old, cut, &again, Some(base));
        prop_assert!(fetched == 0);
    }

    #[test]
    fn a_base_that_lost_files_costs_a_fetch_and_nothing_else(old in plan(), lost in any::<u16>(), cut in 1..20_usize) {
        let home = tempfile::tempdir().unwrap();
        let (first, second) = (home.path().join("first"), home.path().join("second"));
        let (layout, _) = make(&old, cut, &first, None);
        for (index, path) in old.keys().enumerate().filter(|(index, _)| lost >> index & 1 == 1) {
            let _ = index;
            fs::remove_file(first.join(path)).unwrap();
        }
        make(&old, cut, &second, Some(Base { tree: &first, layout: &layout }));
        prop_assert_eq!(read(&old, &second), old);
    }
}

#[test]
fn thousands_of_shared_files_take_no_time_worth_the_name() {
    let home = tempfile::tempdir().unwrap();
    disk::spread_out(home.path());
    let file = |number: usize| (format!("d/{number:05}"), (0o644, 7, number.to_le_bytes().repeat(8)));
    let mut plan: Plan = (0..2_000).map(file).collect();
    let began = Instant::now();
    let (layout, _) = make(&plan, 4000, &home.path().join("first"), None);
    let from_scratch = began.elapsed();
    if let Some(changed) = plan.get_mut("d/01000") {
        changed.2[0] ^= 1;
    }
    let began = Instant::now();
    let base = Base { tree: &home.path().join("first"), layout: &layout };
    let (_, fetched) = make(&plan, 4000, &home.path().join("second"), Some(base));
    println!("2,000 files: {from_scratch:?} from scratch, {:?} with one changed", began.elapsed());
    assert!(fetched <= 4064, "{fetched}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_copy_can_be_given_up_and_writing_to_one_changes_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    let (tree, copy) = (home.path().join("tree"), home.path().join("copy"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "x").unwrap();
    fs::set_permissions(tree.join("file"), fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(copy_tree(&tree, &copy, || true), Err(copy::Error::Cancelled)));
    fs::remove_dir_all(&copy).unwrap();
    copy_tree(&tree, &copy, || false).unwrap();
    fs::write(copy.join("file"), "changed").unwrap();
    assert_eq!(fs::read_to_string(tree.join("file")).unwrap(), "x");
    assert_eq!(fs::metadata(copy.join("file")).unwrap().mode() & 0o7777, 0o640);
}

#[test]
fn an_opened_cache_has_nothing_unfinished() {
    let home = tempfile::tempdir().unwrap();
    let bundle = format!("bundle_{}", "0".repeat(64));
    for name in [bundle.clone(), format!("{bundle}.3.new"), format!("{bundle}.4.old")] {
        fs::create_dir_all(home.path().join(name).join("tree")).unwrap();
    }
    Cache::open(home.path().to_owned(), "boot").unwrap();
    let left: Vec<_> = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [OsStr::new(&bundle)]);
}

#[test]
fn a_full_cache_loses_what_was_not_used_for_longest_and_nothing_in_use() {
    let home = tempfile::tempdir().unwrap();
    let cache = Cache::open(home.path().to_owned(), "boot").unwrap();
    let id =
        |number: usize| Key { id: BundleId::from_digest(&format!("{number:064x}")).unwrap(), owner: None };
    let empty = Layout::new(Vec::new(), Vec::new()).unwrap();
    for number in 0..MAX_TREES + 4 {
        let dir = home.path().join(id(number).to_string());
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(STAMP), "1000").unwrap();
        let boot = if number == 40 { "another" } else { "boot" };
        index::write(&dir, boot, &empty).unwrap();
        let used = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(number as u64));
        File::open(dir.join(STAMP)).unwrap().set_times(used).unwrap();
    }
    let task: TaskId = "task0.job_0123456789.1".parse().unwrap();
    let pin = cache.pin(&id(1));
    Tree { entry: cache.entry(&id(2)), _pin: cache.pin(&id(2)) }.keep_for(&task).unwrap();
    assert_eq!(cache.evict(u64::MAX).unwrap(), 3 * 1000);
    let exists = |number: usize| home.path().join(id(number).to_string()).exists();
    assert_eq!((0..6).map(exists).collect::<Vec<_>>(), [false, true, true, false, true, true]);
    assert!(!exists(40), "one of another boot is of no use");
    drop(pin);
    // The task's directory is gone, and nobody said so.
    cache.release_lost(home.path()).unwrap();
    cache.evict(10_000).unwrap();
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 10);
    assert!(exists(MAX_TREES + 3));
    // One that is larger than all may be goes, and takes no other with it.
    fs::write(home.path().join(id(MAX_TREES + 3).to_string()).join(STAMP), u64::MAX.to_string()).unwrap();
    cache.evict(10_000).unwrap();
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 9);
}

#[test]
fn a_manifest_that_names_one_chunk_thousands_of_times_is_refused_by_its_size() {
    let piece = muster_model::bundle::Chunk { id: chunk::id(&[7; 1 << 20]), bytes: 1 << 20 };
    let manifest = Manifest { listing: Vec::new(), content: vec![piece; 8192] };
    let limit = |bundle_bytes| DiskLimits { bundle_bytes, ..DiskLimits::default() };
    assert!(check_size(&manifest, &limit(8 << 30)).is_ok());
    let refused = check_size(&manifest, &limit(1 << 30)).unwrap_err().to_string();
    assert_eq!(refused, "the bundle unpacks to 8 GB, more than the 1 GB that limits.bundle allows");
    let beyond = Manifest {
        content: vec![muster_model::bundle::Chunk { id: chunk::id(b"x"), bytes: u64::MAX }; 2],
        ..Manifest::default()
    };
    assert!(check_size(&beyond, &limit(u64::MAX - 1)).is_err(), "the sum does not overflow");
}

#[test]
fn unpacking_stops_at_the_floor_of_free_space() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("tree");
    fs::create_dir(&root).unwrap();
    let plan = Plan::from([("d/large".into(), (0o644, 1, vec![7; 17 << 20]))]);
    let (layout, chunks) = layout_of(&plan, 1 << 20);
    let mut build = Build::begin(layout, &root, None, Some(u64::MAX)).unwrap();
    let error = loop {
        let wanted = build.missing().first().cloned().expect("it stops before all is written");
        if let Err(error) = build.take(&chunks[&chunk::digest(&wanted.id)]) {
            break error;
        }
    };
    assert!(error.is_full(), "{error}");
}
