//! Links and leftovers of pods on a real cluster. What is in the pods is no agent: a program that says what it hears, one that
//! has much to say, and one that prints what an agent would.

use std::path::Path;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use muster_link::leftover::{Entry, KINDS, Parcel, RECORD};
use muster_testkit::{Kube, KubeOptions};
use serde_json::{Value, json};
use tokio::net::UnixListener;

use super::*;
use crate::leftover::{Kept, Over};

const MUCH: usize = 100 << 20;
/// Under the load of all other tests.
const PATIENCE: Duration = Duration::from_secs(60);

fn pod(name: &str, script: &str, printed: &str) -> Value {
    let volume = json!({"name": "printed", "configMap": {"name": name}});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"lines": printed}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "volumes": [volume],
            "containers": [{"name": "task", "image": "localhost/busybox:1", "imagePullPolicy": "Never",
                "command": ["sh", "-c", script], "volumeMounts": [{"name": "printed", "mountPath": "/printed"}]}]}}]})
}

async fn pods(kubeconfig: &Path) -> Api<Pod> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Api::namespaced(Client::try_from(config).unwrap(), "default")
}

async fn phase(pods: &Api<Pod>, name: &str, wanted: &str) {
    let is_there = async {
        while pods.get(name).await.unwrap().status.and_then(|status| status.phase).as_deref() != Some(wanted)
        {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, is_there).await.expect("the pod gets there");
}

/// The next connection that comes for a channel; those of the other are let go.
async fn accept(listener: &UnixListener, channel: Channel) -> UnixStream {
    let accepted = async {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // What is in the pod says the greeting again.
            if greeting::admit(&mut stream, channel, "secret").await.is_ok() {
                return stream;
            }
        }
    };
    timeout(PATIENCE, accepted).await.expect("a link is carried")
}

async fn links_are_carried(pods: &Api<Pod>, home: &Path) {
    let socket = home.join("gate.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let carrier = Carrier::new(socket);
    let called = || Some(Called { api: pods.clone(), name: "agent".into(), token: "secret".into() });
    let since = Instant::now();
    carrier.begin("uid", true, called);
    carrier.begin("uid", true, || panic!("it is carried already"));
    let mut control = accept(&listener, Channel::Control).await;
    println!("the first word came after {:?}", since.elapsed());
    control.write_all(b"hello").await.unwrap();
    let mut said = [0; 5];
    control.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"hello");
    drop(control);
    let mut control = accept(&listener, Channel::Control).await;
    let mut bulk = accept(&listener, Channel::Bulk).await;
    let (since, mut bytes, mut piece) = (Instant::now(), 0, vec![0; PIECE]);
    while bytes < MUCH {
        bytes += timeout(PATIENCE, bulk.read(&mut piece)).await.unwrap().unwrap();
    }
    println!("{} MB came in {:?}", bytes >> 20, since.elapsed());
    carrier.retain(|_| false);
    assert!(matches!(timeout(PATIENCE, control.read(&mut said)).await.expect("it ends"), Ok(0) | Err(_)));
}

async fn leftovers_are_put_back(pods: &Api<Pod>, home: &Path) {
    phase(pods, "over", "Succeeded").await;
    let kept = Kept::new(home.join("k8s"), home.join("gate.sock"), "/bin/false".into());
    let attempt = "job_8nn4hvzat0.1".parse().unwrap();
    let over = |name: &str, rank| Over { api: pods.clone(), name: name.into(), rank };
    let all = vec![over("over", 3), over("agent", 1), over("nobody", 2)];
    for _ in 0..2 {
        kept.fetch(&attempt, all.clone()).await.unwrap();
    }
    let dir = home.join("k8s/job_8nn4hvzat0.1");
    assert_eq!(std::fs::read_to_string(dir.join("3/tasks/t/record")).unwrap(), "how it ended");
    assert!(!dir.join("1").exists() && !dir.join("2").exists(), "who printed nothing has left nothing");
}

#[tokio::test]
#[ignore = "needs a Kubernetes, which `make test` builds"]
async fn links_of_pods_are_carried_and_what_they_printed_is_put_back() {
    let kube = Kube::start_with(KubeOptions { nodes: 1, ..KubeOptions::default() });
    kube.bring("busybox");
    let home = tempfile::tempdir().unwrap();
    let record = [Entry::file(KINDS, ""), Entry::file("tasks/t/record", "how it ended")];
    let lines: String = Parcel::pack(RECORD, &record).unwrap().lines().collect();
    let listen = "nc -ll -p 7719 -e sh -c 'read line; echo \"$line\"; exec cat' & \
                  nc -ll -p 7720 -e sh -c 'read line; echo \"$line\"; exec dd if=/dev/zero bs=65536 count=1700' & wait";
    kube.apply(&pod("agent", listen, "").to_string());
    kube.apply(
        &pod("over", "echo a line of the agent; cat /printed/lines; echo another", &lines).to_string(),
    );
    let pods = pods(&kube.kubeconfig()).await;
    phase(&pods, "agent", "Running").await;
    links_are_carried(&pods, home.path()).await;
    leftovers_are_put_back(&pods, home.path()).await;
}
