//! Time limits of partitions: which jobs they let in, and what is said of a job that reached one.

use muster_testkit::Slurm;

use super::Site;

/// A cluster that refuses at once what a partition does not allow, with at most five minutes in `gpu`.
fn strict_site() -> Site {
    let site = Site::on(Slurm::start_with(&[("EnforcePartLimits", "ALL")]));
    site.slurm.scontrol(&["update", "partitionname=gpu", "defaulttime=1", "maxtime=5"]);
    site
}

#[test]
fn a_job_may_use_all_of_the_time_that_its_partition_allows() {
    let site = strict_site();
    for timeout in ["3m59s", "5m"] {
        let done = site.home.run(["run", "--on", "slurm/gpu", "--timeout", timeout, "--", "true"]);
        assert_eq!(done.code(), 0, "{timeout}: {}{}", done.out(), done.err());
    }
    site.home.write("job.sh", "#!/bin/sh\n#SBATCH --partition=gpu --time=00:05:00\ntrue\n");
    let done = site.home.run(["run", "--on", "slurm", "--file", "job.sh"]);
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    let limits: Vec<_> = site.slurm.jobs().iter().map(|job| job["time_limit"].to_string()).collect();
    assert!(limits.iter().all(|limit| limit.contains('5')), "{limits:?}");

    let done = site.home.run(["run", "--on", "slurm/gpu", "--timeout", "6m", "--", "true"]);
    assert_ne!(done.code(), 0, "{}", done.out());
    assert!(done.err().contains("time limit"), "{}", done.err());
    site.wait_for_nothing_left();
}

#[test]
fn a_partitions_default_time_is_not_called_the_jobs_timeout() {
    let site = strict_site();
    let job = site.submit_to("slurm/gpu", &["--grace", "1s", "--", "sleep", "1000"]);
    let shown = site.end_of(&job, 124);
    assert_eq!(shown["reason"]["set_by"], "partition_default", "{shown}");
    let why = site.home.ok(["why", &job]);
    assert!(why.contains("the partition's default of 1m"), "{why}");
    assert!(!why.contains("its timeout"), "{why}");
    site.wait_for_nothing_left();
}

#[test]
fn nodes_shows_what_each_partition_allows() {
    let site = Site::new();
    let shown = site.home.ok(["nodes"]);
    let row = |name: &str| -> Vec<String> {
        let line = shown.lines().find(|line| line.starts_with(name) && line.contains("unlimited"));
        let line = line.unwrap_or_else(|| panic!("no limits of {name} in\n{shown}"));
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(row("slurm/main"), ["slurm/main", "(default)", "unlimited", "unlimited", "unlimited"]);
    assert_eq!(row("slurm/gpu"), ["slurm/gpu", "2h", "30m", "unlimited"]);
    let listed = site.home.json(["nodes", "--clusters", "--json"]);
    let clusters = listed.as_array().expect("a list of clusters");
    let slurm = clusters.iter().find(|one| one["engine"] == "slurm").expect("Slurm is one");
    let limits = slurm["limits"].as_array().expect("a list of limits");
    let gpu = limits.iter().find(|one| one["on"] == "slurm/gpu").expect("gpu has limits");
    assert_eq!((&gpu["max_time_ms"], &gpu["default_time_ms"]), (&7_200_000.into(), &1_800_000.into()));
}
