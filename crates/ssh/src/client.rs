//! The other side of the [`server`](crate::server): a connection to a task, and what is done over it.
//!
//! It speaks over bytes that somebody else has brought to the task, and who brought them there knows where that is: the
//! host's key says nothing more, and is not asked about.

mod greedy;
mod process;
mod tunnel;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use russh::client::{AuthResult, Config, Handle, Handler, Msg};
use russh::keys::PrivateKeyWithHashAlg;
use russh::keys::ssh_key::Algorithm;
use russh::{ChannelOpenFailure, Preferred, SshId, cipher, compression, kex};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use self::greedy::Greedy;
pub use self::process::{Command, Event, Input, Output, Signal, Window};
pub use self::tunnel::{Ended, pipe};
use crate::gang::DOOR;
use crate::keys::PrivateKey;

/// A task that has not let us in by then will not.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// How often a silent task is asked whether it is still there, and how often in vain: half a minute's outage is survived.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_MAX: usize = 4;
/// There is one account in a task; its name does not matter.
const USER: &str = "muster";

/// Why something over the connection failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection broke, or never became one.
    #[error("the connection broke")]
    Lost(#[source] Option<russh::Error>),
    /// The task did not answer the handshake.
    #[error("the handshake was not over after {} seconds", HANDSHAKE.as_secs())]
    Silent,
    /// The key is not the one that the task lets in.
    #[error("the key is refused")]
    KeyRefused,
    /// What was asked for is not to be had.
    #[error("{what} is refused")]
    Refused {
        /// What was asked for.
        what: &'static str,
    },
    /// Nothing listens where a connection was to go.
    #[error("nothing listens there")]
    NobodyListens,
}

impl Error {
    fn lost(error: russh::Error) -> Self {
        Self::Lost(Some(error))
    }

    fn of_opening(what: &'static str, error: russh::Error) -> Self {
        match error {
            russh::Error::ChannelOpenFailure(ChannelOpenFailure::ConnectFailed) => Self::NobodyListens,
            russh::Error::ChannelOpenFailure(_) => Self::Refused { what },
            other => Self::lost(other),
        }
    }

    /// Whether the connection is gone, rather than something refused over one that is well.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Silent)
    }
}

/// Bytes both ways within a connection, and what is said about them.
pub type Channel = russh::Channel<Msg>;

/// A connection to a task. Dropped, it ends.
pub struct Client {
    handle: Handle<Host>,
}

impl Client {
    /// Speaks SSH over these bytes, and shows this key.
    pub async fn connect<S>(stream: S, key: Arc<PrivateKey>) -> Result<Client, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connecting = async {
            let connected =
                russh::client::connect_stream(Arc::new(config()), Greedy::new(stream), Host).await;
            let mut handle = connected.map_err(Error::lost)?;
            let key = PrivateKeyWithHashAlg::new(key, None);
            match handle.authenticate_publickey(USER, key).await.map_err(Error::lost)? {
                AuthResult::Success => Ok(Client { handle }),
                // It says so too when the connection went away in the middle of it.
                AuthResult::Failure { .. } if handle.is_closed() => Err(Error::Lost(None)),
                AuthResult::Failure { .. } => Err(Error::KeyRefused),
            }
        };
        timeout(HANDSHAKE, connecting).await.unwrap_or(Err(Error::Silent))
    }

    /// A channel for a command or a subsystem.
    pub async fn session(&self) -> Result<Channel, Error> {
        let opened = self.handle.channel_open_session().await;
        opened.map_err(|error| Error::of_opening("another channel", error))
    }

    /// A subsystem's bytes, such as `sftp`'s.
    pub async fn subsystem(
        &self,
        name: &'static str,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + 'static, Error> {
        let mut channel = self.session().await?;
        channel.request_subsystem(true, name).await.map_err(Error::lost)?;
        loop {
            match channel.wait().await {
                Some(russh::ChannelMsg::Success) => return Ok(channel.into_stream()),
                Some(russh::ChannelMsg::Failure) => return Err(Error::Refused { what: name }),
                Some(_) => {}
                None => return Err(Error::Lost(None)),
            }
        }
    }

    /// A call at the door of a member of our gang.
    pub async fn door(&self) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<>, Error> {
        let opened = self.handle.channel_open_direct_streamlocal(DOOR).await;
        Ok(opened.map_err(|error| Error::of_opening("its door", error))?.into_stream())
    }

    /// Whether nothing more can be done over it.
    pub fn is_closed(&self) -> bool {
        self.handle.is_closed()
    }
}

/// What the connection's other side may ask of us: nothing.
struct Host;

impl Handler for Host {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        _key: &russh::keys::PublicKeyOrCertificate,
    ) -> Result<bool, Self::Error> {
        Ok(true)
    }
}

/// One choice of each kind, all of which the server has: the way there is short, and every choice costs time on it.
fn config() -> Config {
    Config {
        client_id: SshId::Standard("SSH-2.0-muster".into()),
        preferred: Preferred {
            kex: Cow::Borrowed(&[
                kex::CURVE25519,
                kex::EXTENSION_SUPPORT_AS_CLIENT,
                kex::EXTENSION_OPENSSH_STRICT_KEX_AS_CLIENT,
            ]),
            key: Cow::Borrowed(&[Algorithm::Ed25519]),
            cipher: Cow::Borrowed(&[cipher::AES_256_GCM, cipher::CHACHA20_POLY1305]),
            compression: Cow::Borrowed(&[compression::NONE]),
            ..Preferred::DEFAULT
        },
        keepalive_interval: Some(KEEPALIVE),
        keepalive_max: KEEPALIVE_MAX,
        inactivity_timeout: None,
        nodelay: true,
        ..Config::default()
    }
}

#[cfg(test)]
mod tests;
