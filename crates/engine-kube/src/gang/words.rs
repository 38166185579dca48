//! Why a gang waits, in the words of whoever places it: Kueue on its Workload, Volcano on its PodGroup. Pure.
//!
//! What they say for machines is a handful of conditions; the rest is their text for people, which is shown as it is.

use kube::core::ApiResource;
use muster_engine::Wait;
use serde_json::Value;

/// Whose queue it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Queue {
    /// Kueue's.
    Kueue,
    /// Volcano's.
    Volcano,
}

impl Queue {
    /// What the object says that this one keeps of a gang; nothing once it lets the gang go.
    pub(crate) fn wait(self, object: &Value) -> Option<Wait> {
        match self {
            Self::Kueue => kueue(object),
            Self::Volcano => volcano(object),
        }
    }

    /// Where that object is in the API; `kueue` is the version that Kueue prefers.
    pub(crate) fn resource(self, kueue: Option<String>) -> ApiResource {
        let (group, version, kind) = match self {
            Self::Kueue => ("kueue.x-k8s.io", kueue.unwrap_or_else(|| "v1beta1".to_owned()), "Workload"),
            Self::Volcano => ("scheduling.volcano.sh", "v1beta1".to_owned(), "PodGroup"),
        };
        ApiResource {
            group: group.to_owned(),
            api_version: format!("{group}/{version}"),
            version,
            kind: kind.to_owned(),
            plural: format!("{}s", kind.to_lowercase()),
        }
    }

    /// The Job whose gang the object is about.
    pub(crate) fn job(self, object: &Value) -> Option<&str> {
        let owners = object["metadata"]["ownerReferences"].as_array()?;
        owners.iter().find(|owner| owner["kind"] == "Job")?["name"].as_str()
    }
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition["status"] == "True")
}

fn kueue(workload: &Value) -> Option<Wait> {
    const HELP: &str = "`kubectl get localqueues,clusterqueues -A` shows what the queues may have and use";
    if is_true(workload, "Admitted") || is_true(workload, "Finished") {
        return None;
    }
    if workload["spec"]["active"] == false {
        return Some(wait(
            "held",
            "somebody holds it in Kueue",
            Some("set its Workload's spec.active to true"),
        ));
    }
    if is_true(workload, "QuotaReserved") {
        return Some(wait("scheduler", "it has its quota in Kueue, and admission checks are to pass", None));
    }
    let reserved = condition(workload, "QuotaReserved");
    let message = reserved.and_then(|condition| condition["message"].as_str()).unwrap_or("");
    let reason = reserved.and_then(|condition| condition["reason"].as_str()).unwrap_or("");
    let (code, help) = match (reason, message) {
        (_, "") => return Some(wait("scheduler", "Kueue has not looked at it yet", None)),
        (_, text) if text.contains("doesn't exist") => {
            ("never_fits", "name another queue in k8s.queue; `kubectl get localqueues` lists them")
        }
        (_, text) if text.contains("inactive") || text.contains("stopped") => {
            ("held", "the queue is stopped or not set up; ask who runs the cluster")
        }
        (_, text)
            if text.contains("insufficient quota")
                || text.contains("exceed") && text.contains("capacity") =>
        {
            (
                "never_fits",
                "it asks for more than its queue may ever have; ask for less, or use another queue",
            )
        }
        _ => ("limit", HELP),
    };
    Some(wait(code, &format!("Kueue: {message}"), Some(help)))
}

fn volcano(group: &Value) -> Option<Wait> {
    const HELP: &str = "`kubectl get podgroups,queues.scheduling.volcano.sh -A` shows who has what";
    let phase = group["status"]["phase"].as_str().unwrap_or("");
    if matches!(phase, "Running" | "Completed") || is_true(group, "Scheduled") {
        return None;
    }
    let unschedulable = condition(group, "Unschedulable").filter(|condition| condition["status"] == "True");
    let message = unschedulable.and_then(|condition| condition["message"].as_str()).unwrap_or("");
    if !message.is_empty() {
        return Some(wait("no_capacity", &format!("Volcano: {message}"), Some(HELP)));
    }
    Some(match phase {
        "" => wait("scheduler", "Volcano has not looked at it yet", Some("is Volcano's scheduler running?")),
        "Pending" => wait("limit", "Volcano has not admitted it to its queue yet", Some(HELP)),
        "Inqueue" => {
            wait("no_capacity", "Volcano has it in its queue and finds no nodes for all of it", Some(HELP))
        }
        other => wait("scheduler", &format!("Volcano has it as {other}"), Some(HELP)),
    })
}

fn wait(code: &'static str, summary: &str, help: Option<&str>) -> Wait {
    Wait { code, summary: summary.to_owned(), help: help.map(str::to_owned), starts_at: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(conditions: &Value) -> Value {
        json!({ "metadata": { "ownerReferences": [{ "kind": "Job", "name": "m-1" }] }, "status": { "conditions": conditions } })
    }

    fn said(reason: &str, message: &str) -> Value {
        object(&json!([{ "type": "QuotaReserved", "status": "False", "reason": reason, "message": message }]))
    }

    #[test]
    fn what_kueue_says_of_a_workload_becomes_our_codes() {
        let cases = [
            (
                "Pending",
                "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor any, 1 more needed",
                "limit",
            ),
            (
                "Pending",
                "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor any, previously considered podsets requests (0) + current podset request (18) > maximum capacity (3)",
                "never_fits",
            ),
            ("Inadmissible", "ClusterQueue all is inactive", "held"),
            ("Inadmissible", "LocalQueue nowhere doesn't exist", "never_fits"),
            ("Inadmissible", "ClusterQueue nope doesn't exist", "never_fits"),
            ("", "", "scheduler"),
        ];
        for (reason, message, code) in cases {
            let wait = Queue::Kueue.wait(&said(reason, message)).unwrap();
            assert_eq!(wait.code, code, "{message}");
            assert!(wait.summary.contains(message));
        }
        let admitted = object(&json!([{ "type": "Admitted", "status": "True" }]));
        assert_eq!(Queue::Kueue.wait(&admitted), None);
        assert_eq!(Queue::Kueue.job(&admitted), Some("m-1"));
        let checked = object(&json!([{ "type": "QuotaReserved", "status": "True" }]));
        assert_eq!(Queue::Kueue.wait(&checked).unwrap().code, "scheduler");
        assert_eq!(Queue::Kueue.wait(&json!({ "spec": { "active": false } })).unwrap().code, "held");
    }

    #[test]
    fn what_volcano_says_of_a_group_becomes_our_codes() {
        let phase = |phase: &str| json!({ "status": { "phase": phase } });
        for (group, code) in [
            (json!({}), Some("scheduler")),
            (phase("Pending"), Some("limit")),
            (phase("Inqueue"), Some("no_capacity")),
            (phase("Unknown"), Some("scheduler")),
            (phase("Running"), None),
        ] {
            assert_eq!(Queue::Volcano.wait(&group).map(|wait| wait.code), code, "{group}");
        }
        let said = json!([{ "type": "Unschedulable", "status": "True", "message": "3/3 tasks in gang unschedulable: …" }]);
        let wait = Queue::Volcano.wait(&object(&said)).unwrap();
        assert_eq!(
            (wait.code, wait.summary.as_str()),
            ("no_capacity", "Volcano: 3/3 tasks in gang unschedulable: …")
        );
    }
}
