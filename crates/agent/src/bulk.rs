//! The bulk connection: logs, chunks and files, so that none of them ever delays a message.
//!
//! Whoever needs a stream waits for one; a lost connection ends all streams, and each user of one knows how to go on.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use muster_link::control::{self, Received};
use muster_link::message::StreamHeader;
use muster_link::session::{self, Incoming, Opener, Side, Stream};
use tokio::io::BufReader;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::calls;
use crate::dialer::{Connected, Dialer};
use crate::files::{self, Reader};

/// The streams' driver measures the round trip when it has something to do and ten seconds have passed. Giving it that
/// occasion makes an idle connection show that it is alive, well before its silence would be taken for death.
const OCCASION: Duration = Duration::from_secs(2);
/// Streams of the server that are served at once; the rest wait in the session.
const STREAMS: usize = 2048;
/// Of these, questions about files that are answered at once.
const ANSWERS: usize = 32;

/// Gives streams of the bulk connection; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Bulk {
    current: watch::Receiver<Option<Open>>,
}

#[derive(Debug, Clone)]
struct Open {
    connection: u64,
    opener: Opener,
}

/// Keeps the bulk connection.
#[derive(Debug)]
pub(crate) struct Keeper {
    dialer: Dialer,
    reader: Arc<Reader>,
    current: watch::Sender<Option<Open>>,
}

/// The keeper, to be run, and what its users hold.
pub(crate) fn bulk(dialer: Dialer, reader: Arc<Reader>) -> (Keeper, Bulk) {
    let (sender, receiver) = watch::channel(None);
    (Keeper { dialer, reader, current: sender }, Bulk { current: receiver })
}

impl Bulk {
    /// A new stream, and the number of the connection it belongs to. Waits as long as there is none.
    pub(crate) async fn open(&self) -> (u64, Stream) {
        let mut current = self.current.clone();
        loop {
            let open = current.wait_for(Option::is_some).await.ok().and_then(|open| open.clone());
            // The keeper is gone only when the whole agent ends, and then nothing needs an answer.
            let Some(open) = open else { std::future::pending().await };
            if let Ok(stream) = open.opener.open().await {
                return (open.connection, stream);
            }
            let is_next =
                |now: &Option<Open>| now.as_ref().is_none_or(|now| now.connection != open.connection);
            let _ = current.wait_for(is_next).await;
        }
    }

    /// Whether the connection of this number still is the one in use.
    pub(crate) fn is_open(&self, connection: u64) -> bool {
        self.current.borrow().as_ref().is_some_and(|open| open.connection == connection)
    }
}

impl Keeper {
    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        for connection in 1.. {
            let Connected { io, pulse } = self.dialer.connect().await;
            let since = Instant::now();
            let (opener, incoming, driver) = session::start(io, Side::Agent);
            tracing::debug!(connection, "the bulk connection is made");
            self.current.send_replace(Some(Open { connection, opener }));
            let reason = tokio::select! {
                ended = drive(driver) => ended.err().map_or_else(|| "closed".to_owned(), |error| error.to_string()),
                () = pulse.silence() => "silent".to_owned(),
                () = self.dialer.superseded() => "superseded".to_owned(),
                () = answer(incoming, &self.reader) => "closed".to_owned(),
            };
            self.current.send_replace(None);
            tracing::debug!(reason, "the bulk connection is gone");
            self.dialer.lost(since);
        }
    }
}

async fn drive(driver: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    let mut occasion = interval(OCCASION);
    occasion.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(driver);
    loop {
        // Every tick polls the driver again.
        tokio::select! {
            ended = &mut driver => return ended,
            _ = occasion.tick() => {}
        }
    }
}

/// Serves what the server opens, until the connection is gone.
async fn answer(mut incoming: Incoming, reader: &Arc<Reader>) {
    let mut answers = JoinSet::new();
    let turns = Arc::new(Semaphore::new(ANSWERS));
    loop {
        tokio::select! {
            stream = incoming.next(), if answers.len() < STREAMS => match stream {
                Some(stream) => drop(answers.spawn(serve(stream, reader.clone(), turns.clone()))),
                None => return,
            },
            Some(answered) = answers.join_next() => if let Ok(Err(error)) = answered {
                tracing::debug!(error = %error, "a stream of the server was not served to its end");
            },
        }
    }
}

async fn serve(stream: Stream, reader: Arc<Reader>, turns: Arc<Semaphore>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    match control::receive(&mut stream).await? {
        Some(Received::Message(StreamHeader::Files { task, path, want })) => {
            let _turn = turns.acquire().await;
            files::serve::answer(stream, reader, task, path, want).await
        }
        Some(Received::Message(StreamHeader::Call { task, call })) => {
            calls::bring(stream, &reader.dir(&task), &task, &call).await
        }
        // A newer server asks for what this agent does not have; a stream that ends without an answer says so.
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use muster_link::dial::Channel;

    use super::*;
    use crate::bundle::Cache;
    use crate::far_end::FarEnd;

    /// Of a node that has no tasks.
    fn reader() -> Arc<Reader> {
        let folder = tempfile::tempdir().unwrap();
        let cache = Arc::new(Cache::open(folder.path().join("cache"), "boot").unwrap());
        Arc::new(Reader::new(folder.path().join("tasks"), cache))
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_hangs_up_is_not_hammered() {
        let peer = FarEnd::new();
        let (keeper, _bulk) = bulk(peer.dialer(Channel::Bulk), reader());
        let calls = std::cell::Cell::new(0);
        let server = async {
            loop {
                drop(peer.accept().await);
                calls.set(calls.get() + 1);
            }
        };
        tokio::select! {
            () = keeper.run() => panic!("it never ends"),
            () = server => panic!("it never ends either"),
            () = tokio::time::sleep(Duration::from_secs(60)) => {}
        }
        assert!((1..=40).contains(&calls.get()), "{}", calls.get());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_to_a_machine_that_stopped_is_replaced() {
        let peer = FarEnd::new();
        let (keeper, bulk) = bulk(peer.dialer(Channel::Bulk), reader());
        let server = async {
            // Nothing moves its bytes, and nothing closes it either.
            let _stopped = peer.accept().await;
            let (_incoming, driver) = peer.accept().await;
            driver.await.unwrap();
        };
        let user = async {
            let (first, _stream) = bulk.open().await;
            let since = Instant::now();
            let mut current = bulk.current.clone();
            let is_next = |now: &Option<Open>| now.as_ref().is_some_and(|now| now.connection != first);
            drop(current.wait_for(is_next).await);
            assert!((14..=21).contains(&since.elapsed().as_secs()), "{:?}", since.elapsed());
            let (second, _stream) = bulk.open().await;
            assert!(bulk.is_open(second) && !bulk.is_open(first));
        };
        tokio::select! {
            () = keeper.run() => panic!("it never ends"),
            () = server => panic!("the second connection was lost"),
            () = user => {}
        }
    }
}
