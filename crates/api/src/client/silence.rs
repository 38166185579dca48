//! A server that does not answer: whether it is busy with the request or has stopped.
//!
//! A request may take long on a server that is well. One that has stopped still takes connections, because the system does that
//! for it. So a request without an answer is followed by a probe on a connection of its own, which every server answers at once.
//! The same is done for a stream on which nothing comes, not even the comments that a server sends on quiet ones.

use std::future::pending;
use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{Body, Endpoint, Error, Method, ServerRoute, in_time};

/// How long a request may take before the server is probed.
const PROBE_AFTER: Duration = Duration::from_millis(1500);
/// When the user is told that the server does not answer.
const NOTICE_AFTER: Duration = Duration::from_secs(2);
/// A machine that swaps, or a laptop that wakes, takes seconds. A server that is silent for longer has stopped.
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// How long a stream is quiet at most on a server that is well.
const QUIET: Duration = Duration::from_secs(10);
/// A server that answers others, but sends nothing on a stream for this long, has lost it.
const SILENCE: Duration = Duration::from_secs(60);

static NOTICE: OnceLock<fn(&Endpoint)> = OnceLock::new();

/// Sets what is called when a server does not answer for two seconds. Only the first call counts.
pub fn on_silence(notice: fn(&Endpoint)) {
    let _ = NOTICE.set(notice);
}

fn notify(endpoint: &Endpoint) {
    if let Some(notice) = NOTICE.get() {
        notice(endpoint);
    }
}

impl ServerRoute {
    /// The head of a reply, unless the server has stopped.
    pub(super) async fn answered<T>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let answer = unless_stopped(in_time(request), self.probe(), || notify(&self.endpoint)).await;
        answer.unwrap_or_else(|| Err(self.stuck()))
    }

    /// The next part of a stream, unless the server has stopped.
    pub(super) async fn next_part<T>(&self, part: impl Future<Output = T>) -> Result<T, Error> {
        let heard = heard(part, self.probe(), || notify(&self.endpoint));
        let heard = timeout(SILENCE, heard).await.map_err(|_| Error::Silent { after: SILENCE })?;
        heard.ok_or_else(|| self.stuck())
    }

    fn stuck(&self) -> Error {
        Error::Stuck { endpoint: self.endpoint.to_string(), after: STUCK_AFTER }
    }

    /// Any answer will do.
    async fn probe(&self) -> Result<(), Error> {
        let request = self.prepare(Method::GET, "/healthz", Body::None, &[])?;
        let mut connection = self.connect().await?;
        let lost = |error| Error::Lost { source: Some(error) };
        connection.send(request).await.map(drop).map_err(|refused| lost(refused.error))
    }
}

/// The first connection of a client, which takes a moment where a server is well.
pub(super) async fn connected<T>(endpoint: &Endpoint, opening: impl Future<Output = T>) -> T {
    let mut opening = pin!(opening);
    if let Ok(opened) = timeout(NOTICE_AFTER, &mut opening).await {
        return opened;
    }
    notify(endpoint);
    opening.await
}

/// The next part of a stream; none from a server that has stopped.
async fn heard<T>(
    part: impl Future<Output = T>,
    probe: impl Future<Output = Result<(), Error>>,
    notice: impl FnOnce(),
) -> Option<T> {
    let mut part = pin!(part);
    if let Ok(part) = timeout(QUIET, &mut part).await {
        return Some(part);
    }
    // A network that is away is no server that has stopped: the stream may go on when it is back.
    let probe = async {
        drop(probe.await);
        Ok(())
    };
    unless_stopped(part, probe, notice).await
}

/// The answer to a request; none from a server that does not answer a probe either.
async fn unless_stopped<T>(
    request: impl Future<Output = T>,
    probe: impl Future<Output = Result<(), Error>>,
    notice: impl FnOnce(),
) -> Option<T> {
    let mut request = pin!(request);
    if let Ok(answer) = timeout(PROBE_AFTER, &mut request).await {
        return Some(answer);
    }
    let silence = async {
        sleep(NOTICE_AFTER - PROBE_AFTER).await;
        notice();
        sleep(STUCK_AFTER - NOTICE_AFTER).await;
    };
    let stopped = async {
        tokio::select! {
            Ok(()) = probe => pending().await,
            () = silence => {}
        }
    };
    tokio::select! {
        answer = request => Some(answer),
        () = stopped => None,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io;

    use tokio::time::Instant;

    use super::*;

    const BUSY: Duration = Duration::from_secs(50);

    fn lost() -> Result<(), Error> {
        let source = io::ErrorKind::TimedOut.into();
        Err(Error::Unreachable { endpoint: "unix:/x".into(), source })
    }

    /// What became of a request that takes this long: whether it was answered, when, and when the user was told.
    async fn asked(
        takes: Duration,
        probe: impl Future<Output = Result<(), Error>>,
    ) -> (bool, u64, Option<u64>) {
        let began = Instant::now();
        let told = Cell::new(None);
        let notice = || told.set(Some(began.elapsed().as_secs()));
        let answer = unless_stopped(sleep(takes), probe, notice).await;
        (answer.is_some(), began.elapsed().as_secs(), told.get())
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_has_stopped_is_told_after_two_seconds_and_given_up_after_thirty() {
        assert_eq!(asked(BUSY, pending()).await, (false, 30, Some(2)));
        let refused = async {
            sleep(Duration::from_secs(10)).await;
            lost()
        };
        assert_eq!(asked(BUSY, refused).await, (false, 30, Some(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_stream_of_a_server_that_has_stopped_is_told_soon_and_given_up() {
        let told = Cell::new(None);
        let began = Instant::now();
        let notice = || told.set(Some(began.elapsed().as_secs()));
        assert_eq!(heard(pending::<()>(), pending(), notice).await, None);
        assert_eq!((told.get(), began.elapsed().as_secs()), (Some(12), 40));
        let part = heard(sleep(BUSY), async { Ok(()) }, || panic!("it answers")).await;
        assert!(part.is_some(), "a server that is well may have nothing to say");
        let unreachable = async {
            sleep(Duration::from_secs(10)).await;
            lost()
        };
        let told = Cell::new(false);
        assert!(heard(sleep(BUSY), unreachable, || told.set(true)).await.is_some());
        assert!(told.get(), "it may be the network alone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_busy_with_a_request_is_waited_for_without_a_word() {
        assert_eq!(asked(BUSY, async { Ok(()) }).await, (true, 50, None));
        assert_eq!(asked(Duration::from_secs(1), pending()).await, (true, 1, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_goes_on_again_has_its_answer_taken() {
        assert_eq!(asked(Duration::from_secs(20), pending()).await, (true, 20, Some(2)));
        let probe = async {
            sleep(Duration::from_secs(10)).await;
            Ok(())
        };
        assert_eq!(asked(BUSY, probe).await, (true, 50, Some(2)));
    }
}
