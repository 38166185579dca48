//! One connection of a peer, and the channels in it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use russh::keys::PublicKey;
use russh::server::{Auth, ChannelOpenHandle, Handler, Msg, PublicKeyOffer, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, Pty, Sig};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use super::agent::Agent;
use super::backlog::Backlog;
use super::exec::{self, Control, Order};
use super::forward::{Forwards, Place};
use super::pty::{self, Terminal};
use super::sftp;
use super::shell::{Variables, Way};
use crate::keys;

/// A connection with more channels than this has lost count of them.
const MAX_CHANNELS: usize = 512;

/// For what a peer has still said before it left.
const GRACE: Duration = Duration::from_secs(5);

/// A channel for which nothing was asked yet.
struct Waiting {
    channel: Channel<Msg>,
    variables: Variables,
    terminal: Option<Terminal>,
}

/// A channel with a command.
struct Running {
    control: Control,
    pump: AbortHandle,
}

pub(super) struct Connection {
    authorized: PublicKey,
    way: Option<Way>,
    /// Told when the peer has shown its key.
    is_known: watch::Sender<bool>,
    backlog: Backlog,
    waiting: HashMap<ChannelId, Waiting>,
    running: HashMap<ChannelId, Running>,
    /// What runs; dropped with the connection.
    pumps: JoinSet<()>,
    forwards: Forwards,
    agent: Agent,
}

impl Connection {
    pub fn new(
        authorized: PublicKey,
        way: Option<Way>,
        is_known: watch::Sender<bool>,
        backlog: Backlog,
        door: Option<Arc<Path>>,
    ) -> Self {
        let (forwards, agent) = (Forwards::new(backlog.clone(), door), Agent::new(backlog.clone()));
        let (waiting, running, pumps) = Default::default();
        Self { authorized, way, is_known, backlog, waiting, running, pumps, forwards, agent }
    }

    fn is_full(&mut self) -> bool {
        while self.pumps.try_join_next().is_some() {}
        self.running.retain(|_, running| !running.pump.is_finished());
        self.waiting.len() + self.pumps.len() >= MAX_CHANNELS
    }

    /// Runs a command line, or a shell without one, on a channel.
    fn start(
        &mut self,
        id: ChannelId,
        line: Option<&[u8]>,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        let Some(Waiting { channel, variables, terminal }) = self.waiting.remove(&id) else {
            return session.channel_failure(id);
        };
        let share = self.backlog.share();
        let order = Order { line: line.map(<[u8]>::to_vec), variables, terminal, way: self.way, share };
        let (control, pump) = exec::start(channel, session.handle(), order);
        let pump = self.pumps.spawn(pump);
        self.running.insert(id, Running { control, pump });
        session.channel_success(id)
    }

    /// A channel that still waits to be asked for something. What it is told is told to us as well, and nobody reads it there:
    /// it is taken away, since a connection whose channel is full stands still.
    async fn asked(&mut self, id: ChannelId) -> Option<&mut Waiting> {
        let waiting = self.waiting.get_mut(&id)?;
        loop {
            tokio::select! {
                biased;
                Some(_) = waiting.channel.wait() => {}
                () = std::future::ready(()) => return Some(waiting),
            }
        }
    }
}

fn answer(session: &mut Session, id: ChannelId, is_done: bool) -> Result<(), russh::Error> {
    if is_done { session.channel_success(id) } else { session.channel_failure(id) }
}

impl Handler for Connection {
    type Error = russh::Error;

    async fn auth_publickey_offered(
        &mut self,
        _user: &str,
        offer: PublicKeyOffer<'_>,
    ) -> Result<Auth, Self::Error> {
        let is_known = keys::is_same(offer.public_key, &self.authorized);
        Ok(if is_known { Auth::Accept } else { Auth::reject() })
    }

    async fn auth_publickey(&mut self, _user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        // There is one account in a task: whatever name is given means it.
        let is_known = keys::is_same(key.public_key, &self.authorized);
        Ok(if is_known { Auth::Accept } else { Auth::reject() })
    }

    async fn auth_succeeded(&mut self, _session: &mut Session) -> Result<(), Self::Error> {
        self.is_known.send_replace(true);
        Ok(())
    }

    fn adjust_window(&mut self, _channel: ChannelId, _current: u32) -> u32 {
        self.backlog.window()
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        // Dropped, the reply is a refusal.
        if !self.is_full() {
            let waiting = Waiting { channel, variables: Variables::default(), terminal: None };
            self.waiting.insert(waiting.channel.id(), waiting);
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
        let is_set = self.asked(channel).await.is_some_and(|waiting| waiting.variables.set(name, value));
        answer(session, channel, is_set)
    }

    async fn pty_request(
        &mut self,
        channel: ChannelId,
        term: &str,
        columns: u32,
        rows: u32,
        width: u32,
        height: u32,
        modes: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let size = pty::size(columns, rows, width, height);
        let is_open = match self.asked(channel).await {
            Some(waiting) if waiting.terminal.is_none() => {
                waiting.terminal = Terminal::open(term, size, modes).ok();
                waiting.terminal.is_some()
            }
            _ => false,
        };
        answer(session, channel, is_open)
    }

    async fn x11_request(
        &mut self,
        channel: ChannelId,
        _is_single: bool,
        _protocol: &str,
        _cookie: &str,
        _screen: u32,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.asked(channel).await;
        session.channel_failure(channel)
    }

    async fn window_change_request(
        &mut self,
        channel: ChannelId,
        columns: u32,
        rows: u32,
        width: u32,
        height: u32,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let size = pty::size(columns, rows, width, height);
        if let Some(running) = self.running.get(&channel) {
            running.control.resize(size);
        } else if let Some(terminal) = self.asked(channel).await.and_then(|waiting| waiting.terminal.as_ref())
        {
            // One that is gone has no size.
            let _ = terminal.pty.resize(size);
        }
        session.channel_success(channel)
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

    async fn subsystem_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        match self.waiting.remove(&channel) {
            Some(waiting) if name == "sftp" => {
                self.pumps.spawn(sftp::serve(waiting.channel));
                session.channel_success(channel)
            }
            _ => session.channel_failure(channel),
        }
    }

    async fn agent_request(
        &mut self,
        channel: ChannelId,
        session: &mut Session,
    ) -> Result<bool, Self::Error> {
        let socket = self.agent.socket(session.handle()).ok().map(|path| path.display().to_string());
        let Some(waiting) = self.asked(channel).await else { return Ok(false) };
        Ok(socket.is_some_and(|path| waiting.variables.set("SSH_AUTH_SOCK", &path)))
    }

    async fn signal(
        &mut self,
        channel: ChannelId,
        signal: Sig,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        if let Some(running) = self.running.get(&channel) {
            running.control.signal(&signal);
        }
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _from: &str,
        _from_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.forwards.connect_port(channel, host, port, reply);
        Ok(())
    }

    async fn channel_open_direct_streamlocal(
        &mut self,
        channel: Channel<Msg>,
        path: &str,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.forwards.connect_socket(channel, path, reply);
        Ok(())
    }

    async fn tcpip_forward(
        &mut self,
        address: &str,
        port: &mut u32,
        session: &mut Session,
    ) -> Result<bool, Self::Error> {
        let bound = self.forwards.listen(address, *port, session.handle()).await;
        *port = *bound.as_ref().unwrap_or(port);
        Ok(bound.is_ok())
    }

    async fn cancel_tcpip_forward(
        &mut self,
        address: &str,
        port: u32,
        _session: &mut Session,
    ) -> Result<bool, Self::Error> {
        Ok(self.forwards.cancel(&Place::Tcp { address: address.to_owned(), port }))
    }

    async fn streamlocal_forward(&mut self, path: &str, session: &mut Session) -> Result<bool, Self::Error> {
        Ok(self.forwards.listen_at(path, session.handle()).is_ok())
    }

    async fn cancel_streamlocal_forward(
        &mut self,
        path: &str,
        _session: &mut Session,
    ) -> Result<bool, Self::Error> {
        Ok(self.forwards.cancel(&Place::Unix { path: path.to_owned() }))
    }

    async fn channel_close(&mut self, channel: ChannelId, _session: &mut Session) -> Result<(), Self::Error> {
        self.waiting.remove(&channel);
        if let Some(Running { pump, .. }) = self.running.remove(&channel) {
            // It has heard of it too, and ends when what came before was taken. If that is never, it is not to last as long
            // as the connection.
            self.pumps.spawn(async move {
                tokio::time::sleep(GRACE).await;
                pump.abort();
            });
        }
        Ok(())
    }
}
