//! What is free, and what would help.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;

fn machine(name: &str, gpus: u32, change: impl Fn(&mut Value)) -> Machine {
    let amounts =
        json!({ "cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string() });
    let mut node = json!({
        "metadata": { "name": name, "labels": { "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3" } },
        "spec": { "taints": [] },
        "status": {
            "conditions": [{ "type": "Ready", "status": "True" }],
            "capacity": amounts,
            "allocatable": amounts,
        },
    });
    change(&mut node);
    serde_json::from_value(node).unwrap()
}

fn plain(name: &str, gpus: u32) -> Machine {
    machine(name, gpus, |_| {})
}

fn tenant(node: &str, gpus: u32) -> Tenant {
    serde_json::from_value(json!({
        "metadata": { "uid": node },
        "spec": { "nodeName": node, "containers": [{ "resources": { "requests": {
            "cpu": "8", "memory": "64Gi", "nvidia.com/gpu": gpus.to_string(),
        } } }] },
        "status": { "phase": "Running" },
    }))
    .unwrap()
}

fn inventory(machines: &[Machine], tenants: &[Tenant]) -> Inventory {
    Inventory::new(machines.iter(), tenants.iter())
}

fn gpus(count: i64) -> Needs {
    Needs { requests: BTreeMap::from([("nvidia.com/gpu".to_owned(), count)]), ..Needs::default() }
}

#[test]
fn a_real_cluster_is_read() {
    let nodes: Vec<Machine> = serde_json::from_str(include_str!("nodes.json")).unwrap();
    let offers = inventory(&nodes, &[]).offers("prod", &Cluster::default());
    let names: Vec<_> = offers.iter().map(|offer| (offer.name.as_str(), offer.state.as_str())).collect();
    assert_eq!(names, [("node1", "idle"), ("node2", "idle"), ("truth-u", "down")]);
    assert_eq!(offers[0].places, ["prod"]);
    assert!(offers[0].total.cpu_millis > 0 && offers[0].total.memory_bytes > 0);
    let away = offers[2].note.as_deref().unwrap();
    assert!(away.starts_with("Kubelet") && away.contains("taint truth.dev/fake:NoSchedule"), "{away}");
    assert_eq!(offers[2].free, Offered::default());
    assert_eq!(offers[2].total.devices, BTreeMap::from([("gpu".to_owned(), 8)]));
}

#[test]
fn what_pods_asked_for_is_not_free_and_devices_have_their_model() {
    let machines = [
        plain("a", 8),
        plain("b", 8),
        machine("c", 8, |node| node["spec"]["unschedulable"] = true.into()),
        machine("d", 0, |node| node["status"]["allocatable"]["huawei.com/Ascend910"] = "8".into()),
    ];
    let over = Tenant { is_over: true, ..tenant("b", 8) };
    let offers =
        inventory(&machines, &[tenant("a", 8), tenant("b", 2), over]).offers("", &Cluster::default());
    let seen: Vec<_> =
        offers.iter().map(|offer| (offer.state.as_str(), offer.free.devices.clone())).collect();
    let counted =
        |pairs: &[(&str, u32)]| pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    assert_eq!(
        seen,
        [
            ("allocated", counted(&[("h100", 0)])),
            ("mixed", counted(&[("h100", 6)])),
            ("drained", counted(&[])),
            ("idle", counted(&[("ascend", 8), ("h100", 0)])),
        ]
    );
    assert_eq!(offers[1].free.cpu_millis, 56_000);
    assert_eq!(offers[2].note.as_deref(), Some("cordoned"));
}

#[test]
fn product_names_become_what_people_ask_for() {
    for (product, expected) in [
        ("NVIDIA-H100-80GB-HBM3", "h100"),
        ("Tesla-V100-SXM2-32GB", "v100"),
        ("NVIDIA-GeForce-RTX-4090", "4090"),
        ("AMD_Instinct_MI300X_OAM", "mi300x"),
        ("NVIDIA-L40S", "l40s"),
    ] {
        let of =
            machine("a", 8, |node| node["metadata"]["labels"]["nvidia.com/gpu.product"] = product.into());
        let offers = inventory(&[of], &[]).offers("", &Cluster::default());
        assert_eq!(offers[0].total.devices.keys().collect::<Vec<_>>(), [expected], "{product}");
    }
}

const SHORT: &str = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: \
                     0/2 nodes are available: 2 Preemption is not helpful for scheduling.";

#[test]
fn what_is_in_use_is_told_from_what_there_never_is() {
    let busy = inventory(&[plain("a", 8), plain("b", 8)], &[tenant("a", 8), tenant("b", 4)]);
    let wait = unschedulable(SHORT, &gpus(8), 1, Some(&busy));
    assert_eq!(
        (wait.code, wait.summary.as_str()),
        ("no_capacity", "2 of 2 nodes have too little nvidia.com/gpu free")
    );
    assert_eq!(
        wait.help.as_deref(),
        Some("most is free on b: 4 nvidia.com/gpu; one of its pods needs 8 nvidia.com/gpu")
    );
    let wait = unschedulable(SHORT, &gpus(16), 1, Some(&busy));
    assert_eq!(wait.code, "never_fits");
    assert_eq!(
        wait.summary,
        "each of its pods needs 16 nvidia.com/gpu, and no node that it may use has more than 8 nvidia.com/gpu"
    );
    let wait = unschedulable(SHORT, &gpus(8), 3, Some(&busy));
    assert_eq!(
        (wait.code, wait.summary.as_str()),
        ("never_fits", "the nodes have room for 2 such pods in all, and it needs 3")
    );
    let wait = unschedulable(SHORT, &gpus(8), 1, None);
    assert_eq!(wait.code, "no_capacity", "who may not see the nodes cannot know");
}

#[test]
fn taints_and_labels_are_named_with_what_would_help() {
    let tainted = |name: &str| {
        machine(name, 8, |node| {
            node["spec"]["taints"] = json!([{ "key": "team", "value": "b", "effect": "NoSchedule" }])
        })
    };
    let said = "0/2 nodes are available: 1 node(s) had untolerated taint {team: b}, 1 node(s) were unschedulable. \
                preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.";
    let both = inventory(&[tainted("a"), tainted("b")], &[]);
    let wait = unschedulable(said, &gpus(1), 1, Some(&both));
    assert_eq!(
        (wait.code, wait.summary.as_str()),
        ("never_fits", "none of the 2 nodes may be used by it, for their labels or taints")
    );
    assert_eq!(wait.help.as_deref(), Some("tolerate team: b with k8s.tolerations, if the job may be there"));
    let wait = unschedulable(said, &gpus(1), 1, None);
    assert_eq!(
        (wait.code, wait.summary.as_str()),
        ("no_node", "1 of 2 nodes has the taint team: b, 1 of 2 nodes is cordoned")
    );
    let odd = "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules.";
    let wait = unschedulable(odd, &gpus(1), 1, None);
    assert_eq!(
        (wait.code, wait.summary.as_str()),
        ("scheduler", "3 of 3 nodes: didn't match pod anti-affinity rules")
    );
    let none = unschedulable("no nodes available to schedule pods", &gpus(1), 1, None);
    assert_eq!(none.code, "scheduler");
}
