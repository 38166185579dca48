//! Reading a job's log to its end, across any number of lost connections and dead servers, each byte once.
//!
//! A task of its own does the reading. It may be in the middle of starting a server, with other commands waiting for
//! its lock, while whoever shows the log waits for the user's answer to a question.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use muster_api::client::{self, EventItem, LogItem, Logs};
use muster_api::view::{EventsQuery, LogChunk, LogsQuery, StreamEnd};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::error::{Code, Error};
use crate::session::{Patience, Session};

/// Pieces read ahead of whoever shows them: enough that neither waits for the other in turns.
const AHEAD: usize = 16;

/// A job's log, as it comes.
pub(crate) struct LogFollow {
    items: mpsc::Receiver<Result<LogItem, Error>>,
    /// Owns the task that reads, and ends it.
    _reader: JoinSet<()>,
}

impl LogFollow {
    pub fn start(session: &Arc<Session>, job: &str, query: LogsQuery) -> Self {
        let mut reader = LogReader {
            session: session.clone(),
            job: job.to_owned(),
            query,
            cursor: Cursor::default(),
            stream: None,
            patience: Patience::default(),
        };
        let (sender, items) = mpsc::channel(AHEAD);
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                let item = reader.next().await;
                let is_last = !matches!(item, Ok(LogItem::Chunk(_)));
                if sender.send(item).await.is_err() || is_last {
                    return;
                }
            }
        });
        Self { items, _reader: task }
    }

    /// The next piece, or the end. A call that is cancelled loses nothing.
    pub async fn next(&mut self) -> Result<LogItem, Error> {
        let gone = || Err(Error::new(Code::ClientInternal, "the log was read to its end already"));
        self.items.recv().await.unwrap_or_else(gone)
    }
}

struct LogReader {
    session: Arc<Session>,
    job: String,
    query: LogsQuery,
    cursor: Cursor,
    stream: Option<Logs>,
    patience: Patience,
}

impl LogReader {
    async fn next(&mut self) -> Result<LogItem, Error> {
        loop {
            match self.read().await {
                Ok(LogItem::Chunk(chunk)) => {
                    self.patience.restore();
                    if self.cursor.advance(&chunk) {
                        return Ok(LogItem::Chunk(chunk));
                    }
                }
                Ok(end) => return Ok(end),
                Err(error) if error.is_transient() => {
                    self.stream = None;
                    self.session.recover(&mut self.patience, error).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn read(&mut self) -> Result<LogItem, client::Error> {
        if let Some(stream) = &mut self.stream {
            return stream.next().await;
        }
        let cursor = self.cursor.text().or_else(|| self.query.cursor.clone());
        let query = LogsQuery { cursor, ..self.query.clone() };
        let stream = self.session.client().logs(&self.job, &query).await?;
        self.stream.insert(stream).next().await
    }
}

/// How far each task's log was read, in the latest attempt seen.
#[derive(Debug, Default)]
struct Cursor {
    attempt: u32,
    next: BTreeMap<u32, Mark>,
}

/// How far one log was read: a place, and with `--grep` how many bytes of each output after it. Both only grow, the
/// second from nothing again when the first does.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Mark {
    next: u64,
    skipped: u64,
    skip: Option<[u64; 2]>,
}

impl Cursor {
    /// Notes a piece; false when it was there before.
    fn advance(&mut self, chunk: &LogChunk) -> bool {
        if chunk.attempt > self.attempt {
            self.attempt = chunk.attempt;
            self.next.clear();
        }
        if chunk.attempt < self.attempt {
            // Asked for by its number, or late: there is nothing to compare it with.
            return true;
        }
        let mark =
            Mark { next: chunk.next, skipped: chunk.skip.unwrap_or_default().iter().sum(), skip: chunk.skip };
        let last = self.next.entry(chunk.rank).or_default();
        let is_new = mark > *last;
        *last = mark.max(*last);
        is_new
    }

    /// As the server takes it; none before the first piece.
    fn text(&self) -> Option<String> {
        if self.next.is_empty() {
            return None;
        }
        let mut text = format!("{}@", self.attempt);
        for (i, (rank, mark)) in self.next.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = write!(text, "{}{rank}:{}", if i == 0 { "" } else { "," }, mark.next);
            if let Some([stdout, stderr]) = mark.skip {
                let _ = write!(text, ".{stdout}.{stderr}");
            }
        }
        Some(text)
    }
}

/// Waits until a job is over.
pub(crate) async fn wait_for_end(session: &Session, job: &str) -> Result<StreamEnd, Error> {
    let query = EventsQuery { after: None, follow: true };
    session
        .call(async |client| {
            let mut events = client.events(job, &query).await?;
            while let Some(item) = events.next().await? {
                if let EventItem::End(end) = item {
                    return Ok(*end);
                }
            }
            // A followed stream without its end was cut off.
            Err(client::Error::Lost { source: None })
        })
        .await
}

#[cfg(test)]
mod tests {
    use muster_api::model::Timestamp;
    use muster_api::view::LogStream;

    use super::*;

    fn chunk(attempt: u32, rank: u32, next: u64) -> LogChunk {
        let stream = LogStream::Stdout;
        LogChunk {
            attempt,
            rank,
            process_rank: None,
            stream,
            at: Timestamp::UNIX_EPOCH,
            text: None,
            base64: None,
            next,
            skip: None,
            cut: false,
        }
    }

    #[test]
    fn a_cursor_remembers_every_task() {
        let mut cursor = Cursor::default();
        assert_eq!(cursor.text(), None);
        for (rank, next) in [(1, 10), (0, 7), (1, 25)] {
            assert!(cursor.advance(&chunk(1, rank, next)));
        }
        assert_eq!(cursor.text().as_deref(), Some("1@0:7,1:25"));
    }

    #[test]
    fn what_was_read_before_is_dropped() {
        let mut cursor = Cursor::default();
        assert!(cursor.advance(&chunk(1, 0, 10)));
        assert!(!cursor.advance(&chunk(1, 0, 10)));
        assert!(!cursor.advance(&chunk(1, 0, 5)));
        assert!(cursor.advance(&chunk(1, 0, 11)));
    }

    #[test]
    fn lines_within_one_record_are_told_apart() {
        let mut cursor = Cursor::default();
        let line = |next, skip| LogChunk { skip, ..chunk(1, 0, next) };
        assert!(cursor.advance(&line(10, Some([4, 0]))));
        assert!(!cursor.advance(&line(10, Some([4, 0]))));
        assert!(cursor.advance(&line(10, Some([4, 3]))));
        assert_eq!(cursor.text().as_deref(), Some("1@0:10.4.3"));
        assert!(!cursor.advance(&line(10, Some([4, 0]))));
        assert!(cursor.advance(&line(30, None)));
        assert_eq!(cursor.text().as_deref(), Some("1@0:30"));
    }

    #[test]
    fn a_new_attempt_begins_anew() {
        let mut cursor = Cursor::default();
        cursor.advance(&chunk(1, 0, 10));
        assert!(cursor.advance(&chunk(2, 0, 3)));
        assert_eq!(cursor.text().as_deref(), Some("2@0:3"));
        assert!(cursor.advance(&chunk(1, 0, 4)));
        assert_eq!(cursor.text().as_deref(), Some("2@0:3"));
    }
}
