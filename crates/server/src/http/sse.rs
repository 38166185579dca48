//! Server-sent events, and bodies that are visits.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::future::BoxFuture;
use futures::{FutureExt, Stream, StreamExt, stream};
use muster_api::problem::Problem;
use serde::Serialize;

use crate::accounts::Caller;
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

/// Where a stream of events comes from.
pub(crate) trait Feed: Send + 'static {
    /// Adds what there is to say, or waits until there may be something. False when nothing comes after that.
    fn turn(&mut self, ready: &mut VecDeque<Event>) -> impl Future<Output = Result<bool, Problem>> + Send;
}

/// A reply that goes on for as long as its feed does, or until a problem, which is its last event. It is dropped, and
/// the feed with it, when its reader is gone.
pub(crate) fn feed(feed: impl Feed) -> Response {
    let begun = (feed, VecDeque::new(), true);
    reply(stream::unfold(begun, async |(mut feed, mut ready, mut goes_on)| {
        loop {
            if let Some(event) = ready.pop_front() {
                return Some((event, (feed, ready, goes_on)));
            }
            if !goes_on {
                return None;
            }
            goes_on = feed.turn(&mut ready).await.unwrap_or_else(|problem| {
                ready.push_back(event("error", None, &problem));
                false
            });
        }
    }))
}

fn reply(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    Sse::new(events.map(Ok::<_, Infallible>))
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response()
}

/// A body that is cut off when whoever sends it may not any more.
pub(crate) fn until(body: Body, caller: Caller) -> Body {
    let ended = async move { caller.ended().await }.boxed();
    Body::from_stream(Held { body: body.into_data_stream(), ended: Some(ended), _visit: None })
}

/// Keeps a visit counted until the last byte of its reply is sent, or until whoever asked may not have it any more: then it is
/// aborted, so that nobody takes a part for the whole.
pub(crate) fn hold(body: Body, visit: Visit, caller: Option<Caller>) -> Body {
    let ended = caller.map(|caller| async move { caller.ended().await }.boxed());
    Body::from_stream(Held { body: body.into_data_stream(), ended, _visit: Some(visit) })
}

struct Held {
    body: axum::body::BodyDataStream,
    ended: Option<BoxFuture<'static, ()>>,
    _visit: Option<Visit>,
}

impl Stream for Held {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended.as_mut().is_some_and(|ended| ended.poll_unpin(cx).is_ready()) {
            let ended =
                std::io::Error::new(ErrorKind::PermissionDenied, "the caller may not have it any more");
            return Poll::Ready(Some(Err(axum::Error::new(ended))));
        }
        self.body.poll_next_unpin(cx)
    }
}
