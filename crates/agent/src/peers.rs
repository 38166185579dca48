//! What a task needs so that the other members of its gang can start processes in it, and it in them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use muster_model::launch::Peers;
use muster_ssh::door::{Door, Error};

use crate::environment;
use crate::record::TaskDir;
use crate::supervisor::{Step, StepKind};

/// A task's part in the ssh of its gang.
pub(crate) struct Way {
    /// The server, beside the task's command.
    pub(crate) server: Step,
    door: Door,
}

/// Makes it ready. `own` is the task's address.
pub(crate) fn open(dir: &TaskDir, peers: &Peers, own: IpAddr, exe: &Path) -> Result<Way, Error> {
    let place = dir.path().join("ssh");
    let door = Door::make(&place, peers, own, &environment::account().name)?;
    let words = [exe, Path::new("ssh-server"), &place];
    let argv = words.iter().map(|word| word.display().to_string()).collect();
    Ok(Way { server: Step { kind: StepKind::Companion, argv }, door })
}

impl Way {
    /// Tells programs of it. An ordinary `ssh` finds its peers since the one on the `PATH` brings its configuration along;
    /// those that look for one elsewhere are told.
    pub(crate) fn tell(&self, env: &mut BTreeMap<String, String>) {
        let (bin, config) = (self.door.bin(), self.door.config_file());
        let path = env.get("PATH").map_or_else(String::new, |path| format!(":{path}"));
        env.insert("PATH".into(), format!("{}{path}", bin.display()));
        env.insert("MUSTER_SSH_CONFIG".into(), config.display().to_string());
        env.insert("OMPI_MCA_plm_rsh_agent".into(), bin.join("ssh").display().to_string());
        env.entry("PDSH_RCMD_TYPE".into()).or_insert_with(|| "ssh".into());
        env.insert("PDSH_SSH_ARGS_APPEND".into(), format!("-F {}", config.display()));
    }
}
