//! A TCP connection to a port of a task.

use std::future::pending;
use std::net::SocketAddr;
use std::pin::pin;

use russh::client::Msg;
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::{Channel, Client, Error};

/// Where programs of a task listen for those of the same machine.
const LOOPBACK: &str = "127.0.0.1";
/// How much is moved at once: what fits a packet.
const PIECE: usize = 32 << 10;

/// How a tunnel ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Both sides have said all they had to.
    Well,
    /// The near side broke off.
    Near,
    /// The far side broke off, or the way there did: what came may be a part only.
    Far,
}

impl Client {
    /// Opens a connection to a port in the task, as `from`.
    pub async fn open(&self, port: u16, from: SocketAddr) -> Result<Channel, Error> {
        let origin = (from.ip().to_string(), u32::from(from.port()));
        let opened =
            self.handle.channel_open_direct_tcpip(LOOPBACK, u32::from(port), origin.0, origin.1).await;
        opened.map_err(|error| Error::of_opening("the connection", error))
    }
}

/// Moves bytes both ways until the channel is closed. Each direction has an end of its own: a client that has said
/// everything still wants its answer. A near side that must not take a part for the whole is reset.
pub async fn pipe(near: TcpStream, channel: Channel) -> Ended {
    let (from_near, mut to_near) = near.into_split();
    let (mut reading, writing) = channel.split();
    let ended = tokio::select! {
        ended = down(&mut reading, &mut to_near) => ended,
        () = up(from_near, &writing) => Ended::Near,
    };
    // It may be closed already, from the other side.
    let _ = writing.close().await;
    if ended == Ended::Far {
        // Without this, the end of the stream would look like any other.
        let _ = to_near.as_ref().set_zero_linger();
    }
    ended
}

/// Returns when the near side breaks off; its end is told to the far side, which closes the channel when it is done.
async fn up(mut from: OwnedReadHalf, to: &ChannelWriteHalf<Msg>) {
    let mut writer = pin!(to.make_writer());
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece).await {
            Ok(0) => {
                let _ = to.eof().await;
                return pending().await;
            }
            // Who does not take it any more closes the channel, too.
            Ok(count) => {
                if writer.write_all(&piece[..count]).await.is_err() {
                    return pending().await;
                }
            }
            Err(_) => return,
        }
    }
}

async fn down(reading: &mut ChannelReadHalf, to: &mut OwnedWriteHalf) -> Ended {
    let mut is_whole = false;
    loop {
        match reading.wait().await {
            Some(ChannelMsg::Data { data }) => {
                if to.write_all(&data).await.is_err() {
                    return Ended::Near;
                }
            }
            Some(ChannelMsg::Eof) => {
                is_whole = true;
                // A near side that has broken off is found out when it is read from.
                let _ = to.shutdown().await;
            }
            Some(ChannelMsg::Close) | None => return if is_whole { Ended::Well } else { Ended::Far },
            Some(_) => {}
        }
    }
}
