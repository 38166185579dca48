//! The way to the gate: it is started when it is first needed, and again when it has ended.
//!
//! The same line of shell starts it on this machine and over SSH, and sends the binary first where that is missing: compute
//! nodes run it from the same directory.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_link::session::{self, Incoming, Opener, Side};
use tokio::net::UnixStream;
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Options;
use super::gate::wire::{Answer, Ask, Ran, Who, hear, say};
use super::refusal;
use crate::environment::keep_for_slurm;
use crate::ssh::binary::Binary;
use crate::ssh::command::{Patience, gate, receive, ssh};
use crate::ssh::host::server_name;
use crate::ssh::login::{Kind, Login, Speaker, Word};
use crate::{Class, Error, Machine};

/// How long the client may take to reach a login node.
const REACH: Duration = Duration::from_secs(10);

/// The way to the gate.
#[derive(Debug)]
pub(super) struct Way {
    options: Arc<Options>,
    prepared: OnceCell<Prepared>,
    gate: tokio::sync::Mutex<Option<Gate>>,
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
    pub(super) who: Arc<Who>,
    pub(super) server: Arc<str>,
}

impl Gate {
    /// Asks it something.
    pub(super) async fn ask(&self, ask: &Ask) -> Result<Answer, Error> {
        let asking = async {
            let mut stream = self.opener.open().await?;
            say(&mut stream, ask).await?;
            hear(&mut stream).await
        };
        let answer = tokio::select! {
            answer = asking => answer,
            () = self.over.cancelled() => Err(io::ErrorKind::ConnectionAborted.into()),
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
        what: format!("the gate answered out of turn ({answer:?})"),
        class: Class::Retryable,
        source: None,
    }
}

impl Way {
    pub(super) fn new(options: Options) -> Self {
        Self {
            options: Arc::new(options),
            prepared: OnceCell::new(),
            gate: tokio::sync::Mutex::default(),
            work: Mutex::default(),
        }
    }

    /// Whether anything here speaks of a cluster. Who has none does not want to hear of it, and jobs that are sent there all the
    /// same are told.
    pub(super) fn is_any(&self) -> bool {
        let Options { login, user, programs, conf, .. } = &*self.options;
        let is_named = login.is_some() || user.is_some() || programs.is_some() || conf.is_some();
        let is_installed = || {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|dir| dir.join("sinfo").is_file())
        };
        is_named || (!rustix::process::getuid().is_root() && is_installed())
    }

    /// The gate, started if it does not run.
    pub(super) async fn gate(&self) -> Result<Gate, Error> {
        let mut known = self.gate.lock().await;
        if let Some(gate) = known.as_ref().filter(|gate| !gate.over.is_cancelled()) {
            return Ok(gate.clone());
        }
        *known = None;
        let gate = self.open().await?;
        Ok(known.insert(gate).clone())
    }

    async fn open(&self) -> Result<Gate, Error> {
        let prepared = self.prepared().await?;
        let (mut login, mut word) = self.enter(prepared).await?;
        if let Word::Absent(kind) = word {
            drop(login);
            self.send(prepared, &kind).await?;
            (login, word) = self.enter(prepared).await?;
        }
        if word != Word::Ready {
            let what = format!("{}: it answered out of turn ({word:?})", self.machine().destination);
            return Err(Error { what, class: Class::Retryable, source: None });
        }
        let (speaker, stdout, stdin) = login.into_streams();
        let stdin =
            stdin.ok_or_else(|| Error::retryable("talk to the gate", io::ErrorKind::BrokenPipe.into()))?;
        self.keep(prepared, speaker, stdout, stdin).await
    }

    async fn keep(
        &self,
        prepared: &Prepared,
        speaker: Speaker,
        stdout: tokio::io::BufReader<ChildStdout>,
        stdin: ChildStdin,
    ) -> Result<Gate, Error> {
        let (opener, incoming, driver) = session::start(tokio::io::join(stdout, stdin), Side::Server);
        let over = CancellationToken::new();
        let (socket, ended) = (self.options.socket.clone(), over.clone().drop_guard());
        {
            let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
            while work.try_join_next().is_some() {}
            work.spawn(async move {
                let said = tokio::select! {
                    ended = driver => ended.err().map(|error| error.to_string()).unwrap_or_default(),
                    said = speaker.listen() => said,
                    () = hand_on(incoming, socket) => String::new(),
                };
                tracing::warn!(said, "the gate on the login node ended");
                drop(ended);
            });
        }
        let who = Arc::new(Who { uid: 0, dir: String::new(), binary: String::new() });
        let gate = Gate { opener, over, who, server: prepared.server.as_str().into() };
        match gate.ask(&Ask::Who).await? {
            Answer::Who(who) => Ok(Gate { who: Arc::new(who), ..gate }),
            answer => Err(unexpected(&answer)),
        }
    }

    async fn prepared(&self) -> Result<&Prepared, Error> {
        let options = Arc::clone(&self.options);
        let prepare = || async {
            let prepared = tokio::task::spawn_blocking(move || prepare(&options)).await;
            let prepared = prepared.unwrap_or_else(|error| Err(io::Error::other(error)));
            prepared.map_err(|error| Error::retryable("read the muster binary that compute nodes run", error))
        };
        self.prepared.get_or_try_init(prepare).await
    }

    async fn enter(&self, prepared: &Prepared) -> Result<(Login, Word), Error> {
        let hash = prepared.binary.hash();
        let options = &*self.options;
        let mut words = format!("--server {}", prepared.server);
        let said = [("address", &options.address), ("programs", &options.programs), ("conf", &options.conf)];
        for (name, value) in said {
            if let Some(value) = value {
                words.push_str(&format!(" --{name} {value}"));
            }
        }
        let line = gate(&self.places(), hash, &words);
        let mut login = self.login(&line).await?;
        let word = login.word().await?;
        Ok((login, word))
    }

    async fn send(&self, prepared: &Prepared, kind: &Kind) -> Result<(), Error> {
        let machine = self.machine();
        let file = prepared.binary.suiting(&machine.destination, &kind.system, &kind.machine)?;
        tracing::info!(to = machine.destination, file = %file.display(), "the muster binary is sent");
        let mut login = self.login(&receive(&self.places(), prepared.binary.hash())).await?;
        login.send(&file).await?;
        match login.word().await? {
            Word::Sent => Ok(()),
            word => {
                let what = format!("{}: it answered out of turn ({word:?})", machine.destination);
                Err(Error { what, class: Class::Retryable, source: None })
            }
        }
    }

    /// The one directory, for a loop of the shell's. The home may be known only there.
    fn places(&self) -> String {
        match self.options.directory.as_deref() {
            None => "for d in \"$HOME/.muster\"".to_owned(),
            Some(dir) => match dir.strip_prefix("~/") {
                Some(rest) => format!("for d in \"$HOME/{rest}\""),
                None => format!("for d in \"{dir}\""),
            },
        }
    }

    fn machine(&self) -> Machine {
        machine(&self.options)
    }

    async fn login(&self, line: &str) -> Result<Login, Error> {
        let machine = self.machine();
        let mut command = match &self.options.login {
            Some(_) => {
                crate::ssh::command::check(&machine)?;
                client(&self.options, line)
            }
            None => here(self.options.user.as_deref(), line).await?,
        };
        Login::start(Arc::new(machine), &mut command)
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

/// A shell on this machine: ours, or that of the account that jobs run as.
async fn here(user: Option<&str>, line: &str) -> Result<Command, Error> {
    let mut command = match (rustix::process::getuid().is_root(), user) {
        (true, Some(user)) => as_user(user).await?,
        (true, None) => {
            return Err(Error::terminal(
                "this server runs as root, and jobs never do; set slurm.user to the account they are to run as",
            ));
        }
        (false, _) => Command::new("sh"),
    };
    command.args(["-c", line]).current_dir("/");
    keep_for_slurm(command.as_std_mut());
    // It ends by itself when nobody talks to it any more, and finishes what it has begun.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    Ok(command)
}

async fn as_user(user: &str) -> Result<Command, Error> {
    let mut getent = Command::new("getent");
    keep_for_slurm(getent.as_std_mut());
    let found = getent.args(["passwd", user]).output().await;
    let found = found.map_err(|error| Error::retryable("look up slurm.user", error))?;
    let line = String::from_utf8_lossy(&found.stdout).into_owned();
    let fields: Vec<&str> = line.trim().split(':').collect();
    let [name, _, uid, gid, _, home, shell, ..] = fields.as_slice() else {
        return Err(Error::terminal(format!("slurm.user: there is no account `{user}` on this machine")));
    };
    if *uid == "0" {
        return Err(Error::terminal("slurm.user: jobs never run as root; name another account"));
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", uid, "--regid", gid, "--init-groups", "sh"]);
    command.env("HOME", home).env("USER", name).env("LOGNAME", name).env("SHELL", shell);
    Ok(command)
}

/// Joins agents with the server, until the gate is gone.
async fn hand_on(mut incoming: Incoming, socket: PathBuf) {
    let mut work = JoinSet::new();
    loop {
        tokio::select! {
            stream = incoming.next() => match stream {
                Some(mut agent) => {
                    let socket = socket.clone();
                    work.spawn(async move {
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
