//! Copies to and from the task: `muster cp`.
//!
//! A copy has a thread of its own, since it waits for disks, and everyone else here is served by one thread. Paths are meant as
//! the task means them: from its working directory, with its home and its output directory.

use std::env;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use muster_bundle::copy::{
    Ask, Channel, Destination, Error, Expected, Receiver, Source, Surroundings, Wire, expand, send,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::BufReader;
use tokio::sync::oneshot;

use crate::pass_on::{self, Load, Peers};

/// Serves one copy, to its end.
pub(crate) async fn serve(stream: BufReader<tokio::net::UnixStream>, peers: Arc<Peers>) -> io::Result<()> {
    let early = stream.buffer().to_vec();
    let stream = stream.into_inner().into_std()?;
    stream.set_nonblocking(false)?;
    let (done, ended) = oneshot::channel();
    std::thread::Builder::new().name("copy".into()).spawn(move || {
        // Nobody waits any more when this process is about to end.
        let _ = done.send(copy(Socket { stream, early }, &peers));
    })?;
    match ended.await {
        // A caller who has gone is none of ours to complain about.
        Ok(Ok(()) | Err(Error::Lost(_) | Error::Here(_) | Error::Peer(_))) => Ok(()),
        Ok(Err(error)) => Err(io::Error::other(error)),
        Err(_) => Err(io::Error::other("a copy panicked")),
    }
}

fn copy(socket: Socket, peers: &Peers) -> Result<(), Error> {
    let mut channel = Channel::new(socket);
    let directory = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let surroundings = Surroundings { home: directory("HOME"), output: directory("MUSTER_OUTPUT_DIR") };
    match channel.asked()? {
        Ask::Put { to: text, force, pass_on } => {
            let others = match pass_on.then(|| peers.others()).transpose() {
                Ok(others) => others,
                Err(reason) => return Err(channel.give_up(&reason)),
            };
            let to = Destination::new(&text, surroundings.path(&text));
            let expected = Expected::anything();
            let receiver = Receiver { channel: &mut channel, to, expected, force, watch: &mut () };
            let Some(others) = others else { return receiver.run() };
            let load = Load { arrived: receiver.take()?, to: text, force };
            pass_on::pass_on(&mut channel, others, &load)?;
            channel.finish()
        }
        Ask::Get { paths } => match sources(&paths, &surroundings) {
            Ok(sources) => send(&mut channel, &sources, paths.len() > 1, &mut ()),
            Err(reason) => Err(channel.give_up(&reason)),
        },
    }
}

fn sources(paths: &[Vec<u8>], surroundings: &Surroundings) -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    for path in paths {
        let found = expand(path, surroundings);
        sources.extend(found.map_err(|reason| format!("{}: {reason}", String::from_utf8_lossy(path)))?);
    }
    Ok(sources)
}

/// The end of a call, or of a way to a peer, to be waited for.
pub(crate) struct Socket {
    stream: UnixStream,
    /// What came right behind the call itself.
    early: Vec<u8>,
}

impl Socket {
    pub(crate) fn new(stream: UnixStream) -> Socket {
        Socket { stream, early: Vec::new() }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.early.is_empty() {
            return self.stream.read(buffer);
        }
        let length = self.early.len().min(buffer.len());
        buffer[..length].copy_from_slice(&self.early[..length]);
        self.early.drain(..length);
        Ok(length)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Wire for Socket {
    fn is_ready(&mut self) -> io::Result<bool> {
        let mut asked = [PollFd::new(&self.stream, PollFlags::IN)];
        Ok(!self.early.is_empty() || poll(&mut asked, Some(&Timespec::default()))? > 0)
    }
}
