//! Calls on tasks: from the link to the task's door, and then only bytes.

use std::io;

use muster_link::control;
use muster_link::message::{Call, Called};
use muster_link::session::Stream;
use muster_link::unix::socket_path;
use muster_model::TaskId;
use tokio::io::{AsyncWriteExt, BufReader, copy_bidirectional_with_sizes};
use tokio::net::UnixStream;

use crate::record::TaskDir;
use crate::supervisor::DOOR;

/// How much is moved at once, in each direction.
const PIECE: usize = 64 << 10;

/// Brings a caller to a task, until either has had enough.
pub(crate) async fn bring(
    mut stream: BufReader<Stream>,
    dir: &TaskDir,
    task: &TaskId,
    call: &Call,
) -> io::Result<()> {
    let mut inside = match enter(dir, call).await {
        Ok(inside) => inside,
        Err(error) => {
            let refused = refused(task, &error);
            control::send(&mut stream, &refused).await?;
            return stream.shutdown().await;
        }
    };
    copy_bidirectional_with_sizes(&mut stream, &mut inside, PIECE, PIECE).await.map(drop)
}

async fn enter(dir: &TaskDir, call: &Call) -> io::Result<UnixStream> {
    let mut inside = UnixStream::connect(socket_path(&dir.path().join(DOOR))?.as_path()).await?;
    control::send(&mut inside, call).await?;
    Ok(inside)
}

fn refused(task: &TaskId, error: &io::Error) -> Called {
    let (code, message) = match error.kind() {
        // The door is there from the task's first step to its end.
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ("not_running", format!("{task} is not running"))
        }
        _ => ("unreachable", format!("{task} cannot be reached: {error}")),
    };
    Called::Refused { code: code.to_owned(), message }
}
