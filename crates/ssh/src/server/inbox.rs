//! What a peer has sent and whoever it is for has not taken.
//!
//! It is taken off the channel all the same: russh's loop waits for a channel that is full, and with it would wait every other channel
//! of the connection. How much may pile up is the matter of [`super::backlog`].

use std::collections::VecDeque;

use bytes::Bytes;
use russh::{ChannelMsg, ChannelReadHalf};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::backlog::Share;

/// How a channel's input came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The peer has said all, or what reads it wants no more, which is its right. The last byte was this.
    Said(Option<u8>),
    /// The peer has closed the channel.
    Closed,
}

/// Writes all that comes in on a channel until its end.
pub(super) async fn pour(
    from: &mut ChannelReadHalf,
    to: &mut (impl AsyncWrite + Unpin),
    mut share: Share,
) -> End {
    let mut waiting: VecDeque<Bytes> = VecDeque::new();
    let (mut end, mut last) = (None, None);
    loop {
        if let (Some(end), true) = (end, waiting.is_empty()) {
            return end;
        }
        let next = waiting.front().map_or(&[][..], |data| data);
        tokio::select! {
            // A peer that has said all may close at once: what it said before is still to be written.
            message = from.wait(), if end != Some(End::Closed) => match message {
                Some(ChannelMsg::Data { data }) if !data.is_empty() => {
                    share.add(data.len());
                    last = data.last().copied();
                    waiting.push_back(data);
                }
                Some(ChannelMsg::Eof) => end = Some(End::Said(last)),
                Some(ChannelMsg::Close) | None => end = Some(End::Closed),
                Some(_) => {}
            },
            written = to.write(next), if !next.is_empty() => {
                let Ok(count @ 1..) = written else { return end.unwrap_or(End::Said(last)) };
                // Nothing else takes from the front.
                if let Some(data) = waiting.front_mut() {
                    drop(data.split_to(count));
                }
                let ended = waiting.pop_front_if(|data| data.is_empty());
                share.remove(count, ended.is_some());
            }
        }
    }
}

/// Waits until the peer closes the channel; what it says until then is nobody's.
pub(super) async fn until_closed(from: &mut ChannelReadHalf) {
    while !matches!(from.wait().await, None | Some(ChannelMsg::Close)) {}
}
