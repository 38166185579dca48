//! The processes of a task where muster starts them itself, and what a command needs to know of its gang.

use std::collections::BTreeMap;

use muster_model::launch::{Process, Work};

use crate::base::process_variables;
use crate::{Gang, Part, Port};

pub(super) use crate::base::Slot;

/// What of a gang goes into a command's words. Before there is a gang, the variables that will say it stand for it.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// Where rank 0 is.
    pub address: String,
    /// Where it gathers the others.
    pub port: String,
    /// Where members start processes on each other.
    pub ssh_port: String,
    /// The task.
    pub rank: String,
}

impl Place {
    /// Stands for a place that is not known yet.
    pub fn unknown() -> Self {
        let name = str::to_owned;
        Self {
            address: name("$MASTER_ADDR"),
            port: name("$MASTER_PORT"),
            ssh_port: name("$MUSTER_SSH_PORT"),
            rank: name("$MUSTER_RANK"),
        }
    }

    /// A member's.
    pub fn of(gang: &Gang, rank: u32) -> Self {
        let first = &gang.members[0];
        Self {
            address: first.ip().to_string(),
            port: first.port(Port::Master).to_string(),
            ssh_port: first.port(Port::Ssh).to_string(),
            rank: rank.to_string(),
        }
    }
}

/// Every process of the gang, by rank: the task it belongs to, and its number there.
pub(super) fn slots(gang: &Gang, locals: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..gang.members.len() as u32).flat_map(move |task| (0..locals).map(move |local| (task, local)))
}

/// Where each process of the gang listens, by rank.
pub(super) fn endpoints(gang: &Gang, locals: u32) -> Vec<String> {
    let endpoint = |(task, local): (u32, u32)| {
        let member = &gang.members[task as usize];
        host_port(member.ip(), member.port(Port::Process(local)))
    };
    slots(gang, locals).map(endpoint).collect()
}

/// An address and a port as one word.
pub(super) fn host_port(ip: std::net::IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(ip, port).to_string()
}

/// Starts so many of the task's command, each with variables of its own. A process that is alone in its task shares
/// them with it, so that what it starts by other ways knows them, too.
pub(super) fn spread(
    gang: &Gang,
    locals: u32,
    task: u32,
    part: &mut Part,
    each: impl Fn(Slot) -> BTreeMap<String, String>,
) {
    let Work::Run(processes) = &part.work else { return };
    let Some(model) = processes.first().cloned() else { return };
    let slot = |local| Slot::new(task, gang.members.len() as u32, local, locals);
    if locals == 1 {
        part.env.extend(each(slot(0)));
        return;
    }
    let process = |local| {
        let slot = slot(local);
        let mut env = each(slot);
        env.extend(process_variables(slot));
        Process { env, ..model.clone() }
    };
    part.work = Work::Run((0..locals).map(process).collect());
}

/// Variables from their names and values.
pub(super) fn variables<const N: usize>(pairs: [(&str, String); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
