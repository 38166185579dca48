//! Calls on tasks: a connection that becomes the caller's own.

use hyper::StatusCode;
use hyper::header::{CONNECTION, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use hyper_util::rt::TokioIo;
use muster_link::dial;
use muster_link::websocket;
use tokio::time::timeout;

use super::connection::Connection;
use super::{Body, Client, Error, Method, Protocol, REPLY_DEADLINE, ROOT, read_body, refusal};

/// Bytes to and from a task. The end of either direction is the end of both.
pub type Line = Box<dyn dial::Connection>;

impl Client {
    /// Asks for a connection to a task. The path is below `/api/v1`.
    pub(super) async fn upgrade(&self, path: &str) -> Result<Line, Error> {
        let key = websocket::key();
        let headers = [
            (CONNECTION.as_str(), "Upgrade"),
            (UPGRADE.as_str(), "websocket"),
            (SEC_WEBSOCKET_VERSION.as_str(), "13"),
            (SEC_WEBSOCKET_KEY.as_str(), &key),
        ];
        let request = self.prepare(Method::GET, &format!("{ROOT}{path}"), Body::None, &headers)?;
        let exchange = async {
            // One of its own: it is not given back.
            let mut connection = Connection::open(&self.endpoint, self.connector.as_ref()).await?;
            let lost = |error| Error::Lost { source: Some(error) };
            let response = connection.send(request).await.map_err(|refused| lost(refused.error))?;
            let status = response.status();
            match status {
                StatusCode::SWITCHING_PROTOCOLS => {
                    let upgraded = hyper::upgrade::on(response).await.map_err(lost)?;
                    Ok(Box::new(websocket::over(TokioIo::new(upgraded)).await) as Line)
                }
                _ if status.is_success() => {
                    Err(Protocol::Status { status: status.as_u16(), excerpt: String::new() }.into())
                }
                _ => Err(refusal(status, &read_body(path, response).await?)),
            }
        };
        timeout(REPLY_DEADLINE, exchange).await.map_err(|_| Error::Silent { after: REPLY_DEADLINE })?
    }
}
