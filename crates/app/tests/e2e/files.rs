//! Files of tasks: seen and copied while a task runs, when it is over, and from the server when the node has none.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use muster_testkit::{Home, wait_for};
use serde_json::Value;

use crate::{home, until};

const SCRIPT: &str = r#"
mkdir -p sub "$MUSTER_OUTPUT_DIR/d"; echo inside > sub/a.txt; chmod 751 sub/a.txt
ln -s /etc/passwd outside; ln -s sub/a.txt link; printf 'x' > "$(printf 'odd\nname \377')"
echo 7 > "$MUSTER_OUTPUT_DIR/d/result"; touch "$SHARED/written"
"#;

fn paths(home: &Home, words: &[&str]) -> Vec<String> {
    let words: Vec<&str> = ["files"].into_iter().chain(words.iter().copied()).chain(["--json"]).collect();
    let list = home.json(&words);
    let items = list["items"].as_array().expect("a list of files");
    items.iter().map(|file| file["path"].as_str().expect("a path").to_owned()).collect()
}

/// Checks what can be seen of a task that ran [`SCRIPT`].
fn check(home: &Home, id: &str, round: &str) {
    let top = ["code.txt", "link", "odd\nname \u{fffd}", "outside", "sub", "@output"];
    assert_eq!(paths(home, &[id]), top);
    assert_eq!(paths(home, &[id, "sub/"]), ["sub/a.txt"]);
    assert_eq!(paths(home, &[id, "-r", "@output"]), ["@output/d", "@output/d/result"]);
    assert_eq!(home.ok(["get", id, "sub/a.txt", "-o", "-"]), "inside\n");
    assert_eq!(home.ok(["get", id, "link", "-o", "-"]), "inside\n", "a link that stays inside is followed");
    for (path, code) in
        [("nothing", "not_found"), ("outside", "invalid_request"), ("../..", "invalid_request")]
    {
        let refused = home.run(["get", id, path, "-o", "-"]);
        assert_eq!(refused.code(), 2, "{path}");
        assert!(refused.err().contains(&format!("error[{code}]")), "{path}: {}", refused.err());
    }
    let whole = format!("whole-{round}");
    home.ok(["get", id, ".", "-o", &whole]);
    let whole = home.work().join(whole);
    assert_eq!(fs::read_to_string(whole.join("sub/a.txt")).expect("it is there"), "inside\n");
    assert_eq!(
        fs::metadata(whole.join("sub/a.txt")).expect("it is there").permissions().mode() & 0o777,
        0o751
    );
    assert_eq!(fs::read_link(whole.join("outside")).expect("it is there").to_str(), Some("/etc/passwd"));
    let file = format!("file-{round}");
    home.ok(["get", id, "@output/d/result", "-o", &file]);
    assert_eq!(fs::read_to_string(home.work().join(&file)).expect("it is there"), "7\n");
    let refused = home.run(["get", id, "@output/d/result", "-o", &file]);
    assert!(refused.code() == 2 && refused.err().contains("error[file_exists]"), "{}", refused.err());
    home.ok(["get", id, "@output/d/result", "-o", &file, "--force"]);
    let made = format!("made-{round}/deep");
    home.ok(["get", id, "@output/d/result", "-o", &format!("{made}/")]);
    assert_eq!(fs::read_to_string(home.work().join(made).join("result")).expect("it is there"), "7\n");
    let left = fs::read_dir(home.work()).expect("it is there").flatten().map(|entry| entry.file_name());
    assert!(!left.into_iter().any(|name| name.to_string_lossy().starts_with('.')), "nothing half is left");
}

#[test]
fn a_tasks_files_are_seen_while_it_runs_and_when_it_is_over() {
    let home = home();
    home.write("code.txt", "code");
    let id = home.submit(&["--", "sh", "-c", &format!("{SCRIPT}{}", until("go"))]);
    home.wait_for_file("written");
    check(&home, &id, "running");
    home.touch("go");
    assert_eq!(home.run(["wait", &id]).code(), 0);
    check(&home, &id, "over");
    for (words, says) in [
        (["files", &id, "--task", "1"], "no task 1"),
        (["files", &id, "--attempt", "9"], "no attempt 9"),
        (["files", "nobody", "--task", "0"], "nobody"),
    ] {
        let refused = home.run(words);
        assert!(refused.code() == 2 && refused.err().contains(says), "{}", refused.err());
    }
}

#[test]
fn each_task_of_a_gang_has_files_of_its_own() {
    let home = home();
    let script = "echo $RANK > mine; echo $RANK > \"$MUSTER_OUTPUT_DIR/mine\"";
    let id = home.submit(&["-N", "2", "--", "sh", "-c", script]);
    assert_eq!(home.run(["wait", &id]).code(), 0);
    for rank in ["0", "1"] {
        for path in ["mine", "@output/mine"] {
            assert_eq!(home.ok(["get", &id, path, "--task", rank, "-o", "-"]), format!("{rank}\n"));
        }
    }
}

fn outputs(home: &Home, id: &str) -> Value {
    home.job(id)["attempts"][0]["tasks"][0]["outputs"].clone()
}

#[test]
fn outputs_come_home_also_from_a_job_that_fails_and_outlive_the_nodes_files() {
    let home = home();
    home.write("code.txt", "code");
    let yaml = "command: |\n  mkdir -p ckpt/deep; echo 1 > ckpt/a.pt; echo 2 > ckpt/deep/b.pt; echo no > ckpt/c.txt\n  \
                echo 3 > $MUSTER_OUTPUT_DIR/metrics.json; exit 3\noutputs: ['ckpt/**/*.pt', '@output']\n";
    home.write("job.yaml", yaml);
    assert_eq!(home.run(["run", "job.yaml", "--name", "fails"]).code(), 3);
    wait_for("the outputs to come home", || outputs(&home, "fails")["state"] == "collected");
    assert_eq!(
        (&outputs(&home, "fails")["files"], &outputs(&home, "fails")["bytes"]),
        (&3.into(), &6.into())
    );
    assert!(home.ok(["events", "fails"]).contains("outputs"), "it is an event");
    // As when the node has made room.
    let id = home.job("fails")["id"].as_str().unwrap().to_owned();
    let tasks = home.path().join("node/tasks");
    wait_for("the node to forget the task", || {
        fs::read_dir(tasks.join(format!("task0.{id}.1")))
            .is_ok_and(|mut dir| dir.all(|file| file.unwrap().file_name() != "record"))
    });
    fs::remove_dir_all(tasks.join(format!("task0.{id}.1"))).unwrap();
    let all = ["@output", "@output/metrics.json", "ckpt", "ckpt/a.pt", "ckpt/deep", "ckpt/deep/b.pt"];
    assert_eq!(paths(&home, &["fails", "-r"]), all);
    assert_eq!(home.json(["files", "fails", "--json"])["on"], "server");
    assert_eq!(home.ok(["get", "fails", "ckpt/deep/b.pt", "-o", "-"]), "2\n");
    home.ok(["get", "fails"]);
    assert_eq!(fs::read_to_string(home.work().join("output/metrics.json")).unwrap(), "3\n");
    home.ok(["get", "fails", "ckpt", "-o", "ckpt-here"]);
    assert_eq!(fs::read_to_string(home.work().join("ckpt-here/deep/b.pt")).unwrap(), "2\n");
    let absent = home.run(["get", "fails", "code.txt"]);
    assert!(absent.code() == 2 && absent.err().contains("not_found"), "{}", absent.err());
    home.ok(["rm", "fails"]);
}

#[test]
fn outputs_survive_an_agent_that_is_killed_while_they_are_due() {
    let home = home();
    home.write("job.yaml", "command: |\n  echo 1 > a.pt\noutputs: ['*.pt']\n");
    let id = home.submit(&["--file", "job.yaml"]);
    home.wait_for_state(&id, "succeeded");
    home.kill("agent");
    wait_for("the outputs to come home", || {
        let outputs = outputs(&home, &id);
        assert_ne!(outputs["state"], "failed", "{outputs}");
        outputs["state"] == "collected"
    });
}

#[test]
fn a_directory_with_a_link_in_the_place_of_a_file_is_copied_as_it_is() {
    let home = home();
    fs::create_dir(home.work().join("data")).unwrap();
    symlink("nowhere", home.work().join("data/dangling")).unwrap();
    let id = home.submit(&["--", "true"]);
    assert_eq!(home.run(["wait", &id]).code(), 0);
    home.ok(["get", &id, "data", "-o", "copy"]);
    assert_eq!(fs::read_link(home.work().join("copy/dangling")).unwrap().to_str(), Some("nowhere"));
}
