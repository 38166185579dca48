//! Machines that are reached by SSH.
//!
//! The ordinary OpenSSH client does the reaching, so that its configuration, agent, jump hosts and certificates are all
//! honoured. On the machine it runs `muster carry`, which starts the agent and joins it with the login's own input and
//! output; here those are joined with the server's socket. So a machine needs an sshd and nothing else: no open port, no
//! way back to the server, no forwarding, no root. An agent has two connections, and each is a login of its own.

pub(crate) mod binary;
pub mod carry;
pub(crate) mod command;
mod failure;
pub(crate) mod host;
pub(crate) mod identity;
pub(crate) mod login;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use muster_model::NodeId;

use crate::{
    Accounts, AgentAccount, AgentBinary, Capabilities, Class, Engine, Error, Family, Key, Machine, Observed,
    Offer, StartRequest, Status,
};
use binary::Binary;
pub use host::server_name;
use host::{Host, Means};

/// What it is called in `--on` and among nodes.
pub const NAME: &str = "ssh";
/// The client gives a machine up that is silent for 4 to 6 seconds, so tasks are lost 12 to 14 seconds after their
/// machine has vanished. A machine that is back earlier has lost nothing; and one whose agent changes over, or whose login
/// broke, has this long for the next login on a machine that has much to do.
const LOST_AFTER: Duration = Duration::from_secs(8);

/// What the engine works with.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its own directory on the server: the host keys that were seen, and its name among servers.
    pub dir: PathBuf,
    /// The server's socket, by a name that can be connected to.
    pub socket: PathBuf,
    /// The muster binary that is sent to machines like this one.
    pub exe: PathBuf,
    /// Where binaries for other machines lie, as `muster-ARCHITECTURE`.
    pub others: PathBuf,
    /// The OpenSSH client.
    pub program: PathBuf,
}

impl Options {
    /// With the client that is on the path.
    pub fn new(dir: PathBuf, socket: PathBuf, exe: PathBuf, others: PathBuf) -> Self {
        Self { dir, socket, exe, others, program: "ssh".into() }
    }
}

/// The engine.
#[derive(Debug)]
pub struct Ssh {
    capabilities: Capabilities,
    means: Arc<Means>,
    hosts: Mutex<BTreeMap<NodeId, Arc<Host>>>,
}

impl Ssh {
    /// An engine without machines: they come by `adopt`.
    pub fn new(options: Options) -> Self {
        let capabilities = Capabilities {
            name: NAME,
            family: Family::Fleet,
            submitter_environment: false,
            in_place: false,
            images: false,
            volumes: false,
            accounts: Accounts::Machines,
            keeps_files: true,
            lost_after: LOST_AFTER,
        };
        Self { capabilities, means: Arc::new(Means::new(options)), hosts: Mutex::default() }
    }

    fn hosts(&self) -> MutexGuard<'_, BTreeMap<NodeId, Arc<Host>>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn host(&self, node: &NodeId) -> Result<Arc<Host>, Error> {
        let found = self.hosts().get(node).cloned();
        found.ok_or_else(|| Error {
            what: format!("{node} is a host of no pool"),
            class: Class::NotFound,
            source: None,
        })
    }
}

#[async_trait]
impl Engine for Ssh {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Connections to machines that are no longer there, or are now reached in another way, end.
    fn adopt(&self, machines: Vec<Machine>) {
        let mut hosts = self.hosts();
        let mut before = std::mem::take(&mut *hosts);
        for machine in machines {
            let same = before.remove(&machine.node).filter(|host| *host.machine() == machine);
            let node = machine.node.clone();
            hosts.insert(node, same.unwrap_or_else(|| Arc::new(Host::new(machine, self.means.clone()))));
        }
        drop(hosts);
        before.values().for_each(|host| host.let_go());
    }

    /// Known once a first machine was asked for: nobody else runs it.
    fn agent(&self) -> Option<AgentBinary> {
        self.means.known_binary().map(Binary::agent)
    }

    fn agent_account(&self, node: &NodeId) -> AgentAccount {
        let host = self.hosts().get(node).cloned();
        host.map_or_else(|| AgentAccount::Unknown("it is a host of no pool".into()), |host| host.account())
    }

    async fn nodes(&self) -> Result<Vec<Offer>, Error> {
        Ok(self.hosts().keys().cloned().map(Offer::own).collect())
    }

    /// It returns when both of the agent's connections are carried, which is sooner than the agent has said hello.
    async fn start(&self, request: &StartRequest) -> Result<Option<String>, Error> {
        let [seat] = request.seats.as_slice() else {
            return Err(Error::terminal("a host has one agent, and no gang of its own"));
        };
        self.host(&seat.node)?.start(&seat.token).await.map(|()| None)
    }

    /// An agent that is not reached counts as gone: nothing else can be known about it.
    async fn status(&self, keys: &[Key]) -> Result<Vec<Observed>, Error> {
        let hosts = self.hosts();
        let status = |key: &Key| match key {
            Key::Node(node) if hosts.get(node).is_some_and(|host| host.is_carried()) => Status::Running,
            Key::Node(_) | Key::Gang { .. } => Status::Gone,
        };
        Ok(keys.iter().map(|key| status(key).into()).collect())
    }

    async fn stop(&self, key: &Key) -> Result<(), Error> {
        match key {
            Key::Node(node) => self.host(node)?.stop().await,
            Key::Gang { .. } => Ok(()),
        }
    }
}
