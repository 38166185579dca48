//! Lanes of an array: elements one after the other in one task, each with its own output, end and marks.

use std::fs;
use std::io::Write as _;
use std::time::Duration;

use muster_agent::supervisor::{NOTES, Outcome};
use muster_agent::task::{self, Observation};
use muster_agent::tree::Preference;
use muster_link::log::Reader;
use muster_link::message::Elements;
use muster_model::array::{Grant, Mark, Marked};
use muster_model::{ErrorLine, Reason};

use crate::harness::{Plan, Task, WAYS, wait_for};

/// A lane that runs a script for each element of an array.
fn lane(way: Preference, array: &str, grants: Vec<Grant>, script: &str) -> Plan {
    let mut plan = Plan::script_by(way, script);
    let output = plan.dir().join("output");
    fs::create_dir_all(&output).unwrap();
    plan.launch.env.insert("MUSTER_OUTPUT_DIR".into(), output.display().to_string());
    plan.launch.elements = Some(Elements { array: array.parse().unwrap(), grants });
    plan
}

fn grant(number: u32, places: &str, last: bool) -> Grant {
    Grant { number, places: places.parse().unwrap(), last }
}

fn marks(task: &Task) -> Vec<Marked> {
    task.log().marks(0, usize::MAX).unwrap().0
}

/// How each ended, in order.
fn ends(task: &Task) -> Vec<(u32, Option<Reason>)> {
    let ended = marks(task).into_iter().filter_map(|marked| match marked.mark {
        Mark::Ended { element, failure, .. } => Some((element, failure)),
        Mark::Began { .. } => None,
    });
    ended.collect()
}

/// What lies between the beginning and the end of an element.
fn output_of(task: &Task, index: u32) -> String {
    let marks = marks(task);
    let place = |wanted: &Mark| marks.iter().find(|marked| marked.mark == *wanted).unwrap().end;
    let from = place(&Mark::Began { element: index });
    let is_end = |marked: &&Marked| matches!(marked.mark, Mark::Ended { element, .. } if element == index);
    let to = marks.iter().find(is_end).unwrap().offset;
    let mut reader = Reader::new(task.log(), from);
    let records = std::iter::from_fn(|| reader.next_record().unwrap());
    let bytes: Vec<u8> =
        records.take_while(|record| record.offset < to).flat_map(|record| record.bytes).collect();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn each_element_has_its_index_its_output_and_its_end() {
    for way in WAYS {
        let script = "echo \"I am $MUSTER_ARRAY_INDEX\"; test $MUSTER_ARRAY_INDEX = 20 && exit 3; exit 0";
        let (exit, task) = lane(way, "5,10-30:10", vec![grant(1, "0-3", true)], script).run();
        assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
        let failed = Some(Reason::exited(3));
        assert_eq!(ends(&task), [(5, None), (10, None), (20, failed), (30, None)]);
        for index in [5, 10, 20, 30] {
            assert_eq!(output_of(&task, index), format!("I am {index}\n"));
        }
        task.assert_gone();
    }
}

#[test]
fn what_one_leaves_running_ends_before_the_next_and_what_the_setup_left_does_not() {
    for way in WAYS {
        let script = "test -n \"$(jobs -p)\"; kill -0 $(cat ../home/setup) || echo gone; (setsid sleep 1000 & echo $! > left.$MUSTER_ARRAY_INDEX); test ! -e left.0 || kill -0 $(cat left.0) 2>/dev/null && echo there; exit 0";
        let script = script.replace("../home/", "");
        let plan =
            lane(way, "0-2", vec![grant(1, "0-2", true)], &script).setup("sleep 1000 & echo $! > setup");
        let (exit, task) = plan.run();
        assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
        // The first finds its own; for the others it is long gone.
        assert_eq!([0, 1, 2].map(|index| output_of(&task, index)), ["there\n", "", ""], "{way:?}");
        task.assert_gone();
    }
}

/// Elements that fail in different ways, the last after one that left an error file and was none the worse for it.
const FAILING: &str = r#"
case $MUSTER_ARRAY_INDEX in
1) python3 -c 'raise ValueError("bad sample 42")';;
2) exit 3;;
3) echo '{"message": "KeyError: 7"}' > "$TORCHELASTIC_ERROR_FILE"; exit 4;;
4) exit 5;;
5) echo '{"message": "caught"}' > "$TORCHELASTIC_ERROR_FILE"; echo fine >&2;;
6) echo gone >&2; exit 6;;
esac
"#;

#[test]
fn an_element_that_fails_names_its_own_error() {
    let mut plan = lane(Preference::Auto, "1-6", vec![grant(1, "0-5", true)], FAILING);
    let notes = plan.dir().join(NOTES);
    fs::create_dir_all(&notes).unwrap();
    let file = notes.join("torch-error.json").display().to_string();
    plan.launch.env.insert("TORCHELASTIC_ERROR_FILE".into(), file);
    let (_, task) = plan.run();
    let failed = |exit_code, error| Some(Reason::ExitCode { exit_code, error: ErrorLine::new(error) });
    let expected = [
        (1, failed(1, "ValueError: bad sample 42")),
        (2, failed(3, "")),
        (3, failed(4, "KeyError: 7")),
        (4, failed(5, "")),
        (5, None),
        (6, failed(6, "gone")),
    ];
    assert_eq!(ends(&task), expected);
}

#[test]
fn more_can_be_given_to_a_lane_that_has_run_dry_and_twice_counts_once() {
    let mut task =
        lane(Preference::Auto, "1-9", vec![grant(1, "0", false)], "echo $MUSTER_ARRAY_INDEX >> all").start();
    wait_for("the first to end", || (ends(&task).len() == 1).then_some(()));
    for _ in 0..3 {
        task::grant(&task.dir, &grant(2, "1-3", false)).unwrap();
    }
    wait_for("the next to end", || (ends(&task).len() == 4).then_some(()));
    task::grant(&task.dir, &grant(4, "", true)).unwrap();
    task::grant(&task.dir, &grant(3, "4-8", false)).unwrap();
    assert_eq!(task.wait().outcome, Outcome::Exited { code: 0 });
    assert_eq!(fs::read_to_string(task.cwd().join("all")).unwrap(), "1\n2\n3\n4\n5\n6\n7\n8\n9\n");
}

#[test]
fn what_an_agent_was_killed_in_the_middle_of_writing_spoils_nothing() {
    let mut task =
        lane(Preference::Auto, "1-3", vec![grant(1, "0", false)], "echo $MUSTER_ARRAY_INDEX >> all").start();
    wait_for("the first to end", || (ends(&task).len() == 1).then_some(()));
    let mut file = fs::OpenOptions::new().append(true).create(true).open(task.dir.join("elements")).unwrap();
    file.write_all(b"{\"number\":2,\"pla").unwrap();
    task::grant(&task.dir, &grant(2, "1-2", true)).unwrap();
    assert_eq!(task.wait().outcome, Outcome::Exited { code: 0 });
    assert_eq!(fs::read_to_string(task.cwd().join("all")).unwrap(), "1\n2\n3\n");
}

#[test]
fn an_element_that_takes_too_long_ends_alone() {
    let script =
        "test $MUSTER_ARRAY_INDEX != 1 || { trap '' TERM; sleep 1000 & wait; sleep 1000; }; echo done";
    let plan = lane(Preference::Auto, "0-2", vec![grant(1, "0-2", true)], script);
    let (exit, task) = plan.timeout(Duration::from_millis(700), Duration::from_millis(100)).run();
    assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
    assert_eq!(
        ends(&task),
        [(0, None), (1, Some(Reason::Timeout { limit_ms: 700, set_by: Default::default() })), (2, None)]
    );
    assert_eq!(output_of(&task, 2), "done\n");
    task.assert_gone();
}

#[test]
fn a_stop_ends_the_element_under_way_and_begins_no_other() {
    let script = "trap 'echo stopped; exit 4' TERM; touch ready; while :; do sleep 0.05; done";
    let mut task = lane(Preference::Auto, "0-9", vec![grant(1, "0-9", true)], script).start();
    wait_for("the first to be ready", || task.cwd().join("ready").exists().then_some(()));
    task::stop(&task.dir, Duration::from_secs(20), "preempted").unwrap();
    let exit = task.wait();
    assert!(exit.stopped);
    let failure = Some(Reason::exited(4));
    let all: Vec<Mark> = marks(&task).into_iter().map(|marked| marked.mark).collect();
    assert_eq!(all, [Mark::Began { element: 0 }, Mark::Ended { element: 0, failure, stopped: true }]);
    // The shell may say besides that what it waited for was ended.
    assert!(output_of(&task, 0).contains("stopped\n"), "{}", output_of(&task, 0));
}

#[test]
fn a_killed_supervisor_leaves_marks_that_say_what_was_done_and_no_process() {
    for way in WAYS {
        let script = "echo $MUSTER_ARRAY_INDEX >> all; test $MUSTER_ARRAY_INDEX != 3 || exec sleep 1000";
        let mut task = lane(way, "0-9", vec![grant(1, "0-9", true)], script).start();
        wait_for("the fourth", || {
            let all = fs::read_to_string(task.cwd().join("all")).unwrap_or_default();
            (all.lines().count() == 4).then_some(())
        });
        task.kill_supervisor();
        assert!(matches!(task::observe(&task.dir).unwrap(), Observation::SupervisorLost(_)));
        let pipes = task.pipes.take();
        assert_eq!(task::bury(&task.dir, pipes.as_ref()).unwrap().outcome, Outcome::SupervisorLost);
        assert_eq!(ends(&task), [(0, None), (1, None), (2, None)]);
        assert_eq!(marks(&task).last().unwrap().mark, Mark::Began { element: 3 });
        task.assert_gone();
    }
}

#[test]
fn a_program_that_is_not_there_fails_each_element_and_not_the_lane() {
    let mut plan = lane(Preference::Auto, "1-2", vec![grant(1, "0-1", true)], "");
    plan.launch.steps[0].argv = vec!["no-such-program".into()];
    let (exit, task) = plan.run();
    assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
    let missing = Some(Reason::CommandNotFound { command: "no-such-program".into() });
    assert_eq!(ends(&task), [(1, missing.clone()), (2, missing)]);
}

#[test]
fn each_has_a_new_directory_for_its_output_and_what_is_not_used_is_not_kept() {
    let script = "stat -c '%a %n' $MUSTER_OUTPUT_DIR | sed 's,/.*/,,'; ls -A $MUSTER_OUTPUT_DIR; \
                  case $MUSTER_ARRAY_INDEX in 2) touch $MUSTER_OUTPUT_DIR/kept ;; 4) chmod 500 $MUSTER_OUTPUT_DIR ;; esac";
    let (_, task) = lane(Preference::Auto, "1-6", vec![grant(1, "0-5", true)], script).run();
    let look = |index: u32| output_of(&task, index);
    let mode = look(1).split(' ').next().unwrap().to_owned();
    for index in 1..=6 {
        assert_eq!(look(index), format!("{mode} {index}\n"));
    }
    let left = fs::read_dir(task.dir.join("output")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["2"]);
}

#[test]
fn a_setup_does_not_say_where_directories_for_output_are_made() {
    let setup = "mkdir elsewhere; export MUSTER_OUTPUT_DIR=$PWD/elsewhere MUSTER_TASK_ID=another SET=up; \
                 { echo environment; env -0; } >&3";
    let script = "echo $SET $MUSTER_TASK_ID; touch $MUSTER_OUTPUT_DIR/kept";
    let (exit, task) = lane(Preference::Auto, "7", vec![grant(1, "0", true)], script).setup(setup).run();
    assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
    let said = output_of(&task, 7);
    assert!(said.starts_with("up test-"), "{said}");
    assert_eq!(fs::read_dir(task.cwd().join("elsewhere")).unwrap().count(), 0);
    assert!(task.dir.join("output/7/kept").exists());
}
