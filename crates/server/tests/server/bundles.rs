//! What clients see: packs, bundles, differences, and what is removed.

use std::sync::Arc;
use std::time::Duration;

use muster_api::Code;
use muster_api::client::{Client, Endpoint};
use muster_api::view::{Gc, PutBundle};
use muster_bundle::chunk::{self, Encoder};
use muster_bundle::cut;

use crate::fixture::{Server, job, manifest, pack, refusal};

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_is_there_once_its_chunks_are_and_also_after_a_restart() {
    let server = Server::new().await;
    let (one, two) = (vec![1; 300_000], b"two".to_vec());
    let ids = vec![chunk::id(&one), chunk::id(&two)];
    let whole = PutBundle {
        listing: manifest(&two).content,
        content: [manifest(&one).content, manifest(&one).content].concat(),
    };
    let status = server.client.put_bundle(&whole).await.unwrap();
    assert_eq!(status.missing, [ids[1].clone(), ids[0].clone()], "each once");
    server.send(&[&one]).await;
    assert_eq!(server.client.missing_chunks(ids.clone()).await.unwrap(), ids[1..]);
    let refused = server.client.create_job(&job(Some(status.id.clone()), None), "a").await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::BundleIncomplete));
    server.send(&[&two, &one]).await;
    assert_eq!(server.client.put_bundle(&whole).await.unwrap().missing, []);
    let made = server.client.create_job(&job(Some(status.id.clone()), None), "b").await.unwrap();
    assert_eq!(made.bundle, Some(status.id.clone()));
    let dir = server.stop().await;
    let server = Server::start(dir, Duration::from_secs(3600)).await;
    assert_eq!(server.client.put_bundle(&whole).await.unwrap().missing, []);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_pack_is_refused_and_what_came_before_it_is_kept() {
    let server = Server::new().await;
    let (good, bad) = (chunk::id(b"good"), chunk::id(b"bad"));
    let mut cut_off = pack(&[b"good", b"bad"]);
    cut_off.pop();
    let problem = server.refused(cut_off).await;
    assert_eq!(
        (problem.code, problem.detail.as_str()),
        (Code::InvalidRequest, "the chunk at byte 41 is cut off")
    );
    assert_eq!(
        server.client.missing_chunks(vec![good, bad.clone()]).await.unwrap(),
        std::slice::from_ref(&bad)
    );

    let mut lying = pack(&[b"another"]);
    chunk::push(&mut lying, &bad, &Encoder::default().encode(b"not bad"));
    assert_eq!(server.refused(lying).await.code, Code::ChunkMismatch);
    let mut odd = Vec::new();
    chunk::push(&mut odd, &bad, b"\x09what is this");
    assert_eq!(server.refused(odd).await.code, Code::InvalidRequest);
    for length in [0_u32, u32::MAX] {
        let mut pack = length.to_le_bytes().to_vec();
        pack.extend([0; 40]);
        let problem = server.refused(pack).await;
        assert_eq!(problem.code, Code::InvalidRequest);
        assert!(problem.detail.contains(&length.to_string()), "{problem}");
    }
    assert_eq!(server.client.missing_chunks(vec![chunk::id(b"another"), bad.clone()]).await.unwrap(), [bad]);
    assert_eq!(server.refused(vec![0; (32 << 20) + 1]).await.code, Code::TooLarge);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_that_are_too_long_are_refused_by_name() {
    let server = Server::new().await;
    let error = server.client.missing_chunks(vec![chunk::id(b"a"); 4097]).await.unwrap_err();
    assert_eq!(refusal(error).errors[0].field, "chunks");
    let mut long = manifest(b"a");
    long.content[0].bytes = cut::MAX as u64 + 1;
    let error = server.client.put_bundle(&long).await.unwrap_err();
    assert_eq!(refusal(error).errors[0].field, "content[0].bytes");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_difference_is_kept_with_its_job_and_shown() {
    let server = Server::new().await;
    let diff = b"diff --git a/x b/x\n+\xff\n";
    let id = chunk::id(diff);
    let refused = server.client.create_job(&job(None, Some(id.clone())), "a").await.unwrap_err();
    assert_eq!(refusal(refused).errors[0].field, "source.diff");
    server.send(&[diff]).await;
    let made = server.client.create_job(&job(None, Some(id)), "b").await.unwrap();
    assert_eq!(made.source.unwrap().branch.as_deref(), Some("main"));
    assert_eq!(server.client.diff("last").await.unwrap(), diff[..]);
    server.client.create_job(&job(None, None), "c").await.unwrap();
    assert_eq!(server.client.diff("last").await.unwrap_err().code(), Some(Code::NotFound));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_job_has_goes_and_what_one_has_stays() {
    let server = Server::start(tempfile::tempdir().unwrap(), Duration::ZERO).await;
    let used = server.bundle(b"used").await;
    server.bundle(b"unused").await;
    server.send(&[b"loose", b"diff"]).await;
    let request = job(Some(used), Some(chunk::id(b"diff")));
    let made = server.client.create_job(&request, "a").await.unwrap();
    let would = server.client.collect_garbage(&Gc { dry_run: true }).await.unwrap();
    assert_eq!((would.dry_run, would.bundles, would.chunks), (true, 1, 2));
    let report = server.client.collect_garbage(&Gc::default()).await.unwrap();
    assert_eq!((report.bundles, report.chunks, report.chunk_bytes), (1, 2, would.chunk_bytes));
    let all = ["used", "unused", "loose", "diff"].map(|content| chunk::id(content.as_bytes()));
    let missing = server.client.missing_chunks(all.to_vec()).await.unwrap();
    assert_eq!(missing, all[1..3]);
    assert_eq!(server.client.diff(made.summary.id.as_str()).await.unwrap(), b"diff"[..]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_is_young_goes() {
    let server = Server::new().await;
    server.bundle(b"young").await;
    server.send(&[b"loose"]).await;
    let report = server.client.collect_garbage(&Gc::default()).await.unwrap();
    assert_eq!((report.bundles, report.chunks), (0, 0));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_that_lost_its_bytes_is_asked_for_again() {
    let server = Server::new().await;
    let id = chunk::id(b"content");
    let bundle = server.bundle(b"content").await;
    std::fs::write(server.file(&id), b"").unwrap();
    let refused = server.client.create_job(&job(Some(bundle), None), "a").await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::BundleIncomplete));
    assert_eq!(server.client.put_bundle(&manifest(b"content")).await.unwrap().missing, [id]);
    server.bundle(b"content").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_and_removals_at_once_never_leave_a_bundle_without_its_chunks() {
    // Half of this grace is what a client has between hearing that its bundle is whole and naming it in a job.
    let server = Arc::new(Server::start(tempfile::tempdir().unwrap(), Duration::from_secs(2)).await);
    let until = std::time::Instant::now() + Duration::from_secs(5);
    let uploads = async {
        let mut number = 0_u32;
        while std::time::Instant::now() < until {
            let content = (number % 40).to_le_bytes();
            let mut status = server.client.put_bundle(&manifest(&content)).await.unwrap();
            while !status.missing.is_empty() {
                server.send(&[&content]).await;
                status = server.client.put_bundle(&manifest(&content)).await.unwrap();
            }
            let made = server.client.create_job(&job(Some(status.id), None), &format!("{number}")).await;
            let made = made.unwrap().summary.id;
            assert!(server.file(&chunk::id(&content)).exists());
            server.client.stop_job(made.as_str(), &Default::default()).await.unwrap();
            server.client.delete_job(made.as_str()).await.unwrap();
            number += 1;
        }
        number
    };
    let removals = async {
        let mut removed = 0;
        let client = Client::connect(Endpoint::unix(server.dir.path().join("server.sock"))).await.unwrap();
        while std::time::Instant::now() < until {
            removed += client.collect_garbage(&Gc::default()).await.unwrap().chunks;
        }
        removed
    };
    let (uploads, _removals) = tokio::join!(uploads, removals);
    assert!(uploads > 40, "{uploads}");
    Arc::into_inner(server).unwrap().stop().await;
}
