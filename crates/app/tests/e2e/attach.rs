//! `muster attach`: staying with a job that somebody left.

use rustix::process::Signal;

use crate::{home, until};

fn script() -> String {
    format!("echo one; echo err >&2; {}; echo two; exit 3", until("go"))
}

#[test]
fn it_shows_the_job_and_ends_with_its_code() {
    let home = home();
    let id = home.submit(&["--name", "bert", "--", "sh", "-c", &script()]);
    let attach = home.start(["attach", "bert"]);
    attach.wait_for_out("one");
    home.touch("go");
    let done = attach.finish();
    assert_eq!((done.out().as_str(), done.code()), ("one\ntwo\n", 3), "{}", done.err());
    assert!(done.err().contains("err\n") && done.err().contains(&id), "{}", done.err());
    let done = home.run(["attach", "bert", "--tail", "1", "--json"]);
    assert_eq!(done.code(), 3, "one that is over is shown and has its code all the same");
    let job: serde_json::Value = serde_json::from_str(&done.out()).unwrap();
    assert_eq!(job["state"], "failed");
    assert!(done.err().contains("two") && !done.err().contains("one\n"), "{}", done.err());
}

#[test]
fn whoever_leaves_leaves_the_job_alone() {
    let home = home();
    let id = home.submit(&["--", "sh", "-c", &script()]);
    let attach = home.start(["attach", &id]);
    attach.wait_for_out("one");
    attach.signal(Signal::INT);
    assert_eq!(attach.finish().code(), 130, "there is nobody to ask");
    let mut attach = home.start_on_terminal(["attach", &id]);
    attach.wait_for("one", 1);
    attach.press("\x03");
    attach.wait_for("[d]etach", 1);
    attach.press("d\n");
    assert_eq!(attach.finish().0.code(), Some(0));
    let mut attach = home.start_on_terminal(["attach", &id]);
    attach.wait_for("one", 1);
    attach.press("\x03");
    attach.wait_for("[s]top", 1);
    attach.press("s\n");
    assert_eq!(attach.finish().0.code(), Some(130));
    home.wait_for_state(&id, "stopped");
}
