//! For tests: the other end of a connection, on a socket of its own.

use std::path::PathBuf;

use muster_link::dial::{Channel, Server};
use muster_link::session::{self, Incoming, Side};
use muster_link::websocket;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::watch;

use crate::Options;
use crate::dialer::Dialer;

/// A server that accepts connections one by one.
pub(crate) struct FarEnd {
    listener: UnixListener,
    options: Options,
    _home: TempDir,
}

impl FarEnd {
    pub(crate) fn new() -> FarEnd {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("socket");
        let token = home.path().join("token");
        std::fs::write(&token, "token").unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        let node = "node_test".parse().unwrap();
        let exe = PathBuf::from("/bin/false");
        let options = Options::new(home.path().join("agent"), node, Server::Unix(socket), token, exe);
        FarEnd { listener, options, _home: home }
    }

    pub(crate) fn dialer(&self, channel: Channel) -> Dialer {
        Dialer::new(&self.options, channel, watch::channel(()).1).unwrap()
    }

    /// The next connection: its streams, and what moves its bytes.
    pub(crate) async fn accept(&self) -> (Incoming, impl Future<Output = std::io::Result<()>> + use<>) {
        let (stream, _) = self.listener.accept().await.unwrap();
        let socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        let (_opener, incoming, driver) = session::start(websocket::client(socket), Side::Server);
        (incoming, driver)
    }
}
