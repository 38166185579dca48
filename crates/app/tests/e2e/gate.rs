//! A home for agents without a server: it takes their connections and hears who they are.

use std::sync::{Arc, Mutex};

use muster_engine::AgentBinary;
use muster_link::message::{Hello, Keep, PROTOCOL, ToAgent, ToServer};
use muster_link::session::{self, Side};
use muster_link::{control, websocket};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};

/// What agents must show.
pub const TOKEN: &str = "the token of this test";

/// Where agents dial home to.
pub struct Gate {
    pub hellos: mpsc::Receiver<Hello>,
    /// What agents of another build are asked to change over to.
    pub wanted: Arc<Mutex<Option<AgentBinary>>>,
    _doorman: JoinSet<()>,
}

impl Gate {
    pub fn open(listener: UnixListener) -> Self {
        let (sender, hellos) = mpsc::channel(16);
        let wanted = Arc::new(Mutex::new(None));
        let asked = wanted.clone();
        let mut doorman = JoinSet::new();
        doorman.spawn(async move {
            let mut visitors = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                visitors.spawn(welcome(stream, sender.clone(), asked.clone()));
            }
        });
        Self { hellos, wanted, _doorman: doorman }
    }
}

/// Stays with an agent for as long as it does.
async fn welcome(stream: UnixStream, hellos: mpsc::Sender<Hello>, wanted: Arc<Mutex<Option<AgentBinary>>>) {
    let asked = Arc::new(Mutex::new((String::new(), String::new())));
    let noted = asked.clone();
    let callback = move |request: &Request, response: Response| {
        let shown = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        *noted.lock().expect("nobody panics with it") =
            (request.uri().to_string(), shown.unwrap_or_default().to_owned());
        Ok(response)
    };
    let Ok(socket) = tokio_tungstenite::accept_hdr_async(stream, callback).await else { return };
    let (uri, shown) = asked.lock().expect("nobody panics with it").clone();
    assert_eq!(shown, format!("Bearer {TOKEN}"));
    let (_opener, mut incoming, driver) = session::start(websocket::client(socket), Side::Server);
    let conversation = async {
        if !uri.contains("channel=control") {
            return std::future::pending().await;
        }
        let mut stream = BufReader::new(incoming.next().await.expect("the agent opens a stream"));
        let Ok(Some(control::Received::Message(ToServer::Hello(hello)))) =
            control::receive(&mut stream).await
        else {
            panic!("an agent says hello first");
        };
        let wanted = wanted.lock().expect("nobody panics with it").clone();
        let mut messages =
            vec![ToAgent::Welcome { protocol: PROTOCOL, keep: Keep::default(), volumes: Vec::new() }];
        messages.extend(
            wanted
                .filter(|wanted| wanted.build != hello.build)
                .map(|wanted| ToAgent::Upgrade { path: wanted.path }),
        );
        for message in messages {
            control::send(&mut stream, &message).await.expect("it hears us");
        }
        stream.flush().await.expect("it hears us");
        hellos.send(*hello).await.expect("the test listens");
        while let Ok(Some(_)) = control::receive::<ToServer>(&mut stream).await {}
    };
    tokio::select! {
        () = conversation => {}
        _ = driver => {}
    }
}
