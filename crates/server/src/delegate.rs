//! Speaks with other people's schedulers: hands gangs over, looks what became of them, takes them back.
//!
//! The core says what is to be done ([`Word`]) and hears what came of it ([`News`]); it never waits for a scheduler. Calls
//! that fail are repeated after pauses that grow. However many allocations an account has there, one look asks for all of them:
//! now and then while there are any, and at once when the core wants to know. Accounts do not wait for each other. What an engine
//! says is new is looked at as it says so. Nothing here decides what an answer means.

mod look;
mod trouble;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use muster_engine::{Class, Engine, Error, Gang, Key, Observed, Seat, StartRequest};
use muster_model::spec::Target;
use muster_model::{AttemptId, JobId, NodeId};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::look::{Look, Looks};
pub(crate) use self::trouble::Troubles;
use crate::core::Input;
use crate::keeper::{silent, words};
use crate::state::Shared;

/// How soon a call that failed is repeated; it doubles up to the longest. A controller that restarts is back in seconds.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The next attempt may wait for what is given back.
const LONGEST_PAUSE_BACK: Duration = Duration::from_secs(5);
/// A scheduler under load takes its time, and a call that is cut off leaves it unknown whether it was heard.
#[cfg(not(test))]
const START: Duration = Duration::from_secs(300);
/// Tests do not wait so long to see what follows.
#[cfg(test)]
const START: Duration = Duration::from_millis(300);
const STOP: Duration = Duration::from_secs(60);
/// Gangs handed over at once, in the order in which they came: each is a process or a request at the other scheduler.
const AT_ONCE: usize = 4;
/// Where gangs are handed over under several accounts, these have that many together.
const AT_ONCE_OF_ALL: usize = 16;
/// How often agents that are to tell what they know are tried to be started, and files to be removed.
const TRIES: u32 = 3;
/// Words taken at once.
const MAX_WORDS: usize = 1024;

/// Where a gang is handed over, and under which account of the machine's; none: the one that its engine has for all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GangTarget {
    pub target: Target,
    pub account: Option<String>,
}

impl GangTarget {
    pub fn engine(&self) -> &'static str {
        self.target.engine()
    }

    /// What the engine knows an attempt by.
    pub fn key(&self, attempt: &AttemptId) -> Key {
        let place = self.target.place().to_owned();
        Key::Gang { attempt: attempt.clone(), place, account: self.account.clone() }
    }

    fn submitter(&self) -> Submitter {
        Submitter { engine: self.engine(), account: self.account.clone() }
    }
}

/// An account at an engine's scheduler. Each is asked on its own and has its own turns, so that one which does not answer keeps no
/// other waiting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Submitter {
    engine: &'static str,
    account: Option<String>,
}

/// What the core wants.
#[derive(Debug)]
pub(crate) enum Word {
    /// A gang goes to the other scheduler, or went and nobody knows whether it arrived.
    HandOver { attempt: AttemptId, target: GangTarget, nodes: Vec<NodeId>, gang: Box<Gang> },
    /// It is with the other scheduler: what becomes of it is to be seen.
    Watch { attempt: AttemptId, target: GangTarget },
    /// The core waits for an answer about this one, also if it is the same as before.
    Look(AttemptId),
    /// It is to be given back, however far it is.
    TakeBack { attempt: AttemptId, target: GangTarget },
    /// Its agents are to be started again where their files are.
    Salvage { attempt: AttemptId, target: GangTarget },
    /// Nobody asks for it any more.
    Closed { attempt: AttemptId, target: GangTarget },
    /// A job was removed: what its attempts have left there is nobody's.
    Remove { job: JobId, targets: BTreeSet<GangTarget> },
}

/// What came of it.
#[derive(Debug, Clone)]
pub(crate) enum News {
    /// The other scheduler has it, and calls it so.
    Accepted { external: Option<String> },
    /// It will never take it.
    Refused { message: String },
    /// It could not be reached; it is tried again.
    Failing { message: String },
    /// What the other scheduler says of it.
    Observed(Observed),
    /// It is gone from there.
    TakenBack,
    /// It is not gone yet, for this reason; it is tried again.
    Lingering { message: String },
}

/// What came to its end.
enum Done {
    Start(Submitter, AttemptId, Result<Option<String>, Error>),
    Stop(AttemptId, Result<(), Error>),
    Salvage(AttemptId, u32, Result<(), Error>),
    Close(AttemptId, Result<(), Error>),
    Remove(JobId, GangTarget, u32, Result<(), Error>),
    /// A pause, with the round it belongs to.
    Pause(AttemptId, u64),
    /// A look at all of an engine's, or at those that it named.
    Look(Look, Result<Vec<Observed>, Error>),
    /// An engine has something new to say about these.
    Changed(&'static str, Vec<Key>),
    /// It is time for a look, in the round it was set for.
    Time(Submitter, u64),
}

/// What is to become of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Start,
    Watch,
    TakeBack,
}

/// An allocation.
struct Open {
    target: GangTarget,
    request: Option<Arc<StartRequest>>,
    wish: Wish,
    /// A start or a stop goes on.
    is_busy: bool,
    pause: Duration,
    /// Which pause counts.
    round: u64,
    /// What the core was told last.
    said: Option<Observed>,
    /// The number of the look that saw that: what an older one saw is out of date.
    seen: u64,
    /// The core waits for an answer.
    is_asked: bool,
}

struct Delegate<'a> {
    shared: &'a Shared,
    open: BTreeMap<AttemptId, Open>,
    looks: BTreeMap<Submitter, Looks>,
    /// Engines whose notifications are awaited.
    listening: BTreeSet<&'static str>,
    /// How many looks were begun.
    begun: u64,
    work: FuturesUnordered<BoxFuture<'a, Done>>,
    /// Gangs that wait for their turn to be handed over, in the order in which they came.
    waiting: BTreeMap<Submitter, VecDeque<AttemptId>>,
    /// Jobs that were removed, and of which something may still be open.
    doomed: BTreeMap<JobId, BTreeSet<GangTarget>>,
    /// Starts that go on: cut off, it would not be known whether they were heard.
    starting: BTreeMap<Submitter, usize>,
    news: Vec<(AttemptId, News)>,
}

/// Runs until cancelled, and then until no start is half done.
pub(crate) async fn run(
    shared: Arc<Shared>,
    mut words: mpsc::UnboundedReceiver<Word>,
    stop: CancellationToken,
) {
    let mut delegate = Delegate {
        shared: &shared,
        open: BTreeMap::new(),
        looks: BTreeMap::new(),
        listening: BTreeSet::new(),
        begun: 0,
        work: FuturesUnordered::new(),
        waiting: BTreeMap::new(),
        doomed: BTreeMap::new(),
        starting: BTreeMap::new(),
        news: Vec::new(),
    };
    let mut said = Vec::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            count = words.recv_many(&mut said, MAX_WORDS) => match count {
                0 => return,
                _ => said.drain(..).for_each(|word| delegate.on_word(word)),
            },
            Some(done) = delegate.work.next() => delegate.on_done(done),
        }
        delegate.tell().await;
    }
    // What has not begun is begun by the next server.
    delegate.waiting.clear();
    while !delegate.starting.is_empty()
        && let Some(done) = delegate.work.next().await
    {
        if let Done::Start(submitter, attempt, result) = done {
            delegate.end_start(&submitter);
            delegate.on_started(attempt, result);
            delegate.tell().await;
        }
    }
}

impl<'a> Delegate<'a> {
    async fn tell(&mut self) {
        for (attempt, news) in std::mem::take(&mut self.news) {
            // The core may be gone when the server stops; then it is told by the next look of the next server.
            drop(self.shared.core.tell(Input::Delegated { attempt, news }).await);
        }
    }

    fn on_word(&mut self, word: Word) {
        match word {
            Word::HandOver { attempt, target, nodes, gang } => {
                let seat = |node: NodeId| Seat { token: self.shared.auth.node_token(&node), node };
                let seats = nodes.into_iter().map(seat).collect();
                let request = StartRequest { key: target.key(&attempt), seats, gang: Some(*gang) };
                self.listen(target.engine());
                let open = Open { request: Some(Arc::new(request)), ..Open::new(target, Wish::Start) };
                self.open.insert(attempt.clone(), open);
                self.start(&attempt);
            }
            Word::Watch { attempt, target } => {
                self.listen(target.engine());
                self.open.insert(attempt.clone(), Open::new(target, Wish::Watch));
                self.look_soon(&attempt);
            }
            Word::Look(attempt) => self.look_soon(&attempt),
            Word::TakeBack { attempt, target } => {
                let open =
                    self.open.entry(attempt.clone()).or_insert_with(|| Open::new(target, Wish::TakeBack));
                open.wish = Wish::TakeBack;
                open.pause = FIRST_PAUSE;
                self.stop(&attempt);
            }
            Word::Salvage { attempt, target } => self.salvage(attempt, target, 1),
            Word::Closed { attempt, target } => {
                self.open.remove(&attempt);
                self.remove_doomed(&attempt.job);
                self.close(attempt, target);
            }
            Word::Remove { job, targets } => {
                self.doomed.insert(job.clone(), targets);
                self.remove_doomed(&job);
            }
        }
    }

    fn on_done(&mut self, done: Done) {
        match done {
            Done::Start(submitter, attempt, result) => {
                self.end_start(&submitter);
                self.start_next();
                self.on_started(attempt, result);
            }
            Done::Stop(attempt, result) => self.on_stopped(attempt, result),
            Done::Salvage(attempt, number, result) => self.on_salvaged(attempt, number, result),
            Done::Close(_, Ok(())) => {}
            // What is left there goes by itself in time.
            Done::Close(attempt, Err(error)) => {
                tracing::debug!(%attempt, error = words(&error), "what is left of it there was not removed");
            }
            Done::Remove(job, target, number, Err(error)) => {
                tracing::warn!(%job, error = words(&error), "what it left was not removed");
                // What is left then goes when it is old.
                if number < TRIES {
                    self.remove(job, target, number + 1);
                }
            }
            Done::Remove(_, _, _, Ok(())) => {}
            Done::Pause(attempt, round) => {
                let open = self.open.get(&attempt).filter(|open| open.round == round);
                match open.map(|open| open.wish) {
                    Some(Wish::Start) => self.start(&attempt),
                    Some(Wish::TakeBack) => self.stop(&attempt),
                    Some(Wish::Watch) | None => {}
                }
            }
            Done::Look(look, result) => self.on_looked(look, result),
            Done::Changed(engine, keys) => self.on_changed(engine, keys),
            Done::Time(submitter, round) => self.on_time(submitter, round),
        }
    }

    fn on_started(&mut self, attempt: AttemptId, result: Result<Option<String>, Error>) {
        let Some(open) = self.open.get_mut(&attempt) else { return };
        open.is_busy = false;
        match (open.wish, result) {
            // It was wanted back in the meantime; whatever came of the start, it is undone.
            (Wish::TakeBack, _) => self.stop(&attempt),
            (Wish::Start | Wish::Watch, Ok(external)) => {
                tracing::info!(%attempt, external, "handed over");
                open.wish = Wish::Watch;
                open.request = None;
                self.shared.troubles.set(&open.target, None);
                self.news.push((attempt.clone(), News::Accepted { external }));
                self.look_in_time(&attempt);
            }
            (Wish::Start | Wish::Watch, Err(error)) if error.class == Class::Terminal => {
                self.open.remove(&attempt);
                self.news.push((attempt, News::Refused { message: words(&error) }));
            }
            (Wish::Start | Wish::Watch, Err(error)) => {
                tracing::warn!(%attempt, error = words(&error), "not handed over; it is tried again");
                self.news.push((attempt.clone(), News::Failing { message: words(&error) }));
                self.pause(&attempt);
            }
        }
    }

    fn on_stopped(&mut self, attempt: AttemptId, result: Result<(), Error>) {
        let Some(open) = self.open.get_mut(&attempt) else { return };
        open.is_busy = false;
        match result {
            Ok(()) => {
                self.open.remove(&attempt);
                self.news.push((attempt, News::TakenBack));
            }
            Err(error) => {
                tracing::warn!(%attempt, error = words(&error), "not given back; it is tried again");
                self.news.push((attempt.clone(), News::Lingering { message: words(&error) }));
                self.pause(&attempt);
            }
        }
    }

    fn on_salvaged(&mut self, attempt: AttemptId, number: u32, result: Result<(), Error>) {
        let Err(error) = result else { return };
        tracing::warn!(%attempt, error = words(&error), "its agents could not be started again");
        let target = self.open.get(&attempt).map(|open| open.target.clone());
        if let Some(target) = target.filter(|_| number < TRIES) {
            self.salvage(attempt, target, number + 1);
        }
    }

    fn start(&mut self, attempt: &AttemptId) {
        let Some(open) = self.open.get(attempt) else { return };
        self.waiting.entry(open.target.submitter()).or_default().push_back(attempt.clone());
        self.start_next();
    }

    /// Begins as many starts as may go on at once, in order.
    fn start_next(&mut self) {
        while self.starting.values().sum::<usize>() < AT_ONCE_OF_ALL
            && let Some(attempt) = self.take_waiting()
        {
            self.start_now(attempt);
        }
    }

    /// The next gang of the account that has the fewest starts going on.
    fn take_waiting(&mut self) -> Option<AttemptId> {
        let count = |submitter: &Submitter| self.starting.get(submitter).copied().unwrap_or(0);
        let next =
            self.waiting.keys().filter(|one| count(one) < AT_ONCE).min_by_key(|one| count(one))?.clone();
        let own = self.waiting.get_mut(&next)?;
        let attempt = own.pop_front();
        if own.is_empty() {
            self.waiting.remove(&next);
        }
        attempt
    }

    fn end_start(&mut self, submitter: &Submitter) {
        if let Some(count) = self.starting.get_mut(submitter) {
            *count -= 1;
        }
        self.starting.retain(|_, count| *count > 0);
    }

    fn start_now(&mut self, attempt: AttemptId) {
        // It may be wanted back, or nobody's, by now.
        let open = self.open.get_mut(&attempt).filter(|open| !open.is_busy && open.wish == Wish::Start);
        let Some((open, request)) = open.and_then(|open| open.request.clone().map(|request| (open, request)))
        else {
            return;
        };
        open.is_busy = true;
        let submitter = open.target.submitter();
        *self.starting.entry(submitter.clone()).or_default() += 1;
        let (shared, name) = (self.shared, open.target.engine());
        self.work.push(Box::pin(async move {
            let started = async {
                let engine = find(shared, name)?;
                let late = |_| Err(Error::retryable("hand over", silent()));
                timeout(START, engine.start(&request)).await.unwrap_or_else(late)
            };
            let result = started.await;
            Done::Start(submitter, attempt, result)
        }));
    }

    fn stop(&mut self, attempt: &AttemptId) {
        let Some(open) = self.open.get_mut(attempt).filter(|open| !open.is_busy) else { return };
        open.is_busy = true;
        open.round += 1;
        let (shared, name, attempt) = (self.shared, open.target.engine(), attempt.clone());
        let key = open.target.key(&attempt);
        self.work.push(Box::pin(async move {
            let stopped = async {
                let late = |_| Err(Error::retryable("give back", silent()));
                timeout(STOP, find(shared, name)?.stop(&key)).await.unwrap_or_else(late)
            };
            let result = stopped.await;
            Done::Stop(attempt, result)
        }));
    }

    fn salvage(&mut self, attempt: AttemptId, target: GangTarget, number: u32) {
        let shared = self.shared;
        self.work.push(Box::pin(async move {
            if number > 1 {
                sleep(FIRST_PAUSE * number).await;
            }
            let key = target.key(&attempt);
            let salvaged = async {
                let late = |_| Err(Error::retryable("start agents again", silent()));
                timeout(STOP, find(shared, target.engine())?.salvage(&key)).await.unwrap_or_else(late)
            };
            let result = salvaged.await;
            Done::Salvage(attempt, number, result)
        }));
    }

    fn close(&mut self, attempt: AttemptId, target: GangTarget) {
        let shared = self.shared;
        self.work.push(Box::pin(async move {
            let key = target.key(&attempt);
            let closed = async {
                let late = |_| Err(Error::retryable("tidy up", silent()));
                timeout(STOP, find(shared, target.engine())?.close(&key)).await.unwrap_or_else(late)
            };
            let result = closed.await;
            Done::Close(attempt, result)
        }));
    }

    /// Has the files of a job removed that is, once nothing of it is open any more.
    fn remove_doomed(&mut self, job: &JobId) {
        if self.open.keys().all(|attempt| attempt.job != *job)
            && let Some(targets) = self.doomed.remove(job)
        {
            targets.into_iter().for_each(|target| self.remove(job.clone(), target, 1));
        }
    }

    fn remove(&mut self, job: JobId, target: GangTarget, number: u32) {
        let shared = self.shared;
        self.work.push(Box::pin(async move {
            if number > 1 {
                sleep(LONGEST_PAUSE * (number - 1)).await;
            }
            let removed = async {
                let late = |_| Err(Error::retryable("remove files", silent()));
                let removing = find(shared, target.engine())?.remove(&job, target.account.as_deref());
                timeout(STOP, removing).await.unwrap_or_else(late)
            };
            let result = removed.await;
            Done::Remove(job, target, number, result)
        }));
    }

    /// The next try comes after a pause; pauses grow.
    fn pause(&mut self, attempt: &AttemptId) {
        let Some(open) = self.open.get_mut(attempt) else { return };
        let wait = open.pause;
        let longest = if open.wish == Wish::TakeBack { LONGEST_PAUSE_BACK } else { LONGEST_PAUSE };
        open.pause = (wait * 2).min(longest);
        open.round += 1;
        let (round, attempt) = (open.round, attempt.clone());
        self.work.push(Box::pin(async move {
            sleep(wait).await;
            Done::Pause(attempt, round)
        }));
    }
}

impl Open {
    fn new(target: GangTarget, wish: Wish) -> Self {
        Self {
            target,
            request: None,
            wish,
            is_busy: false,
            pause: FIRST_PAUSE,
            round: 0,
            said: None,
            seen: 0,
            is_asked: false,
        }
    }

    /// Whether the other scheduler is known to have heard of it: before, not finding it there says nothing.
    fn is_there(&self) -> bool {
        self.wish == Wish::Watch
    }
}

fn find<'a>(shared: &'a Shared, name: &'static str) -> Result<&'a Arc<dyn Engine>, Error> {
    let missing = || {
        let what = format!("this server has no {name} engine any more; configure it again");
        Error::retryable(what, std::io::ErrorKind::NotFound.into())
    };
    shared.engines.get(name).ok_or_else(missing)
}

#[cfg(test)]
pub(crate) mod tests;
