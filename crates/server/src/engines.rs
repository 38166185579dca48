//! The engines this server was given, by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_engine::{Engine, Family};

/// Every registered engine.
pub struct Engines(BTreeMap<&'static str, Arc<dyn Engine>>);

impl Engines {
    /// Registers engines under the names they give themselves.
    pub fn new(engines: Vec<Arc<dyn Engine>>) -> Self {
        Self(engines.into_iter().map(|engine| (engine.capabilities().name, engine)).collect())
    }

    /// The engine of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Engine>> {
        self.0.get(name)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Engine>> {
        self.0.values()
    }

    /// The names of those whose nodes are ours.
    pub fn fleets(&self) -> Vec<&'static str> {
        let fleets =
            self.iter().map(|engine| engine.capabilities()).filter(|one| one.family == Family::Fleet);
        fleets.map(|one| one.name).collect()
    }

    /// Their names.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.keys().copied().collect()
    }
}
