//! `muster carry`: what runs on a machine at the other end of a login.
//!
//! It starts the agent if none runs, calls at its socket, and moves bytes between that and its own input and output until
//! one of them ends. It is one of two for each agent and lives as long as the login, so it is small: no runtime, two
//! threads. The agent that it starts outlives it.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use muster_model::NodeId;

use crate::local::{is_agent_running, stop_agent, write_private};

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

    /// The agent's directory. A home may be shared by all machines of a site, so the node is part of its name.
    fn dir(&self, base: &Path) -> PathBuf {
        base.join(self.dir_name())
    }

    /// It needs no quotes either.
    pub(crate) fn dir_name(&self) -> String {
        let node = self.node.as_str().strip_prefix(NodeId::PREFIX).unwrap_or_default();
        format!("node-{}.{node}", self.server)
    }
}

/// The file that has the address at which peers reach the machine.
pub fn address_file(dir: &Path) -> PathBuf {
    dir.join("address")
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
    let dir = own_dir(base, words)?;
    keep_binaries(&dir);
    // A disk that is full has what was written before, and the agent that runs has read it.
    let is_running = is_agent_running(&dir)?;
    unless(is_running, write_private(&dir.join("token"), &token)).map_err(|error| named(&dir, &error))?;
    if let Some(address) = words.address.or_else(own_address) {
        unless(is_running, write_private(&address_file(&dir), &address.to_string()))?;
    }
    join(call(&dir, words, true)?)
}

fn bulk(base: &Path, words: &Words) -> io::Result<()> {
    let dir = own_dir(base, words)?;
    join(call(&dir, words, false)?)
}

fn stop(base: &Path, words: &Words) -> io::Result<()> {
    for base in bases(base) {
        let dir = words.dir(&base);
        if dir.is_dir() {
            stop_agent(&dir)?;
        }
    }
    say(GONE)
}

/// A failure that does not matter under this condition.
fn unless(condition: bool, result: io::Result<()>) -> io::Result<()> {
    if condition { Ok(()) } else { result }
}

/// Where agents may have their directories: beside the binary, or where anyone can write.
fn bases(base: &Path) -> [PathBuf; 2] {
    let uid = rustix::process::getuid().as_raw();
    [base.to_owned(), PathBuf::from(format!("/var/tmp/muster-{uid}"))]
}

/// The agent's directory: where one runs already, or the first place that can be written to.
fn own_dir(base: &Path, words: &Words) -> io::Result<PathBuf> {
    let bases = bases(base);
    let running = bases.iter().map(|base| words.dir(base)).find(|dir| is_agent_running(dir).unwrap_or(false));
    if let Some(dir) = running {
        return Ok(dir);
    }
    let mut failure = None;
    for base in &bases {
        match make_own(base).and_then(|()| make_own(&words.dir(base))) {
            Ok(()) => return Ok(words.dir(base)),
            Err(error) => {
                failure.get_or_insert_with(|| named(base, &error));
            }
        }
    }
    Err(failure.unwrap_or_else(|| ErrorKind::NotFound.into()))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// A directory for nobody else's eyes, and in which something can be written now.
fn make_own(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(dir)?;
    if !found.is_dir() || found.uid() != rustix::process::getuid().as_raw() {
        let message = format!("{} belongs to somebody else", dir.display());
        return Err(io::Error::new(ErrorKind::PermissionDenied, message));
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(dir, Permissions::from_mode(0o700))?;
    }
    Ok(rustix::fs::access(dir, rustix::fs::Access::WRITE_OK)?)
}

/// Our own binary stays, also beside a directory that is not where it was sent to; those that nobody came for go.
fn keep_binaries(dir: &Path) {
    let Ok(exe) = env::current_exe() else { return };
    let (Some(name), Some(base)) = (exe.file_name(), dir.parent()) else { return };
    let bin = base.join("bin");
    if !bin.join(name).exists() && make_own(&bin).is_ok() {
        // Without it an agent there cannot change over to this build, and goes on as it is.
        let _ = std::os::unix::fs::symlink(&exe, bin.join(name));
    }
    let touched = File::open(&exe).and_then(|file| file.set_modified(SystemTime::now()));
    if touched.is_err() {
        return;
    }
    sweep(&bin);
}

/// Whoever misses one sends it again; agents that run it do not need the file.
fn sweep(bin: &Path) {
    let entries = fs::read_dir(bin).into_iter().flatten().flatten();
    let used = |path: PathBuf| Some((fs::metadata(&path).ok()?.modified().ok()?, path));
    let mut binaries: Vec<_> = entries.filter_map(|entry| used(entry.path())).collect();
    binaries.sort();
    let excess = binaries.len().saturating_sub(MOST_BINARIES);
    let is_old = |at: &SystemTime| at.elapsed().is_ok_and(|age| age > UNUSED);
    let unneeded = binaries.iter().enumerate().filter(|(number, (at, _))| *number < excess || is_old(at));
    unneeded.for_each(|(_, (_, path))| drop(fs::remove_file(path)));
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
fn call(dir: &Path, words: &Words, may_start: bool) -> io::Result<UnixStream> {
    // The kernel takes only short names for sockets, and a home may be anywhere.
    env::set_current_dir(dir)?;
    let socket = format!("{}.sock", words.job.as_str());
    let deadline = Instant::now() + AGENT_DEADLINE;
    let mut started: Option<Child> = None;
    let mut manager = lasting_manager();
    loop {
        let error = match UnixStream::connect(&socket) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if may_start && started.is_none() && !is_agent_running(dir)? {
            // A manager that cannot be asked, does not answer or refuses is done without.
            started = match start(dir, words, manager.as_deref()) {
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
                    last_words(dir)
                )));
            }
            started = None;
        }
        if deadline <= Instant::now() {
            return Err(io::Error::new(
                error.kind(),
                format!("the agent does not listen in {}: {error}", dir.display()),
            ));
        }
        std::thread::sleep(AGENT_PAUSE);
    }
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
    fn a_directory_of_somebody_else_is_not_used() {
        let base = tempfile::tempdir().unwrap();
        let own = base.path().join("own");
        make_own(&own).unwrap();
        make_own(&own).unwrap();
        std::os::unix::fs::symlink(&own, base.path().join("link")).unwrap();
        assert!(make_own(&base.path().join("link")).is_err());
        let dir = own_dir(&own, &words()).unwrap();
        assert_eq!(dir, own.join("node-0f.gpu.h1"));
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn the_binaries_that_were_used_last_stay() {
        let bin = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        for (name, days) in [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5), ("f", 30)] {
            let file = File::create(bin.path().join(name)).unwrap();
            file.set_modified(now - days * Duration::from_secs(24 * 3600)).unwrap();
        }
        sweep(bin.path());
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
