//! The private server: found, started, replaced when it runs another binary, stopped.
//!
//! Exactly one runs for each home, however many commands want it at once: only the holder of `start.lock` starts or
//! replaces one, and looks again before it does. Its jobs are not its children and survive all of this.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use muster_api::client::{self, Client, Endpoint, build};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep, timeout};

use crate::error::{Code, Error};
use crate::home::{Home, Running};

/// How often a server that was killed while it started is started again.
const MAX_STARTS: u32 = 3;
/// A start takes milliseconds; on a machine that swaps, or on a slow network disk, much more.
const START_DEADLINE: Duration = Duration::from_secs(20);
/// An old server has only to close its files: its jobs do not wait for it.
const STOP_DEADLINE: Duration = Duration::from_secs(10);
/// Whoever holds the lock has at most one stop and one start to do.
const LOCK_DEADLINE: Duration =
    START_DEADLINE.saturating_add(STOP_DEADLINE).saturating_add(Duration::from_secs(5));
/// How often it is looked whether a server has come or gone; both take milliseconds.
const POLL: Duration = Duration::from_millis(2);
/// What the server writes to its standard output once it serves.
const READY: &[u8] = b"ready\n";
/// How much of the server's log is shown when it does not start.
const LOG_LINES: usize = 10;

/// A client of the private server of this binary, which is started if it must be.
pub(crate) async fn open(home: &Home) -> Result<Client, Error> {
    let found = connect(home).await?;
    if let Some(client) = found
        && is_same_build(home, &client).await?
    {
        return Ok(client);
    }
    home.create()?;
    let _lock = home.lock_start(LOCK_DEADLINE).await?;
    if let Some(client) = connect(home).await? {
        if is_same_build(home, &client).await? {
            return Ok(client);
        }
        stop(home, &client).await?;
    }
    start_or_join(home).await
}

/// A client of whatever private server runs, or of a new one. In the middle of a command the binary is not compared
/// again: two clients of different builds would otherwise replace each other's server for ever.
pub(crate) async fn reopen(home: &Home) -> Result<Client, Error> {
    if let Some(client) = connect(home).await? {
        return Ok(client);
    }
    home.create()?;
    let _lock = home.lock_start(LOCK_DEADLINE).await?;
    start_or_join(home).await
}

/// Starts a server as soon as no other one holds the home. One that is on its way out still does for a moment after
/// nobody can connect to it; one that somebody starts by hand does for a moment before. The caller holds `start.lock`.
async fn start_or_join(home: &Home) -> Result<Client, Error> {
    let deadline = Instant::now() + STOP_DEADLINE;
    loop {
        if let Some(client) = connect(home).await? {
            return Ok(client);
        }
        if home.is_free().await? {
            match start(home).await {
                // Another server took the lock first. It is joined as soon as it answers.
                Err(_) if !home.is_free().await? => {}
                started => return started,
            }
        }
        if Instant::now() >= deadline {
            return Err(Error::new(
                Code::ServerStuck,
                format!("{} does not answer", named(home.running().as_ref())),
            ));
        }
        sleep(POLL).await;
    }
}

/// A client of the private server if it runs.
pub(crate) async fn connect(home: &Home) -> Result<Option<Client>, Error> {
    home.check()?;
    match Client::connect(Endpoint::unix(home.socket())).await {
        Ok(client) => Ok(Some(client)),
        Err(client::Error::Unreachable { source, .. })
            if matches!(
                source.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::ConnectionRefused
                    // It was killed with the connection in its queue.
                    | io::ErrorKind::ConnectionReset
            ) =>
        {
            Ok(None)
        }
        Err(client::Error::Unreachable { source, .. }) => {
            let is_denied = source.kind() == io::ErrorKind::PermissionDenied;
            let error = Error::io(Code::HomeUnusable, format!("open {}", home.socket().display()), &source);
            Err(if is_denied {
                error.hint("it belongs to another user; MUSTER_HOME names a directory of your own")
            } else {
                error
            })
        }
        Err(error) => Err(error.into()),
    }
}

/// Stops the server and waits until it is gone.
pub(crate) async fn stop(home: &Home, client: &Client) -> Result<(), Error> {
    let running = home.running();
    match client.shutdown_server().await {
        Ok(()) => {}
        // It may be gone already, or be killed while it answers: the lock tells.
        Err(error) if error.is_transient() => {}
        Err(client::Error::Stuck { .. }) => {
            return Err(Error::new(
                Code::ServerStuck,
                format!("{} does not answer", named(running.as_ref())),
            ));
        }
        Err(error) => return Err(error.into()),
    }
    let deadline = Instant::now() + STOP_DEADLINE;
    let pid = running.as_ref().map(|it| it.pid);
    // Another client may need a server and start the next one at once: then the old one is gone, too.
    while !home.is_free().await? && home.running().map(|it| it.pid) == pid {
        if Instant::now() >= deadline {
            return Err(Error::new(Code::ServerStuck, format!("{} does not stop", named(running.as_ref()))));
        }
        sleep(POLL).await;
    }
    Ok(())
}

fn named(running: Option<&Running>) -> String {
    let who = running.map_or_else(String::new, |it| format!(" (version {}, process {})", it.version, it.pid));
    format!("the running server{who}")
}

/// Whether the server that runs is this build's. Within a task any server will do: it is the one that runs the task, and the task
/// may see the same program through an overlay, where it looks like another.
async fn is_same_build(home: &Home, client: &Client) -> Result<bool, Error> {
    if std::env::var_os("MUSTER_TASK_ID").is_some() {
        return Ok(true);
    }
    // Without /proc nothing can be said; better to work with what is there.
    let Ok(own) = build::of_current_exe() else { return Ok(true) };
    if let Some(running) = home.running() {
        return Ok(running.build == own);
    }
    match client.server().await {
        Ok(server) => Ok(server.build == own),
        // One that dies under our hands is replaced.
        Err(error) if error.is_transient() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Starts the server and waits until it says that it serves. The caller holds the lock.
async fn start(home: &Home) -> Result<Client, Error> {
    let mut starts = 1;
    loop {
        match start_once(home).await? {
            Start::Serves(client) => return Ok(client),
            // Somebody killed it, which says nothing about the next one; a server that fails by itself will again.
            Start::Ended { killed: true, .. } if starts < MAX_STARTS => starts += 1,
            Start::Ended { error, .. } => return Err(error),
        }
    }
}

enum Start {
    Serves(Client),
    Ended { killed: bool, error: Error },
}

async fn start_once(home: &Home) -> Result<Start, Error> {
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(home.log());
    let log = log
        .map_err(|error| Error::io(Code::HomeUnusable, format!("write {}", home.log().display()), &error))?;
    let log_start = log.metadata().map_or(0, |file| file.len());
    let mut child = spawn(home, log)
        .map_err(|error| Error::io(Code::ServerStartFailed, "start the private server", &error))?;
    let (killed, problem) = match timeout(START_DEADLINE, ready(&mut child)).await {
        Ok(Ok(true)) => match connect(home).await? {
            Some(client) => return Ok(Start::Serves(client)),
            None => (true, "the private server ended right after its start".to_owned()),
        },
        Ok(Ok(false)) => {
            let killed = child.wait().is_ok_and(|status| status.signal().is_some());
            (killed, format!("the private server did not start{}", exit_status(&mut child)))
        }
        Ok(Err(error)) => (false, format!("the private server did not start: {error}")),
        Err(_) => {
            // Half started it would hold its lock against the next try. That it cannot be killed is said below.
            let _ = child.kill().and_then(|()| child.wait());
            (false, format!("the private server was not ready after {} seconds", START_DEADLINE.as_secs()))
        }
    };
    let error = Error::new(Code::ServerStartFailed, problem)
        .details(log_tail(&home.log(), log_start))
        .hint(format!("its log is {}", home.log().display()));
    Ok(Start::Ended { killed, error })
}

fn spawn(home: &Home, log: File) -> io::Result<Child> {
    Command::new(executable()?)
        .args(["server", "run", "--daemon", "--home"])
        .arg(home.folder())
        // It must not keep the disk busy from which its first client happened to be called.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
}

/// The file this process runs. Once it is replaced on disk, only the link in `/proc` leads to it.
fn executable() -> io::Result<PathBuf> {
    let running = Path::new("/proc/self/exe");
    let named = std::env::current_exe()?;
    let identity = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino()));
    match (identity(&named), identity(running)) {
        (Ok(named_file), Ok(running_file)) if named_file != running_file => Ok(running.to_owned()),
        (Err(_), Ok(_)) => Ok(running.to_owned()),
        _ => Ok(named),
    }
}

/// Whether the server says `ready`; false when it closes its output without.
async fn ready(child: &mut Child) -> io::Result<bool> {
    let Some(stdout) = child.stdout.take() else { return Ok(false) };
    let mut pipe = pipe::Receiver::from_owned_fd(OwnedFd::from(stdout))?;
    let mut said = [0; READY.len()];
    match pipe.read_exact(&mut said).await {
        Ok(_) => Ok(said == READY),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn exit_status(child: &mut Child) -> String {
    match child.wait() {
        Ok(status) => format!(" ({status})"),
        Err(_) => String::new(),
    }
}

/// The last lines that this start has written.
fn log_tail(path: &Path, start: u64) -> Vec<String> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(start.max(end.saturating_sub(4096))))?;
        let mut bytes = Vec::new();
        file.take(4096).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let text = String::from_utf8_lossy(&read().unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].iter().map(|line| (*line).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_dies_with_the_connection_in_its_queue_does_not_run() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::at(folder.path());
        let mut listener = Some(std::os::unix::net::UnixListener::bind(home.socket()).unwrap());
        let mut connecting = std::pin::pin!(connect(&home));
        let found = std::future::poll_fn(|context| {
            let outcome = connecting.as_mut().poll(context);
            // The first look has put the connection into the queue.
            listener = None;
            outcome
        });
        assert!(found.await.unwrap().is_none());
    }

    #[test]
    fn the_tail_of_the_log_is_that_of_this_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.log");
        std::fs::write(&path, "of yesterday\nof today\n\nand more\n").unwrap();
        assert_eq!(log_tail(&path, 13), ["of today", "and more"]);
        let long: String = (0..100).map(|i| format!("line {i}\n")).collect();
        std::fs::write(&path, long).unwrap();
        assert_eq!(log_tail(&path, 0).len(), LOG_LINES);
        assert_eq!(log_tail(&path, 0)[LOG_LINES - 1], "line 99");
        assert!(log_tail(Path::new("/nowhere"), 0).is_empty());
    }

    #[tokio::test]
    async fn no_server_is_not_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("server.sock");
        assert!(Client::connect(Endpoint::unix(&socket)).await.is_err());
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        assert!(matches!(
            Client::connect(Endpoint::unix(&socket)).await,
            Err(client::Error::Unreachable { source, .. }) if source.kind() == io::ErrorKind::ConnectionRefused
        ));
    }
}
