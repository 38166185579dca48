//! The audit log: every refusal, every outcome, and reads of what belongs to another person.

use std::time::Duration;

use muster_api::account::{AuditEntry, AuditLinesQuery, AuditPage};
use muster_api::client::{Client, Method};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::fixture::{Server, refusal};
use crate::team::Team;

async fn entries(client: &Client) -> Vec<AuditEntry> {
    let page: AuditPage = client.request(Method::GET, "/audit?limit=1000", None::<&Value>).await.unwrap();
    page.items
}

async fn entries_of(team: &Team, operation: &str) -> Vec<AuditEntry> {
    let all = entries(&team.server.client).await;
    all.into_iter().filter(|entry| entry.operation == operation).collect()
}

/// The code of the problem that a request gets.
async fn refused(client: &Client, method: Method, path: &str, body: Option<&Value>) -> &'static str {
    let answer = client.request::<Value>(method, path, body).await;
    refusal(answer.unwrap_err()).code.entry().code
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_recorded_also_those_of_reads_and_of_strangers() {
    let team = Team::new().await;
    let job = team.job().await;
    let (out, member, nobody) = (team.of("out").await, team.of("member").await, team.client(None).await);
    let hidden = refused(&out, Method::GET, &format!("/jobs/{job}"), None).await;
    assert_eq!(refused(&member, Method::GET, "/audit", None).await, "forbidden");
    assert_eq!(refused(&nobody, Method::GET, "/jobs", None).await, "unauthorized");
    assert_eq!(refused(&member, Method::GET, "/jobs?limit=0", None).await, "invalid_fields");
    let login = json!({ "user": "member", "password": "wrong password" });
    assert_eq!(refused(&nobody, Method::POST, "/login", Some(&login)).await, "unauthorized");

    for (operation, user, outcome, status) in [
        ("show_job", Some("out"), hidden, 404),
        ("list_audit", Some("member"), "forbidden", 403),
        ("list_jobs", None, "unauthorized", 401),
        ("list_jobs", Some("member"), "invalid_fields", 422),
        ("login", Some("member"), "unauthorized", 401),
    ] {
        let found = entries_of(&team, operation).await;
        let found: Vec<_> = found.iter().filter(|entry| entry.user.as_deref() == user).collect();
        assert_eq!(found.len(), 1, "{operation}: {found:?}");
        assert_eq!(found[0].outcome, outcome, "{operation}");
        assert!(found[0].status == Some(status), "{:?}", found[0]);
        assert!(found[0].address.is_some(), "{operation}");
    }
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_states_the_outcome_and_names_the_job() {
    let team = Team::new().await;
    let owner = team.of("owner").await;
    // The guard permits it, and the handler refuses it.
    let wrong = json!({ "spec": { "command": [], "workspace": "nlp" } });
    let code = refused(&owner, Method::POST, "/jobs", Some(&wrong)).await;
    // The core refuses it.
    let unknown = json!({ "spec": { "command": ["true"], "workspace": "nlp", "on": "ssh/nowhere" } });
    let unplaced = refused(&owner, Method::POST, "/jobs", Some(&unknown)).await;
    let dry = json!({ "spec": { "command": ["true"], "workspace": "nlp" } });
    let _: Value = owner.request(Method::POST, "/jobs?dry_run=true", Some(&dry)).await.unwrap();
    let job = team.job().await;

    let made = entries_of(&team, "create_job").await;
    assert_eq!(made.iter().filter(|entry| entry.outcome == "done").count(), 1, "{made:?}");
    let done = made.iter().find(|entry| entry.outcome == "done").unwrap();
    assert_eq!(done.job.as_ref().map(ToString::to_string), Some(job.clone()));
    assert!(made.iter().all(|entry| !["allowed", "started"].contains(&entry.outcome.as_str())), "{made:?}");
    let counted: u64 = made.iter().filter(|entry| entry.outcome == code).map(|entry| entry.count).sum();
    assert!(counted >= 1 && made.iter().any(|entry| entry.outcome == unplaced), "{made:?}");

    // An operation that the core does, by a name that means the job: one entry, with the job.
    drop(owner.request::<Value>(Method::POST, "/jobs/last/stop", None::<&Value>).await);
    let stopped = entries_of(&team, "stop_job").await;
    assert_eq!(stopped.len(), 1, "{stopped:?}");
    assert_eq!(stopped[0].job.as_ref().map(ToString::to_string), Some(job));
    // One beside the core, and one that changes accounts.
    let _: Value = team.server.client.request(Method::POST, "/gc", Some(&json!({}))).await.unwrap();
    for operation in ["collect_garbage", "create_workspace"] {
        let found = entries_of(&team, operation).await;
        assert!(!found.is_empty() && found.iter().all(|entry| entry.outcome == "done"), "{found:?}");
    }
    assert_eq!(entries_of(&team, "create_workspace").await.len(), 2, "one for each operation");
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_what_belongs_to_another_person_are_recorded_once() {
    let team = Team::new().await;
    let job = team.job().await;
    let files = format!("/jobs/{job}/files");
    let logs = format!("/jobs/{job}/logs/download");
    for name in ["owner", "lead", "root"] {
        let client = team.of(name).await;
        for path in [&files, &logs, &logs, &logs] {
            // Whether there is anything to read does not matter here.
            drop(client.request::<Value>(Method::GET, path, None::<&Value>).await);
        }
        drop(client.request::<Value>(Method::GET, "/workspaces/nlp/secrets", None::<&Value>).await);
    }
    for operation in ["list_files", "download_logs"] {
        let found = entries_of(&team, operation).await;
        let who: Vec<_> = found.iter().map(|entry| entry.user.as_deref().unwrap()).collect();
        assert_eq!(who, ["root", "lead"], "{operation}: {found:?}");
        assert!(found.iter().all(|entry| entry.detail == Some(json!({ "owner": "owner" }))), "{found:?}");
        assert!(found.iter().all(|entry| entry.job.as_ref().is_some_and(|id| id.to_string() == job)));
        assert!(found.iter().all(|entry| entry.outcome != "started"), "{found:?}");
    }
    // Members of a workspace share its secrets; an admin who is none does not.
    let listed = entries_of(&team, "list_secrets").await;
    assert_eq!(listed.iter().map(|entry| entry.user.as_deref().unwrap()).collect::<Vec<_>>(), ["root"]);
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_who_hangs_up_is_recorded_as_well() {
    let team = Team::new().await;
    let body = json!({ "password": "correct horse" });
    let path = "/users/member/password";
    drop(team.server.client.request::<Value>(Method::PUT, path, Some(&body)).await);
    let login = json!({ "user": "member", "password": "wrong password" }).to_string();
    let chunks = format!("authorization: Bearer {}\r\ncontent-length: 1000\r\n", team.secrets["owner"]);
    for (operation, head, body) in [
        (
            "login",
            format!("content-type: application/json\r\ncontent-length: {}\r\n", login.len()),
            login.as_str(),
        ),
        ("chunks", chunks, "the rest does not come"),
    ] {
        let mut stream = TcpStream::connect(&team.address).await.unwrap();
        let request = format!("POST /api/v1/{operation} HTTP/1.1\r\nhost: server\r\n{head}\r\n{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        // Long enough for the handler to begin, and shorter than it takes to answer.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (operation, user) in [("login", "member"), ("put_chunks", "owner")] {
        let is_recorded = async || {
            let found = entries_of(&team, operation).await;
            found.iter().any(|entry| entry.user.as_deref() == Some(user) && entry.outcome != "done")
        };
        let mut tries = 0;
        while !is_recorded().await {
            tries += 1;
            assert!(tries < 100, "{operation}: {:?}", entries_of(&team, operation).await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_refusals_is_a_few_rows_with_their_number() {
    const TIMES: u64 = 500;
    let team = Team::new().await;
    let (nobody, member) = (team.client(None).await, team.of("member").await);
    let before = entries(&team.server.client).await.len();
    for number in 0..TIMES {
        refused(&nobody, Method::GET, &format!("/jobs/job_{number}"), None).await;
        refused(&member, Method::GET, "/audit", None).await;
    }
    let grown = entries(&team.server.client).await.len() - before;
    assert_eq!(grown, 2, "one for each caller");
    // What was counted is written when the server stops, if the window has not ended before.
    let dir = team.server.stop().await;
    let server = Server::with_accounts(dir).await;
    let all = entries(&server.client).await;
    for (user, operation) in [(None, "show_job"), (Some("member"), "list_audit")] {
        let found: Vec<_> =
            all.iter().filter(|one| one.operation == operation && one.user.as_deref() == user).collect();
        assert_eq!(found.iter().map(|entry| entry.count).collect::<Vec<_>>(), [TIMES], "{found:?}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_exported_as_json_lines() {
    let team = Team::new().await;
    team.job().await;
    let root = team.of("root").await;
    let lines = async |after| {
        let mut download = root.audit_lines(&AuditLinesQuery { after }).await.unwrap();
        let mut text = Vec::new();
        while let Some(piece) = download.next().await.unwrap() {
            text.extend_from_slice(&piece);
        }
        let lines = String::from_utf8(text).unwrap();
        lines.lines().map(|line| serde_json::from_str::<AuditEntry>(line).unwrap().seq).collect::<Vec<_>>()
    };
    let all = lines(None).await;
    let mut listed: Vec<u64> = entries(&root).await.iter().map(|entry| entry.seq).collect();
    listed.reverse();
    assert_eq!(all, listed, "oldest first");
    assert_eq!(lines(Some(all[3])).await, all[4..]);
    team.server.stop().await;
}
