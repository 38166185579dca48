//! `muster session attach`: at a session's terminal, from ours.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::session::Terminal;
use muster_api::view::AttachQuery;
use rustix::termios::tcgetwinsize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};

use super::Which;
use crate::error::{Code, Error};
use crate::remote::{Raw, Stdin};
use crate::session::Session;
use crate::terminal;

/// The records of an attached terminal: see the operation in openapi.json.
const TYPED: u8 = 0;
const RESIZED: u8 = 1;
/// What leaves a terminal that is not in tmux: Ctrl-].
const ESCAPE: u8 = 0x1d;

/// Sit down at a session's terminal
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster session attach last
  muster session attach last/1 --name tb

Leave with Ctrl-b d where the session is in tmux, with Ctrl-] where it is not; it goes on.")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// It shows a terminal; taken so that every command takes it
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    attach(&args.which).await
}

/// From the terminal this command has to that of a session.
pub(crate) async fn attach(which: &Which) -> Result<ExitCode, Error> {
    if !io::stdin().is_terminal() || !terminal::stdout_is_terminal() {
        let message = "only from a terminal can one sit down at another";
        return Err(Error::new(Code::Usage, message).hint("`muster session run` runs a command without one"));
    }
    let way = Session::open().await?;
    let session =
        way.call(async |client| client.session(which.job(), &which.name, &which.query()).await).await?;
    let leave = match session.terminal {
        Terminal::Tmux => None,
        Terminal::Pty => Some(ESCAPE),
    };
    if leave.is_some() {
        terminal::note("leave with Ctrl-]; the session goes on");
    }
    let (columns, rows) = size();
    let query = AttachQuery { task: which.target.task, columns, rows };
    let line = way.call(async |client| client.attach_session(which.job(), &which.name, &query).await).await?;
    let raw = Raw::enter()?;
    let ended = converse(line, leave).await;
    drop(raw);
    terminal::to_stderr("\n");
    terminal::remark(&format!("left session {} of {}", which.name, which.target));
    ended.map_err(|error| Error::io(Code::ConnectionLost, "carry the terminal", &error))?;
    Ok(ExitCode::SUCCESS)
}

/// Until the terminal ends or the user leaves.
async fn converse(line: muster_api::client::Line, leave: Option<u8>) -> io::Result<()> {
    let (mut from, mut to) = tokio::io::split(line);
    let (mut keyboard, mut stdout) = (Stdin::open()?, tokio::io::stdout());
    let mut resized = signal(SignalKind::window_change())?;
    let shown = async {
        let mut piece = vec![0; 64 << 10];
        loop {
            match from.read(&mut piece).await? {
                0 => return Ok(()),
                count => {
                    stdout.write_all(&piece[..count]).await?;
                    stdout.flush().await?;
                }
            }
        }
    };
    let typed = async {
        loop {
            let record = tokio::select! {
                keys = keyboard.next() => {
                    let keys = &keys.unwrap_or_default();
                    if keys.is_empty() || leave.is_some_and(|leave| keys.contains(&leave)) {
                        return Ok(());
                    }
                    record(TYPED, keys)
                }
                _ = resized.recv() => {
                    let (columns, rows) = size();
                    record(RESIZED, &[columns.to_le_bytes(), rows.to_le_bytes()].concat())
                }
            };
            to.write_all(&record).await?;
            to.flush().await?;
        }
    };
    tokio::select! {
        ended = shown => ended,
        ended = typed => ended,
    }
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap_or(u16::MAX);
    [&[kind][..], &length.to_le_bytes(), &content[..usize::from(length)]].concat()
}

fn size() -> (u16, u16) {
    let size = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    size.map_or((80, 24), |size| (size.ws_col, size.ws_row))
}
