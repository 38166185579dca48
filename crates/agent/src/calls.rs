//! Calls on tasks: from the link to the task's door, and then only bytes.

use std::io;

use muster_link::control;
use muster_link::message::{Call, Called};
use muster_link::unix::socket_path;
use muster_model::TaskId;
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, copy_bidirectional_with_sizes,
};
use tokio::net::UnixStream;

use crate::record::TaskDir;
use crate::supervisor::DOOR;

/// How much is moved at once, in each direction.
const PIECE: usize = 64 << 10;

/// Brings a caller to a task, until either has had enough.
pub(crate) async fn bring(
    mut stream: BufReader<impl AsyncRead + AsyncWrite + Unpin>,
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

/// Comes back with a task that has begun to answer. What is called for may have been done by one that ended without a
/// word, so nothing is asked twice.
async fn enter(dir: &TaskDir, call: &Call) -> io::Result<BufReader<UnixStream>> {
    let socket = UnixStream::connect(socket_path(&dir.path().join(DOOR))?.as_path()).await?;
    let mut inside = BufReader::with_capacity(PIECE, socket);
    control::send(&mut inside, call).await?;
    match inside.fill_buf().await {
        Ok([]) => Err(io::ErrorKind::UnexpectedEof.into()),
        answer => answer.map(drop),
    }?;
    Ok(inside)
}

fn refused(task: &TaskId, error: &io::Error) -> Called {
    let (code, message) = match error.kind() {
        // The door is there from the task's first step to its end.
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ("not_running", format!("{task} is not running"))
        }
        // As all in a task does when the task ends.
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            ("not_running", format!("{task} ended before it answered, or only who answers there did"))
        }
        _ => ("unreachable", format!("{task} cannot be reached: {error}")),
    };
    Called::Refused { code: code.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use muster_link::control::Received;
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_task_that_ends_before_it_answers_is_not_running() {
        let tasks = tempfile::tempdir().unwrap();
        let task: TaskId = "task0.job_8nn4hvzat0.1".parse().unwrap();
        let dir = TaskDir::new(tasks.path(), &task);
        std::fs::create_dir_all(dir.path()).unwrap();
        let door = UnixListener::bind(dir.path().join(DOOR)).unwrap();
        let (ours, caller) = tokio::io::duplex(1024);
        let (brought, ()) = tokio::join!(bring(BufReader::new(ours), &dir, &task, &Call::Copy), async {
            drop(door.accept().await)
        });
        brought.unwrap();
        let answer = control::receive::<Called>(&mut BufReader::new(caller)).await.unwrap();
        let Some(Received::Message(Called::Refused { code, .. })) = answer else { panic!("{answer:?}") };
        assert_eq!(code, "not_running");
    }
}
