//! What a task needs so that the other members of its gang can start processes in it, and it in them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use muster_model::launch::Peers;
use muster_ssh::gang::{Error, Gang};

use crate::environment;
use crate::record::TaskDir;

/// A task's part in the ssh of its gang.
pub(crate) struct Way {
    /// Where the others come in.
    pub(crate) address: SocketAddr,
    gang: Gang,
}

/// Makes it ready. `own` is the task's address.
pub(crate) fn open(dir: &TaskDir, peers: &Peers, own: IpAddr) -> Result<Way, Error> {
    let gang = Gang::make(&dir.path().join("ssh"), peers, &environment::account().name)?;
    let port = peers.members.iter().find(|peer| peer.ip == own).map_or(0, |peer| peer.port);
    Ok(Way { address: SocketAddr::new(own, port), gang })
}

impl Way {
    /// Tells programs of it. An ordinary `ssh` finds its peers since the one on the `PATH` brings its configuration along;
    /// those that look for one elsewhere are told.
    pub(crate) fn tell(&self, env: &mut BTreeMap<String, String>) {
        let (bin, config) = (self.gang.bin(), self.gang.config_file());
        let path = env.get("PATH").map_or_else(String::new, |path| format!(":{path}"));
        env.insert("PATH".into(), format!("{}{path}", bin.display()));
        env.insert("MUSTER_SSH_CONFIG".into(), config.display().to_string());
        env.insert("OMPI_MCA_plm_rsh_agent".into(), bin.join("ssh").display().to_string());
        env.entry("PDSH_RCMD_TYPE".into()).or_insert_with(|| "ssh".into());
        env.insert("PDSH_SSH_ARGS_APPEND".into(), format!("-F {}", config.display()));
    }
}
