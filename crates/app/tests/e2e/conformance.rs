//! The suite that every engine passes, on the local engine with the real binary.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use muster_engine::conformance::{self, Home as Suite};
use muster_engine::local::{Local, Options};
use muster_link::message::{Keep, PROTOCOL, ToAgent, ToServer};
use muster_link::session::{self, Side};
use muster_link::{control, websocket};
use muster_model::NodeId;
use muster_testkit::{is_alive, kill, wait_for};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};

use crate::home;

const TOKEN: &str = "the token of this test";

/// Where agents dial home to: takes their connections and hears who they are.
struct Gate {
    hellos: mpsc::Receiver<(NodeId, u32)>,
    _doorman: JoinSet<()>,
}

impl Gate {
    fn open(listener: UnixListener) -> Self {
        let (sender, hellos) = mpsc::channel(16);
        let mut doorman = JoinSet::new();
        doorman.spawn(async move {
            let mut visitors = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                visitors.spawn(welcome(stream, sender.clone()));
            }
        });
        Self { hellos, _doorman: doorman }
    }
}

/// Stays with an agent for as long as it does.
async fn welcome(stream: UnixStream, hellos: mpsc::Sender<(NodeId, u32)>) {
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
        control::send(&mut stream, &ToAgent::Welcome { protocol: PROTOCOL, keep: Keep::default() })
            .await
            .expect("it hears us");
        stream.flush().await.expect("it hears us");
        hellos.send((hello.node.clone(), hello.pid)).await.expect("the test listens");
        while let Ok(Some(_)) = control::receive::<ToServer>(&mut stream).await {}
    };
    tokio::select! {
        () = conversation => {}
        _ = driver => {}
    }
}

#[async_trait]
impl Suite for Gate {
    fn token(&self, _: &NodeId) -> String {
        TOKEN.into()
    }

    async fn next_hello(&mut self, node: &NodeId) -> u32 {
        loop {
            let (said, pid) = self.hellos.recv().await.expect("the gate is open");
            assert_eq!(said, *node);
            // One that was killed may have dialled twice before.
            if is_alive(pid) {
                return pid;
            }
        }
    }

    async fn kill_agent(&mut self, _: &NodeId, pid: u32) {
        kill(pid);
    }
}

#[test]
fn the_local_engine_conforms() {
    let home = home();
    std::fs::create_dir(home.path()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut gate = Gate::open(UnixListener::bind(home.path().join("server.sock")).unwrap());
        let arguments = ["agent", "--home", home.path().to_str().unwrap()].map(str::to_owned).to_vec();
        let exe = env!("CARGO_BIN_EXE_muster").into();
        let engine = Local::new(Options { dir: home.path().join("node"), exe, arguments, binary: || None });
        conformance::run(&engine, &mut gate).await;
    });
    wait_for("the agent's process to go", || home.processes().is_empty());
}
