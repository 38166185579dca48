//! What a task needs of a node, and whom and what a node serves.

use std::collections::BTreeMap;

use muster_model::quantity::DeviceRequest;
use muster_model::spec::JobSpec;

/// What one task claims. One that asks for nothing takes a slot.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Need {
    /// CPUs in thousandths.
    pub cpu_millis: u64,
    /// Memory.
    pub memory_bytes: u64,
    /// Accelerators, each whole.
    pub devices: Option<DeviceRequest>,
    /// A node with nothing else on it, and all of its devices.
    pub exclusive: bool,
    /// The account that it must run under; an empty one where nobody has said which that is, and nothing can run.
    pub account: Option<String>,
    /// The volumes that it must have.
    pub volumes: Vec<String>,
}

impl From<&JobSpec> for Need {
    fn from(spec: &JobSpec) -> Self {
        let resources = &spec.resources;
        Self {
            cpu_millis: resources.cpu_millis(),
            memory_bytes: resources.memory.unwrap_or(0),
            devices: resources.gpus.clone(),
            exclusive: spec.exclusive,
            ..Self::default()
        }
    }
}

impl Need {
    /// A task that claims CPUs or devices is bounded by those; any other by the node's slots.
    pub(crate) fn slots(&self) -> u32 {
        u32::from(self.cpu_millis == 0 && self.devices.is_none())
    }

    pub(crate) fn device_count(&self) -> usize {
        self.devices.as_ref().map_or(0, |request| request.count as usize)
    }
}

/// Whom and what a node serves.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Serves {
    /// The only account whose tasks it runs; everybody's, if absent.
    pub only: Option<String>,
    /// The volumes that tasks cannot have there, and why; none if that is not known yet.
    pub lacks: Option<BTreeMap<String, String>>,
}

impl Serves {
    /// Whether a task can be there, as far as that is not a matter of room. What is not known yet may be.
    pub fn may_serve(&self, need: &Need) -> bool {
        self.obstacle(need).is_none()
    }

    pub(crate) fn serves(&self, need: &Need) -> bool {
        self.obstacle(need).is_none() && (need.volumes.is_empty() || self.lacks.is_some())
    }

    /// What keeps a task from being there.
    pub fn obstacle(&self, need: &Need) -> Option<String> {
        if need.account.as_deref() == Some("") {
            return Some("no admin has said which account of the machines its user has".into());
        }
        if let (Some(only), Some(wanted)) = (&self.only, &need.account)
            && only != wanted
        {
            return Some(format!(
                "its agent is not root's and runs tasks of `{only}` alone, not of `{wanted}`"
            ));
        }
        let lacks = self.lacks.as_ref()?;
        need.volumes.iter().find_map(|name| Some(format!("volume `{name}`: {}", lacks.get(name)?)))
    }
}
