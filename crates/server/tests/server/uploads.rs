//! What may be uploaded and stored, by whom and how much, and what nobody learns of others by it.

use muster_api::Code;
use muster_api::client::{Client, Method};
use muster_api::model::{BundleId, ChunkId};
use muster_api::view::{CreateJob, Gc, PutBundle};
use muster_bundle::chunk;
use muster_server::Limits;
use serde_json::{Value, json};

use crate::fixture::{Server, job, manifest, pack, refusal};
use crate::team::Team;

fn in_workspace(workspace: &str, bundle: Option<BundleId>, diff: Option<ChunkId>) -> CreateJob {
    CreateJob {
        spec: json!({ "command": ["true"], "workspace": workspace, "hold": true }),
        ..job(bundle, diff)
    }
}

async fn send(client: &Client, contents: &[&[u8]]) {
    client.put_chunks(vec![pack(contents).into()]).await.unwrap();
}

async fn upload(client: &Client, content: &[u8]) -> BundleId {
    send(client, &[content]).await;
    let status = client.put_bundle(&manifest(content)).await.unwrap();
    assert_eq!(status.missing, []);
    status.id
}

async fn small_team(limits: Limits) -> Team {
    Team::on(Server::with_limits(tempfile::tempdir().unwrap(), limits, true).await).await
}

/// Bytes that do not get shorter.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_learns_of_or_runs_code_that_only_another_tenant_has() {
    let team = Team::new().await;
    let (owner, member, out) = (team.of("owner").await, team.of("member").await, team.of("out").await);
    let (code, diff) = (b"the code of nlp".as_slice(), b"its uncommitted changes".as_slice());
    let (code_id, diff_id) = (chunk::id(code), chunk::id(diff));
    send(&owner, &[diff]).await;
    let bundle = upload(&owner, code).await;
    let made = in_workspace("nlp", Some(bundle.clone()), Some(diff_id.clone()));
    owner.create_job(&made, "a").await.unwrap();

    let both = vec![code_id.clone(), diff_id.clone()];
    assert_eq!(owner.missing_chunks(both.clone()).await.unwrap(), []);
    assert_eq!(out.missing_chunks(both.clone()).await.unwrap(), both, "as if the server had never seen them");
    let named = out.put_bundle(&manifest(code)).await.unwrap();
    assert_eq!((&named.id, named.missing), (&bundle, vec![code_id]));
    let absent: BundleId = format!("{}{}", BundleId::PREFIX, "0".repeat(64)).parse().unwrap();
    let mut said = Vec::new();
    for (key, id) in [("b", &bundle), ("c", &absent)] {
        let refused = out.create_job(&in_workspace("cv", Some(id.clone()), None), key).await.unwrap_err();
        let problem = refusal(refused);
        said.push((problem.code, problem.hint.clone(), problem.detail.replace(id.as_str(), "X")));
    }
    assert_eq!(said[0], said[1], "the same answer as for a bundle that is nowhere");
    assert_eq!(said[0].0, Code::BundleIncomplete);
    let refused = out.create_job(&in_workspace("cv", None, Some(diff_id.clone())), "d").await.unwrap_err();
    assert_eq!(refusal(refused).errors[0].field, "source.diff");

    // Who may see a job may run its code, also without sending it.
    member.create_job(&in_workspace("nlp", Some(bundle.clone()), Some(diff_id.clone())), "e").await.unwrap();
    // Who has the same code sends it, and then it is theirs as well.
    assert_eq!(upload(&out, code).await, bundle);
    send(&out, &[diff]).await;
    assert_eq!(out.missing_chunks(both.clone()).await.unwrap(), []);
    out.create_job(&in_workspace("cv", Some(bundle.clone()), Some(diff_id)), "f").await.unwrap();

    // What one's own job has need not be sent again, also after a restart.
    let Team { server, secrets, .. } = team;
    drop((owner, member, out));
    let server = Server::with_accounts(server.stop().await).await;
    let address = std::fs::read_to_string(server.dir.path().join("server.address")).unwrap();
    let team = Team { server, address, secrets };
    let owner = team.of("owner").await;
    owner.create_job(&in_workspace("nlp", Some(bundle), None), "g").await.unwrap();
    assert_eq!(owner.missing_chunks(both).await.unwrap(), []);
    assert_eq!(owner.put_bundle(&manifest(code)).await.unwrap().missing, []);
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_viewer_uploads_nothing_and_a_bundle_is_on_record_once() {
    let team = Team::new().await;
    let viewer = team.of("viewer").await;
    let refused = viewer.put_chunks(vec![pack(&[b"x"]).into()]).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::Forbidden));
    assert_eq!(viewer.put_bundle(&manifest(b"x")).await.unwrap_err().code(), Some(Code::Forbidden));
    let refused = viewer.missing_chunks(vec![chunk::id(b"x")]).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::Forbidden));
    let owner = team.of("owner").await;
    let bundle = upload(&owner, b"code").await;
    for _ in 0..3 {
        assert_eq!(owner.put_bundle(&manifest(b"code")).await.unwrap().id, bundle);
    }
    let path = "/audit?operation=put_bundle&user=owner";
    let page: Value = team.of("root").await.request(Method::GET, path, None::<&Value>).await.unwrap();
    let targets: Vec<&str> =
        page["items"].as_array().unwrap().iter().map(|entry| entry["target"].as_str().unwrap()).collect();
    assert_eq!(targets, [bundle.as_str()]);
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_of_a_user_that_no_job_has_are_bounded() {
    let team = small_team(Limits { upload_bytes: 100_000, ..Limits::default() }).await;
    let (owner, member) = (team.of("owner").await, team.of("member").await);
    let used = upload(&owner, &noise(120_000, 1)).await;
    owner.create_job(&in_workspace("nlp", Some(used), None), "a").await.unwrap();
    send(&owner, &[&noise(120_000, 2)]).await;
    let refused = owner.put_chunks(vec![pack(&[&noise(10, 3)]).into()]).await.unwrap_err();
    let problem = refusal(refused);
    assert_eq!(problem.code, Code::StorageLimit);
    assert!(problem.detail.contains("limits.unused_uploads") && problem.hint.is_some(), "{problem}");
    send(&member, &[b"others are not affected"]).await;
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manifests_of_a_user_that_no_job_has_are_bounded() {
    let team = small_team(Limits { upload_bytes: 8 * 10_000, ..Limits::default() }).await;
    let (owner, member) = (team.of("owner").await, team.of("member").await);
    let content = b"one byte of code in many orders".as_slice();
    send(&owner, &[content]).await;
    send(&member, &[content]).await;
    let piece = manifest(content).content.remove(0);
    let bundle = |times| PutBundle { listing: Vec::new(), content: vec![piece.clone(); times] };
    let first = owner.put_bundle(&bundle(100)).await.unwrap().id;
    owner.put_bundle(&bundle(101)).await.unwrap();
    let problem = refusal(owner.put_bundle(&bundle(102)).await.unwrap_err());
    assert_eq!(problem.code, Code::StorageLimit);
    assert!(problem.detail.contains("manifests") && problem.hint.is_some(), "{problem}");
    assert_eq!(owner.put_bundle(&bundle(100)).await.unwrap().id, first, "it is stored already");
    member.put_bundle(&bundle(102)).await.unwrap();
    let empty = PutBundle {
        listing: Vec::new(),
        content: vec![muster_api::model::bundle::Chunk { id: chunk::id(b""), bytes: 0 }],
    };
    let problem = refusal(owner.put_bundle(&empty).await.unwrap_err());
    assert_eq!(problem.errors[0].field, "content[0].bytes");
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_workspace_takes_no_jobs_until_there_is_room() {
    let team = small_team(Limits { workspace_bytes: 100_000, ..Limits::default() }).await;
    let (owner, out) = (team.of("owner").await, team.of("out").await);
    let large = upload(&owner, &noise(120_000, 1)).await;
    let made = owner.create_job(&in_workspace("nlp", Some(large.clone()), None), "a").await.unwrap();
    let problem = refusal(owner.create_job(&in_workspace("nlp", None, None), "b").await.unwrap_err());
    assert_eq!(problem.code, Code::StorageLimit);
    assert!(problem.detail.contains("limits.workspace"), "{problem}");
    out.create_job(&in_workspace("cv", None, None), "c").await.unwrap();
    let job = made.summary.id;
    owner.stop_job(job.as_str(), &Default::default()).await.unwrap();
    owner.delete_job(job.as_str()).await.unwrap();
    team.server.client.collect_garbage(&Gc::default()).await.unwrap();
    owner.create_job(&in_workspace("nlp", None, None), "d").await.unwrap();
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_job_charges_its_workspace_with_nothing() {
    let team = small_team(Limits { workspace_bytes: 100_000, ..Limits::default() }).await;
    let owner = team.of("owner").await;
    let large = upload(&owner, &noise(120_000, 1)).await;
    owner.create_job(&in_workspace("nlp", None, None), "a").await.unwrap();
    let refused = owner.create_job(&in_workspace("nlp", Some(large.clone()), None), "a").await.unwrap_err();
    assert_ne!(refused.code(), Some(Code::StorageLimit), "the key is that of another job");
    owner.create_job(&in_workspace("nlp", Some(large), None), "b").await.unwrap();
    let problem = refusal(owner.create_job(&in_workspace("nlp", None, None), "c").await.unwrap_err());
    assert_eq!(problem.code, Code::StorageLimit);
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn specs_and_environments_that_are_too_long_are_refused_by_field() {
    let server = Server::with_limits(tempfile::tempdir().unwrap(), Limits::default(), false).await;
    let with = |spec: Value, environment: usize| CreateJob {
        spec,
        environment: Some([("PATH".to_owned(), "x".repeat(environment))].into()),
        ..job(None, None)
    };
    let plain = json!({ "command": ["true"], "hold": true });
    let long = json!({ "command": ["true"], "setup": "x".repeat(1 << 20) });
    let problem = refusal(server.client.create_job(&with(long, 1 << 20), "a").await.unwrap_err());
    let fields: Vec<&str> = problem.errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["setup", "environment"]);
    assert!(problem.errors.iter().all(|error| error.message.contains("1 MB")), "{problem}");
    server.client.create_job(&with(plain, (1 << 20) - 100), "b").await.unwrap();
    let script = format!("#!/bin/sh\n{}", "#\n".repeat((1 << 19) - 10));
    let batch = json!({ "command": ["a.sh"], "hold": true, "batch": { "script": script } });
    server.client.create_job(&with(batch, 0), "c").await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_that_unpacks_to_too_much_is_refused_when_it_is_named() {
    let mut limits = Limits::default();
    limits.disk.bundle_bytes = 4 << 20;
    let server = Server::with_limits(tempfile::tempdir().unwrap(), limits, false).await;
    let piece = manifest(&[7; 1 << 20]).content.remove(0);
    let bundle = |times| PutBundle { listing: Vec::new(), content: vec![piece.clone(); times] };
    let problem = refusal(server.client.put_bundle(&bundle(5)).await.unwrap_err());
    assert_eq!(problem.errors[0].field, "content");
    assert!(problem.errors[0].message.contains("limits.bundle"), "{problem}");
    assert_eq!(server.client.put_bundle(&bundle(4)).await.unwrap().missing.len(), 1);
    let endless = PutBundle { listing: Vec::new(), content: vec![piece; 5000] };
    let problem = refusal(server.client.put_bundle(&endless).await.unwrap_err());
    assert_eq!(problem.errors[0].field, "content");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn below_the_floor_of_free_space_nothing_is_taken() {
    let limits = Limits { free_bytes: Some(u64::MAX), ..Limits::default() };
    let server = Server::with_limits(tempfile::tempdir().unwrap(), limits, false).await;
    assert_eq!(server.refused(pack(&[b"x"])).await.code, Code::ServerDiskFull);
    let refused = server.client.put_bundle(&manifest(b"x")).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::ServerDiskFull));
    let problem = refusal(server.client.create_job(&job(None, None), "a").await.unwrap_err());
    assert_eq!(problem.code, Code::ServerDiskFull);
    assert!(problem.detail.contains("limits.server_free"), "{problem}");
    server.stop().await;
}
