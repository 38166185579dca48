//! The server's end of the link, as small as a test needs it: it remembers what agents say and keeps their logs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use muster_link::control::{Received, receive, send};
use muster_link::log::{Appender, Reader, SegmentDir};
use muster_link::message::{Hello, Keep, LogHave, PROTOCOL, StreamHeader, ToAgent, ToServer};
use muster_link::session::{self, Side, Stream};
use muster_link::{frame, websocket};
use muster_model::task::{Address, TaskEnd};
use muster_model::{BundleId, ChunkId, JobId, TaskId};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, split};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio_tungstenite::accept_hdr_async;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};

pub const TOKEN: &str = "token-of-this-node-7f3a";

/// What an agent said of a task, so far.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub ready: Option<Address>,
    pub started: bool,
    pub ended: Option<TaskEnd>,
    /// How often each was said, a hello not counted.
    pub times: [u32; 3],
}

#[derive(Debug, Default)]
pub struct State {
    pub tasks: BTreeMap<TaskId, Seen>,
    pub hellos: Vec<Hello>,
    pub unsupported: Vec<String>,
    pub pings: u32,
    /// What a welcome says.
    pub keep: Keep,
    /// What was freed, by each answer.
    pub collected: Vec<u64>,
    /// The jobs of which it said that nothing is left.
    pub removed: Vec<JobId>,
    pub is_connected: bool,
    /// The texts of manifests that can be had.
    pub manifests: HashMap<BundleId, String>,
    /// Chunks that can be had, in their stored form, and how often one was asked for.
    pub chunks: HashMap<ChunkId, Vec<u8>>,
    pub chunk_requests: u32,
    /// Chunks that an agent found to be damaged.
    pub damaged: HashSet<ChunkId>,
    /// Acknowledge no log.
    pub deaf: bool,
    /// Bytes of logs that came, also those that came twice.
    pub log_bytes: u64,
    outbound: Option<mpsc::Sender<Vec<u8>>>,
}

/// A server that can vanish and come back.
pub struct Server {
    dir: PathBuf,
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    work: JoinSet<()>,
    listening: Option<AbortHandle>,
}

impl Server {
    pub fn start(dir: &Path) -> Server {
        std::fs::write(dir.join("server.token"), format!("{TOKEN}\n")).unwrap();
        let (state, changed) = (Arc::default(), Arc::default());
        let mut server =
            Server { dir: dir.to_owned(), state, changed, work: JoinSet::new(), listening: None };
        server.listen();
        server
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("server.sock")
    }

    pub fn listen(&mut self) {
        let listener = UnixListener::bind(self.socket()).unwrap();
        let (dir, state, changed) = (self.dir.clone(), Arc::clone(&self.state), Arc::clone(&self.changed));
        self.listening = Some(self.work.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let end = End { dir: dir.clone(), state: Arc::clone(&state), changed: Arc::clone(&changed) };
                connections.spawn(end.serve(stream));
            }
        }));
    }

    /// Gone, with all its connections.
    pub fn vanish(&mut self) {
        self.listening.take().unwrap().abort();
        std::fs::remove_file(self.socket()).unwrap();
        self.forget_connection();
    }

    /// Whoever was connected no longer is.
    pub fn forget_connection(&self) {
        let mut state = self.state();
        state.is_connected = false;
        state.outbound = None;
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub async fn send(&self, message: ToAgent) {
        let mut line = serde_json::to_vec(&message).unwrap();
        line.push(b'\n');
        self.send_raw(line).await;
    }

    pub async fn send_raw(&self, bytes: Vec<u8>) {
        let outbound = self.state().outbound.clone();
        // An agent that is away does not hear it; tests that care wait for it first.
        if let Some(outbound) = outbound {
            let _ = outbound.send(bytes).await;
        }
    }

    /// Wait until the state is as wanted.
    pub async fn wait<T>(&self, what: &str, condition: impl Fn(&State) -> Option<T>) -> T {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                if let Some(found) = condition(&self.state()) {
                    return found;
                }
                changed.await;
            }
        };
        match tokio::time::timeout(Duration::from_secs(20), waiting).await {
            Ok(found) => found,
            Err(_) => panic!("waited in vain for {what}: {:#?}", self.state().tasks),
        }
    }

    pub async fn connected(&self) {
        self.wait("a connection", |state| state.is_connected.then_some(())).await;
    }

    pub async fn ready(&self, task: &TaskId) -> Address {
        self.wait("ready", |state| state.tasks.get(task)?.ready.clone()).await
    }

    pub async fn started(&self, task: &TaskId) {
        self.wait("started", |state| state.tasks.get(task)?.started.then_some(())).await;
    }

    pub async fn ended(&self, task: &TaskId) -> TaskEnd {
        self.wait("ended", |state| state.tasks.get(task)?.ended.clone()).await
    }

    /// The whole output of an ended task, once it is here.
    pub async fn output(&self, task: &TaskId) -> Vec<u8> {
        let log_bytes = self.ended(task).await.log_bytes.unwrap();
        let dir = log_dir(&self.dir, task);
        let end = |_: &State| (dir.end().unwrap() == log_bytes).then_some(());
        self.wait("the whole log", end).await;
        records(&dir)
    }
}

pub fn log_dir(dir: &Path, task: &TaskId) -> SegmentDir {
    SegmentDir::new(dir.join("logs").join(task.to_string()))
}

fn records(dir: &SegmentDir) -> Vec<u8> {
    let mut reader = Reader::new(dir.clone(), 0);
    std::iter::from_fn(|| reader.next_record().unwrap()).flat_map(|record| record.bytes).collect()
}

/// The server's end of one connection.
struct End {
    dir: PathBuf,
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

impl End {
    async fn serve(self, stream: UnixStream) {
        let mut query = String::new();
        let check = |request: &Request, response: Response| -> Result<Response, ErrorResponse> {
            assert_eq!(request.headers()["authorization"], format!("Bearer {TOKEN}").as_str());
            query = request.uri().query().unwrap_or_default().to_owned();
            Ok(response)
        };
        let Ok(socket) = accept_hdr_async(stream, check).await else { return };
        assert!(query.ends_with("&node=node_test"), "{query}");
        let (_opener, mut incoming, driver) = session::start(websocket::client(socket), Side::Server);
        let is_control = query.starts_with("channel=control");
        let end = Arc::new(self);
        let streams = async {
            let mut streams = JoinSet::new();
            while let Some(stream) = incoming.next().await {
                let end = Arc::clone(&end);
                if is_control {
                    end.control(stream).await.ok();
                } else {
                    streams.spawn(async move { end.bulk(stream).await.ok() });
                }
            }
        };
        tokio::select! { _ = driver => {}, () = streams => {} }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state.lock().unwrap());
        self.changed.notify_waiters();
        changed
    }

    async fn control(&self, stream: Stream) -> io::Result<()> {
        let (reader, mut writer) = split(stream);
        let mut reader = BufReader::new(reader);
        let Some(Received::Message(ToServer::Hello(hello))) = receive(&mut reader).await? else {
            panic!("the first message is no hello");
        };
        let keep = self.change(|state| state.keep.clone());
        send(&mut writer, &ToAgent::Welcome { protocol: PROTOCOL, keep, volumes: Vec::new() }).await?;
        writer.flush().await?;
        let (outbound, mut messages) = mpsc::channel(64);
        let connection = outbound.clone();
        self.change(|state| {
            hello.tasks.iter().for_each(|report| on_report(state, report));
            state.hellos.push(*hello);
            state.is_connected = true;
            state.outbound = Some(outbound);
        });
        let write = async {
            while let Some(bytes) = messages.recv().await {
                writer.write_all(&bytes).await?;
                writer.flush().await?;
            }
            std::future::pending::<io::Result<()>>().await
        };
        let read = async {
            while let Some(Received::Message(message)) = receive(&mut reader).await? {
                self.change(|state| on_message(state, message));
            }
            Ok(())
        };
        // Whichever way this one is lost, another may have taken its place already.
        let _lost = Lost { end: self, connection };
        tokio::select! { ended = write => ended, ended = read => ended }
    }

    async fn bulk(&self, stream: Stream) -> io::Result<()> {
        let (reader, mut writer) = split(stream);
        let mut reader = BufReader::with_capacity(256 * 1024, reader);
        let mut line = String::new();
        reader.read_line(&mut line).await?;
        match serde_json::from_str(&line).unwrap() {
            StreamHeader::Manifest { bundle } => {
                let text = self.change(|state| state.manifests.get(&bundle).cloned()).unwrap_or_default();
                writer.write_all(&(text.len() as u64).to_le_bytes()).await?;
                writer.write_all(text.as_bytes()).await?;
                writer.shutdown().await
            }
            StreamHeader::Chunks { chunks } => {
                for chunk in chunks {
                    let stored = self.change(|state| {
                        state.chunk_requests += 1;
                        state.chunks.get(&chunk).cloned()
                    });
                    let stored = stored.unwrap_or_default();
                    writer.write_all(&(stored.len() as u32).to_le_bytes()).await?;
                    writer.write_all(&stored).await?;
                }
                writer.shutdown().await
            }
            StreamHeader::Damaged { chunks } => {
                self.change(|state| state.damaged.extend(chunks));
                Ok(())
            }
            header @ (StreamHeader::PutBundle | StreamHeader::Call { .. } | StreamHeader::Files { .. }) => {
                panic!("{header:?}")
            }
            StreamHeader::Log { task } => {
                let mut log = Appender::open(log_dir(&self.dir, &task)).unwrap();
                let mut offset = log.end();
                send(&mut writer, &LogHave { offset }).await?;
                writer.flush().await?;
                let mut bytes = Vec::new();
                while let Some(segment) = frame::receive(&mut reader, &mut bytes).await? {
                    log.append_at(segment, offset, &bytes).unwrap();
                    offset += bytes.len() as u64;
                    let deaf = self.change(|state| {
                        state.log_bytes += bytes.len() as u64;
                        state.deaf
                    });
                    if !deaf {
                        writer.write_all(&offset.to_le_bytes()).await?;
                        writer.flush().await?;
                    }
                }
                Ok(())
            }
        }
    }
}

struct Lost<'a> {
    end: &'a End,
    connection: mpsc::Sender<Vec<u8>>,
}

impl Drop for Lost<'_> {
    fn drop(&mut self) {
        self.end.change(|state| {
            if state.outbound.as_ref().is_some_and(|outbound| outbound.same_channel(&self.connection)) {
                state.is_connected = false;
                state.outbound = None;
            }
        });
    }
}

fn on_report(state: &mut State, report: &muster_link::message::TaskReport) {
    use muster_link::message::ReportPhase;
    let seen = state.tasks.entry(report.task.clone()).or_default();
    match &report.phase {
        ReportPhase::Preparing => {}
        ReportPhase::Ready { address } => seen.ready = Some(address.clone()),
        ReportPhase::Running { .. } => seen.started = true,
        ReportPhase::Ended { end, started_at, .. } => {
            seen.started |= started_at.is_some();
            end_once(seen, end);
        }
    }
}

fn on_message(state: &mut State, message: ToServer) {
    match message {
        ToServer::Ready { task, address } => {
            let seen = state.tasks.entry(task).or_default();
            seen.times[0] += 1;
            seen.ready = Some(address);
        }
        ToServer::Started { task, .. } => {
            let seen = state.tasks.entry(task).or_default();
            seen.times[1] += 1;
            seen.started = true;
        }
        ToServer::Ended { task, end, .. } => {
            let seen = state.tasks.entry(task).or_default();
            seen.times[2] += 1;
            end_once(seen, &end);
        }
        ToServer::Unsupported { what } => state.unsupported.push(what),
        ToServer::Collected { bytes } => state.collected.push(bytes),
        ToServer::Saved { task, .. } => panic!("{task} has nothing to save"),
        ToServer::Removed { job } => state.removed.push(job),
        ToServer::Volumes { lacks } => assert!(lacks.is_empty(), "nobody asked for volumes"),
        ToServer::Outputs { .. } => panic!("nobody asked for outputs"),
        // Measurements come when they come.
        ToServer::Metrics(_) => {}
        ToServer::Ping => state.pings += 1,
        ToServer::Hello(_) => panic!("a second hello"),
    }
}

/// However often an end is told, it is the same.
fn end_once(seen: &mut Seen, end: &TaskEnd) {
    assert!(seen.ended.as_ref().is_none_or(|before| before == end), "{:?} and then {end:?}", seen.ended);
    seen.ended = Some(end.clone());
}
