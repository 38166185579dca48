//! `muster logs --output`: logs as files, each of them whole or not there.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use muster_api::client;
use muster_api::view::{DownloadQuery, JobSummary, LogsQuery};

use crate::error::{Code, Error};
use crate::progress::Counter;
use crate::session::{Patience, Session};
use crate::terminal;

/// Writes a job's log to a file, or each task's to one of its own in a directory.
pub(super) async fn run(
    session: &Session,
    job: &JobSummary,
    query: LogsQuery,
    path: &Path,
) -> Result<(), Error> {
    let wants_directory = path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/");
    if !wants_directory {
        write(session, job, &download_query(&query, query.task), path).await?;
        return terminal::say(&path.display().to_string());
    }
    fs::create_dir_all(path)
        .map_err(|error| Error::io(Code::OutputFailed, format!("create {}", path.display()), &error))?;
    let attempt = query.attempt.map(|number| format!("-attempt{number}")).unwrap_or_default();
    if let Some(rank) = query.process_rank {
        let file = path.join(format!("{}{attempt}-rank{rank}.log", job.id));
        write(session, job, &download_query(&query, query.task), &file).await?;
        return terminal::say(&file.display().to_string());
    }
    for rank in (0..job.nodes).filter(|rank| query.task.is_none_or(|wanted| wanted == *rank)) {
        let file = path.join(format!("{}{attempt}-task{rank}.log", job.id));
        write(session, job, &download_query(&query, Some(rank)), &file).await?;
        terminal::say(&file.display().to_string())?;
    }
    Ok(())
}

fn download_query(query: &LogsQuery, task: Option<u32>) -> DownloadQuery {
    DownloadQuery {
        task,
        process_rank: query.process_rank,
        attempt: query.attempt,
        since: query.since.clone(),
        until: query.until.clone(),
        grep: query.grep.clone(),
        ignore_case: query.ignore_case,
        invert_match: query.invert_match,
    }
}

/// One file. A lost server is looked for again, and the file begun again.
async fn write(session: &Session, job: &JobSummary, query: &DownloadQuery, path: &Path) -> Result<(), Error> {
    let partial = Partial::beside(path)?;
    let mut patience = Patience::default();
    loop {
        match receive(session, job, query, &partial).await {
            Ok(()) => return partial.keep(path),
            Err(Failed::Client(error)) if error.is_transient() => {
                session.recover(&mut patience, error).await?
            }
            Err(Failed::Client(error)) => return Err(error.into()),
            Err(Failed::Disk(error)) => {
                return Err(Error::io(Code::OutputFailed, format!("write {}", path.display()), &error));
            }
        }
    }
}

enum Failed {
    Client(client::Error),
    Disk(std::io::Error),
}

async fn receive(
    session: &Session,
    job: &JobSummary,
    query: &DownloadQuery,
    partial: &Partial,
) -> Result<(), Failed> {
    let mut download =
        session.client().download_logs(job.id.as_str(), query).await.map_err(Failed::Client)?;
    let mut file = File::create(&partial.path).map_err(Failed::Disk)?;
    let mut counter = Counter::new("downloading");
    while let Some(piece) = download.next().await.map_err(Failed::Client)? {
        file.write_all(&piece).map_err(Failed::Disk)?;
        counter.add(piece.len() as u64);
    }
    file.flush().map_err(Failed::Disk)
}

/// A file that is being written, under a name that says so. It goes when it is given up.
struct Partial {
    path: PathBuf,
}

impl Partial {
    fn beside(path: &Path) -> Result<Self, Error> {
        let Some(name) = path.file_name() else {
            return Err(Error::new(
                Code::OutputFailed,
                format!("--output: {} is not the name of a file", path.display()),
            ));
        };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.partial", std::process::id()));
        let path = path.with_file_name(hidden);
        let created = File::create(&path).map_err(|error| {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            Error::io(
                Code::OutputFailed,
                format!("write to {}", folder.unwrap_or(Path::new(".")).display()),
                &error,
            )
        })?;
        drop(created);
        Ok(Self { path })
    }

    fn keep(self, path: &Path) -> Result<(), Error> {
        fs::rename(&self.path, path)
            .map_err(|error| Error::io(Code::OutputFailed, format!("write {}", path.display()), &error))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Once it was kept there is nothing under this name.
        let _ = fs::remove_file(&self.path);
    }
}
