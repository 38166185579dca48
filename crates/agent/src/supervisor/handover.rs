//! How a supervisor gets its task. It is started while the task is still being prepared, and waits at its stdin for the
//! read ends of the task's pipes. That these come is the word to begin; all else is then in the task's directory.
//!
//! If the agent dies first, or gives the task up, the stream ends without them, and so does the supervisor, with the
//! directory as if it had never been. So what was never given is never run, and nobody has to look for who waits.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, stdin};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::cmsg_space;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::stdio::{dup2_stdin, dup2_stdout};

/// Descriptors travel only with at least one byte. It means nothing.
const BYTE: [u8; 1] = [0];

/// Let the supervisor at the other end begin. An error says that it never will.
pub(crate) fn give(supervisor: &UnixStream, [stdout, stderr]: [BorrowedFd<'_>; 2]) -> io::Result<()> {
    let pipes = [stdout, stderr];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&pipes)) {
        return Err(ErrorKind::OutOfMemory.into());
    }
    sendmsg(supervisor.as_fd(), &[IoSlice::new(&BYTE)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Wait for the task, and make its pipes our stdin and stdout. False if there will be none.
pub(super) fn wait() -> io::Result<bool> {
    let Some([stdout, stderr]) = receive()? else { return Ok(false) };
    dup2_stdin(stdout)?;
    dup2_stdout(stderr)?;
    Ok(true)
}

fn receive() -> io::Result<Option<[OwnedFd; 2]>> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = BYTE;
    let received = retry_on_intr(|| {
        recvmsg(stdin(), &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut pipes = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    match (pipes.next(), pipes.next()) {
        (Some(stdout), Some(stderr)) => Ok(Some([stdout, stderr])),
        _ => Err(io::Error::new(ErrorKind::InvalidData, "the task's pipes did not come along")),
    }
}
