//! Nothing that goes is lost, and only what is new is told.

use serde_json::json;

use super::*;
use crate::seen::Phase;

const SERVER: &str = "s1";
const NAMESPACE: &str = "team";

fn attempt(number: u32) -> AttemptId {
    AttemptId { job: "job_0123456789".parse().unwrap(), number }
}

fn labels(number: u32, server: &str) -> serde_json::Value {
    json!({ "muster.dev/server": server, "muster.dev/job": "job_0123456789", "muster.dev/attempt": number.to_string() })
}

fn job(number: u32, version: u32) -> Job {
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("m-0123456789-{number}"),
            "namespace": NAMESPACE,
            "uid": format!("job-{number}"),
            "resourceVersion": version.to_string(),
            "labels": labels(number, SERVER),
        },
        "spec": { "completions": 2 },
    }))
    .unwrap()
}

fn pod(number: u32, rank: u32, uid: &str, phase: &str) -> Pod {
    let mut labels = labels(number, SERVER);
    labels["batch.kubernetes.io/job-completion-index"] = rank.to_string().into();
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("m-0123456789-{number}-{rank}-{uid}"),
            "namespace": NAMESPACE,
            "uid": uid,
            "resourceVersion": uid,
            "labels": labels,
            "creationTimestamp": format!("2026-11-16T03:00:0{}Z", uid.len().min(9)),
        },
        "spec": { "containers": [{ "resources": { "requests": { "cpu": "1" } } }] },
        "status": { "phase": phase },
    }))
    .unwrap()
}

fn shelf() -> Shelf {
    Shelf::new(SERVER.into())
}

fn names(news: BTreeSet<AttemptId>) -> String {
    news.into_iter().map(|attempt| attempt.number.to_string()).collect::<Vec<_>>().join(",")
}

#[test]
fn only_what_is_new_is_told_and_by_name() {
    let (mut shelf, now) = (shelf(), Instant::now());
    assert_eq!(names(shelf.jobs(NAMESPACE, Change::Now(job(1, 1)), now)), "1");
    assert_eq!(names(shelf.jobs(NAMESPACE, Change::Now(job(1, 2)), now)), "", "another version of the same");
    assert_eq!(names(shelf.pods(NAMESPACE, Change::Now(pod(1, 0, "a", "Pending")), now)), "1");
    assert_eq!(names(shelf.pods(NAMESPACE, Change::Now(pod(1, 0, "a", "Pending")), now)), "");
    assert_eq!(names(shelf.pods(NAMESPACE, Change::Now(pod(1, 0, "a", "Running")), now)), "1");
    let mut other = job(2, 3);
    other.labels.insert("muster.dev/server".into(), "somebody".into());
    assert_eq!(names(shelf.jobs(NAMESPACE, Change::Now(other), now)), "", "it is another server's");
}

#[test]
fn what_a_list_does_not_have_is_gone_and_stays_known() {
    let (mut shelf, now) = (shelf(), Instant::now());
    for number in [1, 2] {
        shelf.jobs(NAMESPACE, Change::Now(job(number, number)), now);
        shelf.pods(NAMESPACE, Change::Now(pod(number, 0, &format!("p{number}"), "Running")), now);
    }
    let elsewhere = names(shelf.jobs("elsewhere", Change::All(vec![], now), now));
    assert_eq!(elsewhere, "", "another namespace says nothing about this one");
    assert_eq!(names(shelf.jobs(NAMESPACE, Change::All(vec![job(1, 9)], now), now)), "2");
    let there = pod(1, 0, "p1", "Running");
    assert_eq!(names(shelf.pods(NAMESPACE, Change::All(vec![there.clone()], now), now)), "2");
    assert_eq!(names(shelf.pods(NAMESPACE, Change::All(vec![there], now), now)), "", "that is known");
    let record = shelf.get(&attempt(2)).unwrap();
    assert!(record.is_job_gone && record.pods[0].is_gone);
    assert_eq!(record.pods[0].pod.phase, Phase::Running, "how it looked last");
    assert_eq!(shelf.gangs().count(), 1);
}

#[test]
fn what_was_handed_over_and_is_not_seen_yet_is_expected_until_a_later_list() {
    let (mut shelf, now) = (shelf(), Instant::now());
    let later = now + Duration::from_secs(1);
    shelf.expect(&attempt(1), NAMESPACE, now);
    // A list that was asked for before cannot have it.
    shelf.jobs(NAMESPACE, Change::All(vec![], now), later);
    assert!(shelf.get(&attempt(1)).unwrap().expected_at.is_some());
    assert_eq!(names(shelf.jobs(NAMESPACE, Change::All(vec![], later), later)), "1");
    assert!(shelf.get(&attempt(1)).unwrap().expected_at.is_none());
    shelf.expect(&attempt(2), NAMESPACE, later);
    shelf.jobs(NAMESPACE, Change::Now(job(2, 1)), later);
    assert!(shelf.get(&attempt(2)).unwrap().expected_at.is_none());
}

#[test]
fn pods_of_a_gang_share_what_they_want_and_a_new_one_replaces_what_went() {
    let (mut shelf, now) = (shelf(), Instant::now());
    shelf.pods(NAMESPACE, Change::Now(pod(1, 0, "a", "Pending")), now);
    shelf.pods(NAMESPACE, Change::Now(pod(1, 1, "b", "Pending")), now);
    let record = shelf.get(&attempt(1)).unwrap();
    assert!(Arc::ptr_eq(&record.pods[0].pod.needs, &record.pods[1].pod.needs));
    shelf.pods(NAMESPACE, Change::Gone(pod(1, 0, "a", "Pending")), now);
    shelf.pods(NAMESPACE, Change::Now(pod(1, 0, "again", "Pending")), now);
    let uids: Vec<_> =
        shelf.get(&attempt(1)).unwrap().pods.iter().map(|known| known.pod.uid.clone()).collect();
    assert_eq!(uids, ["again", "b"]);
}

#[test]
fn what_is_forgotten_does_not_come_back() {
    let (mut shelf, now) = (shelf(), Instant::now());
    shelf.jobs(NAMESPACE, Change::Now(job(1, 1)), now);
    shelf.forget(&attempt(1));
    assert_eq!(names(shelf.jobs(NAMESPACE, Change::Now(job(1, 2)), now)), "");
    assert_eq!(names(shelf.jobs(NAMESPACE, Change::Gone(job(1, 3)), now)), "");
    assert!(shelf.get(&attempt(1)).is_none());
    assert_eq!(
        names(shelf.jobs(NAMESPACE, Change::Gone(job(2, 3)), now)),
        "",
        "the end of what was never known"
    );
    shelf.jobs(NAMESPACE, Change::Now(job(3, 1)), now);
    shelf.jobs(NAMESPACE, Change::Gone(job(3, 1)), now);
    shelf.tidy(now + REMEMBERED / 2);
    assert!(shelf.get(&attempt(3)).is_some());
    shelf.tidy(now + REMEMBERED);
    assert!(shelf.get(&attempt(3)).is_none());
}

#[test]
fn an_event_finds_its_attempt_by_name_whichever_comes_first() {
    let (mut shelf, now) = (shelf(), Instant::now());
    let event = |about: &str, reason: &str| -> Event {
        serde_json::from_value(json!({
            "metadata": { "name": "e", "resourceVersion": "5" },
            "involvedObject": { "kind": "Pod", "name": about, "uid": "a" },
            "reason": reason,
            "message": "no",
        }))
        .unwrap()
    };
    let mount = event("m-0123456789-1-0-abcde", "FailedMount");
    assert_eq!(names(shelf.events(Change::Now(mount.clone()))), "");
    shelf.jobs(NAMESPACE, Change::Now(job(1, 1)), now);
    assert_eq!(shelf.get(&attempt(1)).unwrap().events.len(), 1);
    assert_eq!(names(shelf.events(Change::Now(mount))), "", "it was said again");
    assert_eq!(names(shelf.events(Change::Now(event("m-0123456789-1", "FailedCreate")))), "1");
    for other in
        [event("m-0123456789-1", "Unhealthy"), event("m-x", "FailedMount"), event("etcd-0", "Failed")]
    {
        assert_eq!(names(shelf.events(Change::Now(other))), "");
    }
    assert_eq!(shelf.get(&attempt(1)).unwrap().events.len(), 2);
}
