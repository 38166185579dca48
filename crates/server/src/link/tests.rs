//! Streams on a connection that breaks, a lane's log above all. The agent is the test.

use futures::FutureExt as _;
use muster_engine::local;
use muster_link::frame;
use muster_link::log::{Appender, Header};
use muster_link::message::{LogHave, PROTOCOL, StreamHeader};
use muster_model::array::Mark;
use muster_model::node::Capacity;
use muster_model::spec::JobSpec;
use muster_model::task::Address;
use muster_model::{AttemptId, TaskId};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::task::{AbortHandle, yield_now};
use tokio::time::Instant;

use super::*;
use crate::core::Submission;
use crate::service::{Unserved, local_options};

const CONNECTION: ConnectionId = ConnectionId(1);
/// Polls that let every task that was woken run, without waiting: paused time stands still meanwhile.
const POLLS: usize = 100;

/// A lane that runs the first element of its array, and was given no other.
struct Lane {
    server: Unserved,
    messages: mpsc::Receiver<ToAgent>,
    task: TaskId,
    _home: tempfile::TempDir,
}

/// A stream over a connection of its own.
struct BulkStream {
    stream: BufReader<Stream>,
    /// The agent's end of the connection, then the server's.
    connection: AbortHandle,
    work: JoinSet<io::Result<()>>,
}

fn node() -> NodeId {
    local::NODE.parse().unwrap()
}

fn hello() -> Hello {
    Hello {
        protocol: PROTOCOL,
        version: "1".into(),
        build: "build".into(),
        node: node(),
        incarnation: "a".into(),
        pid: 1,
        host: "host".into(),
        capacity: Capacity { cpu_millis: 4000, memory_bytes: 1 << 30, slots: 4, devices: Vec::new() },
        account: Default::default(),
        tasks: Vec::new(),
    }
}

impl Lane {
    async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let server = Unserved::start(local_options(home.path())).await.unwrap();
        let core = &server.shared.core;
        let (outbox, messages) = mpsc::channel(100);
        let connected =
            Input::AgentConnected { connection: CONNECTION, hello: Box::new(hello()), outbox, is_tcp: false };
        core.tell(connected).await.unwrap();
        let submission = Submission {
            spec: JobSpec::from_value(json!({ "array": "0-99%1", "command": ["true"] })).unwrap(),
            owner: "me".into(),
            bundle: None,
            source: None,
            environment: None,
            idempotency: None,
            sight: muster_store::Sight::All,
        };
        let job = core.ask(|reply| Input::Submit(Box::new(submission), reply)).await.unwrap();
        let task = AttemptId { job, number: 1 }.task(0);
        let address = Address::new([127, 64, 0, 1], vec![4000]);
        for message in [
            ToServer::Ready { task: task.clone(), address },
            ToServer::Started { task: task.clone(), at: crate::core::now() },
        ] {
            core.tell(Input::AgentSaid { connection: CONNECTION, node: node(), message }).await.unwrap();
        }
        Self { server, messages, task, _home: home }
    }

    /// Opens the stream, and reads how much of the log the server has.
    async fn open_log(&self) -> (BulkStream, u64) {
        let mut log = self.open(&StreamHeader::Log { task: self.task.clone() }).await;
        let said = control::receive(&mut log.stream).await.unwrap();
        let Some(Received::Message(LogHave { offset })) = said else {
            panic!("the server says what it has");
        };
        (log, offset)
    }

    async fn open(&self, header: &StreamHeader) -> BulkStream {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let (opener, _incoming, driver) = session::start(ours, Side::Agent);
        let mut work = JoinSet::new();
        let shared = self.server.shared.clone();
        work.spawn(async move { serve_bulk(&shared, &node(), theirs).await });
        let connection = work.spawn(driver);
        let mut stream = BufReader::new(opener.open().await.unwrap());
        control::send(&mut stream, header).await.unwrap();
        stream.flush().await.unwrap();
        BulkStream { stream, connection, work }
    }

    /// Whether the core has given the lane more elements. Each answer of the core comes after what was told before it.
    async fn is_granted_more(&mut self) -> bool {
        for _ in 0..POLLS {
            self.server.shared.core.ask(Input::Nodes).await.unwrap();
            while let Ok(message) = self.messages.try_recv() {
                if matches!(message, ToAgent::Elements { .. }) {
                    return true;
                }
            }
        }
        false
    }

    async fn stop(self) {
        drop(self.messages);
        self.server.stop().await;
    }
}

impl BulkStream {
    /// Sends a mark; returns once the server has it.
    async fn send(&mut self, mark: &[u8]) {
        frame::send(&mut self.stream, 0, mark).await.unwrap();
        self.stream.flush().await.unwrap();
        self.stream.read_u64_le().await.unwrap();
    }

    /// Breaks the connection; returns once the server is done with it.
    async fn break_off(mut self) {
        self.connection.abort();
        while self.work.join_next().await.is_some() {}
    }
}

fn began() -> Vec<u8> {
    Header::mark(&Mark::Began { element: 0 }, 1000)
}

fn ended() -> Vec<u8> {
    Header::mark(&Mark::Ended { element: 0, failure: None, stopped: false }, 2000)
}

/// Polls until whoever was woken has run.
async fn let_others_run() {
    for _ in 0..POLLS {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn growth_just_before_the_stream_breaks_is_told() {
    let mut lane = Lane::start().await;
    let (mut log, _) = lane.open_log().await;
    log.send(&began()).await;
    // The core is told of the first growth; what comes now falls into the pause after that.
    let_others_run().await;
    log.send(&ended()).await;
    log.break_off().await;
    assert!(lane.is_granted_more().await, "the lane has done all that it was given");
    lane.stop().await;
}

#[tokio::test(start_paused = true)]
async fn growth_that_no_stream_has_told_is_told_by_the_next() {
    let mut lane = Lane::start().await;
    let marks = [began(), ended()].concat();
    // A server thread was still writing when its stream was aborted.
    Appender::open(lane.server.shared.logs.dir(&lane.task)).unwrap().append_at(0, 0, &marks).unwrap();
    let (log, offset) = lane.open_log().await;
    assert_eq!(offset, marks.len() as u64);
    let_others_run().await;
    assert!(lane.is_granted_more().await, "the lane has done all that it was given");
    log.break_off().await;
    lane.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_waits_is_dropped_with_its_connection() {
    let lane = Lane::start().await;
    let mut turns = Vec::new();
    while let Some(Some(turn)) = lane.server.shared.uploads.node_turn().now_or_never() {
        turns.push(turn);
    }
    let mut bundle = lane.open(&StreamHeader::PutBundle).await;
    bundle.stream.write_u64_le(crate::upload::LARGE_MANIFEST + 1).await.unwrap();
    bundle.stream.flush().await.unwrap();
    let_others_run().await;
    let broken_at = Instant::now();
    bundle.break_off().await;
    assert!(broken_at.elapsed() < Duration::from_secs(1), "{:?}", broken_at.elapsed());
    drop(turns);
    lane.stop().await;
}
