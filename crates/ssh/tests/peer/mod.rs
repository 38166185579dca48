//! A peer in the same process: many channels in a connection, and many connections, cost no processes this way.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the way tests do")]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use muster_ssh::keys;
use russh::client::{self, AuthResult, Handle, Msg};
use russh::keys::{PrivateKeyWithHashAlg, PublicKeyOrCertificate};
use russh::{Channel, ChannelMsg};

/// Far above what anything here takes.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Trusts whoever answers: who that is, is not what is tested here.
pub struct Trusting;

impl client::Handler for Trusting {
    type Error = russh::Error;

    async fn check_server_key(&mut self, _: &PublicKeyOrCertificate) -> Result<bool, Self::Error> {
        Ok(true)
    }
}

/// A connection without a login.
pub async fn connect(port: u16) -> Handle<Trusting> {
    let config = client::Config { nodelay: true, ..client::Config::default() };
    client::connect(Arc::new(config), (Ipv4Addr::LOCALHOST, port), Trusting).await.unwrap()
}

/// Shows the key of the gang with this secret.
pub async fn log_in(peer: &mut Handle<Trusting>, secret: &str) -> AuthResult {
    let key = PrivateKeyWithHashAlg::new(Arc::new(keys::client(secret).unwrap()), None);
    peer.authenticate_publickey("anyone", key).await.unwrap()
}

/// A member of the gang.
pub async fn member(port: u16) -> Handle<Trusting> {
    let mut peer = connect(port).await;
    assert!(log_in(&mut peer, "secret").await.success());
    peer
}

/// A channel on which a command runs.
pub async fn exec(peer: &Handle<Trusting>, line: &str) -> Channel<Msg> {
    let mut channel = peer.channel_open_session().await.unwrap();
    channel.exec(true, line).await.unwrap();
    loop {
        match channel.wait().await {
            Some(ChannelMsg::Success) => return channel,
            Some(ChannelMsg::Failure) | None => panic!("{line} was refused"),
            Some(_) => {}
        }
    }
}

/// What a command writes until its end, and its status.
pub async fn finish(channel: &mut Channel<Msg>) -> (Vec<u8>, Option<u32>) {
    let (mut output, mut status) = (Vec::new(), None);
    let reading = async {
        while let Some(message) = channel.wait().await {
            match message {
                ChannelMsg::Data { data } => output.extend_from_slice(&data),
                ChannelMsg::ExitStatus { exit_status } => status = Some(exit_status),
                ChannelMsg::Close => break,
                _ => {}
            }
        }
    };
    tokio::time::timeout(DEADLINE, reading).await.expect("the command ends");
    (output, status)
}

/// Runs something that waits, to its end.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}
