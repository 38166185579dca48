use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use muster_model::spec::FieldCode;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::*;
use crate::settings::{Pull, Source, Volume};

fn gang(fields: Value) -> Gang {
    let mut value = json!({ "command": ["true"], "image": "pytorch:2.4" });
    for (name, field) in fields.as_object().unwrap() {
        value[name] = field.clone();
    }
    let spec = JobSpec::from_value(value).unwrap();
    Gang { name: "train now!".into(), place: String::new(), spec: Arc::new(spec), volumes: Vec::new() }
}

fn attempt() -> AttemptId {
    "job_0123456789.2".parse().unwrap()
}

fn cluster(wishes: Wishes) -> Cluster {
    Cluster {
        agent_image: Some("registry.local/muster:1".into()),
        agent_image_pull: Some(Pull::IfNotPresent),
        wishes,
        ..Cluster::default()
    }
}

fn made(gang: &Gang, cluster: &Cluster) -> Result<Objects, Vec<FieldError>> {
    let attempt = attempt();
    let seat = |rank: u32| Seat {
        node: format!("node_k8s.0123456789.2.{rank}").parse().unwrap(),
        token: format!("token-{rank}"),
    };
    let seats: Vec<Seat> = (0..gang.spec.nodes).map(seat).collect();
    let products = ["NVIDIA-H100-80GB-HBM3".to_owned(), "NVIDIA-A100-SXM4-40GB".to_owned()];
    let order = Order {
        attempt: &attempt,
        server: "0a1b2c3d",
        seats: &seats,
        gang,
        cluster,
        api: "https://10.0.0.1:6443/",
        products: &products,
    };
    make(&order)
}

/// The Job, as text. It is one that the types of the API know every field of.
fn job(gang: &Gang, cluster: &Cluster) -> Value {
    let job = made(gang, cluster).unwrap().job;
    let typed: Job = serde_json::from_value(job.clone()).expect("a Job");
    let again = serde_json::to_value(&typed).unwrap();
    assert_eq!(again, job, "nothing in it is unknown to Kubernetes");
    job
}

fn refused(gang: &Gang, cluster: &Cluster) -> Vec<String> {
    let errors = made(gang, cluster).unwrap_err();
    errors.into_iter().map(|error| format!("{}: {}", error.field, error.message)).collect()
}

#[test]
fn one_task_without_devices() {
    let gang = gang(json!({ "resources": { "cpus": 0.5, "memory": "1GB" }, "timeout": "1h" }));
    let objects = made(&gang, &cluster(Wishes::default())).unwrap();
    assert!(objects.service.is_none(), "a gang of one has nobody to call");
    insta::assert_json_snapshot!(objects.secret);
    insta::assert_json_snapshot!(job(&gang, &cluster(Wishes::default())));
}

#[test]
fn four_nodes_of_eight_devices_with_shared_memory_and_volumes() {
    let gang = gang(json!({
        "nodes": 4, "workspace": "Vision_Team", "resources": { "gpus": "H100:8", "shm": "64GB", "cpus": 96 },
        "volumes": [{ "name": "datasets", "path": "/data" }, { "name": "home", "path": "/root" }, { "name": "scratch", "path": "/scratch" }],
    }));
    let mut cluster = cluster(Wishes::default());
    let volume = |source, read_only| Volume { source, read_only };
    cluster.volumes = BTreeMap::from([
        (
            "datasets".into(),
            volume(Source::Nfs { server: "files".into(), path: "/exports/data".into() }, true),
        ),
        ("home".into(), volume(Source::Claim("home-ada".into()), false)),
        ("scratch".into(), volume(Source::HostPath("/mnt/nvme".into()), false)),
    ]);
    insta::assert_json_snapshot!(made(&gang, &cluster).unwrap().service);
    insta::assert_json_snapshot!(job(&gang, &cluster));
}

#[test]
fn a_part_of_the_servers_volumes_is_a_directory_of_the_clusters() {
    let mut gang = gang(json!({}));
    gang.volumes = vec![muster_link::message::GivenVolume {
        name: "user".into(),
        root: "/nas/people".into(),
        below: "ada".into(),
        path: "/mnt/user/ada".into(),
        is_private: true,
    }];
    let mut cluster = cluster(Wishes::default());
    let wrong = made(&gang, &cluster).err().unwrap();
    assert_eq!(wrong[0].field, "volumes");
    assert!(
        wrong[0].message.contains("set k8s.volumes.user") && wrong[0].message.contains("--without-volumes")
    );
    let source = Source::Nfs { server: "nas".into(), path: "/people".into() };
    cluster.volumes = BTreeMap::from([("user".into(), Volume { source, read_only: false })]);
    let pod = job(&gang, &cluster)["spec"]["template"]["spec"].clone();
    let has = |list: &Value, wanted: Value| list.as_array().unwrap().contains(&wanted);
    assert!(
        has(&pod["volumes"], json!({ "name": "volume-0", "nfs": { "server": "nas", "path": "/people" } })),
        "{pod}"
    );
    let task = pod["containers"].as_array().unwrap().iter().find(|one| one["name"] == "task").unwrap();
    let mount = json!({ "name": "volume-0", "mountPath": "/mnt/user/ada", "subPath": "ada" });
    assert!(has(&task["volumeMounts"], mount), "{pod}");
}

#[test]
fn ascend_devices_have_the_name_of_their_maker_or_the_one_that_is_configured() {
    let gang = gang(json!({ "nodes": 2, "resources": { "gpus": "ascend:8" } }));
    let amounts = |cluster: &Cluster| {
        job(&gang, cluster)["spec"]["template"]["spec"]["containers"][1]["resources"].clone()
    };
    let plain = cluster(Wishes::default());
    insta::assert_json_snapshot!(amounts(&plain), @r#"
    {
      "limits": {
        "huawei.com/Ascend910": "8"
      },
      "requests": {
        "huawei.com/Ascend910": "8"
      }
    }
    "#);
    let devices = BTreeMap::from([("Ascend".to_owned(), "huawei.com/Ascend910B".to_owned())]);
    let own = Cluster { devices, ..plain };
    assert_eq!(amounts(&own)["limits"], json!({ "huawei.com/Ascend910B": "8" }));
}

#[test]
fn who_names_a_user_gets_all_that_restricted_asks_for() {
    let wishes = Wishes { user: Some(1000), group: Some(100), ..Wishes::default() };
    insta::assert_json_snapshot!(job(&gang(json!({})), &cluster(wishes)));
}

#[test]
fn everything_else_that_a_job_may_want_and_words_over_the_pod() {
    let wishes = Wishes {
        node_selector: BTreeMap::from([("pool".into(), "ib".into())]),
        tolerations: vec![json!({ "key": "nvidia.com/gpu", "operator": "Exists" })],
        priority_class: Some("high".into()),
        image_pull_secrets: vec!["registry".into()],
        resources: BTreeMap::from([("rdma/hca".into(), "1".into())]),
        secrets: BTreeMap::from([("WANDB_API_KEY".into(), "wandb/key".into())]),
        service_account: Some("trainer".into()),
        pod: Some(json!({
            "hostNetwork": true,
            "dnsPolicy": "ClusterFirstWithHostNet",
            "enableServiceLinks": null,
            "containers": [{ "securityContext": { "capabilities": { "add": ["IPC_LOCK"] } }, "env": [{ "name": "NCCL_DEBUG", "value": "INFO" }] }],
            "volumes": [{ "name": "extra", "configMap": { "name": "settings" } }],
        })),
        ..Wishes::default()
    };
    let gang = gang(json!({ "nodes": 2, "resources": { "gpus": 8 }, "exclusive": true }));
    insta::assert_json_snapshot!(job(&gang, &cluster(wishes)));
}

#[test]
fn what_is_missing_is_named_all_at_once() {
    let mut nothing = gang(json!({ "volumes": [{ "name": "data", "path": "/data" }] }));
    Arc::get_mut(&mut nothing.spec).unwrap().image = None;
    let wishes = Wishes { secrets: BTreeMap::from([("KEY".into(), "wandb".into())]), ..Wishes::default() };
    let cluster = Cluster { wishes, ..Cluster::default() };
    insta::assert_json_snapshot!(refused(&nothing, &cluster), @r#"
    [
      "volumes[0].name: there is no volume `data` on this cluster; none are set: k8s.volumes of config.toml names them",
      "image: is needed on Kubernetes; name one with --image, or set k8s.image for jobs that name none",
      "k8s.secrets.KEY: must be SECRET/KEY, not `wandb`",
      "k8s.agent_image: is not set; set it in config.toml to an image that has the muster binary (`make image` makes one)"
    ]
    "#);
}

#[test]
fn what_muster_rests_on_is_refused_and_not_broken() {
    let of = |pod: Value| {
        let wishes = Wishes { pod: Some(pod), ..Wishes::default() };
        match made(&gang(json!({ "nodes": 2 })), &cluster(wishes)) {
            Ok(_) => Vec::new(),
            Err(errors) => errors.into_iter().map(|error| error.field).collect(),
        }
    };
    assert_eq!(of(json!({ "containers": [{ "command": ["sh"] }] })), ["k8s.pod.containers.task.command"]);
    assert_eq!(
        of(json!({ "containers": [{ "name": "task", "args": ["x"] }] })),
        ["k8s.pod.containers.task.args"]
    );
    // Gates come after what users say, and so are not theirs to take away.
    assert_eq!(of(json!({ "restartPolicy": "Always", "schedulingGates": null })), ["k8s.pod.restartPolicy"]);
    assert_eq!(
        of(json!({ "volumes": [{ "name": "muster", "hostPath": { "path": "/" } }] })),
        ["k8s.pod.volumes.muster"]
    );
    assert_eq!(
        of(json!({ "containers": [{ "volumeMounts": [{ "mountPath": "/muster", "name": "x" }] }] })),
        ["k8s.pod.containers.task.volumeMounts./muster"]
    );
    assert_eq!(of(json!(["x"])), ["k8s.pod"]);
    let all_taken_away = of(json!({ "containers": null, "volumes": null, "initContainers": "x" }));
    assert!(all_taken_away.len() > 5, "{all_taken_away:?}");
    assert!(
        of(json!({ "nodeName": "node1", "containers": [{ "resources": { "limits": { "a/b": "1" } } }] }))
            .is_empty()
    );
}

#[test]
fn a_model_is_found_in_what_nodes_say_of_themselves() {
    let values = |gpus: &str| {
        let gang = gang(json!({ "resources": { "gpus": gpus } }));
        let job = job(&gang, &cluster(Wishes::default()));
        let path = "/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution\
                    /nodeSelectorTerms/0/matchExpressions/0/values";
        job.pointer(path).cloned()
    };
    assert_eq!(values("h100:8"), Some(json!(["NVIDIA-H100-80GB-HBM3"])));
    assert_eq!(values("a100-sxm4:1"), Some(json!(["NVIDIA-A100-SXM4-40GB"])));
    assert_eq!(values("B300:1"), Some(json!(["B300"])), "nobody has it, and the scheduler says so");
    assert_eq!(values("8"), None);
}

#[test]
fn a_namespace_may_be_the_workspaces() {
    let of = |pattern: Option<&str>, workspace: Option<&str>| {
        let gang = gang(json!({ "workspace": workspace }));
        let cluster = Cluster { namespace: pattern.map(str::to_owned), ..Cluster::default() };
        namespace(&cluster, &gang.spec, "own")
    };
    assert_eq!(of(None, Some("vision")), "own");
    assert_eq!(of(Some("ml"), Some("vision")), "ml");
    assert_eq!(of(Some("ml-{workspace}"), Some("vision")), "ml-vision");
    assert_eq!(of(Some("ml-{workspace}"), None), "ml-default");
}

#[test]
fn an_object_says_whose_it_is() {
    let objects = made(&gang(json!({})), &cluster(Wishes::default())).unwrap();
    let labels = objects.secret.metadata.labels.unwrap();
    assert_eq!(attempt_of(&labels, "0a1b2c3d"), Some(attempt()));
    assert_eq!(attempt_of(&labels, "ffffffff"), None, "another server's is none of ours");
    assert_eq!(attempt_of(&BTreeMap::new(), "0a1b2c3d"), None);
}

#[test]
fn an_api_server_is_known_by_what_can_be_connected_to() {
    assert_eq!(host_and_port("https://10.0.0.1:6443/"), Some("10.0.0.1:6443".into()));
    assert_eq!(host_and_port("https://api.lab/k8s/c-1"), Some("api.lab:443".into()));
    assert_eq!(host_and_port("https://[fd00::1]"), Some("[fd00::1]:443".into()));
    assert_eq!(host_and_port("nonsense"), None);
}

fn any_word() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0i64..9).prop_map(Value::from),
        "[a-z]{0,3}".prop_map(Value::from),
        Just(json!("task")),
        Just(json!("muster")),
        Just(json!("/muster")),
    ];
    let key = prop_oneof![
        Just("containers"),
        Just("initContainers"),
        Just("volumes"),
        Just("volumeMounts"),
        Just("env"),
        Just("name"),
        Just("mountPath"),
        Just("command"),
        Just("args"),
        Just("restartPolicy"),
        Just("schedulingGates"),
        Just("hostname"),
        Just("other"),
    ];
    leaf.prop_recursive(4, 32, 4, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::btree_map(key.clone().prop_map(str::to_owned), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_is_put_over_a_pod_its_agent_has_what_it_needs_or_a_field_is_named(words in any_word()) {
        let wishes = Wishes { pod: Some(words), ..Wishes::default() };
        match made(&gang(json!({ "nodes": 2 })), &cluster(wishes)) {
            Err(errors) => prop_assert!(errors.iter().all(|error| error.field.starts_with("k8s.pod"))),
            Ok(objects) => {
                let plain = made(&gang(json!({ "nodes": 2 })), &cluster(Wishes::default())).unwrap();
                let (pod, plain) = (&objects.job["spec"]["template"], &plain.job["spec"]["template"]);
                prop_assert_eq!(&pod["metadata"], &plain["metadata"]);
                let (pod, plain) = (&pod["spec"], &plain["spec"]);
                prop_assert_eq!(&pod["restartPolicy"], &plain["restartPolicy"]);
                // What brings the agent's binary is begun before the agent.
                prop_assert_eq!(&pod["containers"][0]["name"], "muster");
                for (list, name) in [("containers", "task"), ("containers", "muster")] {
                    let of = |pod: &Value| {
                        let all = pod[list].as_array().cloned().unwrap_or_default();
                        all.into_iter().find(|container| container["name"] == name).unwrap_or_default()
                    };
                    prop_assert_eq!(&of(pod)["command"], &of(plain)["command"]);
                    if name == "muster" {
                        prop_assert_eq!(&of(pod)["lifecycle"], &of(plain)["lifecycle"]);
                    }
                    let mounts = of(pod)["volumeMounts"].as_array().cloned().unwrap_or_default();
                    let agents = |mount: &&Value| mount["mountPath"] == "/muster" && mount["name"] == "muster";
                    prop_assert_eq!(mounts.iter().filter(agents).count(), 1);
                }
            }
        }
    }

    #[test]
    fn names_are_such_as_kubernetes_takes_and_each_attempt_has_its_own(
        first in (any::<u64>(), 1u32..), second in (any::<u64>(), 1u32..),
    ) {
        let attempt = |(random, number)| AttemptId { job: JobId::from_random(random), number };
        let (one, other) = (attempt(first), attempt(second));
        let text = name(&one);
        // Pods are called as their Job, with the rank behind it.
        prop_assert!(text.len() + "-100000".len() <= 63);
        prop_assert!(text.starts_with(|letter: char| letter.is_ascii_lowercase()));
        prop_assert!(text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
        prop_assert_eq!(one == other, text == name(&other));
    }
}

#[test]
fn an_error_of_an_override_is_of_its_kind() {
    let wishes = Wishes { pod: Some(json!({ "hostname": "x" })), ..Wishes::default() };
    let errors = made(&gang(json!({})), &cluster(wishes)).unwrap_err();
    assert_eq!(errors[0].code, FieldCode::NotSupported);
}
