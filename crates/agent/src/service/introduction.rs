//! Telling a task that runs who its peers are now, where these come and go.
//!
//! One file is written at a time for each task, so that what was said last is what stays.

use std::collections::btree_map::Entry;

use muster_model::TaskId;
use muster_model::launch::Peers;

use super::{Event, Service};
use crate::{disk, peers};

impl Service {
    pub(super) fn on_peers(&mut self, id: TaskId, peers: Peers) {
        // One that does not run yet learns it with its launch.
        let running = self.tasks.get(&id).filter(|task| task.life.running_since().is_some());
        let known = running.map(|task| (task.dir.clone(), task.record.account().cloned()));
        let Some((dir, account)) = known else { return };
        match self.introducing.entry(id.clone()) {
            Entry::Occupied(mut waiting) => drop(waiting.insert(Some(peers))),
            Entry::Vacant(none) => {
                none.insert(None);
                self.work.spawn(async move {
                    if let Err(error) = disk::work(move || peers::renew(&dir, &peers, account.as_ref())).await
                    {
                        tracing::warn!(task = %id, error = %error, "a task could not be told of its peers");
                    }
                    Event::Introduced { task: id }
                });
            }
        }
    }

    pub(super) fn on_introduced(&mut self, id: TaskId) {
        if let Some(peers) = self.introducing.remove(&id).flatten() {
            self.on_peers(id, peers);
        }
    }
}
