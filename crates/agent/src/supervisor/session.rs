//! What the supervisor does to itself before anything else: leave the agent behind, and hear only what it should.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

use rustix::process::{chdir, getpid, set_child_subreaper, setsid};

use super::file::Spent;

/// Signals that end other processes of a session, and must not end the one that records how they ended.
const IGNORED: [libc::c_int; 5] = [libc::SIGHUP, libc::SIGINT, libc::SIGPIPE, libc::SIGQUIT, libc::SIGTERM];

/// Become independent of whoever started us.
pub(super) fn enter() -> io::Result<()> {
    // Fails only for a process that leads a group already, and then there is nothing to leave.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))?;
    chdir("/")?;
    ignore_signals();
    close_inherited()
}

#[expect(unsafe_code, reason = "neither std nor rustix can ignore a signal")]
fn ignore_signals() {
    for signal in IGNORED {
        // SAFETY: SIG_IGN runs no code of ours, and the signals are valid ones.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Close what the agent may have left open for us by mistake. A task that inherited it could keep the agent's sockets
/// alive, or worse, the write end of another task's pipe.
#[expect(unsafe_code, reason = "descriptors that nothing in this process owns can only be closed by number")]
fn close_inherited() -> io::Result<()> {
    let mut inherited = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        inherited.extend(entry?.file_name().to_str().and_then(|name| name.parse::<libc::c_int>().ok()));
    }
    for descriptor in inherited.into_iter().filter(|descriptor| *descriptor > 2) {
        // SAFETY: this runs first in the process, before anything here has opened a descriptor that it keeps. The one
        // of the directory listing is closed already, and closing it again does nothing.
        unsafe { libc::close(descriptor) };
    }
    Ok(())
}

/// A descriptor that is readable when a child has ended. From here on that signal is held back, and so are those that
/// ask to end: a child inherits our mask, so that a stop that reaches it before it is the task waits until it is. If
/// we only ignored them, the child would too for a moment, and the stop would be lost.
#[expect(unsafe_code, reason = "neither std nor rustix has signalfd")]
pub(super) fn child_signals() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set that the other calls then read, and all get valid pointers to it.
    let descriptor = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
        let descriptor = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), ptr::null_mut());
        descriptor
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// What the processes have used that this one has reaped, and those that they had reaped before.
#[expect(unsafe_code, reason = "neither std nor rustix has getrusage")]
pub(super) fn spent() -> Spent {
    // SAFETY: all zeros are a valid value of this plain structure, and the call only writes to it.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let milliseconds = |time: libc::timeval| time.tv_sec as u64 * 1000 + time.tv_usec as u64 / 1000;
    Spent {
        cpu_milliseconds: milliseconds(usage.ru_utime) + milliseconds(usage.ru_stime),
        // In kilobytes.
        largest_process_bytes: usage.ru_maxrss as u64 * 1024,
    }
}
