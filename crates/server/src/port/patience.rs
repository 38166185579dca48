//! A request's body, waited for as long as it goes on coming.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};

/// A body of which something must come every now and then. The time that whoever reads it takes does not count.
pub(super) struct Awaited {
    body: Incoming,
    pause: Duration,
    /// Runs while something is waited for.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Awaited {
    pub fn new(body: Incoming, pause: Duration) -> Self {
        Self { body, pause, waiting: None }
    }

    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        let pause = self.pause;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(pause)));
        waiting.as_mut().poll(cx).is_ready()
    }
}

impl Body for Awaited {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                self.waiting = None;
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending if self.is_late(cx) => {
                let late =
                    io::Error::new(io::ErrorKind::TimedOut, "the rest of the request did not come in time");
                Poll::Ready(Some(Err(late.into())))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
