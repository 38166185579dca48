//! This machine as a node: one agent process, detached, so that it outlives the server that started it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use muster_link::own_dir::OwnDir;
use muster_link::process::signal_own;
use muster_model::NodeId;
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal};
use serde::Deserialize;

use crate::environment::keep_for_agent;
use crate::{
    Accounts, AgentAccount, AgentBinary, Capabilities, Engine, Error, Family, Key, Observed, Offer,
    StartRequest, Status,
};

/// The name of this machine as a node. There is one for each data directory.
pub const NODE: &str = "node_local";
/// A local agent is restarted at once when it dies, so silence this long means it cannot be.
const LOST_AFTER: Duration = Duration::from_secs(30);

/// The file of an agent's directory that holds its token.
pub(crate) const TOKEN: &str = "token";
/// The file that has the address at which peers reach the machine.
pub(crate) const ADDRESS: &str = "address";

/// How to start the agent.
#[derive(Debug, Clone)]
pub struct Options {
    /// The agent's directory.
    pub dir: PathBuf,
    /// The muster binary.
    pub exe: PathBuf,
    /// What the binary is started with; the app knows its own command line. Must hold no secret.
    pub arguments: Vec<String>,
    /// The file that this process was started from, unless it was replaced since.
    pub binary: fn() -> Option<AgentBinary>,
}

/// The engine.
#[derive(Debug)]
pub struct Local {
    options: Options,
    capabilities: Capabilities,
    node: NodeId,
}

impl Local {
    /// An engine whose only node is this machine.
    pub fn new(options: Options) -> Self {
        let node = NODE.parse().expect("the constant is a node id");
        let capabilities = Capabilities {
            name: "local",
            family: Family::Fleet,
            submitter_environment: true,
            in_place: true,
            images: false,
            volumes: false,
            accounts: Accounts::Machines,
            keeps_files: true,
            lost_after: LOST_AFTER,
        };
        Self { options, capabilities, node }
    }

    /// Where the agent finds its token.
    pub fn token_file(dir: &Path) -> PathBuf {
        dir.join(TOKEN)
    }

    fn start_blocking(&self, token: &str) -> io::Result<()> {
        let dir = &self.options.dir;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let own = OwnDir::create_in_own(dir)?;
        own.write_file(TOKEN, token)?;
        if is_agent_running(&own)? {
            return Ok(());
        }
        let log = OpenOptions::new().create(true).append(true).mode(0o600).open(dir.join("agent.log"))?;
        let mut command = Command::new(&self.options.exe);
        command.arg0("muster").args(&self.options.arguments);
        keep_for_agent(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).current_dir("/");
        let mut child = command.spawn()?;
        // Whoever loses the race for the agent's lock ends at once; either way someone must collect the exit status,
        // and this thread costs nothing while the agent lives.
        std::thread::Builder::new()
            .name("agent-reaper".into())
            .stack_size(64 * 1024)
            .spawn(move || {
                let status = child.wait();
                tracing::info!(?status, "the local agent ended");
            })
            .map(drop)
    }

    fn is_running(&self) -> io::Result<bool> {
        self.existing().map_or(Ok(false), |dir| is_agent_running(&dir?))
    }

    fn stop_blocking(&self) -> io::Result<()> {
        self.existing().map_or(Ok(()), |dir| stop_agent(&dir?))
    }

    /// The agent's directory, if it was made.
    fn existing(&self) -> Option<io::Result<OwnDir>> {
        let is_made = self.options.dir.exists();
        is_made.then(|| OwnDir::create_in_own(&self.options.dir))
    }
}

/// The file that an agent holds a lock on for as long as it lives.
const LOCK: &str = "agent.lock";

/// What an agent writes of itself in `agent.json`.
#[derive(Debug, Deserialize)]
struct AgentRecord {
    pid: i32,
    /// Missing in records of earlier versions.
    start_ticks: Option<u64>,
}

/// Whether an agent serves from this directory.
pub(crate) fn is_agent_running(dir: &OwnDir) -> io::Result<bool> {
    let Some(lock) = dir.open_file(LOCK)? else { return Ok(false) };
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// Ends the agent of this directory, and waits until it is gone. A process of another account, or one that started at another time
/// than the record says, is left alone.
pub(crate) fn stop_agent(dir: &OwnDir) -> io::Result<()> {
    if !is_agent_running(dir)? {
        return Ok(());
    }
    let (Some(lock), Some(record)) = (dir.open_file(LOCK)?, dir.open_file("agent.json")?) else {
        return Ok(());
    };
    let record: AgentRecord = serde_json::from_reader(record)?;
    if let Some(pid) = Pid::from_raw(record.pid) {
        signal_own(pid, record.start_ticks, Signal::TERM)?;
    }
    // The lock is free when the agent is gone: an event, not a poll.
    Ok(rustix::fs::flock(&lock, FlockOperation::LockShared)?)
}

/// Replaces a file that only its user may read.
pub(crate) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    fs::rename(temporary, path)
}

#[async_trait]
impl Engine for Local {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn agent(&self) -> Option<AgentBinary> {
        (self.options.binary)()
    }

    fn agent_account(&self, _node: &NodeId) -> AgentAccount {
        AgentAccount::Uid(rustix::process::getuid().as_raw())
    }

    async fn nodes(&self) -> Result<Vec<Offer>, Error> {
        Ok(vec![Offer::own(self.node.clone())])
    }

    async fn start(&self, request: &StartRequest) -> Result<Option<String>, Error> {
        let [seat] = request.seats.as_slice() else {
            return Err(Error::terminal("this machine has one agent, and no gang of its own"));
        };
        let started = self.start_blocking(&seat.token);
        started.map(|()| None).map_err(|error| Error::retryable("start the local agent", error))
    }

    async fn status(&self, keys: &[Key]) -> Result<Vec<Observed>, Error> {
        let running =
            self.is_running().map_err(|error| Error::retryable("look for the local agent", error))?;
        let status = |key: &Key| match key {
            Key::Node(node) if running && *node == self.node => Status::Running,
            Key::Node(_) | Key::Gang { .. } => Status::Gone,
        };
        Ok(keys.iter().map(|key| status(key).into()).collect())
    }

    async fn stop(&self, _key: &Key) -> Result<(), Error> {
        let this = Self {
            options: self.options.clone(),
            capabilities: self.capabilities.clone(),
            node: self.node.clone(),
        };
        tokio::task::spawn_blocking(move || this.stop_blocking())
            .await
            .map_err(|error| Error::retryable("stop the local agent", io::Error::other(error)))?
            .map_err(|error| Error::retryable("stop the local agent", error))
    }
}
