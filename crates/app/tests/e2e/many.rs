//! A thousand jobs at once.

use muster_testkit::wait_for;
use serde_json::{Value, json};

use crate::home;

const JOBS: usize = 1000;
const THREADS: usize = 8;
/// Submitted through the command line, with code and all, while the others come in.
const BY_COMMAND: usize = 20;

#[test]
fn a_thousand_jobs_submitted_at_once_all_run() {
    let home = home();
    home.write("code.txt", "code");
    home.ok(["server", "start"]);
    let by_command: Vec<_> =
        (0..BY_COMMAND).map(|_| home.start(["run", "-d", "--", "grep", "-q", "code", "code.txt"])).collect();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..JOBS / THREADS {
                    let spec = json!({"spec": {"command": ["true"], "clean_env": true}});
                    let reply = home.post("/api/v1/jobs", &spec);
                    assert_eq!(reply.status, 201, "{}", reply.text());
                }
            });
        }
    });
    for client in by_command {
        let done = client.finish();
        assert_eq!(done.code(), 0, "{}", done.err());
    }
    let unfinished = || home.get("/api/v1/server").json()["unfinished_jobs"].as_u64();
    wait_for("all jobs to be over", || unfinished() == Some(0));
    let listed = home.json(["ps", "-a", "--json"]);
    let jobs = listed.as_array().unwrap();
    assert_eq!(jobs.len(), JOBS + BY_COMMAND);
    let odd: Vec<&Value> =
        jobs.iter().filter(|job| job["state"] != "succeeded" || job["attempt"] != 1).collect();
    assert_eq!(odd, [] as [&Value; 0]);
    let ids: std::collections::BTreeSet<_> = jobs.iter().map(|job| job["id"].as_str()).collect();
    assert_eq!(ids.len(), jobs.len());
    assert_eq!(home.ok(["ps", "-aq"]).lines().count(), jobs.len());
    let node = &home.json(["nodes", "--json"])[0];
    assert_eq!(node["slots_used"], 0);
}
