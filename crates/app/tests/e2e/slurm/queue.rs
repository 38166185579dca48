//! Jobs that wait in Slurm's queue: they are in muster's, and what is said of their place in it reaches Slurm.

use muster_testkit::wait_for;

use super::Site;

impl Site {
    /// A job that waits in Slurm, since another one has all nodes for an hour; the job's id and Slurm's number of it.
    fn waiting_job(&self) -> (String, String) {
        let first = self.submit(&["-N", "4", "--exclusive", "--timeout", "1h", "--", "sleep", "1000"]);
        self.home.wait_for_state(&first, "running");
        let second = self.submit(&["-N", "2", "--", "true"]);
        let number = self.wait_for_allocation(&second, "PENDING");
        (second, number)
    }

    fn wait_for_slurm(&self, number: &str, field: &str, wanted: &str) {
        let field_of = |line: &str| {
            let found = line.split_whitespace().find_map(|word| word.strip_prefix(&format!("{field}=")));
            found.map(str::to_owned)
        };
        wait_for(&format!("{field} to be {wanted}"), || {
            field_of(&self.slurm.scontrol(&["--oneliner", "show", "job", number])).as_deref() == Some(wanted)
        });
    }

    fn stop_all(&self) {
        for job in self.home.json(["ps", "--json"]).as_array().expect("a list of jobs") {
            self.home.ok(["stop", job["id"].as_str().expect("an id")]);
        }
        self.wait_for_nothing_left();
    }
}

#[test]
fn queue_and_top_have_what_waits_in_slurm_with_its_estimate() {
    let site = Site::new();
    let (job, _) = site.waiting_job();
    wait_for("an estimate of Slurm's", || {
        let queue = site.home.json(["queue", "--json"]);
        let one = &queue["items"][0];
        one["job"] == *job && one["code"] == "no_capacity" && one["starts_at"].is_string()
    });
    let queue = site.home.ok(["queue"]);
    assert!(queue.contains(&job) && queue.contains("slurm/main") && queue.contains("in "), "{queue}");
    let top = site.home.json(["top", "--json"]);
    assert_eq!((&top["queue"]["waiting"], &top["queue"]["items"][0]["job"]), (&1.into(), &job.into()));
    site.stop_all();
}

#[test]
fn hold_and_release_reach_slurm() {
    let site = Site::new();
    let (job, number) = site.waiting_job();
    site.home.ok(["hold", &job]);
    site.wait_for_slurm(&number, "Reason", "JobHeldUser");
    wait_for("the reason", || site.home.json(["why", &job, "--json"])["code"] == "held");
    site.home.ok(["release", &job]);
    wait_for("another reason", || site.home.json(["why", &job, "--json"])["code"] != "held");
    let events = site.home.ok(["events", &job]);
    assert!(events.contains("held") && events.contains("released"), "{events}");
    site.stop_all();
}

#[test]
fn a_priority_reaches_slurm_or_is_refused() {
    let site = Site::new();
    let (job, number) = site.waiting_job();
    site.home.ok(["priority", &job, "400"]);
    site.wait_for_slurm(&number, "Nice", "100");
    site.home.ok(["priority", &job, "450"]);
    site.wait_for_slurm(&number, "Nice", "50");
    let refused = site.home.run(["priority", &job, "700"]);
    assert_ne!(refused.code(), 0, "{}", refused.out());
    assert!(refused.err().contains("500 is the highest priority"), "{}", refused.err());
    assert_eq!(site.home.json(["queue", "--json"])["items"][0]["priority"], 450);
    site.stop_all();
}
