//! A Slurm of a test's own is a real one to whoever uses it, and nothing is left of it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use muster_testkit::{Slurm, SlurmSite, wait_for, wait_for_some, with_word};

/// Submits a shell line and gives its job's number.
fn submit(slurm: &Slurm, words: &[&str], line: &str) -> String {
    let wrapped = format!("--wrap={line}");
    let all: Vec<&str> =
        ["--parsable", "--output=out"].iter().chain(words).copied().chain([wrapped.as_str()]).collect();
    slurm.run_as_user("sbatch", &all).trim().to_owned()
}

fn state(slurm: &Slurm, job: &str) -> String {
    let found = slurm.job(job);
    found.map(|it| it["job_state"].as_str().expect("a word").to_owned()).unwrap_or_default()
}

fn wait_for_state(slurm: &Slurm, job: &str, wanted: &str) {
    wait_for(&format!("job {job} to be {wanted}"), || state(slurm, job) == wanted);
}

#[test]
fn jobs_run_as_an_ordinary_account_with_the_devices_they_ask_for() {
    let slurm = Slurm::start();
    let line = "srun sh -c 'echo $(whoami) $SLURM_PROCID $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'; pwd";
    let job = submit(&slurm, &["-N2", "--ntasks-per-node=1", "--gres=gpu:a100:3"], line);
    wait_for_state(&slurm, &job, "COMPLETED");
    let text = fs::read_to_string(slurm.home().join("out")).expect("its output is in the home");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let home = slurm.home().display().to_string();
    assert_eq!(lines, [&home, "muster-test 0 n3 0,1,2", "muster-test 1 n4 0,1,2"]);
    assert!(slurm.rpcs()["REQUEST_SUBMIT_BATCH_JOB"] == 1);
    let ended = slurm.run("sacct", &["--completion", "--parsable2", "--noheader", "--format=JobID,State"]);
    assert_eq!(ended, format!("{job}|COMPLETED\n"));
}

#[test]
fn jobs_see_what_they_are_shown_of_closed_directories() {
    let closed = tempfile::tempdir().expect("a directory");
    let (shown, hidden) = (closed.path().join("a/shown"), closed.path().join("a/hidden"));
    for folder in [&shown, &hidden] {
        fs::create_dir_all(folder).expect("a directory");
        fs::write(folder.join("file"), "seen\n").expect("a file");
    }
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o700)).expect("its permissions");
    let slurm = Slurm::start_showing(std::slice::from_ref(&shown), &[]);
    let line = format!("cat {0}/file; ls {1} 2>/dev/null || echo nothing", shown.display(), hidden.display());
    let job = submit(&slurm, &[], &line);
    wait_for_state(&slurm, &job, "COMPLETED");
    assert_eq!(fs::read_to_string(slurm.home().join("out")).expect("its output"), "seen\nnothing\n");
    assert!(hidden.join("file").exists(), "nothing changes outside");
}

#[test]
fn jobs_outlive_daemons_and_end_with_their_node() {
    let slurm = Slurm::start_with(&[("SlurmdTimeout", "3")]);
    let job = submit(&slurm, &["-w", "n2"], "sleep 1000");
    wait_for_state(&slurm, &job, "RUNNING");
    slurm.wait_until_saved(&job);
    slurm.kill_controller();
    slurm.start_controller();
    assert_eq!(state(&slurm, &job), "RUNNING");
    slurm.kill_slurmd(2);
    slurm.start_slurmd(2);
    assert_eq!(state(&slurm, &job), "RUNNING");
    wait_for("the job's processes", || slurm.processes_on(2).len() >= 2);
    assert!(slurm.processes_on(1).is_empty());
    slurm.kill_node(2);
    assert!(slurm.processes_on(2).is_empty());
    wait_for("the job to be given up", || ["NODE_FAIL", "PENDING"].contains(&state(&slurm, &job).as_str()));
    slurm.start_slurmd(2);
}

#[test]
fn a_job_makes_way_and_another_runs_out_of_time() {
    let slurm = Slurm::start();
    let low = submit(&slurm, &["-p", "low", "-N4", "--exclusive", "--no-requeue"], "sleep 1000");
    wait_for_state(&slurm, &low, "RUNNING");
    let job = submit(&slurm, &["-p", "gpu"], "sleep 1000");
    wait_for_state(&slurm, &low, "PREEMPTED");
    wait_for_state(&slurm, &job, "RUNNING");
    slurm.end_in(&job, 1);
    wait_for_state(&slurm, &job, "TIMEOUT");
}

#[test]
fn nothing_is_left_of_two_that_ran_at_once() {
    let clusters = [Slurm::start(), Slurm::start()];
    let places: Vec<String> = clusters.iter().map(|slurm| slurm.conf().display().to_string()).collect();
    for slurm in &clusters {
        let job = submit(slurm, &["-N4"], "srun sleep 98765");
        wait_for_state(slurm, &job, "RUNNING");
        assert_eq!(slurm.open_jobs().len(), 1);
    }
    let of_both = || -> usize {
        let has = |pid: u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let text = String::from_utf8_lossy(&environment).into_owned();
            places.iter().any(|place| text.contains(place.as_str()))
        };
        ["slurm", "sleep 98765", "98765"]
            .iter()
            .flat_map(|word| with_word(word))
            .filter(|it| has(it.pid))
            .count()
    };
    assert!(wait_for_some("their processes", || Some(of_both()).filter(|count| *count >= 10)) >= 10);
    drop(clusters);
    assert_eq!(of_both(), 0);
    assert!(places.iter().all(|place| !fs::exists(place).expect("it can be looked for")));
}

#[test]
fn a_killed_test_leaves_no_process() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let mut command = Command::new(env!("CARGO_BIN_EXE_slurm"));
    let mut owner = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(owner.stdout.take().expect("a pipe")).read_line(&mut line).expect("it says where it is");
    let said: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let conf = std::path::PathBuf::from(said["conf"].as_str().expect("a path"));
    let folder = conf.parent().expect("a folder").to_owned();
    let munged = || with_word(&folder.display().to_string()).len();
    assert!(munged() >= 1);
    owner.kill().expect("it can be killed");
    owner.wait().expect("it ends");
    wait_for("the daemons to end with it", || munged() == 0);
    let _ = fs::remove_dir_all(folder);
}

#[test]
fn a_site_has_a_login_node_and_nodes_that_do_not_reach_the_laptop() {
    let site = SlurmSite::start(2);
    let login = |line: &str| {
        let output = site.login_command().arg(line).output().expect("ssh starts");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let line = "srun sh -c 'echo $(whoami) $SLURM_PROCID $(hostname) $CUDA_VISIBLE_DEVICES $PWD'";
    login(&format!(
        "sbatch --wait -N2 --ntasks-per-node=1 --gres=gpu:2 -o out --wrap=\"{}\"",
        line.replace('$', "\\$")
    ));
    assert_eq!(login("sort out"), "train 0 host1 0,1 /home/train\ntrain 1 host2 0,1 /home/train");
    assert!(site.home().join("out").exists());
    let laptop = site.hosts().launcher();
    let listener = std::net::TcpListener::bind((laptop, 0)).expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let reach = format!("timeout 5 bash -c 'exec 3<>/dev/tcp/{laptop}/{port}'");
    assert!(site.login().try_run(&reach).status.success(), "the login node may");
    assert!(!site.node(1).try_run(&reach).status.success());
    let node = std::net::SocketAddr::from((site.node(1).address(), 22));
    let second = std::time::Duration::from_secs(1);
    assert!(std::net::TcpStream::connect_timeout(&node, second).is_err(), "nor the other way");
    site.node(2).reboot();
    site.start_node(2);
    wait_for("a node that was started again", || login("sinfo -h -N -n host2 -o %T") == "idle");
}
