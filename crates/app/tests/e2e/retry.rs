//! Retries as a training sees them: which attempt it is, what the one before left, and when there is no further one.

use muster_testkit::Home;

use crate::{attempts, home};

/// Goes on where the attempt before has stopped, and dies until it has made three steps.
const TRAIN: &str = r#"
date +%s%N >> "$SHARED/times"
step=0
if [ -n "${MUSTER_PREVIOUS_OUTPUT_DIR-}" ]; then
    step=$(cat "$MUSTER_PREVIOUS_OUTPUT_DIR/checkpoint")
fi
step=$((step + 1))
echo "attempt $MUSTER_ATTEMPT makes step $step"
echo $step > "$MUSTER_OUTPUT_DIR/checkpoint"
date +%s%N >> "$SHARED/times"
[ $step -eq 3 ] || kill -9 $$
"#;

fn submit(home: &Home, retries: &str, script: &str) -> String {
    home.write("train.sh", script);
    home.write("job.yaml", format!("retries: {retries}\ncommand: [sh, train.sh]\n"));
    home.submit(&["--file", "job.yaml"])
}

#[test]
fn an_attempt_goes_on_from_the_checkpoint_of_the_one_before() {
    let home = home();
    let job = submit(&home, "{max: 2, backoff: 200ms}", TRAIN);
    assert_eq!(home.run(["wait", &job]).code(), 0, "{}", home.ok(["logs", &job]));
    let shown = home.job(&job);
    let all = attempts(&shown);
    assert_eq!(all.len(), 3);
    for number in 1..=3 {
        let text = home.ok(["logs", &job, "--attempt", &number.to_string()]);
        assert_eq!(text, format!("attempt {number} makes step {number}\n"));
    }
    // Each pause is twice the one before, at least.
    let times = home.wait_for_file("times");
    let times: Vec<u64> = times.lines().map(|line| line.parse().expect("nanoseconds")).collect();
    for (end_and_begin, pause) in times[1..5].chunks(2).zip([200_000_000, 400_000_000]) {
        assert!(end_and_begin[1] - end_and_begin[0] >= pause, "{times:?}");
    }
}

#[test]
fn a_reason_that_is_not_listed_is_not_retried() {
    let home = home();
    let job = submit(&home, "{max: 2, on: [node_lost, timeout]}", TRAIN);
    assert_ne!(home.run(["wait", &job]).code(), 0);
    let shown = home.job(&job);
    assert_eq!((attempts(&shown).len(), &shown["reason"]["code"]), (1, &"signal".into()), "{shown}");
    let job = submit(&home, "{max: 2, on: [signal]}", TRAIN);
    assert_eq!(home.run(["wait", &job]).code(), 0);
    assert_eq!(attempts(&home.job(&job)).len(), 3);
}
