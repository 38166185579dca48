//! What keeps a gang from beginning: whether it passes, and what would help.

use std::time::Duration;

use muster_engine::{Verdict, Wait};
use muster_model::Timestamp;

use super::{Facts, Ranks};
use crate::inventory;
use crate::seen::{Container, ContainerState, Event, Job, Pod};

/// For how long what goes wrong with an image or a container is tried again before it is believed: registries have bad moments,
/// and Secrets are sometimes made after those who need them.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a gang has not begun.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Hindrance {
    /// It will never begin. Until it is ended, it waits for this.
    Fatal(Verdict, Wait),
    /// It may.
    Passing(Wait),
}

/// What keeps it from beginning; nothing once every rank runs.
pub(super) fn of(facts: &Facts, job: &Job, ranks: &Ranks) -> Option<Hindrance> {
    let unmade = || (ranks.len() < job.ranks as usize).then(|| not_made(facts, job, ranks.len()));
    let pods: Vec<&Pod> = ranks.values().filter(|known| known.is_live()).map(|known| &*known.pod).collect();
    let found = pods.iter().filter_map(|pod| of_pod(facts, pod, job));
    // What can never be comes first, and then what is furthest from beginning.
    let worst = found.min_by_key(|(order, hindrance)| (matches!(hindrance, Hindrance::Passing(_)), *order));
    match worst {
        Some((_, fatal @ Hindrance::Fatal(..))) => Some(fatal),
        other => unmade().or_else(|| other.map(|(_, hindrance)| hindrance)),
    }
}

/// How far a pod is, for finding the one that matters most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Unplaced,
    Gated,
    Stuck,
    Starting,
}

fn of_pod(facts: &Facts, pod: &Pod, job: &Job) -> Option<(Stage, Hindrance)> {
    if pod.is_gated {
        return Some((Stage::Gated, Hindrance::Passing(facts.gated())));
    }
    if pod.node.is_none() {
        return Some((Stage::Unplaced, Hindrance::Passing(unplaced(facts, pod, job))));
    }
    // One that was told to end is no longer about to begin.
    let waiting =
        pod.init.iter().chain(&pod.containers).find_map(waiting).filter(|_| pod.deleted_at.is_none());
    match waiting {
        Some((container, reason, message)) => Some(stuck(facts, pod, container, reason, message)),
        None if !has_statuses(pod) => Some((Stage::Starting, Hindrance::Passing(starting(facts, pod, None)))),
        None => None,
    }
}

fn has_statuses(pod: &Pod) -> bool {
    !pod.containers.is_empty() || !pod.init.is_empty()
}

fn waiting(container: &Container) -> Option<(&Container, &str, &str)> {
    match &container.state {
        ContainerState::Waiting { reason, message } => Some((container, reason, message)),
        ContainerState::Running | ContainerState::Over { .. } => None,
    }
}

/// The scheduler has not found a machine.
fn unplaced(facts: &Facts, pod: &Pod, job: &Job) -> Wait {
    if let Some(node) = &pod.nominated {
        let summary = format!("room is made for it on {node} by ending what counts for less");
        return Wait { code: "no_capacity", summary, help: None, starts_at: None };
    }
    match &pod.unscheduled {
        Some(said) if said.reason == "Unschedulable" => {
            inventory::unschedulable(&said.message, &pod.needs, job.ranks, facts.inventory)
        }
        Some(said) if !said.message.is_empty() => passing(
            "scheduler",
            format!("the scheduler of Kubernetes has not placed it: {}", said.message),
            None,
        ),
        _ => passing("scheduler", "the scheduler of Kubernetes has not looked at it yet".into(), None),
    }
}

/// It has a machine, and a container does not begin there.
fn stuck(facts: &Facts, pod: &Pod, container: &Container, reason: &str, message: &str) -> (Stage, Hindrance) {
    let image = &container.image;
    let said = if message.is_empty() { reason } else { message };
    let is_patient = facts.since(pod).is_none_or(|at| facts.now < at + PATIENCE);
    match reason {
        "ErrImagePull"
        | "ImagePullBackOff"
        | "InvalidImageName"
        | "ErrImageNeverPull"
        | "ImageInspectError"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => {
            let why = facts.pull_error(pod).unwrap_or(said);
            let wait = passing(
                "image",
                format!("image {image} cannot be pulled: {}", short(why)),
                Some(
                    "see that the image's name is right, and that k8s.image_pull_secrets has what its registry asks for",
                ),
            );
            let is_final = matches!(reason, "InvalidImageName" | "ErrImageNeverPull") || is_absent(why);
            let message = format!("{image}: {}", short(why));
            (Stage::Stuck, judge(is_final || !is_patient, Verdict::ImagePull { message }, wait))
        }
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
            let (words, help) = config_error(said);
            let wait = passing("refused", format!("its container cannot be made: {words}"), help);
            let is_final = said.contains("runAsNonRoot");
            let remedy = help.map(|help| format!("; {help}")).unwrap_or_default();
            let message = format!("its container cannot be made: {words}{remedy}");
            (Stage::Stuck, judge(is_final || !is_patient, Verdict::Refused { message }, wait))
        }
        _ => (Stage::Starting, Hindrance::Passing(starting(facts, pod, Some(container)))),
    }
}

fn judge(is_fatal: bool, verdict: Verdict, wait: Wait) -> Hindrance {
    if is_fatal { Hindrance::Fatal(verdict, wait) } else { Hindrance::Passing(wait) }
}

/// It has a machine and is being made there.
fn starting(facts: &Facts, pod: &Pod, container: Option<&Container>) -> Wait {
    let node = pod.node.as_deref().unwrap_or("its machine");
    if let Some(event) = facts.trouble(pod) {
        let help = (event.reason == "FailedMount" || event.reason == "FailedAttachVolume")
            .then_some("see that the volumes and Secrets that the job names are in its namespace, and that the node can mount them");
        return passing("volume", format!("it cannot be made on {node}: {}", short(&event.message)), help);
    }
    let image = container.map(|container| container.image.as_str());
    let summary = match image {
        Some(image) => format!("{node} gets image {image} and makes its container"),
        None => format!("{node} makes its pod"),
    };
    passing("starting", summary, None)
}

/// The Job controller has not made all pods.
fn not_made(facts: &Facts, job: &Job, made: usize) -> Hindrance {
    let about = |event: &&Event| event.about_uid == job.uid && event.reason == "FailedCreate";
    let Some(event) = facts.events.iter().filter(about).max_by_key(|event| event.at) else {
        let summary = format!("Kubernetes has made {made} of its {} pods", job.ranks);
        return Hindrance::Passing(passing("scheduler", summary, None));
    };
    let words = event.message.strip_prefix("Error creating: ").unwrap_or(&event.message);
    if let Some(quota) = words.split_once("exceeded quota: ").map(|(_, quota)| quota) {
        return Hindrance::Passing(over_quota(quota, job.ranks));
    }
    let wait = passing("refused", format!("its pods are refused: {}", short(words)), None);
    let is_final = words.contains("violates PodSecurity");
    let help = if is_final {
        "; set k8s.user, or ask who runs the cluster for a namespace that allows it"
    } else {
        ""
    };
    let verdict = Verdict::Refused { message: format!("{}{help}", short(words)) };
    let is_patient = event.first_at.is_none_or(|at| facts.now < at + PATIENCE);
    judge(is_final || !is_patient, verdict, wait)
}

/// `q, requested: pods=1, used: pods=1, limited: pods=1`.
fn over_quota(quota: &str, ranks: u32) -> Wait {
    let part = |name: &str| -> Vec<(&str, &str)> {
        let Some((_, rest)) = quota.split_once(&format!("{name}: ")) else { return Vec::new() };
        let rest =
            rest.split(", used:").next().and_then(|rest| rest.split(", limited:").next()).unwrap_or(rest);
        rest.split(',').filter_map(|pair| pair.trim().split_once('=')).collect()
    };
    let number =
        |name: &str, text: &str| crate::seen::amount(name.trim_start_matches("requests."), text).unwrap_or(0);
    let limits = part("limited");
    let is_above = |(name, text): &(&str, &str)| {
        let limit = limits.iter().find(|(limited, _)| limited == name);
        limit.is_some_and(|(_, limit)| {
            number(name, text).saturating_mul(i64::from(ranks)) > number(name, limit)
        })
    };
    let name = quota.split(',').next().unwrap_or_default();
    let used = |list: Vec<(&str, &str)>| {
        list.iter().map(|(name, text)| format!("{text} {name}")).collect::<Vec<_>>().join(", ")
    };
    let limited = used(part("limited"));
    match part("requested").into_iter().find(is_above) {
        Some((resource, _)) => passing(
            "never_fits",
            format!(
                "quota {name} of its namespace allows {limited} in all, and it needs more {resource} than that"
            ),
            Some("ask for less, or who runs the cluster for a larger quota"),
        ),
        None => passing(
            "limit",
            format!("quota {name} of its namespace is used up: {} of {limited}", used(part("used"))),
            Some("it starts when what counts against the quota ends; `kubectl describe quota` shows it"),
        ),
    }
}

fn config_error(said: &str) -> (String, Option<&'static str>) {
    if said.contains("runAsNonRoot") {
        let words = "the namespace wants containers that are not root's, and the image is root's".into();
        return (words, Some("set k8s.user to a number other than 0"));
    }
    let help = (said.contains("secret") || said.contains("configmap"))
        .then_some("see that k8s.secrets names what is in the job's namespace");
    (short(said), help)
}

fn passing(code: &'static str, summary: String, help: Option<&str>) -> Wait {
    Wait { code, summary, help: help.map(str::to_owned), starts_at: None }
}

/// Whether a registry says that there is no such image: no patience makes one.
fn is_absent(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["not found", "manifest unknown", "does not exist", "name unknown", "invalid reference format"]
        .iter()
        .any(|words| message.contains(words))
}

/// The end of a chain of errors, which is the part that says something, on one line.
fn short(message: &str) -> String {
    const LONGEST: usize = 300;
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let kept = line.rsplit_once("failed to do request: ").map_or(line.as_str(), |(_, rest)| rest);
    kept.chars().take(LONGEST).collect()
}

impl<'a> Facts<'a> {
    fn about<'b>(&'b self, pod: &'b Pod) -> impl Iterator<Item = &'a Event> + 'b {
        self.events.iter().filter(|event| event.about_uid == pod.uid)
    }

    /// Since when things go wrong with a pod.
    fn since(&self, pod: &Pod) -> Option<Timestamp> {
        let failed =
            self.about(pod).filter(|event| event.reason == "Failed").filter_map(|event| event.first_at);
        failed.min().or(pod.scheduled_at).or(pod.created_at)
    }

    /// What the last try to pull said: while it is backing off, the container's state only says that it is.
    fn pull_error(&self, pod: &Pod) -> Option<&'a str> {
        let failed = self
            .about(pod)
            .filter(|event| event.reason == "Failed" && event.message.starts_with("Failed to pull"));
        let last = failed.max_by_key(|event| event.at)?;
        last.message.split_once("\": ").map(|(_, why)| why)
    }

    /// What keeps a node from making a pod.
    fn trouble(&self, pod: &Pod) -> Option<&'a Event> {
        const TROUBLES: [&str; 5] = [
            "FailedMount",
            "FailedAttachVolume",
            "FailedMapVolume",
            "FailedCreatePodSandBox",
            "NetworkNotReady",
        ];
        self.about(pod).filter(|event| TROUBLES.contains(&event.reason.as_str())).max_by_key(|event| event.at)
    }
}
