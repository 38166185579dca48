//! What each may do to what: every operation of the document, for everybody who may be, to what is theirs and what is not.

use std::collections::BTreeMap;

use muster_api::account::{Login, NewToken, PutMember};
use muster_api::client::{Client, Method};
use muster_api::model::account::{Role, Scope};
use muster_api::view::{AllEventsQuery, EventsQuery};
use serde_json::{Value, json};

use crate::fixture::{Server, refusal};
use crate::team::{Team, is_allowed};

/// Who asks. All but the first two are something in the workspace `nlp`; `out` is a lead of another.
const WHO: [&str; 7] = ["nobody", "out", "viewer", "member", "owner", "lead", "root"];

/// For each operation who of [`WHO`] may: `x`, or not: `.`. What is done is done to something of the owner's in `nlp`.
/// This is what is promised, written a second time: the server's own rules are not asked.
const PROMISED: &[(&str, &str)] = &[
    ("create_job", "...xxxx"),
    ("list_jobs", ".xxxxxx"),
    ("show_job", "..xxxxx"),
    ("explain_job", "..xxxxx"),
    ("follow_events", "..xxxxx"),
    ("follow_all_events", ".xxxxxx"),
    ("list_elements", "..xxxxx"),
    ("follow_logs", "..xxxxx"),
    ("download_logs", "..xxxxx"),
    ("list_files", "..xxxxx"),
    ("get_file", "..xxxxx"),
    ("get_diff", "..xxxxx"),
    ("show_job_metrics", "..xxxxx"),
    ("stop_job", "....xxx"),
    ("suspend_job", "....xxx"),
    ("resume_job", "....xxx"),
    ("hold_job", "....xxx"),
    ("release_job", "....xxx"),
    ("rename_job", "....xxx"),
    ("change_job", "....xxx"),
    ("list_queue", ".xxxxxx"),
    ("show_quota", ".xxxxxx"),
    ("change_quota", "......x"),
    ("clear_quota", "......x"),
    ("change_user_quota", "......x"),
    ("clear_user_quota", "......x"),
    ("remove_job", "....xxx"),
    ("stop_task", "....xxx"),
    ("suspend_task", "....xxx"),
    ("resume_task", "....xxx"),
    ("rename_task", "....xxx"),
    ("ssh", "....x.x"),
    ("copy", "....x.x"),
    ("list_sessions", "..xxxxx"),
    ("get_session", "..xxxxx"),
    ("list_commands", "..xxxxx"),
    ("get_command", "..xxxxx"),
    ("get_command_output", "..xxxxx"),
    ("open_session", "....x.x"),
    ("remove_session", "....x.x"),
    ("run_command", "....x.x"),
    ("signal_session", "....x.x"),
    ("attach_session", "....x.x"),
    ("put_bundle", ".x.xxxx"),
    ("put_chunks", ".x.xxxx"),
    ("missing_chunks", ".x.xxxx"),
    ("list_nodes", ".xxxxxx"),
    ("show_node_metrics", ".xxxxxx"),
    ("list_clusters", ".xxxxxx"),
    ("list_pools", ".xxxxxx"),
    ("show_pool", ".xxxxxx"),
    ("put_pool", "......x"),
    ("remove_pool", "......x"),
    ("add_hosts", "......x"),
    ("remove_node", "......x"),
    ("drain_node", "......x"),
    ("undrain_node", "......x"),
    ("label_node", "......x"),
    ("show_server", ".xxxxxx"),
    ("check_server", "......x"),
    ("collect_garbage", "......x"),
    ("stop_server", "......x"),
    ("reload_server", "......x"),
    ("back_up_server", "......x"),
    ("login", "xxxxxxx"),
    ("sign_up", "xxxxxxx"),
    ("logout", ".xxxxxx"),
    ("whoami", ".xxxxxx"),
    ("list_users", ".xxxxxx"),
    ("create_user", "......x"),
    ("show_user", "....x.x"),
    ("change_user", "......x"),
    ("set_display_name", "....x.x"),
    ("set_password", "....x.x"),
    ("list_tokens", "....x.x"),
    ("create_token", "....x.x"),
    ("rotate_token", "....x.x"),
    ("remove_token", "....x.x"),
    ("list_workspaces", ".xxxxxx"),
    ("create_workspace", "......x"),
    ("show_workspace", "..xxxxx"),
    ("change_workspace", ".....xx"),
    ("remove_workspace", "......x"),
    ("put_member", ".....xx"),
    ("remove_member", ".....xx"),
    ("ask_to_join", ".xxxxxx"),
    ("list_secrets", "...xxxx"),
    ("put_secret", "...xxxx"),
    ("remove_secret", "...xxxx"),
    ("list_audit", "......x"),
    ("export_audit", "......x"),
];

/// The least that each operation takes for a body.
fn body(operation: &str) -> Option<Value> {
    Some(match operation {
        "create_job" => json!({ "spec": { "command": ["true"], "workspace": "nlp" } }),
        "rename_job" | "rename_task" => json!({ "name": "other" }),
        "put_bundle" => json!({ "listing": [], "content": [] }),
        "missing_chunks" => json!({ "chunks": [] }),
        "put_pool" | "add_hosts" => json!({ "hosts": [] }),
        "login" => json!({ "user": "nobody-knows", "password": "wrong password" }),
        "sign_up" => json!({ "user": "Not A Name", "password": "short", "workspace": "nlp" }),
        "create_user" => json!({ "name": "Not A Name" }),
        "change_user" | "change_workspace" | "change_job" | "change_quota" | "change_user_quota" => json!({}),
        "set_display_name" => json!({ "display_name": "王芳" }),
        "set_password" => json!({ "password": "short" }),
        "create_token" => json!({ "name": "t", "scope": "read", "expires_in_s": 0 }),
        "create_workspace" => json!({ "name": "Not A Name" }),
        "put_member" => json!({ "role": "viewer" }),
        _ => return None,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_is_for_those_it_is_promised_to() {
    let team = Team::new().await;
    let document: Value = serde_json::from_str(&muster_server::openapi()).unwrap();
    let promised: BTreeMap<&str, &str> = PROMISED.iter().copied().collect();
    let mut seen = 0;
    let mut wrong = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, described) in methods.as_object().unwrap() {
            let operation = described["operationId"].as_str().unwrap();
            let who = promised.get(operation).unwrap_or_else(|| panic!("nobody said who may {operation}"));
            seen += 1;
            if operation == "stop_server" {
                // The last one ends the test's server; who may not is asked all the same.
                assert_eq!(*who, "......x");
            }
            for (name, may) in WHO.iter().zip(who.chars()) {
                if operation == "stop_server" && *name == "root" {
                    continue;
                }
                // A fresh one for each: some of this ends it.
                let job = if path.contains("{job}") { team.job().await } else { String::new() };
                // Somebody who may come and go.
                let member = "passer-by";
                if operation == "remove_member" || operation == "put_member" {
                    let request = json!({ "name": member });
                    drop(team.server.client.request::<Value>(Method::POST, "/users", Some(&request)).await);
                }
                if operation == "remove_workspace" {
                    let request = json!({ "name": "gone" });
                    drop(
                        team.server
                            .client
                            .request::<Value>(Method::POST, "/workspaces", Some(&request))
                            .await,
                    );
                    // Not even to who leads it.
                    let lead = PutMember { role: Role::Lead };
                    team.operator(Method::PUT, "/workspaces/gone/members/lead", &lead).await;
                }
                let user = if path.contains("/members/") { member } else { "owner" };
                let filled = path
                    .trim_start_matches("/api/v1")
                    .replace("{job}", &job)
                    .replace("{user}", user)
                    .replace("{workspace}", if operation == "remove_workspace" { "gone" } else { "nlp" })
                    .replace("{secret}", "TOKEN")
                    .replace("{token}", "tok_0")
                    .replace("{rank}", "0")
                    .replace("{number}", "1")
                    .replace("{name}", "main")
                    .replace("{node}", "node_local")
                    .replace("{pool}", "lab");
                let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
                let body = body(operation);
                let client = match operation {
                    // Whoever logs out does so with a token that is good for nothing else here.
                    "logout" if *name != "nobody" => {
                        team.client(Some(&team.token(name, Scope::Read).await)).await
                    }
                    _ => team.of(name).await,
                };
                let allowed = if operation == "login" || operation == "sign_up" {
                    // Here a refusal of another kind is what a stranger gets, too.
                    let answer = client.request::<Value>(method, &filled, body.as_ref()).await;
                    let problem = refusal(answer.unwrap_err());
                    problem.detail != "the bearer token is missing, wrong, expired or revoked"
                } else {
                    is_allowed(&client, method, &filled, body.as_ref()).await
                };
                let may = may == 'x';
                if allowed != may {
                    wrong.push(format!("{operation}: {name} {}", if allowed { "may" } else { "may not" }));
                }
            }
        }
    }
    assert_eq!(seen, PROMISED.len(), "every promise is about an operation");
    assert!(wrong.is_empty(), "{wrong:#?}");
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_token_is_good_for_bounds_what_its_owner_may_do() {
    let team = Team::new().await;
    let job = team.job().await;
    let read = team.client(Some(&team.token("owner", Scope::Read).await)).await;
    assert!(is_allowed(&read, Method::GET, &format!("/jobs/{job}"), None).await);
    assert!(!is_allowed(&read, Method::POST, &format!("/jobs/{job}/stop"), None).await);
    let spec = json!({ "spec": { "command": ["true"], "workspace": "nlp" } });
    assert!(!is_allowed(&read, Method::POST, "/jobs", Some(&spec)).await);
    let write = team.client(Some(&team.token("lead", Scope::Write).await)).await;
    assert!(is_allowed(&write, Method::POST, &format!("/jobs/{job}/stop"), None).await);
    assert!(!is_allowed(&write, Method::PATCH, "/workspaces/nlp", Some(&json!({}))).await);

    // One that is good in a single workspace shows nothing of the others, also to an admin.
    let request = json!({ "name": "cv-only", "scope": "read", "workspace": "cv" });
    let made: NewToken =
        team.server.client.request(Method::POST, "/users/root/tokens", Some(&request)).await.unwrap();
    let narrow = team.client(Some(&made.secret)).await;
    assert!(!is_allowed(&narrow, Method::GET, &format!("/jobs/{job}"), None).await);
    let page: Value = narrow.request(Method::GET, "/jobs", None::<&Value>).await.unwrap();
    assert_eq!(page["items"], json!([]));
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_an_account_are_its_owners_alone() {
    let team = Team::new().await;
    let spec =
        json!({ "spec": { "command": ["true"], "workspace": "nlp", "in_place": true, "workdir": "/tmp" } });
    let made: Value = team.of("owner").await.request(Method::POST, "/jobs", Some(&spec)).await.unwrap();
    let path = format!("/jobs/{}/files", made["id"].as_str().unwrap());
    for (name, may) in
        [("viewer", false), ("member", false), ("lead", false), ("owner", true), ("root", true)]
    {
        assert_eq!(is_allowed(&team.of(name).await, Method::GET, &path, None).await, may, "{name}");
    }
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accounts_outlive_a_restart_and_an_admin_is_left() {
    let team = Team::new().await;
    let secret = team.secrets["owner"].clone();
    // The first admin goes, the second stays.
    let admin = json!({ "admin": false });
    team.operator(Method::PATCH, "/users/admin", &admin).await;
    let last = team.server.client.request::<Value>(Method::PATCH, "/users/root", Some(&admin)).await;
    assert!(refusal(last.unwrap_err()).detail.contains("the only admin"));
    let dir = team.server.stop().await;
    let server = Server::with_accounts(dir).await;
    let address = std::fs::read_to_string(server.dir.path().join("server.address")).unwrap();
    let team = Team { server, address, secrets: BTreeMap::new() };
    let me: Value =
        team.client(Some(&secret)).await.request(Method::GET, "/whoami", None::<&Value>).await.unwrap();
    assert_eq!(me["user"], "owner");
    let users: Value = team.server.client.request(Method::GET, "/users", None::<&Value>).await.unwrap();
    assert_eq!(users["items"].as_array().unwrap().len(), 7, "nobody was made anew");
    team.server.stop().await;
}

async fn has_events_of(client: &Client, job: &str) -> bool {
    let query = AllEventsQuery { follow: false, ..AllEventsQuery::default() };
    let mut events = client.all_events(&query).await.unwrap();
    while let Ok(Some(item)) = events.next().await {
        if format!("{item:?}").contains(job) {
            return true;
        }
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_finds_what_is_not_theirs_by_name_list_or_stream() {
    let team = Team::new().await;
    let job = team.job().await;
    let outsider = team.of("out").await;
    for selector in [job.as_str(), &job[..job.len() - 2], "true", "last"] {
        assert!(!is_allowed(&outsider, Method::GET, &format!("/jobs/{selector}"), None).await, "{selector}");
    }
    let page: Value = outsider.request(Method::GET, "/jobs", None::<&Value>).await.unwrap();
    assert_eq!(page["items"], json!([]));
    for workspace in ["nlp", "elsewhere"] {
        let path = format!("/workspaces/{workspace}");
        let answer = outsider.request::<Value>(Method::GET, &path, None::<&Value>).await;
        let problem = refusal(answer.unwrap_err());
        assert_eq!(
            problem.detail,
            format!("there is no workspace `{workspace}`"),
            "one cannot be told from the other"
        );
    }
    assert!(!has_events_of(&outsider, &job).await);
    assert!(has_events_of(&team.of("viewer").await, &job).await);
    // The same name in two workspaces is nobody's business.
    let spec =
        |workspace: &str| json!({ "spec": { "command": ["true"], "name": "train", "workspace": workspace } });
    assert!(is_allowed(&team.of("owner").await, Method::POST, "/jobs", Some(&spec("nlp"))).await);
    let made: Value = outsider.request(Method::POST, "/jobs", Some(&spec("cv"))).await.unwrap();
    let found: Value = outsider.request(Method::GET, "/jobs/train", None::<&Value>).await.unwrap();
    assert_eq!(found["id"], made["id"]);
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_disabled_is_cut_off_where_they_are() {
    let team = Team::new().await;
    let job = team.job().await;
    let viewer = team.of("viewer").await;
    let mut events = viewer.events(&job, &EventsQuery { after: None, follow: true }).await.unwrap();
    assert!(events.next().await.unwrap().is_some(), "it is followed");
    let request = json!({ "disabled": true });
    team.operator(Method::PATCH, "/users/viewer", &request).await;
    let end = tokio::time::timeout(std::time::Duration::from_secs(10), async {
        while let Ok(Some(_)) = events.next().await {}
    });
    end.await.expect("the stream ends");
    assert!(!is_allowed(&viewer, Method::GET, &format!("/jobs/{job}"), None).await);
    // Enabled again, the same token is good.
    team.operator(Method::PATCH, "/users/viewer", &json!({ "disabled": false })).await;
    assert!(is_allowed(&viewer, Method::GET, &format!("/jobs/{job}"), None).await);
    // A role that is taken away ends streams as well.
    let mut events = viewer.events(&job, &EventsQuery { after: None, follow: true }).await.unwrap();
    assert!(events.next().await.unwrap().is_some());
    drop(
        team.server
            .client
            .request::<Value>(Method::DELETE, "/workspaces/nlp/members/viewer", None::<&Value>)
            .await,
    );
    let end = tokio::time::timeout(std::time::Duration::from_secs(10), async {
        while let Ok(Some(_)) = events.next().await {}
    });
    end.await.expect("the stream ends");
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_is_asked_for_and_a_lead_says_yes() {
    let team = Team::new().await;
    let stranger = team.client(None).await;
    let request = json!({ "user": "newcomer", "password": "correct horse", "workspace": "nlp" });
    drop(stranger.request::<Value>(Method::POST, "/signup", Some(&request)).await);
    let login = Login { user: "newcomer".into(), password: "correct horse".into() };
    let waits = refusal(stranger.request::<Value>(Method::POST, "/login", Some(&login)).await.unwrap_err());
    assert_eq!(
        (waits.status, waits.detail.as_str()),
        (403, "the account `newcomer` waits for somebody to approve it")
    );
    // Whoever leads something else has no say.
    let role = json!({ "role": "member" });
    let cv = "/workspaces/cv/members/newcomer";
    assert!(!is_allowed(&team.of("out").await, Method::PUT, cv, Some(&role)).await);
    let shown: Value =
        team.of("lead").await.request(Method::GET, "/workspaces/nlp", None::<&Value>).await.unwrap();
    assert!(
        shown["members"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["user"] == "newcomer" && one["role"].is_null())
    );
    let nlp = "/workspaces/nlp/members/newcomer";
    assert!(is_allowed(&team.of("lead").await, Method::PUT, nlp, Some(&role)).await);
    let made: NewToken = stranger.request(Method::POST, "/login", Some(&login)).await.unwrap();
    let newcomer = team.client(Some(&made.secret)).await;
    let me: Value = newcomer.request(Method::GET, "/whoami", None::<&Value>).await.unwrap();
    assert_eq!(me["workspaces"], json!([{ "workspace": "nlp", "role": "member" }]));
    // A login is over when somebody says so.
    drop(newcomer.request::<Value>(Method::POST, "/logout", None::<&Value>).await);
    assert!(!is_allowed(&newcomer, Method::GET, "/whoami", None).await);
    // All of it is on record, and no secret is.
    let page: Value =
        team.server.client.request(Method::GET, "/audit?limit=1000", None::<&Value>).await.unwrap();
    let done: Vec<&str> =
        page["items"].as_array().unwrap().iter().filter_map(|one| one["operation"].as_str()).collect();
    for operation in ["sign_up", "login", "put_member", "logout", "create_user"] {
        assert!(done.contains(&operation), "{operation}: {done:?}");
    }
    assert!(!page.to_string().contains("correct horse") && !page.to_string().contains("mst_"));
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_says_what_its_jobs_do_not() {
    let team = Team::new().await;
    let request = json!({ "priority": 700, "max_run_time_ms": 3_600_000 });
    team.operator(Method::PATCH, "/workspaces/nlp", &request).await;
    let owner = team.of("owner").await;
    let made: Value = owner
        .request(Method::POST, "/jobs", Some(&json!({ "spec": { "command": ["true"] } })))
        .await
        .unwrap();
    assert_eq!(made["spec"]["workspace"], "nlp", "the only one they are in");
    assert_eq!(made["owner"], "owner");
    assert_eq!(made["spec"]["priority"], 700);
    assert_eq!(made["spec"]["timeout"], "3600s");
    let long = json!({ "spec": { "command": ["true"], "timeout": "2h", "priority": 100 } });
    let problem = refusal(owner.request::<Value>(Method::POST, "/jobs", Some(&long)).await.unwrap_err());
    assert_eq!(problem.errors[0].field, "timeout");
    let short = json!({ "spec": { "command": ["true"], "timeout": "30m", "priority": 100 } });
    let made: Value = owner.request(Method::POST, "/jobs", Some(&short)).await.unwrap();
    assert_eq!((&made["spec"]["priority"], &made["spec"]["timeout"]), (&json!(100), &json!("1800s")));
    team.server.stop().await;
}
