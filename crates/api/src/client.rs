//! The Rust client of a muster server, over a Unix socket, TCP or TLS.
//!
//! One connection is kept for requests; each stream has one of its own. Nothing here retries beyond what is certain
//! to be safe (a request that was never sent), and nothing here starts a server: that is the business of the caller.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
pub use hyper::Method;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use muster_link::tls::Connector;
pub use muster_link::tls::{Error as TlsError, Fingerprint};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

mod account;
pub mod build;
mod call;
mod connection;
mod endpoint;
mod error;
mod operation;
mod pieces;
mod quota;
mod secret;
mod session;
mod silence;
pub mod sse;
mod stream;
#[cfg(test)]
mod tests;

pub use call::Line;
use connection::Connection;
use endpoint::Address;
pub use endpoint::{Endpoint, ParseError as EndpointError};
pub use error::{Error, Protocol};
use pieces::Pieces;
pub use silence::on_silence;
pub use stream::{Download, EventItem, Events, LogItem, Logs, Sse, log_bytes};

use crate::problem::Problem;

/// Where the interface begins.
const ROOT: &str = "/api/v1";
/// Far above what any request takes on a busy server.
const REPLY_DEADLINE: Duration = Duration::from_secs(60);
/// A page of a thousand jobs is below a megabyte.
const MAX_REPLY: usize = 64 << 20;
/// How much of a strange reply is shown.
const EXCERPT: usize = 200;

/// A client of one server.
pub struct Client {
    route: Arc<ServerRoute>,
    /// Idle connections: rarely more than one.
    idle: Mutex<Vec<Connection>>,
}

/// The way to a server, by which streams also find out whether it has stopped.
struct ServerRoute {
    endpoint: Endpoint,
    /// How TLS is spoken, where it is.
    connector: Option<Connector>,
}

/// What a request carries.
enum Body<'a> {
    None,
    Json(&'a [u8]),
    Raw(Vec<Bytes>),
}

impl Client {
    /// Connects, so that a server that is not there is known at once.
    pub async fn connect(endpoint: Endpoint) -> Result<Self, Error> {
        let is_tls = matches!(endpoint.address, Address::Tcp { is_tls: true, .. });
        let connector = is_tls.then(|| Connector::new(endpoint.pinned)).transpose();
        let connector = connector.map_err(|error| connection::refused(&endpoint, error))?;
        let route = ServerRoute { endpoint, connector };
        let connection = silence::connected(&route.endpoint, route.connect()).await?;
        Ok(Self { route: Arc::new(route), idle: Mutex::new(vec![connection]) })
    }

    /// Where its server is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.route.endpoint
    }

    /// Sends a request and reads the JSON of its reply. The path is below `/api/v1`.
    pub async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, Error> {
        let json = body.map(|body| encode(path, body)).transpose()?;
        let body = json.as_deref().map_or(Body::None, Body::Json);
        self.json(method, path, body, &[]).await
    }

    async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Body<'_>,
        headers: &[(&str, &str)],
    ) -> Result<T, Error> {
        let request = format!("{method} {path}");
        let reply = self.unary(method, path, body, headers).await?;
        serde_json::from_slice(&reply).map_err(|source| Protocol::Body { request, source }.into())
    }

    /// One request below `/api/v1` and the whole of its reply.
    async fn unary(
        &self,
        method: Method,
        path: &str,
        body: Body<'_>,
        headers: &[(&str, &str)],
    ) -> Result<Bytes, Error> {
        let name = format!("{method} {path}");
        self.exchange(&name, self.route.prepare(method, &format!("{ROOT}{path}"), body, headers)?).await
    }

    async fn exchange(&self, name: &str, request: Request<Pieces>) -> Result<Bytes, Error> {
        let (response, connection) = self.route.answered(self.send(request)).await?;
        let status = response.status();
        let body = in_time(read_body(name, response)).await?;
        // Read to its end, so the next request can use the connection.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        if status.is_success() { Ok(body) } else { Err(refusal(status, &body)) }
    }

    /// Opens a stream of events.
    async fn stream(&self, path: &str) -> Result<Sse, Error> {
        let (response, connection) = self.open(path, "text/event-stream").await?;
        Ok(Sse::new(response.into_body(), connection, self.route.clone()))
    }

    /// Opens a reply of any length.
    async fn download(&self, path: &str) -> Result<Download, Error> {
        let (response, connection) = self.open(path, "*/*").await?;
        Ok(Download::new(response, connection, self.route.clone()))
    }

    /// Asks for a reply that goes on; it keeps its connection.
    async fn open(&self, path: &str, accept: &str) -> Result<(Response<Incoming>, Connection), Error> {
        let headers = [(ACCEPT.as_str(), accept)];
        let request = self.route.prepare(Method::GET, &format!("{ROOT}{path}"), Body::None, &headers)?;
        let (response, connection) = self.route.answered(self.send(request)).await?;
        let status = response.status();
        if status.is_success() {
            return Ok((response, connection));
        }
        Err(refusal(status, &in_time(read_body(path, response)).await?))
    }

    /// Sends over an idle connection if one is left that works, else over a new one.
    async fn send(&self, mut request: Request<Pieces>) -> Result<(Response<Incoming>, Connection), Error> {
        while let Some(mut connection) = self.take_idle() {
            match connection.send(request).await {
                Ok(response) => return Ok((response, connection)),
                Err(refused) => match refused.request {
                    Some(unsent) => request = unsent,
                    None => return Err(Error::Lost { source: Some(refused.error) }),
                },
            }
        }
        let mut connection = self.route.connect().await?;
        match connection.send(request).await {
            Ok(response) => Ok((response, connection)),
            Err(refused) => Err(Error::Lost { source: Some(refused.error) }),
        }
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(Connection::is_open);
        idle.pop()
    }
}

impl ServerRoute {
    /// A connection of its own.
    async fn connect(&self) -> Result<Connection, Error> {
        Connection::open(&self.endpoint, self.connector.as_ref()).await
    }

    fn prepare(
        &self,
        method: Method,
        path: &str,
        body: Body<'_>,
        headers: &[(&str, &str)],
    ) -> Result<Request<Pieces>, Error> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.endpoint.host())
            .header(USER_AGENT, concat!("muster/", env!("CARGO_PKG_VERSION")));
        if let Some(authorization) = &self.endpoint.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (kind, content) = match body {
            Body::None => (None, Vec::new()),
            Body::Json(json) => (Some("application/json"), vec![Bytes::copy_from_slice(json)]),
            Body::Raw(pieces) => (Some("application/octet-stream"), pieces),
        };
        if let Some(kind) = kind {
            request = request.header(CONTENT_TYPE, kind);
        }
        request.body(Pieces::new(content)).map_err(|error| Protocol::from(error).into())
    }
}

/// Bounds a part of an exchange with a server that is there.
async fn in_time<T>(part: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    timeout(REPLY_DEADLINE, part).await.map_err(|_| Error::Silent { after: REPLY_DEADLINE })?
}

fn encode(path: &str, body: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(body).map_err(|source| Protocol::Body { request: path.to_owned(), source }.into())
}

async fn read_body(request: &str, response: Response<Incoming>) -> Result<Bytes, Error> {
    match Limited::new(response.into_body(), MAX_REPLY).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => Err(match error.downcast::<hyper::Error>() {
            Ok(error) => Error::Lost { source: Some(*error) },
            Err(_) => Protocol::TooLong { request: request.to_owned(), limit: MAX_REPLY }.into(),
        }),
    }
}

/// An error reply: a problem document from our server, anything at all from what may stand before it.
fn refusal(status: StatusCode, body: &[u8]) -> Error {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => Error::Problem(Box::new(problem)),
        Err(_) => {
            let excerpt = String::from_utf8_lossy(&body[..body.len().min(EXCERPT)]).trim().to_owned();
            Protocol::Status { status: status.as_u16(), excerpt }.into()
        }
    }
}
