//! Many jobs at once on a cluster, and what they cost its controller.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use muster_testkit::wait_within;
use serde_json::{Value, json};

use super::Site;

const JOBS: usize = 500;
/// A busy machine takes its time for so many.
const LONG: Duration = Duration::from_secs(300);
/// How often the server looks at what it has handed over.
const PERIOD: Duration = Duration::from_secs(10);

#[test]
fn five_hundred_jobs_cost_two_questions_at_a_time_and_all_run_once() {
    let site = Site::new();
    site.home.ok(["server", "start"]);
    site.slurm.scontrol(&["update", "nodename=n[1-4]", "state=drain", "reason=wait"]);
    for _ in 0..JOBS {
        let spec = json!({"spec": {"command": ["true"], "clean_env": true, "on": "slurm/main"}});
        let reply = site.home.post("/api/v1/jobs", &spec);
        assert_eq!(reply.status, 201, "{}", reply.text());
    }
    wait_within(LONG, "all to be handed over", || site.slurm.open_jobs().len() >= JOBS);
    let (before, begun) = (questions(&site.slurm.rpcs()), Instant::now());
    // The last of them wants the answer to a round that may have been under way.
    wait_within(LONG, "the questions of four rounds", || questions(&site.slurm.rpcs()) > before + 2 * 3);
    assert!(begun.elapsed() > 2 * PERIOD, "three rounds took {:?}", begun.elapsed());
    site.slurm.scontrol(&["update", "nodename=n[1-4]", "state=resume"]);
    let unfinished = || site.home.get("/api/v1/server").json()["unfinished_jobs"].as_u64();
    wait_within(LONG, "all to end", || unfinished() == Some(0));
    let listed = site.home.json(["ps", "-a", "--json"]);
    let jobs = listed.as_array().expect("a list of jobs");
    let odd: Vec<&Value> =
        jobs.iter().filter(|job| job["state"] != "succeeded" || job["attempt"] != 1).collect();
    assert_eq!((odd, jobs.len()), (vec![], JOBS));
    let comments: BTreeSet<String> = site.slurm.jobs().iter().map(|job| job["comment"].to_string()).collect();
    assert_eq!(comments.len(), JOBS, "each has one allocation");
    site.wait_for_nothing_left();
}

/// How many of what was asked of the controller are questions, whoever asked: not what nodes and steps report.
fn questions(rpcs: &BTreeMap<String, u64>) -> u64 {
    let is_question = |name: &str| name.ends_with("_INFO") || name.contains("_INFO_");
    rpcs.iter().filter(|(name, _)| is_question(name)).map(|(_, count)| count).sum()
}
