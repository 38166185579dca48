//! Signals as things to be read, and a death like someone else's.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::ptr;
use std::time::Instant;

use muster_model::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getppid, setrlimit};

/// Signals that are held back from now on, to be read.
pub(crate) struct Signals {
    descriptor: OwnedFd,
}

/// A signal that came.
pub(crate) struct Heard {
    pub(crate) signal: u32,
    sender: u32,
}

impl Heard {
    /// Whether it is a word to end, among the signals of [`Signals::new`].
    pub(crate) fn is_stop(&self) -> bool {
        self.signal != libc::SIGCHLD as u32
    }

    pub(crate) fn is_from_supervisor(&self) -> bool {
        getppid().is_some_and(|parent| parent.as_raw_nonzero().get() as u32 == self.sender)
    }
}

impl Signals {
    /// The ends of children, and stops: the signal that the task is told to end with, and those that people send.
    pub(crate) fn new(stop: Signal) -> io::Result<Signals> {
        Signals::of(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, stop.number()])
    }

    #[expect(unsafe_code, reason = "neither std nor rustix has signalfd")]
    pub(crate) fn of(signals: &[i32]) -> io::Result<Signals> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` initialises the set that the other calls then read, and all get valid pointers to it.
        let descriptor = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), *signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), ptr::null_mut());
            libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor, and nothing else owns it.
        Ok(Signals { descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// What came since the last call.
    #[expect(unsafe_code, reason = "the kernel writes a C structure")]
    pub(crate) fn take(&self) -> io::Result<Vec<Heard>> {
        let mut heard = Vec::new();
        loop {
            let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
            let size = size_of::<libc::signalfd_siginfo>();
            // SAFETY: the buffer is as long as said, and the kernel writes whole structures only.
            let count = unsafe { libc::read(self.descriptor.as_raw_fd(), info.as_mut_ptr().cast(), size) };
            match usize::try_from(count) {
                Ok(count) if count == size => {
                    // SAFETY: it was zeroed, which is valid, and then filled in.
                    let info = unsafe { info.assume_init() };
                    heard.push(Heard { signal: info.ssi_signo, sender: info.ssi_pid });
                }
                Ok(_) => return Ok(heard),
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => return Ok(heard),
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
    }
}

/// A program starts with no signal held back: what we hold back it would otherwise never hear.
#[expect(unsafe_code, reason = "std leaves a child the signals that its parent holds back")]
pub(crate) fn let_through(command: &mut Command) {
    // SAFETY: the closure makes system calls only, on memory of its own, as a child may before its program.
    unsafe {
        command.pre_exec(|| {
            let mut none = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
            Ok(())
        });
    }
}

/// Wait until one of these has something, or until then.
pub(crate) fn wait<'a>(
    descriptors: impl IntoIterator<Item = BorrowedFd<'a>>,
    until: Option<Instant>,
) -> io::Result<()> {
    let mut fds: Vec<_> = descriptors
        .into_iter()
        .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
        .collect();
    let timeout = until.map(|at| at.saturating_duration_since(Instant::now()));
    match poll(&mut fds, timeout.and_then(|timeout| Timespec::try_from(timeout).ok()).as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Die of this signal, as one of the processes did. Returns only where that cannot be.
#[expect(unsafe_code, reason = "neither std nor rustix can reset a signal")]
pub(crate) fn die_of(signal: i32) -> ExitCode {
    // The process that died has left its memory, if that was wanted; ours would replace it.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    // SAFETY: SIG_DFL runs no code of ours, and the set is initialised before it is read.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
        libc::raise(signal);
    }
    // As shells say it.
    ExitCode::from(128_u8.wrapping_add(signal as u8))
}
