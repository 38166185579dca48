//! What a peer has sent to a command and the command has not read.

use std::collections::VecDeque;

use russh::{ChannelMsg, ChannelReadHalf};
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// What a command may be behind. Past it, its whole connection waits.
const MAX_BYTES: usize = 16 << 20;

/// Moves what comes on a channel to a command until its end, and tells the last byte of it. A command that does not read
/// to the end has closed its input, which is its right: what comes after that is nobody's.
pub(super) async fn pour(mut from: ChannelReadHalf, mut to: impl AsyncWrite + Unpin) -> Option<u8> {
    let mut waiting = VecDeque::new();
    let (mut is_open, mut bytes, mut last) = (true, 0, None);
    while is_open || !waiting.is_empty() {
        let next = waiting.front().map_or(&[][..], |data: &bytes::Bytes| data);
        tokio::select! {
            message = from.wait(), if is_open && bytes < MAX_BYTES => match message {
                Some(ChannelMsg::Data { data }) => {
                    bytes += data.len();
                    last = data.last().copied().or(last);
                    waiting.extend((!data.is_empty()).then_some(data));
                }
                Some(ChannelMsg::Eof | ChannelMsg::Close) | None => is_open = false,
                Some(_) => {}
            },
            written = to.write(next), if !next.is_empty() => {
                let Ok(count @ 1..) = written else { return None };
                bytes -= count;
                // Nothing else takes from the front.
                if let Some(data) = waiting.front_mut() {
                    drop(data.split_to(count));
                }
                waiting.pop_front_if(|data| data.is_empty());
            }
        }
    }
    last
}
