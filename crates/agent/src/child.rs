//! What a process does between its birth and its program, whoever gives birth to it: system calls, and nothing that needs memory.

use std::{mem, ptr};

/// Leave the keys of the session that this process was started in. Where the kernel has none, or nobody may ask for them, there
/// is nothing to leave.
///
/// # Safety
/// Only for a child that is about to become another program.
#[expect(unsafe_code, reason = "see the safety section")]
pub(crate) unsafe fn join_keyring() -> bool {
    // SAFETY: a system call without memory of ours.
    let joined = unsafe {
        libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, ptr::null::<libc::c_char>())
    };
    // SAFETY: the pointer is to this thread's error number, always.
    joined >= 0 || matches!(unsafe { *libc::__errno_location() }, libc::ENOSYS | libc::EPERM)
}

/// A task starts with every signal as a shell would give it: what the agent, we or those before us ignore or hold
/// back must not be inherited.
///
/// # Safety
/// Changes the signals of the whole process: only for a child that is about to become another program.
#[expect(unsafe_code, reason = "neither std nor rustix can reset signals")]
pub(crate) unsafe fn reset_signals() {
    // SAFETY: SIG_DFL runs no code of ours; numbers that are no signals, or cannot be set, are refused harmlessly. The
    // empty set is initialised before it is read.
    unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none = mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
}
