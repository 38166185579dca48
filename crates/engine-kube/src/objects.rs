//! What a gang is in the words of Kubernetes: a Job, a Service, a Secret. Pure.
//!
//! The Job owns the others, so that nothing is left when it goes. Kubernetes tries nothing again: attempts are ours. What a user
//! puts over the pod has the last word, save in what muster itself rests on.

mod merge;
mod pod;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use muster_engine::pod::{FENCE, FILE, PATIENCE, Seats};
use muster_engine::{Gang, Seat};
use muster_model::spec::{FieldError, JobSpec};
use muster_model::{AttemptId, JobId};
use serde_json::{Value, json};

pub(crate) use pod::{MUSTER, TASK};

use crate::settings::{Cluster, Wishes};

/// Which server an object is of.
pub(crate) const SERVER: &str = "muster.dev/server";
/// Which job.
pub(crate) const JOB: &str = "muster.dev/job";
/// Which attempt of it.
pub(crate) const ATTEMPT: &str = "muster.dev/attempt";
/// The group of people it counts for.
const WORKSPACE: &str = "muster.dev/workspace";
/// What people call the job.
const TITLE: &str = "muster.dev/name";
/// What is over is removed by us. If nobody comes any more, Kubernetes does it after this long.
const KEPT_SECONDS: u32 = 3600;

/// Everything that objects are made of.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    pub(crate) attempt: &'a AttemptId,
    /// What this server is called there.
    pub(crate) server: &'a str,
    /// One for each rank. None when it is only asked what would be refused.
    pub(crate) seats: &'a [Seat],
    pub(crate) gang: &'a Gang,
    pub(crate) cluster: &'a Cluster,
    /// Where the API server is for us: an agent that reaches it there is not cut off.
    pub(crate) api: &'a str,
    /// What nodes say that their devices are, where nodes may be seen.
    pub(crate) products: &'a [String],
}

impl Order<'_> {
    fn spec(&self) -> &JobSpec {
        &self.gang.spec
    }

    /// The queue of somebody who places gangs.
    pub(crate) fn queue(&self) -> Option<String> {
        self.wishes().queue
    }

    /// What the job wants, and what the configuration wants where the job says nothing.
    fn wishes(&self) -> Wishes {
        let none = Wishes::default();
        self.spec().k8s.as_ref().unwrap_or(&none).over(&self.cluster.wishes)
    }
}

/// The objects of an attempt, all of one name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Objects {
    pub(crate) name: String,
    /// As JSON, because what users put into it is nothing that a type here has to know.
    pub(crate) job: Value,
    pub(crate) secret: Secret,
    /// None for a gang of one, which has nobody to call by name.
    pub(crate) service: Option<Service>,
}

/// What the objects of an attempt are called.
pub(crate) fn name(attempt: &AttemptId) -> String {
    format!("m-{}-{}", attempt.job.as_str().trim_start_matches(JobId::PREFIX), attempt.number)
}

/// Whose attempt an object is of, if it is one of this server's.
pub(crate) fn attempt_of(labels: &BTreeMap<String, String>, server: &str) -> Option<AttemptId> {
    (labels.get(SERVER)? == server).then_some(())?;
    Some(AttemptId { job: labels.get(JOB)?.parse().ok()?, number: labels.get(ATTEMPT)?.parse().ok()? })
}

/// What finds all objects of an attempt, and no others.
pub(crate) fn selector(server: &str, attempt: &AttemptId) -> String {
    format!("{SERVER}={server},{JOB}={},{ATTEMPT}={}", attempt.job, attempt.number)
}

/// The namespace that a job's objects are made in.
pub(crate) fn namespace(cluster: &Cluster, spec: &JobSpec, own: &str) -> String {
    let workspace = spec.workspace.as_deref().unwrap_or("default");
    match &cluster.namespace {
        Some(pattern) => pattern.replace("{workspace}", &label_word(workspace)),
        None => own.to_owned(),
    }
}

/// The objects, or every field that keeps them from being made.
pub(crate) fn make(order: &Order) -> Result<Objects, Vec<FieldError>> {
    let name = name(order.attempt);
    let template = pod::template(order, &name)?;
    let metadata =
        || ObjectMeta { name: Some(name.clone()), labels: Some(labels(order)), ..ObjectMeta::default() };
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": labels(order),
            "annotations": { TITLE: title(&order.gang.name) },
        },
        "spec": job_spec(order, template),
    });
    let seats = ByteString(seats(order).text().into_bytes());
    let secret = Secret {
        metadata: metadata(),
        data: Some(BTreeMap::from([(FILE.to_owned(), seats)])),
        ..Secret::default()
    };
    let service = (order.spec().nodes > 1).then(|| Service {
        metadata: metadata(),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            selector: Some(labels(order)),
            // Peers look for each other before anybody is ready, and nothing here ever says that it is.
            publish_not_ready_addresses: Some(true),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    });
    Ok(Objects { name, job, secret, service })
}

/// Makes what belongs to a Job go with it.
pub(crate) fn own(metadata: &mut ObjectMeta, job: &str, uid: &str) {
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: "batch/v1".into(),
        kind: "Job".into(),
        name: job.to_owned(),
        uid: uid.to_owned(),
        controller: Some(false),
        block_owner_deletion: Some(false),
    }]);
}

fn job_spec(order: &Order, template: Value) -> Value {
    let nodes = order.spec().nodes;
    json!({
        "completionMode": "Indexed",
        "completions": nodes,
        "parallelism": nodes,
        // A pod that failed is not made again, and leaves the others alone: what it means for the gang is ours to say.
        "backoffLimitPerIndex": 0,
        // Never two pods of one rank at once.
        "podReplacementPolicy": "Failed",
        // Who asks after the pod is gone still finds that it was taken, and not that it failed.
        "podFailurePolicy": {
            "rules": [{ "action": "FailJob", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] }],
        },
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        "template": template,
    })
}

fn labels(order: &Order) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        (SERVER.to_owned(), order.server.to_owned()),
        (JOB.to_owned(), order.attempt.job.to_string()),
        (ATTEMPT.to_owned(), order.attempt.number.to_string()),
    ]);
    if let Some(workspace) = &order.spec().workspace {
        labels.insert(WORKSPACE.to_owned(), label_word(workspace));
    }
    labels
}

/// What agents find beside their binary. Nothing else in the cluster has these tokens.
pub(crate) fn seats(order: &Order) -> Seats {
    Seats {
        patience_ms: Some(millis(order.cluster.patience.unwrap_or(PATIENCE))),
        devices: order.spec().resources.device_count(),
        model: order.spec().resources.gpus.as_ref().and_then(|request| request.model.clone()),
        address: order.cluster.address.clone(),
        fingerprint: order.cluster.fingerprint.map(|pinned| pinned.to_string()),
        fence_ms: Some(millis(order.cluster.fence.unwrap_or(FENCE))),
        hold_ms: order.cluster.hold.map(millis),
        api: host_and_port(order.api).into_iter().collect(),
        ..Seats::new(order.seats, order.spec().grace)
    }
}

/// What of a URL can be connected to.
fn host_and_port(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split('/').next().filter(|authority| !authority.is_empty())?;
    let has_port =
        authority.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    let port = if scheme == "http" { 80 } else { 443 };
    Some(if has_port { authority.to_owned() } else { format!("{authority}:{port}") })
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// A name for people, without what a terminal might take for something else.
fn title(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(200).collect()
}

/// A word as labels and namespaces take it.
fn label_word(text: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
    let word: String = text.chars().take(63).map(plain).collect();
    word.trim_matches('-').to_owned()
}
