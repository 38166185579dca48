//! The files of tasks: bundles fetched, unpacked, shared and copied.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use muster_link::message::{Bundle, ToAgent};
use muster_model::Reason;
use tar::{Builder, EntryType, Header};

use crate::node::{Node, eventually, launch, prepare_with, task};

fn header(kind: EntryType, mode: u32, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    header.set_mtime(1_600_000_000);
    header
}

fn archive() -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    let script = b"#!/bin/sh\necho hello from $0\n";
    let mut entry = header(EntryType::Regular, 0o755, script.len());
    builder.append_data(&mut entry, "run.sh", script.as_slice()).unwrap();
    builder.append_data(&mut header(EntryType::Directory, 0o755, 0), "empty", [].as_slice()).unwrap();
    let data: Vec<u8> = (0..300_000u32).map(|number| (number * 7) as u8).collect();
    let mut entry = header(EntryType::Regular, 0o644, data.len());
    builder.append_data(&mut entry, "data/big file.bin", data.as_slice()).unwrap();
    builder.append_link(&mut header(EntryType::Symlink, 0o777, 0), "data/link", "../run.sh").unwrap();
    builder.into_inner().unwrap()
}

fn with_bundle(rank: u32, bundle: &Bundle) -> ToAgent {
    prepare_with(&task(rank), |prepare| prepare.bundle = Some(bundle.clone()))
}

async fn failure(node: &Node, rank: u32) -> String {
    match node.server.ended(&task(rank)).await.failure {
        Some(Reason::PrepareFailed { message }) => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_bundle_is_fetched_once_and_each_task_has_its_own_copy() {
    let node = Node::new().await;
    let bundle = node.bundle(&archive(), 100_000);
    for rank in 0..8 {
        node.server.send(with_bundle(rank, &bundle)).await;
    }
    for rank in 0..8 {
        node.server.ready(&task(rank)).await;
    }
    assert_eq!(node.server.state().chunk_requests as usize, bundle.manifest.chunks.len());
    node.launch(&task(0), "./run.sh; echo changed >> run.sh; rm -r data; ls -A").await;
    assert_eq!(node.server.output(&task(0)).await, b"hello from ./run.sh\nempty\nrun.sh\n");
    let work = node.task_dir(&task(1)).join("work");
    assert_eq!(fs::read(work.join("data/link")).unwrap(), b"#!/bin/sh\necho hello from $0\n");
    assert_eq!(fs::read(work.join("data/big file.bin")).unwrap().len(), 300_000);
    assert_eq!(fs::metadata(work.join("run.sh")).unwrap().permissions().mode() & 0o777, 0o755);
    assert!(fs::read_dir(work.join("empty")).unwrap().next().is_none());
    // Later ones find it in the cache.
    node.server.send(with_bundle(9, &bundle)).await;
    node.server.ready(&task(9)).await;
    assert_eq!(node.server.state().chunk_requests as usize, bundle.manifest.chunks.len());
}

#[tokio::test]
async fn a_bundle_survives_a_server_that_goes_away_in_the_middle() {
    let mut node = Node::new().await;
    let bundle = node.bundle(&archive(), 50_000);
    let missing = bundle.manifest.chunks[3].clone();
    let bytes = node.server.state().chunks.remove(&missing.id).unwrap();
    node.server.send(with_bundle(0, &bundle)).await;
    node.server.wait("the first chunks", |state| (state.chunk_requests > 3).then_some(())).await;
    node.server.vanish();
    node.server.state().chunks.insert(missing.id, bytes);
    node.server.listen();
    node.server.ready(&task(0)).await;
    assert_eq!(fs::read(node.task_dir(&task(0)).join("work/data/big file.bin")).unwrap().len(), 300_000);
}

#[tokio::test]
async fn a_bundle_that_cannot_be_had_or_trusted_fails_in_words() {
    let node = Node::new().await;
    // The server does not have a chunk.
    let bundle = node.bundle(b"never there", 4);
    node.server.state().chunks.clear();
    node.server.send(with_bundle(0, &bundle)).await;
    assert!(failure(&node, 0).await.contains("the server does not give chunk_"));
    // It has another content under that name.
    let bundle = node.bundle(&archive(), 1000);
    node.server.state().chunks.insert(bundle.manifest.chunks[2].id.clone(), vec![7; 1000]);
    node.server.send(with_bundle(1, &bundle)).await;
    assert!(failure(&node, 1).await.contains("not what was asked for"));
    // The list is not what the name says.
    let mut bundle = node.bundle(&archive(), 100_000);
    bundle.manifest.chunks.pop();
    node.server.send(with_bundle(2, &bundle)).await;
    assert!(failure(&node, 2).await.contains("manifest"));
    // It is no archive, or one made to harm.
    let bundle = node.bundle(&[b'x'; 2000], 1000);
    node.server.send(with_bundle(3, &bundle)).await;
    assert!(failure(&node, 3).await.contains("unpacked"));
    let mut evil = header(EntryType::Symlink, 0o777, 0);
    evil.as_old_mut().name[..4].copy_from_slice(b"../x");
    evil.as_old_mut().linkname[..4].copy_from_slice(b"/etc");
    evil.set_cksum();
    let bundle = node.bundle(evil.as_bytes(), 1000);
    node.server.send(with_bundle(4, &bundle)).await;
    assert!(failure(&node, 4).await.contains("`../x`"));
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
