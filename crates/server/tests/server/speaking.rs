//! Agents that are played by a test: they greet, and do what they are told by word alone.

use std::path::PathBuf;

use muster_api::model::Timestamp;
use muster_api::model::node::{Account, Capacity};
use muster_api::model::task::{Address, TaskEnd};
use muster_engine::Seat;
use muster_link::control::{self, Received};
use muster_link::dial::{Channel, Server, dial};
use muster_link::message::{Hello, PROTOCOL, ToAgent, ToServer};
use muster_link::session::{self, Side};
use tokio::io::{AsyncWriteExt, BufReader};

/// What an agent does besides greeting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Manner {
    /// It never gets anything done, and stays.
    Greets,
    /// It has every task run and end well, and ends when it is told to.
    Works,
}

pub async fn agent(socket: PathBuf, seat: Seat, manner: Manner) {
    let connection = dial(&Server::Unix(socket), Channel::Control, &seat.node, &seat.token).await.unwrap();
    let (opener, _incoming, driver) = session::start(connection, Side::Agent);
    let conversation = async {
        let mut stream = BufReader::new(opener.open().await.unwrap());
        let mut answers = vec![ToServer::Hello(Box::new(hello(&seat)))];
        loop {
            for answer in answers.drain(..) {
                control::send(&mut stream, &answer).await.unwrap();
            }
            stream.flush().await.unwrap();
            let Ok(Some(received)) = control::receive::<ToAgent>(&mut stream).await else { return };
            let Received::Message(message) = received else { continue };
            if matches!(message, ToAgent::Shutdown) && manner == Manner::Works {
                return;
            }
            answers = answer(message, manner);
        }
    };
    tokio::select! {
        () = conversation => {}
        _ = driver => {}
    }
}

fn answer(message: ToAgent, manner: Manner) -> Vec<ToServer> {
    match message {
        ToAgent::Ping => vec![ToServer::Ping],
        ToAgent::Prepare(prepare) if manner == Manner::Works => {
            let address = Address::new([127, 0, 0, 1], vec![4000]);
            vec![ToServer::Ready { task: prepare.task, address }]
        }
        ToAgent::Launch(launch) if manner == Manner::Works => {
            let (task, at, end) = (launch.task, Timestamp::now(), TaskEnd::new(None, Some(0)));
            vec![ToServer::Started { task: task.clone(), at }, ToServer::Ended { task, end, at }]
        }
        _ => Vec::new(),
    }
}

fn hello(seat: &Seat) -> Hello {
    Hello {
        protocol: PROTOCOL,
        version: "0".into(),
        build: "test".into(),
        node: seat.node.clone(),
        incarnation: "one".into(),
        pid: 1,
        host: "n1".into(),
        capacity: Capacity { cpu_millis: 4000, memory_bytes: 1 << 30, slots: 2, devices: Vec::new() },
        account: Account { name: "root".into(), uid: 0, gid: 0, home: "/root".into() },
        tasks: Vec::new(),
    }
}
