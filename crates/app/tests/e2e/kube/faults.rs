//! What goes wrong in a cluster without breaking it: nodes are drained, others are more important, somebody deletes what is ours,
//! there is a quota, no such image, no such node, our server is away. Each time the job has the right state and reason, once, and
//! nothing is left.

use muster_testkit::wait_for;
use serde_json::{Value, json};

use super::Site;
use crate::{attempts, until};

/// Notes in the shared directory that it runs, says it, and goes on until there is `go`.
fn noted(name: &str) -> String {
    format!("echo ran >> \"$SHARED/{name}\"; echo begun; {}; echo ended", until("go"))
}

impl Site {
    /// How often a job that notes it has run.
    fn runs(&self, name: &str) -> usize {
        std::fs::read_to_string(self.home.shared().join(name)).map_or(0, |text| text.lines().count())
    }

    /// Waits until there are so many pods, all in this phase.
    fn wait_for_phase(&self, count: usize, phase: &str) {
        wait_for(&format!("{count} pods to be {phase}"), || {
            let pods = self.objects("pods");
            pods.len() == count && pods.iter().all(|pod| pod["status"]["phase"] == phase)
        });
    }

    /// Waits until `why` has all of these words.
    fn wait_for_why(&self, job: &str, words: &[&str]) {
        let mut said = String::new();
        wait_for(&format!("why to say {words:?}"), || {
            said = self.home.run(["why", job]).out();
            words.iter().all(|word| said.contains(word))
        });
    }
}

/// The reason of an attempt, from 0.
fn reason(job: &Value, attempt: usize) -> String {
    attempts(job)[attempt]["reason"]["code"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_job_whose_node_is_drained_runs_elsewhere_at_no_cost() {
    let site = Site::new();
    let job = site.submit_line(&[], &noted("runs"));
    site.home.wait_for_state(&job, "running");
    let node = format!("node{}", Site::node_of(&site.wait_for_pod()));
    // Only ours, so that those of other tests stay.
    let own = format!("--pod-selector=muster.dev/job={job}");
    site.kube.kubectl(&["drain", &node, "--force", "--delete-emptydir-data", "--ignore-daemonsets", &own]);
    site.kube.kubectl(&["uncordon", &node]);
    wait_for("it to run again", || site.runs("runs") == 2);
    site.home.touch("go");
    let shown = site.end_of(&job, 0);
    assert_eq!((attempts(&shown).len(), reason(&shown, 0)), (2, "displaced".to_owned()), "{shown}");
    assert_eq!(site.runs("runs"), 2);
    site.wait_for_nothing_left();
}

#[test]
fn what_somebody_deletes_is_cancelled_and_said_to_be() {
    let site = Site::new();
    for kind in ["job", "pod"] {
        let job = site.submit_line(&[], &noted(kind));
        site.home.wait_for_state(&job, "running");
        site.kube.kubectl(&[
            "delete",
            kind,
            "-n",
            &site.namespace,
            "-l",
            &format!("muster.dev/job={job}"),
            "--wait=false",
        ]);
        let waited = site.home.run(["wait", &job]);
        assert_ne!(waited.code(), 0);
        let shown = site.home.job(&job);
        assert_eq!(shown["reason"]["code"], "cancelled_outside", "{kind}: {shown}");
        assert_eq!((attempts(&shown).len(), site.runs(kind)), (1, 1), "{shown}");
        site.wait_for_nothing_left();
    }
}

#[test]
fn a_job_over_the_quota_waits_and_says_so() {
    let site = Site::new();
    let quota = json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": { "name": "little", "namespace": site.namespace },
        "spec": { "hard": { "pods": "2" } },
    });
    site.kube.apply(&quota.to_string());
    wait_for("the quota to count", || site.objects("resourcequotas")[0]["status"]["hard"]["pods"] == "2");
    let first = site.submit_line(&[], &until("go"));
    site.home.wait_for_state(&first, "running");
    // It would fit if it were alone: what never fits is refused when it is submitted.
    let job = site.submit_line(&["-N", "2"], "true");
    site.wait_for_why(&job, &["limit"]);
    assert_eq!(site.home.job(&job)["state"], "queued");
    site.home.touch("go");
    site.end_of(&first, 0);
    let shown = site.end_of(&job, 0);
    assert_eq!(attempts(&shown).len(), 1, "{shown}");
    site.wait_for_nothing_left();
}

#[test]
fn an_image_that_cannot_be_had_or_cannot_run_fails_the_job_once() {
    let site = Site::new();
    site.home.write("retry.yaml", "retries: {max: 3, backoff: 100ms}\n");
    for image in ["localhost/no-such-image:1", "localhost/NoSuchName:1"] {
        let job = site.submit(&["--file", "retry.yaml", "--image", image, "--", "true"]);
        assert_ne!(site.home.run(["wait", &job]).code(), 0);
        let shown = site.home.job(&job);
        assert_eq!(shown["reason"]["code"], "image_pull_failed", "{shown}");
        assert!(shown["reason"].to_string().contains(image), "{shown}");
        assert_eq!(attempts(&shown).len(), 1, "{shown}");
    }
    let image = site.kube.bring("busybox");
    let job = site.submit(&["--file", "retry.yaml", "--image", &image, "--", "true"]);
    assert_ne!(site.home.run(["wait", &job]).code(), 0);
    let shown = site.home.job(&job);
    assert!(shown["reason"].to_string().contains("glibc"), "{shown}");
    assert_eq!(attempts(&shown).len(), 1, "{shown}");
    site.wait_for_nothing_left();
}

#[test]
fn a_job_that_fits_no_node_waits_and_says_what_is_lacking() {
    let site = Site::new();
    let job = site.submit(&["--gpus", "9", "--", "true"]);
    site.wait_for_why(&job, &["never_fits", "nvidia.com/gpu"]);
    site.home.ok(["stop", &job]);
    assert_eq!(site.end_of(&job, 130)["reason"]["code"], "stopped_by_user");
    site.wait_for_nothing_left();
}

#[test]
fn a_job_makes_way_for_a_more_important_pod_and_runs_again() {
    let site = Site::new();
    let (high, low) = (format!("{}-high", site.namespace), format!("{}-low", site.namespace));
    for (name, value) in [(&high, 1000), (&low, -10)] {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": { "name": name },
            "value": value,
        });
        site.kube.apply(&class.to_string());
    }
    // A device that no other test knows, so that nobody else has to make way.
    let device = format!("example.com/{}", site.namespace);
    let status = json!({ "capacity": { &device: "1" }, "allocatable": { &device: "1" } });
    let patch = json!({ "status": status }).to_string();
    site.kube.kubectl(&["patch", "node", "node1", "--subresource=status", "--type=merge", "-p", &patch]);
    let spec = json!({ "k8s": { "priority_class": low, "resources": { &device: "1" } } });
    site.home.write("low.yaml", spec.to_string());
    let job = site.submit_line(&["--file", "low.yaml", "--grace", "1s"], &noted("runs"));
    site.home.wait_for_state(&job, "running");
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "important", "namespace": site.namespace },
        "spec": {
            "priorityClassName": high,
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main",
                "image": super::IMAGE,
                "command": ["sleep", "1000"],
                "resources": { "limits": { &device: "1" } },
            }],
        },
    });
    site.kube.apply(&pod.to_string());
    wait_for("the more important to run", || {
        site.kube.get(&["pod", "important", "-n", &site.namespace])["status"]["phase"] == "Running"
    });
    wait_for("the other to wait again", || site.home.job(&job)["state"] == "queued");
    site.kube.kubectl(&["delete", "pod", "important", "-n", &site.namespace]);
    wait_for("it to run again", || site.runs("runs") == 2);
    site.home.touch("go");
    let shown = site.end_of(&job, 0);
    assert_eq!((attempts(&shown).len(), reason(&shown, 0)), (2, "preempted".to_owned()), "{shown}");
    site.kube.kubectl(&["delete", "priorityclass", &high, &low]);
    site.wait_for_nothing_left();
}

#[test]
fn a_job_whose_server_is_away_for_its_whole_life_is_told_once() {
    let site = Site::new();
    let line = format!("echo 7 > \"$MUSTER_OUTPUT_DIR/result\"; {}; exit 3", noted("runs"));
    let job = site.submit_line(&["-N", "2"], &line);
    site.home.wait_for_state(&job, "running");
    wait_for("both to run", || site.runs("runs") == 2);
    site.home.kill("server");
    site.home.touch("go");
    // Its pods end by themselves: nobody's devices wait for a server.
    site.wait_for_phase(2, "Succeeded");
    let shown = site.end_of(&job, 3);
    assert_eq!((attempts(&shown).len(), site.runs("runs")), (1, 2), "{shown}");
    for rank in ["0", "1"] {
        assert_eq!(site.home.ok(["logs", &job, "--task", rank]), "begun\nended\n");
    }
    assert_eq!(site.home.ok(["get", &job, "@output/result", "-o", "-"]), "7\n");
    site.wait_for_nothing_left();
}

#[test]
fn a_job_whose_turn_passes_while_the_server_is_dead_is_handed_over_again_at_no_cost() {
    let site = Site::with("patience = \"2s\"\n");
    // A pod that does not start before somebody makes a file.
    let turn = json!({
        "volumes": [{ "name": "turn", "hostPath": { "path": site.home.shared().join("turn"), "type": "File" } }],
        "containers": [{ "name": "task", "volumeMounts": [{ "name": "turn", "mountPath": "/turn" }] }],
    });
    site.home.write("turn.yaml", json!({ "k8s": { "pod": turn } }).to_string());
    site.home.touch("go");
    let job = site.submit_line(&["--file", "turn.yaml"], &noted("runs"));
    wait_for("it to have a node", || {
        site.objects("pods").iter().any(|pod| pod["spec"]["nodeName"].is_string())
    });
    site.home.kill("server");
    site.home.touch("turn");
    // Its agent has waited for somebody to tell it what to run, and has given its place back.
    site.wait_for_phase(1, "Succeeded");
    assert_eq!(site.runs("runs"), 0);
    let shown = site.end_of(&job, 0);
    assert_eq!((attempts(&shown).len(), site.runs("runs")), (2, 1), "{shown}");
    assert_eq!(reason(&shown, 0), "allocation_lapsed", "{shown}");
    site.wait_for_nothing_left();
}
