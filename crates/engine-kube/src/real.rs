//! On a real API server: what is made half is made whole, what is refused is a field of ours, and nothing is left.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_model::JobSpec;
use muster_testkit::Kube;
use serde_json::{Value, json};

use super::*;

fn engine(kube: &Kube, dir: &std::path::Path) -> Kubernetes {
    let image = Some("localhost/busybox:1".to_owned());
    Kubernetes::new(Settings {
        dir: dir.join("k8s"),
        socket: dir.join("gate.sock"),
        exe: "/bin/false".into(),
        kubeconfig: Some(kube.kubeconfig()),
        cluster: Cluster { agent_image: image.clone(), image, ..Cluster::default() },
        contexts: BTreeMap::new(),
    })
}

fn gang(fields: Value) -> Gang {
    let mut value = json!({ "command": ["true"], "nodes": 2, "resources": { "cpus": 0.1 } });
    for (name, field) in fields.as_object().unwrap() {
        value[name] = field.clone();
    }
    Gang {
        name: "real".into(),
        place: String::new(),
        spec: Arc::new(JobSpec::from_value(value).unwrap()),
        volumes: Vec::new(),
    }
}

fn request(number: u32) -> StartRequest {
    let job = JobId::from_random(7);
    let seat = |rank: u32| {
        let name = format!("node_k8s.{}.{number}.{rank}", job.as_str().trim_start_matches(JobId::PREFIX));
        Seat { node: name.parse().unwrap(), token: format!("secret-{rank}") }
    };
    StartRequest {
        key: Key::Gang {
            attempt: AttemptId { job: job.clone(), number },
            place: String::new(),
            account: None,
        },
        seats: (0..2).map(seat).collect(),
        gang: Some(gang(json!({}))),
    }
}

fn names(kube: &Kube, kind: &str) -> Vec<String> {
    let found = kube.get(&[kind, "-l", objects::SERVER]);
    let items = found["items"].as_array().cloned().unwrap_or_default();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
#[ignore = "needs a Kubernetes, which `make test` builds"]
fn what_was_made_half_is_made_whole_and_goes_whole_and_refusals_are_fields_of_ours() {
    let kube = Kube::start();
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let first = engine(&kube, dir.path());
        let one = request(1);
        let name = first.start(&one).await.unwrap().unwrap();
        for kind in ["jobs", "secrets", "services"] {
            assert_eq!(names(&kube, kind), [name.as_str()], "{kind}");
        }
        // As if the first had been killed before it came to the others.
        kube.kubectl(&["delete", "secret,service", "-l", objects::SERVER]);
        let next = engine(&kube, dir.path());
        assert_eq!(next.start(&one).await.unwrap().as_deref(), Some(name.as_str()));
        for kind in ["jobs", "secrets", "services"] {
            assert_eq!(names(&kube, kind), [name.as_str()], "{kind}");
        }
        next.stop(&one.key).await.unwrap();
        for kind in ["jobs", "pods", "secrets", "services"] {
            assert_eq!(names(&kube, kind), Vec::<String>::new(), "{kind}");
        }
        let fields = async |fields: Value| {
            let errors = next.check(&gang(fields), None).await.unwrap();
            errors.into_iter().map(|error| error.field).collect::<Vec<_>>()
        };
        assert_eq!(fields(json!({})).await, Vec::<String>::new());
        assert_eq!(fields(json!({ "k8s": { "priority_class": "nope" } })).await, ["k8s.priority_class"]);
        assert_eq!(fields(json!({ "k8s": { "service_account": "nobody" } })).await, ["k8s.service_account"]);
        assert_eq!(
            fields(json!({ "k8s": { "pod": { "hostNetwrok": true } } })).await,
            ["k8s.pod.hostNetwrok"]
        );
        assert_eq!(fields(json!({ "k8s": { "queue": "team" } })).await, ["k8s.queue"]);
        kube.kubectl(&["label", "namespace", "default", "pod-security.kubernetes.io/enforce=restricted"]);
        assert_eq!(fields(json!({})).await, ["k8s.user"]);
        assert_eq!(
            fields(json!({ "k8s": { "user": 1000 } })).await,
            Vec::<String>::new(),
            "restricted holds"
        );
        assert_eq!(names(&kube, "jobs"), Vec::<String>::new(), "nothing is made by asking");
    });
}
