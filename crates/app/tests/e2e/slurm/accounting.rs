//! A site with an accounting database, as most have: it knows what the controller has forgotten, and what that never knew.

use muster_testkit::{Slurm, wait_for};
use serde_json::{Value, json};

use super::Site;
use super::memory::EAT;
use crate::{attempts, until};

impl Site {
    /// The node that a job has, which nobody else uses.
    fn node_of(&self, number: &str) -> String {
        self.slurm.job(number).expect("it is known")["nodes"].as_str().expect("a node").to_owned()
    }

    fn reason(&self, job: &str) -> Value {
        attempts(&self.home.job(job))[0]["reason"].clone()
    }
}

#[test]
fn what_the_controller_has_forgotten_the_accounting_knows() {
    let slurm = Slurm::start_with_accounting(&[("MinJobAge", "2"), ("SlurmdTimeout", "10")]);
    let site = Site::on(slurm);
    let wait = |words: &[&str]| site.submit_line(words, "sleep 1000");
    let cancelled = wait(&["--grace", "1s"]);
    let late = wait(&["--grace", "1s"]);
    let hungry = site.submit_line(&["--memory", "200MB"], &format!("{}; {EAT}", until("go")));
    let lost = wait(&["--exclusive"]);
    let displaced = site.submit_to("slurm/low", &["--exclusive", "--grace", "1s", "--", "sleep", "1000"]);
    let jobs = [&cancelled, &late, &hungry, &lost, &displaced];
    jobs.iter().for_each(|job| drop(site.home.wait_for_state(job, "running")));
    let numbers = jobs.map(|job| site.wait_for_allocation(job, "RUNNING"));
    let (failing, wanted) = (site.node_of(&numbers[3]), site.node_of(&numbers[4]));
    site.home.kill("server");

    site.slurm.run("scancel", &[&numbers[0]]);
    site.slurm.end_in(&numbers[1], 1);
    site.home.touch("go");
    site.slurm.kill_node(failing.trim_start_matches('n').parse().expect("a number"));
    let node = format!("--nodelist={wanted}");
    site.slurm.run_as_user("sbatch", &["--partition=main", "--exclusive", &node, "--wrap=sleep 1"]);
    wait_for("all of them to be over", || site.slurm.open_jobs().is_empty());
    wait_for("the controller to forget them", || site.slurm.jobs().is_empty());

    site.end_of(&cancelled, 130);
    assert_eq!(site.reason(&cancelled), json!({ "code": "cancelled_outside", "by": "root" }));
    site.end_of(&late, 124);
    assert_eq!(site.reason(&late)["code"], "timeout");
    site.end_of(&hungry, 137);
    assert_eq!(site.reason(&hungry)["code"], "out_of_memory");
    site.end_of(&lost, 125);
    assert_eq!(site.reason(&lost), json!({ "code": "node_lost", "node": failing }));
    wait_for("it to run again, for it has made way", || site.home.job(&displaced)["state"] == "running");
    assert_eq!(site.reason(&displaced)["code"], "preempted");

    // Who did it is known to the accounting alone, also while the controller knows the rest.
    let number = site.wait_for_allocation(&displaced, "RUNNING");
    site.slurm.run_as_user("scancel", &[&number]);
    let shown = site.end_of(&displaced, 130);
    assert_eq!(shown["reason"], json!({ "code": "cancelled_outside", "by": Slurm::ACCOUNT }), "{shown}");
}
