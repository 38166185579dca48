//! What was recorded on a real Kubernetes 1.35 means what it should, at every step and once.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_engine::{Status, Verdict};
use muster_model::Timestamp;
use serde_json::Value;

use super::*;

/// What a watch said of an attempt, one change a line.
fn said(name: &str) -> Vec<Value> {
    let path = format!("{}/src/truth/golden/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What is kept of what was said so far.
#[derive(Default)]
struct Kept {
    job: Option<Job>,
    is_job_gone: bool,
    pods: BTreeMap<String, Known>,
    events: Vec<Event>,
    latest: Option<Timestamp>,
}

impl Kept {
    fn hear(&mut self, said: &Value) {
        let is_gone = said["type"] == "DELETED";
        let object = said["object"].clone();
        match object["kind"].as_str().unwrap() {
            "Job" => {
                let job: Job = serde_json::from_value(object).unwrap();
                self.latest =
                    self.latest.max(job.created_at).max(job.failing.as_ref().and_then(|said| said.at));
                self.is_job_gone = is_gone;
                self.job = Some(job);
            }
            "Pod" => {
                let mut pod: Pod = serde_json::from_value(object).unwrap();
                self.pods.get(&pod.uid).into_iter().for_each(|known| pod.continue_from(&known.pod));
                self.latest = self.latest.max(pod.created_at).max(pod.scheduled_at).max(pod.deleted_at);
                self.pods.insert(pod.uid.clone(), Known { pod: Arc::new(pod), is_gone });
            }
            "Event" => {
                let event: Event = serde_json::from_value(object).unwrap();
                self.latest = self.latest.max(event.at);
                self.events.push(event);
            }
            other => panic!("{other} is not kept"),
        }
    }

    fn judge(&self, later: Duration, is_stopping: bool) -> Judgement {
        let pods: Vec<Known> = self.pods.values().cloned().collect();
        judge(Facts {
            job: self.job.as_ref(),
            is_job_gone: self.is_job_gone,
            pods: &pods,
            events: &self.events,
            is_stopping,
            gate: None,
            inventory: None,
            now: self.latest.unwrap_or_default() + later,
        })
    }
}

/// How it looks after everything was heard, and some time.
fn after(name: &str, seconds: u64) -> Judgement {
    let mut kept = Kept::default();
    said(name).iter().for_each(|said| kept.hear(said));
    kept.judge(Duration::from_secs(seconds), false)
}

/// What is said of it as it happens, repetitions left out: `waiting`, `running`, the verdict; and what it was doomed to.
fn story(name: &str) -> (Vec<String>, Option<Verdict>) {
    let mut kept = Kept::default();
    let (mut words, mut doom): (Vec<String>, Option<Verdict>) = (Vec::new(), None);
    for said in said(name) {
        kept.hear(&said);
        let judgement = kept.judge(Duration::ZERO, false);
        doom = doom.or(judgement.doom);
        let word = match judgement.observed.status {
            Status::Waiting(_) => "waiting".to_owned(),
            Status::Running => "running".to_owned(),
            Status::Ended(verdict) => write_verdict(&verdict),
            other => format!("{other:?}"),
        };
        if words.last() != Some(&word) {
            words.push(word);
        }
    }
    (words, doom)
}

fn waits(name: &str, seconds: u64) -> (&'static str, String) {
    match after(name, seconds) {
        Judgement { observed: Observed { status: Status::Waiting(wait), .. }, doom: None } => {
            (wait.code, wait.summary)
        }
        other => panic!("{name}: {other:?}"),
    }
}

fn doomed(name: &str, seconds: u64) -> Verdict {
    after(name, seconds).doom.unwrap_or_else(|| panic!("{name} is not doomed"))
}

fn ended(name: &str) -> Verdict {
    match after(name, 0).observed.status {
        Status::Ended(verdict) => verdict,
        other => panic!("{name}: {other:?}"),
    }
}

fn message(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::Evicted { message }
        | Verdict::Refused { message }
        | Verdict::Failed { message }
        | Verdict::ImagePull { message } => message,
        other => panic!("{other:?} has no message"),
    }
}

#[test]
fn what_happens_is_told_step_by_step_and_its_end_once() {
    let drained = "evicted: node2 is being drained";
    let cases: &[(&str, &[&str])] = &[
        ("evicted", &["waiting", "running", drained]),
        ("rankevicted", &["waiting", "running", drained]),
        ("poddeleted", &["waiting", "running", "cancelled"]),
        ("rankdeleted", &["waiting", "running"]),
        ("jobdeleted", &["waiting", "running", "cancelled"]),
        ("preempted", &["waiting", "running", "preempted"]),
        ("nodegone", &["waiting", "running", "node_failed: truth-g"]),
        ("doomed", &["waiting", "running", "image_pull: nothere:1: not found"]),
        ("suspended", &["waiting", "running", "waiting", "running"]),
        ("tainted", &["waiting", "running"]),
        ("unreachable", &["waiting", "running"]),
        ("evicted0", &["waiting", "running"]),
    ];
    for (name, expected) in cases {
        let (words, _) = story(name);
        // Which of the nodes it was on is chance.
        let words: Vec<String> = words.iter().map(|word| word.replace("node1 is", "node2 is")).collect();
        assert_eq!(words, *expected, "{name}");
    }
    let (words, _) = story("exit7");
    assert_eq!(words.len(), 3, "{words:?}");
    assert!(words[2].contains("ended with exit code 7: bad thing"), "{words:?}");
}

#[test]
fn a_rank_that_was_taken_away_dooms_the_others_even_if_it_ended_politely() {
    let (_, doom) = story("evicted0");
    assert_eq!(message(&doom.unwrap()).replace("node1", "node2"), "node2 is being drained");
    let (_, doom) = story("rankdeleted");
    assert_eq!(doom, Some(Verdict::Cancelled { by: None }));
    let (_, doom) = story("suspended");
    assert_eq!(doom, Some(Verdict::Preempted), "somebody let it make way");
    for name in ["tainted", "unreachable"] {
        assert_eq!(story(name).1, None, "{name}: it may still run");
    }
}

#[test]
fn what_we_took_back_ourselves_is_not_over() {
    let mut kept = Kept::default();
    for mut said in said("suspended") {
        if said["object"]["kind"] == "Job" {
            said["object"]["metadata"]["annotations"] = serde_json::json!({ TAKEN_BACK: "1" });
        }
        kept.hear(&said);
        let judgement = kept.judge(Duration::ZERO, false);
        assert_eq!(judgement.doom, None, "{said}");
        assert!(!matches!(judgement.observed.status, Status::Ended(_) | Status::Gone), "{judgement:?}");
    }
}

#[test]
fn what_nobody_watched_is_known_from_what_is_left() {
    let left = |name: &str| {
        let mut kept = Kept::default();
        said(name).iter().for_each(|said| kept.hear(said));
        kept.pods.retain(|_, known| !known.is_gone);
        kept.judge(Duration::ZERO, false).observed.status
    };
    let evicted = Verdict::Evicted { message: "Kubernetes took one of its pods away".into() };
    assert_eq!(left("evicted"), Status::Ended(evicted.clone()));
    assert_eq!(left("preempted"), Status::Ended(evicted.clone()));
    assert_eq!(left("nodegone"), Status::Ended(evicted));
    assert_eq!(left("poddeleted"), Status::Ended(Verdict::Cancelled { by: None }));
    // Whoever comes between the end of a pod and the end of its Job sees the last words of its node alone.
    let mut kept = Kept::default();
    let last = |said: &&Value| said["object"]["kind"] == "Job" || said["type"] == "DELETED";
    said("poddeleted").iter().filter(last).for_each(|said| kept.hear(said));
    let status = kept.judge(Duration::ZERO, false).observed.status;
    assert_eq!(status, Status::Ended(Verdict::Cancelled { by: None }));
    assert_eq!(Kept::default().judge(Duration::ZERO, false).observed, Status::Gone.into());
}

#[test]
fn what_we_end_ourselves_is_gone_and_not_cancelled() {
    let mut kept = Kept::default();
    said("jobdeleted").iter().for_each(|said| kept.hear(said));
    assert_eq!(kept.judge(Duration::ZERO, true).observed.status, Status::Gone);
    // A Job that Kubernetes removed because its time to be kept was up still ended as it did.
    let mut kept = Kept::default();
    said("completed").iter().for_each(|said| kept.hear(said));
    kept.is_job_gone = true;
    kept.pods.values_mut().for_each(|known| known.is_gone = true);
    assert_eq!(kept.judge(Duration::ZERO, false).observed.status, Status::Ended(Verdict::Completed));
}

#[test]
fn ends_are_told_apart() {
    assert_eq!(ended("completed"), Verdict::Completed);
    assert_eq!(ended("oom"), Verdict::OutOfMemory);
    assert_eq!(ended("poddeadline"), Verdict::TimeLimit { limit: None });
    assert_eq!(ended("jobdeadline"), Verdict::TimeLimit { limit: None });
    assert_eq!(ended("gateddeleted"), Verdict::Cancelled { by: None });
    let init = ended("initfails");
    assert!(message(&init).ends_with("ended with exit code 3: no space left on device"), "{init:?}");
    for name in ["nocommand", "noexec"] {
        let verdict = ended(name);
        assert!(matches!(verdict, Verdict::Refused { .. }), "{verdict:?}");
        assert!(message(&verdict).starts_with("image localhost/bb:1 cannot be started: "), "{verdict:?}");
    }
}

#[test]
fn an_image_without_our_c_library_is_refused_in_words() {
    for name in ["noglibc", "oldglibc"] {
        let verdict = ended(name);
        assert!(matches!(verdict, Verdict::Refused { .. }), "{verdict:?}");
        assert!(
            message(&verdict).starts_with("image localhost/bb:1: muster needs glibc 2.17 or newer"),
            "{verdict:?}"
        );
    }
    assert!(message(&ended("wrongarch")).contains("another kind of machine"));
}

#[test]
fn what_can_never_start_is_doomed_at_once_and_what_may_pass_after_a_minute() {
    for (name, words) in [
        ("invalidimage", "invalid reference format"),
        ("neverimage", "is not present with pull policy of Never"),
        ("podsecurity", "violates PodSecurity"),
        ("runasnonroot", "set k8s.user to a number other than 0"),
    ] {
        let verdict = doomed(name, 0);
        assert!(message(&verdict).contains(words), "{name}: {verdict:?}");
    }
    for (name, code, words) in [
        ("pullimage", "image", "dial tcp 127.0.0.1:80: connect: connection refused"),
        ("nosecretkey", "refused", "secret \"nothere\" not found"),
        ("noserviceaccount", "refused", "serviceaccount \"nothere\" not found"),
    ] {
        let (said, summary) = waits(name, 0);
        assert_eq!(said, code, "{name}");
        assert!(summary.contains(words), "{name}: {summary}");
        let verdict = doomed(name, 90);
        assert!(message(&verdict).contains(words), "{name}: {verdict:?}");
    }
    assert!(matches!(doomed("invalidimage", 0), Verdict::ImagePull { .. }));
    assert!(matches!(doomed("nosecretkey", 90), Verdict::Refused { .. }));
}

#[test]
fn what_waits_says_for_what() {
    for (name, code, words) in [
        ("gated", "scheduler", "held back until all of its pods can start together"),
        ("unfit", "no_capacity", "2 of 2 nodes have too little nvidia.com/gpu free"),
        (
            "cpu",
            "no_capacity",
            "2 of 2 nodes have too little CPU free, 2 of 2 nodes have too little memory free",
        ),
        ("selector", "no_node", "2 of 2 nodes have not the labels it asks for"),
        ("nopvc", "volume", "persistentvolumeclaim \"nothere\" not found"),
        ("nosecretmount", "volume", "secret \"nothere\" not found"),
        (
            "quota",
            "never_fits",
            "quota q of its namespace allows 1 pods in all, and it needs more pods than that",
        ),
    ] {
        let (said, summary) = waits(name, 0);
        assert_eq!(said, code, "{name}: {summary}");
        assert!(summary.contains(words), "{name}: {summary}");
    }
}

#[test]
fn machines_are_named_once_every_rank_has_its_own() {
    let running = after("tainted", 0).observed;
    assert_eq!(running.hosts, ["truth-t", "truth-t"]);
    assert_eq!(running.external.as_deref(), Some("tainted"));
    assert_eq!(after("gated", 0).observed.hosts, Vec::<String>::new());
}

#[test]
fn a_verdict_that_is_written_down_is_read_as_it_was() {
    let message = || "image: not \"found\"\nat all".to_owned();
    for verdict in [
        Verdict::Completed,
        Verdict::Cancelled { by: None },
        Verdict::TimeLimit { limit: None },
        Verdict::Preempted,
        Verdict::Evicted { message: message() },
        Verdict::NodeFailed { node: None },
        Verdict::NodeFailed { node: Some("node1".into()) },
        Verdict::OutOfMemory,
        Verdict::ImagePull { message: message() },
        Verdict::Refused { message: message() },
        Verdict::Failed { message: message() },
        Verdict::Unknown,
    ] {
        assert_eq!(read_verdict(&write_verdict(&verdict)), Some(verdict));
    }
    assert_eq!(read_verdict("{}"), None);
}

#[test]
fn a_quota_that_is_used_up_is_told_from_one_that_is_too_small() {
    let mut kept = Kept::default();
    said("quota").iter().for_each(|said| kept.hear(said));
    let event = kept.events.iter_mut().find(|event| event.reason == "FailedCreate").unwrap();
    event.message = "Error creating: pods \"x\" is forbidden: exceeded quota: gpus, requested: \
                     requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=60, limited: requests.nvidia.com/gpu=64"
        .into();
    let Status::Waiting(wait) = kept.judge(Duration::ZERO, false).observed.status else { panic!("it waits") };
    assert_eq!(wait.code, "limit");
    assert_eq!(
        wait.summary,
        "quota gpus of its namespace is used up: 60 requests.nvidia.com/gpu of 64 requests.nvidia.com/gpu"
    );
}
