//! One machine: its two logins, kept for as long as they last.
//!
//! The control login is made when somebody asks for the agent to be started, so that whoever asks hears what went wrong. The
//! bulk login is made anew here whenever it ends while the other one lasts: nobody else notices that it has.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::UnixStream;
use tokio::sync::{Notify, OnceCell, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Options;
use super::binary::Binary;
use super::carry::{Job, Words};
use super::command::{self, Patience};
use super::identity;
use super::login::{Kind, Login, Word};
use crate::{AgentAccount, Class, Error, Machine};

/// How long the client may take to reach a machine. One that was there a moment ago is either back at once or not: many
/// short tries find it sooner than one long one, whose pauses the kernel doubles.
const REACH: Duration = Duration::from_secs(10);
const REACH_AGAIN: Duration = Duration::from_secs(3);
const A_MOMENT: Duration = Duration::from_secs(30);
/// Between two tries of the bulk login; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Between two tries to send our binary to a machine that has another; it doubles. A full disk is not freed in no time.
const FIRST_SEND_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_SEND_PAUSE: Duration = Duration::from_secs(300);
/// Above the longest that two logins in a row take.
const BULK: Duration = Duration::from_secs(60);

/// What all machines share.
#[derive(Debug)]
pub(super) struct Means {
    options: Options,
    prepared: OnceCell<Prepared>,
}

#[derive(Debug)]
struct Prepared {
    binary: Binary,
    /// What this server is called on machines.
    server: String,
}

impl Means {
    pub(super) fn new(options: Options) -> Self {
        Self { options, prepared: OnceCell::new() }
    }

    pub(super) fn known_binary(&self) -> Option<&Binary> {
        self.prepared.get().map(|prepared| &prepared.binary)
    }

    async fn prepared(&self) -> Result<&Prepared, Error> {
        let options = self.options.clone();
        let prepare = || async {
            let prepared = tokio::task::spawn_blocking(move || prepare(&options)).await;
            let prepared = prepared.unwrap_or_else(|error| Err(io::Error::other(error)));
            prepared.map_err(|error| Error::retryable("read the muster binary that machines are sent", error))
        };
        self.prepared.get_or_try_init(prepare).await
    }
}

fn prepare(options: &Options) -> io::Result<Prepared> {
    DirBuilder::new().recursive(true).mode(0o700).create(&options.dir)?;
    let binary = Binary::read(&options.exe, &options.others)?;
    Ok(Prepared { binary, server: server_name(&options.dir.join("server"))? })
}

/// What a server is called on machines and in clusters that several may use: made once for a data directory, and kept in this file.
pub fn server_name(path: &Path) -> io::Result<String> {
    if let Ok(name) = fs::read_to_string(path)
        && !name.trim().is_empty()
    {
        return Ok(name.trim().to_owned());
    }
    let name = format!("{:08x}", getrandom::u32().map_err(io::Error::other)?);
    let temporary = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(name.as_bytes())?;
    file.sync_all()?;
    fs::rename(temporary, path)?;
    Ok(name)
}

/// One machine.
#[derive(Debug)]
pub(super) struct Host {
    machine: Arc<Machine>,
    means: Arc<Means>,
    /// Whether the control connection is carried.
    carried: watch::Sender<bool>,
    /// When it was, the last time.
    seen: Arc<Mutex<Option<Instant>>>,
    /// One start or stop at a time.
    turn: tokio::sync::Mutex<()>,
    work: Mutex<Work>,
    /// Our binary is being sent while another carries the connections.
    is_sending: Arc<AtomicBool>,
    /// The control connection is to be made anew.
    anew: Arc<Notify>,
    /// The account that was logged in as the last time.
    account: Mutex<AgentAccount>,
}

/// The logins that last. They end when this is dropped.
#[derive(Debug, Default)]
struct Work {
    logins: JoinSet<()>,
    has_bulk: bool,
}

impl Host {
    pub(super) fn new(machine: Machine, means: Arc<Means>) -> Self {
        Self {
            machine: Arc::new(machine),
            means,
            carried: watch::Sender::new(false),
            seen: Arc::default(),
            turn: tokio::sync::Mutex::default(),
            work: Mutex::default(),
            is_sending: Arc::default(),
            anew: Arc::default(),
            account: Mutex::new(AgentAccount::Unknown("nobody has logged in there yet".into())),
        }
    }

    pub(super) fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(super) fn account(&self) -> AgentAccount {
        self.account.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn is_carried(&self) -> bool {
        *self.carried.borrow()
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the logins, without waiting for it. The agent goes on.
    pub(super) fn let_go(&self) {
        drop(std::mem::take(&mut *self.work()));
    }

    pub(super) async fn start(&self, token: &str) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        if self.is_carried() {
            return Ok(());
        }
        // Before the agent can say hello: its word about itself is compared with this.
        let account = self.way().account().await;
        *self.account.lock().unwrap_or_else(PoisonError::into_inner) = account;
        let ((login, server), unsent) = self.way().control(token).await?;
        self.keep_control(login, server);
        // Messages come and go without it, and it is tried again.
        if let Some(first) = self.keep_bulk()
            && !matches!(timeout(BULK, first).await, Ok(Ok(())))
        {
            tracing::warn!(node = %self.machine.node, "logs and files wait for a second login");
        }
        // Last, because on a slow way it leaves little room for others.
        if let Some(kind) = unsent {
            self.send_behind(kind);
        }
        Ok(())
    }

    pub(super) async fn stop(&self) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        let mut work = std::mem::take(&mut *self.work());
        work.logins.shutdown().await;
        self.way().stop().await
    }

    fn way(&self) -> Way {
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = seen.is_some_and(|seen| seen.elapsed() < A_MOMENT);
        let reach = if is_recent { REACH_AGAIN } else { REACH };
        Way { machine: self.machine.clone(), means: self.means.clone(), reach }
    }

    fn keep_control(&self, login: Login, server: UnixStream) {
        self.carried.send_replace(true);
        let held = Held { carried: self.carried.clone(), seen: self.seen.clone() };
        let mut work = self.work();
        while work.logins.try_join_next().is_some() {}
        let anew = self.anew.clone();
        work.logins.spawn(async move {
            tokio::select! {
                () = login.carry(server) => {}
                () = anew.notified() => {}
            }
            drop(held);
        });
    }

    /// Sends our binary while another one carries the connections, for as long as it takes, and then has the control
    /// connection made anew: the agent is then told to change over.
    fn send_behind(&self, kind: Kind) {
        if self.is_sending.swap(true, Ordering::AcqRel) {
            return;
        }
        let (way, anew, sending) = (self.way(), self.anew.clone(), Sending(self.is_sending.clone()));
        self.work().logins.spawn(async move {
            let mut pause = FIRST_SEND_PAUSE;
            while let Err(error) = way.send(&kind).await {
                tracing::warn!(node = %way.machine.node, %error, "its agent stays as it is for now");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_SEND_PAUSE);
            }
            drop(sending);
            anew.notify_waiters();
        });
    }

    /// Tells when the first login is made. None if there is one, or it is being made already.
    fn keep_bulk(&self) -> Option<oneshot::Receiver<()>> {
        let mut work = self.work();
        if std::mem::replace(&mut work.has_bulk, true) {
            return None;
        }
        let (first, made) = oneshot::channel();
        work.logins.spawn(keep_bulk(self.way(), self.carried.subscribe(), first));
        Some(made)
    }
}

/// For as long as the control connection is carried.
struct Held {
    carried: watch::Sender<bool>,
    seen: Arc<Mutex<Option<Instant>>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.carried.send_replace(false);
    }
}

/// For as long as our binary is being sent, or until that is given up.
struct Sending(Arc<AtomicBool>);

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Runs until it is dropped.
async fn keep_bulk(way: Way, mut carried: watch::Receiver<bool>, first: oneshot::Sender<()>) {
    let (mut first, mut pause) = (Some(first), FIRST_PAUSE);
    while carried.wait_for(|carried| *carried).await.is_ok() {
        let first = first.take();
        match way.bulk().await {
            Ok((login, server)) => {
                pause = FIRST_PAUSE;
                // Nobody waits any more if it took long.
                let _ = first.map(|first| first.send(()));
                // It may outlive the other one: what people do in tasks goes over it, and survives a short cut.
                login.carry(server).await;
            }
            Err(error) => {
                tracing::warn!(node = %way.machine.node, %error, source = ?error.source, "the second login failed")
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Which of a machine's binaries is to do something.
#[derive(Debug, Clone, Copy)]
enum Build {
    /// The one that this server sends.
    Ours,
    /// Whichever is there: the agent may have been started by another.
    Any,
}

/// A login that is joined with the server.
type Carried = (Login, UnixStream);

/// How to get to a machine.
struct Way {
    machine: Arc<Machine>,
    means: Arc<Means>,
    reach: Duration,
}

impl Way {
    /// The control connection; and what our binary is still to be sent to, if another one carries it.
    async fn control(&self, token: &str) -> Result<(Carried, Option<Kind>), Error> {
        let (mut login, word) = self.ask(Job::Control, Build::Ours).await?;
        let Word::Absent(kind) = word else { return Ok((self.enter(login, word, token).await?, None)) };
        drop(login);
        // Its agent may have tasks, which are not to be lost by a server of another build on a slow way, or to a full disk.
        if kind.has_other
            && let Ok((login, word)) = self.ask(Job::Control, Build::Any).await
            && let Ok(carried) = self.enter(login, word, token).await
        {
            return Ok((carried, Some(kind)));
        }
        self.send(&kind).await?;
        let word;
        (login, word) = self.ask(Job::Control, Build::Ours).await?;
        Ok((self.enter(login, word, token).await?, None))
    }

    async fn enter(&self, mut login: Login, mut word: Word, token: &str) -> Result<Carried, Error> {
        if word == Word::Asks {
            login.tell(token).await?;
            word = login.word().await?;
        }
        self.join(login, &word).await
    }

    async fn bulk(&self) -> Result<Carried, Error> {
        let (mut login, mut word) = self.ask(Job::Bulk, Build::Ours).await?;
        if matches!(word, Word::Absent(_)) {
            (login, word) = self.ask(Job::Bulk, Build::Any).await?;
        }
        self.join(login, &word).await
    }

    async fn stop(&self) -> Result<(), Error> {
        match self.ask(Job::Stop, Build::Any).await?.1 {
            Word::Gone | Word::Absent(_) => Ok(()),
            word => Err(self.unexpected(&word)),
        }
    }

    async fn ask(&self, job: Job, build: Build) -> Result<(Login, Word), Error> {
        let prepared = self.means.prepared().await?;
        let machine = &self.machine;
        command::check(machine)?;
        let (node, address) = (machine.node.clone(), machine.address);
        let words = Words { node, server: prepared.server.clone(), job, address };
        let line = match build {
            Build::Ours => command::carry(prepared.binary.hash(), &words),
            Build::Any => command::carry_by_any(&words),
        };
        let mut login = self.login(job == Job::Bulk, &line)?;
        let word = login.word().await?;
        Ok((login, word))
    }

    fn login(&self, is_bulk: bool, line: &str) -> Result<Login, Error> {
        let patience = Patience { reach: self.reach, is_bulk };
        let mut command = command::ssh(&self.means.options, &self.machine, patience, line);
        Login::start(self.machine.clone(), &mut command)
    }

    /// The account that logins are made as.
    async fn account(&self) -> AgentAccount {
        let patience = Patience { reach: self.reach, is_bulk: false };
        let command = command::ssh(&self.means.options, &self.machine, patience, "true");
        identity::login_user(&command).await.map_or_else(AgentAccount::Unknown, AgentAccount::Login)
    }

    /// Sends the binary that suits the machine.
    async fn send(&self, kind: &Kind) -> Result<(), Error> {
        let prepared = self.means.prepared().await?;
        let file = prepared.binary.suiting(&self.machine.destination, &kind.system, &kind.machine)?;
        tracing::info!(node = %self.machine.node, file = %file.display(), "the muster binary is sent");
        let mut login = self.login(true, &command::receive(command::OWN_PLACES, prepared.binary.hash()))?;
        login.send(&file).await?;
        match login.word().await? {
            Word::Sent => Ok(()),
            word => Err(self.unexpected(&word)),
        }
    }

    async fn join(&self, login: Login, word: &Word) -> Result<Carried, Error> {
        if *word != Word::Ready {
            return Err(self.unexpected(word));
        }
        let server = UnixStream::connect(&self.means.options.socket).await;
        Ok((login, server.map_err(|error| Error::retryable("reach the server's gate", error))?))
    }

    fn unexpected(&self, word: &Word) -> Error {
        let what = format!("{}: it answered out of turn ({word:?})", self.machine.destination);
        Error { what, class: Class::Retryable, source: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_keeps_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server");
        let name = server_name(&path).unwrap();
        assert!(name.len() == 8 && name.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
        assert_eq!(server_name(&path).unwrap(), name);
    }
}
