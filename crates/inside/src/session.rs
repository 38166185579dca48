//! Sessions: named shells in the task that keep directory, variables, functions and umask between commands.
//!
//! Commands are given one after the other and queue; each has a number, and files for its text, output and status. The files
//! say all there is to know, so that whoever is killed can be replaced: a shell in tmux and its queue go on under the next
//! process that answers here. Where there is no tmux, this process holds the terminals, and its end is theirs.

mod attach;
mod changes;
mod keeper;
pub(crate) mod pour;
mod process;
mod pty;
mod script;
mod shell;
mod store;
mod tmux;
pub(crate) mod wire;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_model::Timestamp;
use muster_model::session::{Session as View, SessionCommand, SessionName, Terminal};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use self::keeper::Keeper;
use self::pty::Held;
use self::shell::{Life, Shell};
use self::store::{Over, Record, Store};
use self::tmux::{Pane, Tmux, terminal_name};
use crate::complain;

/// Commands that may wait in one session.
const MAX_QUEUED: u32 = 1000;
/// Sessions of one task.
const MAX_SESSIONS: usize = 100;
/// The longest text of a command.
const MAX_TEXT: usize = 4 << 20;
/// Among so many last commands one is known again by its key.
const KEYS: u32 = 200;
/// How long a shell has to end that is no longer wanted.
const GRACE: Duration = Duration::from_secs(2);

/// How large a terminal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    columns: u16,
    rows: u16,
}

/// As long as nobody looks: wide, so that few lines are broken.
const SIZE: Geometry = Geometry { columns: 200, rows: 50 };

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("there is no session {0}")]
    NoSession(String),
    #[error("session {name} has no command {number}")]
    NoCommand { name: SessionName, number: u32 },
    #[error("session {name} is over: {reason}")]
    Over { name: SessionName, reason: String },
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Full(String),
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
}

impl Refusal {
    /// For programs.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Refusal::NoSession(_) | Refusal::NoCommand { .. } => "not_found",
            Refusal::Over { .. } => "session_over",
            Refusal::Invalid(_) => "invalid",
            Refusal::Full(_) => "full",
            // Nobody should ask again and again for what needs somebody to make room.
            Refusal::Io { source, .. }
                if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) =>
            {
                "full"
            }
            Refusal::Io { .. } => "failed",
        }
    }
}

/// All sessions of the task.
pub(crate) struct Sessions {
    /// Where they are kept.
    dir: PathBuf,
    known: tokio::sync::Mutex<BTreeMap<SessionName, Arc<Session>>>,
    /// Keepers, and those who read terminals.
    tasks: Mutex<JoinSet<()>>,
}

/// One of them.
pub(crate) struct Session {
    name: SessionName,
    store: Store,
    state: Mutex<State>,
    shell: Mutex<Option<Shell>>,
    /// Counts what has changed, for those who wait.
    changed: watch::Sender<u64>,
    /// Tells its keeper that there is a command.
    poke: Notify,
}

struct State {
    record: Record,
    last: u32,
    /// The first that is not known to be over.
    next: u32,
}

impl Sessions {
    /// Takes up those that are there, of the task in `dir`.
    pub(crate) async fn take_up(dir: &Path) -> Sessions {
        let dir = dir.join("sessions");
        let sessions = Sessions { dir, known: Default::default(), tasks: Default::default() };
        let names = fs::read_dir(&sessions.dir).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().to_str()?.parse::<SessionName>().ok());
        for name in names {
            match sessions.restore(&name).await {
                Ok(Some(session)) => drop(sessions.known.lock().await.insert(name, session)),
                Ok(None) => {}
                Err(error) => complain("a session cannot be taken up", &error),
            }
        }
        sessions
    }

    async fn restore(&self, name: &SessionName) -> io::Result<Option<Arc<Session>>> {
        let store = Store::new(&self.dir, name.as_str());
        let Some(record) = store.record()? else { return Ok(None) };
        let last = store.last()?;
        let session = Session::new(name.clone(), store, record.clone(), last);
        match (record.terminal, Tmux::find(&self.dir)) {
            _ if record.over.is_some() => {}
            (Terminal::Tmux, Some(tmux)) => {
                // If it has ended meanwhile, its keeper will know at once.
                let pane = Pane { id: record.pane, pid: record.pid };
                self.keep(&session, Shell::Tmux(tmux.clone(), pane.clone()), Life::Tmux(tmux, pane));
            }
            (Terminal::Tmux | Terminal::Pty, _) => {
                let reason = "the process that held its terminal is gone; where tmux is installed, sessions outlive it";
                session.end(Over { reason: reason.into(), status: None, at: Timestamp::now() });
            }
        }
        Ok(Some(session))
    }

    pub(crate) async fn list(&self) -> Vec<View> {
        self.known.lock().await.values().map(|session| session.view()).collect()
    }

    pub(crate) async fn get(&self, name: &str) -> Result<Arc<Session>, Refusal> {
        let parsed: SessionName = name.parse().map_err(invalid)?;
        let known = self.known.lock().await;
        known.get(&parsed).cloned().ok_or_else(|| Refusal::NoSession(name.to_owned()))
    }

    /// The session of this name, opened if it is not there, or with a new shell if that is wanted.
    pub(crate) async fn open(&self, name: &str, fresh: bool) -> Result<Arc<Session>, Refusal> {
        let name: SessionName = name.parse().map_err(invalid)?;
        let mut known = self.known.lock().await;
        let store = Store::new(&self.dir, name.as_str());
        let mut first = 1;
        if let Some(session) = known.get(&name) {
            if !fresh {
                session.check_open()?;
                return Ok(session.clone());
            }
            close(session).await;
            first = session.lock().last + 1;
        } else if let Some(other) =
            known.keys().find(|other| terminal_name(other.as_str()) == terminal_name(name.as_str()))
        {
            let message =
                format!("session {name} cannot be beside session {other}: in tmux they have the same name");
            return Err(Refusal::Invalid(message));
        } else if known.len() >= MAX_SESSIONS {
            return Err(Refusal::Full(format!("the task has {MAX_SESSIONS} sessions; remove one first")));
        }
        let session = self.begin(name.clone(), store, first).await;
        let session =
            session.map_err(|source| Refusal::Io { what: "the shell cannot be started", source })?;
        known.insert(name, session.clone());
        Ok(session)
    }

    async fn begin(&self, name: SessionName, store: Store, first: u32) -> io::Result<Arc<Session>> {
        store.create()?;
        let (cwd, program) = (std::env::current_dir()?, shell::choose());
        let (shell, life) = match Tmux::find(&self.dir) {
            Some(tmux) => {
                let pane = tmux.open(name.as_str(), &cwd, &program).await?;
                (Shell::Tmux(tmux.clone(), pane.clone()), Life::Tmux(tmux, pane))
            }
            None => {
                let (held, terminal, child) = Held::open(&cwd, &program)?;
                let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
                self.tasks().spawn(held.screen().show(terminal));
                (Shell::Pty(Arc::new(held), pid), Life::Pty(Box::new(child)))
            }
        };
        let record = Record {
            terminal: shell.terminal(),
            shell: program.display().to_string(),
            pid: shell.pid(),
            pane: if let Shell::Tmux(_, pane) = &shell { pane.id.clone() } else { String::new() },
            opened_at: Timestamp::now(),
            first,
            over: None,
        };
        store.write_record(&record)?;
        let session = Session::new(name, store, record, first - 1);
        self.keep(&session, shell, life);
        Ok(session)
    }

    fn keep(&self, session: &Arc<Session>, shell: Shell, life: Life) {
        *session.shell.lock().unwrap_or_else(PoisonError::into_inner) = Some(shell.clone());
        let mut tasks = self.tasks();
        // Those that have ended are not kept.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(Keeper::new(session.clone(), shell).run(life));
    }

    /// Ends a session's shell, and removes its files.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), Refusal> {
        let session = self.get(name).await?;
        close(&session).await;
        let mut known = self.known.lock().await;
        let removed = fs::remove_dir_all(session.store.dir());
        removed.map_err(|source| Refusal::Io { what: "its files cannot be removed", source })?;
        known.remove(&session.name);
        Ok(())
    }

    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a session's shell, and waits until that is known.
async fn close(session: &Session) {
    let Some(shell) = session.shell() else { return };
    shell.close().await;
    let mut changed = session.changed.subscribe();
    let ended = async { while session.lock().record.over.is_none() && changed.changed().await.is_ok() {} };
    if tokio::time::timeout(GRACE, ended).await.is_err()
        && let Some(pid) = rustix::process::Pid::from_raw(shell.pid())
    {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        let reason = "it was closed".into();
        session.end(Over { reason, status: None, at: Timestamp::now() });
    }
}

impl Session {
    fn new(name: SessionName, store: Store, record: Record, last: u32) -> Arc<Session> {
        let next = record.first;
        let state = Mutex::new(State { record, last, next });
        let (shell, changed, poke) = (Mutex::default(), watch::Sender::new(0), Notify::new());
        Arc::new(Session { name, store, state, shell, changed, poke })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shell(&self) -> Option<Shell> {
        self.shell.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn view(&self) -> View {
        let next = self.advance();
        let state = self.lock();
        let running = next.filter(|number| state.record.over.is_none() && self.store.has_begun(*number));
        let waiting = next.map_or(0, |next| state.last + 1 - next);
        View {
            name: self.name.to_string(),
            terminal: state.record.terminal,
            shell: state.record.shell.clone(),
            directory: self.store.dir().display().to_string(),
            opened_at: state.record.opened_at,
            over: state.record.over.as_ref().map(|over| over.reason.clone()),
            running,
            queued: if state.record.over.is_some() { 0 } else { waiting - u32::from(running.is_some()) },
            last: state.last,
        }
    }

    /// Puts a command into the queue, once for each key.
    pub(crate) fn run(&self, text: &str, key: Option<&str>) -> Result<SessionCommand, Refusal> {
        if text.len() > MAX_TEXT {
            let message = format!("the command is {} bytes long, more than {MAX_TEXT}", text.len());
            return Err(Refusal::Invalid(message));
        }
        if text.contains('\0') {
            return Err(Refusal::Invalid(
                "the command contains a NUL character, which no shell can read".into(),
            ));
        }
        let next = self.advance();
        let mut state = self.lock();
        if let Some(key) = key {
            let recent = (1..=state.last).rev().take(KEYS as usize);
            if let Some(number) =
                recent.into_iter().find(|number| self.store.key(*number).as_deref() == Some(key))
            {
                drop(state);
                return self.command(number);
            }
        }
        drop(state);
        self.check_open()?;
        state = self.lock();
        if next.is_some_and(|next| state.last + 1 - next >= MAX_QUEUED) {
            return Err(Refusal::Full(format!(
                "{MAX_QUEUED} commands wait in session {} already",
                self.name
            )));
        }
        let number = state.last + 1;
        let muster = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("muster"));
        let added = self.store.add(number, text, key, &muster);
        added.map_err(|source| Refusal::Io { what: "the command cannot be written down", source })?;
        state.last = number;
        drop(state);
        self.poke.notify_one();
        self.command(number)
    }

    pub(crate) fn command(&self, number: u32) -> Result<SessionCommand, Refusal> {
        let record = self.lock().record.clone();
        let found = self.store.command(&record, number);
        let found =
            found.map_err(|source| Refusal::Io { what: "the command's files cannot be read", source })?;
        found.ok_or_else(|| Refusal::NoCommand { name: self.name.clone(), number })
    }

    /// The last of them.
    pub(crate) fn commands(&self, count: u32) -> Result<Vec<SessionCommand>, Refusal> {
        let last = self.lock().last;
        let numbers = last.saturating_sub(count) + 1..=last;
        numbers.map(|number| self.command(number)).collect()
    }

    /// Sends a signal to what is in the foreground of its terminal.
    pub(crate) fn signal(&self, signal: i32) -> Result<(), Refusal> {
        use rustix::process::{Signal, kill_process_group};
        self.check_open()?;
        let unknown = || Refusal::Invalid(format!("there is no signal {signal}"));
        let signal = Signal::from_named_raw(signal).ok_or_else(unknown)?;
        let failed = |source| Refusal::Io { what: "the signal cannot be sent", source };
        let pid = self.lock().record.pid;
        let look = process::Look::at(pid).map_err(failed)?;
        let group = look.group().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        kill_process_group(group, signal).map_err(|errno| failed(errno.into()))
    }

    fn check_open(&self) -> Result<(), Refusal> {
        match &self.lock().record.over {
            Some(over) => Err(Refusal::Over { name: self.name.clone(), reason: over.reason.clone() }),
            None => Ok(()),
        }
    }

    /// The first command that is not over; none if all are.
    fn advance(&self) -> Option<u32> {
        let mut state = self.lock();
        while state.next <= state.last && self.store.status(state.next).is_some() {
            state.next += 1;
        }
        (state.next <= state.last).then_some(state.next)
    }

    /// Something may have changed.
    fn tell(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// It takes no more commands, and those that it has are lost.
    fn end(&self, over: Over) {
        let mut state = self.lock();
        if state.record.over.is_none() {
            state.record.over = Some(over);
            if let Err(error) = self.store.write_record(&state.record) {
                complain("the end of a session cannot be written down", &error);
            }
        }
        drop(state);
        *self.shell.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.tell();
    }
}

fn invalid(error: impl std::error::Error) -> Refusal {
    Refusal::Invalid(error.to_string())
}
