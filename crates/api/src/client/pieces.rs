//! The body of a request, in pieces that are sent as they are: a gigabyte of chunks is not put together first.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// Pieces whose length together is known from the beginning.
#[derive(Debug, Default)]
pub(super) struct Pieces(VecDeque<Bytes>);

impl Pieces {
    pub fn new(pieces: impl IntoIterator<Item = Bytes>) -> Self {
        // An empty frame would say that the body has ended.
        Self(pieces.into_iter().filter(|piece| !piece.is_empty()).collect())
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|piece| piece.len() as u64).sum())
    }
}
