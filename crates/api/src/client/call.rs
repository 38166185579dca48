//! Calls on tasks: a connection that becomes the caller's own.

use hyper::StatusCode;
use hyper::header::{CONNECTION, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use hyper_util::rt::TokioIo;
use muster_link::dial;
use muster_link::websocket;

use super::{Body, Client, Error, Method, Protocol, ROOT, in_time, read_body, refusal};

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
        let request = self.route.prepare(Method::GET, &format!("{ROOT}{path}"), Body::None, &headers)?;
        let lost = |error| Error::Lost { source: Some(error) };
        let sending = async {
            // One of its own: it is not given back.
            let mut connection = self.route.connect().await?;
            let response = connection.send(request).await.map_err(|refused| lost(refused.error))?;
            Ok((response, connection))
        };
        let (response, _connection) = self.route.answered(sending).await?;
        let status = response.status();
        match status {
            StatusCode::SWITCHING_PROTOCOLS => {
                let upgraded = in_time(async { hyper::upgrade::on(response).await.map_err(lost) }).await?;
                Ok(Box::new(websocket::over(TokioIo::new(upgraded)).await))
            }
            _ if status.is_success() => {
                Err(Protocol::Status { status: status.as_u16(), excerpt: String::new() }.into())
            }
            _ => Err(refusal(status, &in_time(read_body(path, response)).await?)),
        }
    }
}
