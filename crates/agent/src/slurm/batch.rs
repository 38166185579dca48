//! `muster-batch`: runs a script, has its output written to files as well, and gives notice before its time is over.
//!
//! It stands between the supervisor and the script. A stop reaches the script without it: the two are one process group.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::pattern::Place;
use super::say;
use super::srun::claims;
use crate::processes::signal::{self, Signals};

const NAME: &str = "muster-batch";
const PIECE: usize = 64 << 10;
/// Signals that somebody may send to the task, which are meant for the script.
const PASSED_ON: [i32; 4] = [libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGCONT];
/// For how long the output of something in the background is waited for when the script itself is over.
const SILENCE: Duration = Duration::from_millis(200);
const NOT_EXECUTABLE: u8 = 126;

pub(super) fn run(words: &[String]) -> ExitCode {
    match Batch::start(words).and_then(Batch::live) {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => ExitCode::from(code as u8),
            (None, Some(signal)) => signal::die_of(signal),
            (None, None) => ExitCode::FAILURE,
        },
        Err(error) => {
            say(NAME, &format!("the script cannot be run: {error}"));
            ExitCode::from(NOT_EXECUTABLE)
        }
    }
}

/// To whom what is said, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Notice {
    to_script: bool,
    signal: i32,
    after: Duration,
}

struct Batch {
    signals: Signals,
    child: Child,
    streams: Vec<Stream>,
    notice: Option<(Notice, Instant)>,
}

/// One of the script's, with the files it goes to.
struct Stream {
    pipe: OwnedFd,
    is_error: bool,
    file: Option<File>,
}

impl Batch {
    fn start(words: &[String]) -> io::Result<Batch> {
        let (mut output, mut error, mut append, mut notice) = (None, None, false, None);
        let mut folder = None;
        let mut words = words.iter();
        for word in words.by_ref() {
            match word.split_once('=').unwrap_or((word, "")) {
                ("--", _) => break,
                ("--output", pattern) => output = Some(pattern),
                ("--error", pattern) => error = Some(pattern),
                ("--append", _) => append = true,
                ("--folder", path) => folder = Some(Path::new(path)),
                ("--notice", text) => notice = read_notice(text),
                _ => return Err(io::ErrorKind::InvalidInput.into()),
            }
        }
        let mut signals = vec![libc::SIGCHLD, libc::SIGTERM, libc::SIGINT];
        signals.extend(PASSED_ON);
        let signals = Signals::of(&signals)?;
        let open = |pattern: &str| open(pattern, folder, append);
        let out = output.and_then(open);
        // Both into one file, in the order in which they come, unless they are told apart.
        let err = match error {
            Some(pattern) => open(pattern),
            None => out.as_ref().and_then(|file| file.try_clone().ok()),
        };
        let mut command = Command::new(words.next().map_or("", String::as_str));
        command.args(words);
        signal::let_through(&mut command);
        let ((pipe_out, stdout), (pipe_err, stderr)) = (pipe()?, pipe()?);
        let child = command.stdout(stdout).stderr(stderr).spawn()?;
        let streams = vec![
            Stream { pipe: pipe_out, is_error: false, file: out },
            Stream { pipe: pipe_err, is_error: true, file: err },
        ];
        let notice =
            notice.map(|notice| (Instant::now() + notice.after, notice)).map(|(at, notice)| (notice, at));
        // The ends that the script writes to are not to stay open here.
        drop(command);
        Ok(Batch { signals, child, streams, notice })
    }

    fn live(mut self) -> io::Result<ExitStatus> {
        loop {
            let until = self.notice.as_ref().map(|(_, at)| *at);
            let streams = self.streams.iter().map(|stream| stream.pipe.as_fd());
            signal::wait(std::iter::once(self.signals.descriptor()).chain(streams), until)?;
            self.pass();
            for heard in self.signals.take()? {
                if PASSED_ON.contains(&(heard.signal as i32)) {
                    self.tell(heard.signal as i32);
                }
            }
            if let Some((notice, _)) = self.notice.take_if(|(_, at)| *at <= Instant::now()) {
                self.give(&notice);
            }
            if let Some(status) = self.child.try_wait()? {
                self.finish()?;
                return Ok(status);
            }
        }
    }

    /// All that is there, and what the script's own children still say at once.
    fn finish(&mut self) -> io::Result<()> {
        let until = Instant::now() + SILENCE;
        while !self.streams.is_empty() && Instant::now() < until {
            signal::wait(self.streams.iter().map(|stream| stream.pipe.as_fd()), Some(until))?;
            self.pass();
        }
        Ok(())
    }

    fn pass(&mut self) {
        self.streams.retain_mut(Stream::pass);
    }

    fn tell(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    fn give(&self, notice: &Notice) {
        if notice.to_script {
            return self.tell(notice.signal);
        }
        if let Some(signal) = Signal::from_named_raw(notice.signal) {
            for pid in claims::running() {
                let _ = kill_process(pid, signal);
            }
        }
    }
}

impl Stream {
    /// Whether more may come.
    fn pass(&mut self) -> bool {
        let mut buffer = vec![0; PIECE];
        let count = match rustix::io::read(&self.pipe, &mut buffer[..]) {
            Ok(0) => return false,
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        };
        let written = if self.is_error {
            io::stderr().write_all(&buffer[..count])
        } else {
            write_out(&buffer[..count])
        };
        let kept = self.file.as_mut().map_or(Ok(()), |file| file.write_all(&buffer[..count]));
        if let Err(error) = kept {
            say(NAME, &format!("a file of its output cannot be written to: {error}"));
            self.file = None;
        }
        written.is_ok()
    }
}

/// Without holding lines back: whoever follows the job wants them now.
fn write_out(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}

/// Opens a file of the script's output. A relative name is one in the folder, or in the current directory where this node does
/// not have that folder, or may not write there.
fn open(pattern: &str, folder: Option<&Path>, append: bool) -> Option<File> {
    let name = Place::of_script().name(pattern);
    let there =
        folder.filter(|folder| name.is_relative() && folder.is_dir()).map(|folder| folder.join(&name));
    if let Some(file) = there.and_then(|path| open_file(&path, append).ok()) {
        return Some(file);
    }
    open_file(&name, append)
        .map_err(|error| say(NAME, &format!("{}: {error}; its output is in `muster logs`", name.display())))
        .ok()
}

fn open_file(path: &Path, append: bool) -> io::Result<File> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        // Slurm makes no directories and loses the job's output; nobody wants that.
        let _ = std::fs::create_dir_all(folder);
    }
    // Always at the end, since two streams may go to the same file.
    if !append {
        let _ = OpenOptions::new().write(true).truncate(true).open(path);
    }
    OpenOptions::new().append(true).create(true).open(path)
}

fn read_notice(text: &str) -> Option<Notice> {
    let [whom, signal, after] = text.split(':').collect::<Vec<_>>().try_into().ok()?;
    let after = Duration::from_secs(after.parse().ok()?);
    Some(Notice { to_script: whom == "script", signal: signal.parse().ok()?, after })
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}
