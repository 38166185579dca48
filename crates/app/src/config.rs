//! `config.toml` in the data directory: what an operator may set.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use muster_agent::MEASURE_EVERY;
use muster_agent::Network;
use muster_agent::device::Declared;
use muster_agent::tree::Preference;
use muster_model::pool::PoolSpec;
use muster_model::quantity::{parse_bytes, parse_duration};
use muster_model::spec::Target;
use muster_server::{Entrance, Policy};
use serde::Deserialize;

use crate::k8s::K8s;
use crate::keep::Keep;
use crate::limits::Limits;
use crate::pool::Pool;
use crate::slurm::Slurm;

/// A private server with nothing to do and nobody to talk to ends after this.
const IDLE_EXIT: Duration = Duration::from_secs(15 * 60);
/// A month: long enough that nobody keeps a password in a script.
const LOGIN: Duration = Duration::from_secs(30 * 86_400);

/// Measuring more often would be most of what an idle machine does.
const LEAST_PAUSE: Duration = Duration::from_millis(100);

/// The whole file. Every part may be absent.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The server.
    #[serde(default)]
    pub server: Server,
    /// This machine as a node.
    #[serde(default)]
    pub local: Local,
    /// What is kept of what is over.
    #[serde(default)]
    pub keep: Keep,
    /// How much of a disk may be filled.
    #[serde(default)]
    pub limits: Limits,
    /// How queues are kept.
    #[serde(default)]
    pub scheduler: Policy,
    /// What commands of FastGPU do. The client reads it; here it is only checked.
    #[serde(default)]
    fastgpu: Fastgpu,
    /// A cluster that Slurm schedules.
    #[serde(default)]
    pub slurm: Slurm,
    /// Kubernetes clusters.
    pub k8s: Option<K8s>,
    /// What tasks find at the same path everywhere, by name.
    #[serde(default)]
    volumes: BTreeMap<String, Volume>,
    /// SSH hosts, by the name of their pool.
    #[serde(default)]
    pools: BTreeMap<String, Pool>,
}

/// `[volumes.NAME]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Volume {
    /// Where tasks see their part: `/mnt/user/{user}`.
    path: String,
    /// The directory of machines that holds everybody's part, if it is not the beginning of `path`.
    source: Option<String>,
}

/// `[fastgpu]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fastgpu {
    /// Where machines come from: `ssh/POOL` or `local`.
    machines: Option<Target>,
}

/// `[server]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// How long it stays with nothing to do: `15m`, or `never`.
    idle_exit: Option<String>,
    /// How long a login lasts, where people have accounts: `30d`.
    login: Option<String>,
    /// Whether anybody may ask for an account there.
    signup: Option<bool>,
    /// Whether TLS is spoken where `--listen` says.
    tls: Option<bool>,
    /// The certificate to show, and its key.
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
}

/// `[local]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Local {
    /// Whether jobs may run here: not where the server is one of many pods of a cluster.
    enabled: Option<bool>,
    /// Simulated devices in place of the real ones: `["H100:8"]`.
    #[serde(default)]
    devices: Vec<String>,
    /// CPUs to offer, if not all.
    cpus: Option<f64>,
    /// Memory to offer, if not all: `64GB`.
    memory: Option<String>,
    /// How many tasks that ask for nothing may run at once.
    pub slots: Option<u32>,
    /// How a task's processes are found and killed: `auto`, `cgroup2`, `cgroup1` or `walk`.
    tree_kill: Option<String>,
    /// The addresses of tasks: `loopback`, `host`, or an interface.
    network: Option<String>,
    /// How often is measured while tasks run: `5s`, or `never`.
    measure_every: Option<String>,
}

impl Config {
    /// Reads the file; without one, everything is as it is without configuration.
    pub fn load(home: &Path) -> anyhow::Result<Self> {
        Self::load_with_text(home).map(|(config, _)| config)
    }

    /// The same, with what was read.
    pub fn load_with_text(home: &Path) -> anyhow::Result<(Self, String)> {
        let path = home.join("config.toml");
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            read => read.with_context(|| format!("{} cannot be read", path.display()))?,
        };
        let config = Self::parse(&text).with_context(|| format!("{} cannot be used", path.display()))?;
        Ok((config, text))
    }

    /// Reads a file's text. A wrong value is found here, not by an agent that fails out of sight.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let config: Self = toml::from_str(text)?;
        config.server.idle_exit()?;
        config.server.entrance()?;
        for (name, path) in [("tls_cert", &config.server.tls_cert), ("tls_key", &config.server.tls_key)] {
            ensure!(
                path.as_ref().is_none_or(|path| path.is_absolute()),
                "server.{name}: must be the whole path of a file, from / on"
            );
        }
        config.local.devices()?;
        config.local.memory_bytes()?;
        config.local.tree_kill()?;
        config.local.measure_every()?;
        config.keep.read()?;
        config.limits.read()?;
        config.pools()?;
        config.volumes()?;
        config.scheduler.check().map_err(|(field, wrong)| anyhow::anyhow!("scheduler.{field}: {wrong}"))?;
        config.slurm.check()?;
        config.k8s.iter().try_for_each(K8s::check)?;
        ensure!(
            config.local.cpus.is_none_or(|cpus| cpus.is_finite() && cpus > 0.0),
            "local.cpus: must be more than nothing"
        );
        ensure!(config.local.slots != Some(0), "local.slots: must be more than nothing");
        ensure!(
            matches!(config.fastgpu.machines, None | Some(Target::Local | Target::Ssh(_))),
            "fastgpu.machines: must be ssh/POOL or local"
        );
        Ok(config)
    }

    /// Its volumes, checked.
    pub fn volumes(&self) -> anyhow::Result<Vec<muster_server::Volume>> {
        let read = |(name, volume): (&String, &Volume)| {
            muster_server::Volume::new(name, &volume.path, volume.source.as_deref())
                .map_err(|wrong| anyhow::anyhow!("volumes.{name}.{wrong}"))
        };
        self.volumes.iter().map(read).collect()
    }

    /// Its pools, checked.
    pub fn pools(&self) -> anyhow::Result<Vec<PoolSpec>> {
        self.pools.iter().map(|(name, pool)| pool.read(name)).collect()
    }
}

/// What is wrong with a file's text, for `muster config` and `muster doctor`.
pub fn check(text: &str) -> Result<(), String> {
    Config::parse(text).map(drop).map_err(|error| format!("{error:#}").trim_end().to_owned())
}

impl Server {
    /// Whether somebody has said that it is not spoken on TCP.
    pub fn is_plain(&self) -> bool {
        self.tls == Some(false)
    }

    /// Whether TLS is spoken on TCP.
    pub fn is_tls(&self) -> bool {
        self.tls.unwrap_or(self.tls_cert.is_some())
    }

    /// The files with the certificate and its key, where they are named. One is set after the other, so that a file which has
    /// one of them alone is wrong only where it is used.
    pub fn certificate(&self) -> anyhow::Result<Option<(PathBuf, PathBuf)>> {
        ensure!(
            self.tls_cert.is_some() == self.tls_key.is_some(),
            "server.tls_cert, server.tls_key: a certificate is nothing without its key; set both or none"
        );
        Ok(self.tls_cert.clone().zip(self.tls_key.clone()))
    }

    /// After how long with nothing to do the server ends.
    pub fn idle_exit(&self) -> anyhow::Result<Option<Duration>> {
        match self.idle_exit.as_deref() {
            None => Ok(Some(IDLE_EXIT)),
            Some("never") => Ok(None),
            Some(text) => Ok(Some(parse_duration(text).context("server.idle_exit")?)),
        }
    }

    /// How people come in, where they have accounts. Whoever asks for one can do nothing before a lead has said yes, and how many ask, how
    /// often and for how long is bounded; so anybody may, unless somebody says otherwise.
    pub fn entrance(&self) -> anyhow::Result<Entrance> {
        let login =
            self.login.as_deref().map_or(Ok(LOGIN), |text| parse_duration(text).context("server.login"));
        Ok(Entrance { login: login?, sign_up: self.signup.unwrap_or(true) })
    }
}

impl Local {
    /// Whether jobs may run on the server's own machine.
    pub fn is_enabled(&self, unless_said: bool) -> bool {
        self.enabled.unwrap_or(unless_said)
    }

    /// CPUs to offer, in thousandths.
    pub fn cpu_millis(&self) -> Option<u64> {
        self.cpus.map(|cpus| (cpus * 1000.0) as u64)
    }

    /// Memory to offer.
    pub fn memory_bytes(&self) -> anyhow::Result<Option<u64>> {
        self.memory.as_deref().map(|text| parse_bytes(text).context("local.memory")).transpose()
    }

    /// The declared devices.
    pub fn devices(&self) -> anyhow::Result<Vec<Declared>> {
        self.devices.iter().map(|text| text.parse().context("local.devices")).collect()
    }

    /// The addresses of tasks, where they were chosen.
    pub fn network(&self) -> Option<Network> {
        // Every word that is no other choice is an interface's name: which there are, the node knows.
        self.network.as_deref().and_then(|text| text.parse().ok())
    }

    /// How often is measured while tasks run.
    pub fn measure_every(&self) -> anyhow::Result<Option<Duration>> {
        let span = match self.measure_every.as_deref() {
            None => return Ok(Some(MEASURE_EVERY)),
            Some("never") => return Ok(None),
            Some(text) => parse_duration(text).context("local.measure_every")?,
        };
        ensure!(span >= LEAST_PAUSE, "local.measure_every: must be at least 100ms, or `never`");
        Ok(Some(span))
    }

    /// How a task's processes are found and killed.
    pub fn tree_kill(&self) -> anyhow::Result<Preference> {
        let chosen = self.tree_kill.as_deref().map(|text| text.parse().context("local.tree_kill"));
        Ok(chosen.transpose()?.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use muster_cli::Setting;

    use super::*;
    use crate::settings::SETTINGS;

    #[test]
    fn a_file_is_read_and_every_wrong_value_is_named() {
        let text =
            "[server]\nidle_exit = \"never\"\n[local]\ndevices = [\"H100:8\"]\ncpus = 1.5\nslots = 3\n";
        let config = Config::parse(text).unwrap();
        assert_eq!(config.server.idle_exit().unwrap(), None);
        assert!(!config.server.is_tls());
        let halves = Config::parse("[server]\ntls_key = \"/k.pem\"").unwrap();
        assert!(halves.server.certificate().unwrap_err().to_string().contains("set both or none"));
        assert_eq!((config.local.cpu_millis(), config.local.slots), (Some(1500), Some(3)));
        for (text, word) in [
            ("[server]\nidle_exit = \"soon\"", "server.idle_exit"),
            ("[server]\ntls_cert = \"c.pem\"", "server.tls_cert"),
            ("[local]\ndevices = [\"a b\"]", "local.devices"),
            ("[local]\nmemory = \"lots\"", "local.memory"),
            ("[local]\ntree_kill = \"axe\"", "local.tree_kill"),
            ("[local]\nmeasure_every = \"1ms\"", "local.measure_every"),
            ("[local]\ncpus = -1", "local.cpus"),
            ("[local]\nslots = 0", "local.slots"),
            ("[keep]\nlogs_age = \"soon\"", "keep.logs_age"),
            ("[limits]\nworkspace = \"lots\"", "limits.workspace"),
            ("[fastgpu]\nmachines = \"gpu\"", "write local, ssh/POOL"),
            ("[fastgpu]\nmachines = \"k8s/x\"", "fastgpu.machines"),
            ("[local]\nslot = 1", "slot"),
            ("[slurm]\nlogin = \"-x\"", "slurm.login"),
            ("[slurm]\ndirectory = \"muster\"", "slurm.directory"),
            ("[slurm]\naddress = \"a b\"", "slurm.address"),
            ("[slurm]\noptions = [\"x\"]", "slurm.options"),
            ("[slurm]\noptions = [\"--comment=x\"]", "slurm.options"),
            ("[k8s]\naddress = \"muster\"", "k8s.address"),
            ("[k8s.contexts.lab]\nuser = -1", "k8s.contexts.lab.user"),
            ("[pools.gpu]\nhosts = [\"-x\"]", "pools.gpu.hosts[0].destination"),
            ("[pools.gpu]\nhosts = [1]", "hosts"),
            ("[pools.\"a b\"]\nhosts = []", "pools.a b"),
            ("[local", "TOML"),
        ] {
            let error = check(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    /// The names that the types above know, from what they say of one they do not.
    fn known(table: &str) -> Vec<String> {
        let error = check(&format!("{table}nothing_is_called_so = 1\n")).unwrap_err();
        let names = error.split("expected").nth(1).expect("the error lists what it expected");
        names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn every_setting_is_listed_and_its_example_is_right() {
        let mut found = Vec::new();
        // Pools and contexts have names of their own; docs/reference/configuration.md tells what one has.
        for table in known("").into_iter().filter(|table| table != "pools") {
            let keys = known(&format!("[{table}]\n")).into_iter().filter(|key| key != "contexts");
            found.extend(keys.map(|key| format!("{table}.{key}")));
        }
        let mut listed: Vec<&str> = SETTINGS.iter().map(|setting| setting.key).collect();
        found.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, found);
        for Setting { key, example, .. } in SETTINGS {
            let (table, name) = key.split_once('.').unwrap();
            let plain = format!("[{table}]\n{name} = {example}\n");
            let quoted = format!("[{table}]\n{name} = \"{example}\"\n");
            assert!(check(&plain).is_ok() || check(&quoted).is_ok(), "{key} = {example}");
        }
    }
}
