//! A command's way to its server, which outlives the server's death.
//!
//! A request that found no server, or lost it, is repeated with growing pauses for a bounded time, and a private
//! server is started again for it. So only what may be repeated goes through [`Session::call`].

use std::sync::Once;
use std::time::Duration;

use muster_api::Code;
use muster_api::client::{self, Client};
use tokio::time::{Instant, sleep};

use crate::error::Error;
use crate::home::Home;
use crate::place::{Named, Place};
use crate::private;
use crate::terminal;

/// The first pause; a private server restarts within it.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest one.
const LAST_PAUSE: Duration = Duration::from_secs(2);
/// How long a server may be gone in the middle of a command: long enough for an upgrade.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it may say that it cannot do something now.
const UNAVAILABLE: Duration = Duration::from_secs(5);
/// How long an upload waits for its turn among others.
const TURN: Duration = Duration::from_secs(300);

/// Tells the user, once, of a server that does not answer.
pub(crate) fn announce_silence() {
    static SAID: Once = Once::new();
    client::on_silence(|endpoint| {
        SAID.call_once(|| terminal::note(&format!("waiting for the server at {endpoint}")));
    });
}

/// An open way to a server.
pub(crate) struct Session {
    client: Client,
    /// Set when the server is ours to start.
    private: Option<Home>,
}

impl Session {
    /// Connects to the named server, or to the private one, which is started if it must be.
    pub async fn open() -> Result<Self, Error> {
        match Place::from_environment()? {
            Place::Named(named) => Self::named(&named).await,
            Place::Private(home) => Ok(Self { client: private::open(&home).await?, private: Some(home) }),
        }
    }

    /// Connects to a server that is never started.
    pub async fn named(named: &Named) -> Result<Self, Error> {
        let client = Client::connect(named.endpoint.clone()).await.map_err(|error| named.failed(error))?;
        Ok(Self { client, private: None })
    }

    /// The client, for what is not worth repeating.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The home of the private server, if it is that.
    pub fn home(&self) -> Option<&Home> {
        self.private.as_ref()
    }

    /// Whether a job of this owner is another person's. A server without accounts knows no persons.
    pub async fn is_of_another(&self, owner: &str) -> Result<bool, Error> {
        let me = self.call(async |client| client.whoami().await).await?;
        Ok(me.accounts && me.user != owner)
    }

    /// Does something that may be repeated, until it is done or the server stays away.
    pub async fn call<T>(
        &self,
        operation: impl AsyncFn(&Client) -> Result<T, client::Error>,
    ) -> Result<T, Error> {
        let mut patience = Patience::default();
        loop {
            match operation(&self.client).await {
                Err(error) if error.is_transient() => self.recover(&mut patience, error).await?,
                other => return other.map_err(Error::from),
            }
        }
    }

    /// The same for an upload: a server that has no turn for it now says when to try again.
    pub async fn upload<T>(
        &self,
        operation: impl AsyncFn(&Client) -> Result<T, client::Error>,
    ) -> Result<T, Error> {
        let deadline = Instant::now() + TURN;
        loop {
            let attempt = self.call(async |client| match operation(client).await {
                Err(client::Error::Problem(problem)) if problem.code == Code::TooManyRequests => {
                    Ok(Err(problem))
                }
                done => done.map(Ok),
            });
            match attempt.await? {
                Ok(done) => return Ok(done),
                Err(problem) if Instant::now() < deadline => {
                    sleep(Duration::from_secs(problem.retry_after.unwrap_or(1))).await;
                }
                Err(problem) => return Err(client::Error::Problem(problem).into()),
            }
        }
    }

    /// After a lost server: pauses, and starts a private one again. An error when the patience is at its end.
    pub async fn recover(&self, patience: &mut Patience, error: client::Error) -> Result<(), Error> {
        // A server that answers, but cannot do it, is full rather than gone.
        let limit = if error.code().is_some() { UNAVAILABLE } else { PATIENCE };
        let Some(pause) = patience.next_pause(Instant::now(), limit) else { return Err(error.into()) };
        sleep(pause).await;
        if let Some(home) = &self.private {
            // The client finds the new server at the same address.
            private::reopen(home).await?;
        }
        Ok(())
    }
}

/// How long and how often a lost server is looked for.
#[derive(Default)]
pub(crate) struct Patience {
    began: Option<Instant>,
    last: Option<Instant>,
    pause: Duration,
}

impl Patience {
    /// The pause before the next try; none when it is time to give up. A server that was there in between, for
    /// longer than any pause, is a new story.
    pub fn next_pause(&mut self, now: Instant, limit: Duration) -> Option<Duration> {
        if self.last.is_none_or(|last| now > last + PATIENCE) {
            self.began = Some(now);
            self.pause = FIRST_PAUSE;
        }
        self.last = Some(now);
        if self.began.is_some_and(|began| now > began + limit) {
            return None;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(LAST_PAUSE);
        Some(pause)
    }

    /// The server is there: the next loss is a new story.
    pub fn restore(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_the_search_ends() {
        let mut patience = Patience::default();
        let began = Instant::now();
        let mut pauses = Vec::new();
        while let Some(pause) = patience.next_pause(Instant::now(), PATIENCE) {
            pauses.push(pause);
            sleep(pause).await;
        }
        assert_eq!(pauses[..3], [20, 40, 80].map(Duration::from_millis));
        assert_eq!(pauses.last(), Some(&LAST_PAUSE));
        assert!((PATIENCE..PATIENCE + 2 * LAST_PAUSE).contains(&began.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_came_back_is_looked_for_anew() {
        let mut patience = Patience::default();
        for _ in 0..20 {
            assert_eq!(patience.next_pause(Instant::now(), PATIENCE), Some(FIRST_PAUSE));
            sleep(PATIENCE * 2).await;
        }
        patience.next_pause(Instant::now(), PATIENCE);
        patience.restore();
        assert_eq!(patience.next_pause(Instant::now(), PATIENCE), Some(FIRST_PAUSE));
    }
}
