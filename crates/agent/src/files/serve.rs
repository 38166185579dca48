//! Answering the server about a task's files.
//!
//! The paths are anyone's words: none leads out of the task's directories, by `..` or by a link. A reader that is gone
//! ends the work, since nothing is read ahead of what was sent but a few pieces.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use muster_bundle::listing::{Entry, Kind};
use muster_bundle::{tar, tree};
use muster_link::message::{FileLine, Files, FilesWanted, MAX_PIECE};
use muster_link::session::Stream;
use muster_model::TaskId;
use muster_model::file::OUTPUT;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::sync::mpsc;

use super::{Files as View, Reader};
use crate::disk;

/// What may wait for a slow reader.
const AHEAD: usize = 4;

/// Answers one question.
pub(crate) async fn answer(
    stream: BufReader<Stream>,
    reader: Arc<Reader>,
    task: TaskId,
    path: String,
    want: FilesWanted,
) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    let answering = disk::work(move || Ok::<_, io::Error>(tell(&reader, &task, &path, want, &sender)));
    let (sent, answered) = tokio::join!(send(stream, receiver), answering);
    sent.and(answered?)
}

async fn send(mut stream: BufReader<Stream>, mut pieces: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    while let Some(piece) = pieces.recv().await {
        stream.write_all(&piece).await?;
    }
    stream.shutdown().await
}

fn failed(code: &str, message: String) -> Files {
    Files::Failed { code: code.to_owned(), message }
}

fn tell(
    reader: &Reader,
    task: &TaskId,
    path: &str,
    want: FilesWanted,
    to: &mpsc::Sender<Vec<u8>>,
) -> io::Result<()> {
    let view = match reader.open(task) {
        Ok(Some(view)) => view,
        Ok(None) => return line(to, &failed("no_task", format!("nothing of {task} is here"))),
        Err(error) => {
            return line(to, &failed("unreadable", format!("the files of {task} cannot be read: {error}")));
        }
    };
    view.read(|| tell_of(&view, task, path, want, to))?
}

fn tell_of(
    view: &View,
    task: &TaskId,
    path: &str,
    want: FilesWanted,
    to: &mpsc::Sender<Vec<u8>>,
) -> io::Result<()> {
    let opened = match open(view, path) {
        Ok(opened) => opened,
        Err(error) => {
            let code = match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "not_found",
                _ => "unreadable",
            };
            let reason = crate::words(&error);
            return line(to, &failed(code, format!("`{path}` of {task}: {reason}")));
        }
    };
    match want {
        FilesWanted::List | FilesWanted::Tree => list(view, &opened, want == FilesWanted::Tree, to),
        FilesWanted::Content if opened.entry.kind == Kind::Directory => archive(&opened, to),
        FilesWanted::Content => file(&opened, to),
    }
}

/// What lies at a path.
struct Opened {
    file: OwnedFd,
    /// With the path as it was asked for.
    entry: Entry,
    is_top: bool,
}

fn open(view: &View, path: &str) -> io::Result<Opened> {
    let (root, below) = match path.strip_prefix(OUTPUT) {
        Some("") => (&view.output, ""),
        Some(rest) if rest.starts_with('/') => (&view.output, &rest[1..]),
        _ => (&view.work, path),
    };
    let file = tree::open(root.as_fd(), below.as_bytes())?;
    let stat = rustix::fs::fstat(&file)?;
    let entry = tree::describe(path.into(), &stat, None);
    let entry = entry.ok_or_else(|| io::Error::other("it is neither a file nor a directory"))?;
    Ok(Opened { file, entry, is_top: path.is_empty() })
}

fn list(view: &View, opened: &Opened, is_deep: bool, to: &mpsc::Sender<Vec<u8>>) -> io::Result<()> {
    line(to, &Files::Entries)?;
    let tell = |entry: &Entry| line(to, &FileLine::Entry(entry.shown()));
    if opened.entry.kind != Kind::Directory {
        tell(&opened.entry)?;
        return line(to, &FileLine::End);
    }
    below(&opened.file, &opened.entry.path, is_deep, &tell)?;
    if opened.is_top {
        let output = rustix::fs::fstat(&view.output)?;
        if let Some(entry) = tree::describe(OUTPUT.into(), &output, None) {
            tell(&entry)?;
        }
        if is_deep {
            below(&view.output, OUTPUT.as_bytes(), is_deep, &tell)?;
        }
    }
    line(to, &FileLine::End)
}

fn below(
    directory: &impl AsFd,
    path: &[u8],
    is_deep: bool,
    tell: &dyn Fn(&Entry) -> io::Result<()>,
) -> io::Result<()> {
    let mut visit = |mut entry: Entry, _: std::os::fd::BorrowedFd<'_>, _: &std::ffi::OsStr| {
        if !path.is_empty() {
            entry.path = [path, b"/", &entry.path].concat();
        }
        tell(&entry).map(|()| true)
    };
    tree::walk(directory.as_fd(), is_deep, &mut visit).map(drop)
}

fn file(opened: &Opened, to: &mpsc::Sender<Vec<u8>>) -> io::Result<()> {
    line(to, &Files::File { bytes: opened.entry.size() })?;
    let mut file = std::fs::File::from(opened.file.try_clone()?);
    let mut pieces = Pieces { to, buffer: Vec::new() };
    io::copy(&mut file, &mut pieces)?;
    pieces.finish()
}

fn archive(opened: &Opened, to: &mpsc::Sender<Vec<u8>>) -> io::Result<()> {
    line(to, &Files::Archive)?;
    let mut archive = tar::Writer::new(Pieces { to, buffer: Vec::new() });
    tree::walk(opened.file.as_fd(), true, &mut |mut entry, at, name| {
        match entry.kind {
            Kind::File { .. } => {
                let mut file = tree::open_file(at, name)?;
                // As long as it is now, and not as it was when its directory was read.
                entry.kind = Kind::File { size: file.metadata()?.len() };
                archive.entry(&entry, &mut file)?;
            }
            Kind::Directory | Kind::Link { .. } => archive.entry(&entry, &mut io::empty())?,
        }
        Ok(true)
    })?;
    archive.finish()?.finish()
}

fn line(to: &mpsc::Sender<Vec<u8>>, message: &impl serde::Serialize) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(message)?;
    bytes.push(b'\n');
    push(to, bytes)
}

fn push(to: &mpsc::Sender<Vec<u8>>, bytes: Vec<u8>) -> io::Result<()> {
    to.blocking_send(bytes).map_err(|_| io::ErrorKind::BrokenPipe.into())
}

/// Makes pieces of what is written, each with its length before it.
struct Pieces<'a> {
    to: &'a mpsc::Sender<Vec<u8>>,
    buffer: Vec<u8>,
}

impl Pieces<'_> {
    /// Say that this was all.
    fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        push(self.to, 0_u32.to_le_bytes().to_vec())
    }
}

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.is_empty() {
            self.buffer.extend_from_slice(&[0; 4]);
        }
        let taken = bytes.len().min(4 + MAX_PIECE - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == 4 + MAX_PIECE {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.len() > 4 {
            let length = (self.buffer.len() - 4) as u32;
            self.buffer[..4].copy_from_slice(&length.to_le_bytes());
            push(self.to, std::mem::take(&mut self.buffer))?;
        }
        Ok(())
    }
}
