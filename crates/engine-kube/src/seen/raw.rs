//! The parts of the API's objects that are read, in the API's own shape, and how they become what is kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_model::Timestamp;
use serde::Deserialize;

use super::{ContainerState, JobEnd, Phase, Said, amount};
use crate::gang::needs::{self, Amounts, Needs};
use crate::objects::MUSTER;

/// The label with a pod's place in its Job.
const RANK: &str = "batch.kubernetes.io/job-completion-index";
/// What begins the names of annotations that are ours.
const OURS: &str = "muster.dev/";
/// Messages are cut to this: what Kubernetes copies from a program may be long, and people read the first lines.
const LONGEST: usize = 2048;

type Labels = BTreeMap<String, String>;
type Quantities = BTreeMap<String, String>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
pub(super) struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
    labels: Labels,
    annotations: Labels,
    creation_timestamp: Option<Timestamp>,
    deletion_timestamp: Option<Timestamp>,
    deletion_grace_period_seconds: Option<i64>,
}

impl Metadata {
    /// The API says when a deletion is to be done at the latest; what counts is when it began.
    fn deleted_at(&self) -> Option<Timestamp> {
        let grace = jiff_seconds(self.deletion_grace_period_seconds.unwrap_or(0));
        self.deletion_timestamp.map(|at| at.checked_sub(grace).unwrap_or(at))
    }
}

fn jiff_seconds(seconds: i64) -> std::time::Duration {
    std::time::Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: String,
    message: String,
    last_transition_time: Option<Timestamp>,
}

impl Condition {
    fn said(&self) -> Said {
        Said { reason: self.reason.clone(), message: cut(&self.message), at: self.last_transition_time }
    }
}

fn find<'a>(conditions: &'a [Condition], kind: &str, status: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.kind == kind && condition.status == status)
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Pod {
    metadata: Metadata,
    spec: PodSpec,
    status: PodStatus,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    node_name: Option<String>,
    scheduling_gates: Vec<serde::de::IgnoredAny>,
    containers: Vec<ContainerSpec>,
    init_containers: Vec<ContainerSpec>,
    overhead: Quantities,
    resources: Resources,
    node_selector: Labels,
    affinity: Affinity,
    tolerations: Vec<Toleration>,
    priority: i32,
    preemption_policy: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ContainerSpec {
    resources: Resources,
    restart_policy: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Resources {
    requests: Quantities,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Affinity {
    node_affinity: NodeAffinity,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct NodeAffinity {
    required_during_scheduling_ignored_during_execution: Option<Terms>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Terms {
    node_selector_terms: Vec<Term>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Term {
    match_expressions: Vec<Demand>,
    match_fields: Vec<Demand>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Demand {
    key: String,
    operator: String,
    values: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Toleration {
    key: String,
    operator: String,
    value: String,
    effect: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: String,
    reason: Option<String>,
    message: Option<String>,
    nominated_node_name: Option<String>,
    conditions: Vec<Condition>,
    container_statuses: Vec<ContainerStatus>,
    init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ContainerStatus {
    name: String,
    image: String,
    state: State,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct State {
    running: Option<serde::de::IgnoredAny>,
    terminated: Option<Terminated>,
    waiting: Option<Waiting>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    exit_code: i32,
    reason: String,
    message: String,
    finished_at: Option<Timestamp>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Waiting {
    reason: String,
    message: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Job {
    metadata: Metadata,
    spec: JobSpec,
    status: JobStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JobSpec {
    completions: u32,
    suspend: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JobStatus {
    conditions: Vec<Condition>,
    active: u32,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Event {
    metadata: Metadata,
    involved_object: Reference,
    reason: String,
    message: String,
    first_timestamp: Option<Timestamp>,
    last_timestamp: Option<Timestamp>,
    event_time: Option<Timestamp>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Reference {
    kind: String,
    name: String,
    uid: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Node {
    metadata: Metadata,
    spec: NodeSpec,
    status: NodeStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeSpec {
    taints: Vec<Taint>,
    unschedulable: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Taint {
    key: String,
    value: String,
    effect: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeStatus {
    conditions: Vec<Condition>,
    capacity: Quantities,
    allocatable: Quantities,
}

impl From<Pod> for super::Pod {
    fn from(pod: Pod) -> Self {
        let Pod { metadata, spec, status } = pod;
        let conditions = &status.conditions;
        let unscheduled = find(conditions, "PodScheduled", "False").map(Condition::said);
        let disruption = find(conditions, "DisruptionTarget", "True").map(Condition::said);
        // Who brings the binary is over soon, beside the task or before it.
        let is_bringer = |container: &ContainerStatus| container.name == MUSTER;
        let (bringer, containers): (Vec<_>, Vec<_>) =
            status.container_statuses.into_iter().partition(is_bringer);
        Self {
            rank: metadata.labels.get(RANK).and_then(|rank| rank.parse().ok()),
            created_at: metadata.creation_timestamp,
            deleted_at: metadata.deleted_at(),
            is_gated: !spec.scheduling_gates.is_empty(),
            needs: Arc::new(spec.needs()),
            node: spec.node_name.filter(|name| !name.is_empty()),
            nominated: status.nominated_node_name.filter(|name| !name.is_empty()),
            phase: phase(&status.phase),
            reason: status.reason,
            message: status.message.as_deref().map(cut),
            scheduled_at: find(conditions, "PodScheduled", "True").and_then(|said| said.last_transition_time),
            unscheduled,
            disruption,
            init: status.init_container_statuses.into_iter().chain(bringer).map(Into::into).collect(),
            containers: containers.into_iter().map(Into::into).collect(),
            version: metadata.resource_version,
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid,
            labels: only_ours(metadata.labels),
        }
    }
}

impl From<Pod> for super::Tenant {
    fn from(pod: Pod) -> Self {
        Self {
            requests: pod.spec.requests(),
            priority: pod.spec.priority,
            is_over: phase(&pod.status.phase).is_over(),
            node: pod.spec.node_name.filter(|name| !name.is_empty()),
            version: pod.metadata.resource_version,
            uid: pod.metadata.uid,
        }
    }
}

impl From<Job> for super::Job {
    fn from(job: Job) -> Self {
        let Job { metadata, spec, status } = job;
        let conditions = &status.conditions;
        let failed = || find(conditions, "Failed", "True").map(|condition| JobEnd::Failed(condition.said()));
        Self {
            created_at: metadata.creation_timestamp,
            deleted_at: metadata.deleted_at(),
            ranks: spec.completions,
            is_suspended: spec.suspend,
            is_held: spec.suspend || find(conditions, "Suspended", "True").is_some(),
            resumed_at: find(conditions, "Suspended", "False").and_then(|said| said.last_transition_time),
            end: find(conditions, "Complete", "True").map(|_| JobEnd::Complete).or_else(failed),
            failing: find(conditions, "FailureTarget", "True").map(Condition::said),
            active: status.active,
            version: metadata.resource_version,
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid,
            labels: only_ours(metadata.labels),
            annotations: only_ours(metadata.annotations),
        }
    }
}

impl From<Event> for super::Event {
    fn from(event: Event) -> Self {
        Self {
            version: event.metadata.resource_version,
            namespace: event.metadata.namespace,
            name: event.metadata.name,
            about_kind: event.involved_object.kind,
            about: event.involved_object.name,
            about_uid: event.involved_object.uid,
            reason: event.reason,
            message: cut(&event.message),
            first_at: event.first_timestamp.or(event.event_time).or(event.metadata.creation_timestamp),
            at: event.last_timestamp.or(event.event_time).or(event.metadata.creation_timestamp),
        }
    }
}

impl From<Node> for super::Machine {
    fn from(node: Node) -> Self {
        let conditions = &node.status.conditions;
        let ready = conditions.iter().find(|condition| condition.kind == "Ready");
        let is_ready = ready.is_some_and(|condition| condition.status == "True");
        let is_pressed = |condition: &&Condition| condition.kind != "Ready" && condition.status == "True";
        let trouble = if is_ready {
            conditions.iter().find(is_pressed).map(|condition| condition.kind.clone())
        } else {
            Some(ready.map_or_else(
                || "its kubelet has said nothing yet".to_owned(),
                |condition| condition.message.trim_end_matches('.').to_owned(),
            ))
        };
        let taint = |taint: Taint| needs::Taint { key: taint.key, value: taint.value, effect: taint.effect };
        Self {
            version: node.metadata.resource_version,
            name: node.metadata.name,
            node: needs::Node {
                labels: node.metadata.labels,
                taints: node.spec.taints.into_iter().map(taint).collect(),
                allocatable: amounts(&node.status.allocatable),
            },
            is_cordoned: node.spec.unschedulable,
            is_ready,
            trouble,
            capacity: amounts(&node.status.capacity),
        }
    }
}

impl From<ContainerStatus> for super::Container {
    fn from(status: ContainerStatus) -> Self {
        let state = match status.state {
            State { terminated: Some(over), .. } => ContainerState::Over {
                exit_code: over.exit_code,
                reason: over.reason,
                message: cut(&over.message),
                at: over.finished_at,
            },
            State { running: Some(_), .. } => ContainerState::Running,
            State { waiting, .. } => {
                let Waiting { reason, message } = waiting.unwrap_or_default();
                ContainerState::Waiting { reason, message: cut(&message) }
            }
        };
        Self { name: status.name, image: status.image, state }
    }
}

impl PodSpec {
    fn needs(&self) -> Needs {
        let terms = self.affinity.node_affinity.required_during_scheduling_ignored_during_execution.as_ref();
        Needs {
            requests: self.requests(),
            selector: self.node_selector.clone(),
            terms: terms.map(|terms| terms.node_selector_terms.iter().map(Into::into).collect()),
            tolerations: self.tolerations.iter().map(Into::into).collect(),
            preempts: self.preemption_policy != "Never",
            priority: self.priority,
        }
    }

    /// What the scheduler counts: all containers together, or the largest of those that come before them, if that is more.
    fn requests(&self) -> Amounts {
        let mut sum = Amounts::new();
        self.containers.iter().for_each(|container| add(&mut sum, &container.resources.requests));
        let (mut sidecars, mut first) = (Amounts::new(), Amounts::new());
        for container in &self.init_containers {
            let requests = &container.resources.requests;
            if container.restart_policy == "Always" {
                add(&mut sidecars, requests);
                raise(&mut first, &sidecars);
            } else {
                let mut with = sidecars.clone();
                add(&mut with, requests);
                raise(&mut first, &with);
            }
        }
        sidecars.iter().for_each(|(name, amount)| *sum.entry(name.clone()).or_default() += amount);
        raise(&mut sum, &first);
        // What is asked for the pod as a whole counts instead of what its containers ask for.
        sum.extend(amounts(&self.resources.requests));
        add(&mut sum, &self.overhead);
        sum.retain(|_, amount| *amount > 0);
        sum
    }
}

fn add(sum: &mut Amounts, quantities: &Quantities) {
    for (name, amount) in amounts(quantities) {
        let value = sum.entry(name).or_default();
        *value = value.saturating_add(amount);
    }
}

fn raise(sum: &mut Amounts, others: &Amounts) {
    for (name, amount) in others {
        let value = sum.entry(name.clone()).or_default();
        *value = (*value).max(*amount);
    }
}

fn amounts(quantities: &Quantities) -> Amounts {
    let read = |(name, text): (&String, &String)| Some((name.clone(), amount(name, text)?));
    quantities.iter().filter_map(read).collect()
}

impl From<&Term> for needs::Term {
    fn from(term: &Term) -> Self {
        let demands = |all: &[Demand]| all.iter().map(Into::into).collect();
        Self { labels: demands(&term.match_expressions), fields: demands(&term.match_fields) }
    }
}

impl From<&Demand> for needs::Demand {
    fn from(demand: &Demand) -> Self {
        Self { key: demand.key.clone(), operator: demand.operator.clone(), values: demand.values.clone() }
    }
}

impl From<&Toleration> for needs::Toleration {
    fn from(toleration: &Toleration) -> Self {
        Self {
            key: toleration.key.clone(),
            exists: toleration.operator == "Exists",
            value: toleration.value.clone(),
            effect: toleration.effect.clone(),
        }
    }
}

fn phase(word: &str) -> Phase {
    match word {
        "Running" => Phase::Running,
        "Succeeded" => Phase::Succeeded,
        "Failed" => Phase::Failed,
        "Unknown" => Phase::Unknown,
        _ => Phase::Pending,
    }
}

fn only_ours(mut labels: Labels) -> Labels {
    labels.retain(|name, _| name.starts_with(OURS));
    labels
}

fn cut(message: &str) -> String {
    message.chars().take(LONGEST).collect()
}
