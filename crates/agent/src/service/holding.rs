//! What is held for tasks, from the moment they need it to the moment they do not: addresses, watches, shipments.

use std::io;
use std::path::Path;
use std::sync::Arc;

use muster_link::dial::Server;
use muster_link::message::ToServer;
use muster_model::TaskId;
use rustix::fs::inotify::WatchFlags;

use super::life::{Life, Phase};
use super::table::Task;
use super::{Event, Place, Service};
use crate::record::{self, Ended, Found, Record, TaskDir};
use crate::ship::ship;
use crate::start::{self, Watch};

/// How long a task has to end whose record is damaged.
const DAMAGED_GRACE_MS: u64 = 10_000;

impl Service {
    /// Take up the tasks of the last agent.
    pub(super) fn resume(&mut self, is_new_boot: bool) -> io::Result<()> {
        let tasks_dir = self.hands.tasks_dir().to_owned();
        for id in record::scan(&tasks_dir)? {
            let dir = TaskDir::new(&tasks_dir, &id);
            if dir.is_damaged() {
                tracing::error!(task = %id, "a record is damaged; its task is stopped");
                let ended = dir.contents().ok().and_then(|contents| contents.ended);
                self.resume_task(&id, dir, Record::damaged(id.clone()), ended, is_new_boot);
                continue;
            }
            if !dir.is_remembered() {
                continue;
            }
            match dir.read() {
                Ok(Found::Task(record, ended)) => self.resume_task(&id, dir, *record, ended, is_new_boot),
                Ok(Found::Forgotten(_) | Found::Nothing) => {}
                // The server will miss it and say what is to become of it.
                Err(error) => {
                    tracing::error!(task = %id, error = %error, "a record cannot be read and is left alone")
                }
            }
        }
        Ok(())
    }

    fn resume_task(
        &mut self,
        id: &TaskId,
        dir: TaskDir,
        record: Record,
        ended: Option<Ended>,
        is_new_boot: bool,
    ) {
        let was_launched = dir.was_launched();
        let phase = match &ended {
            Some(ended) => Phase::Ended(Box::new(ended.clone())),
            None if was_launched && !is_new_boot => Phase::Launching,
            None => Phase::Preparing,
        };
        let mut life = Life::resume(phase).with_outputs(!record.prepare.outputs.is_empty());
        if life.is_live() {
            if let Some(address) = &record.address {
                self.ledger.hold(id, address);
            }
            if is_new_boot {
                life.refuse(self.hands.node_lost());
            }
            if record.is_damaged {
                life.on_stop(DAMAGED_GRACE_MS, "the node's record of it is damaged");
            }
        }
        self.tasks.insert(id.clone(), Task::new(id, dir, record, life));
        self.watch(id);
        if was_launched {
            self.ship(id);
        }
        if let Some(ended) = ended
            && let Some(task) = self.tasks.get(id)
        {
            task.log.ended(ended.end.log_bytes.unwrap_or(0));
        }
        self.advance(id);
    }

    /// Be told when the server's socket is made anew.
    pub(super) fn watch_server(&mut self) {
        if let Server::Unix(socket) | Server::Posted(socket) = &self.options.server {
            let dir = socket.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
            self.files.add(dir, WatchFlags::CREATE | WatchFlags::MOVED_TO, Place::Server);
        }
    }

    /// Be told of what happens to a live task.
    pub(super) fn watch(&mut self, id: &TaskId) {
        if let Some(task) = self.tasks.get(id).filter(|task| task.life.is_live()) {
            self.files.add(task.dir.path(), WatchFlags::MOVED_TO, Place::Task(id.clone()));
            self.logs.add(task.dir.log().path(), WatchFlags::MODIFY | WatchFlags::CREATE, id.clone());
        }
    }

    /// Be told when a task's supervisor is gone.
    pub(super) fn await_supervisor(&mut self, id: &TaskId, supervisor: Watch) {
        let Some(task) = self.tasks.change(id) else { return };
        task.is_awaited = true;
        let task = id.clone();
        self.work.spawn(async move {
            if let Err(error) = start::gone(supervisor).await {
                tracing::warn!(task = %task, error = %error, "a supervisor cannot be waited for");
                return Event::Nothing;
            }
            Event::SupervisorGone { task }
        });
    }

    /// Begin to ship a task's log.
    pub(super) fn ship(&mut self, id: &TaskId) {
        if let Some(task) = self.tasks.change(id)
            && task.shipping.is_none()
        {
            let shipment = ship(Arc::clone(&task.log), self.hands.bulk());
            let shipment = async {
                shipment.await;
                Event::Nothing
            };
            task.shipping = Some(self.work.spawn(shipment));
        }
    }

    /// Nothing of the task is left running.
    pub(super) fn on_ended(&mut self, id: &TaskId, log_bytes: Option<u64>) {
        self.ledger.release(id);
        self.files.remove(&Place::Task(id.clone()));
        self.logs.remove(id);
        if let Some(task) = self.tasks.get(id) {
            task.log.ended(log_bytes.unwrap_or(0));
        }
    }

    /// Remove what is old. One pass at a time; whoever asks during one gets the next.
    pub(super) fn collect(&mut self, asked: bool) {
        if self.collecting {
            self.collect_again = Some(asked || self.collect_again == Some(true));
            return;
        }
        self.collecting = true;
        let live = self.tasks.iter().filter(|task| task.life.is_live());
        let needed = live.filter_map(|task| task.record.prepare.previous.clone()).collect();
        let pass = self.hands.collect(self.keep.clone(), needed, asked);
        self.work.spawn(pass);
    }

    pub(super) fn on_collected(&mut self, bytes: u64, asked: bool) {
        self.collecting = false;
        if asked {
            self.answers.push_back(ToServer::Collected { bytes });
        }
        if let Some(asked) = self.collect_again.take() {
            self.collect(asked);
        }
    }

    /// Nothing of the task is left at all, or nothing that is the agent's.
    pub(super) fn drop_task(&mut self, id: &TaskId) {
        if let Some(task) = self.tasks.remove(id)
            && let Some(shipping) = task.shipping
        {
            shipping.abort();
        }
    }
}
