//! Taking over a changed configuration while jobs run.
//!
//! What can change under a running server does: what is kept, and the pools of the configuration. What cannot is named, and is
//! as it was until the next start. A configuration that cannot be used changes nothing.

use std::io::{self, IsTerminal};
use std::sync::{Arc, PoisonError};

use muster_api::problem::{Code, Problem};
use muster_api::view::ServerReload;
use muster_model::pool::PoolSpec;
use tokio_util::sync::CancellationToken;

use crate::core::Input;
use crate::limits::Limits;
use crate::retention::Keep;
use crate::state::Shared;

/// Reads the configuration and checks it; what is wrong with it otherwise.
pub type ReadAgain = Box<dyn Fn() -> Result<Fresh, String> + Send + Sync>;

/// What a configuration says now.
#[derive(Debug, Clone)]
pub struct Fresh {
    /// What is kept, and for how long.
    pub keep: Keep,
    /// How much may be stored.
    pub limits: Limits,
    /// The pools in it; they have been checked.
    pub pools: Vec<PoolSpec>,
    /// The settings that differ from what it said the last time, and hold from now on.
    pub changed: Vec<String>,
    /// The settings that differ from what it said when the server started, and hold after the next start.
    pub needs_restart: Vec<String>,
}

/// How the configuration is read, one after the other.
pub(crate) struct Reloads {
    read: ReadAgain,
    turn: tokio::sync::Mutex<()>,
}

impl Reloads {
    pub fn new(read: ReadAgain) -> Self {
        Self { read, turn: tokio::sync::Mutex::default() }
    }
}

/// Takes over what the configuration says now.
pub(crate) async fn reload(shared: &Arc<Shared>) -> Result<ServerReload, Problem> {
    let _turn = shared.reloads.turn.lock().await;
    let reader = shared.clone();
    let read = tokio::task::spawn_blocking(move || (reader.reloads.read)()).await;
    let read = read.map_err(|_| Problem::new(Code::Internal, "the configuration could not be read"))?;
    let fresh = read.map_err(|wrong| {
        Problem::new(Code::ServerConfigInvalid, wrong)
            .hint("nothing was changed; correct config.toml (`muster config path` says where it is), then `muster server reload`")
    })?;
    shared.core.ask(|reply| Input::Configure(fresh.pools, reply)).await?;
    let node = fresh.keep.node.clone();
    // The grace of unused code stays: chunks were promised to clients for as long as it was.
    let unused = shared.keep().unused;
    *shared.keep.write().unwrap_or_else(PoisonError::into_inner) = Keep { unused, ..fresh.keep };
    shared.core.tell(Input::Keep(node)).await?;
    shared.core.tell(Input::Disk(fresh.limits.disk.clone())).await?;
    shared.floor.set(fresh.limits.free_bytes);
    *shared.limits.write().unwrap_or_else(PoisonError::into_inner) = fresh.limits;
    let report = ServerReload { changed: fresh.changed, needs_restart: fresh.needs_restart };
    tracing::info!(changed = ?report.changed, needs_restart = ?report.needs_restart, "the configuration was read anew");
    Ok(report)
}

/// Reloads at every SIGHUP. On a terminal that signal says that nobody is there any more, and ends the server as it ends any program.
pub(crate) async fn on_signal(shared: Arc<Shared>, stop: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    if io::stderr().is_terminal() {
        return;
    }
    let Ok(mut hang_up) = signal(SignalKind::hangup()) else {
        return tracing::error!("SIGHUP cannot be caught");
    };
    loop {
        tokio::select! {
            received = hang_up.recv() => if received.is_none() { return },
            () = stop.cancelled() => return,
        }
        if let Err(problem) = reload(&shared).await {
            tracing::error!(%problem, "the configuration cannot be used; nothing was changed");
        }
    }
}
