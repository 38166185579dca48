//! A peer's stream as russh reads it: over when we say so, and slow while its commands are far behind.
//!
//! russh runs a connection in a task of its own that nobody can stop, and has no deadline for a login; but it has to read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use super::backlog::{Backlog, Level};

/// What is read of a connection that is far behind, and how often: packets of a few bytes, of which little is on its way then.
const LITTLE: usize = 2 << 10;
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Guest<S> {
    stream: S,
    /// Comes when whoever serves it has let it go; then it is none.
    end: Option<oneshot::Receiver<()>>,
    backlog: Backlog,
    pause: Option<Pin<Box<Sleep>>>,
    left: usize,
}

/// Held for as long as a guest may stay.
pub(super) struct Stay(#[expect(dead_code, reason = "it is dropped")] oneshot::Sender<()>);

impl<S> Guest<S> {
    pub fn new(stream: S, backlog: Backlog) -> (Stay, Guest<S>) {
        let (stay, end) = oneshot::channel();
        (Stay(stay), Guest { stream, end: Some(end), backlog, pause: None, left: 0 })
    }

    fn check_stay(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(end) = &mut self.end
            && Pin::new(end).poll(cx).is_ready()
        {
            self.end = None;
        }
        if self.end.is_some() { Ok(()) } else { Err(io::ErrorKind::ConnectionAborted.into()) }
    }

    /// What may be read now.
    fn poll_allowance(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match self.backlog.level() {
            Level::Fine => {
                (self.pause, self.left) = (None, 0);
                return Poll::Ready(Ok(usize::MAX));
            }
            Level::Much => {}
            Level::TooMuch => return Poll::Ready(Err(io::ErrorKind::QuotaExceeded.into())),
        }
        if self.left == 0 {
            ready!(self.pause.get_or_insert_with(|| Box::pin(sleep(PAUSE))).as_mut().poll(cx));
            (self.pause, self.left) = (None, LITTLE);
        }
        Poll::Ready(Ok(self.left))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guest<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_stay(cx)?;
        let most = ready!(self.poll_allowance(cx))?;
        if buf.remaining() <= most {
            let before = buf.filled().len();
            ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
            self.left = self.left.saturating_sub(buf.filled().len() - before);
            return Poll::Ready(Ok(()));
        }
        let mut some = [0; LITTLE];
        let mut part = ReadBuf::new(some.get_mut(..most).unwrap_or_default());
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut part))?;
        self.left -= part.filled().len();
        buf.put_slice(part.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guest<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check_stay(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_stay(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_that_is_far_behind_is_read_slowly_and_then_not_at_all() {
        let backlog = Backlog::default();
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let (stay, mut guest) = Guest::new(near, backlog.clone());
        let mut bytes = vec![0; 8 * LITTLE];
        far.write_all(&bytes.repeat(4)).await.unwrap();
        let begun = Instant::now();
        guest.read_exact(&mut bytes).await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
        let mut share = backlog.share();
        share.add(20 << 20);
        guest.read_exact(&mut bytes).await.unwrap();
        assert!(begun.elapsed() >= 8 * PAUSE && begun.elapsed() < 10 * PAUSE, "{:?}", begun.elapsed());
        share.remove(20 << 20, true);
        let begun = Instant::now();
        guest.read_exact(&mut bytes).await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
        share.add(100 << 20);
        let error = guest.read_exact(&mut bytes).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        drop(stay);
        assert!(guest.write_all(b"late").await.is_err() && guest.read_exact(&mut bytes).await.is_err());
    }
}
