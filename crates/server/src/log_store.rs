//! The server's copies of tasks' logs: the agents' bytes, each once, in the same segments.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use muster_link::frame;
use muster_link::log::{Appender, SegmentDir};
use muster_link::message::LogHave;
use muster_link::session::Stream;
use muster_model::{JobId, TaskId};
use muster_store::Readers;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::sync::{OwnedMutexGuard, watch};

use crate::disk::DiskFloor;

/// Every log this server keeps.
pub(crate) struct LogStore {
    root: PathBuf,
    /// Logs that someone writes or follows.
    open: Mutex<HashMap<TaskId, Weak<Log>>>,
    floor: Arc<DiskFloor>,
}

/// One task's log, shared by its writer and its followers.
pub(crate) struct Log {
    pub dir: SegmentDir,
    /// How much is here; followers wait on it.
    end: watch::Sender<u64>,
    /// How much survives a power cut.
    durable: AtomicU64,
    /// One agent connection writes at a time; a new one waits until the old one is gone.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Log {
    /// Notices growth.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.end.subscribe()
    }
}

/// A log and the turn to write it. It moves to the disk's threads and back as one: a write goes on when whoever asked for it is
/// aborted, and until it is done it has the turn.
struct LogWriter {
    appender: Appender,
    log: Arc<Log>,
    _turn: OwnedMutexGuard<()>,
}

impl LogWriter {
    async fn open(log: Arc<Log>) -> io::Result<Self> {
        let turn = log.turn.clone().lock_owned().await;
        blocking(move || {
            let appender = Appender::open(log.dir.clone()).map_err(io::Error::other)?;
            // What came last may be unknown to those who wait for growth.
            log.end.send_replace(appender.end());
            Ok(Self { appender, log, _turn: turn })
        })
        .await
    }

    fn append(&mut self, segment: u64, offset: u64, bytes: &[u8]) -> io::Result<u64> {
        let end = self.appender.append_at(segment, offset, bytes).map_err(io::Error::other)?;
        self.log.end.send_replace(end);
        Ok(end)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.appender.sync().map_err(io::Error::other)?;
        self.log.durable.fetch_max(self.appender.end(), Ordering::Release);
        Ok(())
    }
}

impl LogStore {
    pub fn new(root: PathBuf, floor: Arc<DiskFloor>) -> Self {
        Self { root, open: Mutex::default(), floor }
    }

    /// Where a task's log is.
    pub fn dir(&self, task: &TaskId) -> SegmentDir {
        let attempt = &task.attempt;
        SegmentDir::new(
            self.job_dir(&attempt.job).join(attempt.number.to_string()).join(task.rank.to_string()),
        )
    }

    fn job_dir(&self, job: &JobId) -> PathBuf {
        self.root.join(job.as_str())
    }

    /// The log, shared with whoever else has it open.
    pub fn open(&self, task: &TaskId) -> Arc<Log> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = open.get(task).and_then(Weak::upgrade) {
            return log;
        }
        open.retain(|_, log| log.strong_count() > 0);
        let dir = self.dir(task);
        let end = dir.end().unwrap_or(0);
        let log = Arc::new(Log {
            dir,
            end: watch::Sender::new(end),
            // What an earlier life of this server wrote was synced before it was acknowledged as complete.
            durable: AtomicU64::new(end),
            turn: Arc::default(),
        });
        open.insert(task.clone(), Arc::downgrade(&log));
        log
    }

    /// Wakes followers of a task that is over, even if nothing more comes.
    pub fn on_ended(&self, task: &TaskId) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = open.get(task).and_then(Weak::upgrade) {
            log.end.send_modify(|_| {});
        }
    }

    /// Whether all of a log of this length is safe here. Of a node that died, nothing more will come.
    pub fn is_complete(&self, task: &TaskId, log_bytes: Option<u64>) -> bool {
        let Some(length) = log_bytes else { return true };
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match open.get(task).and_then(Weak::upgrade) {
            Some(log) => log.durable.load(Ordering::Acquire) >= length,
            None => self.dir(task).end().is_ok_and(|end| end >= length),
        }
    }

    /// Deletes a removed job's logs.
    pub fn remove(&self, job: &JobId) -> io::Result<()> {
        match std::fs::remove_dir_all(self.job_dir(job)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The size of a job's logs, all attempts and tasks together.
    pub fn bytes(&self, job: &JobId) -> io::Result<u64> {
        size(&self.job_dir(job))
    }

    /// Deletes logs of jobs that do not exist, or whose logs were removed, and that nobody has written to for a while.
    pub fn remove_strays(&self, readers: &Readers, untouched: Duration) -> io::Result<()> {
        let entries = match std::fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let Some(job) = entry.file_name().to_str().and_then(|name| name.parse::<JobId>().ok()) else {
                continue;
            };
            let has_log = readers.has_log(&job).map_err(io::Error::other)?;
            let age = entry.metadata()?.modified()?.elapsed().unwrap_or_default();
            if !has_log && age >= untouched {
                tracing::info!(%job, "removing a log that belongs to no job any more");
                self.remove(&job)?;
            }
        }
        Ok(())
    }

    /// Takes a log from an agent until the stream ends. Bytes are acknowledged when a killed server would still have
    /// them; when the agent closes the stream, they are on disk.
    pub async fn ingest(&self, task: &TaskId, mut stream: BufReader<Stream>) -> io::Result<()> {
        let mut writer = LogWriter::open(self.open(task)).await?;
        let mut offset = writer.appender.end();
        muster_link::control::send(&mut stream, &LogHave { offset }).await?;
        stream.flush().await?;
        let mut bytes = Vec::new();
        while let Some(segment) = frame::receive(&mut stream, &mut bytes).await? {
            // The agent keeps what is not taken, and sends it again.
            self.floor.check()?;
            let chunk = std::mem::take(&mut bytes);
            (writer, bytes, offset) = blocking(move || {
                let end = writer.append(segment, offset, &chunk)?;
                Ok((writer, chunk, end))
            })
            .await?;
            stream.write_all(&offset.to_le_bytes()).await?;
            stream.flush().await?;
        }
        blocking(move || writer.sync()).await
    }
}

fn size(path: &Path) -> io::Result<u64> {
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut bytes = 0;
    for entry in entries {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { size(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

/// File work, off the threads that serve connections.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
