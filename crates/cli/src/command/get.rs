//! `muster get`: a task's files, brought here.
//!
//! What is written appears under its name only when it is whole: a file or a directory that is there was not cut short.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bytes::Bytes;
use clap::Args as ClapArgs;
use muster_api::client::Download;
use muster_api::model::file::OUTPUT;
use muster_api::model::quantity::format_bytes;
use muster_api::view::FilesQuery;
use serde_json::json;
use tokio::sync::mpsc;

use super::OneJob;
use super::files::{Which, tidy};
use crate::error::{Code, Error};
use crate::progress::Bar;
use crate::session::Session;
use crate::terminal::{self, ByteOutput};
use crate::threads;

/// Pieces of an archive that may wait for the disk.
const AHEAD: usize = 8;

/// Copy files or directories of a job's task here
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster get last                               # all of its output directory, as ./output
  muster get last @output/model.pt
  muster get digits checkpoints logs/loss.csv -o results
  muster get last @output/model.pt -o models/   # makes the directory
  muster get digits metrics.json -o - | jq .loss
  muster get digits --task 1 trace.json")]
pub(crate) struct Args {
    #[command(flatten)]
    job: OneJob,
    /// Files or directories; @output is the output directory
    #[arg(value_name = "PATH", default_value = OUTPUT)]
    paths: Vec<String>,
    #[command(flatten)]
    which: Which,
    /// The directory to put them in, or the new name of the only one; `DIR/` is made; `-` writes a file to standard output
    #[arg(short, long, value_name = "DEST")]
    output: Option<PathBuf>,
    /// Replace files that are there
    #[arg(short, long)]
    force: bool,
    /// Print what was written as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let mut written = Vec::new();
    for path in &args.paths {
        let path = tidy(path);
        let query = FilesQuery {
            path: path.clone(),
            task: args.which.task,
            attempt: args.which.attempt,
            recursive: false,
        };
        let download = session.call(async |client| client.file_content(&args.job.job, &query).await).await?;
        if args.output.as_deref() == Some(Path::new("-")) {
            to_stdout(download, &path, is_of_another(&session, &args.job.job).await?).await?;
            continue;
        }
        let target = target(args, &path)?;
        let bytes = if download.is_archive() {
            unpack(download, &target).await?
        } else {
            save(download, &target, args.force).await?
        };
        if !args.json {
            terminal::say(&format!("{} ({})", target.display(), format_bytes(bytes)))?;
        }
        written.push(json!({ "path": path, "to": target.display().to_string(), "bytes": bytes }));
    }
    if args.json {
        terminal::say_json(&written)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Where a path of the task goes.
fn target(args: &Args, path: &str) -> Result<PathBuf, Error> {
    // The working directory itself has no name of its own.
    let name = match path.rsplit('/').next() {
        Some(OUTPUT) => "output",
        Some("") | None => "work",
        Some(name) => name,
    };
    let several = args.paths.len() > 1;
    let target = match &args.output {
        Some(to) if several || to.is_dir() || to.as_os_str().as_encoded_bytes().ends_with(b"/") => {
            fs::create_dir_all(to).map_err(|error| failed(to, &error))?;
            to.join(name)
        }
        Some(to) => to.clone(),
        None => PathBuf::from(name),
    };
    match fs::symlink_metadata(&target) {
        Ok(found) if found.is_dir() => {
            Err(Error::new(Code::FileExists, format!("{} is a directory already", target.display()))
                .hint("choose another place with `-o DEST`, or remove it"))
        }
        Ok(_) if !args.force => {
            Err(Error::new(Code::FileExists, format!("{} is there already", target.display())))
        }
        _ => Ok(target),
    }
}

/// Whether another person's bytes are about to reach a terminal. A pipe gets every byte as it is.
async fn is_of_another(session: &Session, job: &str) -> Result<bool, Error> {
    if !terminal::stdout_is_terminal() {
        return Ok(false);
    }
    let job = session.call(async |client| client.job(job).await).await?;
    session.is_of_another(&job.summary.owner).await
}

async fn to_stdout(mut download: Download, path: &str, is_of_another: bool) -> Result<(), Error> {
    if download.is_archive() {
        let name = if path.is_empty() { "the working directory" } else { path };
        let message = format!("{name} is a directory, which cannot be written to standard output");
        return Err(Error::new(Code::NotAFile, message));
    }
    let mut output = ByteOutput::new(is_of_another);
    while let Some(piece) = download.next().await? {
        output.write(&piece)?;
    }
    output.finish()
}

/// Writes a file beside its place, then gives it its name.
async fn save(mut download: Download, target: &Path, force: bool) -> Result<u64, Error> {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let wrong = |error: &io::Error| failed(target, error);
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|error| wrong(&error))?;
    let mut bar = Bar::new("receiving", download.bytes().unwrap_or(0));
    let mut bytes = 0;
    while let Some(piece) = download.next().await? {
        file.write_all(&piece).map_err(|error| wrong(&error))?;
        bytes += piece.len() as u64;
        bar.add(piece.len() as u64);
    }
    let kept = if force { file.persist(target) } else { file.persist_noclobber(target) };
    let file: File = kept.map_err(|error| wrong(&error.error))?;
    // Temporary files are for their owner alone; this one is an ordinary one now.
    let mode = 0o666 & !umask();
    rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(mode)).map_err(|errno| wrong(&errno.into()))?;
    Ok(bytes)
}

fn umask() -> u32 {
    let none = rustix::fs::Mode::empty();
    // It cannot be asked without being set; nothing else in this process makes files meanwhile.
    let umask = rustix::process::umask(none);
    rustix::process::umask(umask);
    umask.as_raw_mode()
}

/// Unpacks an archive beside its place, then gives it its name.
async fn unpack(mut download: Download, target: &Path) -> Result<u64, Error> {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let unfinished = tempfile::Builder::new().prefix(".muster-get-").tempdir_in(folder);
    let unfinished = unfinished.map_err(|error| failed(target, &error))?;
    let (sender, receiver) = mpsc::channel::<Bytes>(AHEAD);
    let root = unfinished.path().to_owned();
    let unpacking = threads::run(move || {
        let mut pieces = Pieces { receiver, piece: Bytes::new() };
        muster_bundle::untar::untar(&mut pieces, &root)
    });
    let mut bar = Bar::new("receiving", 0);
    let mut bytes = 0;
    let mut received = Ok(());
    loop {
        match download.next().await {
            Ok(Some(piece)) => {
                bytes += piece.len() as u64;
                bar.add(piece.len() as u64);
                // Whoever unpacks says what is wrong when it is over.
                if sender.send(piece).await.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                received = Err(error);
                break;
            }
        }
    }
    drop(sender);
    let unpacked = unpacking.await?;
    // First, since an archive that was cut off cannot be unpacked either.
    received?;
    unpacked.map_err(|error| {
        let reason = crate::error::chain(&error);
        Error::new(Code::FileUnwritable, format!("cannot unpack into {}: {reason}", target.display()))
    })?;
    let path = unfinished.keep();
    fs::rename(&path, target).map_err(|error| failed(target, &error))?;
    Ok(bytes)
}

/// What was received, for whoever can wait.
struct Pieces {
    receiver: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let length = self.piece.len().min(buffer.len());
        buffer[..length].copy_from_slice(&self.piece.split_to(length));
        Ok(length)
    }
}

fn failed(target: &Path, error: &io::Error) -> Error {
    Error::io(Code::FileUnwritable, format!("write {}", target.display()), error)
}
