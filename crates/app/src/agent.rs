//! `muster agent --home H`: this machine's agent, started by the local engine; `muster agent --carried DIR --node N`: the agent of
//! a machine that is reached by SSH, started there by `muster carry`; `muster agent --gang DIR` and `muster agent --pod DIR`: the
//! agent of one rank, started by another scheduler; `muster agent --install DIR`: brings the binary to where an agent is to run;
//! `muster agent --stay DIR`: is there until that is done.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use muster_agent::tree::{DeviceNumber, Kill, Preference, Tree};
use muster_agent::{Network, Options};
use muster_api::client::build;
use muster_cli::Trees;
use muster_engine::local;
use muster_engine::ssh::carry;
use muster_link::dial::Server;
use muster_link::unix;

use crate::config::Config;
use crate::{gang, pod};

/// The agent's directory within the data directory.
pub fn dir(home: &Path) -> PathBuf {
    home.join("node")
}

pub fn run(words: Vec<OsString>) -> ExitCode {
    if let Some(dir) = crate::option(&words, "--install") {
        return pod::install(Path::new(&dir));
    }
    if let Some(dir) = crate::option(&words, "--stay") {
        return pod::stay(Path::new(&dir));
    }
    let (gang, pod) = (crate::option(&words, "--gang"), crate::option(&words, "--pod"));
    if gang.is_none() && pod.is_none() {
        // The agent outlives the terminal and the server that started it. It fails only if it leads a session already.
        let _ = rustix::process::setsid();
    }
    crate::log::start();
    crate::raise_open_files();
    let options = match (gang, pod) {
        (Some(dir), _) => gang::options(Path::new(&dir), &words),
        (None, Some(dir)) => pod::options(Path::new(&dir), &words).map(Some),
        (None, None) => options(&words).map(Some),
    };
    match options {
        Ok(Some(options)) => muster_agent::run(options),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the agent cannot start");
            ExitCode::from(1)
        }
    }
}

/// How an agent started here would end the processes of a task: tried with a tree without any.
pub fn trees() -> Trees {
    let name = format!("doctor-{}", std::process::id());
    // A megabyte is a limit like any other, and holds nobody here.
    let tree = Tree::prepare(&name, Preference::Auto, Some(1 << 20));
    let tree = tree.map(|tree| tree.without_devices(&[DeviceNumber::UNUSED]));
    let (way, is_certain) = match tree.as_ref().map(Tree::way) {
        Ok(Kill::Cgroup2 { .. }) => ("a cgroup v2", true),
        Ok(Kill::Cgroup1 { .. }) => ("a cgroup v1 freezer", true),
        Ok(Kill::Walk) | Err(_) => ("a walk through /proc", false),
    };
    let limits_memory = tree.as_ref().is_ok_and(Tree::limits_memory);
    let limits_devices = tree.as_ref().is_ok_and(Tree::limits_devices);
    if let Ok(tree) = tree {
        tree.remove();
    }
    Trees { way, is_certain, limits_memory, limits_devices }
}

fn options(words: &[OsString]) -> anyhow::Result<Options> {
    let mut options = match crate::option(words, "--carried") {
        Some(dir) => carried(dir.into(), words)?,
        None => local(words)?,
    };
    options.orphan_exit = Some(muster_agent::LOCAL_ORPHAN_EXIT);
    options.version = crate::version();
    Ok(options)
}

/// An agent that is called upon. Who has the machine may say in `config.toml`, beside its directory, what it offers.
fn carried(dir: PathBuf, words: &[OsString]) -> anyhow::Result<Options> {
    let node = crate::option(words, "--node").context("--node is missing")?;
    let node = node.to_str().context("--node is no name")?.parse()?;
    let config = Config::load(dir.parent().unwrap_or(&dir))?;
    let (token_file, address) = (local::Local::token_file(&dir), carry::address_file(&dir));
    let exe = "/proc/self/exe".into();
    let mut options = Options::new(dir.clone(), node, Server::Carried(dir), token_file, exe);
    offer(&mut options, &config)?;
    options.network = config.local.network().unwrap_or(Network::Named(address));
    options.login = true;
    options.build = carry::build()?;
    Ok(options)
}

fn local(words: &[OsString]) -> anyhow::Result<Options> {
    let home = PathBuf::from(crate::option(words, "--home").context("--home is missing")?);
    let config = Config::load(&home)?;
    let socket = unix::socket_path(&home.join("server.sock"))?;
    let server = Server::Unix(socket.as_path().to_owned());
    // A long path is reached through an open directory, which must stay open for as long as the agent dials.
    std::mem::forget(socket);
    let dir = dir(&home);
    let token_file = local::Local::token_file(&dir);
    // The link in /proc leads to this very binary, also when the file was replaced or deleted meanwhile.
    let mut options = Options::new(dir, local::NODE.parse()?, server, token_file, "/proc/self/exe".into());
    offer(&mut options, &config)?;
    options.network = config.local.network().unwrap_or_default();
    options.build = build::of_current_exe()?;
    Ok(options)
}

/// What the configuration says of the machine.
fn offer(options: &mut Options, config: &Config) -> anyhow::Result<()> {
    options.devices = config.local.devices()?;
    options.cpu_millis = config.local.cpu_millis();
    options.memory_bytes = config.local.memory_bytes()?;
    options.slots = config.local.slots;
    options.tree = config.local.tree_kill()?;
    options.measure_every = config.local.measure_every()?;
    Ok(())
}
