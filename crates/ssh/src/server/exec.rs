//! A command on a channel: its process, the bytes in and out of it, and how it ended.
//!
//! - A command that a signal ended has the status 128 + its number, as shells have it. `exit-signal` would say the same, but OpenSSH's
//!   client knows it not and exits with 255 as if it had not got through, and mpirun and people look at that.
//! - When the peer leaves, a command on a terminal gets SIGHUP. Another is left alone: it finds its input at an end and its output
//!   closed, as under any sshd.
//! - Whatever is written before the status is sent before it. What a command leaves behind in the background may hold its output
//!   open: after a while of silence that is not waited for any more.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Weak};
use std::time::Duration;

use pty_process::{Pty, Size};
use russh::server::{Handle, Msg};
use russh::{Channel, ChannelWriteHalf, Sig};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::termios::tcgetpgrp;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::sleep;

use super::backlog::Share;
use super::inbox::{End, pour, until_closed};
use super::pty::{self, Terminal};
use super::shell::{self, Variables, Way};

/// The code of a command that could not be started, as shells have it.
const NOT_STARTED: u32 = 127;
/// What a code cannot say: the number of the signal is above it, as in shells.
const SIGNALED: i32 = 128;
/// What is read of a command's output at once: as much as peers take in one packet.
const PORTION: usize = 32 << 10;
/// For how long the output of something in the background is waited for when the command itself is over. Nobody else
/// writes to a terminal whose shell is gone; through pipes, the end of a command's own pipeline may come later than its shell's.
const SILENCE_ON_TERMINAL: Duration = Duration::from_millis(200);
const SILENCE: Duration = Duration::from_secs(5);

/// What a peer asks for.
pub(super) struct Order {
    /// The command line, or none for a shell that reads its commands from the channel.
    pub line: Option<Vec<u8>>,
    pub variables: Variables,
    pub terminal: Option<Terminal>,
    pub way: Option<Way>,
    pub share: Share,
}

/// The way to the processes of a command for as long as it runs. It keeps nothing open: a terminal is hung up by
/// closing it.
#[derive(Clone, Default)]
pub(super) struct Control(Weak<Reach>);

struct Reach {
    group: Pid,
    master: Option<OwnedFd>,
}

impl Control {
    /// To whoever has the terminal; without one, to the command and all that it has started.
    pub fn signal(&self, signal: &Sig) {
        let (Some(reach), Some(signal)) = (self.0.upgrade(), number(signal)) else { return };
        let foreground = reach.master.as_ref().and_then(|master| tcgetpgrp(master).ok());
        // A group that is gone has nothing left to hear.
        let _ = kill_process_group(foreground.unwrap_or(reach.group), signal);
    }

    pub fn resize(&self, size: Size) {
        if let Some(master) = self.0.upgrade().as_ref().and_then(|reach| reach.master.as_ref()) {
            pty::resize(master, size);
        }
    }
}

/// Starts a command. The future moves its bytes until it is over, and says how it ended.
pub(super) fn start(
    channel: Channel<Msg>,
    handle: Handle,
    order: Order,
) -> (Control, impl Future<Output = ()> + Send + 'static) {
    let length = order.line.as_ref().map_or(0, Vec::len);
    let started = Running::start(order);
    let control = started.as_ref().map_or_else(|_| Control::default(), |running| running.control());
    let pump = async move {
        let id = channel.id();
        let code = match started {
            Ok(running) => running.converse(channel).await.map_or(NOT_STARTED, code_of),
            Err(error) => {
                let text = format!("muster ssh: the command cannot be started: {}\r\n", why(&error, length));
                let _ = channel.make_writer_ext(Some(1)).write_all(text.as_bytes()).await;
                NOT_STARTED
            }
        };
        // A peer that has left needs no answer.
        let _ = handle.exit_status_request(id, code).await;
        let _ = handle.eof(id).await;
        let _ = handle.close(id).await;
    };
    (control, pump)
}

struct Running {
    child: Child,
    pty: Option<Pty>,
    reach: Option<Arc<Reach>>,
    share: Share,
}

impl Running {
    fn start(order: Order) -> io::Result<Running> {
        let Order { line, variables, terminal, way, share } = order;
        let command = shell::command(line.as_deref(), &variables, way, terminal.as_ref());
        let (child, pty) = match terminal {
            Some(Terminal { pty, pts, .. }) => {
                let child = pty_process::Command::from(command).spawn(pts).map_err(pty::plain)?;
                (child, Some(pty))
            }
            None => (piped(command)?, None),
        };
        let master = pty.as_ref().map(|pty| pty.as_fd().try_clone_to_owned()).transpose()?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let reach = pid.map(|group| Arc::new(Reach { group, master }));
        Ok(Running { child, pty, reach, share })
    }

    fn control(&self) -> Control {
        Control(self.reach.as_ref().map(Arc::downgrade).unwrap_or_default())
    }

    /// Fails when the peer has closed the channel before the end.
    async fn converse(self, channel: Channel<Msg>) -> io::Result<ExitStatus> {
        let Running { mut child, pty, reach, share } = self;
        let (mut reading, writing) = channel.split();
        if let Some(mut pty) = pty {
            let master = pty.as_fd().try_clone_to_owned()?;
            let (output, mut keyboard) = pty.split();
            let input = async {
                if let End::Said(last) = pour(&mut reading, &mut keyboard, share).await {
                    // The end of its input is not something that a terminal can be told: it is typed.
                    let _ = keyboard.write_all(&pty::end_of_input(&master, last)).await;
                    until_closed(&mut reading).await;
                }
            };
            let over = relay((output, tokio::io::empty()), &writing, &mut child, reach, SILENCE_ON_TERMINAL);
            return unless_closed(over, input).await;
        }
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let input = async move {
            let end = pour(&mut reading, &mut stdin, share).await;
            drop(stdin);
            if end != End::Closed {
                until_closed(&mut reading).await;
            }
        };
        unless_closed(relay((stdout, stderr), &writing, &mut child, reach, SILENCE), input).await
    }
}

fn piped(mut command: Command) -> io::Result<Child> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A group of its own, so that a signal reaches all of it and nothing else.
    command.process_group(0).spawn()
}

/// The end of a command's input is not its own; that of its channel is.
async fn unless_closed<T>(
    over: impl Future<Output = io::Result<T>>,
    closed: impl Future<Output = ()>,
) -> io::Result<T> {
    tokio::select! {
        result = over => result,
        () = closed => Err(io::ErrorKind::ConnectionAborted.into()),
    }
}

/// Moves output until the process has ended and nobody holds its output any more, or says nothing more.
async fn relay(
    (mut out, mut err): (impl AsyncRead + Unpin, impl AsyncRead + Unpin),
    to: &ChannelWriteHalf<Msg>,
    child: &mut Child,
    mut reach: Option<Arc<Reach>>,
    silence: Duration,
) -> io::Result<ExitStatus> {
    let (mut to_out, mut to_err) =
        (std::pin::pin!(to.make_writer()), std::pin::pin!(to.make_writer_ext(Some(1))));
    let (mut some_out, mut some_err) = (vec![0; PORTION], vec![0; PORTION]);
    let (mut is_out, mut is_err, mut ended) = (true, true, None);
    loop {
        tokio::select! {
            // A terminal that nobody has open any more says so with an error.
            read = out.read(&mut some_out), if is_out => match read {
                Ok(count @ 1..) => to_out.write_all(&some_out[..count]).await?,
                _ => is_out = false,
            },
            read = err.read(&mut some_err), if is_err => match read {
                Ok(count @ 1..) => to_err.write_all(&some_err[..count]).await?,
                _ => is_err = false,
            },
            status = child.wait(), if ended.is_none() => {
                // Its number may be another's from here on.
                drop(reach.take());
                ended = Some(status?);
            }
            () = sleep(silence), if ended.is_some() => break,
            else => break,
        }
        if let (Some(status), false, false) = (ended, is_out, is_err) {
            return Ok(status);
        }
    }
    ended.ok_or_else(|| io::ErrorKind::BrokenPipe.into())
}

fn why(error: &io::Error, length: usize) -> String {
    match error.kind() {
        io::ErrorKind::ArgumentListTooLong => {
            format!("its line has {length} bytes, which is more than the system takes; put it into a file")
        }
        _ => error.to_string(),
    }
}

fn code_of(status: ExitStatus) -> u32 {
    let signal = || status.signal().map_or(SIGNALED, |signal| SIGNALED + signal);
    status.code().unwrap_or_else(signal) as u32
}

fn number(signal: &Sig) -> Option<Signal> {
    Some(match signal {
        Sig::ABRT => Signal::ABORT,
        Sig::ALRM => Signal::ALARM,
        Sig::FPE => Signal::FPE,
        Sig::HUP => Signal::HUP,
        Sig::ILL => Signal::ILL,
        Sig::INT => Signal::INT,
        Sig::KILL => Signal::KILL,
        Sig::PIPE => Signal::PIPE,
        Sig::QUIT => Signal::QUIT,
        Sig::SEGV => Signal::SEGV,
        Sig::TERM => Signal::TERM,
        Sig::USR1 => Signal::USR1,
        Sig::Custom(name) if name == "USR2" => Signal::USR2,
        Sig::Custom(_) => return None,
    })
}
