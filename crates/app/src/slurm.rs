//! `[slurm]` of `config.toml`: a cluster that Slurm schedules.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use muster_engine::pod::PATIENCE;
use muster_engine::slurm::{GATE_IDLE, Options, Wishes};
use muster_engine::ssh;
use muster_model::pool::{HostSpec, PoolSpec};
use muster_model::quantity;
use serde::Deserialize;

/// What muster itself says to `sbatch`, and has to: it finds its jobs by it.
const OWN: [&str; 9] = [
    "--array",
    "--comment",
    "--parsable",
    "--nodes",
    "--ntasks",
    "--ntasks-per-node",
    "--requeue",
    "--export",
    "--wrap",
];

/// `[slurm]`
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slurm {
    /// The login node, as ssh takes it; this machine, if absent.
    login: Option<String>,
    /// The port of its sshd.
    port: Option<u16>,
    /// The private key to show it.
    key: Option<String>,
    /// Whom jobs run as, where the server is root's.
    user: Option<String>,
    /// The directory there that compute nodes see, too.
    directory: Option<String>,
    /// Where compute nodes reach the login node.
    address: Option<String>,
    /// Where Slurm's programs are.
    programs: Option<String>,
    /// Its `slurm.conf`, where logins do not have `SLURM_CONF`.
    conf: Option<String>,
    /// How long agents keep their nodes for a server that is away.
    patience: Option<String>,
    account: Option<String>,
    qos: Option<String>,
    constraint: Option<String>,
    exclude: Option<String>,
    /// Anything else for `sbatch`.
    #[serde(default)]
    options: Vec<String>,
}

impl Slurm {
    /// Everything that can be wrong without asking the cluster. Much of it ends up in a line of shell.
    pub fn check(&self) -> anyhow::Result<()> {
        if let Some(login) = &self.login {
            let spec = HostSpec {
                destination: login.clone(),
                port: self.port,
                key: self.key.clone(),
                address: None,
            };
            let alone = PoolSpec { name: "slurm".into(), hosts: vec![spec], shared: None };
            let wrong = alone.check();
            ensure!(
                wrong.is_empty(),
                "slurm.login: {}",
                wrong.first().map_or("", |error| error.message.as_str())
            );
        }
        for (name, value) in
            [("directory", &self.directory), ("programs", &self.programs), ("conf", &self.conf)]
        {
            let is_path = |text: &str| {
                let text = if name == "directory" { text.replace("{account}", "a") } else { text.to_owned() };
                (text.starts_with('/') || text.starts_with("~/") && name == "directory")
                    && text.chars().all(is_plain)
            };
            ensure!(
                value.as_deref().is_none_or(is_path),
                "slurm.{name}: must be an absolute path of plain letters, as /shared/ada/muster"
            );
        }
        self.patience().context("slurm.patience")?;
        for (name, value) in [("address", &self.address), ("user", &self.user)] {
            let is_word =
                |text: &str| !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain);
            ensure!(value.as_deref().is_none_or(is_word), "slurm.{name}: must be one word");
        }
        for option in &self.options {
            ensure!(
                option.starts_with("--") && !option.contains(char::is_whitespace),
                "slurm.options: `{option}` is no option of sbatch; write --name or --name=value"
            );
            let name = option.split('=').next().unwrap_or_default();
            ensure!(!OWN.contains(&name), "slurm.options: {name} is muster's own to say");
        }
        Ok(())
    }

    fn patience(&self) -> anyhow::Result<Duration> {
        let written = self.patience.as_deref().map(quantity::parse_duration).transpose()?;
        Ok(written.unwrap_or(PATIENCE))
    }

    /// What the engine works with. Files of tasks that are over are kept as long as on any node.
    pub fn options(
        &self,
        home: &Path,
        socket: PathBuf,
        ssh: &ssh::Options,
        kept: Option<Duration>,
        has_accounts: bool,
    ) -> Options {
        Options {
            patience: self.patience().unwrap_or(PATIENCE),
            gate_idle: GATE_IDLE,
            kept,
            dir: home.join("slurm"),
            ssh_dir: ssh.dir.clone(),
            socket,
            exe: ssh.exe.clone(),
            others: ssh.others.clone(),
            program: ssh.program.clone(),
            login: self.login.clone(),
            port: self.port,
            key: self.key.as_ref().map(PathBuf::from),
            user: self.user.clone(),
            becomes_owners: has_accounts && self.login.is_none() && rustix::process::geteuid().is_root(),
            directory: self.directory.clone(),
            address: self.address.clone(),
            programs: self.programs.clone(),
            conf: self.conf.clone(),
            wishes: Wishes {
                account: self.account.clone(),
                qos: self.qos.clone(),
                constraint: self.constraint.clone(),
                exclude: self.exclude.clone(),
                options: self.options.clone(),
            },
        }
    }
}

/// What means itself in any shell.
fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "/._-~+@:,".contains(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_is_not_described_is_this_machine() {
        let slurm: Slurm = toml::from_str("").unwrap();
        slurm.check().unwrap();
        let ssh = ssh::Options::new("/h/ssh".into(), "/h/server.sock".into(), "/m".into(), "/o".into());
        let options = slurm.options(Path::new("/h"), "/h/gate.sock".into(), &ssh, None, false);
        assert_eq!(options.patience, PATIENCE);
        assert_eq!((options.login, options.directory, options.dir), (None, None, "/h/slurm".into()));
        assert_eq!(options.socket, Path::new("/h/gate.sock"));
    }

    #[test]
    fn what_would_mean_something_to_a_shell_is_refused() {
        for text in [
            "login = 'a;b'",
            "directory = '/a b'",
            "directory = '/$HOME'",
            "directory = 'a'",
            "directory = '/{name}/a'",
            "conf = '/{account}/slurm.conf'",
            "programs = '~/bin'",
            "address = '$(x)'",
            "user = '-x'",
            "patience = 'long'",
            "options = ['--x y']",
            "options = ['--array=1-3']",
        ] {
            let slurm: Slurm = toml::from_str(text).unwrap();
            assert!(slurm.check().is_err(), "{text}");
        }
        let fine: Slurm =
            toml::from_str("directory = '/lustre/{account}/m'\noptions = ['--reservation=x']").unwrap();
        fine.check().unwrap();
    }
}
