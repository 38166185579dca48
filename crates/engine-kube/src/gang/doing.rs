//! Does what [`super::plan`] decides: removes gates, suspends Jobs and resumes them, and nothing else.
//!
//! Each of these may be done twice, and whoever is killed in between leaves nothing that the next one does not see: a gang of
//! which some gates are gone is gone on with, and what is remembered about a gang that was taken back is on its Job.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use muster_engine::Wait;
use muster_model::Timestamp;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::gathering::{GATE, NOT_BEFORE, TAKEN_BACK};
use super::ground::{Ground, Tenant};
use super::needs::Node;
use super::plan::{self, Memory, Plan, Step};
use super::view::{Done, Gang};

/// How long one call may take. Who gets no answer looks again, and what was done after all is seen.
const CALL: Duration = Duration::from_secs(15);
/// Calls that are under way at once: a gang is opened in a few turns, and an API server shares fairly.
const PODS_AT_ONCE: usize = 16;
const GANGS_AT_ONCE: usize = 8;
/// Before what failed is tried again.
const AGAIN: Duration = Duration::from_secs(2);

/// The gates of a cluster.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    ground: Mutex<Ground>,
    inner: Mutex<Inner>,
    /// Says that the ground has changed.
    moved: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    memory: Memory,
    done: Done,
    waits: BTreeMap<String, Wait>,
}

impl Gates {
    /// A node is there, or looks another way, or is gone.
    pub(crate) fn set_node(&self, name: &str, node: Option<Node>) {
        self.ground().set_node(name, node);
        self.moved.notify_one();
    }

    /// A pod of anybody's has a place, or has none any more.
    pub(crate) fn set_tenant(&self, uid: &str, tenant: Option<Tenant>) {
        self.ground().set_tenant(uid, tenant);
        self.moved.notify_one();
    }

    /// Returns when the ground has changed.
    pub(crate) async fn moved(&self) {
        self.moved.notified().await;
    }

    /// Why a gang waits, by the name of its Job, which says whose it is in every namespace.
    pub(crate) fn wait(&self, job: &str) -> Option<Wait> {
        let inner = self.inner();
        inner.waits.iter().find(|(id, _)| id.rsplit('/').next() == Some(job)).map(|(_, wait)| wait.clone())
    }

    /// Decides about these gangs, which are all that there are of ours, and does it; `sees` is whether the ground is known.
    /// Says when to look again though nothing has changed.
    pub(crate) async fn look(&self, client: &Client, gangs: &[Gang], sees: bool) -> Option<Timestamp> {
        let now = Timestamp::now();
        let plan = self.decide(gangs, sees, now);
        let find = |id: &str| gangs.iter().find(|gang| gang.id() == id).cloned();
        let steps: Vec<(Step, Gang)> =
            plan.steps.iter().filter_map(|step| Some((step.clone(), find(step.id())?))).collect();
        let doing = steps.into_iter().map(|(step, gang)| async move {
            let done = perform(client, &step, &gang).await;
            (step, gang, done)
        });
        let done: Vec<_> = stream::iter(doing).buffer_unordered(GANGS_AT_ONCE).collect().await;
        let mut again_at = plan.again_at;
        for (step, gang, done) in done {
            let Err(error) = done else { continue };
            tracing::warn!(gang = step.id(), ?step, %error, "a gang's gates could not be seen to");
            let mut inner = self.inner();
            inner.done.failed(&gang);
            inner.waits.insert(step.id().to_owned(), failing(&error));
            let soon = now + AGAIN;
            again_at = Some(again_at.map_or(soon, |at| at.min(soon)));
        }
        again_at
    }

    fn decide(&self, gangs: &[Gang], sees: bool, now: Timestamp) -> Plan {
        let mut ground = self.ground();
        let mut ground = sees.then_some(&mut *ground);
        let mut inner = self.inner();
        let inner = &mut *inner;
        let seen = inner.done.seen(gangs, ground.as_deref_mut(), now);
        let mut plan = plan::decide(&seen, ground, &mut inner.memory, now);
        for step in &plan.steps {
            let Some(gang) = gangs.iter().find(|gang| gang.id() == step.id()) else { continue };
            match step {
                Step::Open(_) => inner.done.opens(gang, now),
                Step::TakeBack { .. } => inner.done.suspends(gang, true, now),
                Step::Resume(_) => inner.done.suspends(gang, false, now),
            }
        }
        inner.waits = std::mem::take(&mut plan.waits);
        plan
    }

    fn ground(&self) -> MutexGuard<'_, Ground> {
        self.ground.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn perform(client: &Client, step: &Step, gang: &Gang) -> Result<(), kube::Error> {
    let (namespace, name) = (gang.job.namespace.as_str(), gang.job.name.as_str());
    tracing::info!(gang = step.id(), ?step, "a gang");
    match step {
        Step::Open(_) => open(client, gang).await,
        Step::TakeBack { times, not_before, .. } => {
            let annotations = json!({ TAKEN_BACK: times.to_string(), NOT_BEFORE: not_before.to_string() });
            let words = json!({ "metadata": { "annotations": annotations }, "spec": { "suspend": true } });
            patch(&Api::<Job>::namespaced(client.clone(), namespace), name, &Patch::Merge(words)).await
        }
        Step::Resume(_) => {
            let words = json!({ "spec": { "suspend": false } });
            patch(&Api::<Job>::namespaced(client.clone(), namespace), name, &Patch::Merge(words)).await
        }
    }
}

/// Removes our gate from every pod that has it. It is named in the words, so that gates of others stay, and a pod without it
/// is left as it is.
async fn open(client: &Client, gang: &Gang) -> Result<(), kube::Error> {
    let pods = Api::<Pod>::namespaced(client.clone(), &gang.job.namespace);
    let words = json!({ "spec": { "schedulingGates": [{ "$patch": "delete", "name": GATE }] } });
    let names: Vec<String> = gang.gated().map(|pod| pod.name.clone()).collect();
    let calls = names.into_iter().map(|name| {
        let (pods, words) = (pods.clone(), Patch::Strategic(words.clone()));
        async move { patch(&pods, &name, &words).await }
    });
    stream::iter(calls).buffer_unordered(PODS_AT_ONCE).try_collect().await
}

/// What is gone needs nothing any more.
async fn patch<K>(api: &Api<K>, name: &str, words: &Patch<Value>) -> Result<(), kube::Error>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let parameters = PatchParams::default();
    let call = api.patch_metadata(name, &parameters, words);
    match tokio::time::timeout(CALL, call).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(()),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(kube::Error::Service("the API server has not answered in time".into())),
    }
}

fn failing(error: &kube::Error) -> Wait {
    let summary = match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    };
    Wait {
        code: "scheduler",
        summary: format!("its pods cannot be let go: {summary}"),
        help: Some("the server needs the rights of its manifest: patch on pods and jobs".to_owned()),
        starts_at: None,
    }
}
