//! Hears from Kueue and Volcano why gangs wait that were given to them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use futures::{StreamExt, pin_mut};
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use muster_engine::Wait;

use super::words::Queue;

/// Why gangs wait, by the name of their Job, which says whose it is in every namespace.
#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<BTreeMap<String, Wait>>);

impl Waits {
    /// Why this one does; nothing where it does not, or is not known.
    pub(crate) fn get(&self, id: &str) -> Option<Wait> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    fn set(&self, id: &str, wait: Option<Wait>) {
        let mut waits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match wait {
            Some(wait) => drop(waits.insert(id.to_owned(), wait)),
            None => drop(waits.remove(id)),
        }
    }

    /// Keeps them for a namespace, until it is dropped.
    pub(crate) async fn keep(&self, client: Client, namespace: &str, queue: Queue, resource: &ApiResource) {
        let api = Api::<DynamicObject>::namespaced_with(client, namespace, resource);
        let events = watcher(api, watcher::Config::default()).default_backoff();
        pin_mut!(events);
        // What is not in a list any more is gone; its name says whose it was.
        let mut known: HashMap<String, String> = HashMap::new();
        let mut listed: HashMap<String, String> = HashMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Apply(object)) => self.hear(queue, &object, &mut known),
                Ok(watcher::Event::InitApply(object)) => self.hear(queue, &object, &mut listed),
                Ok(watcher::Event::Delete(object)) => {
                    known.remove(&object.name_any()).inspect(|id| self.set(id, None));
                }
                Ok(watcher::Event::Init) => listed.clear(),
                Ok(watcher::Event::InitDone) => {
                    let listed = std::mem::take(&mut listed);
                    known
                        .values()
                        .filter(|id| !listed.values().any(|there| there == *id))
                        .for_each(|id| self.set(id, None));
                    known = listed;
                }
                Err(error) => tracing::debug!(namespace, %error, "why gangs wait in queues is not heard"),
            }
        }
    }

    fn hear(&self, queue: Queue, object: &DynamicObject, known: &mut HashMap<String, String>) {
        let Ok(value) = serde_json::to_value(object) else { return };
        let Some(job) = queue.job(&value) else { return };
        self.set(job, queue.wait(&value));
        known.insert(object.name_any(), job.to_owned());
    }
}
