//! Server-sent events, and bodies that are visits.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt};
use serde::Serialize;

use crate::state::Visit;

/// Often enough that proxies keep the connection, and that a client notices a dead server.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// An event with a JSON body.
pub(crate) fn event<T: Serialize>(name: &str, id: Option<String>, data: &T) -> Event {
    let data = serde_json::to_string(data).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
    let event = Event::default().event(name).data(data);
    match id {
        Some(id) => event.id(id),
        None => event,
    }
}

/// A reply that goes on.
pub(crate) fn reply(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    Sse::new(events.map(Ok::<_, Infallible>))
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response()
}

/// Keeps a visit counted until the last byte of its reply is sent.
pub(crate) fn hold(body: Body, visit: Visit) -> Body {
    Body::from_stream(Held { body: body.into_data_stream(), _visit: visit })
}

struct Held {
    body: axum::body::BodyDataStream,
    _visit: Visit,
}

impl Stream for Held {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.body.poll_next_unpin(cx)
    }
}
