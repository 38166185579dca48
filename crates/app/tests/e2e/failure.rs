//! A job that failed says which error its program had, in every place that says why it failed.

use muster_testkit::{DEADLINE, Running};

use crate::frameworks::{alone, environment};
use crate::{attempts, home};

#[test]
fn the_error_of_a_program_is_shown_wherever_its_failure_is() {
    let home = home();
    let done = home.run(["run", "--name", "bad", "--", "python3", "-c", "raise ValueError('bad sample 42')"]);
    let says = "exited with code 1: ValueError: bad sample 42";
    assert_eq!(done.code(), 1, "{}", done.err());
    assert!(done.err().contains(says), "{}", done.err());
    for words in
        [&["why", "bad"][..], &["show", "bad"], &["events", "bad"], &["ps", "--wide"], &["ps", "-o", "wide"]]
    {
        let text = home.ok(words);
        assert!(text.contains(says), "muster {words:?}: {text}");
    }
    let job = home.job("bad");
    assert_eq!(job["reason"]["error"], "ValueError: bad sample 42");
    assert_eq!(job["message"], says);
}

#[test]
fn an_array_names_the_error_of_its_elements() {
    let home = home();
    let line = "import os; i = os.environ['MUSTER_ARRAY_INDEX']; assert i == '1', 'bad sample ' + i";
    let done = home.run(["run", "--name", "bad", "--array", "1-2", "--", "python3", "-c", line]);
    let says = "1 of 2 elements failed; the first error: AssertionError: bad sample 2";
    assert_eq!(done.code(), 1, "{}", done.err());
    assert!(done.err().contains(says), "{}", done.err());
    for words in
        [&["why", "bad"][..], &["show", "bad"], &["events", "bad"], &["ps", "--wide"], &["ps", "-o", "wide"]]
    {
        let text = home.ok(words);
        assert!(text.contains(says), "muster {words:?}: {text}");
    }
    for words in [["elements", "bad"], ["show", "bad"]] {
        let text = home.ok(words);
        assert!(
            text.contains("exited with code 1: AssertionError: bad sample 2\n"),
            "muster {words:?}: {text}"
        );
    }
}

#[test]
fn programs_without_a_traceback_are_named_by_their_last_words() {
    let home = home();
    for (script, error) in [
        ("import sys; print('epoch 1'); sys.exit('no data in /data')", "no data in /data"),
        ("import torhc", "ModuleNotFoundError: No module named 'torhc'"),
        ("raise MemoryError", "MemoryError"),
    ] {
        let done = home.run(["run", "--", "python3", "-c", script]);
        let says = format!("exited with code 1: {error}\n");
        assert!(done.code() == 1 && done.err().contains(&says), "{}", done.err());
    }
    let script = "echo a warning >&2; sleep 1.2; echo all is well; exit 3";
    let done = home.run(["run", "--", "sh", "-c", script]);
    assert!(done.code() == 3 && done.err().contains("exited with code 3\n"), "{}", done.err());
}

#[test]
fn the_file_of_a_recorded_error_counts_more_than_the_log() {
    let home = home();
    let script = r#"echo '{"message": {"message": "KeyError: 7", "extraInfo": {}}}' > "$TORCHELASTIC_ERROR_FILE"; echo gone >&2; exit 1"#;
    let done = home.run(["run", "--", "sh", "-c", script]);
    assert!(done.code() == 1 && done.err().contains("exited with code 1: KeyError: 7\n"), "{}", done.err());
}

#[test]
fn an_attempt_begins_with_why_the_one_before_ended() {
    let home = home();
    let script = "import os, sys; print('try', os.environ['MUSTER_ATTEMPT']); os.environ['MUSTER_ATTEMPT'] == '2' or sys.exit('no luck')";
    let done = home.run(["run", "--retries", "1", "--", "python3", "-c", script]);
    assert_eq!((done.code(), done.out().as_str()), (0, "try 1\ntry 2\n"), "{}", done.err());
    let note = "attempt 1 ended: exited with code 1: no luck; attempt 2 begins";
    assert!(done.err().contains(note), "{}", done.err());
    assert_eq!(attempts(&home.job("last")).len(), 2);
}

/// One of four processes fails; the others wait for a message that never comes.
const TRAIN: &str = "\
import os, time
import torch.distributed as dist

dist.init_process_group('gloo')
dist.barrier()
if dist.get_rank() == 3:
    raise ValueError('bad sample 42')
time.sleep(600)
";

#[test]
fn under_torchrun_the_error_is_the_programs_and_not_the_launchers() {
    let _alone = alone();
    let home = home();
    home.write("t.py", TRAIN);
    let python = environment("pytorch").join("bin/python");
    let mut command = home.command(["run", "-N", "2", "--processes", "2", "--"]);
    command.arg(python).arg("t.py");
    let done = Running::start(command).finish_within(4 * DEADLINE);
    let says = "task1 exited with code 1: ValueError: bad sample 42\n";
    assert!(done.code() == 1 && done.err().contains(says), "{}", done.err());
}
