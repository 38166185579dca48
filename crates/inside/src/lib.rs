//! What answers inside a task.
//!
//! `muster inside` is a process of the task itself, so that whatever it starts has the task's variables, directory, mounts and
//! limits, and ends with it. The task's supervisor holds the sockets and starts it when somebody first comes; if it dies,
//! the next one to come gets another.
//!
//! Two kinds come in: members of its gang, by TCP, who show the gang's key; and calls (`muster_link::message::Call`), through the
//! task's *door*, a socket that only the node's agent can reach, which brings them over the link.

#![warn(missing_docs)]

mod call;
mod copy;
mod pass_on;
mod session;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use muster_link::unix::socket_path;
use muster_ssh::gang::Gang;
use muster_ssh::{keys, server};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;

use self::call::House;
use self::session::Sessions;
pub use self::session::pour::run as pour;

/// Calls at once; whoever comes beyond that waits at the door.
const MAX_CALLS: usize = 1024;
/// What is waited when nobody can be let in for lack of descriptors.
const BREATH: Duration = Duration::from_millis(100);

/// Why nobody answers.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key could not be made.
    #[error(transparent)]
    Key(#[from] keys::Error),
    /// A socket or a file cannot be used.
    #[error("{what}: {source}")]
    Io {
        /// Which.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// The sockets that the supervisor holds.
#[derive(Debug)]
pub struct Sockets {
    /// The door.
    pub door: OwnedFd,
    /// Where members of the gang come in, if they do.
    pub gang: Option<OwnedFd>,
}

/// Answers until the task ends. `dir` is the task's directory.
pub async fn run(dir: &Path, sockets: Sockets) -> Result<(), Error> {
    let cannot = |what| move |source| Error::Io { what, source };
    let door = std::os::unix::net::UnixListener::from(sockets.door);
    let door = UnixListener::from_std(door).map_err(cannot("the door"))?;
    let gang = sockets.gang.map(|gang| TcpListener::from_std(gang.into())).transpose();
    let house = House::new(Sessions::take_up(dir).await, dir)?;
    match gang.map_err(cannot("the gang's socket"))? {
        Some(gang) => {
            let secret = Gang::secret(&dir.join("ssh")).map_err(cannot("the gang's secret"))?;
            // A path that is too long is reached through an open directory, which is to stay open.
            let path = socket_path(&dir.join("door")).map_err(cannot("the door's path"))?;
            tokio::select! {
                ended = server::serve_gang(gang, &secret, path.as_path()) => ended?,
                () = answer(door, &house) => {}
            }
        }
        None => answer(door, &house).await,
    }
    Ok(())
}

async fn answer(door: UnixListener, house: &House) {
    let mut calls = JoinSet::new();
    loop {
        tokio::select! {
            accepted = door.accept(), if calls.len() < MAX_CALLS => match accepted {
                Ok((stream, _)) => drop(calls.spawn(call::answer(stream, house.clone()))),
                Err(error) => {
                    // Out of descriptors, most likely: those that are open go on, and make room.
                    complain("cannot let anyone in", &error);
                    tokio::time::sleep(BREATH).await;
                }
            },
            Some(ended) = calls.join_next() => if let Ok(Err(error)) = ended {
                complain("a call broke off", &error);
            },
        }
    }
}

/// Into `inside.log` of the task's directory.
fn complain(what: &str, error: &io::Error) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "muster inside: {what}: {error}");
}
