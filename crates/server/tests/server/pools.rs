//! Pools through the API, with an engine whose agents are played by the test: some hosts come, some are closed, and some
//! have another key.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use muster_api::Code;
use muster_api::model::pool::{HostSpec, PoolSpec};
use muster_api::model::{NodeId, State};
use muster_api::pool::{AddHosts, DrainNode, PoolView, PutPool, RemoveHosts, ShowPool};
use muster_api::view::{CreateJob, StopJob};
use muster_engine::{
    Accounts, AgentAccount, AgentBinary, Capabilities, Engine, Error, Family, Key, Machine, Observed, Offer,
    StartRequest, Status,
};
use muster_server::{Engines, Keep};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::fixture::{Server, refusal, until};
use crate::speaking::{self, Manner};

/// An engine whose hosts are what their names say.
struct Far {
    capabilities: Capabilities,
    socket: PathBuf,
    state: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    machines: Vec<Machine>,
    agents: HashMap<NodeId, JoinHandle<()>>,
    starts: HashMap<NodeId, u32>,
    stopped: Vec<NodeId>,
}

impl Far {
    fn new(socket: PathBuf) -> Arc<Self> {
        let capabilities = Capabilities {
            name: "ssh",
            family: Family::Fleet,
            submitter_environment: false,
            in_place: false,
            images: false,
            volumes: false,
            accounts: Accounts::Machines,
            keeps_files: true,
            lost_after: Duration::from_secs(10),
        };
        Arc::new(Self { capabilities, socket, state: Mutex::default() })
    }

    fn known<T>(&self, look: impl FnOnce(&mut Known) -> T) -> T {
        look(&mut self.state.lock().unwrap())
    }
}

#[async_trait]
impl Engine for Far {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn adopt(&self, machines: Vec<Machine>) {
        self.known(|known| known.machines = machines);
    }

    fn agent(&self) -> Option<AgentBinary> {
        None
    }

    fn agent_account(&self, node: &NodeId) -> AgentAccount {
        let found = self.known(|known| known.machines.iter().find(|machine| machine.node == *node).cloned());
        let destination = found.map(|machine| machine.destination).unwrap_or_default();
        let login = destination.split_once('@').map(|(user, _)| user.to_owned());
        login.map_or_else(|| AgentAccount::Unknown("no user".into()), AgentAccount::Login)
    }

    async fn nodes(&self) -> Result<Vec<Offer>, Error> {
        let own = |machine: &Machine| Offer::own(machine.node.clone());
        Ok(self.known(|known| known.machines.iter().map(own).collect()))
    }

    async fn start(&self, request: &StartRequest) -> Result<Option<String>, Error> {
        let [seat] = request.seats.as_slice() else { panic!("one agent for a node: {request:?}") };
        let machine = self.known(|known| {
            *known.starts.entry(seat.node.clone()).or_default() += 1;
            known.machines.iter().find(|machine| machine.node == seat.node).cloned()
        });
        let machine = machine.ok_or_else(|| Error::terminal("not adopted"))?;
        match machine.destination.as_str() {
            "closed" => Err(Error::retryable("connect", std::io::ErrorKind::ConnectionRefused.into())),
            "locked" if machine.key.is_none() => {
                Err(Error::terminal("closed takes no key of ours; --key names one"))
            }
            "endless" => std::future::pending().await,
            _ => {
                let agent = speaking::agent(self.socket.clone(), seat.clone(), Manner::Greets);
                #[expect(
                    clippy::disallowed_methods,
                    reason = "a test: it is ended by `stop`, or with the test"
                )]
                let agent = tokio::spawn(agent);
                self.known(|known| known.agents.insert(seat.node.clone(), agent));
                Ok(None)
            }
        }
    }

    async fn status(&self, keys: &[Key]) -> Result<Vec<Observed>, Error> {
        Ok(keys.iter().map(|_| Status::Gone.into()).collect())
    }

    async fn stop(&self, key: &Key) -> Result<(), Error> {
        let Key::Node(node) = key else { panic!("a node: {key}") };
        self.known(|known| {
            assert!(
                known.machines.iter().any(|machine| machine.node == *node),
                "it is still known how to reach it"
            );
            known.stopped.push(node.clone());
            if let Some(agent) = known.agents.remove(node) {
                agent.abort();
            }
        });
        Ok(())
    }
}

async fn start(dir: tempfile::TempDir, pools: Vec<PoolSpec>) -> (Server, Arc<Far>) {
    let far = Far::new(dir.path().join("server.sock"));
    let engines = Engines::new(vec![far.clone()]);
    (Server::with(dir, engines, Keep::default(), pools).await, far)
}

fn hosts(destinations: &[&str]) -> Vec<HostSpec> {
    let host = |text: &&str| HostSpec { destination: (*text).into(), ..HostSpec::default() };
    destinations.iter().map(host).collect()
}

fn more(destinations: &[&str]) -> AddHosts {
    AddHosts { hosts: hosts(destinations), shared: None }
}

/// The pool, once it is known of each host whether it can be used.
async fn settled(server: &Server) -> PoolView {
    server.client.pool("gpu", &ShowPool { wait_ms: Some(20_000) }).await.unwrap()
}

fn states(pool: &PoolView) -> Vec<(&str, bool, Option<&str>)> {
    pool.hosts
        .iter()
        .map(|host| {
            let node = &host.node;
            (node.id.as_str(), node.connected, node.error.as_ref().map(|error| error.message.as_str()))
        })
        .collect()
}

#[tokio::test]
async fn hosts_that_are_added_come_or_say_why_not() {
    let (server, far) = start(tempfile::tempdir().unwrap(), Vec::new()).await;
    server.client.add_hosts("gpu", &more(&["ada@h1", "closed", "locked"])).await.unwrap();
    let pool = settled(&server).await;
    assert_eq!(
        states(&pool),
        [
            ("node_gpu.h1", true, None),
            ("node_gpu.closed", false, Some("connect: connection refused")),
            ("node_gpu.locked", false, Some("closed takes no key of ours; --key names one")),
        ]
    );
    assert_eq!((pool.on.as_str(), pool.hosts[0].node.cpu_millis), ("ssh/gpu", 4000));
    let errors: Vec<bool> =
        pool.hosts[1..].iter().map(|host| host.node.error.as_ref().unwrap().may_pass).collect();
    assert_eq!(errors, [true, false]);
    let closed: NodeId = "node_gpu.closed".parse().unwrap();
    until("what may pass is tried again", async || {
        far.known(|known| (known.starts[&closed] > 2).then_some(()))
    })
    .await;
    let locked: NodeId = "node_gpu.locked".parse().unwrap();
    assert_eq!(far.known(|known| known.starts[&locked]), 1, "what does not is left to people for a while");

    let mut with_key = more(&["locked"]);
    with_key.hosts[0].key = Some("/key".into());
    server.client.add_hosts("gpu", &with_key).await.unwrap();
    assert!(settled(&server).await.hosts[2].node.connected, "somebody mended it, and it is tried at once");
    server.stop().await;
}

#[tokio::test]
async fn an_agent_that_claims_to_be_roots_is_let_in_only_where_the_login_is() {
    let dir = tempfile::tempdir().unwrap();
    let far = Far::new(dir.path().join("server.sock"));
    let server = Server::with_accounts_on(dir, Engines::new(vec![far.clone()])).await;
    // All of these agents say that they run as uid 0.
    server.client.add_hosts("gpu", &more(&["ada@h1", "root@h2", "h3"])).await.unwrap();
    let pool = settled(&server).await;
    let [claims, root, unknown] = &pool.hosts[..] else { panic!("{pool:?}") };
    assert!(root.node.connected && !claims.node.connected && !unknown.node.connected, "{pool:?}");
    let error = |host: &muster_api::pool::HostView| host.node.error.clone().unwrap();
    let why = error(claims).message;
    assert!(why.contains("(uid 0)") && why.contains("the server logs in there as `ada`"), "{why}");
    assert!(error(unknown).message.contains("is not known: no user"), "{pool:?}");
    assert!(!error(claims).may_pass && !error(unknown).may_pass, "people mend it");
    let h1: NodeId = "node_gpu.h1".parse().unwrap();
    assert_eq!(far.known(|known| known.starts[&h1]), 1, "and it is not tried again at once");
    server.stop().await;
}

#[tokio::test]
async fn a_pool_is_there_after_a_restart_and_its_hosts_come_back() {
    let (server, _far) = start(tempfile::tempdir().unwrap(), Vec::new()).await;
    let put = PutPool { hosts: hosts(&["h1", "h2"]), shared: Some("/nas".into()) };
    server.client.put_pool("gpu", &put).await.unwrap();
    assert!(settled(&server).await.hosts.iter().all(|host| host.node.connected));
    server.client.drain_node("h2", &DrainNode::default()).await.unwrap();
    let (server, far) = start(server.stop().await, Vec::new()).await;
    let nodes = server.client.nodes().await.unwrap().items;
    let shown: Vec<_> = nodes.iter().map(|node| (node.id.as_str(), node.connected, node.drained)).collect();
    assert_eq!(
        shown,
        [("node_gpu.h1", true, false), ("node_gpu.h2", true, true)],
        "the first look waits for them"
    );
    assert_eq!(server.client.pools().await.unwrap().items[0].shared.as_deref(), Some("/nas"));

    server.client.delete_node("gpu.h1", &RemoveHosts::default()).await.unwrap();
    until("the agent of a host that goes is stopped", async || {
        far.known(|known| (known.stopped.len() == 1 && known.machines.len() == 1).then_some(()))
    })
    .await;
    assert!(!server.client.undrain_node("node_gpu.h2").await.unwrap().drained);
    server.client.delete_pool("gpu", &RemoveHosts::default()).await.unwrap();
    assert!(server.client.pools().await.unwrap().items.is_empty());
    let missing = refusal(server.client.pool("gpu", &ShowPool::default()).await.unwrap_err());
    assert_eq!(missing.code, Code::PoolNotFound);
    server.stop().await;
}

#[tokio::test]
async fn an_agent_that_goes_away_is_started_again() {
    let (server, far) = start(tempfile::tempdir().unwrap(), Vec::new()).await;
    server.client.add_hosts("gpu", &more(&["h1"])).await.unwrap();
    assert!(settled(&server).await.hosts[0].node.connected);
    let id: NodeId = "node_gpu.h1".parse().unwrap();
    far.known(|known| known.agents[&id].abort());
    until("a second start", async || far.known(|known| (known.starts[&id] == 2).then_some(()))).await;
    assert!(settled(&server).await.hosts[0].node.connected);
    server.stop().await;
}

#[tokio::test]
async fn jobs_stand_in_the_way_of_what_they_need() {
    let (server, far) = start(tempfile::tempdir().unwrap(), Vec::new()).await;
    let job = |on: &str| CreateJob {
        spec: json!({ "command": ["true"], "on": on }),
        bundle: None,
        source: None,
        environment: None,
    };
    let refused = refusal(server.client.create_job(&job("ssh/gpu"), "a").await.unwrap_err());
    assert_eq!((refused.code, refused.errors[0].field.as_str()), (Code::InvalidFields, "on"));
    server.client.add_hosts("gpu", &more(&["h1"])).await.unwrap();
    assert!(settled(&server).await.hosts[0].node.connected);
    let made = server.client.create_job(&job("ssh/gpu"), "b").await.unwrap().summary;
    assert_eq!(server.client.job(made.id.as_str()).await.unwrap().summary.state, State::Starting);
    let keep = RemoveHosts::default();
    for refused in [
        server.client.delete_node("h1", &keep).await.unwrap_err(),
        server.client.delete_pool("gpu", &keep).await.unwrap_err(),
        server.client.put_pool("gpu", &PutPool::default()).await.unwrap_err(),
    ] {
        let refused = refusal(refused);
        assert_eq!((refused.code, refused.status), (Code::InUse, 409));
        assert!(refused.detail.contains(made.id.as_str()), "{refused:?}");
    }
    server.client.delete_node("h1", &RemoveHosts { force: true }).await.unwrap();
    let lost = server.client.job(made.id.as_str()).await.unwrap().summary;
    assert_eq!((lost.state, lost.reason.unwrap().code()), (State::Failed, "node_lost"));
    until("its agent is stopped", async || far.known(|known| (known.stopped.len() == 1).then_some(()))).await;

    let waiting = server.client.create_job(&job("ssh/gpu"), "c").await.unwrap().summary;
    let why = server.client.why(waiting.id.as_str()).await.unwrap();
    assert_eq!((why.code.as_str(), why.summary.as_str()), ("no_node", "pool gpu has no hosts"));
    server.client.stop_job(waiting.id.as_str(), &StopJob::default()).await.unwrap();
    server.client.delete_pool("gpu", &keep).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn configured_pools_are_there_from_the_start_and_say_where_they_come_from() {
    let spec = PoolSpec { name: "gpu".into(), hosts: hosts(&["h1", "endless"]), shared: None };
    let (server, _far) = start(tempfile::tempdir().unwrap(), vec![spec]).await;
    let pool = server.client.pool("gpu", &ShowPool { wait_ms: Some(50) }).await.unwrap();
    assert!(pool.configured);
    assert_eq!(pool.hosts[1].node.error, None, "nothing is known yet, and nobody waits for ever");
    for refused in [
        server.client.delete_pool("gpu", &RemoveHosts { force: true }).await.unwrap_err(),
        server.client.delete_node("h1", &RemoveHosts { force: true }).await.unwrap_err(),
        server.client.add_hosts("gpu", &more(&["h2"])).await.map(drop).unwrap_err(),
    ] {
        let refused = refusal(refused);
        assert_eq!(refused.code, Code::Configured);
        assert!(refused.detail.contains("config.toml"), "{refused:?}");
    }
    let (server, _far) = start(server.stop().await, Vec::new()).await;
    assert!(server.client.pools().await.unwrap().items.is_empty(), "what is not configured any more goes");
    server.stop().await;
}

#[tokio::test]
async fn wrong_hosts_are_named_one_by_one() {
    let (server, _far) = start(tempfile::tempdir().unwrap(), Vec::new()).await;
    let mut wrong = more(&["-oProxyCommand=x", "a b"]);
    wrong.shared = Some("nas".into());
    let refused = refusal(server.client.add_hosts("no.name", &wrong).await.unwrap_err());
    let fields: Vec<&str> = refused.errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["pool", "hosts[0].destination", "hosts[1].destination", "shared"]);
    let refused = refusal(server.client.drain_node("nobody", &DrainNode::default()).await.unwrap_err());
    assert_eq!((refused.code, refused.status), (Code::NodeNotFound, 404));
    server.stop().await;
}
