//! A stand-in for the `muster` binary in this crate's tests: it knows `supervise DIR`, `processes FILE` and `inside DIR
//! SOCKET…`. Whoever comes in is told the number of the process that answers, and by which socket they came.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::accept;

fn main() -> ExitCode {
    match std::env::args_os().skip(1).collect::<Vec<_>>().as_slice() {
        [command, dir] if command == "supervise" => muster_agent::supervisor::run(Path::new(dir)),
        [command, file] if command == "processes" => muster_agent::processes::run(Path::new(file)),
        [command, _dir, door, gang @ ..] if command == "inside" => match answer(door, gang) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let _ = writeln!(io::stderr(), "inside: {error}");
                ExitCode::FAILURE
            }
        },
        _ => ExitCode::from(2),
    }
}

fn answer(door: &OsString, gang: &[OsString]) -> io::Result<()> {
    let sockets: Vec<OwnedFd> = std::iter::once(door).chain(gang).map(socket).collect::<io::Result<_>>()?;
    // A test that wants it to die at once says so.
    if std::env::var_os("INSIDE_FAILS").is_some() {
        return Err(io::Error::other("as it was told"));
    }
    loop {
        let mut ready: Vec<_> = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        poll(&mut ready, None)?;
        let called: Vec<bool> = ready.iter().map(|socket| !socket.revents().is_empty()).collect();
        for (number, socket) in sockets.iter().enumerate().filter(|(number, _)| called[*number]) {
            if let Ok(caller) = accept(socket) {
                let told = format!("{} {number}\n", std::process::id());
                // Who did not wait for it is not to end it.
                let _ = rustix::io::write(&caller, told.as_bytes());
            }
        }
    }
}

#[expect(unsafe_code, reason = "an inherited descriptor has only its number")]
fn socket(word: &OsString) -> io::Result<OwnedFd> {
    let number = word.to_str().and_then(|word| word.parse().ok()).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: the supervisor has opened it for us and nothing else here knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
