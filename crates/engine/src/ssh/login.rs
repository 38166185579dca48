//! One login: the client's process, what comes out of it until it says our word, and what it complains of.

use std::io;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::carry::{ASKS, FAILED, GONE, MARK, READY};
use super::command::{ABSENT, OTHER, SENT, UNSENT};
use super::failure::Ended;
use crate::{Class, Error, Machine};

/// From the start of the client to the first word: the way, the keys, the account's start-up files.
const WORD: Duration = Duration::from_secs(30);
/// A machine that takes nothing for this long takes nothing any more.
const STALLED: Duration = Duration::from_secs(30);
/// What a login's start-up files may say before our word.
const MOST_NOISE: usize = 1 << 20;
/// How much of the complaints is kept; the verdict comes last.
const MOST_COMPLAINTS: usize = 16 * 1024;
/// A line of ours is short.
const LONGEST_LINE: usize = 4096;
/// A binary is sent in pieces of this size.
const PIECE: usize = 256 * 1024;
/// What moves the bytes of a connection at a time.
const BUFFER: usize = 64 * 1024;
/// How long the client may take to end, once it has nothing more to do.
const LAST: Duration = Duration::from_secs(2);

/// What kind of machine it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) system: String,
    pub(crate) machine: String,
    /// It has another build of muster, which this server's agent was started with.
    pub(crate) has_other: bool,
}

/// What the machine says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The binary is not there.
    Absent(Kind),
    /// The binary is there now.
    Sent,
    /// It asks for the token.
    Asks,
    /// What follows are the bytes of the agent's connection.
    Ready,
    /// No agent runs.
    Gone,
}

/// One login to a machine.
#[derive(Debug)]
pub(crate) struct Login {
    machine: Arc<Machine>,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    stderr: ChildStderr,
    complaints: Vec<u8>,
}

impl Login {
    pub(crate) fn start(machine: Arc<Machine>, command: &mut Command) -> Result<Self, Error> {
        let program = command.as_std().get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::terminal(format!(
                "`{program}` is not installed where the server runs; install OpenSSH's client"
            )),
            _ => Error::retryable("start the ssh client", error),
        })?;
        let lost = || Error::retryable("start the ssh client", io::ErrorKind::BrokenPipe.into());
        let stdout = child.stdout.take().ok_or_else(lost)?;
        let stderr = child.stderr.take().ok_or_else(lost)?;
        let stdin = child.stdin.take();
        let stdout = BufReader::with_capacity(BUFFER, stdout);
        Ok(Self { machine, child, stdin, stdout, stderr, complaints: Vec::new() })
    }

    /// The next word, or why none comes.
    pub(crate) async fn word(&mut self) -> Result<Word, Error> {
        match timeout(WORD, self.find_word()).await {
            Ok(Ok(Some(line))) => self.read_word(&line).await,
            Ok(Ok(None)) => Err(self.explain().await),
            Ok(Err(error)) => Err(Error::retryable(format!("{}: read", self.machine.destination), error)),
            Err(_) => Err(self.failure(format!("it did not answer within {} s", WORD.as_secs()))),
        }
    }

    /// Skips what is not ours; none if there is nothing more.
    async fn find_word(&mut self) -> io::Result<Option<String>> {
        let (mut line, mut noise, mut is_silent) = (Vec::new(), 0, false);
        let mut piece = [0; 1024];
        while noise < MOST_NOISE {
            let mut limited = (&mut self.stdout).take(LONGEST_LINE as u64);
            tokio::select! {
                read = limited.read_until(b'\n', &mut line) => match read? {
                    0 => return Ok(None),
                    count => noise += count,
                },
                read = self.stderr.read(&mut piece), if !is_silent => {
                    let count = read?;
                    is_silent = count == 0;
                    keep(&mut self.complaints, &piece[..count]);
                    continue;
                }
            }
            let text = String::from_utf8_lossy(&line);
            if let Some(word) = text.trim_end().strip_prefix(MARK) {
                return Ok(Some(word.to_owned()));
            }
            line.clear();
        }
        Ok(None)
    }

    async fn read_word(&mut self, line: &str) -> Result<Word, Error> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            ABSENT => {
                let mut words = rest.split(' ');
                let mut next = || words.next().unwrap_or_default();
                let (system, machine) = (next().to_owned(), next().to_owned());
                Ok(Word::Absent(Kind { system, machine, has_other: next() == OTHER }))
            }
            SENT => Ok(Word::Sent),
            ASKS => Ok(Word::Asks),
            READY => Ok(Word::Ready),
            GONE => Ok(Word::Gone),
            FAILED => Err(Ended { code: Some(1), said: rest.to_owned() }.explain(&self.machine)),
            UNSENT => {
                let error = self.explain().await;
                let what = format!(
                    "{}; the muster binary could not be put into {rest}, which must belong to \
                                    this account and be writable by it alone",
                    error.what
                );
                Err(Error { what, ..error })
            }
            other => Err(self.failure(format!("it said `{other}`, which means nothing here"))),
        }
    }

    fn failure(&self, what: String) -> Error {
        let what = format!("{}: {what}", self.machine.destination);
        Error { what, class: Class::Retryable, source: None }
    }

    /// What the end of the client means.
    async fn explain(&mut self) -> Error {
        self.stdin = None;
        let rest = async {
            let mut rest = Vec::new();
            let _ = (&mut self.stderr).take(MOST_COMPLAINTS as u64).read_to_end(&mut rest).await;
            keep(&mut self.complaints, &rest);
            self.child.wait().await.ok().as_ref().and_then(ExitStatus::code)
        };
        let code = timeout(LAST, rest).await.unwrap_or_default();
        let said = String::from_utf8_lossy(&self.complaints).into_owned();
        Ended { code, said }.explain(&self.machine)
    }

    /// Ends its process, of which nothing is wanted any more.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.start_kill();
    }

    /// Gives it something on a line of its own.
    pub(crate) async fn tell(&mut self, words: &str) -> Result<(), Error> {
        self.write(format!("{words}\n").as_bytes()).await
    }

    /// Gives it a whole file, and nothing more.
    pub(crate) async fn send(&mut self, path: &Path) -> Result<(), Error> {
        let unreadable = |error| Error::retryable(format!("read {}", path.display()), error);
        let mut file = tokio::fs::File::open(path).await.map_err(unreadable)?;
        let length = file.metadata().await.map_err(unreadable)?.len();
        self.tell(&length.to_string()).await?;
        let mut piece = vec![0; PIECE];
        loop {
            match file.read(&mut piece).await.map_err(unreadable)? {
                0 => break,
                count => self.write(&piece[..count]).await?,
            }
        }
        self.stdin = None;
        Ok(())
    }

    /// It is over when the machine takes no more, and it says why.
    async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(stdin) = &mut self.stdin else { return Err(self.explain().await) };
        match timeout(STALLED, stdin.write_all(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => match self.word().await {
                Err(error) => Err(error),
                Ok(_) => Err(self.failure("it took only a part of what was sent".into())),
            },
            Err(_) => Err(self.failure(format!("it took nothing for {} s", STALLED.as_secs()))),
        }
    }

    /// What comes and goes, for somebody else to move, and the process, which they keep until they are done.
    pub(crate) fn into_streams(mut self) -> (Speaker, BufReader<ChildStdout>, Option<ChildStdin>) {
        let stdin = self.stdin.take();
        (Speaker { child: self.child, stderr: self.stderr }, self.stdout, stdin)
    }

    /// Joins the login with the server until either ends.
    pub(crate) async fn carry(mut self, server: UnixStream) {
        let Some(mut stdin) = self.stdin.take() else { return };
        let (reader, mut writer) = server.into_split();
        let mut reader = BufReader::with_capacity(BUFFER, reader);
        let mut complaints = Vec::new();
        tokio::select! {
            _ = tokio::io::copy_buf(&mut reader, &mut stdin) => {
                // The last words are still on their way.
                drop(stdin);
                let _ = timeout(LAST, self.child.wait()).await;
            }
            _ = tokio::io::copy_buf(&mut self.stdout, &mut writer) => {}
            () = listen(&mut self.stderr, &mut complaints) => {}
        }
        let said = String::from_utf8_lossy(&complaints);
        tracing::debug!(node = %self.machine.node, said = said.trim(), "a login ended");
    }
}

/// The process of a login whose streams somebody else has.
#[derive(Debug)]
pub(crate) struct Speaker {
    child: Child,
    stderr: ChildStderr,
}

impl Speaker {
    /// Takes what it complains of, so that it never has to wait with it, until it ends; and gives the last of it.
    pub(crate) async fn listen(&mut self) -> String {
        let mut complaints = Vec::new();
        tokio::select! {
            () = listen(&mut self.stderr, &mut complaints) => {}
            _ = self.child.wait() => {}
        }
        String::from_utf8_lossy(&complaints).trim().to_owned()
    }

    /// Ends it, where nothing is wanted of it any more.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.start_kill();
    }
}

/// Keeps the last of what is said.
fn keep(complaints: &mut Vec<u8>, said: &[u8]) {
    complaints.extend_from_slice(said);
    let excess = complaints.len().saturating_sub(MOST_COMPLAINTS);
    complaints.drain(..excess);
}

/// Never ends by itself: a client that closes this stream may still move bytes.
async fn listen(stderr: &mut ChildStderr, complaints: &mut Vec<u8>) {
    let mut piece = [0; 1024];
    while let Ok(count) = stderr.read(&mut piece).await {
        if count == 0 {
            break;
        }
        keep(complaints, &piece[..count]);
    }
    std::future::pending().await
}
