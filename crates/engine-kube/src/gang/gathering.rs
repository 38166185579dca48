//! Who sees to it that a gang is placed whole, found by what the cluster's API serves, and what that one wants to be told.
//!
//! A queue in a job's words sends it to Kueue or Volcano. Without one the gates are ours; where the scheduler knows the
//! native Workload it is told as well. It alone would not do: a served API does not say that the scheduler looks at it, and
//! in 1.35 a gang of which some pods found a node keeps those nodes for minutes, two of them each other's.

use serde_json::{Map, Value, json};

/// What gates of ours are called.
pub(crate) const GATE: &str = "muster.dev/gang";
/// Who places it whole, on its Job: `gates`, `kueue` or `volcano`.
pub(crate) const GATHERING: &str = "muster.dev/gathering";
/// How often a gang was taken back, on its Job.
pub(crate) const TAKEN_BACK: &str = "muster.dev/taken-back";
/// Before when it is not opened again, on its Job.
pub(crate) const NOT_BEFORE: &str = "muster.dev/not-before";
/// The label by which Kueue knows a Job's queue.
const KUEUE_QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// The annotation by which Volcano knows a pod's group.
const VOLCANO_GROUP: &str = "scheduling.k8s.io/group-name";
/// The only group of pods in a native Workload of ours.
const POD_GROUP: &str = "gang";

/// Who places a gang whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Gathering {
    /// We do, with gates.
    Gates,
    /// We do, with gates, and the scheduler knows that they belong together.
    Native,
    /// Kueue admits the whole Job.
    Kueue {
        /// A LocalQueue of the namespace.
        queue: String,
    },
    /// Volcano's scheduler places a group of pods.
    Volcano {
        /// A queue of the cluster.
        queue: String,
    },
}

/// What the cluster's API serves of this.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Served {
    /// The native Workload, in the shape of Kubernetes 1.35.
    pub native: bool,
    /// Kueue, and which version of its API it prefers.
    pub kueue: Option<String>,
    /// Volcano.
    pub volcano: bool,
}

/// The native API, in the one version whose shape is known.
pub(crate) const NATIVE: (&str, &str) = ("scheduling.k8s.io", "v1alpha1");

impl Served {
    /// From the groups that `/apis` lists, each with the version it prefers, and from the resources that the native version
    /// has if it is served. A later version of the native API has another shape (its groups of pods are objects of their
    /// own), so only this one counts.
    pub(crate) fn of<'a>(groups: impl IntoIterator<Item = (&'a str, &'a str)>, native: &[&str]) -> Self {
        let native = native.contains(&"workloads") && !native.contains(&"podgroups");
        let mut served = Self { native, ..Self::default() };
        for (group, version) in groups {
            match group {
                "kueue.x-k8s.io" => served.kueue = Some(version.to_owned()),
                "scheduling.volcano.sh" => served.volcano = true,
                _ => {}
            }
        }
        served
    }

    /// Who places a gang that is to go to this queue, or to none. The words are for the field `k8s.queue`.
    pub(crate) fn gathering(&self, queue: Option<&str>) -> Result<Gathering, String> {
        let Some(queue) = queue else {
            return Ok(if self.native { Gathering::Native } else { Gathering::Gates });
        };
        let (whose, queue) = match queue.split_once('/') {
            Some((whose, queue)) => (Some(whose), queue.to_owned()),
            None => (None, queue.to_owned()),
        };
        match whose {
            None | Some("kueue") if self.kueue.is_some() => Ok(Gathering::Kueue { queue }),
            None | Some("volcano") if self.volcano => Ok(Gathering::Volcano { queue }),
            Some("kueue") => Err("Kueue is not installed in this cluster; leave the queue out".to_owned()),
            Some("volcano") => {
                Err("Volcano is not installed in this cluster; leave the queue out".to_owned())
            }
            None => {
                Err("neither Kueue nor Volcano is installed in this cluster; leave the queue out".to_owned())
            }
            Some(other) => Err(format!("`{other}` has no queues; write kueue/NAME, volcano/NAME or NAME")),
        }
    }
}

impl Gathering {
    /// Puts into a Job what whoever places it has to know. It is done after all else, so that nobody's words undo it.
    pub(crate) fn adorn(&self, job: &mut Value) {
        let name = job["metadata"]["name"].clone();
        object(object(job, "metadata"), "annotations")[GATHERING] = json!(self.word());
        match self {
            Self::Gates => gate(job),
            Self::Native => {
                gate(job);
                let pod = object(object(object(job, "spec"), "template"), "spec");
                pod["workloadRef"] = json!({ "name": name, "podGroup": POD_GROUP });
            }
            Self::Kueue { queue } => {
                object(object(job, "metadata"), "labels")[KUEUE_QUEUE] = json!(queue);
                job["spec"]["suspend"] = json!(true);
            }
            Self::Volcano { .. } => {
                let template = object(object(job, "spec"), "template");
                object(object(template, "metadata"), "annotations")[VOLCANO_GROUP] = name;
                object(template, "spec")["schedulerName"] = json!("volcano");
            }
        }
    }

    /// Who is to be looked to for why it waits.
    fn word(&self) -> &'static str {
        match self {
            Self::Gates | Self::Native => "gates",
            Self::Kueue { .. } => "kueue",
            Self::Volcano { .. } => "volcano",
        }
    }

    /// The object beside the Job that says how many pods belong together, if there is one: made after the Job, which owns it.
    /// Pods are not placed before it is there.
    pub(crate) fn companion(&self, job: &Value) -> Option<Value> {
        let size = &job["spec"]["completions"];
        let mut companion = match self {
            Self::Gates | Self::Kueue { .. } => return None,
            Self::Native => json!({
                "apiVersion": "scheduling.k8s.io/v1alpha1",
                "kind": "Workload",
                "spec": { "podGroups": [{ "name": POD_GROUP, "policy": { "gang": { "minCount": size } } }] },
            }),
            Self::Volcano { queue } => json!({
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "PodGroup",
                "spec": { "minMember": size, "queue": queue },
            }),
        };
        if let (Self::Volcano { .. }, Some(class)) =
            (self, job["spec"]["template"]["spec"].get("priorityClassName"))
        {
            companion["spec"]["priorityClassName"] = class.clone();
        }
        let from = &job["metadata"];
        companion["metadata"] = json!({
            "name": from["name"],
            "namespace": from["namespace"],
            "labels": from["labels"],
            "ownerReferences": [{
                "apiVersion": "batch/v1", "kind": "Job", "name": from["name"], "uid": from["uid"], "blockOwnerDeletion": false,
            }],
        });
        Some(companion)
    }
}

fn gate(job: &mut Value) {
    let pod = object(object(object(job, "spec"), "template"), "spec");
    let gates = pod.as_object_mut().map(|pod| pod.entry("schedulingGates").or_insert_with(|| json!([])));
    // The user's own gates are for the user to remove.
    if let Some(Value::Array(gates)) = gates
        && !gates.iter().any(|gate| gate["name"] == GATE)
    {
        gates.push(json!({ "name": GATE }));
    }
}

/// The object in a field, made if it is not there.
fn object<'a>(value: &'a mut Value, field: &str) -> &'a mut Value {
    let inner = &mut value[field];
    if !inner.is_object() {
        *inner = Value::Object(Map::new());
    }
    inner
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Value {
        json!({
            "metadata": { "name": "m-1", "namespace": "ns", "uid": "u", "labels": { "muster.dev/job": "1" } },
            "spec": { "completions": 4, "template": { "spec": { "schedulingGates": [{ "name": "example.com/own" }] } } },
        })
    }

    #[test]
    fn who_places_a_gang_follows_from_what_is_served_and_asked_for() {
        let none = Served::default();
        let native = Served::of([("apps", "v1")], &["workloads", "workloads/status"]);
        let both = Served::of([("kueue.x-k8s.io", "v1beta2"), ("scheduling.volcano.sh", "v1beta1")], &[]);
        let volcano = Served { volcano: true, ..none.clone() };
        let kueue = |queue: &str| Ok(Gathering::Kueue { queue: queue.into() });
        let of_volcano = |queue: &str| Ok(Gathering::Volcano { queue: queue.into() });
        assert_eq!(none.gathering(None), Ok(Gathering::Gates));
        assert_eq!(native.gathering(None), Ok(Gathering::Native));
        assert_eq!(both.gathering(None), Ok(Gathering::Gates));
        assert_eq!(both.gathering(Some("q")), kueue("q"));
        assert_eq!(both.gathering(Some("volcano/q")), of_volcano("q"));
        assert_eq!(volcano.gathering(Some("q")), of_volcano("q"));
        for (served, queue) in
            [(&none, "q"), (&volcano, "kueue/q"), (&native, "volcano/q"), (&both, "slurm/q")]
        {
            served.gathering(Some(queue)).unwrap_err();
        }
        assert!(
            !Served::of([], &["workloads", "podgroups"]).native,
            "a later shape is not taken for this one"
        );
    }

    #[test]
    fn a_job_says_who_places_it_and_keeps_what_it_said_before() {
        let adorned = |gathering: &Gathering| {
            let mut job = job();
            gathering.adorn(&mut job);
            let before = job.clone();
            gathering.adorn(&mut job);
            assert_eq!(job, before, "done twice it is the same");
            job
        };
        let gates = adorned(&Gathering::Gates);
        let names = json!([{ "name": "example.com/own" }, { "name": GATE }]);
        assert_eq!(gates["spec"]["template"]["spec"]["schedulingGates"], names);
        assert_eq!(gates["metadata"]["annotations"][GATHERING], "gates");
        assert_eq!(Gathering::Gates.companion(&gates), None);

        let native = adorned(&Gathering::Native);
        let pod = &native["spec"]["template"]["spec"];
        assert_eq!(pod["schedulingGates"], names);
        assert_eq!(pod["workloadRef"], json!({ "name": "m-1", "podGroup": "gang" }));
        let companion = Gathering::Native.companion(&native).unwrap();
        assert_eq!(companion["spec"]["podGroups"][0]["policy"]["gang"]["minCount"], 4);
        assert_eq!(companion["metadata"]["ownerReferences"][0]["uid"], "u");

        let kueue = adorned(&Gathering::Kueue { queue: "q".into() });
        assert_eq!(
            (&kueue["spec"]["suspend"], &kueue["metadata"]["labels"][KUEUE_QUEUE]),
            (&json!(true), &json!("q"))
        );

        let gathering = Gathering::Volcano { queue: "q".into() };
        let volcano = adorned(&gathering);
        let template = &volcano["spec"]["template"];
        assert_eq!(template["metadata"]["annotations"][VOLCANO_GROUP], "m-1");
        assert_eq!(template["spec"]["schedulerName"], "volcano");
        let companion = gathering.companion(&volcano).unwrap();
        assert_eq!(companion["spec"], json!({ "minMember": 4, "queue": "q" }));
    }
}
