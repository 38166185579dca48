//! Somebody at a session's terminal.

use std::io;

use muster_link::message::{RESIZED, TYPED};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::broadcast::error::RecvError;

use super::Geometry;
use super::pty::Held;
use super::shell::Shell;

/// What was done at the other end.
enum Record {
    Typed(Vec<u8>),
    Resized(Geometry),
}

/// Until the caller leaves, or the terminal ends.
pub(super) async fn attach(stream: BufReader<UnixStream>, shell: Shell, size: Geometry) -> io::Result<()> {
    match shell {
        Shell::Pty(held, _) => at_held(stream, &held, size).await,
        Shell::Tmux(tmux, pane) => {
            let (pty, pts) = pty_process::open().map_err(io::Error::other)?;
            pty.resize(size.size()).map_err(io::Error::other)?;
            let mut viewer = tmux.attach(&pane).kill_on_drop(true).spawn(pts).map_err(io::Error::other)?;
            let (mut screen, mut keyboard) = pty.into_split();
            let (mut from, mut to) = tokio::io::split(stream);
            let typed = async {
                while let Some(record) = record(&mut from).await? {
                    match record {
                        Record::Typed(bytes) => keyboard.write_all(&bytes).await?,
                        // One that is too small or too large is not worth ending for.
                        Record::Resized(size) => drop(keyboard.resize(size.size())),
                    }
                }
                Ok(())
            };
            let ended = tokio::select! {
                ended = pass(&mut screen, &mut to) => ended,
                ended = typed => ended,
            };
            drop(viewer.kill().await);
            ended
        }
    }
}

async fn at_held(stream: BufReader<UnixStream>, held: &Held, size: Geometry) -> io::Result<()> {
    let (recent, mut live) = held.screen().look();
    held.resize(size).await;
    let (mut from, mut to) = tokio::io::split(stream);
    let shown = async {
        to.write_all(&recent).await?;
        loop {
            match live.recv().await {
                Ok(piece) => to.write_all(&piece).await?,
                // A slow viewer misses some; the terminal does not wait for it.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return Ok(()),
            }
            to.flush().await?;
        }
    };
    let typed = async {
        while let Some(record) = record(&mut from).await? {
            match record {
                Record::Typed(bytes) => held.type_in(&bytes).await?,
                Record::Resized(size) => held.resize(size).await,
            }
        }
        Ok(())
    };
    tokio::select! {
        ended = shown => ended,
        ended = typed => ended,
    }
}

async fn pass(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let mut piece = vec![0; 16 << 10];
    // A terminal whose last program is gone answers with an error.
    while let Ok(count @ 1..) = from.read(&mut piece).await {
        to.write_all(&piece[..count]).await?;
        to.flush().await?;
    }
    to.shutdown().await
}

/// The next record; none when the caller has left.
async fn record(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Record>> {
    loop {
        let kind = match from.read_u8().await {
            Ok(kind) => kind,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = vec![0; usize::from(from.read_u16_le().await?)];
        from.read_exact(&mut bytes).await?;
        match (kind, bytes.as_slice()) {
            (TYPED, _) => return Ok(Some(Record::Typed(bytes))),
            (RESIZED, &[a, b, c, d]) => {
                let (columns, rows) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
                return Ok(Some(Record::Resized(Geometry { columns, rows })));
            }
            // Of a newer caller.
            _ => {}
        }
    }
}
