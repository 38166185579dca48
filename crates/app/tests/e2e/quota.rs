//! Who may have what: quotas and limits are set, obeyed, shown and remembered; and who goes first can be changed.

use muster_testkit::{Home, wait_for};
use serde_json::{Value, json};

use crate::{attempts, home_with, until};

/// One machine with devices, as far as anybody can tell.
fn with_devices(count: u32) -> Home {
    home_with(&format!("[local]\ndevices = [\"H100:{count}\"]\n"))
}

/// A job that holds devices until it is let go.
fn hold(home: &Home, name: &str, words: &[&str]) -> String {
    home.submit(&[&["--name", name], words, &["--", "sh", "-c", &until("go")]].concat())
}

fn queue(home: &Home, words: &[&str]) -> Vec<(Option<u64>, String, String)> {
    let page = home.json([&["queue", "--json"], words].concat());
    let one = |it: &Value| {
        let text = |field: &str| it[field].as_str().unwrap_or_default().to_owned();
        (it["position"].as_u64(), text("name"), text("code"))
    };
    page["items"].as_array().expect("a page").iter().map(one).collect()
}

#[test]
fn a_quota_is_obeyed_shown_and_outlives_the_server() {
    let home = with_devices(8);
    let said =
        home.ok(["quota", "set", "vision", "--gpus", "4,borrow=0", "--model", "h100=4", "--weight", "2"]);
    assert_eq!(said, "vision: gpus 4, borrows none; h100 4; weight 2\n");
    let first = hold(&home, "first", &["--workspace", "vision", "--gpus", "3"]);
    home.wait_for_state(&first, "running");
    let second = hold(&home, "second", &["--workspace", "vision", "--gpus", "2"]);
    let other = hold(&home, "other", &["--gpus", "2"]);
    home.wait_for_state(&other, "running");
    let waits = |why: &str| {
        assert_eq!(home.json(["why", &second, "--json"])["code"], why);
        assert_eq!(queue(&home, &[]), [(Some(1), "second".into(), why.into())]);
    };
    waits("out_of_quota");

    // Also when nobody had time to say goodbye.
    home.kill("server");
    waits("out_of_quota");
    let view = home.json(["quota", "--json"]);
    let vision = &view["workspaces"].as_array().unwrap()[1];
    assert_eq!((&vision["workspace"], &vision["weight"]), (&json!("vision"), &json!(2.0)), "{view}");
    let gpus = &vision["resources"][0];
    assert_eq!((&gpus["resource"], &gpus["nominal"], &gpus["used"]), (&json!("gpus"), &json!(4), &json!(3)));
    assert_eq!(
        (&gpus["left"], &gpus["borrow"], &gpus["borrowed"]),
        (&json!(1), &json!(0), &json!(0)),
        "{gpus}"
    );
    let available =
        |workspace: &str| home.json(["quota", "--json", "--workspace", workspace])["available"][0].clone();
    let get = available("vision");
    assert_eq!((&get["all"], &get["free"], &get["quota_left"]), (&json!(8), &json!(3), &json!(1)), "{get}");
    assert_eq!(get["largest"], json!({ "nodes": 1, "gpus": 1 }), "{get}");
    assert_eq!(available("default")["largest"], json!({ "nodes": 1, "gpus": 3 }));
    let nodes = home.ok(["nodes"]);
    assert!(nodes.contains("STARTS NOW") && nodes.contains("--gpus H100:3"), "{nodes}");
    assert!(home.ok(["quota"]).contains("4, borrows none"), "{}", home.ok(["quota"]));

    // What is taken away is in nobody's way.
    assert_eq!(home.ok(["quota", "clear", "vision"]), "vision has no quota\n");
    home.wait_for_state(&second, "running");
    home.touch("go");
    for job in [&first, &second, &other] {
        home.wait_for_state(job, "succeeded");
    }
    assert_eq!(home.json(["quota", "--json"])["workspaces"], json!([]));
}

#[test]
fn one_user_runs_no_more_at_once_than_they_may() {
    let home = with_devices(8);
    assert_eq!(
        home.ok(["quota", "user", "--everybody", "--max-running", "1"]),
        "everybody runs at most 1 at once\n"
    );
    let first = hold(&home, "first", &[]);
    home.wait_for_state(&first, "running");
    let second = hold(&home, "second", &[]);
    wait_for("it to wait", || queue(&home, &[]).len() == 1);
    assert_eq!(home.json(["why", &second, "--json"])["code"], "user_limit");
    let me = home.json(["whoami", "--json"])["user"].as_str().unwrap().to_owned();
    home.ok(["quota", "user", &me, "--max-running", "2"]);
    home.wait_for_state(&second, "running");
    let view = home.json(["quota", "--json"]);
    assert_eq!((&view["max_running"], &view["users"][0]["running"]), (&json!(1), &json!(2)), "{view}");
    home.ok(["quota", "clear", "--user", &me]);
    home.ok(["quota", "clear", "--everybody"]);
    assert_eq!(home.json(["quota", "--json"])["users"], json!([]));
    home.touch("go");
    home.wait_for_state(&second, "succeeded");
}

#[test]
fn what_is_wrong_with_a_quota_is_named() {
    let home = with_devices(1);
    for (words, parts) in [
        (&["quota", "set", "vision", "--gpus", "some"][..], &["`some`", "write for example 16"][..]),
        (&["quota", "set", "vision", "--gpus", "4,steal=2"], &["steal=2", "borrow=AMOUNT"]),
        (&["quota", "set", "vision", "--weight", "0"], &["weight", "0.001"]),
        (&["quota", "set", "vision", "--model", "H 100=1"], &["models", "H 100"]),
        (&["quota", "user"], &["<USER>"]),
        (&["quota", "set", "no/such name", "--gpus", "1"], &["workspace"]),
        (&["priority", "nothing", "2000"], &["2000"]),
        (&["queue", "--limit", "0"], &["--limit"]),
    ] {
        let refused = home.run(words);
        assert_eq!(refused.code(), 2, "{words:?}: {}{}", refused.out(), refused.err());
        for part in parts {
            assert!(refused.err().contains(part), "{words:?}: {part}: {}", refused.err());
        }
    }
    assert_eq!(home.json(["quota", "--json"])["workspaces"], json!([]));
}

#[test]
fn a_job_of_higher_priority_goes_first_also_after_a_crash() {
    let home = with_devices(1);
    let running = hold(&home, "running", &["--gpus", "1"]);
    home.wait_for_state(&running, "running");
    for name in ["early", "late"] {
        home.submit(&[
            "--name",
            name,
            "--gpus",
            "1",
            "--",
            "sh",
            "-c",
            &format!("echo {name} >> \"$SHARED/order\""),
        ]);
    }
    let names = || queue(&home, &[]).into_iter().map(|it| (it.0, it.1)).collect::<Vec<_>>();
    assert_eq!(names(), [(Some(1), "early".into()), (Some(2), "late".into())]);
    assert!(home.ok(["priority", "late", "900"]).ends_with("has priority 900\n"));
    assert_eq!(names(), [(Some(1), "late".into()), (Some(2), "early".into())]);
    home.kill("server");
    assert_eq!(names(), [(Some(1), "late".into()), (Some(2), "early".into())]);
    assert_eq!(home.job("late")["spec"]["priority"], 900);
    assert_eq!(home.job("early")["spec"]["priority"], 500);
    assert_eq!(queue(&home, &["--limit", "1"]).len(), 1);
    assert_eq!(queue(&home, &["--on", "ssh/none"]), []);
    let events = home.ok(["events", "late", "--json"]);
    assert!(events.contains("\"reprioritised\"") && events.contains("\"to\":900"), "{events}");
    home.touch("go");
    home.wait_for_state("early", "succeeded");
    home.wait_for_state("late", "succeeded");
    assert_eq!(home.wait_for_file("order"), "late\nearly\n");
    let over = home.run(["priority", "late", "100"]);
    assert!(over.code() != 0 && over.err().contains("over"), "{}", over.err());
}

#[test]
fn pause_is_another_word_for_suspend() {
    let home = with_devices(1);
    let job = hold(&home, "paused", &[]);
    home.wait_for_state(&job, "running");
    home.ok(["pause", &job]);
    assert_eq!(home.job(&job)["state"], "suspended");
    home.touch("go");
    home.ok(["resume", &job]);
    home.wait_for_state(&job, "succeeded");
}

#[test]
fn a_node_is_emptied_with_notice_and_nothing_is_lost() {
    let home = with_devices(1);
    let line = format!(
        "trap 'test -e \"$MUSTER_STOP_FILE\" && echo saved > \"$SHARED/saved\"; exit 0' TERM; {}",
        until("go")
    );
    let job = home.submit(&["--retries", "1", "--gpus", "1", "--", "sh", "-c", &line]);
    home.wait_for_state(&job, "running");
    assert!(home.ok(["nodes", "drain", "local", "--evict"]).contains("told to end"));
    let queued = home.wait_for_state(&job, "queued");
    assert_eq!(queued["reason"]["code"], "displaced", "{queued}");
    assert_eq!(home.wait_for_file("saved"), "saved\n", "it had its notice");
    assert_eq!(home.json(["why", &job, "--json"])["code"], "no_node");

    // Nobody sends it back there before its time, whoever restarts.
    home.kill("server");
    assert_eq!(home.job(&job)["state"], "queued");
    home.ok(["nodes", "undrain", "local"]);
    home.wait_for_state(&job, "running");
    home.touch("go");
    let over = home.wait_for_state(&job, "succeeded");
    assert_eq!(attempts(&over).len(), 2);
    let events = home.ok(["events", &job, "--json"]);
    assert!(events.contains("\"evicted\"") && !events.contains("backoff"), "{events}");
}
