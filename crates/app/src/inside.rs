//! `muster inside DIR DOOR [GANG]`: what answers inside a task, started by its supervisor, which gives it two open sockets
//! and says which.

use std::ffi::OsString;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use muster_inside::Sockets;

pub fn run(words: &[OsString]) -> ExitCode {
    match serve(words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("muster inside: nobody can be let in: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(words: &[OsString]) -> anyhow::Result<()> {
    let [dir, door, gang @ ..] = words else { anyhow::bail!("it is started by a task's supervisor alone") };
    let sockets = Sockets { door: socket(door)?, gang: gang.first().map(socket).transpose()? };
    crate::raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(muster_inside::run(Path::new(dir), sockets))?)
}

#[expect(unsafe_code, reason = "an inherited descriptor has only its number")]
fn socket(word: &OsString) -> anyhow::Result<OwnedFd> {
    let number: i32 = word.to_str().and_then(|word| word.parse().ok()).context("a descriptor is a number")?;
    anyhow::ensure!(number > 2, "the standard streams are no sockets");
    // SAFETY: the supervisor has opened it for us and nothing else here knows of it. One that is not open makes every
    // use of it fail, and no other descriptor has been opened before.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    // Whatever is started from here is not to hold on to it.
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    Ok(socket)
}
