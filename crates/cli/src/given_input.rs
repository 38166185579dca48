//! Standard input that was given to `muster run` itself: a task has none, so that what is in it would be lost.

use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::fs::MetadataExt;

use crate::error::{Code, Error};

/// Refuses to start a job while something waits to be read that was meant for it.
pub(crate) fn refuse() -> Result<(), Error> {
    if !is_waiting() {
        return Ok(());
    }
    let message = "standard input is not empty, and the tasks of a job have none";
    Err(Error::new(Code::StdinNotPassed, message)
        .hint("write it to a file in the code directory and read that, or add `< /dev/null`"))
}

/// Whether there are bytes in the standard input, and they are for this command alone.
pub(crate) fn is_waiting() -> bool {
    let stdin = io::stdin();
    !stdin.is_terminal() && rustix::io::ioctl_fionread(&stdin).is_ok_and(|bytes| bytes > 0) && !is_of_caller()
}

/// Whether the calling process has the same standard input: it may be a loop or a script that reads the rest itself.
fn is_of_caller() -> bool {
    let Some(parent) = rustix::process::getppid() else { return false };
    let theirs = fs::metadata(format!("/proc/{}/fd/0", parent.as_raw_nonzero()));
    let ours = rustix::fs::fstat(io::stdin());
    matches!((ours, theirs), (Ok(ours), Ok(theirs)) if (ours.st_dev, ours.st_ino) == (theirs.dev(), theirs.ino()))
}
