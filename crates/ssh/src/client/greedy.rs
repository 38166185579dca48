//! Bytes that are taken in while others are waiting to go out.
//!
//! russh does one thing at a time: while it writes, it does not read. Two of them, each with more to say than the way between
//! them holds, would wait for each other for ever. This side reads on while it writes, which is enough. What it holds is
//! bounded by what the other side may send without being granted more.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much is taken in at once.
const PIECE: usize = 32 << 10;
/// Above what any number of channels that we open at once can be sent.
const MOST: usize = 256 << 20;

pub(super) struct Greedy<S> {
    inner: S,
    taken: BytesMut,
    /// The end was seen while something went out.
    is_over: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Greedy<S> {
    pub fn new(inner: S) -> Self {
        Self { inner, taken: BytesMut::new(), is_over: false }
    }

    /// Takes what is there, and has the task woken when there is more.
    fn take_in(&mut self, context: &mut Context<'_>) {
        let mut piece = [0; PIECE];
        while !self.is_over && self.taken.len() < MOST {
            let mut buffer = ReadBuf::new(&mut piece);
            match Pin::new(&mut self.inner).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.taken.extend_from_slice(buffer.filled());
                }
                // Whether it is an end or an error, the next to read finds out.
                Poll::Ready(_) => self.is_over = true,
                Poll::Pending => return,
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Greedy<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.taken.is_empty() {
            return Pin::new(&mut self.inner).poll_read(context, buffer);
        }
        let count = self.taken.len().min(buffer.remaining());
        buffer.put_slice(&self.taken[..count]);
        self.taken.advance(count);
        if self.taken.is_empty() {
            // A large one was for a large moment.
            self.taken = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Greedy<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        if written.is_pending() {
            self.take_in(context);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        if flushed.is_pending() {
            self.take_in(context);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
