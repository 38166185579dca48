//! How people come to a server, what they are told, and what is left of them.

use std::time::{Duration, Instant};

use muster_api::account::{Login, NewToken};
use muster_api::client::{Client, Error, Method};
use muster_api::view::CreateJob;
use muster_server::Keep;
use serde_json::{Value, json};

use crate::fixture::{Server, refusal};
use crate::team::{Team, is_allowed};

const PASSWORD: &str = "correct horse";

/// The status of an answer, and all that is said in it.
async fn answer(client: &Client, path: &str, body: &Value) -> (u16, String) {
    match client.request::<Value>(Method::POST, path, Some(body)).await {
        Err(Error::Problem(problem)) => (problem.status, problem.detail.clone()),
        // A reply without a body.
        Ok(_) | Err(Error::Protocol(_)) => (202, String::new()),
        Err(error) => panic!("{path}: {error}"),
    }
}

async fn log_in(client: &Client, user: &str, password: &str) -> Result<NewToken, Error> {
    let login = Login { user: user.into(), password: password.into() };
    client.request(Method::POST, "/login", Some(&login)).await
}

async fn users(team: &Team) -> Vec<String> {
    let list: Value = team.server.client.request(Method::GET, "/users", None::<&Value>).await.unwrap();
    list["items"].as_array().unwrap().iter().map(|user| user["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_learns_from_no_answer_who_and_what_is_there() {
    let team = Team::new().await;
    let before = users(&team).await;
    let stranger = team.client(None).await;
    let ask = async |user: &str, workspace: &str| {
        let begun = Instant::now();
        let body = json!({ "user": user, "password": PASSWORD, "workspace": workspace });
        let said = answer(&stranger, "/signup", &body).await;
        (said, begun.elapsed())
    };
    let mut all = Vec::new();
    // New, taken, the server's own, and of a workspace that is not there.
    for (user, workspace) in [("new", "nlp"), ("owner", "nlp"), ("me", "nlp"), ("newer", "nowhere")] {
        all.push(ask(user, workspace).await);
    }
    assert!(all.iter().all(|(said, _)| *said == (202, String::new())), "{all:?}");
    assert!(all.iter().all(|(_, took)| *took >= Duration::from_millis(250)), "{all:?}");
    let mut expected = before;
    expected.push("new".into());
    expected.sort();
    assert_eq!(users(&team).await, expected, "only one of them waits");
    // Nobody got the name of somebody else by it.
    let me: Value = team.of("owner").await.request(Method::GET, "/whoami", None::<&Value>).await.unwrap();
    assert_eq!(me["user"], "owner");
    assert!(log_in(&stranger, "owner", PASSWORD).await.is_err());

    let wrong = async |user: &str| {
        let begun = Instant::now();
        let problem = refusal(log_in(&stranger, user, "a wrong password").await.err().unwrap());
        ((problem.status, problem.detail), begun.elapsed())
    };
    let (there, nobody) = (wrong("new").await, wrong("nobody-at-all").await);
    assert_eq!(there.0, nobody.0);
    assert!(there.1 >= Duration::from_millis(250) && nobody.1 >= Duration::from_millis(250));

    // Who is in learns nothing either of workspaces that are not theirs.
    let owner = team.of("owner").await;
    let join = async |name: &str| answer(&owner, &format!("/workspaces/{name}/requests"), &json!({})).await;
    assert_eq!(join("cv").await, join("nowhere").await);
    let token = async |workspace: &str| {
        let body = json!({ "name": "t", "scope": "read", "workspace": workspace });
        answer(&owner, "/users/owner/tokens", &body).await
    };
    let (cv, nowhere) = (token("cv").await, token("nowhere").await);
    assert_eq!((cv.0, cv.1.replace("cv", "X")), (nowhere.0, nowhere.1.replace("nowhere", "X")));
    assert_eq!(cv.0, 404);
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nobody_may_sign_up_nobody_can() {
    let dir = tempfile::tempdir().unwrap();
    let team = Team::on(Server::with_entrance(dir, false, Keep::default()).await).await;
    let body = json!({ "user": "new", "password": PASSWORD, "workspace": "nlp" });
    let (status, detail) = answer(&team.client(None).await, "/signup", &body).await;
    assert_eq!((status, detail.as_str()), (403, "nobody can sign up here"));
    assert!(!users(&team).await.contains(&"new".to_owned()));
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_password_ends_logins_and_tokens_if_that_is_asked_for() {
    let team = Team::new().await;
    let set = async |client: &Client, body: Value| match client
        .request::<Value>(Method::PUT, "/users/owner/password", Some(&body))
        .await
    {
        Ok(_) | Err(Error::Protocol(_)) => {}
        Err(error) => panic!("{error}"),
    };
    set(&team.server.client, json!({ "password": PASSWORD })).await;
    let stranger = team.client(None).await;
    let mut logins = Vec::new();
    for _ in 0..2 {
        logins.push(team.client(Some(&log_in(&stranger, "owner", PASSWORD).await.unwrap().secret)).await);
    }
    let token = team.of("owner").await;
    let is_in = async |client: &Client| is_allowed(client, Method::GET, "/whoami", None).await;
    set(&logins[0], json!({ "password": "another horse", "old": PASSWORD })).await;
    assert!(is_in(&logins[0]).await, "the one that it was done with goes on");
    assert!(!is_in(&logins[1]).await);
    assert!(is_in(&token).await, "programs go on");
    set(&logins[0], json!({ "password": PASSWORD, "old": "another horse", "tokens": true })).await;
    assert!(is_in(&logins[0]).await);
    assert!(!is_in(&token).await);
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_are_over_count_for_nothing_and_go() {
    let team = Team::new().await;
    let owner = team.of("owner").await;
    let make = async |name: String, seconds: Option<u64>| {
        let body = json!({ "name": name, "scope": "read", "expires_in_s": seconds });
        owner.request::<NewToken>(Method::POST, "/users/owner/tokens", Some(&body)).await
    };
    let listed = async || {
        let list: Value = owner.request(Method::GET, "/users/owner/tokens", None::<&Value>).await.unwrap();
        list["items"].as_array().unwrap().len()
    };
    // One is there by which the owner is known.
    for number in 1..99 {
        make(format!("t{number}"), None).await.unwrap();
    }
    let short = make("short".into(), Some(1)).await.unwrap();
    let client = team.client(Some(&short.secret)).await;
    assert_eq!(listed().await, 100);
    crate::fixture::until("it is over", async || {
        (!is_allowed(&client, Method::GET, "/whoami", None).await).then_some(())
    })
    .await;
    let rotate = format!("/users/owner/tokens/{}/rotate", short.token.id);
    let refused = owner.request::<Value>(Method::POST, &rotate, None::<&Value>).await.unwrap_err();
    assert!(refusal(refused).detail.contains("expired or is revoked"));
    // It makes room for another, and goes by that.
    make("one-more".into(), Some(1)).await.unwrap();
    assert_eq!(listed().await, 100);
    crate::fixture::until("that one is over, too, and is taken away", async || {
        let _: Value = team.server.client.request(Method::POST, "/gc", Some(&json!({}))).await.unwrap();
        (listed().await == 99).then_some(())
    })
    .await;
    make("the-last".into(), None).await.unwrap();
    let refused = refusal(make("too-many".into(), None).await.err().unwrap());
    assert!(refused.detail.contains("100 tokens"), "{}", refused.detail);
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_entries_of_the_audit_log_go_and_an_entry_says_so() {
    let keep = Keep { audit: Some(Duration::from_millis(1)), ..Keep::default() };
    let dir = tempfile::tempdir().unwrap();
    let team = Team::on(Server::with_entrance(dir, true, keep).await).await;
    let audit = async || {
        let page: Value =
            team.server.client.request(Method::GET, "/audit?limit=1000", None::<&Value>).await.unwrap();
        page["items"].as_array().unwrap().clone()
    };
    let before = audit().await.len();
    assert!(before > 10, "much was done");
    let _: Value = team.server.client.request(Method::POST, "/gc", Some(&json!({}))).await.unwrap();
    let left = audit().await;
    let said = left.iter().find(|entry| entry["operation"] == "remove_audit").expect("it says so");
    assert!(said["detail"]["entries"].as_u64().unwrap() >= before as u64, "{said}");
    assert!(left.iter().all(|entry| entry["operation"] != "create_user"), "{left:?}");
    team.server.stop().await;
}

async fn submit(client: &Client, key: &str) -> Result<String, Error> {
    let spec = json!({ "command": ["true"] });
    let request = CreateJob { spec, bundle: None, source: None, environment: None };
    Ok(client.create_job(&request, key).await?.summary.id.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_is_ones_own_and_so_is_a_key() {
    let team = Team::new().await;
    let (owner, member, root) = (team.of("owner").await, team.of("member").await, team.of("root").await);
    let hers = submit(&owner, "key").await.unwrap();
    let last = async |client: &Client| {
        let shown: Result<Value, Error> = client.request(Method::GET, "/jobs/last", None::<&Value>).await;
        shown.map(|job| job["id"].as_str().unwrap().to_owned())
    };
    assert_eq!(last(&owner).await.unwrap(), hers);
    for other in [&member, &root] {
        assert_eq!(refusal(last(other).await.unwrap_err()).detail, "you have no jobs yet");
    }
    // The same key of somebody else is another key.
    let his = submit(&member, "key").await.unwrap();
    assert_ne!(his, hers);
    assert_eq!(last(&owner).await.unwrap(), hers, "whoever else makes one");
    assert_eq!(submit(&owner, "key").await.unwrap(), hers, "once");

    // Who is elsewhere now is not told of it again.
    let role = json!({ "role": "member" });
    team.operator(Method::PUT, "/workspaces/cv/members/owner", &role).await;
    drop(
        team.server
            .client
            .request::<Value>(Method::DELETE, "/workspaces/nlp/members/owner", None::<&Value>)
            .await,
    );
    let problem = refusal(submit(&owner, "key").await.unwrap_err());
    assert_eq!(problem.code, muster_api::Code::IdempotencyConflict);
    assert!(!problem.detail.contains(&hers), "{}", problem.detail);
    team.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_keep_within_what_their_workspace_gives() {
    let team = Team::new().await;
    team.operator(
        Method::PATCH,
        "/workspaces/nlp",
        &json!({ "priority": 600, "max_run_time_ms": 3_600_000 }),
    )
    .await;
    let wrong = async |name: &str, spec: Value| {
        let (client, body) = (team.of(name).await, json!({ "spec": spec }));
        let made = client.request::<Value>(Method::POST, "/jobs?dry_run=true", Some(&body));
        made.await.err().map(|error| refusal(error).errors[0].field.clone())
    };
    let spec = |priority: u32, timeout: &str| json!({ "command": ["true"], "workspace": "nlp", "priority": priority, "timeout": timeout });
    assert_eq!(wrong("member", spec(600, "1h")).await, None);
    assert_eq!(wrong("member", spec(601, "1h")).await.as_deref(), Some("priority"));
    assert_eq!(wrong("lead", spec(1000, "1h")).await, None);
    for name in ["member", "lead", "root"] {
        assert_eq!(wrong(name, spec(600, "61m")).await.as_deref(), Some("timeout"), "{name}");
    }
    team.server.stop().await;
}
