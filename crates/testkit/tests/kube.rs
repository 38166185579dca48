//! A Kubernetes of a test's own is a real one to whoever uses it, and nothing is left of it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use muster_testkit::{Kube, kill, wait_for, wait_for_some, with_word};
use serde_json::Value;

/// Two pods, one on each node, that meet by name, reach the API server, and then wait.
const GANG: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: gang}
spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {job-name: hello}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: hello}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  backoffLimit: 0
  template:
    spec:
      subdomain: gang
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
      - name: task
        image: localhost/busybox:1
        command:
        - /bin/sh
        - -c
        - |
          until ping -c1 -W1 hello-$((1 - JOB_COMPLETION_INDEX)).gang; do sleep 0.2; done
          nc $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null && echo met
          sleep 1000
        resources: {limits: {nvidia.com/gpu: 8, memory: 64Mi}}
"#;

/// What a kubelet would change of the machine.
const SETTINGS: [&str; 3] = ["vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops"];

fn settings() -> Vec<String> {
    let read = |name: &str| fs::read_to_string(Path::new("/proc/sys").join(name)).expect("a setting");
    SETTINGS.into_iter().map(read).collect()
}

/// What there is of clusters of this name.
fn traces(name: &str) -> Vec<String> {
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).collect::<Vec<_>>()
    };
    let groups: Vec<String> =
        names(Path::new("/sys/fs/cgroup")).iter().flat_map(|it| names(Path::new(it))).collect();
    let number = name.rsplit('-').next().expect("a number");
    let links = names(Path::new("/sys/class/net"));
    let links = links
        .into_iter()
        .filter(|it| it.contains(&format!("/mk{number}-")) || it.ends_with(&format!("/mk{number}")));
    let files = groups.into_iter().chain(names(&std::env::temp_dir())).filter(|it| it.contains(name));
    let processes = with_word(name).into_iter().map(|process| process.words.join(" "));
    files.chain(links).chain(processes).collect()
}

fn name_of(kubeconfig: &Path) -> String {
    let directory = kubeconfig.parent().and_then(Path::parent).expect("it is in the cluster's directory");
    directory.file_name().expect("a name").to_string_lossy().into_owned()
}

#[test]
fn pods_meet_across_nodes_and_outlive_what_watches_over_them() {
    let before = settings();
    let kube = Kube::start();
    let name = name_of(&kube.kubeconfig());
    assert_eq!(kube.bring("busybox"), "localhost/busybox:1");
    kube.apply(GANG);
    let pods =
        || kube.get(&["pods", "-l", "job-name=hello"])["items"].as_array().cloned().unwrap_or_default();
    let logs = || kube.try_kubectl(&["logs", "-l", "job-name=hello", "--tail=-1"]).out();
    wait_for("both pods to meet", || logs().lines().filter(|line| *line == "met").count() == 2);
    let nodes: BTreeSet<String> = pods().iter().map(|pod| pod["spec"]["nodeName"].to_string()).collect();
    assert_eq!(nodes.len(), 2, "each takes all devices of its node");
    assert!(kube.processes_on(1).iter().any(|process| process.words.iter().any(|word| word == "1000")));
    kube.kill("etcd");
    kube.kill("apiserver");
    kube.kill_kubelet(2);
    kube.restart("etcd");
    kube.restart("apiserver");
    kube.start_kubelet(2);
    let devices = kube.get(&["node", "node2"])["status"]["allocatable"]["nvidia.com/gpu"].clone();
    assert_eq!(devices, "8");
    assert!(pods().iter().all(|pod| pod["status"]["phase"] == "Running"), "{:?}", pods());
    assert_eq!(kube.calls("kubectl")["create jobs"], 1);
    assert_eq!(settings(), before);
    drop(kube);
    assert_eq!(traces(&name), [""; 0]);
}

#[test]
fn nothing_is_left_of_a_cluster_whose_owner_is_killed() {
    let mut owner = Command::new(env!("CARGO_BIN_EXE_kube"))
        .args(["nodes=1", "gpus=0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut said = String::new();
    BufReader::new(owner.stdout.take().expect("a pipe")).read_line(&mut said).expect("a line");
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let name = name_of(&PathBuf::from(said["kubeconfig"].as_str().expect("a path")));
    assert!(traces(&name).len() > 10);
    kill(owner.id());
    let _ = owner.wait();
    let left = || Some(traces(&name)).filter(Vec::is_empty);
    wait_for_some("everything to end with it", left);
}
