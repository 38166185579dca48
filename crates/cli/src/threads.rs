//! Threads of a command, for work that blocks.
//!
//! The limit of a user's processes, and that of a container, counts threads. Where none can be made, tokio's pool and the
//! standard library panic; here that is an error.

use std::io;
use std::thread::Builder;

use tokio::sync::oneshot;

use crate::error::{Code, Error, system_message};

/// Why a thread did not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ThreadError {
    #[error("cannot make a thread: {}", system_message(.0))]
    Refused(io::Error),
    #[error("a thread of this command failed")]
    Died,
}

/// Starts a detached thread.
pub(crate) fn start(work: impl FnOnce() + Send + 'static) -> Result<(), ThreadError> {
    Builder::new().spawn(work).map(drop).map_err(ThreadError::Refused)
}

/// Does work on a thread of its own, from now on; what is returned waits for it.
pub(crate) fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, ThreadError>> {
    let (sender, done) = oneshot::channel();
    // The receiver may have been dropped.
    let started = start(move || drop(sender.send(work())));
    async move {
        started?;
        done.await.map_err(|_| ThreadError::Died)
    }
}

/// Whether another thread can be made now.
pub(crate) fn is_possible() -> bool {
    start(|| {}).is_ok()
}

impl From<ThreadError> for Error {
    fn from(error: ThreadError) -> Self {
        match error {
            ThreadError::Refused(_) => Self::new(Code::SystemFailed, error.to_string()).hint(
                "a limit of processes is reached: `ulimit -u` shows yours, pids.max of its cgroup that of a container",
            ),
            ThreadError::Died => Self::new(Code::ClientInternal, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_beside_and_its_failure_is_an_error() {
        assert_eq!(run(|| 7).await.unwrap(), 7);
        let died = run(|| -> u32 { std::panic::resume_unwind(Box::new(())) }).await;
        assert!(matches!(died, Err(ThreadError::Died)));
    }

    #[test]
    fn a_thread_that_cannot_be_made_is_told_with_the_limit() {
        let error = Error::from(ThreadError::Refused(io::ErrorKind::WouldBlock.into()));
        assert_eq!((error.code(), error.exit_number()), ("system_failed", 125));
        let (message, hint) = error.in_words();
        assert!(
            message.starts_with("cannot make a thread: ") && hint.contains("ulimit -u"),
            "{message} {hint}"
        );
    }
}
