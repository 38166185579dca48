//! `muster carry`: what runs on a machine at the other end of a login.
//!
//! It starts the agent if none runs, calls at its socket, and moves bytes between that and its own input and output until
//! one of them ends. It is one of two for each agent and lives as long as the login, so it is small: no runtime, two
//! threads. The agent that it starts outlives it.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use muster_link::own_dir::{OwnDir, check_ancestors};
use muster_model::NodeId;
use rustix::process::geteuid;

use crate::local::{ADDRESS, TOKEN, is_agent_running, stop_agent};

/// What stands before every word of ours on the login's output: a shell's start-up files may say something, too.
pub(crate) const MARK: &str = "muster-carry: ";
pub(crate) const ASKS: &str = "asks";
pub(crate) const READY: &str = "ready";
pub(crate) const FAILED: &str = "failed";
pub(crate) const GONE: &str = "gone";

/// How long an agent may take to listen: it reads its records first, from a disk that may be slow.
const AGENT_DEADLINE: Duration = Duration::from_secs(15);
const AGENT_PAUSE: Duration = Duration::from_millis(5);
/// Binaries of servers that have not come for so long are removed, and those beyond this many.
const UNUSED: Duration = Duration::from_secs(14 * 24 * 3600);
const MOST_BINARIES: usize = 4;
/// As much as a pipe holds.
const BUFFER: usize = 64 * 1024;
/// The longest token that is read.
const TOKEN_LENGTH: usize = 4096;

/// What is to be done on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// Start the agent with the token that comes first, and carry its control connection.
    Control,
    /// Carry its bulk connection.
    Bulk,
    /// End it.
    Stop,
}

impl Job {
    fn as_str(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Bulk => "bulk",
            Self::Stop => "stop",
        }
    }
}

/// The words after `muster carry DIR`. None of them is secret, and none needs quotes.
#[derive(Debug, Clone)]
pub(crate) struct Words {
    pub(crate) node: NodeId,
    /// Which server this is: a machine may serve several.
    pub(crate) server: String,
    pub(crate) job: Job,
    /// Where peers reach the machine, if that was said.
    pub(crate) address: Option<IpAddr>,
}

impl Words {
    pub(crate) fn to_line(&self) -> String {
        let address = self.address.map(|address| format!(" --address {address}")).unwrap_or_default();
        let (node, server, job) = (&self.node, &self.server, self.job.as_str());
        format!("--node {node} --server {server} --channel {job}{address}")
    }

    fn read(words: &[OsString]) -> Option<Self> {
        let value = |name: &str| {
            let at = words.iter().position(|word| word == name)?;
            words.get(at + 1)?.to_str()
        };
        let job = match value("--channel")? {
            "control" => Job::Control,
            "bulk" => Job::Bulk,
            "stop" => Job::Stop,
            _ => return None,
        };
        let server = value("--server")?.to_owned();
        let is_plain = server.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let address = value("--address").and_then(|text| text.parse().ok());
        is_plain.then_some(())?;
        Some(Self { node: value("--node")?.parse().ok()?, server, job, address })
    }

    /// The agent's directory. A home may be shared by all machines of a site, so the node is part of its name. It needs no quotes.
    pub(crate) fn dir_name(&self) -> String {
        let node = self.node.as_str().strip_prefix(NodeId::PREFIX).unwrap_or_default();
        format!("node-{}.{node}", self.server)
    }
}

/// The file that has the address at which peers reach the machine.
pub fn address_file(dir: &Path) -> PathBuf {
    dir.join(ADDRESS)
}

/// Which build the running binary is: it has it as its name.
pub fn build() -> io::Result<String> {
    let name = fs::read_link("/proc/self/exe")?;
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(" (deleted)").unwrap_or(&name);
    Ok(name.strip_prefix("muster-").unwrap_or(name).to_owned())
}

/// `muster carry DIR WORDS`.
pub fn run(words: &[OsString]) -> ExitCode {
    let Some((base, words)) = words.split_first() else { return ExitCode::from(2) };
    let Some(words) = Words::read(words) else { return ExitCode::from(2) };
    let done = match words.job {
        Job::Control => control(Path::new(base), &words),
        Job::Bulk => bulk(Path::new(base), &words),
        Job::Stop => stop(Path::new(base), &words),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Whoever listened may be gone, and with it the need to know.
            let _ = say(&format!("{FAILED} {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Says a word of ours on the login's output.
pub(crate) fn say(word: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    // The shell's start-up files may have left a line unfinished.
    stdout.write_all(format!("\n{MARK}{word}\n").as_bytes())?;
    stdout.flush()
}

fn control(base: &Path, words: &Words) -> io::Result<()> {
    say(ASKS)?;
    let token = read_line(&mut plain_stdin()?)?;
    let agent = AgentDir::find(base, words)?;
    keep_binaries(&agent.base);
    // A disk that is full has what was written before, and the agent that runs has read it.
    let is_running = is_agent_running(&agent.dir)?;
    unless(is_running, agent.dir.write_file(TOKEN, &token))?;
    if let Some(address) = words.address.or_else(own_address) {
        unless(is_running, agent.dir.write_file(ADDRESS, &address.to_string()))?;
    }
    join(call(&agent.dir, words, true)?)
}

fn bulk(base: &Path, words: &Words) -> io::Result<()> {
    let agent = AgentDir::find(base, words)?;
    join(call(&agent.dir, words, false)?)
}

/// Directories that are not this account's own hold no agent of this account's.
fn stop(base: &Path, words: &Words) -> io::Result<()> {
    for base in own_bases(base, OwnDir::open).flatten() {
        if let Ok(dir) = base.open_below(&words.dir_name()) {
            stop_agent(&dir)?;
        }
    }
    say(GONE)
}

/// A failure that does not matter under this condition.
fn unless(condition: bool, result: io::Result<()>) -> io::Result<()> {
    if condition { Ok(()) } else { result }
}

/// Where an account without a home that can be written to has its agents. Every account may make directories in `/var/tmp`, so
/// root does without it.
fn spare_base() -> PathBuf {
    match geteuid().as_raw() {
        0 => PathBuf::from("/var/lib/muster-agent"),
        uid => PathBuf::from(format!("/var/tmp/muster-{uid}")),
    }
}

/// Where agents may have their directories: beside the binary, or where this account has them without a home. Each is opened, or
/// made.
fn own_bases(base: &Path, open: fn(&Path) -> io::Result<OwnDir>) -> impl Iterator<Item = io::Result<OwnDir>> {
    let bases = [base.to_owned(), spare_base()].into_iter();
    bases.map(move |base| check_ancestors(&base).and_then(|()| open(&base)))
}

/// The directory of an agent, and the one that it is in.
#[derive(Debug)]
struct AgentDir {
    base: OwnDir,
    dir: OwnDir,
}

impl AgentDir {
    /// Where an agent runs already, or the first place that can be written to. Another account's directory is neither.
    fn find(base: &Path, words: &Words) -> io::Result<Self> {
        let name = words.dir_name();
        let running = own_bases(base, OwnDir::open).flatten().find_map(|base| {
            let dir = base.open_below(&name).ok()?;
            is_agent_running(&dir).ok()?.then_some(Self { base, dir })
        });
        if let Some(running) = running {
            return Ok(running);
        }
        let mut failures = Vec::new();
        for base in own_bases(base, OwnDir::create) {
            match base.and_then(|base| Self::create(base, &name)) {
                Ok(agent) => return Ok(agent),
                Err(error) => failures.push(error),
            }
        }
        let kind = failures.first().map_or(ErrorKind::NotFound, io::Error::kind);
        let reasons: Vec<String> = failures.iter().map(io::Error::to_string).collect();
        Err(io::Error::new(kind, reasons.join("; ")))
    }

    /// Fails where nothing can be written now.
    fn create(base: OwnDir, name: &str) -> io::Result<Self> {
        let dir = base.create_below(name)?;
        rustix::fs::accessat(&dir, ".", rustix::fs::Access::WRITE_OK, rustix::fs::AtFlags::empty())
            .map_err(|errno| named(dir.path(), &errno.into()))?;
        Ok(Self { base, dir })
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Our own binary stays, also beside a directory that is not where it was sent to; unused ones are removed.
fn keep_binaries(base: &OwnDir) {
    let Ok(exe) = env::current_exe() else { return };
    let Some(name) = exe.file_name() else { return };
    // Without it an agent there cannot change over to this build, and goes on as it is.
    let Ok(bin) = base.create_below("bin") else { return };
    if !bin.path().join(name).exists() {
        let _ = rustix::fs::symlinkat(&exe, &bin, name);
    }
    let touched = File::open(&exe).and_then(|file| file.set_modified(SystemTime::now()));
    if touched.is_ok() {
        sweep(&bin);
    }
}

/// A server that misses one sends it again; agents that run it do not need the file.
fn sweep(bin: &OwnDir) {
    let entries = fs::read_dir(bin.path()).into_iter().flatten().flatten();
    let used =
        |entry: fs::DirEntry| Some((fs::metadata(entry.path()).ok()?.modified().ok()?, entry.file_name()));
    let mut binaries: Vec<_> = entries.filter_map(used).collect();
    binaries.sort();
    let excess = binaries.len().saturating_sub(MOST_BINARIES);
    let is_old = |at: &SystemTime| at.elapsed().is_ok_and(|age| age > UNUSED);
    let unneeded = binaries.iter().enumerate().filter(|(number, (at, _))| *number < excess || is_old(at));
    unneeded.for_each(|(_, (_, name))| drop(bin.remove_file(name)));
}

/// The machine's side of the connection that this login came by; of no use to others if it is within the machine.
fn own_address() -> Option<IpAddr> {
    let connection = env::var("SSH_CONNECTION").ok()?;
    let text = connection.split(' ').nth(2)?;
    let address: IpAddr = text.split('%').next()?.parse().ok()?;
    (!address.is_loopback()).then_some(address)
}

/// Reads no byte beyond the line: what follows is for the agent.
fn read_line(input: &mut impl Read) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < TOKEN_LENGTH && input.read(&mut byte)? == 1 {
        match byte {
            [b'\n'] => return String::from_utf8(line).map_err(io::Error::other),
            [byte] => line.push(byte),
        }
    }
    Err(io::Error::new(ErrorKind::UnexpectedEof, "no token came"))
}

/// A connection to the agent, which is started if it may be and does not run.
fn call(dir: &OwnDir, words: &Words, may_start: bool) -> io::Result<UnixStream> {
    // The kernel takes only short names for sockets, and a home may be anywhere.
    dir.enter()?;
    let socket = format!("{}.sock", words.job.as_str());
    let deadline = Instant::now() + AGENT_DEADLINE;
    let mut started: Option<Child> = None;
    let mut manager = lasting_manager();
    loop {
        let error = match UnixStream::connect(&socket) {
            Ok(stream) => return of_own_account(stream),
            Err(error) => error,
        };
        if may_start && started.is_none() && !is_agent_running(dir)? {
            // A manager that cannot be asked, does not answer or refuses is done without.
            started = match start(dir.path(), words, manager.as_deref()) {
                Err(_) if manager.take().is_some() => None,
                child => Some(child?),
            };
        }
        if let Some(child) = &mut started
            && let Some(status) = child.try_wait()?
        {
            // It may have lost the race against another, which then listens.
            let is_running = is_agent_running(dir)?;
            let is_refused = !is_running && manager.take().is_some();
            if !is_running && !is_refused {
                return Err(io::Error::other(format!(
                    "the agent ended at once, {status}: {}",
                    last_words(dir.path())
                )));
            }
            started = None;
        }
        if deadline <= Instant::now() {
            return Err(io::Error::new(
                error.kind(),
                format!("the agent does not listen in {}: {error}", dir.path().display()),
            ));
        }
        std::thread::sleep(AGENT_PAUSE);
    }
}

/// A socket that another account listens at is none of an agent's.
fn of_own_account(stream: UnixStream) -> io::Result<UnixStream> {
    let listener = rustix::net::sockopt::socket_peercred(&stream)?.uid;
    if listener != geteuid() {
        let message = format!("the account with the uid {} listens at the agent's socket", listener.as_raw());
        return Err(io::Error::new(ErrorKind::PermissionDenied, message));
    }
    Ok(stream)
}

/// The runtime directory of the account's own systemd, if that lasts longer than logins. Where a machine ends what a login
/// leaves behind (`KillUserProcesses`), only what this manager has is spared.
fn lasting_manager() -> Option<PathBuf> {
    let account =
        env::var("USER").or_else(|_| env::var("LOGNAME")).ok().filter(|name| !name.contains('/'))?;
    let runtime = PathBuf::from(format!("/run/user/{}", rustix::process::getuid().as_raw()));
    let lingers = Path::new("/var/lib/systemd/linger").join(account).exists();
    (lingers && runtime.join("systemd/private").exists()).then_some(runtime)
}

/// Starts the agent as this same binary. It has nothing of the login's: no streams, no session, no variables; and with a
/// manager that lasts, not its place among the machine's processes either.
fn start(dir: &Path, words: &Words, manager: Option<&Path>) -> io::Result<Child> {
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(dir.join("agent.log"));
    let exe = env::current_exe()?;
    let mut command = match manager {
        Some(runtime) => {
            // It becomes the agent when it has moved itself, so this is the agent's process from the beginning.
            let mut command = Command::new("systemd-run");
            command.args(["--user", "--scope", "--quiet", "--property=Delegate=yes", "--"]).arg(exe);
            command.env("XDG_RUNTIME_DIR", runtime);
            command
        }
        None => Command::new(exe),
    };
    if manager.is_none() {
        command.arg0("muster");
    }
    command.args(["agent", "--carried"]).arg(dir).arg("--node").arg(words.node.as_str());
    let of_login = |name: &OsString| {
        let name = name.to_string_lossy();
        name.starts_with("SSH_") || name.starts_with("XDG_SESSION") || name == "DISPLAY"
    };
    for (name, _) in env::vars_os().filter(|(name, _)| of_login(name)) {
        command.env_remove(name);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.map_or_else(|_| Stdio::null(), Stdio::from));
    command.current_dir("/").spawn()
}

fn last_words(dir: &Path) -> String {
    let log = fs::read_to_string(dir.join("agent.log")).unwrap_or_default();
    let last = log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it has left no word").trim();
    last.chars().take(500).collect()
}

/// Moves bytes both ways until one way ends; then all of it does.
fn join(agent: UnixStream) -> io::Result<()> {
    say(READY)?;
    let (ended, first) = mpsc::channel();
    let (mut stdin, mut stdout) = (plain_stdin()?, File::from(io::stdout().as_fd().try_clone_to_owned()?));
    let (mut reader, mut writer) = (agent.try_clone()?, agent);
    let second = ended.clone();
    std::thread::spawn(move || second.send(pour(&mut stdin, &mut writer)));
    std::thread::spawn(move || ended.send(pour(&mut reader, &mut stdout)));
    // Ends may be errors, of a pipe that nobody reads; either way it is over.
    drop(first.recv());
    Ok(())
}

/// The standard library's copy would have the kernel splice from the socket into the pipe, which holds the pipe's lock
/// while it waits for bytes: sshd, which looks at the other end of the pipe, then hangs for as long.
fn pour(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&buffer[..count])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Standard input without a buffer of its own.
fn plain_stdin() -> io::Result<File> {
    Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Words {
        let address = Some([10, 0, 0, 5].into());
        Words { node: "node_gpu.h1".parse().unwrap(), server: "0f".into(), job: Job::Control, address }
    }

    #[test]
    fn the_words_are_read_as_they_were_written() {
        let line = words().to_line();
        let given: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let read = Words::read(&given).unwrap();
        assert_eq!((read.node.as_str(), read.server.as_str(), read.job), ("node_gpu.h1", "0f", Job::Control));
        assert_eq!(read.address, words().address);
        assert!(Words::read(&given[..4]).is_none());
    }

    #[test]
    fn an_agent_is_looked_for_in_directories_of_this_account_alone() {
        let base = tempfile::tempdir().unwrap();
        let own = base.path().join("own");
        let found = AgentDir::find(&own, &words()).unwrap();
        assert_eq!(found.dir.path(), own.join("node-0f.gpu.h1"));
        // A link in the place of the agent's directory, behind which a lock is held.
        let planted = base.path().join("planted");
        fs::create_dir_all(&planted).unwrap();
        let lock = File::create(planted.join("agent.lock")).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        fs::remove_dir(own.join("node-0f.gpu.h1")).unwrap();
        std::os::unix::fs::symlink(&planted, own.join("node-0f.gpu.h1")).unwrap();
        let found = AgentDir::find(&own, &words());
        assert!(found.is_err() || !found.unwrap().dir.path().starts_with(base.path()));
        std::os::unix::fs::symlink(&own, base.path().join("link")).unwrap();
        assert!(own_bases(&base.path().join("link"), OwnDir::open).next().unwrap().is_err());
    }

    #[test]
    fn files_behind_a_linked_bin_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (base, victim) = (folder.path().join("base"), folder.path().join("victim"));
        fs::create_dir(&victim).unwrap();
        for number in 0..9 {
            fs::write(victim.join(number.to_string()), "").unwrap();
        }
        let base = OwnDir::create(&base).unwrap();
        std::os::unix::fs::symlink(&victim, base.path().join("bin")).unwrap();
        keep_binaries(&base);
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 9);
    }

    #[test]
    fn the_binaries_that_were_used_last_stay() {
        let bin = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        for (name, days) in [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5), ("f", 30)] {
            let file = File::create(bin.path().join(name)).unwrap();
            file.set_modified(now - days * Duration::from_secs(24 * 3600)).unwrap();
        }
        sweep(&OwnDir::open(bin.path()).unwrap());
        let mut left: Vec<_> =
            fs::read_dir(bin.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["a", "b", "c", "d"]);
    }

    #[test]
    fn a_token_is_one_line_and_no_more() {
        let mut input = "token\nfor the agent".as_bytes();
        assert_eq!(read_line(&mut input).unwrap(), "token");
        assert_eq!(input, b"for the agent");
        assert!(read_line(&mut "no end".as_bytes()).is_err());
    }
}
