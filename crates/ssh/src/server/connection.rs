//! One connection of a peer, and the channels in it.

use std::collections::{BTreeMap, HashMap};

use russh::keys::PublicKey;
use russh::server::{Auth, ChannelOpenHandle, Handler, Msg, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, Sig};
use tokio::task::JoinSet;

use super::exec::{self, Signals};
use crate::keys;

/// A connection with more channels than this has lost count of them.
const MAX_CHANNELS: usize = 64;
/// Variables that a peer may set for its command; more is not an environment but an attack.
const MAX_VARIABLES: usize = 256;

/// A channel for which nothing was asked yet.
#[derive(Default)]
struct Waiting {
    channel: Option<Channel<Msg>>,
    env: BTreeMap<String, String>,
}

pub(super) struct Connection {
    authorized: PublicKey,
    waiting: HashMap<ChannelId, Waiting>,
    running: HashMap<ChannelId, Signals>,
    /// What runs; dropped with the connection. Processes go on, as they do under any sshd.
    pumps: JoinSet<()>,
}

impl Connection {
    pub fn new(authorized: PublicKey) -> Self {
        Self { authorized, waiting: HashMap::new(), running: HashMap::new(), pumps: JoinSet::new() }
    }

    /// Runs a command line, or a shell without one, on a channel.
    fn start(
        &mut self,
        id: ChannelId,
        line: Option<&[u8]>,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        while self.pumps.try_join_next().is_some() {}
        let asked = self.waiting.remove(&id);
        let Some((channel, env)) = asked.and_then(|asked| Some((asked.channel?, asked.env))) else {
            return session.channel_failure(id);
        };
        let (signals, pump) = exec::run(channel, session.handle(), line.map(<[u8]>::to_vec), env);
        self.running.insert(id, signals);
        self.pumps.spawn(pump);
        session.channel_success(id)
    }
}

impl Handler for Connection {
    type Error = russh::Error;

    async fn auth_publickey(&mut self, _user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        // There is one account in a task: whatever name is given means it.
        let is_member = keys::is_same(key.public_key, &self.authorized);
        Ok(if is_member { Auth::Accept } else { Auth::reject() })
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        // Dropped, the reply is a refusal.
        if self.waiting.len() + self.running.len() < MAX_CHANNELS {
            self.waiting.insert(channel.id(), Waiting { channel: Some(channel), ..Waiting::default() });
            reply.accept().await;
        }
        Ok(())
    }

    async fn env_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        value: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        match self.waiting.get_mut(&channel) {
            Some(waiting) if waiting.env.len() < MAX_VARIABLES && is_variable(name, value) => {
                waiting.env.insert(name.to_owned(), value.to_owned());
                session.channel_success(channel)
            }
            _ => session.channel_failure(channel),
        }
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        line: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.start(channel, Some(line), session)
    }

    async fn shell_request(&mut self, channel: ChannelId, session: &mut Session) -> Result<(), Self::Error> {
        self.start(channel, None, session)
    }

    async fn signal(
        &mut self,
        channel: ChannelId,
        signal: Sig,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        if let Some(signals) = self.running.get(&channel) {
            signals.send(&signal);
        }
        Ok(())
    }

    async fn channel_close(&mut self, channel: ChannelId, _session: &mut Session) -> Result<(), Self::Error> {
        self.waiting.remove(&channel);
        self.running.remove(&channel);
        Ok(())
    }
}

fn is_variable(name: &str, value: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
}
