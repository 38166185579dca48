//! Names in any script: display names of jobs, where they are shown, found and refused.

use muster_testkit::{Finished, Home};
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

use crate::{home, until};

const TASK: &str = "训练任务";

/// A job that runs until `go` is there.
fn start(home: &Home, flags: &[&str]) -> Finished {
    let line = until("go");
    let words = [&["run", "--detach"], flags, &["--", "sh", "-c", &line]].concat();
    let done = home.run(words);
    assert_eq!(done.code(), 0, "{}", done.err());
    done
}

fn id_of(done: &Finished) -> String {
    done.out().trim().to_owned()
}

/// The display column at which a cell begins.
fn start_of(line: &str, cell: &str) -> usize {
    let at = line.find(cell).unwrap_or_else(|| panic!("`{cell}` is in `{line}`"));
    line[..at].width()
}

#[test]
fn a_job_with_a_name_in_any_script_runs_and_is_found_by_it() {
    let home = home();
    let first = start(&home, &["--name", TASK]);
    assert!(
        first.err().contains("`训练任务` is the display name of the job; its name is `sh`"),
        "{}",
        first.err()
    );
    let first = id_of(&first);
    let job = home.job(TASK);
    assert_eq!((&job["id"], &job["name"], &job["display_name"]), (&json!(first), &json!("sh"), &json!(TASK)));
    assert_eq!((&job["spec"]["display_name"], &job["spec"]["name"]), (&json!(TASK), &Value::Null));
    assert_eq!(home.ok(["ps", "-q", TASK]).trim(), first);
    assert!(home.ok(["show", TASK]).contains("display name: 训练任务\n"));
    assert_eq!(home.json(["why", TASK, "--json"])["display_name"], TASK);
    assert!(home.ok(["top", "--once"]).contains("sh (训练任务)"));

    // However it is typed; and the identifier goes on to name it, too.
    let composed = id_of(&start(&home, &["--display-name", "größe 2", "--name", "groesse"]));
    for selector in ["größe 2", "gro\u{308}ße 2", "groesse"] {
        assert_eq!(home.job(selector)["id"], json!(composed), "{selector}");
    }

    // Two of one name: the user says which.
    let second = id_of(&start(&home, &["--name", TASK]));
    for command in ["logs", "stop", "show", "ps"] {
        let done = home.run([command, TASK]);
        assert_eq!(done.code(), 2, "{command}: {}", done.err());
        for id in [&first, &second] {
            assert!(done.err().contains(id.as_str()), "{command}: {}", done.err());
        }
        assert!(done.err().contains("fits several jobs") && done.err().contains("hint:"), "{}", done.err());
    }
    home.ok(["stop", &second]);
    home.wait_for_state(&second, "stopped");
    home.ok(["stop", TASK]);
    home.wait_for_state(&first, "stopped");
    let done = home.run(["show", "训练任务二"]);
    assert_eq!(done.code(), 2);
    assert!(done.err().contains("did you mean `训练任务`?"), "{}", done.err());
    home.touch("go");
    home.wait_for_state(&composed, "succeeded");
}

#[test]
fn tables_stay_aligned_whatever_the_letters() {
    let home = home();
    let plain = id_of(&start(&home, &["--name", "plain"]));
    let before = home.ok(["ps"]);
    assert!(!before.contains("DISPLAY NAME"), "without display names nothing changes: {before}");
    let names = ["训练任务（第二轮）", "größe", "обучение №7", "학습", "🚀 liftoff", "การฝึก"];
    let submit = |name| id_of(&start(&home, &["--display-name", name]));
    let ids: Vec<String> = names.into_iter().map(submit).chain([plain]).collect();
    for id in &ids {
        home.wait_for_state(id, "running");
    }
    for wide in [&["ps"][..], &["ps", "-o", "wide"]] {
        let table = home.ok(wide);
        let (header, rows) = table.split_once('\n').expect("a header");
        assert_eq!(rows.lines().count(), ids.len(), "{table}");
        for row in rows.lines() {
            assert_eq!(start_of(row, "running"), start_of(header, "STATE"), "{table}");
            assert_eq!(start_of(row, "sh -c"), start_of(header, "COMMAND"), "{table}");
        }
        for name in names {
            let row =
                rows.lines().find(|row| row.contains(name)).unwrap_or_else(|| panic!("{name}: {table}"));
            assert_eq!(start_of(row, name), start_of(header, "DISPLAY NAME"), "{table}");
        }
    }
    home.touch("go");
    for id in &ids {
        home.wait_for_state(id, "succeeded");
    }
}

#[test]
fn what_a_batch_script_is_called_in_another_script_is_its_display_name() {
    let home = home();
    let script = "#!/bin/bash\n#SBATCH -J 训练任务\necho \"$SLURM_JOB_NAME|$MUSTER_JOB_NAME|$MUSTER_JOB_DISPLAY_NAME\"\n";
    home.write("bert.sbatch", script);
    let done = home.run(["run", "bert.sbatch"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    assert_eq!(done.out(), "训练任务|bert|训练任务\n");
    assert!(
        done.err().contains("`训练任务` is the display name of the job; its name is `bert`"),
        "{}",
        done.err()
    );
    assert_eq!(home.ok(["logs", TASK]), done.out());
    let spec = home.json(["clone", TASK, "--dry-run", "--json"]);
    assert!(spec.to_string().contains(TASK), "{spec}");
}

#[test]
fn text_that_hides_or_reorders_is_refused_with_the_field_and_the_remedy() {
    let home = home();
    home.write("job.yaml", "command: 'true'\ndisplay_name: \"a\\u202eb\"\n");
    for (words, expected) in [
        (
            vec!["run", "--name", "训\u{202e}练", "--", "true"],
            r"--name: must not contain a character that changes the direction of text (U+202E), as `训\u{202e}练` does",
        ),
        (
            vec!["run", "--display-name", "a\u{200b}b", "--", "true"],
            r"--display-name: must not contain an invisible character (U+200B)",
        ),
        (
            vec!["run", "--display-name", "a\x1b[2Jb", "--", "true"],
            r"--display-name: must not contain a control character (U+001B), as `a\x1b[2Jb` does",
        ),
        (
            vec!["run", "--display-name", "a   running", "--", "true"],
            "--display-name: must not have more than one space in a row",
        ),
        (
            vec!["run", "--display-name", "job_0123456789", "--", "true"],
            "--display-name: `job_0123456789` would be taken for a job id",
        ),
        (vec!["run", "--name", "my run", "--", "true"], "`display_name` takes it"),
        (
            vec!["run", "--name", "训练", "--display-name", "任务", "--", "true"],
            "--name: must be 1 to 63 letters",
        ),
        (vec!["submit", "job.yaml"], "display_name: must not contain a character that changes the direction"),
    ] {
        let done = home.run(&words);
        assert_eq!(done.code(), 2, "{words:?}: {}", done.err());
        assert!(done.err().contains(expected), "{words:?}: {}", done.err());
        let hidden =
            |letter: char| letter.is_control() && letter != '\n' || matches!(letter, '\u{200b}' | '\u{202e}');
        assert!(!done.err().contains(hidden), "{words:?}: {:?}", done.err());
    }
    // What a client does not check, the server does.
    home.ok(["server", "start"]);
    let body = json!({"spec": {"command": "true", "display_name": "训".repeat(101)}});
    let reply = home.post("/api/v1/jobs", &body);
    assert_eq!(reply.status, 422, "{}", reply.text());
    assert_eq!(reply.json()["errors"][0]["field"], "display_name", "{}", reply.text());
    assert_eq!(home.json(["ps", "--all", "--json"]), json!([]));
}
