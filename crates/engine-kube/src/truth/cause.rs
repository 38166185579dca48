//! Why a pod is over, and which of several was first.

use std::time::Duration;

use muster_engine::Verdict;
use muster_model::Timestamp;

use super::Known;
use crate::seen::{Container, ContainerState, Phase, Pod, Said};

/// How long a node may take from the end of a container until it lets go of a pod that was deleted.
const LAST_WORD: Duration = Duration::from_secs(5);
/// Our program, as containers are told to run it.
const PROGRAM: &str = "/muster/bin/muster";
const GLIBC: &str = "muster needs glibc 2.17 or newer in it; use an image that is made of Debian, Ubuntu, Red Hat or the like, \
                     not of Alpine or from nothing";

/// The reason of the pod that was the first to be over, save those that ended in order. What was deleted once Kubernetes had
/// given the Job up was deleted for that, and counts only if there is nothing else.
pub(super) fn first<'a>(
    pods: impl Iterator<Item = &'a Known>,
    failing: Option<Timestamp>,
) -> Option<Verdict> {
    let causes = pods.filter_map(|known| {
        let (at, verdict) = of(known)?;
        let is_deleted = matches!(verdict, Verdict::Cancelled { .. });
        let is_consequence = is_deleted && failing.zip(at).is_some_and(|(failing, at)| at >= failing);
        Some(((is_consequence, at.unwrap_or(Timestamp::MAX), is_deleted), verdict))
    });
    causes.min_by_key(|(order, _)| *order).map(|(_, verdict)| verdict)
}

/// Why a pod is over and since when. Nothing if it is not, or ended in order.
fn of(known: &Known) -> Option<(Option<Timestamp>, Verdict)> {
    let Known { pod, is_gone } = known;
    let is_over = *is_gone || pod.phase.is_over();
    if let Some(said) = pod.disruption.as_ref().filter(|_| is_over) {
        return Some((said.at.or(pod.deleted_at), disrupted(pod, said)));
    }
    let ended_at = ended_at(pod);
    if let Some(verdict) =
        pod.reason.as_deref().filter(|_| is_over).and_then(|reason| by_kubelet(pod, reason))
    {
        return Some((ended_at, verdict));
    }
    let is_deleted =
        pod.deleted_at.is_some_and(|deleted| ended_at.is_none_or(|ended| is_ended_by(pod, deleted, ended)));
    match pod.phase {
        _ if is_over && is_deleted => Some((pod.deleted_at, Verdict::Cancelled { by: None })),
        Phase::Failed => Some((ended_at, failed(pod))),
        Phase::Succeeded => None,
        // It went while nobody watched: it may have been deleted, or have ended and been cleared away.
        Phase::Pending | Phase::Running | Phase::Unknown if *is_gone => Some((None, Verdict::Unknown)),
        Phase::Pending | Phase::Running | Phase::Unknown => None,
    }
}

/// Whether a pod ended because it was deleted. The time of the deletion is lost when its node has said its last word: what was
/// ended by a signal a moment before that was deleted, too.
fn is_ended_by(pod: &Pod, deleted: Timestamp, ended: Timestamp) -> bool {
    let is_signal = |container: &Container| matches!(&container.state, ContainerState::Over { exit_code: 137 | 143, reason, .. } if reason == "Error");
    ended >= deleted || (deleted <= ended + LAST_WORD && pod.containers.iter().any(is_signal))
}

/// Whether its task's container ever ran.
pub(super) fn has_begun(pod: &Pod) -> bool {
    pod.phase != Phase::Pending
        && pod.containers.iter().any(|container| !matches!(container.state, ContainerState::Waiting { .. }))
}

/// When the last of its containers ended.
fn ended_at(pod: &Pod) -> Option<Timestamp> {
    let at = |container: &Container| match container.state {
        ContainerState::Over { at, .. } => at,
        ContainerState::Waiting { .. } | ContainerState::Running => None,
    };
    let of_task = pod.containers.iter().filter_map(at).max();
    of_task.or_else(|| pod.init.iter().filter_map(at).max())
}

/// Kubernetes says itself why it takes a pod away.
fn disrupted(pod: &Pod, said: &Said) -> Verdict {
    let node = pod.node.clone();
    let on = node.as_deref().unwrap_or("its machine");
    let evicted = |message: String| Verdict::Evicted { message };
    // A machine that could still say how the pod ended has not failed.
    let is_told =
        pod.containers.iter().any(|container| matches!(container.state, ContainerState::Over { .. }));
    match said.reason.as_str() {
        "PreemptionByScheduler" => Verdict::Preempted,
        "EvictionByEvictionAPI" => evicted(format!("{on} is being drained")),
        "TerminationByKubelet" => evicted(pod.message.clone().unwrap_or_else(|| said.message.clone())),
        "DeletionByTaintManager" if is_told => evicted(format!("{on} has a taint that ends what runs there")),
        "DeletionByTaintManager" | "DeletionByPodGC" => Verdict::NodeFailed { node },
        _ => evicted(format!("{} ({})", said.message, said.reason)),
    }
}

/// The kubelet says why it ended a pod, or did not begin it.
fn by_kubelet(pod: &Pod, reason: &str) -> Option<Verdict> {
    let message = pod.message.clone().unwrap_or_default();
    match reason {
        "DeadlineExceeded" => Some(Verdict::TimeLimit { limit: None }),
        "Preempting" => Some(Verdict::Preempted),
        "NodeLost" => Some(Verdict::NodeFailed { node: pod.node.clone() }),
        "Evicted" | "Shutdown" | "Terminated" | "NodeShutdown" => Some(Verdict::Evicted { message }),
        // It was placed on a machine that turned out not to have what it needs: the next attempt is placed elsewhere.
        "NodeAffinity" | "UnexpectedAdmissionError" => Some(Verdict::Evicted { message }),
        reason if reason.starts_with("OutOf") => Some(Verdict::Evicted { message }),
        _ => None,
    }
}

/// A container ended with a failure.
fn failed(pod: &Pod) -> Verdict {
    let bad = |container: &&Container| matches!(&container.state, ContainerState::Over { exit_code, .. } if *exit_code != 0);
    let Some(container) = pod.init.iter().chain(&pod.containers).find(bad) else {
        let why = pod.message.clone().or_else(|| pod.reason.clone());
        let message = why.unwrap_or_else(|| format!("pod {} failed, and nobody says why", pod.name));
        return Verdict::Failed { message };
    };
    let ContainerState::Over { exit_code, reason, message, .. } = &container.state else {
        return Verdict::Unknown;
    };
    if reason == "OOMKilled" {
        return Verdict::OutOfMemory;
    }
    // A kubelet that could not begin with who brings our program goes on with the task, and tries the other again.
    if message.contains(&format!("stat {PROGRAM}: no such file")) {
        return Verdict::Evicted { message: "muster was brought into its pod too late".into() };
    }
    if let Some(message) = unfit(&container.image, message) {
        return Verdict::Refused { message };
    }
    let last = message.trim_end().lines().last().unwrap_or_default();
    let what = match reason.as_str() {
        "StartError" | "ContainerCannotRun" => {
            format!("image {} cannot be started: {message}", container.image)
        }
        _ => format!("container {} of pod {} ended with exit code {exit_code}", container.name, pod.name),
    };
    match (reason.as_str(), last) {
        ("StartError" | "ContainerCannotRun", _) => Verdict::Refused { message: what },
        (_, "") => Verdict::Failed { message: what },
        (_, last) => Verdict::Failed { message: format!("{what}: {last}") },
    }
}

/// What keeps our program from running in this image, if that is it. The kernel says that there is no such file when it means
/// the loader that a program asks for, and the container runtime passes that on.
fn unfit(image: &str, message: &str) -> Option<String> {
    let is_run =
        message.contains(&format!("exec {PROGRAM}")) || message.contains(&format!("exec: \"{PROGRAM}\""));
    let is_library = ["GLIBC_", "ld-linux", "libc.so"].iter().any(|word| message.contains(word));
    if is_run && message.contains("exec format error") {
        return Some(format!(
            "image {image}: it is for another kind of machine than the one it was started on"
        ));
    }
    let is_missing = is_run && message.contains("no such file or directory");
    (is_missing || (is_library && message.contains(PROGRAM))).then(|| format!("image {image}: {GLIBC}"))
}

/// A Job failed and nothing more is known.
pub(super) fn of_job(said: &Said, is_any_missing: bool) -> Verdict {
    match said.reason.as_str() {
        "DeadlineExceeded" => Verdict::TimeLimit { limit: None },
        "PodFailurePolicy" => Verdict::Evicted { message: "Kubernetes took one of its pods away".into() },
        // A pod that fails stays to be looked at; one that is not there was deleted.
        _ if is_any_missing => Verdict::Cancelled { by: None },
        _ => Verdict::Failed { message: said.message.clone() },
    }
}

/// A verdict as it is written on a Job.
pub(crate) fn write_verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Completed => "completed".into(),
        Verdict::Cancelled { .. } => "cancelled".into(),
        Verdict::TimeLimit { .. } => "time_limit".into(),
        Verdict::Preempted => "preempted".into(),
        Verdict::Evicted { message } => format!("evicted: {message}"),
        Verdict::NodeFailed { node } => format!("node_failed: {}", node.as_deref().unwrap_or_default()),
        Verdict::OutOfMemory => "out_of_memory".into(),
        Verdict::ImagePull { message } => format!("image_pull: {message}"),
        Verdict::Refused { message } => format!("refused: {message}"),
        Verdict::Failed { message } => format!("failed: {message}"),
        Verdict::Unknown => "unknown".into(),
    }
}

/// What was written on a Job; nothing if it was not us.
pub(crate) fn read_verdict(text: &str) -> Option<Verdict> {
    let (word, rest) = text.split_once(": ").unwrap_or((text.trim_end_matches(':'), ""));
    let message = rest.to_owned();
    Some(match word {
        "completed" => Verdict::Completed,
        "cancelled" => Verdict::Cancelled { by: None },
        "time_limit" => Verdict::TimeLimit { limit: None },
        "preempted" => Verdict::Preempted,
        "evicted" => Verdict::Evicted { message },
        "node_failed" => Verdict::NodeFailed { node: Some(message).filter(|node| !node.is_empty()) },
        "out_of_memory" => Verdict::OutOfMemory,
        "image_pull" => Verdict::ImagePull { message },
        "refused" => Verdict::Refused { message },
        "failed" => Verdict::Failed { message },
        "unknown" => Verdict::Unknown,
        _ => return None,
    })
}
