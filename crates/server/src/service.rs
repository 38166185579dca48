//! The server's life: lock, open, listen, serve, and stop without harming a job.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use muster_engine::Family;
use muster_link::own_dir::check_home;
use muster_model::NodeId;
use muster_model::pool::PoolSpec;
use muster_model::spec::Target;
use muster_scheduler::Policy;
use muster_store::{Readers, Store};
use rustix::fs::FlockOperation;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::accounts::{Accounts, Entrance};
use crate::audit::{self, Trail};
use crate::auth::Auth;
use crate::backup;
use crate::chunk_store::ChunkStore;
use crate::core::{Core, Handle, Input, Parts};
use crate::delegate::Troubles;
use crate::disk::{self, DiskFloor, DiskReserve};
use crate::engines::Engines;
use crate::http::{Door, router};
use crate::keeper::Word;
use crate::limits::Limits;
use crate::link::Bulks;
use crate::log_store::LogStore;
use crate::metrics::{Commits, Metrics};
use crate::port::Port;
use crate::reload::{self, ReadAgain, Reloads};
use crate::retention::{self, Keep};
use crate::starts::Starts;
use crate::state::{Activity, Shared};
use crate::tls::{Certificate, Shake};
use crate::vault::Vault;
use crate::volume::Volume;

/// Where its user's programs come in, in the data directory.
const SOCKET: &str = "server.sock";
/// Where connections from other machines are joined: whoever comes in there shows a token for everything.
const GATE: &str = "gate.sock";
/// How often the server asks itself whether anyone still needs it, at most.
const IDLE_CHECK: Duration = Duration::from_secs(15);
/// How long requests that are being answered may take once the server was told to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// Logins of the audit log that are read at the start, for the login rate limiter.
const KNOWN_LOGINS: u32 = 20_000;

/// How long a lock may be held by nobody who matters.
const HELD_FOR_A_MOMENT: Duration = Duration::from_millis(200);

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// The private socket in the data directory.
    Socket,
    /// `host:port`, besides the socket.
    Tcp(String),
}

/// How to run a server.
pub struct Options {
    /// Its data directory.
    pub home: PathBuf,
    /// Where else to listen than the socket.
    pub listen: Listen,
    /// What it shows on TCP, where it speaks TLS there.
    pub certificate: Option<Arc<Certificate>>,
    /// The token that people show on TCP; one of its own, which it makes and keeps, if none.
    pub token: Option<String>,
    /// The key that secrets are sealed with; one of its own, which it makes and keeps, if none.
    pub secrets_key: Option<String>,
    /// Whether it has accounts, and how people come in there.
    pub accounts: Option<Entrance>,
    /// End after so long with no unfinished job and no client.
    pub idle_exit: Option<Duration>,
    /// The engines it has.
    pub engines: Engines,
    /// The binary's identity.
    pub build: String,
    /// The version, for people.
    pub version: String,
    /// Whose jobs these are.
    pub owner: String,
    /// What it keeps, and for how long.
    pub keep: Keep,
    /// How much may be stored.
    pub limits: Limits,
    /// What tasks find at the same path everywhere.
    pub volumes: Vec<Volume>,
    /// How queues are kept; it has been checked.
    pub policy: Policy,
    /// The pools of its configuration; they have been checked.
    pub pools: Vec<PoolSpec>,
    /// Reads the configuration anew.
    pub read_again: ReadAgain,
}

/// Why a server could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another one has the data directory.
    #[error("another server is running on {0}")]
    AlreadyRunning(PathBuf),
    /// Its data are not all there.
    #[error("a restore into {0} has not ended: run `muster server restore` again")]
    Unrestored(PathBuf),
    /// Something about the data directory or a socket.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// An operation that nobody has said who may do it.
    #[error("the rules of who may do what are not complete: {0}")]
    Unruled(String),
    /// What the database knew is there without it.
    #[error(
        "the database of {home} is missing or empty, and logs, code or the mark of its last change are there\n\
         hint: put muster.db back, or restore a backup into an empty directory with `muster server restore`; \
         to start without those jobs, remove {mark}, logs and chunks from there",
        home = .0.display(),
        mark = Store::MARK
    )]
    NoDatabase(PathBuf),
    /// Changes that were acknowledged are not in the database.
    #[error(
        "{lost}\n\
         hint: put muster.db and muster.db-wal back, or restore a backup into an empty directory with `muster server restore`; \
         to go on without those changes, remove {}", mark.display()
    )]
    Lost {
        /// What is lost.
        lost: muster_store::Error,
        /// The mark of the last change.
        mark: PathBuf,
    },
    /// The database.
    #[error("the database cannot be used")]
    Store(#[from] muster_store::Error),
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { what: what.into(), source }
}

/// Runs a server until it is told to stop or nobody needs it. `on_ready` is called once requests are answered.
pub async fn run(options: Options, on_ready: impl FnOnce(&Path) + Send) -> Result<(), Error> {
    let home = options.home.clone();
    check_home(&home).map_err(io_error("use the data directory"))?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&home)
        .map_err(io_error("create the data directory"))?;
    let _lock = lock(&home).await?;
    if backup::is_unfinished(&home) {
        return Err(Error::Unrestored(home));
    }
    backup::remove_leftovers(&home).map_err(io_error("remove what is left of a backup"))?;
    let reserve = Arc::new(DiskReserve::new(&home));
    reserve.make_room();
    let stop = CancellationToken::new();
    let server = start(options, reserve, stop.clone()).await?;
    let mut components = JoinSet::new();
    // Whoever can connect must already find the true record.
    write_record(&home, &server.shared).map_err(io_error("write server.json"))?;
    let socket = listen_on(&home, SOCKET)?;
    let app = |door| router(&server.shared, door).map_err(Error::Unruled);
    components.spawn(serve_unix(socket, app(Door::Private)?, stop.clone()));
    let gate = listen_on(&home, GATE)?;
    components.spawn(serve_unix(gate, app(Door::Public)?, stop.clone()));
    if let Some(port) = server.port {
        components.spawn(port.serve(app(Door::Public)?, stop.clone()));
    }
    components.spawn(crate::keeper::run(server.shared.clone(), server.words, stop.clone()));
    components.spawn(crate::delegate::run(server.shared.clone(), server.delegated, stop.clone()));
    components.spawn(retention::run(server.shared.clone(), stop.clone()));
    components.spawn(disk::keep_reserve(
        server.shared.reserve.clone(),
        server.shared.floor.clone(),
        stop.clone(),
    ));
    components.spawn(audit::run(server.shared.clone(), stop.clone()));
    components.spawn(crate::memory::run(server.shared.clone(), stop.clone()));
    components.spawn(stop_on_signal(stop.clone()));
    components.spawn(reload::on_signal(server.shared.clone(), stop.clone()));
    components.spawn(stop_when_idle(server.shared.clone(), server.idle_exit, stop.clone()));
    tracing::info!(home = %home.display(), version = server.shared.version, "the server is ready");
    on_ready(&home);
    stop.cancelled().await;
    // Requests that are being answered get their answer; whoever stays longer is cut off.
    let drained = async { while components.join_next().await.is_some() {} };
    drop(tokio::time::timeout(DRAIN, drained).await);
    components.abort_all();
    if let Err(problem) = server.shared.trail.close(&server.shared.core).await {
        tracing::warn!(%problem, "the last audit entries were not written");
    }
    drop(fs::remove_file(home.join(SOCKET)));
    drop(fs::remove_file(home.join(GATE)));
    drop(server.shared.core.ask(Input::Dismiss).await);
    server.shared.hang_up.cancel();
    let core = server.core;
    drop(server.shared);
    while components.join_next().await.is_some() {}
    drop(tokio::time::timeout(DRAIN, tokio::task::spawn_blocking(move || core.join())).await);
    tracing::info!("the server has stopped; jobs keep running");
    Ok(())
}

struct Server {
    shared: Arc<Shared>,
    core: std::thread::JoinHandle<()>,
    words: mpsc::UnboundedReceiver<Word>,
    delegated: mpsc::UnboundedReceiver<crate::delegate::Word>,
    port: Option<Port>,
    idle_exit: Option<Duration>,
}

async fn start(
    options: Options,
    reserve: Arc<DiskReserve>,
    stop: CancellationToken,
) -> Result<Server, Error> {
    let home = options.home;
    let Store { writer, readers } = open_store(&home)?;
    close_to_other_accounts(&home).map_err(io_error("close the data directory to other accounts"))?;
    let engines = Arc::new(options.engines);
    let floor = Arc::new(DiskFloor::new(home.clone(), options.limits.free_bytes));
    let logs = Arc::new(LogStore::new(home.join("logs"), floor.clone()));
    let (news, news_receiver) = watch::channel(readers.largest_event_seq()?);
    let (words_sender, words) = mpsc::unbounded_channel();
    let (delegate, delegated) = mpsc::unbounded_channel();
    let (starts, troubles) = (Arc::new(Starts::default()), Arc::new(Troubles::default()));
    let nodes = offered(&engines).await;
    let auth = Auth::open(&home, options.token).map_err(io_error("read the server's secrets"))?;
    let vault = Vault::open(&home, options.secrets_key.as_deref())
        .map_err(io_error("read the key of the secrets"))?;
    let vault = Arc::new(vault);
    let (metrics, commits) = (Arc::new(Metrics::new()), Arc::new(Commits::default()));
    let accounts = match options.accounts {
        Some(_) => Some(Arc::new(Accounts::new(readers.accounts()?, known_clients(&readers)?))),
        None => None,
    };
    let parts = Parts {
        gang_key: auth.gang_key(),
        vault: vault.clone(),
        writer,
        readers: readers.clone(),
        engines: engines.clone(),
        logs: logs.clone(),
        metrics: metrics.clone(),
        commits: commits.clone(),
        news,
        words: words_sender,
        delegate,
        troubles: troubles.clone(),
        starts: starts.clone(),
        home: home.clone(),
        reserve: reserve.clone(),
        keep: options.keep.node.clone(),
        disk: options.limits.disk.clone(),
        accounts: accounts.clone(),
        owner: options.owner.clone(),
        volumes: options.volumes.clone(),
        policy: options.policy.clone(),
    };
    let core = Core::load(parts, nodes)?;
    let (handle, inputs) = Handle::new();
    let thread = std::thread::Builder::new().name("core".into()).spawn(move || core.run(inputs));
    let port = match options.listen {
        Listen::Socket => None,
        Listen::Tcp(address) => {
            let listener =
                TcpListener::bind(&address).await.map_err(io_error(format!("listen on {address}")))?;
            if let Ok(address) = listener.local_addr() {
                match &options.certificate {
                    None => tracing::info!(%address, "listening"),
                    Some(shown) => {
                        tracing::info!(%address, fingerprint = %shown.fingerprint(), "listening, with TLS");
                    }
                }
                disk::replace_file(&home.join("server.address"), &address.to_string())
                    .map_err(io_error("write server.address"))?;
            }
            let shake = options.certificate.clone().map(Shake::new).transpose();
            let shake = shake.map_err(io::Error::other).map_err(io_error("speak TLS"))?;
            Some(Port::new(listener, shake))
        }
    };
    let shared = Arc::new(Shared {
        core: handle,
        readers,
        engines,
        logs,
        bulks: Bulks::default(),
        metrics,
        commits,
        trail: Trail::new(accounts.is_some()),
        starts,
        troubles,
        chunks: ChunkStore::open(home.join("chunks"), options.keep.unused)
            .map_err(io_error("open the chunks of bundles"))?,
        auth,
        vault,
        accounts,
        volumes: options.volumes,
        entrance: options.accounts,
        certificate: options.certificate,
        news: news_receiver,
        activity: Activity::new(),
        stop,
        hang_up: CancellationToken::new(),
        keep: options.keep.into(),
        limits: options.limits.into(),
        floor,
        reserve,
        uploads: Default::default(),
        usage: Default::default(),
        reloads: Reloads::new(options.read_again),
        collecting: tokio::sync::Mutex::default(),
        owner: options.owner,
        home: home.to_string_lossy().into_owned(),
        build: options.build,
        version: options.version,
        started_at: crate::core::now(),
    });
    // Nobody is served before the pools are what the configuration says.
    drop(shared.core.ask(|reply| Input::Configure(options.pools, reply)).await);
    if let Some(accounts) = &shared.accounts {
        accounts.bootstrap(&shared.core, &home).await.map_err(io_error("make the first admin"))?;
    }
    Ok(Server {
        shared,
        core: thread.map_err(io_error("start the core"))?,
        words,
        delegated,
        port,
        idle_exit: options.idle_exit,
    })
}

/// Opens the database. A missing one is not created beside what belongs to its jobs: they would seem never to have been, and what is
/// left of them would be removed.
fn open_store(home: &Path) -> Result<Store, Error> {
    if !Store::exists(home) && has_records(home).map_err(io_error("read the data directory"))? {
        return Err(Error::NoDatabase(home.into()));
    }
    Store::open(home).map_err(|error| match error {
        muster_store::Error::Missing { .. } => Error::NoDatabase(home.into()),
        lost @ muster_store::Error::Lost { .. } => Error::Lost { lost, mark: home.join(Store::MARK) },
        error => Error::Store(error),
    })
}

/// Whether a data directory has logs or code of jobs.
fn has_records(home: &Path) -> io::Result<bool> {
    let entries = |path: &Path| match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>(),
    };
    if !entries(&home.join("logs"))?.is_empty() {
        return Ok(true);
    }
    for path in entries(&home.join("chunks"))?.iter().filter(|path| path.is_dir()) {
        if !entries(path)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Accounts that logged in, and from where, oldest first.
fn known_clients(readers: &Readers) -> Result<Vec<(String, Option<IpAddr>)>, Error> {
    let logins = readers.logins(KNOWN_LOGINS)?.into_iter().rev();
    Ok(logins.map(|(user, address)| (user, address.and_then(|text| text.parse().ok()))).collect())
}

/// The nodes that fleets have by themselves, before anybody configures any, with what they are called in a spec.
async fn offered(engines: &Engines) -> Vec<(NodeId, Target)> {
    let mut all = Vec::new();
    for engine in engines.iter().filter(|engine| engine.capabilities().family == Family::Fleet) {
        let name = engine.capabilities().name;
        // Where a target is more than the engine's name, its nodes are configured.
        let Ok(target) = name.parse::<Target>() else { continue };
        match engine.nodes().await {
            Ok(offers) => {
                let own = offers.into_iter().filter_map(|offer| offer.node);
                all.extend(own.map(|node| (node, target.clone())));
            }
            Err(error) => tracing::error!(engine = name, %error, "the engine does not answer"),
        }
    }
    all
}

/// Closes logs, chunks and the database to other accounts. The data directory itself may be open to them, because nodes of this
/// machine have their directories there too. SQLite gives new files beside the database the database's mode.
fn close_to_other_accounts(home: &Path) -> io::Result<()> {
    for name in ["logs", "chunks"] {
        let path = home.join(name);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
    }
    for suffix in ["", "-wal", "-shm"] {
        let path = home.join(format!("{}{suffix}", Store::FILE));
        match fs::set_permissions(&path, fs::Permissions::from_mode(0o600)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Held for life: two servers never share a data directory. A program that the last one was just starting shares its open files until it
/// is that program, so that a lock which is held for a moment is no server's.
async fn lock(home: &Path) -> Result<File, Error> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(home.join("server.lock"))
        .map_err(io_error("open server.lock"))?;
    let deadline = tokio::time::Instant::now() + HELD_FOR_A_MOMENT;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(HELD_FOR_A_MOMENT / 20).await;
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(Error::AlreadyRunning(home.into())),
            Err(errno) => return Err(io_error("lock server.lock")(errno.into())),
        }
    }
}

fn listen_on(home: &Path, name: &str) -> Result<UnixListener, Error> {
    let path = home.join(name);
    // The lock is ours, so whoever left this socket is gone.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(io_error("remove the old socket")(error));
        }
        _ => {}
    }
    let short = muster_link::unix::socket_path(&path).map_err(io_error("open the data directory"))?;
    let listener = UnixListener::bind(short.as_path()).map_err(io_error(format!("listen on {name}")))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
        .map_err(io_error(format!("protect {name}")))?;
    Ok(listener)
}

/// What clients read before they connect: which process and which binary this is.
fn write_record(home: &Path, shared: &Shared) -> io::Result<()> {
    let record =
        serde_json::json!({ "pid": std::process::id(), "build": shared.build, "version": shared.version });
    disk::replace_file(&home.join("server.json"), &record.to_string())
}

async fn serve_unix(listener: UnixListener, app: Router, stop: CancellationToken) {
    let serving = axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned());
    if let Err(error) = serving.await {
        tracing::error!(%error, "the socket is no longer served");
    }
}

fn stop_on_signal(stop: CancellationToken) -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};
    // Caught from now on, and not once the future is polled: a server that says that it is ready stops in order.
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    async move {
        let (Ok(mut terminate), Ok(mut interrupt)) = signals else {
            return tracing::error!("signals cannot be caught");
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = stop.cancelled() => {}
        }
        stop.cancel();
    }
}

async fn stop_when_idle(shared: Arc<Shared>, limit: Option<Duration>, stop: CancellationToken) {
    let Some(limit) = limit else { return };
    loop {
        tokio::select! {
            () = tokio::time::sleep(limit.min(IDLE_CHECK).max(Duration::from_millis(10))) => {}
            () = stop.cancelled() => return,
        }
        if shared.activity.idle() >= limit
            && matches!(shared.core.ask(Input::Unfinished).await, Ok(0))
            && matches!(shared.core.ask(Input::Kept).await, Ok(0))
        {
            tracing::info!("nobody needs this server; it ends");
            return stop.cancel();
        }
    }
}

/// A server that takes no connections, for tests of what is behind them.
#[cfg(test)]
pub(crate) struct Unserved {
    pub shared: Arc<Shared>,
    /// What is to be done at other schedulers, for whoever does it.
    pub delegated: Option<mpsc::UnboundedReceiver<crate::delegate::Word>>,
    core: std::thread::JoinHandle<()>,
}

#[cfg(test)]
impl Unserved {
    pub async fn start(options: Options) -> Result<Self, Error> {
        let reserve = Arc::new(DiskReserve::new(&options.home));
        let server = start(options, reserve, CancellationToken::new()).await?;
        Ok(Self { shared: server.shared, delegated: Some(server.delegated), core: server.core })
    }

    /// Ends the core once nobody holds what is shared.
    pub async fn stop(self) {
        drop(self.shared);
        drop(tokio::task::spawn_blocking(move || self.core.join()).await);
    }
}

/// Options of a server with the local engine, whose agent does not start.
#[cfg(test)]
pub(crate) fn local_options(home: &Path) -> Options {
    use muster_engine::local::{self, Local};

    let local = local::Options {
        dir: home.join("node"),
        exe: "/nonexistent".into(),
        arguments: Vec::new(),
        binary: || None,
    };
    Options {
        keep: Keep::default(),
        limits: Default::default(),
        volumes: Vec::new(),
        policy: Default::default(),
        pools: Vec::new(),
        read_again: Box::new(|| Err("there is no configuration".into())),
        home: home.into(),
        listen: Listen::Socket,
        certificate: None,
        token: None,
        secrets_key: None,
        accounts: None,
        idle_exit: None,
        engines: Engines::new(vec![Arc::new(Local::new(local))]),
        build: "build".into(),
        version: "1".into(),
        owner: "me".into(),
    }
}
