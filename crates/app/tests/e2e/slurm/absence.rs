//! Somebody is away for long: our server, or a machine of the cluster. Nobody's nodes wait for either, and nothing runs twice.

use muster_testkit::{Slurm, SlurmSite, wait_for, wait_for_some};

use super::Site;
use super::faults::noted;
use super::people::laptop;
use crate::attempts;

#[test]
fn a_server_that_is_dead_for_a_jobs_whole_life_still_tells_everything() {
    // Slurm itself has forgotten it by then.
    let site = Site::on(Slurm::start_with(&[("MinJobAge", "2")]));
    let line = format!("echo 7 > \"$MUSTER_OUTPUT_DIR/result\"; {}; exit 3", noted("runs"));
    let jobs: Vec<String> = ["1", "2"].iter().map(|nodes| site.submit_line(&["-N", nodes], &line)).collect();
    for job in &jobs {
        site.home.wait_for_state(job, "running");
    }
    site.home.kill("server");
    site.home.touch("go");
    // Nobody's GPUs wait for a server.
    wait_for("the jobs to be over and forgotten", || site.slurm.jobs().is_empty());
    for (job, nodes) in jobs.iter().zip([1, 2]) {
        let shown = site.end_of(job, 3);
        assert_eq!(attempts(&shown).len(), 1, "{shown}");
        for rank in 0..nodes {
            assert_eq!(site.home.ok(["logs", job, "--task", &rank.to_string()]), "begun\nended\n");
        }
        assert_eq!(site.home.ok(["get", job, "@output/result", "-o", "-"]), "7\n");
    }
    assert_eq!(site.runs("runs"), 3);
    site.wait_for_nothing_left();
}

#[test]
fn a_job_whose_turn_comes_while_the_server_is_dead_waits_for_it() {
    let site = Site::new();
    site.slurm.scontrol(&["update", "nodename=n[1-4]", "state=drain", "reason=wait"]);
    site.home.touch("go");
    let job = site.submit_line(&[], &noted("runs"));
    site.wait_for_allocation(&job, "PENDING");
    site.home.kill("server");
    site.slurm.scontrol(&["update", "nodename=n[1-4]", "state=resume"]);
    site.wait_for_allocation(&job, "RUNNING");
    site.check(&job, "runs");
    site.wait_for_nothing_left();
}

#[test]
fn a_job_whose_turn_passes_while_the_server_is_dead_is_handed_over_again_at_no_cost() {
    let site = Site::with(Slurm::start(), "patience = \"2s\"\n");
    let words = ["--parsable", "-N4", "--exclusive", "--wrap=sleep 1000"];
    let other = site.slurm.run_as_user("sbatch", &words);
    wait_for("the cluster to be full", || site.slurm.states().values().all(|state| state == "allocated"));
    site.home.touch("go");
    let jobs: Vec<String> =
        ["1", "2"].iter().map(|nodes| site.submit_line(&["-N", nodes], &noted(nodes))).collect();
    jobs.iter().for_each(|job| drop(site.wait_for_allocation(job, "PENDING")));
    site.home.kill("server");
    site.slurm.run("scancel", &[other.trim()]);
    for job in &jobs {
        // Its agents have waited for somebody to tell them what to run, and have given their nodes back.
        site.wait_for_allocation(job, "COMPLETED");
    }
    assert_eq!((site.runs("1"), site.runs("2")), (0, 0));
    for (job, nodes) in jobs.iter().zip([1, 2]) {
        let shown = site.end_of(job, 0);
        assert_eq!((attempts(&shown).len(), site.runs(&nodes.to_string())), (2, nodes), "{shown}");
        assert_eq!(attempts(&shown)[0]["reason"]["code"], "allocation_lapsed", "{shown}");
    }
    site.wait_for_nothing_left();
}

#[test]
fn a_machine_that_is_cut_off_is_given_up_and_what_runs_there_ends_before_the_next_attempt_begins() {
    let site = SlurmSite::start_with(2, &[("SlurmdTimeout", "10")]);
    let home = laptop(&site);
    home.write("retry.yaml", "retries: {max: 1, backoff: 100ms}\n");
    let line = "trap 'echo end >> ~/life; exit 1' TERM; echo begin >> ~/life; until test -e ~/go; do sleep 0.05; done";
    let job = home.submit(&["--on", "slurm/main", "--file", "retry.yaml", "--", "sh", "-c", line]);
    home.wait_for_state(&job, "running");
    let host = wait_for_some("its machine to be known", || {
        Some(home.job(&job)["allocation"]["hosts"][0].as_str()?.to_owned())
    });
    let number: usize = host.trim_start_matches("host").parse().expect("a machine of the cluster");
    site.node(number).cut();
    let life = || std::fs::read_to_string(site.home().join("life")).unwrap_or_default();
    wait_for("what runs there to hear that it is over", || life().contains("end"));
    wait_for("another machine to begin it", || life().matches("begin").count() == 2);
    assert_eq!(life(), "begin\nend\nbegin\n");
    std::fs::write(site.home().join("go"), "").expect("a file");
    assert_eq!(home.run(["wait", &job]).code(), 0);
    let shown = home.job(&job);
    assert_eq!(
        attempts(&shown)[0]["reason"],
        serde_json::json!({ "code": "node_lost", "node": host }),
        "{shown}"
    );
    site.node(number).join();
    wait_for("the nodes to be free", || {
        site.login().run("squeue -h").is_empty()
            && (1..=2).all(|number| site.node(number).processes_with("agent --gang").is_empty())
    });
}
