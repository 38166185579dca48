//! What breaks a cluster: its control plane dies, kubelets die, a node is cut off. Jobs do not notice, or run again elsewhere; never
//! twice at the same time. Each has a cluster of its own.

use std::time::Duration;

use muster_testkit::{KubeOptions, wait_for, wait_within};

use super::Site;
use crate::{attempts, until};

/// Notes again and again in the shared directory that this attempt runs, and when.
const BEATS: &str = "while [ ! -e \"$SHARED/go\" ]; do echo $MUSTER_ATTEMPT $(date +%s%N) >> \"$SHARED/beats\"; sleep 0.1; done";

impl Site {
    /// When each attempt has run, from its first note to its last.
    fn lives(&self) -> Vec<(u64, u64)> {
        let text = std::fs::read_to_string(self.home.shared().join("beats")).unwrap_or_default();
        let mut lives: Vec<(u64, u64)> = Vec::new();
        for (attempt, at) in text.lines().filter_map(|line| line.split_once(' ')) {
            let (attempt, at): (usize, u64) =
                (attempt.parse().expect("a number"), at.parse().expect("a time"));
            if lives.len() < attempt {
                lives.resize(attempt, (at, at));
            }
            lives[attempt - 1].1 = at;
        }
        lives
    }

    /// That no attempt ran before the one before it had ended.
    fn check_that_lives_follow_each_other(&self, count: usize) {
        let lives = self.lives();
        assert_eq!(lives.len(), count, "{lives:?}");
        assert!(lives.windows(2).all(|pair| pair[0].1 < pair[1].0), "two ran at once: {lives:?}");
    }
}

#[test]
fn jobs_outlive_a_control_plane_and_a_kubelet_that_die() {
    let site = Site::apart(KubeOptions::default(), "");
    let line = "echo ran >> \"$SHARED/runs\"; echo begun";
    let line = format!("{line}; {}; echo $RANK > \"$MUSTER_OUTPUT_DIR/rank\"; echo ended", until("go"));
    let job = site.submit_line(&["-N", "2"], &line);
    site.home.wait_for_state(&job, "running");
    site.kube.kill("apiserver");
    site.kube.kill("etcd");
    // What is submitted now waits, and says for what.
    let late = site.submit_line(&[], "echo late");
    wait_for("the reason", || site.home.ok(["why", &late]).contains("k8s"));
    site.kube.restart("etcd");
    site.kube.restart("apiserver");
    assert_eq!(site.end_of(&late, 0)["state"], "succeeded");
    for node in [1, 2] {
        site.kube.kill_kubelet(node);
    }
    site.home.touch("go");
    for node in [1, 2] {
        site.kube.start_kubelet(node);
    }
    let shown = site.end_of(&job, 0);
    assert_eq!(attempts(&shown).len(), 1, "{shown}");
    assert_eq!(std::fs::read_to_string(site.home.shared().join("runs")).expect("it ran"), "ran\nran\n");
    for rank in ["0", "1"] {
        assert_eq!(site.home.ok(["logs", &job, "--task", rank]), "begun\nended\n");
    }
    // What they leave goes with the pods, which therefore stay until it is here.
    site.wait_for_nothing_left();
    let shown = site.home.job(&job);
    for task in crate::tasks(&shown) {
        assert_eq!(
            (&task["outputs"]["state"], &task["outputs"]["files"]),
            (&"collected".into(), &1.into()),
            "{shown}"
        );
    }
}

#[test]
fn a_job_on_a_node_that_is_cut_off_runs_elsewhere_when_it_has_ended_there() {
    let options = KubeOptions { silence_s: Some(6), ..KubeOptions::default() };
    let site = Site::apart(options, "fence = \"8s\"\n");
    site.home.write("retry.yaml", "retries: {max: 1, backoff: 100ms}\n");
    let job = site.submit_line(&["--file", "retry.yaml", "--grace", "1s"], BEATS);
    site.home.wait_for_state(&job, "running");
    wait_for("it to run", || site.lives().len() == 1);
    let node = Site::node_of(&site.wait_for_pod());
    site.kube.cut(node);
    // The node has to be missed, and all the time to pass in which a task may go on that hears nobody.
    wait_within(Duration::from_secs(180), "it to run elsewhere", || site.lives().len() == 2);
    site.kube.join(node);
    let name = format!("node{node}");
    wait_for("the node to be back", || site.kube.ready_nodes().contains(&name));
    site.home.touch("go");
    let shown = site.end_of(&job, 0);
    assert_eq!(attempts(&shown).len(), 2, "{shown}");
    assert_eq!(attempts(&shown)[0]["reason"]["code"], "node_lost", "{shown}");
    site.check_that_lives_follow_each_other(2);
    site.wait_for_nothing_left();
    // So it is where the node itself can still be heard, and only its kubelet is dead.
    for name in ["beats", "go"] {
        std::fs::remove_file(site.home.shared().join(name)).expect("it is there");
    }
    let job = site.submit_line(&["--file", "retry.yaml", "--grace", "1s"], BEATS);
    wait_for("it to run", || site.lives().len() == 1);
    let node = Site::node_of(&site.wait_for_pod());
    site.kube.kill_kubelet(node);
    wait_within(Duration::from_secs(180), "it to run elsewhere", || site.lives().len() == 2);
    site.kube.start_kubelet(node);
    site.home.touch("go");
    let shown = site.end_of(&job, 0);
    assert_eq!(attempts(&shown)[0]["reason"]["code"], "node_lost", "{shown}");
    site.check_that_lives_follow_each_other(2);
    site.wait_for_nothing_left();
    // One that is back soon is not missed.
    let line = format!("echo up > \"$SHARED/up\"; {}; echo said", until("again"));
    let job = site.submit_line(&[], &line);
    site.home.wait_for_file("up");
    let node = Site::node_of(&site.wait_for_pod());
    site.kube.cut(node);
    let name = format!("node{node}");
    wait_for("the node to be missed", || !site.kube.ready_nodes().contains(&name));
    site.kube.join(node);
    site.home.touch("again");
    let shown = site.end_of(&job, 0);
    assert_eq!((attempts(&shown).len(), site.home.ok(["logs", &job])), (1, "said\n".to_owned()), "{shown}");
    site.wait_for_nothing_left();
}
