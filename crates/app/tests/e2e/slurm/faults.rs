//! What goes wrong on a cluster: its controller dies or does not answer, nodes die, somebody cancels, our server is away. Each
//! time the job has the right state and reason, once; nothing runs twice, and nothing keeps nodes that nobody uses.

use std::sync::atomic::{AtomicUsize, Ordering};

use muster_testkit::{Slurm, wait_for};

use super::Site;
use crate::{attempts, until};

/// Notes in the shared directory that it runs, says it, and goes on until there is `go`.
pub(super) fn noted(name: &str) -> String {
    format!("echo ran >> \"$SHARED/{name}\"; echo begun; {}; echo ended", until("go"))
}

impl Site {
    /// How often a job that notes it has run.
    pub(super) fn runs(&self, name: &str) -> usize {
        std::fs::read_to_string(self.home.shared().join(name)).map_or(0, |text| text.lines().count())
    }

    /// That a job succeeded in one attempt, has run once, and said everything.
    pub(super) fn check(&self, job: &str, name: &str) {
        let shown = self.end_of(job, 0);
        assert_eq!((attempts(&shown).len(), self.runs(name)), (1, 1), "{shown}");
        assert_eq!(self.home.ok(["logs", job]), "begun\nended\n");
        assert_eq!(self.allocations(job).len(), 1);
    }
}

#[test]
fn a_controller_that_dies_while_jobs_are_submitted_gets_each_of_them_once() {
    let site = Site::new();
    site.home.touch("go");
    site.home.ok(["run", "--on", "slurm/main", "--", "true"]);
    // Nothing begins before it has died for the last time, so nothing is ended because it has forgotten what it had begun.
    site.slurm.scontrol(&["update", "nodename=n[1-4]", "state=drain", "reason=wait"]);
    let submitted = AtomicUsize::new(0);
    let jobs: Vec<(String, String)> = std::thread::scope(|scope| {
        let submit = |number: usize| {
            let name = format!("run{number}");
            let job = site.submit_line(&[], &noted(&name));
            submitted.fetch_add(1, Ordering::Relaxed);
            (job, name)
        };
        let submitter = scope.spawn(move || (0..12).map(submit).collect());
        let wait = |count: usize| {
            wait_for("jobs to be submitted", || submitted.load(Ordering::Relaxed) >= count);
        };
        for round in 0..2 {
            wait(2 + 5 * round);
            site.slurm.kill_controller();
            wait(5 + 5 * round);
            site.slurm.start_controller();
        }
        submitter.join().expect("all are submitted")
    });
    // If it has forgotten that, too, there is nothing to resume.
    drop(site.slurm.command("scontrol").args(["update", "nodename=n[1-4]", "state=resume"]).output());
    for (job, name) in &jobs {
        site.end_of(job, 0);
        assert_eq!(site.runs(name), 1, "{name} of {job}");
        assert_eq!(site.home.ok(["logs", job]), "begun\nended\n");
    }
    site.wait_for_nothing_left();
}

#[test]
fn what_slurm_has_forgotten_before_it_began_is_handed_over_again_at_no_cost() {
    let site = Site::new();
    site.home.touch("go");
    site.slurm.scontrol(&["update", "nodename=n[1-4]", "state=drain", "reason=wait"]);
    let jobs: Vec<String> =
        ["1", "2"].iter().map(|nodes| site.submit_line(&["-N", nodes], &noted(nodes))).collect();
    let forgotten: Vec<String> = jobs.iter().map(|job| site.wait_for_allocation(job, "PENDING")).collect();
    site.slurm.forget_jobs();
    for (job, number) in jobs.iter().zip(&forgotten) {
        wait_for("another in its place", || {
            site.allocations(job).iter().any(|it| it["job_id"].as_u64() != number.parse().ok())
                || attempts(&site.home.job(job)).len() == 2
        });
    }
    // If it has forgotten that, too, there is nothing to resume.
    drop(site.slurm.command("scontrol").args(["update", "nodename=n[1-4]", "state=resume"]).output());
    for (job, nodes) in jobs.iter().zip(["1", "2"]) {
        let shown = site.end_of(job, 0);
        assert_eq!((attempts(&shown).len(), site.runs(nodes).to_string().as_str()), (2, nodes), "{shown}");
        assert_eq!(attempts(&shown)[0]["reason"]["code"], "allocation_lapsed", "{shown}");
    }
    site.wait_for_nothing_left();
}

#[test]
fn a_controller_that_is_dead_for_a_while_is_not_missed_by_what_runs() {
    let site = Site::new();
    let job = site.submit_line(&["-N", "2"], &format!("{}; echo $RANK", until("go")));
    site.home.wait_for_state(&job, "running");
    site.slurm.wait_until_saved(&site.wait_for_allocation(&job, "RUNNING"));
    site.slurm.kill_controller();
    assert_eq!(site.home.ok(["exec", &job, "--", "echo", "reached"]), "reached\n");
    site.home.touch("go");
    assert_eq!(attempts(&site.end_of(&job, 0)).len(), 1);
    // What is submitted now waits, and says for what.
    let late = site.submit(&["--", "echo", "late"]);
    wait_for("the reason", || site.home.ok(["why", &late]).to_lowercase().contains("slurm"));
    site.slurm.start_controller();
    site.end_of(&late, 0);
    assert_eq!(site.allocations(&late).len(), 1);
    site.wait_for_nothing_left();
}

#[test]
fn a_controller_that_forgets_that_a_job_ran_does_not_run_it_twice_at_once() {
    let site = Site::new();
    let line = "echo begin >> \"$SHARED/life\"; trap 'echo end >> \"$SHARED/life\"; exit 1' TERM; while :; do sleep 0.05; done";
    site.home.write("retry.yaml", "retries: {max: 3, backoff: 100ms}\n");
    let job = site.submit_line(&["--file", "retry.yaml"], line);
    site.home.wait_for_state(&job, "running");
    // What it knows of the start is not on its disk yet.
    site.slurm.kill_controller();
    site.slurm.start_controller();
    let running = || -> usize {
        let on =
            |number: usize| site.slurm.processes_on(number).iter().filter(|it| it.is("supervise")).count();
        let running = (1..=4).map(on).sum();
        assert!(running <= 1, "{running} at once");
        running
    };
    // What runs where is not known before, and then what should not is ended.
    wait_for("every node to have said what runs there", || {
        running();
        site.slurm.rpcs().get("MESSAGE_NODE_REGISTRATION_STATUS").is_some_and(|count| *count >= 4)
    });
    wait_for("Slurm to have taken one side", || {
        let is_running = running() == 1 && site.home.job(&job)["state"] == "running";
        is_running && site.allocations(&job).iter().any(|it| it["job_state"] == "RUNNING")
    });
    site.home.ok(["stop", &job]);
    site.wait_for_nothing_left();
}

#[test]
fn a_submit_that_is_not_answered_is_not_made_twice() {
    let slurm = Slurm::start_with(&[("MessageTimeout", "3")]);
    let site = Site::on(slurm);
    site.home.touch("go");
    site.home.ok(["run", "--on", "slurm/main", "--", "true"]);
    site.slurm.pause_controller();
    let jobs: Vec<String> =
        (0..3).map(|number| site.submit_line(&[], &noted(&format!("run{number}")))).collect();
    // The controller has the request, and will answer into the void.
    wait_for("sbatch to give up", || {
        jobs.iter().all(|job| site.home.json(["why", job, "--json"])["code"] == "engine_away")
    });
    site.slurm.resume_controller();
    for (number, job) in jobs.iter().enumerate() {
        site.check(job, &format!("run{number}"));
    }
    site.wait_for_nothing_left();
}

#[test]
fn a_dead_slurmd_is_not_missed_and_a_dead_node_is() {
    let site = Site::on(Slurm::start_with(&[("SlurmdTimeout", "4")]));
    site.home.write("retry.yaml", "retries: {max: 1, backoff: 100ms}\n");
    let job = site.submit_line(&["--file", "retry.yaml"], &noted("runs"));
    let number = site.wait_for_allocation(&job, "RUNNING");
    site.home.wait_for_state(&job, "running");
    let on = site.slurm.job(&number).expect("it is known")["nodes"].as_str().expect("a node").to_owned();
    let node: usize = on.trim_start_matches('n').parse().expect("a number");
    site.slurm.kill_slurmd(node);
    assert_eq!(site.home.ok(["exec", &job, "--", "echo", "still"]), "still\n");
    site.slurm.start_slurmd(node);
    assert_eq!(site.runs("runs"), 1);
    site.slurm.kill_node(node);
    site.home.touch("go");
    let shown = site.end_of(&job, 0);
    assert_eq!((attempts(&shown).len(), site.runs("runs")), (2, 2), "{shown}");
    assert_eq!(attempts(&shown)[0]["reason"]["code"], "node_lost", "{shown}");
    site.wait_for_nothing_left();
}

#[test]
fn the_node_that_died_is_the_one_that_is_named() {
    let site = Site::on(Slurm::start_with(&[("SlurmdTimeout", "4")]));
    let job = site.submit_to("slurm/gpu", &["-N", "2", "--exclusive", "--", "sleep", "1000"]);
    site.home.wait_for_state(&job, "running");
    site.slurm.kill_node(2);
    let shown = site.end_of(&job, 125);
    assert_eq!(shown["reason"], serde_json::json!({ "code": "node_lost", "node": "n2" }), "{shown}");
    for words in [["why", &job], ["show", &job], ["events", &job]] {
        let said = site.home.ok(words);
        assert!(said.contains("lost n2") && !said.contains("lost n1"), "{words:?}: {said}");
    }
    site.wait_for_nothing_left();
}

#[test]
fn a_node_that_is_drained_ends_nothing_and_one_that_is_down_does() {
    let site = Site::new();
    let job = site.submit_line(&[], &noted("drained"));
    site.home.wait_for_state(&job, "running");
    site.slurm.scontrol(&["update", "nodename=n[1-4]", "state=drain", "reason=repair"]);
    let late = site.submit_line(&[], "echo late");
    wait_for("a reason", || {
        let why = site.home.ok(["why", &late]).to_lowercase();
        why.contains("drain") || why.contains("available")
    });
    site.home.touch("go");
    site.check(&job, "drained");
    site.slurm.scontrol(&["update", "nodename=n[1-4]", "state=resume"]);
    site.end_of(&late, 0);

    let job = site.submit_line(&[], "sleep 1000");
    let number = site.wait_for_allocation(&job, "RUNNING");
    site.home.wait_for_state(&job, "running");
    let on = site.slurm.job(&number).expect("it is known")["nodes"].as_str().expect("a node").to_owned();
    site.slurm.scontrol(&["update", &format!("nodename={on}"), "state=down", "reason=fire"]);
    wait_for("the job to end", || site.home.job(&job)["state"] == "failed");
    assert_eq!(site.home.job(&job)["reason"]["code"], "node_lost", "{}", site.home.job(&job));
    site.wait_for_nothing_left();
}

#[test]
fn what_somebody_cancels_is_cancelled_and_not_tried_again() {
    let site = Site::new();
    let running = site.submit_line(&["--retries", "3"], &noted("cancelled"));
    let number = site.wait_for_allocation(&running, "RUNNING");
    site.home.wait_for_state(&running, "running");
    site.slurm.run_as_user("scancel", &[&number]);
    let shown = site.end_of(&running, 130);
    assert_eq!(shown["reason"]["code"], "cancelled_outside", "{shown}");
    assert_eq!(attempts(&shown).len(), 1);

    site.slurm.scontrol(&["update", "nodename=n[1-4]", "state=drain", "reason=wait"]);
    let waiting = site.submit_line(&["--retries", "3"], "true");
    let number = site.wait_for_allocation(&waiting, "PENDING");
    site.slurm.run("scancel", &[&number]);
    let shown = site.end_of(&waiting, 130);
    assert_eq!(shown["reason"]["code"], "cancelled_outside", "{shown}");
    site.wait_for_nothing_left();
}

#[test]
fn a_time_limit_of_slurms_is_a_timeout() {
    let site = Site::new();
    let line = "trap 'echo saved > \"$SHARED/saved\"; exit 0' TERM; while :; do sleep 0.05; done";
    let job = site.submit_line(&["--grace", "2s"], line);
    let number = site.wait_for_allocation(&job, "RUNNING");
    site.home.wait_for_state(&job, "running");
    site.slurm.end_in(&number, 2);
    let shown = site.end_of(&job, 124);
    assert_eq!(shown["reason"]["code"], "timeout", "{shown}");
    assert_eq!(site.home.wait_for_file("saved"), "saved\n", "there is time to save");
    site.wait_for_nothing_left();
}

#[test]
fn a_job_that_makes_way_is_queued_again_at_no_cost() {
    let site = Site::new();
    let line = format!("echo ran >> \"$SHARED/runs\"; {}", until("go"));
    let job =
        site.submit_to("slurm/low", &["-N", "4", "--exclusive", "--grace", "1s", "--", "sh", "-c", &line]);
    site.home.wait_for_state(&job, "running");
    let other = site.slurm.run_as_user("sbatch", &["--parsable", "-N4", "--exclusive", "--wrap=sleep 1000"]);
    // It ends within the time that it is given, so Slurm has it as completed.
    wait_for("it to wait again", || {
        site.home.job(&job)["state"] == "queued" && site.allocations(&job).len() == 2
    });
    site.slurm.run("scancel", &[other.trim()]);
    wait_for("it to run again", || site.runs("runs") >= 8);
    site.home.touch("go");
    let shown = site.end_of(&job, 0);
    assert_eq!(attempts(&shown).len(), 2, "{shown}");
    assert_eq!(attempts(&shown)[0]["reason"]["code"], "preempted", "{shown}");
    site.wait_for_nothing_left();
}
