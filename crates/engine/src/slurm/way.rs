//! The way to an account's gate: it is started when it is first needed, and again when it has ended.
//!
//! The same line of shell starts it on this machine and over SSH, and sends the binary first where that is missing: compute
//! nodes run it from the same directory.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use muster_link::session::{self, Incoming, Opener, Side};
use tokio::net::UnixStream;
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Options;
use super::account;
use super::excerpt::{SENTENCE, excerpt};
use super::gate::wire::{Answer, Ask, Ran, Who, hear, say};
use super::idle::{GateWork, OpenWork};
use super::refusal;
use crate::environment::keep_for_slurm;
use crate::ssh::binary::Binary;
use crate::ssh::command::{Patience, gate, receive, ssh};
use crate::ssh::host::server_name;
use crate::ssh::login::{Kind, Login, Speaker, Word};
use crate::{Class, Error, Machine};

/// How long the client may take to reach a login node.
const REACH: Duration = Duration::from_secs(10);
/// How long a gate that has just started may take to say where it is.
const WHO: Duration = Duration::from_secs(15);

/// Accounts that have a gate at a time: each is a process here and one on the login node, and asks Slurm every ten seconds.
const MOST_GATES: usize = 256;
/// Why the gate of an account did not start, in its words and ours.
const LONGEST_EXPLANATION: usize = 2000;
/// In the name of a directory, the account's name. The account's own shell puts it in.
pub(super) const ACCOUNT: &str = "{account}";

/// What the ways of all accounts have in common.
#[derive(Debug)]
pub(super) struct WayBase {
    options: Options,
    prepared: OnceCell<Prepared>,
    /// One for each gate that may run.
    permits: Arc<Semaphore>,
}

impl WayBase {
    pub(super) fn new(options: Options) -> Self {
        Self { options, prepared: OnceCell::new(), permits: Arc::new(Semaphore::new(MOST_GATES)) }
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }
}

/// An account's way to its gate.
#[derive(Debug)]
pub(super) struct Way {
    base: Arc<WayBase>,
    /// The account that a server of root's becomes; none where the login, or the server itself, is that of the jobs.
    account: Option<String>,
    gate: tokio::sync::Mutex<Option<Gate>>,
    /// The account's one permit, for as long as a gate of it runs or is being ended.
    permit: Mutex<Weak<OwnedSemaphorePermit>>,
    work: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Prepared {
    binary: Binary,
    /// What this server is called there.
    server: String,
}

/// A gate that runs, as far as is known.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    opener: Opener,
    over: CancellationToken,
    work: Arc<GateWork>,
    /// Keeps the gate for the request that was given it.
    _open: Option<Arc<OpenWork>>,
    pub(super) who: Arc<Who>,
    pub(super) server: Arc<str>,
}

fn closed() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}

impl Gate {
    /// The same gate, open as long as a request holds it; none if it is ending.
    fn give(&self) -> Option<Self> {
        let open = self.work.begin()?;
        Some(Self { _open: Some(Arc::new(open)), ..self.clone() })
    }

    fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Asks it something.
    pub(super) async fn ask(&self, ask: &Ask) -> Result<Answer, Error> {
        let asking = async {
            let mut stream = self.opener.open().await?;
            say(&mut stream, ask).await?;
            hear::<Answer>(&mut stream).await?.check()
        };
        let answer = tokio::select! {
            answer = asking => answer,
            () = self.over.cancelled() => Err(closed()),
        };
        match answer.map_err(|error| Error::retryable("ask the gate on the login node", error))? {
            Answer::Failed { message } => Err(Error {
                what: format!("the gate on the login node: {message}"),
                class: Class::Retryable,
                source: None,
            }),
            answer => Ok(answer),
        }
    }

    /// Runs one of Slurm's programs, and gives what it has said if it was content.
    pub(super) async fn run(&self, argv: Vec<String>) -> Result<String, Error> {
        let program = argv.first().cloned().unwrap_or_default();
        match self.ask(&Ask::Run { argv }).await? {
            Answer::Ran(Ran { code: Some(0), stdout, .. }) => Ok(stdout),
            Answer::Ran(ran) => Err(refusal::retryable(&program, &ran.stderr)),
            answer => Err(unexpected(&answer)),
        }
    }
}

pub(super) fn unexpected(answer: &Answer) -> Error {
    Error {
        what: format!("the gate answered out of turn (`{}`)", answer.kind()),
        class: Class::Retryable,
        source: None,
    }
}

impl Way {
    pub(super) fn new(base: Arc<WayBase>, account: Option<String>) -> Self {
        Self {
            base,
            account,
            gate: tokio::sync::Mutex::default(),
            permit: Mutex::default(),
            work: Mutex::default(),
        }
    }

    pub(super) fn options(&self) -> &Options {
        &self.base.options
    }

    /// Whether the account can be had, and has a place for its files. One whose gate runs can.
    pub(super) async fn check_account(&self) -> Result<(), Error> {
        let Some(account) = &self.account else { return Ok(()) };
        check_directory(self.options(), account)?;
        let is_open =
            self.gate.try_lock().is_ok_and(|gate| gate.as_ref().is_some_and(|gate| !gate.is_over()));
        if is_open { Ok(()) } else { account::find(account).await.map(drop) }
    }

    /// The gate, started if it does not run.
    pub(super) async fn gate(&self) -> Result<Gate, Error> {
        let mut known = self.gate.lock().await;
        if let Some(gate) = known.as_ref().filter(|gate| !gate.is_over()).and_then(Gate::give) {
            return Ok(gate);
        }
        *known = None;
        let gate = known.insert(self.open().await?);
        gate.give().ok_or_else(|| Error::retryable("ask the gate on the login node", closed()))
    }

    async fn open(&self) -> Result<Gate, Error> {
        let permit = self.permit()?;
        let prepared = self.prepared().await?;
        let (mut login, mut word) = self.enter(prepared).await?;
        if let Word::Absent(kind) = word {
            drop(login);
            self.send(prepared, &kind).await?;
            (login, word) = self.enter(prepared).await?;
        }
        if word != Word::Ready {
            login.kill();
            let what = format!("{}: it answered out of turn", self.machine().destination);
            return Err(Error { what, class: Class::Retryable, source: None });
        }
        let (speaker, stdout, stdin) = login.into_streams();
        let stdin =
            stdin.ok_or_else(|| Error::retryable("talk to the gate", io::ErrorKind::BrokenPipe.into()))?;
        self.keep(&prepared.server, permit, speaker, stdout, stdin).await
    }

    /// The account's permit. An account has one at most: a gate that starts while the last one is being ended shares it. There
    /// is one gate for the whole server where it does not change accounts, which needs none.
    fn permit(&self) -> Result<Option<Arc<OwnedSemaphorePermit>>, Error> {
        if self.account.is_none() {
            return Ok(None);
        }
        let mut known = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(permit) = known.upgrade() {
            return Ok(Some(permit));
        }
        let permit = Arc::clone(&self.base.permits).try_acquire_owned().map_err(|_| {
            let what = format!(
                "jobs of {MOST_GATES} accounts are with Slurm already; it waits until those of one are over"
            );
            Error { what, class: Class::Retryable, source: None }
        })?;
        let permit = Arc::new(permit);
        *known = Arc::downgrade(&permit);
        Ok(Some(permit))
    }

    /// Keeps a gate that has started until it ends. One that does not say at once where it is, is killed.
    async fn keep(
        &self,
        server: &str,
        permit: Option<Arc<OwnedSemaphorePermit>>,
        mut speaker: Speaker,
        stdout: tokio::io::BufReader<ChildStdout>,
        stdin: ChildStdin,
    ) -> Result<Gate, Error> {
        let (opener, incoming, driver) = session::start(tokio::io::join(stdout, stdin), Side::Server);
        let (over, open) = (CancellationToken::new(), GateWork::new());
        let (socket, ended) = (self.options().socket.clone(), over.clone().drop_guard());
        // Until it has answered, the gate ends with this call, however that ends.
        let (unanswered, given_up) = (over.clone().drop_guard(), over.clone());
        let has_answered = Arc::new(AtomicBool::new(false));
        let answered = Arc::clone(&has_answered);
        let idle = until_idle(Arc::clone(&open), self.account.as_ref().map(|_| self.options().gate_idle));
        let agents = Arc::clone(&open);
        let account = self.account.clone();
        {
            let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
            while work.try_join_next().is_some() {}
            work.spawn(async move {
                let said = tokio::select! {
                    ended = driver => Some(ended.err().map(|error| error.to_string()).unwrap_or_default()),
                    said = speaker.listen() => Some(said),
                    () = hand_on(incoming, socket, agents) => Some(String::new()),
                    () = idle => None,
                    () = given_up.cancelled() => Some("it did not say where it is".to_owned()),
                };
                // One that has answered finishes the submissions that it has begun.
                if !answered.load(Ordering::Acquire) {
                    speaker.kill();
                }
                let said = said.map(|said| excerpt(&said, SENTENCE));
                match said {
                    Some(said) => tracing::warn!(said, account, "the gate on the login node ended"),
                    None => tracing::debug!(account, "a gate without work is ended"),
                }
                drop((ended, permit));
            });
        }
        let who = Arc::new(Who { uid: 0, dir: String::new(), binary: String::new() });
        let gate = Gate { opener, over, work: open, _open: None, who, server: server.into() };
        let late = |_| Error::retryable("ask the gate on the login node", io::ErrorKind::TimedOut.into());
        match tokio::time::timeout(WHO, gate.ask(&Ask::Who)).await.map_err(late)?? {
            Answer::Who(who) => {
                has_answered.store(true, Ordering::Release);
                unanswered.disarm();
                Ok(Gate { who: Arc::new(who), ..gate })
            }
            answer => Err(unexpected(&answer)),
        }
    }

    async fn prepared(&self) -> Result<&Prepared, Error> {
        let base = Arc::clone(&self.base);
        let prepare = || async {
            let prepared = tokio::task::spawn_blocking(move || prepare(&base.options)).await;
            let prepared = prepared.unwrap_or_else(|error| Err(io::Error::other(error)));
            prepared.map_err(|error| Error::retryable("read the muster binary that compute nodes run", error))
        };
        self.base.prepared.get_or_try_init(prepare).await
    }

    async fn enter(&self, prepared: &Prepared) -> Result<(Login, Word), Error> {
        let hash = prepared.binary.hash();
        let options = self.options();
        let mut words = format!("--server {}", prepared.server);
        let said = [("address", &options.address), ("programs", &options.programs), ("conf", &options.conf)];
        for (name, value) in said {
            if let Some(value) = value {
                words.push_str(&format!(" --{name} {value}"));
            }
        }
        let line = gate(&self.places(), hash, &words);
        let mut login = self.login(&line).await?;
        match login.word().await {
            Ok(word) => Ok((login, word)),
            Err(error) => {
                // It may hang where its home does, and the next try would be one process more.
                login.kill();
                match self.account {
                    Some(_) => Err(Error { what: excerpt(&error.what, LONGEST_EXPLANATION), ..error }),
                    None => Err(error),
                }
            }
        }
    }

    async fn send(&self, prepared: &Prepared, kind: &Kind) -> Result<(), Error> {
        let machine = self.machine();
        let file = prepared.binary.suiting(&machine.destination, &kind.system, &kind.machine)?;
        tracing::info!(to = machine.destination, file = %file.display(), "the muster binary is sent");
        let mut login = self.login(&receive(&self.places(), prepared.binary.hash())).await?;
        let sent = async {
            login.send(&file).await?;
            login.word().await
        };
        let sent = sent.await;
        if !matches!(sent, Ok(Word::Sent)) {
            login.kill();
        }
        match sent? {
            Word::Sent => Ok(()),
            _ => {
                let what = format!("{}: it answered out of turn", machine.destination);
                Err(Error { what, class: Class::Retryable, source: None })
            }
        }
    }

    /// The one directory, for a loop of the shell's. The home may be known only there, and the account's name as well.
    fn places(&self) -> String {
        match self.options().directory.as_deref() {
            None => "for d in \"$HOME/.muster\"".to_owned(),
            Some(dir) => {
                let dir = dir.replace(ACCOUNT, "$(id -un)");
                match dir.strip_prefix("~/") {
                    Some(rest) => format!("for d in \"$HOME/{rest}\""),
                    None => format!("for d in \"{dir}\""),
                }
            }
        }
    }

    fn machine(&self) -> Machine {
        let machine = machine(self.options());
        match &self.account {
            Some(account) => Machine { destination: format!("this machine, as {account}"), ..machine },
            None => machine,
        }
    }

    async fn login(&self, line: &str) -> Result<Login, Error> {
        let options = self.options();
        let machine = self.machine();
        let mut command = match (&options.login, &self.account) {
            (Some(_), _) => {
                crate::ssh::command::check(&machine)?;
                client(options, line)
            }
            (None, Some(name)) => {
                check_directory(options, name)?;
                let account = account::find(name).await?;
                here(account::shell(&account, options.user.as_ref() == Some(name))?, line)
            }
            (None, None) => {
                let mut command = Command::new("sh");
                keep_for_slurm(command.as_std_mut());
                // Interrupts from a terminal are not for it.
                command.process_group(0);
                here(command, line)
            }
        };
        Login::start(Arc::new(machine), &mut command)
    }
}

/// That an account has a directory of its own: an owner's account cannot have that of another.
fn check_directory(options: &Options, account: &str) -> Result<(), Error> {
    let is_one = |dir: &&String| dir.starts_with('/') && !dir.contains(ACCOUNT);
    match options.directory.as_ref().filter(is_one) {
        Some(dir) if options.user.as_deref() != Some(account) => Err(Error::terminal(format!(
            "slurm.directory of config.toml is `{dir}`, which belongs to one account, and this job is to run as `{account}`; the \
             operator can write `~/…`, or `{ACCOUNT}` in it"
        ))),
        Some(_) | None => Ok(()),
    }
}

/// When a gate ends for want of work; never, where it may stay.
async fn until_idle(work: Arc<GateWork>, limit: Option<Duration>) {
    match limit {
        Some(limit) => work.until_idle(limit).await,
        None => std::future::pending().await,
    }
}

fn machine(options: &Options) -> Machine {
    Machine {
        node: "node_slurm".parse().expect("the constant is a node id"),
        destination: options.login.clone().unwrap_or_else(|| "this machine".into()),
        port: options.port,
        key: options.key.clone(),
        address: None,
    }
}

/// The OpenSSH client, ready to run a line on the login node.
pub(super) fn client(options: &Options, line: &str) -> Command {
    let ssh_options = crate::ssh::Options {
        dir: options.ssh_dir.clone(),
        socket: PathBuf::new(),
        exe: PathBuf::new(),
        others: PathBuf::new(),
        program: options.program.clone(),
    };
    ssh(&ssh_options, &machine(options), Patience { reach: REACH, is_bulk: true }, line)
}

fn prepare(options: &Options) -> io::Result<Prepared> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&options.dir)?;
    let binary = Binary::read(&options.exe, &options.others)?;
    Ok(Prepared { binary, server: server_name(&options.dir.join("server"))? })
}

/// A shell on this machine that runs a line.
fn here(mut command: Command, line: &str) -> Command {
    command.args(["-c", line]).current_dir("/");
    // It ends by itself when nobody talks to it any more, and finishes what it has begun.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Joins agents with the server, until the gate is gone.
async fn hand_on(mut incoming: Incoming, socket: PathBuf, open: Arc<GateWork>) {
    let mut work = JoinSet::new();
    loop {
        tokio::select! {
            stream = incoming.next() => match stream {
                Some(mut agent) => {
                    let (socket, open) = (socket.clone(), open.begin());
                    work.spawn(async move {
                        let _open = open;
                        match UnixStream::connect(&socket).await {
                            // One that breaks is made anew by its agent.
                            Ok(mut server) => {
                                let _ = tokio::io::copy_bidirectional(&mut agent, &mut server).await;
                            }
                            Err(error) => tracing::warn!(%error, "an agent was not let in"),
                        }
                    });
                }
                None => return,
            },
            Some(_) = work.join_next() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(directory: Option<&str>, account: Option<&str>) -> Way {
        let directory = directory.map(str::to_owned);
        let options = Options { directory, ..super::super::tests::options(None, Some("lab")) };
        Way::new(Arc::new(WayBase::new(options)), account.map(str::to_owned))
    }

    #[test]
    fn every_account_has_a_directory_of_its_own() {
        let places = |directory| way(directory, Some("ada.l")).places();
        assert_eq!(places(None), "for d in \"$HOME/.muster\"");
        assert_eq!(places(Some("~/cluster")), "for d in \"$HOME/cluster\"");
        assert_eq!(places(Some("/lustre/{account}/muster")), "for d in \"/lustre/$(id -un)/muster\"");

        let check = |directory, account| check_directory(way(Some(directory), None).options(), account);
        for directory in ["~/cluster", "/lustre/{account}/muster"] {
            check(directory, "ada.l").unwrap();
        }
        check("/lustre/lab", "lab").unwrap();
        let refused = check("/lustre/lab", "ada.l").unwrap_err();
        assert!(refused.what.contains("slurm.directory") && refused.class == Class::Terminal, "{refused}");
    }

    #[test]
    fn gates_of_accounts_are_bounded_and_that_of_a_login_counts_for_none() {
        let way = way(None, Some("ada.l"));
        let all: Vec<_> = (0..MOST_GATES)
            .map(|number| {
                let other = Way::new(Arc::clone(&way.base), Some(format!("user{number}")));
                other.permit().unwrap()
            })
            .collect();
        let refused = way.permit().unwrap_err();
        assert_eq!(refused.class, Class::Retryable, "{refused}");
        let login = Way::new(Arc::clone(&way.base), None);
        assert!(login.permit().unwrap().is_none());
        drop(all);
        let first = way.permit().unwrap();
        let second = way.permit().unwrap();
        assert!(first.is_some() && second.is_some());
        assert_eq!(way.base.permits.available_permits(), MOST_GATES - 1, "an account has one permit");
    }

    #[tokio::test(start_paused = true)]
    async fn a_gate_that_does_not_say_where_it_is_is_killed_and_frees_its_permit() {
        use tokio::io::AsyncBufReadExt;

        let way = way(None, Some("ada.l"));
        let silent = "echo $$; exec sleep 600";
        let deaf = "echo $$; exec sleep 600 <&- >&-";
        let tries = [(silent, Duration::MAX), (silent, Duration::from_secs(1)), (deaf, Duration::MAX)];
        for (line, limit) in tries {
            let mut command = here(Command::new("sh"), line);
            let login = Login::start(Arc::new(way.machine()), &mut command).unwrap();
            let (speaker, mut stdout, stdin) = login.into_streams();
            let mut pid = String::new();
            stdout.read_line(&mut pid).await.unwrap();
            let permit = way.permit().unwrap();
            let kept = way.keep("0a1b2c3d", permit, speaker, stdout, stdin.unwrap());
            // It gives up by itself, or its caller does.
            match tokio::time::timeout(limit, kept).await {
                Ok(kept) => assert_eq!(kept.unwrap_err().class, Class::Retryable),
                Err(_) => assert!(limit < WHO),
            }
            let process = PathBuf::from(format!("/proc/{}", pid.trim()));
            let is_alive = || {
                let state = std::fs::read_to_string(process.join("stat"));
                state.is_ok_and(|state| !state.contains(") Z "))
            };
            for _ in 0..10_000 {
                if way.base.permits.available_permits() == MOST_GATES && !is_alive() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
                std::thread::sleep(Duration::from_micros(100));
            }
            assert_eq!(way.base.permits.available_permits(), MOST_GATES);
            assert!(!is_alive(), "it is killed");
        }
    }
}
