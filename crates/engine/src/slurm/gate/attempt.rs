//! The directory of an attempt, which the gate and the attempt's agents share, and how a submission is made once.
//!
//! | file | written by | says |
//! | --- | --- | --- |
//! | `seats.json` | gate | what agents need, tokens included |
//! | `script` | gate | what Slurm runs |
//! | `trying` | gate, before `sbatch` | that a job may come of it |
//! | `job` | gate, after it | which job it is |
//! | `claim` | the first agent | for which job agents work; those of another end themselves |
//! | `closed` | gate | that nothing is to run any more |
//! | `lock` | gate | locked for as long as a `sbatch` runs, also one whose gate has died |
//! | `RANK/` | an agent | its own directory |

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use muster_link::remove_tree::remove_tree;
use muster_model::{AttemptId, JobId};
use rustix::fs::{FlockOperation, flock};

use super::super::job::is_id;
use super::super::refusal::{self, Kind};
use super::CLOSED;
use super::programs::Programs;
use super::wire::{Found, Ran, Submission, Submit};
use crate::local::write_private;

/// `sbatch` waits for the controller for a while and then gives up. One that takes longer than this hangs.
const SUBMIT: Duration = Duration::from_secs(600);

/// Removes the directories of attempts that nothing was done in for so long, but not of those that are live.
pub(super) fn sweep(base: &Path, live: &[AttemptId], kept: Duration) -> io::Result<()> {
    for entry in fs::read_dir(base)?.flatten() {
        let name = entry.file_name();
        let Some(attempt) = name.to_str().and_then(|name| name.parse::<AttemptId>().ok()) else { continue };
        let changed = |path: &Path| path.metadata().and_then(|found| found.modified()).ok();
        // What agents do last is to write into their own directories.
        let ranks = Attempt { dir: entry.path() }.ranks()?;
        let last =
            ranks.iter().filter_map(|rank| changed(&entry.path().join(rank.to_string()).join("tasks")));
        let last = last.chain(changed(&entry.path())).max();
        let is_old = last.is_some_and(|last| last.elapsed().is_ok_and(|age| age > kept));
        if is_old && !live.contains(&attempt) {
            // What cannot be removed now is tried again the next day.
            let _ = remove_tree(&entry.path());
        }
    }
    Ok(())
}

/// Removes the directories of all attempts of a job.
pub(super) fn remove(base: &Path, job: &JobId) -> io::Result<()> {
    let is_its = |name: &str| name.parse::<AttemptId>().is_ok_and(|attempt| attempt.job == *job);
    for entry in fs::read_dir(base)?.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_its))
    {
        remove_tree(&entry.path())?;
    }
    Ok(())
}

/// The directory of one attempt.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    dir: PathBuf,
}

impl Attempt {
    pub(super) fn new(base: &Path, attempt: &AttemptId) -> Self {
        Self { dir: base.join(attempt.to_string()) }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn make(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.dir) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.dir.join(name).exists()
    }

    /// The job that it has, as far as that was written down by anybody.
    fn job(&self) -> Option<String> {
        let read = |name: &str| {
            let text = fs::read_to_string(self.dir.join(name)).ok()?;
            Some(text.trim().to_owned()).filter(|id| is_id(id))
        };
        read("job").or_else(|| read("claim"))
    }

    pub(super) fn found(&self) -> Found {
        Found {
            job: self.job(),
            is_tried: self.has("trying"),
            is_closed: self.has(CLOSED),
            is_claimed: self.has("claim"),
        }
    }

    pub(super) fn adopt(&self, job: &str) -> io::Result<()> {
        self.make()?;
        write_private(&self.dir.join("job"), job)
    }

    pub(super) fn close(&self) -> io::Result<()> {
        self.make()?;
        write_private(&self.dir.join(CLOSED), "")
    }

    /// The ranks that have files.
    pub(super) fn ranks(&self) -> io::Result<Vec<u32>> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let rank = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        Ok(entries.flatten().filter_map(rank).collect())
    }

    /// Hands the gang over, unless that was done, or may have been.
    pub(super) async fn submit(&self, submit: Submit, programs: &Programs) -> io::Result<Submission> {
        self.make()?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.dir.join("lock"))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(Submission::Busy),
            locked => locked?,
        }
        if let Some(id) = self.job() {
            return Ok(Submission::Job { id });
        }
        if self.has(CLOSED) {
            return Ok(Submission::Closed);
        }
        if self.has("trying") && !submit.is_settled {
            return Ok(Submission::Doubtful { complaints: "sbatch did not say what came of it".into() });
        }
        self.write(&submit)?;
        let mut argv = submit.argv;
        argv.push(self.dir.join("script").to_string_lossy().into_owned());
        // The program has the lock as its input: it is free when nobody submits any more, whoever was killed.
        let ran = programs.run(&argv, Stdio::from(lock), SUBMIT).await;
        self.settle(ran)
    }

    fn write(&self, submit: &Submit) -> io::Result<()> {
        write_private(&self.dir.join("seats.json"), &submit.seats.to_string())?;
        write_private(&self.dir.join("script"), &submit.script)?;
        let mut trying = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(self.dir.join("trying"))?;
        trying.write_all(b"\n")?;
        // A machine that goes down now must know afterwards that it has tried.
        trying.sync_all()?;
        File::open(&self.dir)?.sync_all()
    }

    fn settle(&self, ran: Ran) -> io::Result<Submission> {
        if ran.code == Some(0) {
            // With the name of the cluster after a semicolon, where there are several.
            let id = ran.stdout.trim().split(';').next().unwrap_or_default().trim().to_owned();
            if is_id(&id) {
                self.adopt(&id)?;
                return Ok(Submission::Job { id });
            }
        }
        let complaints = ran.stderr;
        match refusal::of_submission(ran.code.filter(|code| *code != 0), &complaints) {
            Kind::Refused => {
                fs::remove_file(self.dir.join("trying"))?;
                Ok(Submission::Refused { complaints })
            }
            Kind::Later => {
                fs::remove_file(self.dir.join("trying"))?;
                Ok(Submission::Later { complaints })
            }
            Kind::Unknown => Ok(Submission::Doubtful { complaints }),
        }
    }
}
