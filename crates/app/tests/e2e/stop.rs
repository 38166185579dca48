//! Ending jobs: Ctrl-C with and without a terminal, `stop`, its grace and its force.

use std::time::{Duration, Instant};

use muster_testkit::with_word;
use rustix::process::Signal;
use serde_json::json;

use crate::{home, until};

#[test]
fn a_signal_without_a_terminal_stops_the_job() {
    let home = home();
    for signal in [Signal::INT, Signal::TERM] {
        let client = home.start(["run", "--", "sh", "-c", "echo up; sleep 600"]);
        client.wait_for_out("up");
        client.signal(signal);
        let done = client.finish();
        assert_eq!(done.code(), 130, "{signal:?}: {}", done.err());
        let job = home.job("last");
        assert_eq!((&job["state"], &job["reason"]["code"]), (&json!("stopped"), &json!("stopped_by_user")));
        home.wait_for_no_tasks();
    }
}

#[test]
fn ctrl_c_on_a_terminal_asks_whether_to_stop_or_detach() {
    let home = home();
    let script = format!("echo up; {}; echo still here; exec sleep 600", until("go"));
    let words = ["run", "--", "sh", "-c", &script];
    let question = "[d]etach";

    let mut terminal = home.start_on_terminal(words);
    terminal.wait_for("up\r\n", 1);
    let id = home.job("last")["id"].as_str().unwrap().to_owned();
    terminal.press("\x03");
    terminal.wait_for(question, 1);
    terminal.press("what?\n");
    terminal.wait_for("please answer", 1);
    terminal.press("c\n");
    home.touch("go");
    terminal.wait_for("still here\r\n", 1);
    terminal.press("\x03");
    terminal.wait_for(question, 2);
    terminal.press("d\n");
    let (status, screen) = terminal.finish();
    assert_eq!(status.code(), Some(0), "{screen}");
    assert!(screen.contains(&format!("muster logs -f {id}")), "{screen}");
    assert_eq!(home.job(&id)["state"], "running", "a job that was left alone goes on");
    home.ok(["stop", &id]);

    let mut terminal = home.start_on_terminal(words);
    terminal.wait_for("up\r\n", 1);
    terminal.press("\x03");
    terminal.wait_for(question, 1);
    terminal.press("s\n");
    let (status, screen) = terminal.finish();
    assert_eq!(status.code(), Some(130), "{screen}");
    assert_eq!(home.job("last")["state"], "stopped");

    // Twice means it.
    let mut terminal = home.start_on_terminal(words);
    terminal.wait_for("up\r\n", 1);
    terminal.press("\x03");
    terminal.wait_for(question, 1);
    terminal.press("\x03");
    let (status, screen) = terminal.finish();
    assert_eq!(status.code(), Some(130), "{screen}");
    assert_eq!(home.job("last")["state"], "stopped");
    home.wait_for_no_tasks();
}

#[test]
fn a_terminal_that_is_closed_leaves_the_job_running() {
    let home = home();
    let terminal = home.start_on_terminal(["run", "--", "sh", "-c", &format!("echo up; {}", until("go"))]);
    terminal.wait_for("up\r\n", 1);
    terminal.hang_up();
    // What a task writes may be here before the word that it runs.
    home.wait_for_state("last", "running");
    home.touch("go");
    home.wait_for_state("last", "succeeded");
}

#[test]
fn stop_asks_first_and_kills_after_the_grace() {
    let home = home();
    let polite = "trap 'echo saved > \"$SHARED/saved\"; exit 0' TERM; echo up > \"$SHARED/up\"; while :; do sleep 0.05; done";
    let id = home.submit(&["--", "sh", "-c", polite]);
    home.wait_for_file("up");
    let stopped = home.json(["stop", &id, "--json"]);
    assert_eq!(stopped[0]["state"], "stopped");
    assert_eq!(home.wait_for_file("saved"), "saved\n", "SIGTERM comes first, and there is time to save");
    assert_eq!(home.run(["wait", &id]).code(), 130);
    // One that is over is left as it is.
    assert_eq!(home.json(["stop", &id, "--json"])[0]["state"], "stopped");

    let mark = format!("deaf-{}", std::process::id());
    let deaf = |up: &str| format!("trap '' TERM; echo up > \"$SHARED/{up}\"; while :; do sleep 0.05; done");
    let id = home.submit(&["--grace", "700ms", "--", "sh", "-c", &deaf("up2"), &mark]);
    home.wait_for_file("up2");
    let begun = Instant::now();
    home.ok(["stop", &id]);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(700), "killed after {took:?}, before its grace was over");
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert_eq!(with_word(&mark), []);

    let id = home.submit(&["--grace", "1h", "--", "sh", "-c", &deaf("up3"), &mark]);
    home.wait_for_file("up3");
    let begun = Instant::now();
    home.ok(["stop", &id, "--grace", "300ms"]);
    assert!(begun.elapsed() < Duration::from_secs(8), "the flag goes before the job's own grace");

    let id = home.submit(&[
        "--grace",
        "1h",
        "--",
        "sh",
        "-c",
        &polite.replace("up", "up4").replace("saved", "saved4"),
    ]);
    home.wait_for_file("up4");
    home.ok(["stop", &id, "--force"]);
    assert!(!home.shared().join("saved4").exists(), "--force does not ask");
    home.wait_for_no_tasks();
}
