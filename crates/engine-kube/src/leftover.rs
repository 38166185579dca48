//! What pods could not say before they ended, read from their logs.
//!
//! An attempt has a directory on the server's machine: in it are its seats, since whoever calls on its agents must know their
//! tokens and the cluster's own copy is not ours to read; and, for ranks that ended without a server, what their agents printed,
//! put back as files. An agent that is started there says the rest as any other, and ends by itself.
//!
//! | file | says |
//! | --- | --- |
//! | `seats.json` | what its agents were told |
//! | `RANK/` | the directory of an agent that is over |

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{AsyncBufReadExt, StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};
use muster_engine::Error;
use muster_engine::pod::Seats;
use muster_link::leftover::{Entry, Found, Kind};
use muster_link::remove_tree::remove_tree;
use muster_model::AttemptId;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The container whose log it is.
const CONTAINER: &str = "task";
/// Logs that are read at once.
const READING: usize = 16;
/// How long one may take.
const READ: Duration = Duration::from_secs(60);
/// Agents that speak at once; each takes some memory of the server's machine.
const SPEAKING: usize = 32;
/// Files of attempts that nothing was done with for so long are removed.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// A pod that is over.
#[derive(Debug, Clone)]
pub(crate) struct Over {
    /// The pods of its namespace.
    pub(crate) api: Api<Pod>,
    /// What it is called there.
    pub(crate) name: String,
    /// Which of the gang it was.
    pub(crate) rank: u32,
}

/// The directories of attempts.
#[derive(Debug)]
pub(crate) struct Kept {
    dir: PathBuf,
    /// Where agents that are started here find the server.
    socket: PathBuf,
    exe: PathBuf,
    speaking: Arc<Semaphore>,
    agents: Mutex<JoinSet<()>>,
}

impl Kept {
    pub(crate) fn new(dir: PathBuf, socket: PathBuf, exe: PathBuf) -> Self {
        let speaking = Arc::new(Semaphore::new(SPEAKING));
        Self { dir, socket, exe, speaking, agents: Mutex::default() }
    }

    fn of(&self, attempt: &AttemptId) -> PathBuf {
        self.dir.join(attempt.to_string())
    }

    /// Writes down what the agents of an attempt are told, before any of them can be.
    pub(crate) fn remember(&self, attempt: &AttemptId, seats: &Seats) -> Result<(), Error> {
        let dir = self.of(attempt);
        let made =
            DirBuilder::new().recursive(true).mode(0o700).create(&dir).and_then(|()| seats.write(&dir));
        made.map_err(|error| Error::retryable(format!("write to {}", dir.display()), error))
    }

    /// What the agents of an attempt were told; none if nothing is known of it.
    pub(crate) fn seats(&self, attempt: &AttemptId) -> Option<Seats> {
        Seats::read(&self.of(attempt)).ok()
    }

    /// Nothing is left of an attempt in its cluster. What its pods could not say stays for whoever asks.
    pub(crate) fn close(&self, attempt: &AttemptId) {
        let dir = self.of(attempt);
        if ranks(&dir).is_empty() {
            // What cannot be removed now goes with the old ones.
            let _ = remove_tree(&dir);
        }
    }

    /// Removes what is old, but not of attempts that are live.
    pub(crate) fn sweep(&self, is_live: impl Fn(&AttemptId) -> bool) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(attempt) = name.to_str().and_then(|name| name.parse::<AttemptId>().ok()) else {
                continue;
            };
            let changed = |path: PathBuf| path.metadata().and_then(|found| found.modified()).ok();
            let own = ranks(&entry.path())
                .into_iter()
                .filter_map(|rank| changed(entry.path().join(rank.to_string()).join("tasks")));
            let last = own.chain(changed(entry.path())).max();
            let is_old = last.is_some_and(|last| last.elapsed().is_ok_and(|age| age > KEPT));
            if is_old && !is_live(&attempt) {
                let _ = remove_tree(&entry.path());
            }
        }
    }

    /// Reads what pods that are over have printed, and puts it back. Pods whose files are here already are not asked again.
    pub(crate) async fn fetch(&self, attempt: &AttemptId, pods: Vec<Over>) -> Result<(), Error> {
        let dir = self.of(attempt);
        let missing = pods.into_iter().filter(|pod| !dir.join(pod.rank.to_string()).exists());
        let reading = stream::iter(missing.map(|pod| fetch(dir.clone(), pod))).buffer_unordered(READING);
        reading.try_collect::<Vec<()>>().await.map(drop)
    }

    /// Starts an agent for every rank that has files here. Each ends by itself.
    pub(crate) fn speak(&self, attempt: &AttemptId) -> Result<(), Error> {
        let dir = self.of(attempt);
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        while agents.try_join_next().is_some() {}
        for rank in ranks(&dir) {
            let command = self.command(&dir, rank);
            let command = command
                .map_err(|error| Error::retryable(format!("start an agent in {}", dir.display()), error))?;
            let speaking = Arc::clone(&self.speaking);
            agents.spawn(async move {
                let _turn = speaking.acquire_owned().await;
                let mut command = tokio::process::Command::from(command);
                match command.spawn() {
                    Ok(mut child) => drop(child.wait().await),
                    Err(error) => tracing::warn!(rank, %error, "what a pod left cannot be told"),
                }
            });
        }
        Ok(())
    }

    fn command(&self, dir: &Path, rank: u32) -> io::Result<std::process::Command> {
        let log = dir.join(rank.to_string()).join("agent.log");
        let log: File = OpenOptions::new().create(true).append(true).mode(0o600).open(log)?;
        let mut command = std::process::Command::new(&self.exe);
        command.arg0("muster").args(["agent", "--pod"]).arg(dir).args(["--salvage", "--rank"]);
        command.arg(rank.to_string()).arg("--socket").arg(&self.socket);
        muster_engine::environment::keep_for_agent(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).current_dir("/");
        Ok(command)
    }
}

/// The ranks that have files.
fn ranks(dir: &Path) -> Vec<u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut ranks: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    ranks.sort_unstable();
    ranks
}

async fn fetch(dir: PathBuf, pod: Over) -> Result<(), Error> {
    let failed = |error| Error::retryable(format!("read the log of pod {}", pod.name), error);
    let late = |_| Err(ErrorKind::TimedOut.into());
    let found = tokio::time::timeout(READ, read(&pod)).await.unwrap_or_else(late).map_err(failed)?;
    let Some(files) = found.files() else {
        if !found.is_empty() {
            tracing::warn!(pod = pod.name, "what it printed for its server is not all there");
        }
        return Ok(());
    };
    let put = tokio::task::spawn_blocking(move || put_back(&dir, pod.rank, &files)).await;
    let put = put.unwrap_or_else(|error| Err(io::Error::other(error)));
    put.map_err(|error| Error::retryable("put back what a pod has left", error))
}

async fn read(pod: &Over) -> io::Result<Found> {
    let params = LogParams { container: Some(CONTAINER.into()), ..LogParams::default() };
    let mut found = Found::default();
    let log = match pod.api.log_stream(&pod.name, &params).await {
        Ok(log) => log,
        // It never began, or is gone and its log with it.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.code == 400 => return Ok(found),
        Err(error) => return Err(io::Error::other(error)),
    };
    let mut lines = log.lines();
    while let Some(line) = lines.try_next().await? {
        found.line(&line);
    }
    Ok(found)
}

/// Makes the directory of an agent that is over. It gets its name when it is whole.
fn put_back(dir: &Path, rank: u32, files: &[Entry]) -> io::Result<()> {
    let (new, place) = (dir.join(format!("{rank}.new")), dir.join(rank.to_string()));
    match fs::remove_dir_all(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    DirBuilder::new().recursive(true).mode(0o700).create(&new)?;
    // Links come last, so that nothing is written through one.
    let (links, rest): (Vec<&Entry>, Vec<&Entry>) = files.iter().partition(|entry| entry.kind == Kind::Link);
    for entry in rest.into_iter().chain(links) {
        put(&new, entry)?;
    }
    match fs::rename(&new, &place) {
        // Somebody else was as quick.
        Err(_) if place.exists() => fs::remove_dir_all(&new),
        renamed => renamed,
    }
}

fn put(dir: &Path, entry: &Entry) -> io::Result<()> {
    let path = dir.join(&entry.path);
    let make = |path: &Path| DirBuilder::new().recursive(true).mode(0o700).create(path);
    if let Some(parent) = path.parent() {
        make(parent)?;
    }
    let write = |mode| {
        let mut file = OpenOptions::new().create_new(true).write(true).mode(mode).open(&path)?;
        io::Write::write_all(&mut file, &entry.content)
    };
    match entry.kind {
        Kind::Directory => make(&path),
        Kind::File => write(0o600),
        Kind::Program => write(0o700),
        Kind::Link => {
            use std::os::unix::ffi::OsStrExt;
            symlink(std::ffi::OsStr::from_bytes(&entry.content), &path)
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_engine::Seat;

    use super::*;

    fn kept(dir: &Path) -> Kept {
        Kept::new(dir.to_owned(), dir.join("gate.sock"), "/bin/false".into())
    }

    fn attempt(number: u32) -> AttemptId {
        format!("job_8nn4hvzat0.{number}").parse().unwrap()
    }

    #[test]
    fn an_attempt_is_remembered_until_nothing_is_left_of_it() {
        let home = tempfile::tempdir().unwrap();
        let kept = kept(home.path());
        assert_eq!(kept.seats(&attempt(1)), None);
        let seat = Seat { node: "node_x".parse().unwrap(), token: "secret".into() };
        let seats = Seats::new(&[seat], Duration::from_secs(1));
        for number in [1, 2] {
            kept.remember(&attempt(number), &seats).unwrap();
            kept.remember(&attempt(number), &seats).unwrap();
        }
        assert_eq!(kept.seats(&attempt(1)), Some(seats));
        put_back(&kept.of(&attempt(2)), 0, &[Entry::file("agent.json", "{}")]).unwrap();
        kept.close(&attempt(1));
        kept.close(&attempt(2));
        assert!(kept.seats(&attempt(1)).is_none() && kept.seats(&attempt(2)).is_some());
        kept.sweep(|_| false);
        assert!(kept.seats(&attempt(2)).is_some(), "it is not old");
    }

    #[test]
    fn files_are_put_back_once_and_never_through_a_link() {
        let home = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let dir = home.path().join("a");
        let target = outside.path().to_str().unwrap();
        let files = [
            Entry::new("tasks/t/work/out", Kind::Link, target),
            Entry::directory("tasks/t/output"),
            Entry::new("tasks/t/work/run", Kind::Program, "#!"),
            Entry::file("tasks/t/record", "{}"),
        ];
        put_back(&dir, 3, &files).unwrap();
        put_back(&dir, 3, &[Entry::file("other", "")]).unwrap();
        assert_eq!(ranks(&dir), [3]);
        assert!(dir.join("3/tasks/t/output").is_dir() && !dir.join("3/other").exists());
        assert_eq!(fs::read_link(dir.join("3/tasks/t/work/out")).unwrap(), outside.path());
        let through = [Entry::new("d", Kind::Link, target), Entry::file("d/evil", "x")];
        assert!(put_back(&dir, 4, &through).is_err());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
