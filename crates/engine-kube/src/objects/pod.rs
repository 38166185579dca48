//! The pod of a rank: the user's image, with the agent as its command.

use std::collections::BTreeMap;

use muster_model::node::Vendor;
use muster_model::quantity::DeviceRequest;
use muster_model::spec::{FieldCode, FieldError, JobSpec};
use serde_json::{Value, json};

use super::{Order, SERVER, merge};
use crate::settings::{Pull, Source, Wishes};

/// The container that is the task's.
pub(crate) const TASK: &str = "task";
/// The container that brings the binary, and the volume it brings it to.
pub(crate) const MUSTER: &str = "muster";
/// The volume with the seats.
const SEAT: &str = "muster-seat";
/// Where they appear.
const MUSTER_PATH: &str = "/muster";
const SEAT_PATH: &str = "/muster-seat";
/// The volume of shared memory. A container's own has 64 MB, which is too little for any loader of data.
const SHM: &str = "muster-shm";
/// What an agent needs after its task has had its grace.
const AGENT_SECONDS: u64 = 20;
/// Beyond its own time a pod has this long before Kubernetes ends it: it pulls its image in it, and somebody may be late.
const MARGIN_SECONDS: u64 = 3600;
/// What devices are called where nothing else is said.
const NVIDIA: &str = "nvidia.com/gpu";
const ASCEND: &str = "huawei.com/Ascend910";
/// The label in which nodes say what their devices are.
pub(crate) const PRODUCT: &str = "nvidia.com/gpu.product";

/// The template of the Job's pods, or every field that keeps it from being made.
pub(super) fn template(order: &Order, name: &str) -> Result<Value, Vec<FieldError>> {
    let mut errors = Vec::new();
    let wishes = order.wishes();
    let mut spec = pod_spec(order, &wishes, name, &mut errors);
    // The job's own words come after the operator's.
    let words =
        [order.cluster.wishes.pod.as_ref(), order.spec().k8s.as_ref().and_then(|own| own.pod.as_ref())];
    for words in words.into_iter().flatten() {
        spec = merge::over(spec, words, &mut errors);
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    // For people with kubectl.
    let annotations = json!({ "kubectl.kubernetes.io/default-container": TASK });
    Ok(json!({ "metadata": { "labels": super::labels(order), "annotations": annotations }, "spec": spec }))
}

fn pod_spec(order: &Order, wishes: &Wishes, name: &str, errors: &mut Vec<FieldError>) -> Value {
    let spec = order.spec();
    let (mut volumes, mut mounts) = own_volumes(spec, name);
    attach(order, &mut volumes, &mut mounts, errors);
    let mut pod = json!({
        "restartPolicy": "Never",
        "subdomain": name,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": spec.grace.as_secs() + AGENT_SECONDS,
        "containers": [container(order, wishes, mounts, errors)],
        "volumes": volumes,
    });
    bring(order, wishes, &mut pod, errors);
    if let Some(timeout) = spec.timeout {
        pod["activeDeadlineSeconds"] = json!((timeout + spec.grace).as_secs() + MARGIN_SECONDS);
    }
    match &wishes.service_account {
        Some(account) => pod["serviceAccountName"] = json!(account),
        None => pod["automountServiceAccountToken"] = json!(false),
    }
    place(order, wishes, &mut pod);
    if let Some(context) = security(wishes) {
        pod["securityContext"] = context;
    }
    pod
}

/// Where a pod may go, and what it is worth there.
fn place(order: &Order, wishes: &Wishes, pod: &mut Value) {
    if !wishes.node_selector.is_empty() {
        pod["nodeSelector"] = json!(wishes.node_selector);
    }
    if !wishes.tolerations.is_empty() {
        pod["tolerations"] = json!(wishes.tolerations);
    }
    if let Some(class) = &wishes.priority_class {
        pod["priorityClassName"] = json!(class);
    }
    if !wishes.image_pull_secrets.is_empty() {
        let secret = |name: &String| json!({ "name": name });
        pod["imagePullSecrets"] = wishes.image_pull_secrets.iter().map(secret).collect();
    }
    let mut affinity = json!({});
    if let Some(products) = order.spec().resources.gpus.as_ref().and_then(|request| products(order, request))
    {
        let term = json!({ "matchExpressions": [{ "key": PRODUCT, "operator": "In", "values": products }] });
        affinity["nodeAffinity"] =
            json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } });
    }
    if order.spec().exclusive {
        // As far as pods of muster's go; what else runs on a node is the cluster's own affair.
        let others = json!({
            "topologyKey": "kubernetes.io/hostname",
            "namespaceSelector": {},
            "labelSelector": { "matchExpressions": [{ "key": SERVER, "operator": "Exists" }] },
        });
        affinity["podAntiAffinity"] = json!({ "requiredDuringSchedulingIgnoredDuringExecution": [others] });
    }
    if affinity != json!({}) {
        pod["affinity"] = affinity;
    }
}

/// Whom everything in the pod runs as. Who names a user that is not root gets what "restricted" asks for as well.
fn security(wishes: &Wishes) -> Option<Value> {
    (wishes.user.is_some() || wishes.group.is_some()).then(|| {
        let mut context = json!({});
        if let Some(user) = wishes.user {
            context["runAsUser"] = json!(user);
        }
        if let Some(group) = wishes.group {
            context["runAsGroup"] = json!(group);
        }
        if is_restricted(wishes) {
            context["runAsNonRoot"] = json!(true);
            context["seccompProfile"] = json!({ "type": "RuntimeDefault" });
        }
        context
    })
}

fn is_restricted(wishes: &Wishes) -> bool {
    wishes.user.is_some_and(|user| user != 0)
}

fn container_security(wishes: &Wishes) -> Option<Value> {
    is_restricted(wishes)
        .then(|| json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } }))
}

/// Adds who brings the muster binary into the pod before the task's container begins.
///
/// A kubelet begins with the next container once it has looked around after the end of an initial one, which it does every
/// second. Of containers that are side by side it begins one after the other without looking, and waits for what each is to
/// do first. But what one of these asks for counts besides the task's own: where the job says how much of the machine it
/// wants, which is then all that the pod may cost, an initial one brings it.
fn bring(order: &Order, wishes: &Wishes, pod: &mut Value, errors: &mut Vec<FieldError>) {
    let mut container = bringer(order, wishes, errors);
    let bin = format!("{MUSTER_PATH}/bin");
    let install = json!(["muster", "agent", "--install", bin]);
    // A quota may want every container to say.
    let amounts = cpu_and_memory(order.spec());
    if !amounts.is_empty() {
        container["command"] = install;
        container["resources"] = json!({ "limits": amounts, "requests": amounts });
        pod["initContainers"] = json!([container]);
    } else if let Some(containers) = pod["containers"].as_array_mut() {
        container["command"] = json!(["muster", "agent", "--stay", bin]);
        container["lifecycle"] = json!({ "postStart": { "exec": { "command": install } } });
        containers.insert(0, container);
    }
}

fn bringer(order: &Order, wishes: &Wishes, errors: &mut Vec<FieldError>) -> Value {
    let image = order.cluster.agent_image.as_deref().unwrap_or_default();
    if image.is_empty() {
        let message = "is not set; set it in config.toml to an image that has the muster binary (`make image` makes one)";
        errors.push(FieldError::new("k8s.agent_image", FieldCode::Required, message));
    }
    let mut container = json!({
        "name": MUSTER,
        "image": image,
        "volumeMounts": [{ "name": MUSTER, "mountPath": MUSTER_PATH }],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    if let Some(pull) = order.cluster.agent_image_pull {
        container["imagePullPolicy"] = json!(Pull::as_str(pull));
    }
    if let Some(context) = container_security(wishes) {
        container["securityContext"] = context;
    }
    container
}

fn container(order: &Order, wishes: &Wishes, mounts: Vec<Value>, errors: &mut Vec<FieldError>) -> Value {
    let spec = order.spec();
    let image = spec.image.as_ref().or(order.cluster.image.as_ref());
    if image.is_none() {
        let message =
            "is needed on Kubernetes; name one with --image, or set k8s.image for jobs that name none";
        errors.push(FieldError::new("image", FieldCode::Required, message));
    }
    let mut container = json!({
        "name": TASK,
        "image": image,
        "command": [format!("{MUSTER_PATH}/bin/muster"), "agent", "--pod", MUSTER_PATH],
        "env": variables(order, wishes, errors),
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    let amounts = amounts(order, wishes);
    if !amounts.is_empty() {
        container["resources"] = json!({ "limits": amounts, "requests": amounts });
    }
    if let Some(context) = container_security(wishes) {
        container["securityContext"] = context;
    }
    container
}

/// What the agent is told of its place, and what the user has in Secrets. Everything else a task is told by the agent.
fn variables(order: &Order, wishes: &Wishes, errors: &mut Vec<FieldError>) -> Vec<Value> {
    let of_pod =
        |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let mut variables = vec![
        of_pod("MUSTER_NODE_NAME", "spec.nodeName"),
        of_pod("MUSTER_POD_IP", "status.podIP"),
        of_pod("MUSTER_HOST_IP", "status.hostIP"),
    ];
    if order.spec().resources.device_count() == 0 {
        // Many images ask for all devices that there are, and a runtime may give them to whoever asks.
        variables.push(json!({ "name": "NVIDIA_VISIBLE_DEVICES", "value": "void" }));
    }
    for (name, place) in &wishes.secrets {
        match place.split_once('/') {
            Some((secret, key)) if !secret.is_empty() && !key.is_empty() => {
                let reference = json!({ "secretKeyRef": { "name": secret, "key": key } });
                variables.push(json!({ "name": name, "valueFrom": reference }));
            }
            _ => {
                let message = format!("must be SECRET/KEY, not `{place}`");
                errors.push(FieldError::new(format!("k8s.secrets.{name}"), FieldCode::InvalidValue, message));
            }
        }
    }
    variables
}

fn cpu_and_memory(spec: &JobSpec) -> BTreeMap<String, String> {
    let cpus = spec.resources.cpus.map(|_| match spec.resources.cpu_millis() {
        whole if whole % 1000 == 0 => (whole / 1000).to_string(),
        parts => format!("{parts}m"),
    });
    let memory = spec.resources.memory.map(|bytes| bytes.to_string());
    let named = [("cpu", cpus), ("memory", memory)];
    named.into_iter().filter_map(|(name, amount)| Some((name.to_owned(), amount?))).collect()
}

fn amounts(order: &Order, wishes: &Wishes) -> BTreeMap<String, String> {
    let mut amounts = cpu_and_memory(order.spec());
    if let Some(request) = order.spec().resources.gpus.as_ref().filter(|request| request.count > 0) {
        amounts.insert(device_resource(order, request), request.count.to_string());
    }
    amounts.extend(wishes.resources.clone());
    amounts
}

/// What the cluster calls these devices.
fn device_resource(order: &Order, request: &DeviceRequest) -> String {
    let own = configured(order, request);
    own.unwrap_or_else(|| match request.vendor {
        Some(Vendor::Ascend) => ASCEND.to_owned(),
        Some(Vendor::Nvidia) | None => {
            order.cluster.gpu_resource.clone().unwrap_or_else(|| NVIDIA.to_owned())
        }
    })
}

/// What the configuration says of a model or a vendor.
fn configured(order: &Order, request: &DeviceRequest) -> Option<String> {
    let word = request.model.clone().or_else(|| request.vendor.map(|vendor| vendor.to_string()))?;
    let is_it = |name: &str| name.eq_ignore_ascii_case(&word);
    order.cluster.devices.iter().find(|(name, _)| is_it(name)).map(|(_, resource)| resource.clone())
}

/// The values of the nodes' label that a model means: `H100` is the `NVIDIA-H100-80GB-HBM3` of whoever wrote the label. Where no
/// node has any, what the user wrote stands there, and the scheduler says that nobody has it.
fn products(order: &Order, request: &DeviceRequest) -> Option<Vec<String>> {
    let model = request.model.as_ref().filter(|_| request.count > 0)?;
    if configured(order, request).is_some() {
        return None;
    }
    let plain = |text: &str| -> String {
        text.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
    };
    let mut known: Vec<String> =
        order.products.iter().filter(|product| plain(product).contains(&plain(model))).cloned().collect();
    known.sort();
    known.dedup();
    Some(if known.is_empty() { vec![model.clone()] } else { known })
}

fn own_volumes(spec: &JobSpec, name: &str) -> (Vec<Value>, Vec<Value>) {
    let mut memory = json!({ "medium": "Memory" });
    if let Some(bytes) = spec.resources.shm {
        memory["sizeLimit"] = json!(bytes.to_string());
    }
    let volumes = vec![
        json!({ "name": MUSTER, "emptyDir": {} }),
        // Whoever the image runs as reads it.
        json!({ "name": SEAT, "secret": { "secretName": name, "defaultMode": 0o444 } }),
        json!({ "name": SHM, "emptyDir": memory }),
    ];
    let mounts = vec![
        json!({ "name": MUSTER, "mountPath": MUSTER_PATH }),
        json!({ "name": SEAT, "mountPath": SEAT_PATH, "readOnly": true }),
        json!({ "name": SHM, "mountPath": "/dev/shm" }),
    ];
    (volumes, mounts)
}

/// The job's own volumes, and its part of the server's, as the configuration knows them.
fn attach(order: &Order, volumes: &mut Vec<Value>, mounts: &mut Vec<Value>, errors: &mut Vec<FieldError>) {
    let own = (0..).zip(&order.spec().volumes).map(|(index, volume)| Wanted {
        name: &volume.name,
        field: format!("volumes[{index}].name"),
        path: &volume.path,
        below: None,
        read_only: volume.read_only,
    });
    let given = order.gang.volumes.iter().map(|volume| Wanted {
        name: &volume.name,
        field: "volumes".into(),
        path: &volume.path,
        below: Some(&volume.below),
        read_only: false,
    });
    for (index, wanted) in own.chain(given).enumerate() {
        let Some(found) = order.cluster.volumes.get(wanted.name) else {
            errors.push(wanted.unknown(order));
            continue;
        };
        let mut source = match &found.source {
            Source::Claim(claim) => json!({ "persistentVolumeClaim": { "claimName": claim } }),
            Source::Nfs { server, path } => json!({ "nfs": { "server": server, "path": path } }),
            Source::HostPath(path) => json!({ "hostPath": { "path": path } }),
        };
        // One volume may appear at several paths, and its name is not one that Kubernetes takes as it is.
        let name = format!("volume-{index}");
        source["name"] = json!(name);
        volumes.push(source);
        let mut mount = json!({ "name": name, "mountPath": wanted.path });
        if found.read_only || wanted.read_only {
            mount["readOnly"] = json!(true);
        }
        if let Some(below) = wanted.below {
            mount["subPath"] = json!(below);
        }
        mounts.push(mount);
    }
}

/// A volume that a pod is to have.
struct Wanted<'a> {
    name: &'a str,
    /// Where it is asked for.
    field: String,
    path: &'a str,
    /// The part of it that is.
    below: Option<&'a str>,
    read_only: bool,
}

impl Wanted<'_> {
    fn unknown(&self, order: &Order) -> FieldError {
        let names: Vec<&str> = order.cluster.volumes.keys().map(String::as_str).collect();
        let there = match names.as_slice() {
            [] => "; none are set: k8s.volumes of config.toml names them".to_owned(),
            names => format!("; there are: {}", names.join(", ")),
        };
        let help = match self.below {
            Some(_) => format!(
                "; set k8s.volumes.{} to where the cluster has it, or use --without-volumes",
                self.name
            ),
            None => String::new(),
        };
        let message = format!("there is no volume `{}` on this cluster{there}{help}", self.name);
        FieldError::new(self.field.clone(), FieldCode::InvalidValue, message)
    }
}
