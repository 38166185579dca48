//! Replies that go on: a job's events and logs, as events and as files.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use serde::de::DeserializeOwned;

use super::connection::Connection;
use super::error::Protocol;
use super::sse::{Event, Parser};
use super::{Error, ServerRoute};
use crate::view::{EventView, LogChunk, StreamEnd};

/// A stream of server-sent events. [`Events`] and [`Logs`] read what they mean.
pub struct Sse {
    body: Incoming,
    parser: Parser,
    route: Arc<ServerRoute>,
    /// Carries the body; a stream has a connection to itself.
    _connection: Connection,
}

impl Sse {
    pub(super) fn new(body: Incoming, connection: Connection, route: Arc<ServerRoute>) -> Self {
        Self { body, parser: Parser::default(), route, _connection: connection }
    }

    /// The next event; none when the server has ended the stream. A call that is cancelled loses nothing.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        loop {
            if let Some(event) = self.parser.next_event().map_err(Protocol::from)? {
                return Ok(Some(event));
            }
            match self.route.next_part(self.body.frame()).await? {
                Some(Ok(frame)) => {
                    if let Some(piece) = frame.data_ref() {
                        self.parser.feed(piece);
                    }
                }
                Some(Err(error)) => return Err(Error::Lost { source: Some(error) }),
                None => return Ok(None),
            }
        }
    }
}

/// A reply of any length, piece by piece.
pub struct Download {
    response: Response<Incoming>,
    route: Arc<ServerRoute>,
    _connection: Connection,
}

impl Download {
    pub(super) fn new(response: Response<Incoming>, connection: Connection, route: Arc<ServerRoute>) -> Self {
        Self { response, route, _connection: connection }
    }

    /// Whether it is a directory, as a tar archive.
    pub fn is_archive(&self) -> bool {
        self.response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/x-tar")
    }

    /// How long it will be, where that is known before it ends.
    pub fn bytes(&self) -> Option<u64> {
        self.response.headers().get("x-muster-bytes")?.to_str().ok()?.parse().ok()
    }

    /// The next piece; none at the end. A reply that was cut off is an error, never an end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            match self.route.next_part(self.response.body_mut().frame()).await? {
                Some(Ok(frame)) => {
                    if let Ok(piece) = frame.into_data() {
                        return Ok(Some(piece));
                    }
                }
                Some(Err(error)) => return Err(Error::Lost { source: Some(error) }),
                None => return Ok(None),
            }
        }
    }
}

/// What a stream of job events contains.
#[derive(Debug, Clone)]
pub enum EventItem {
    /// Something happened.
    Event(EventView),
    /// The job is over; nothing follows.
    End(Box<StreamEnd>),
}

/// What a stream of logs contains.
#[derive(Debug, Clone)]
pub enum LogItem {
    /// A piece of a task's output.
    Chunk(LogChunk),
    /// Everything was sent; nothing follows.
    End(Box<StreamEnd>),
}

/// The events of a job.
pub struct Events(pub(super) Sse);

impl Events {
    /// The next event; none when everything there is was sent and nobody asked to follow. A problem that the server
    /// meets on the way ends the stream, too.
    pub async fn next(&mut self) -> Result<Option<EventItem>, Error> {
        while let Some(event) = self.0.next().await? {
            match event.name.as_str() {
                "event" => return Ok(Some(EventItem::Event(read(&event)?))),
                "end" => return Ok(Some(EventItem::End(Box::new(read(&event)?)))),
                "error" => return Err(Error::Problem(Box::new(read(&event)?))),
                // A newer server may say more than we know of.
                _ => {}
            }
        }
        Ok(None)
    }
}

/// The output of a job's tasks.
pub struct Logs(pub(super) Sse);

impl Logs {
    /// The next piece. A stream that stops without its `end` was cut off, so that is an error.
    pub async fn next(&mut self) -> Result<LogItem, Error> {
        while let Some(event) = self.0.next().await? {
            match event.name.as_str() {
                "log" => return Ok(LogItem::Chunk(read(&event)?)),
                "end" => return Ok(LogItem::End(Box::new(read(&event)?))),
                "error" => return Err(Error::Problem(Box::new(read(&event)?))),
                _ => {}
            }
        }
        Err(Error::Lost { source: None })
    }
}

/// The output itself, as the task wrote it.
pub fn log_bytes(chunk: &LogChunk) -> Result<Cow<'_, [u8]>, Error> {
    match (&chunk.text, &chunk.base64) {
        (Some(text), _) => Ok(Cow::Borrowed(text.as_bytes())),
        (None, Some(encoded)) => Ok(Cow::Owned(STANDARD.decode(encoded).map_err(Protocol::from)?)),
        (None, None) => Ok(Cow::Borrowed(&[])),
    }
}

fn read<T: DeserializeOwned>(event: &Event) -> Result<T, Error> {
    serde_json::from_str(&event.data)
        .map_err(|source| Protocol::Event { event: event.name.clone(), source }.into())
}
