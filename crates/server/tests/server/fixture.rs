//! A server of its own for each test, in this process, with a node that never comes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_api::Problem;
use muster_api::client::{Client, Endpoint, Error};
use muster_api::model::bundle::{Chunk, Source};
use muster_api::model::pool::PoolSpec;
use muster_api::model::{BundleId, ChunkId};
use muster_api::view::{CreateJob, PutBundle};
use muster_bundle::chunk::{self, Encoder};
use muster_engine::local::{self, Local};
use muster_server::{Engines, Entrance, Keep, Limits, Listen, Options};
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinHandle;

pub struct Server {
    pub client: Client,
    pub dir: TempDir,
    running: JoinHandle<()>,
}

impl Server {
    pub async fn start(dir: TempDir, unused: Duration) -> Self {
        let node = local::Options {
            dir: dir.path().join("node"),
            exe: "/bin/false".into(),
            arguments: Vec::new(),
            binary: || None,
        };
        let engines = Engines::new(vec![Arc::new(Local::new(node))]);
        let keep = Keep { unused, ..Keep::default() };
        Self::with(dir, engines, keep, Vec::new()).await
    }

    /// One that people have accounts on, besides the socket also at a port.
    pub async fn with_accounts(dir: TempDir) -> Self {
        Self::with_entrance(dir, true, Keep::default()).await
    }

    /// The same, where people may sign up or not, and what it keeps.
    pub async fn with_entrance(dir: TempDir, sign_up: bool, keep: Keep) -> Self {
        let change = |options: Options| Options {
            accounts: Some(Entrance { login: Duration::from_secs(3600), sign_up }),
            listen: Listen::Tcp("127.0.0.1:0".into()),
            ..options
        };
        let node = local::Options {
            dir: dir.path().join("node"),
            exe: "/bin/false".into(),
            arguments: Vec::new(),
            binary: || None,
        };
        Self::run(dir, Engines::new(vec![Arc::new(Local::new(node))]), keep, Vec::new(), change).await
    }

    /// One that people have accounts on, with these engines.
    pub async fn with_accounts_on(dir: TempDir, engines: Engines) -> Self {
        let entrance = Entrance { login: Duration::from_secs(3600), sign_up: true };
        let change = |options: Options| Options { accounts: Some(entrance), ..options };
        Self::run(dir, engines, Keep::default(), Vec::new(), change).await
    }

    /// One with limits of its own, where people have accounts or not.
    pub async fn with_limits(dir: TempDir, limits: Limits, accounts: bool) -> Self {
        let change = |options: Options| Options {
            accounts: accounts.then(|| Entrance { login: Duration::from_secs(3600), sign_up: true }),
            listen: if accounts { Listen::Tcp("127.0.0.1:0".into()) } else { Listen::Socket },
            limits,
            ..options
        };
        let node = local::Options {
            dir: dir.path().join("node"),
            exe: "/bin/false".into(),
            arguments: Vec::new(),
            binary: || None,
        };
        let engines = Engines::new(vec![Arc::new(Local::new(node))]);
        Self::run(dir, engines, Keep::default(), Vec::new(), change).await
    }

    pub async fn with(dir: TempDir, engines: Engines, keep: Keep, pools: Vec<PoolSpec>) -> Self {
        Self::run(dir, engines, keep, pools, |options| options).await
    }

    async fn run(
        dir: TempDir,
        engines: Engines,
        keep: Keep,
        pools: Vec<PoolSpec>,
        change: impl FnOnce(Options) -> Options,
    ) -> Self {
        let options = change(Options {
            home: dir.path().into(),
            listen: Listen::Socket,
            token: None,
            certificate: None,
            secrets_key: None,
            accounts: None,
            idle_exit: None,
            engines,
            build: "test".into(),
            version: "0".into(),
            owner: "me".into(),
            keep,
            limits: Limits::default(),
            volumes: Vec::new(),
            policy: Default::default(),
            pools,
            read_again: Box::new(|| Err("there is no configuration".into())),
        });
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let on_ready = move |_: &Path| {
            // Whoever waits for it is below.
            let _ = ready.send(());
        };
        #[expect(clippy::disallowed_methods, reason = "a test: the server is joined when it stops")]
        let running = tokio::spawn(async move { muster_server::run(options, on_ready).await.unwrap() });
        is_ready.await.unwrap();
        let client = Client::connect(Endpoint::unix(dir.path().join("server.sock"))).await.unwrap();
        Self { client, dir, running }
    }

    pub async fn new() -> Self {
        Self::start(tempfile::tempdir().unwrap(), Duration::from_secs(3600)).await
    }

    pub async fn stop(self) -> TempDir {
        self.client.shutdown_server().await.unwrap();
        drop(self.client);
        self.running.await.unwrap();
        self.dir
    }

    pub async fn send(&self, contents: &[&[u8]]) {
        self.client.put_chunks(vec![pack(contents).into()]).await.unwrap();
    }

    pub async fn refused(&self, pack: Vec<u8>) -> Problem {
        refusal(self.client.put_chunks(vec![pack.into()]).await.unwrap_err())
    }

    /// Sends a bundle of one chunk whole.
    pub async fn bundle(&self, content: &[u8]) -> BundleId {
        self.send(&[content]).await;
        let status = self.client.put_bundle(&manifest(content)).await.unwrap();
        assert_eq!(status.missing, []);
        status.id
    }

    pub fn file(&self, id: &ChunkId) -> std::path::PathBuf {
        let digest = id.as_str().trim_start_matches(ChunkId::PREFIX);
        self.dir.path().join("chunks").join(&digest[..1]).join(digest)
    }
}

pub fn pack(contents: &[&[u8]]) -> Vec<u8> {
    let mut pack = Vec::new();
    for content in contents {
        chunk::push(&mut pack, &chunk::id(content), &Encoder::default().encode(content));
    }
    pack
}

pub fn manifest(content: &[u8]) -> PutBundle {
    let content = Chunk { id: chunk::id(content), bytes: content.len() as u64 };
    PutBundle { listing: Vec::new(), content: vec![content] }
}

pub fn job(bundle: Option<BundleId>, diff: Option<ChunkId>) -> CreateJob {
    let source = Source { commit: "c0ffee".into(), branch: Some("main".into()), dirty: diff.is_some(), diff };
    CreateJob { spec: json!({ "command": ["true"] }), bundle, source: Some(source), environment: None }
}

pub fn refusal(error: Error) -> Problem {
    match error {
        Error::Problem(problem) => *problem,
        other => panic!("{other}"),
    }
}

/// What a look finds, as soon as it finds something.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), found).await.unwrap_or_else(|_| panic!("{what}"))
}
