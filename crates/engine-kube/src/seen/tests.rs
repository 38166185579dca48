//! What is kept is what is read, and it is little.

use serde_json::json;

use super::*;

fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(json!({ "metadata": { "name": "p" }, "spec": spec })).unwrap()
}

fn container(cpu: &str) -> serde_json::Value {
    json!({ "resources": { "requests": { "cpu": cpu } } })
}

#[test]
fn requests_are_counted_as_the_scheduler_does() {
    let cpu = |spec| pod(spec).needs.requests.get("cpu").copied();
    let sidecar = json!({ "restartPolicy": "Always", "resources": { "requests": { "cpu": "500m" } } });
    assert_eq!(cpu(json!({ "containers": [container("1"), container("500m")] })), Some(1500));
    assert_eq!(
        cpu(json!({ "containers": [container("1")], "initContainers": [container("4")] })),
        Some(4000)
    );
    assert_eq!(
        cpu(json!({ "containers": [container("1")], "initContainers": [sidecar, container("4")] })),
        Some(4500),
        "what is started before goes on beside it"
    );
    assert_eq!(cpu(json!({ "containers": [container("1")], "overhead": { "cpu": "250m" } })), Some(1250));
    assert_eq!(
        cpu(json!({ "containers": [container("1")], "resources": { "requests": { "cpu": "3" } } })),
        Some(3000)
    );
    assert_eq!(cpu(json!({ "containers": [container("0")] })), None);
}

#[test]
fn a_deletion_counts_from_when_it_began() {
    let pod: Pod = serde_json::from_value(json!({ "metadata": {
        "name": "p",
        "deletionTimestamp": "2026-11-16T03:31:56Z",
        "deletionGracePeriodSeconds": 5,
    } }))
    .unwrap();
    assert_eq!(pod.deleted_at, "2026-11-16T03:31:51Z".parse().ok());
}

#[test]
fn a_machine_that_is_not_ready_says_why() {
    let machine: Machine = serde_json::from_value(json!({
        "metadata": { "name": "n1", "labels": { "zone": "a" } },
        "spec": { "unschedulable": true, "taints": [{ "key": "gpu", "effect": "NoSchedule" }] },
        "status": {
            "conditions": [{ "type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status." }],
            "allocatable": { "cpu": "8", "nvidia.com/gpu": "4" },
        },
    }))
    .unwrap();
    assert_eq!((machine.is_ready, machine.is_cordoned), (false, true));
    assert_eq!(machine.trouble.as_deref(), Some("Kubelet stopped posting node status"));
    assert_eq!(machine.node.allocatable["nvidia.com/gpu"], 4);
    assert_eq!(machine.node.taints[0].key, "gpu");
}
