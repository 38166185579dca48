//! A command on a channel: its process, the bytes in and out of it, and how it ended.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};

use russh::server::{Handle, Msg};
use russh::{Channel, Sig};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy};
use tokio::process::{Child, Command};

/// The code of a command that could not be started, as shells have it.
const NOT_STARTED: u32 = 127;
/// What a code cannot say: the number of the signal is above it, as in shells.
const SIGNALED: i32 = 128;

/// The way to a command's processes.
#[derive(Clone, Default)]
pub(super) struct Signals(Arc<OnceLock<Pid>>);

impl Signals {
    pub fn send(&self, signal: &Sig) {
        let signal = match signal {
            Sig::ABRT => Signal::ABORT,
            Sig::ALRM => Signal::ALARM,
            Sig::HUP => Signal::HUP,
            Sig::INT => Signal::INT,
            Sig::KILL => Signal::KILL,
            Sig::PIPE => Signal::PIPE,
            Sig::QUIT => Signal::QUIT,
            Sig::TERM => Signal::TERM,
            Sig::USR1 => Signal::USR1,
            Sig::FPE | Sig::ILL | Sig::SEGV | Sig::Custom(_) => return,
        };
        if let Some(group) = self.0.get() {
            // A group that is gone has nothing left to hear.
            let _ = kill_process_group(*group, signal);
        }
    }
}

/// Starts a command line in the shell, or a shell that reads its commands from the channel. The future moves its
/// bytes until it is over, and says how it ended.
pub(super) fn run(
    channel: Channel<Msg>,
    handle: Handle,
    line: Option<Vec<u8>>,
    env: BTreeMap<String, String>,
) -> (Signals, impl Future<Output = ()> + Send + 'static) {
    let signals = Signals::default();
    let known = signals.clone();
    let pump = async move {
        let id = channel.id();
        let code = match start(line.as_deref(), &env) {
            Ok(mut child) => {
                if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid as i32)) {
                    let _ = known.0.set(pid);
                }
                let ended = converse(channel, &mut child).await;
                ended.map_or(NOT_STARTED, code_of)
            }
            Err(error) => {
                let text = format!("muster ssh: the shell cannot be started: {error}\n");
                let _ = channel.make_writer_ext(Some(1)).write_all(text.as_bytes()).await;
                NOT_STARTED
            }
        };
        // A peer that has left needs no answer.
        let _ = handle.exit_status_request(id, code).await;
        let _ = handle.eof(id).await;
        let _ = handle.close(id).await;
    };
    (signals, pump)
}

fn start(line: Option<&[u8]>, env: &BTreeMap<String, String>) -> io::Result<Child> {
    let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
    let mut command = Command::new(shell.unwrap_or_else(|| "/bin/sh".into()));
    if let Some(line) = line {
        command.arg("-c").arg(OsStr::from_bytes(line));
    }
    command.envs(env).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A group of its own, so that a signal reaches all of it and nothing else.
    command.process_group(0).spawn()
}

/// Moves bytes until the process has ended and nobody holds its output any more.
async fn converse(channel: Channel<Msg>, child: &mut Child) -> io::Result<ExitStatus> {
    let (mut reading, writing) = channel.split();
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let out = forward(stdout, writing.make_writer());
    let err = forward(stderr, writing.make_writer_ext(Some(1)));
    let input = async {
        if let Some(mut stdin) = stdin {
            // A command that does not read to the end has closed it, which is its right.
            let _ = copy(&mut reading.make_reader(), &mut stdin).await;
        }
        // The input's end is not the command's.
        std::future::pending::<()>().await;
    };
    let ended = async {
        let (status, (), ()) = tokio::join!(child.wait(), out, err);
        status
    };
    tokio::select! {
        status = ended => status,
        () = input => Err(io::ErrorKind::Interrupted.into()),
    }
}

async fn forward(from: Option<impl AsyncRead + Unpin>, to: impl AsyncWrite) {
    let Some(mut from) = from else { return };
    let mut to = std::pin::pin!(to);
    if copy(&mut from, &mut to).await.is_err() {
        // The peer has left; the command is not to stop because nobody reads what it says.
        let _ = copy(&mut from, &mut tokio::io::sink()).await;
    }
}

fn code_of(status: ExitStatus) -> u32 {
    let signal = || status.signal().map_or(SIGNALED, |signal| SIGNALED + signal);
    status.code().unwrap_or_else(signal) as u32
}
