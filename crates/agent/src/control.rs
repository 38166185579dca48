//! The control connection: it says hello, then carries messages both ways until it is lost, and begins again.
//!
//! It decides nothing. What arrives is handed on one by one, and the next message is not read before the last was
//! taken; what is to be sent waits in a short queue. So neither side can make the other hoard.

use std::io;
use std::time::Duration;

use muster_link::control::{Received, receive, send};
use muster_link::message::{Hello, Keep, ToAgent, ToServer, Volume};
use muster_link::session::{self, Opener, Side, Stream};
use tokio::io::{AsyncWrite, AsyncWriteExt, BufReader, BufWriter, ReadHalf, WriteHalf, split};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::dialer::{Connected, Dialer};

/// A third of the silence after which a peer is given up.
const PING: Duration = Duration::from_secs(5);
/// Messages on their way out; more are kept as the state of tasks, where they take no room.
const QUEUE: usize = 64;

/// What the connection brings.
#[derive(Debug)]
pub(crate) enum Event {
    /// There is a connection, and it wants to know what to say first. Then it takes messages.
    Connected {
        hello: oneshot::Sender<Box<Hello>>,
        outbound: mpsc::Sender<ToServer>,
    },
    /// The server has accepted this agent, and says how much the node may keep, and what tasks are to have.
    Welcomed {
        keep: Keep,
        volumes: Vec<Volume>,
    },
    Message(Box<ToAgent>),
    /// The server said something that only newer agents know.
    Unknown {
        kind: String,
    },
    Lost,
}

/// Keeps the control connection.
#[derive(Debug)]
pub(crate) struct Control {
    dialer: Dialer,
    events: mpsc::Sender<Event>,
}

impl Control {
    /// To be run, with the end where its events come out.
    pub(crate) fn new(dialer: Dialer) -> (Control, mpsc::Receiver<Event>) {
        let (sender, receiver) = mpsc::channel(1);
        (Control { dialer, events: sender }, receiver)
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        while !self.events.is_closed() {
            let Connected { io, pulse } = self.dialer.connect().await;
            let since = Instant::now();
            let (opener, _incoming, driver) = session::start(io, Side::Agent);
            let mut welcomed = false;
            let ended = tokio::select! {
                ended = converse(&opener, &self.events, &mut welcomed) => ended,
                ended = driver => ended.and(Err(io::ErrorKind::ConnectionAborted.into())),
                () = pulse.silence() => Err(io::Error::new(io::ErrorKind::TimedOut, "the server fell silent")),
                () = self.dialer.superseded() => Err(io::Error::other("the server has come anew")),
            };
            if let Err(error) = ended {
                tracing::info!(error = %error, welcomed, "the connection to the server is gone");
            }
            let _ = self.events.send(Event::Lost).await;
            self.dialer.lost(since);
        }
    }
}

async fn converse(opener: &Opener, events: &mpsc::Sender<Event>, welcomed: &mut bool) -> io::Result<()> {
    let (reader, writer) = split(opener.open().await?);
    let (mut reader, mut writer) = (BufReader::new(reader), BufWriter::new(writer));
    let (hello, said) = oneshot::channel();
    let (outbound, messages) = mpsc::channel(QUEUE);
    hand_on(events, Event::Connected { hello, outbound }).await?;
    let hello = said.await.map_err(io::Error::other)?;
    send(&mut writer, &ToServer::Hello(hello)).await?;
    writer.flush().await?;
    match receive::<ToAgent>(&mut reader).await? {
        Some(Received::Message(ToAgent::Welcome { protocol, keep, volumes })) => {
            tracing::info!(protocol, "the server has welcomed this agent");
            *welcomed = true;
            hand_on(events, Event::Welcomed { keep, volumes }).await?;
        }
        _ => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the server's first message is no welcome",
            ));
        }
    }
    tokio::try_join!(listen(reader, events), speak(writer, messages)).map(|_| ())
}

async fn listen(mut reader: BufReader<ReadHalf<Stream>>, events: &mpsc::Sender<Event>) -> io::Result<()> {
    loop {
        let event = match receive::<ToAgent>(&mut reader).await? {
            Some(Received::Message(ToAgent::Ping)) => continue,
            Some(Received::Message(message)) => Event::Message(Box::new(message)),
            Some(Received::Unknown { kind }) => Event::Unknown { kind },
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        };
        hand_on(events, event).await?;
    }
}

async fn speak(
    mut writer: BufWriter<WriteHalf<Stream>>,
    mut messages: mpsc::Receiver<ToServer>,
) -> io::Result<()> {
    loop {
        let message = match tokio::time::timeout(PING, messages.recv()).await {
            Ok(Some(message)) => message,
            Ok(None) => return Err(io::ErrorKind::ConnectionAborted.into()),
            Err(_) => ToServer::Ping,
        };
        send(&mut writer, &message).await?;
        say_rest(&mut writer, &mut messages).await?;
    }
}

/// All that waits goes out together.
async fn say_rest(
    writer: &mut (impl AsyncWrite + Unpin),
    messages: &mut mpsc::Receiver<ToServer>,
) -> io::Result<()> {
    while let Ok(message) = messages.try_recv() {
        send(writer, &message).await?;
    }
    writer.flush().await
}

async fn hand_on(events: &mpsc::Sender<Event>, event: Event) -> io::Result<()> {
    events.send(event).await.map_err(|_| io::ErrorKind::ConnectionAborted.into())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use muster_link::dial::Channel;
    use muster_link::message::PROTOCOL;
    use muster_model::node::Capacity;

    use super::*;
    use crate::far_end::FarEnd;

    fn hello() -> Box<Hello> {
        Box::new(Hello {
            protocol: PROTOCOL,
            version: String::new(),
            build: String::new(),
            node: "node_test".parse().unwrap(),
            incarnation: String::new(),
            pid: 1,
            host: String::new(),
            capacity: Capacity::default(),
            account: Default::default(),
            tasks: vec![],
        })
    }

    /// The server's side of one connection: it welcomes, and says a ping for each of ours as long as it is told to.
    async fn welcome(peer: &FarEnd, pings: usize) -> usize {
        let (mut incoming, driver) = peer.accept().await;
        let heard = Cell::new(0);
        let talk = async {
            let (reader, mut writer) = split(incoming.next().await.unwrap());
            let mut reader = BufReader::new(reader);
            assert!(matches!(receive(&mut reader).await, Ok(Some(Received::Message(ToServer::Hello(_))))));
            send(
                &mut writer,
                &ToAgent::Welcome { protocol: PROTOCOL, keep: Keep::default(), volumes: Vec::new() },
            )
            .await
            .unwrap();
            writer.flush().await.unwrap();
            while let Ok(Some(Received::Message(ToServer::Ping))) = receive(&mut reader).await {
                heard.set(heard.get() + 1);
                if heard.get() <= pings {
                    send(&mut writer, &ToAgent::Ping).await.unwrap();
                    writer.flush().await.unwrap();
                }
            }
        };
        tokio::select! { () = talk => {}, _ = driver => {} }
        heard.get()
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_kept_by_pings_and_a_silent_peer_is_given_up() {
        let peer = FarEnd::new();
        let (control, mut events) = Control::new(peer.dialer(Channel::Control));
        let since = Instant::now();
        let service = async {
            let mut outbound = None;
            while let Some(event) = events.recv().await {
                match event {
                    Event::Connected { hello: asked, outbound: open } => {
                        asked.send(hello()).unwrap();
                        outbound = Some(open);
                    }
                    Event::Welcomed { .. } => {}
                    Event::Lost => return (since.elapsed(), outbound.take()),
                    event => panic!("{event:?}"),
                }
            }
            panic!("the connection ended without a word")
        };
        let (lost, heard) = tokio::select! {
            () = control.run() => panic!("it never ends"),
            ended = async { tokio::join!(service, welcome(&peer, 6)) } => (ended.0.0, ended.1),
        };
        // Six pings are answered, one every five seconds; then there is silence for fifteen.
        assert!((44..=47).contains(&lost.as_secs()), "{lost:?}");
        assert!((8..=9).contains(&heard), "{heard}");
    }
}
