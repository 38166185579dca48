//! What a task needs so that the other members of its gang can start processes in it, and it in them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use muster_model::launch::Peers;
use muster_model::node::Account;
use muster_ssh::gang::{AGENT, Error, Gang};

use crate::environment;
use crate::record::TaskDir;

/// A task's part in the ssh of its gang.
pub(crate) struct Way {
    /// Where the others come in.
    pub(crate) address: SocketAddr,
    gang: Gang,
}

/// Makes it ready for the member with this rank; none if there is no such member.
pub(crate) fn open(
    dir: &TaskDir,
    peers: &Peers,
    rank: u32,
    account: Option<&Account>,
) -> Result<Option<Way>, Error> {
    let Some(own) = peers.members.get(rank as usize) else { return Ok(None) };
    let (name, owner) = known(account);
    let gang = Gang::make(&dir.path().join("ssh"), peers, &name, owner)?;
    Ok(Some(Way { address: SocketAddr::new(own.ip, own.port), gang }))
}

/// Tells a task that runs who is there now. One whose peers do not come in has nothing to be told.
pub(crate) fn renew(dir: &TaskDir, peers: &Peers, account: Option<&Account>) -> Result<(), Error> {
    let (name, owner) = known(account);
    Gang::renew(&dir.path().join("ssh"), peers, &name, owner)
}

/// What a member is called, and whose its files are where they are not the agent's.
fn known(account: Option<&Account>) -> (String, Option<(u32, u32)>) {
    match account {
        Some(account) => (account.name.clone(), Some((account.uid, account.gid))),
        None => (environment::account().name, None),
    }
}

impl Way {
    /// Tells programs of it. An ordinary `ssh` finds its peers since the one on the `PATH` brings its configuration along;
    /// those that look for one elsewhere are told.
    pub(crate) fn tell(&self, env: &mut BTreeMap<String, String>) {
        let (bin, config) = (self.gang.bin(), self.gang.config_file());
        let path = env.get("PATH").map_or_else(String::new, |path| format!(":{path}"));
        env.insert("PATH".into(), format!("{}{path}", bin.display()));
        env.insert("MUSTER_SSH_CONFIG".into(), config.display().to_string());
        for name in ["OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"] {
            env.insert(name.into(), AGENT.into());
        }
        // It is taken apart at blanks, and can be done without: the PATH leads to the same.
        let is_word = |path: &Path| !path.display().to_string().contains(char::is_whitespace);
        env.entry("PDSH_RCMD_TYPE".into()).or_insert_with(|| "ssh".into());
        if is_word(&config) {
            let own = env.get("PDSH_SSH_ARGS_APPEND").map_or_else(String::new, |own| format!("{own} "));
            env.insert("PDSH_SSH_ARGS_APPEND".into(), format!("{own}-F {}", config.display()));
        }
    }
}
