//! The files of tasks: bundles fetched, unpacked, shared and copied.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use muster_bundle::chunk;
use muster_bundle::listing::{self, Entry};
use muster_link::message::ToAgent;
use muster_model::{BundleId, ChunkId, Reason};

use crate::node::{Node, directory, eventually, file, launch, link, prepare_with, task};

const SCRIPT: &[u8] = b"#!/bin/sh\necho hello from $0\n";

fn data() -> Vec<u8> {
    (0..300_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn code(data: &[u8]) -> Vec<(Entry, &[u8])> {
    vec![
        (directory("data", 0o755), b""),
        (file("data/big file.bin", 0o644, 1_600_000_000, data), data),
        (link("data/link", "../run.sh"), b""),
        (directory("empty", 0o755), b""),
        (file("run.sh", 0o755, 1_600_000_000, SCRIPT), SCRIPT),
    ]
}

fn with_bundle(rank: u32, bundle: &BundleId) -> ToAgent {
    prepare_with(&task(rank), |prepare| prepare.bundle = Some(bundle.clone()))
}

async fn failure(node: &Node, rank: u32) -> String {
    match node.server.ended(&task(rank)).await.failure {
        Some(Reason::PrepareFailed { message } | Reason::CodeDamaged { message }) => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_bundle_is_fetched_once_and_each_task_has_its_own_files() {
    let node = Node::new().await;
    let data = data();
    let (bundle, manifest) = node.bundle(&code(&data), 100_000);
    for rank in 0..8 {
        node.server.send(with_bundle(rank, &bundle)).await;
    }
    for rank in 0..8 {
        node.server.ready(&task(rank)).await;
    }
    let chunks = manifest.chunks().count();
    assert_eq!(node.server.state().chunk_requests as usize, chunks);
    node.launch(&task(0), "./run.sh; echo changed >> run.sh; rm -r data; ls -A").await;
    assert_eq!(node.server.output(&task(0)).await, b"hello from ./run.sh\nempty\nrun.sh\n");
    let look =
        "cat data/link; wc -c < 'data/big file.bin'; stat -c %a run.sh; ls -A empty; stat -c %Y run.sh";
    node.launch(&task(1), look).await;
    let expected = [SCRIPT, b"300000\n755\n1600000000\n"].concat();
    assert_eq!(node.server.output(&task(1)).await, expected);
    // Later ones find it in the cache.
    node.server.send(with_bundle(9, &bundle)).await;
    node.server.ready(&task(9)).await;
    assert_eq!(node.server.state().chunk_requests as usize, chunks);
}

#[tokio::test]
async fn of_a_changed_bundle_only_the_changed_chunks_are_fetched_and_the_rest_is_shared() {
    let node = Node::new().await;
    let data = data();
    let old = code(&data);
    let (first, _) = node.bundle(&old, 50_000);
    node.server.send(with_bundle(0, &first)).await;
    node.server.ready(&task(0)).await;
    let before = node.server.state().chunk_requests;
    // The last file changes: its chunk is the last one, and part of the big file is in it.
    let changed = b"#!/bin/sh\necho changed\n".as_slice();
    let mut new = old.clone();
    new[4] = (file("run.sh", 0o755, 1_700_000_000, changed), changed);
    let (second, _) = node.bundle(&new, 50_000);
    node.server.send(with_bundle(1, &second)).await;
    node.server.ready(&task(1)).await;
    let fetched = node.server.state().chunk_requests - before;
    assert_eq!(fetched, 2, "the listing and the chunk of run.sh");
    let inode = |bundle: &BundleId, name: &str| fs::metadata(tree(&node, bundle).join(name)).unwrap().ino();
    assert_eq!(inode(&first, "data/big file.bin"), inode(&second, "data/big file.bin"));
    assert_ne!(inode(&first, "run.sh"), inode(&second, "run.sh"));
    // Another mode or time is another file, with the same bytes and nothing fetched for it.
    let mut touched = old.clone();
    touched[1].0.mode = 0o600;
    let before = node.server.state().chunk_requests;
    let (third, _) = node.bundle(&touched, 50_000);
    node.server.send(with_bundle(2, &third)).await;
    node.server.ready(&task(2)).await;
    assert_eq!(node.server.state().chunk_requests - before, 1, "the listing");
    let copied = tree(&node, &third).join("data/big file.bin");
    assert_eq!(fs::read(&copied).unwrap(), data);
    assert_eq!(fs::metadata(&copied).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::read(tree(&node, &second).join("run.sh")).unwrap(), changed);
}

fn tree(node: &Node, bundle: &BundleId) -> std::path::PathBuf {
    node.dir().join("cache/bundles").join(bundle.as_str()).join("tree")
}

#[tokio::test]
async fn a_tree_of_an_earlier_boot_is_not_trusted() {
    let mut node = Node::new().await;
    let data = data();
    let (bundle, manifest) = node.bundle(&code(&data), 100_000);
    node.server.send(with_bundle(0, &bundle)).await;
    node.server.ready(&task(0)).await;
    node.kill_agent();
    // What a power cut leaves of it: an index of another boot, and a file that lost its bytes.
    let index = tree(&node, &bundle).with_file_name("index");
    let mut bytes = fs::read(&index).unwrap();
    bytes[8] ^= 1;
    fs::write(&index, bytes).unwrap();
    let file = tree(&node, &bundle).join("run.sh");
    fs::write(&file, "").unwrap();
    node.start_agent(&[]);
    node.server.connected().await;
    node.server.send(with_bundle(1, &bundle)).await;
    node.server.ready(&task(1)).await;
    assert_eq!(fs::read(file).unwrap(), SCRIPT);
    assert_eq!(node.server.state().chunk_requests as usize, 2 * manifest.chunks().count());
}

#[tokio::test]
async fn a_bundle_survives_a_server_that_goes_away_in_the_middle() {
    let mut node = Node::new().await;
    let data = data();
    let (bundle, manifest) = node.bundle(&code(&data), 50_000);
    let missing = manifest.content[3].id.clone();
    let bytes = node.server.state().chunks.remove(&missing).unwrap();
    node.server.send(with_bundle(0, &bundle)).await;
    node.server.wait("the first chunks", |state| (state.chunk_requests > 4).then_some(())).await;
    node.server.vanish();
    node.server.state().chunks.insert(missing, bytes);
    node.server.listen();
    node.server.ready(&task(0)).await;
    assert_eq!(fs::read(tree(&node, &bundle).join("data/big file.bin")).unwrap(), data);
}

#[tokio::test]
async fn a_bundle_that_cannot_be_had_or_trusted_fails_in_words() {
    let node = Node::new().await;
    let data = data();
    // The server does not have the bundle, or a chunk of it.
    let (bundle, _) = node.bundle(&code(&data), 4000);
    let text = node.server.state().manifests.remove(&bundle).unwrap();
    node.server.send(with_bundle(0, &bundle)).await;
    assert!(failure(&node, 0).await.contains("the server does not have bundle_"));
    node.server.state().manifests.insert(bundle.clone(), text);
    node.server.state().chunks.clear();
    node.server.send(with_bundle(1, &bundle)).await;
    assert!(failure(&node, 1).await.contains("the server does not have chunk_"));
    // It has another content under that name.
    let (bundle, manifest) = node.bundle(&code(&data), 1000);
    let wrong = chunk::Encoder::default().encode(&[7; 1000]);
    node.server.state().chunks.insert(manifest.content[2].id.clone(), wrong);
    node.server.send(with_bundle(2, &bundle)).await;
    assert!(failure(&node, 2).await.contains("another digest"));
    assert!(node.server.state().damaged.contains(&manifest.content[2].id));
    // So are all others, also where the listing is damaged or gone already, and nothing else was asked for.
    let all: HashSet<ChunkId> =
        manifest.listing.iter().chain(&manifest.content).map(|chunk| chunk.id.clone()).collect();
    for (rank, wrong) in [(7, chunk::Encoder::default().encode(b"no listing")), (8, Vec::new())] {
        node.server.state().damaged.clear();
        node.server.state().chunks.insert(manifest.listing[0].id.clone(), wrong);
        node.server.send(with_bundle(rank, &bundle)).await;
        failure(&node, rank).await;
        assert_eq!(node.server.state().damaged, all);
    }
    // The list is not what the name says.
    let (bundle, _) = node.bundle(&code(&data), 100_000);
    node.server.state().manifests.insert(bundle.clone(), "muster bundle 1\n".into());
    node.server.send(with_bundle(3, &bundle)).await;
    assert!(failure(&node, 3).await.contains("manifest"));
    // It has no listing, or one that does not fit, or one made to harm.
    let (bundle, _) = node.raw_bundle(&[b'x'; 2000], b"", 1000);
    node.server.send(with_bundle(4, &bundle)).await;
    assert!(failure(&node, 4).await.contains("unpacked"));
    let (bundle, _) = node.raw_bundle(&listing::encode([file("a", 0o644, 0, b"12345")]), b"123", 1000);
    node.server.send(with_bundle(5, &bundle)).await;
    assert!(failure(&node, 5).await.contains("5 bytes of files"));
    let (bundle, _) = node.bundle(&[(link("../x", "/etc"), b"")], 1000);
    node.server.send(with_bundle(6, &bundle)).await;
    assert!(failure(&node, 6).await.contains("`../x`"));
    let cache = node.dir().join("cache/bundles");
    let is_clean = || cache.read_dir().unwrap().all(|entry| is_bundle(&entry.unwrap().path()));
    eventually("nothing unfinished is left", is_clean).await;
}

fn is_bundle(path: &Path) -> bool {
    !path.to_str().unwrap().ends_with(".new")
}

#[tokio::test]
async fn a_task_may_run_in_a_directory_of_the_node() {
    let node = Node::new().await;
    let dir = node.home.path().join("project");
    fs::create_dir(&dir).unwrap();
    let path = dir.to_str().unwrap().to_owned();
    node.server.send(prepare_with(&task(0), |prepare| prepare.in_place = Some(path.clone()))).await;
    node.server.ready(&task(0)).await;
    node.server.send(launch(&task(0), "pwd; echo here > file")).await;
    assert_eq!(node.server.output(&task(0)).await, format!("{path}\n").as_bytes());
    node.server.send(ToAgent::Remove { job: task(0).attempt.job }).await;
    eventually("the task is gone", || !node.task_dir(&task(0)).exists()).await;
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"here\n");
}
