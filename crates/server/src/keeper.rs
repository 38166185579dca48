//! Keeps an agent running on every node of the fleets: at the start, whenever one goes away, and as nodes come and go.
//!
//! The core says what happens to nodes ([`Word`]); nothing is polled. Each node has one try at a time, and pauses between
//! them that grow. Why a try failed is left in [`crate::starts`] for whoever shows nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use muster_api::view::NodeError;
use muster_engine::{Class, Error, Key, Machine, StartRequest};
use muster_model::NodeId;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::state::Shared;

/// How soon a start that brought no agent is repeated; it doubles up to the longest. The first is short, because an
/// agent that just died may still seem to run.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// What does not pass by itself is mended by people, who need not wait long to see it.
const TERMINAL_PAUSE: Duration = Duration::from_secs(30);
/// A node that stayed for less than this is not started anew at once: it may come and go because the server cannot write.
const SHORT_STAY: Duration = Duration::from_secs(1);
/// A start may send a binary over a slow line; an engine has shorter deadlines for everything else.
const START: Duration = Duration::from_secs(600);
const STOP: Duration = Duration::from_secs(30);
/// Starts at once: each may be a process or two here.
const AT_ONCE: usize = 64;
/// Words taken at once.
const MAX_WORDS: usize = 1024;

/// What the core says about a node.
#[derive(Debug)]
pub(crate) enum Word {
    /// It is to have an agent, and is tried at once if it has none.
    Join { node: NodeId, engine: &'static str, machine: Option<Machine> },
    /// Its agent is there.
    Arrived(NodeId),
    /// Its agent is gone.
    Away(NodeId),
    /// An agent came for it that was not let in.
    Refused { node: NodeId, why: String },
    /// It is nobody's any more: its agent is to end.
    Leave(NodeId),
}

/// What came to its end.
enum Done {
    Start(NodeId, Result<(), Error>),
    Stop(NodeId),
    /// A pause, with the round it belongs to.
    Pause(NodeId, u64),
}

/// A node and what is done about it.
struct Kept {
    engine: &'static str,
    arrived_at: Option<Instant>,
    /// A start or a stop goes on.
    is_busy: bool,
    is_leaving: bool,
    /// The last agent that came was not let in. The next may be, when somebody has seen to it.
    is_refused: bool,
    /// What goes on was begun before the last word: its failure says nothing, and it is followed by another try.
    is_stale: bool,
    pause: Duration,
    /// Which pause counts: every change begins a new round.
    round: u64,
}

struct Keeper<'a> {
    shared: &'a Shared,
    nodes: BTreeMap<NodeId, Kept>,
    machines: BTreeMap<NodeId, (&'static str, Machine)>,
    /// Engines whose machines are not as they were when they were last told.
    changed: BTreeSet<&'static str>,
    work: FuturesUnordered<BoxFuture<'a, Done>>,
    turn: Arc<Semaphore>,
}

/// Runs until cancelled.
pub(crate) async fn run(
    shared: Arc<Shared>,
    mut words: mpsc::UnboundedReceiver<Word>,
    stop: CancellationToken,
) {
    let mut keeper = Keeper {
        shared: &shared,
        nodes: BTreeMap::new(),
        machines: BTreeMap::new(),
        changed: BTreeSet::new(),
        work: FuturesUnordered::new(),
        turn: Arc::new(Semaphore::new(AT_ONCE)),
    };
    let mut said = Vec::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            count = words.recv_many(&mut said, MAX_WORDS) => match count {
                0 => return,
                _ => keeper.on_words(said.drain(..)),
            },
            Some(done) = keeper.work.next() => keeper.on_done(done),
        }
    }
}

impl<'a> Keeper<'a> {
    fn on_words(&mut self, words: impl Iterator<Item = Word>) {
        let mut joined = Vec::new();
        for word in words {
            match word {
                Word::Join { node, engine, machine } => {
                    if let Some(machine) = machine {
                        self.machines.insert(node.clone(), (engine, machine));
                        self.changed.insert(engine);
                    }
                    self.nodes.entry(node.clone()).or_insert_with(|| Kept::new(engine));
                    joined.push(node);
                }
                Word::Arrived(node) => self.on_arrived(&node),
                Word::Away(node) => self.on_away(&node),
                Word::Refused { node, why } => self.on_refused(&node, why),
                Word::Leave(node) => self.on_leave(&node),
            }
        }
        // An engine knows a machine before it is asked to start something there.
        self.adopt();
        joined.iter().for_each(|node| self.on_join(node));
    }

    fn adopt(&mut self) {
        for name in std::mem::take(&mut self.changed) {
            if let Some(engine) = self.shared.engines.get(name) {
                let own = self.machines.values().filter(|(engine, _)| *engine == name);
                engine.adopt(own.map(|(_, machine)| machine.clone()).collect());
            }
        }
    }

    fn on_join(&mut self, node: &NodeId) {
        let Some(kept) = self.nodes.get_mut(node) else { return };
        kept.is_leaving = false;
        kept.pause = FIRST_PAUSE;
        if kept.arrived_at.is_none() {
            kept.is_stale = kept.is_busy;
            self.start(node);
        }
    }

    fn on_arrived(&mut self, node: &NodeId) {
        if let Some(kept) = self.nodes.get_mut(node) {
            kept.arrived_at = Some(Instant::now());
            kept.is_refused = false;
            kept.round += 1;
        }
    }

    /// Only people can mend it. An agent that is there already stays, whoever else has come in its name.
    fn on_refused(&mut self, node: &NodeId, why: String) {
        let Some(kept) = self.nodes.get_mut(node).filter(|kept| !kept.is_leaving) else { return };
        if kept.arrived_at.is_some() {
            return tracing::warn!(%node, error = why, "another agent came for a connected node and was refused");
        }
        kept.is_refused = true;
        let is_busy = kept.is_busy;
        self.record(node, &Error::terminal(why));
        if !is_busy {
            self.pause(node, Some(TERMINAL_PAUSE));
        }
    }

    fn on_away(&mut self, node: &NodeId) {
        let Some(kept) = self.nodes.get_mut(node).filter(|kept| !kept.is_leaving) else { return };
        let stayed = kept.arrived_at.take().is_none_or(|at| at.elapsed() >= SHORT_STAY);
        self.shared.starts.begin(node);
        if stayed {
            kept.pause = FIRST_PAUSE;
            self.start(node);
        } else {
            self.pause(node, None);
        }
    }

    fn on_leave(&mut self, node: &NodeId) {
        let Some(kept) = self.nodes.get_mut(node) else { return };
        kept.is_leaving = true;
        kept.arrived_at = None;
        kept.round += 1;
        self.stop(node);
    }

    fn on_done(&mut self, done: Done) {
        match done {
            Done::Start(node, result) => self.on_started(&node, result),
            Done::Stop(node) => self.on_stopped(&node),
            Done::Pause(node, round) => {
                if self.nodes.get(&node).is_some_and(|kept| kept.round == round) {
                    self.start(&node);
                }
            }
        }
    }

    fn on_started(&mut self, node: &NodeId, result: Result<(), Error>) {
        let Some(kept) = self.nodes.get_mut(node) else { return };
        kept.is_busy = false;
        let is_stale = std::mem::take(&mut kept.is_stale);
        match result {
            _ if kept.is_leaving => self.stop(node),
            _ if kept.arrived_at.is_some() => {}
            Err(_) if is_stale => self.start(node),
            Ok(()) if kept.is_refused => self.pause(node, Some(TERMINAL_PAUSE)),
            Ok(()) => {
                if kept.pause >= LONGEST_PAUSE {
                    let error = Error::retryable("its agent was started, but does not connect", silent());
                    self.record(node, &error);
                }
                self.pause(node, None);
            }
            Err(error) => {
                self.record(node, &error);
                let wait = match error.class {
                    Class::Retryable => None,
                    Class::Terminal | Class::NotFound => Some(TERMINAL_PAUSE),
                };
                self.pause(node, wait);
            }
        }
    }

    fn on_stopped(&mut self, node: &NodeId) {
        let Some(kept) = self.nodes.get_mut(node) else { return };
        kept.is_busy = false;
        // It was taken back in the meantime.
        if !kept.is_leaving {
            return self.start(node);
        }
        self.nodes.remove(node);
        if let Some((engine, _)) = self.machines.remove(node) {
            self.changed.insert(engine);
            self.adopt();
        }
    }

    /// Keeps why a start failed, and logs it once.
    fn record(&self, node: &NodeId, error: &Error) {
        let message = words(error);
        if self.shared.starts.error(node).is_none_or(|known| known.message != message) {
            tracing::warn!(%node, error = message, "the agent could not be started");
        }
        let may_pass = error.class == Class::Retryable;
        self.shared.starts.failed(node, NodeError { message, may_pass, at: crate::core::now() });
    }

    fn start(&mut self, node: &NodeId) {
        let Some(kept) = self.nodes.get_mut(node).filter(|kept| !kept.is_busy) else { return };
        kept.is_busy = true;
        kept.round += 1;
        let (shared, turn, engine, node) = (self.shared, self.turn.clone(), kept.engine, node.clone());
        self.work.push(Box::pin(async move {
            let request = StartRequest::node(node.clone(), shared.auth.node_token(&node));
            let started = async {
                let _turn = turn.acquire_owned().await;
                let Some(engine) = shared.engines.get(engine) else {
                    return Err(Error::terminal(format!("this server has no {engine} engine")));
                };
                let late = |_| Err(Error::retryable("start the agent", silent()));
                timeout(START, engine.start(&request)).await.unwrap_or_else(late)
            };
            let result = started.await;
            Done::Start(node, result.map(drop))
        }));
    }

    fn stop(&mut self, node: &NodeId) {
        let Some(kept) = self.nodes.get_mut(node).filter(|kept| !kept.is_busy) else { return };
        kept.is_busy = true;
        let (shared, engine, node) = (self.shared, kept.engine, node.clone());
        self.work.push(Box::pin(async move {
            if let Some(engine) = shared.engines.get(engine) {
                match timeout(STOP, engine.stop(&Key::Node(node.clone()))).await {
                    Ok(Ok(())) => tracing::info!(%node, "removed; its agent has ended"),
                    Ok(Err(error)) => {
                        tracing::warn!(%node, error = words(&error), "removed; its agent may go on")
                    }
                    Err(_) => tracing::warn!(%node, "removed; its agent may go on: the host does not answer"),
                }
            }
            Done::Stop(node)
        }));
    }

    /// The next try comes later: after this long, or after pauses that grow.
    fn pause(&mut self, node: &NodeId, wait: Option<Duration>) {
        let Some(kept) = self.nodes.get_mut(node) else { return };
        let wait = wait.unwrap_or(kept.pause);
        kept.pause = (kept.pause * 2).min(LONGEST_PAUSE);
        kept.round += 1;
        let (round, node) = (kept.round, node.clone());
        self.work.push(Box::pin(async move {
            sleep(wait).await;
            Done::Pause(node, round)
        }));
    }
}

impl Kept {
    fn new(engine: &'static str) -> Self {
        Self {
            engine,
            arrived_at: None,
            is_busy: false,
            is_leaving: false,
            is_refused: false,
            is_stale: false,
            pause: FIRST_PAUSE,
            round: 0,
        }
    }
}

pub(crate) fn silent() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer within the time it may take")
}

/// An engine's error with its cause, in one line.
pub(crate) fn words(error: &Error) -> String {
    match &error.source {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
