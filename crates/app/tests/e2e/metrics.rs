//! What jobs use: while they run, afterwards, and for Prometheus.

use std::collections::{BTreeMap, BTreeSet};

use muster_testkit::{Home, wait_for, wait_for_some};
use serde_json::Value;

use super::{home_with, python};

/// Holds 100 MB and keeps one CPU busy until it is told to end, then says how much CPU time it had.
const BURN: &str = "\
import os, pathlib, time
held = bytearray(100 << 20)
for i in range(0, len(held), 4096):
    held[i] = 1
end = pathlib.Path(os.environ['SHARED']) / 'end'
while not end.exists():
    deadline = time.monotonic() + 0.05
    while time.monotonic() < deadline:
        pass
print(int(time.process_time() * 1000))
";

const HELD: u64 = 100 << 20;

fn measuring_home(more: &str) -> Home {
    let home = home_with(&format!("[local]\nmeasure_every = \"200ms\"\n{more}"));
    home.write("burn.py", BURN);
    home
}

/// The only task, as soon as there is one.
fn task(job: &Value) -> &Value {
    &job["attempts"][0]["tasks"][0]
}

/// A page in Prometheus' text format, taken apart by its own rules: every series with its value.
fn series(page: &str) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    let (mut families, mut current) = (BTreeSet::new(), ("", ""));
    let mut help = "";
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').expect("a help text").0;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            current = rest.split_once(' ').expect("a kind");
            assert!(["counter", "gauge", "histogram"].contains(&current.1), "{line}");
            assert!(current.0 == help && families.insert(current.0), "a family in two places: {line}");
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let is_own = match current.1 {
                "histogram" => {
                    ["_bucket", "_sum", "_count"].iter().any(|end| name == format!("{}{end}", current.0))
                }
                "counter" => name == current.0 && name.ends_with("_total"),
                _ => name == current.0,
            };
            assert!(is_own && name.starts_with("muster_"), "{line} under {current:?}");
            assert!(labels.ends_with('}') && labels.matches('"').count() % 2 == 0, "{line}");
            assert!(
                all.insert(series.to_owned(), value.parse().expect("a number")).is_none(),
                "twice: {line}"
            );
        }
    }
    all
}

fn of_task(home: &Home, name: &str, job: &str) -> Option<f64> {
    let label = format!("muster_{name}{{job=\"{job}\",attempt=\"1\",task=\"0\",node=\"node_local\"}}");
    series(&home.get("/metrics").text()).get(&label).copied()
}

#[test]
fn what_a_job_uses_is_seen_while_it_runs_and_what_it_used_afterwards_and_after_a_crash() {
    let home = measuring_home("");
    let job = home.submit(&["--", python(), "burn.py"]);
    let running = wait_for_some("the job to be measured at work", || {
        let shown = home.job(&job);
        let now = &task(&shown)["now"];
        let is_whole = now["memory_bytes"].as_u64()? >= HELD && now["cpu_millis"].as_u64()? > 0;
        // A few looks, so that there is a history and a mean.
        (is_whole && task(&shown)["usage"]["samples"].as_u64()? > 3).then_some(shown)
    });
    let now = &task(&running)["now"];
    // How much of a CPU it gets is up to the machine; one process cannot have more than one.
    assert!(now["cpu_millis"].as_u64().unwrap() <= 1500, "{now}");
    assert!(now["memory_bytes"].as_u64().unwrap() < 4 * HELD, "{now}");
    assert_eq!(now["processes"], 1, "{now}");
    let text = home.ok(["show", &job]);
    assert!(text.contains("in use now:") && text.contains("MB"), "{text}");

    let history = home.get(&format!("/api/v1/jobs/{job}/metrics?since=1h&limit=2")).json();
    let history = &history["tasks"][0]["history"];
    assert_eq!(history.as_array().unwrap().len(), 2, "{history}");
    assert!(of_task(&home, "task_memory_used_bytes", &job).unwrap() >= HELD as f64);
    assert!(of_task(&home, "task_cpu_seconds_total", &job).unwrap() > 0.0);
    let node = home.get("/api/v1/nodes/node_local/metrics").json();
    assert!(node["now"]["memory_bytes"].as_u64().unwrap() > HELD, "{node}");
    assert!(node["history"].as_array().unwrap().len() > 2, "{node}");
    assert!(home.ok(["nodes", "--wide"]).contains("MEMORY IN USE"));

    home.touch("end");
    let over = home.wait_for_state(&job, "succeeded");
    let usage = task(&over)["usage"].clone();
    let own: i64 = home.ok(["logs", &job]).trim().parse().unwrap();
    let counted = usage["cpu_milliseconds"].as_i64().unwrap();
    // The interpreter's own start is in one of the two only.
    assert!((counted - own).abs() <= own / 4 + 200, "it says {own} ms of CPU time, and {usage}");
    assert!(usage["peak_memory_bytes"].as_u64().unwrap() >= HELD, "{usage}");
    assert!(task(&over)["now"].is_null());

    assert_eq!(home.kill("server"), 1);
    assert_eq!(task(&home.job(&job))["usage"], usage);
    assert!(home.ok(["show", &job]).contains("PEAK MEMORY"));
}

#[test]
fn a_job_that_ends_while_the_server_is_dead_still_tells_what_it_used() {
    let home = measuring_home("");
    let job = home.submit(&["--", python(), "burn.py"]);
    let is_measured = || task(&home.job(&job))["usage"]["samples"].as_u64().is_some_and(|count| count > 0);
    wait_for("the job to be measured", is_measured);
    assert_eq!(home.kill("server"), 1);
    home.touch("end");
    let has_tasks = || !home.processes_as("supervise").is_empty();
    wait_for("the job to end", || !has_tasks());
    let over = home.wait_for_state(&job, "succeeded");
    let usage = &task(&over)["usage"];
    assert!(usage["peak_memory_bytes"].as_u64().unwrap() >= HELD, "{usage}");
    assert!(usage["samples"].as_u64().unwrap() > 0, "{usage}");
}

#[test]
fn the_shortest_job_has_used_something_and_nothing_is_measured_where_that_is_not_wanted() {
    let home = home_with("[local]\nmeasure_every = \"never\"\n");
    let job = home.submit(&["--", "sh", "-c", "exit 0"]);
    let over = home.wait_for_state(&job, "succeeded");
    let usage = &task(&over)["usage"];
    assert!(usage["peak_memory_bytes"].as_u64().unwrap() > 0 && usage["samples"] == 0, "{usage}");
    let node = home.get("/api/v1/nodes/node_local/metrics").json();
    assert!(node["now"].is_null() && node["history"] == Value::Array(Vec::new()), "{node}");
    home.get("/api/v1/nodes/node_nowhere/metrics").problem(404, "node_not_found");
    for query in ["limit=10001", "since=soon", "limit=-1"] {
        let reply = home.get(&format!("/api/v1/jobs/{job}/metrics?{query}"));
        assert!([400, 422].contains(&reply.status), "{query}: {}", reply.text());
    }
}

#[test]
fn a_task_whose_agent_was_killed_goes_on_being_measured() {
    let home = measuring_home("tree_kill = \"walk\"\n");
    let job = home.submit(&["--", python(), "burn.py"]);
    let samples = || task(&home.job(&job))["usage"]["samples"].as_u64().unwrap_or(0);
    wait_for("the job to be measured", || samples() > 2);
    assert_eq!(home.kill("agent"), 1);
    let is_seen = || of_task(&home, "task_memory_used_bytes", &job).is_some_and(|bytes| bytes >= HELD as f64);
    wait_for("the next agent to measure it", || home.processes_as("agent").len() == 1 && is_seen());
    home.touch("end");
    let over = home.wait_for_state(&job, "succeeded");
    assert!(task(&over)["usage"]["cpu_milliseconds"].as_u64().unwrap() > 0);
    wait_for("its series to end", || of_task(&home, "task_memory_used_bytes", &job).is_none());
}
