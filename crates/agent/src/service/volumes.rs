//! Telling the server which volumes tasks can have here.

use std::collections::BTreeMap;
use std::io;

use muster_link::message::{ToServer, Volume};

use super::{Event, Service};
use crate::{disk, volume};

/// What the server wants tasks to have, and what it was told of that.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    wanted: Vec<Volume>,
    lacks: Option<BTreeMap<String, String>>,
    is_watching: bool,
}

impl Service {
    /// A server that has just come has heard nothing yet.
    pub(super) fn look_for(&mut self, wanted: Vec<Volume>) {
        self.volumes.lacks = None;
        self.volumes.wanted = wanted;
        self.look();
        if !self.volumes.wanted.is_empty() && !std::mem::replace(&mut self.volumes.is_watching, true) {
            self.watch_mounts();
        }
    }

    /// Looking at a file server that is away may take long.
    fn look(&mut self) {
        let wanted = self.volumes.wanted.clone();
        self.work.spawn(async move {
            match disk::work(move || Ok::<_, io::Error>(volume::lacks(&wanted))).await {
                Ok(lacks) => Event::Volumes(lacks),
                Err(error) => {
                    tracing::warn!(error = %error, "volumes cannot be looked for");
                    Event::Nothing
                }
            }
        });
    }

    fn watch_mounts(&mut self) {
        self.work.spawn(async {
            match volume::mounts_changed().await {
                Ok(()) => Event::Mounted,
                Err(error) => {
                    tracing::warn!(error = %error, "what is mounted from now on is seen at the next connection");
                    Event::Nothing
                }
            }
        });
    }

    pub(super) fn on_mounted(&mut self) {
        self.watch_mounts();
        self.look();
    }

    pub(super) fn on_volumes(&mut self, lacks: BTreeMap<String, String>) {
        if self.volumes.lacks.as_ref() != Some(&lacks) {
            self.volumes.lacks = Some(lacks.clone());
            self.answers.push_back(ToServer::Volumes { lacks });
        }
    }
}
