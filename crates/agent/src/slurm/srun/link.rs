//! The way to each node of a step: a child on this one, the gang's key on the others.

use std::io;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use muster_ssh::client::{self, Client};
use muster_ssh::gang::Gang;
use muster_ssh::keys::{self, PrivateKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::super::job::Job;
use super::super::wire::{Frame, Frames};

/// What may wait to be said to a node: a few words, and one piece of input at a time.
const WORDS: usize = 64;
/// A node may be a moment later than the script that calls it.
const REACH: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);
const PIECE: usize = 64 << 10;

/// What comes from a node.
#[derive(Debug)]
pub(super) enum News {
    Said(Frame),
    /// Nothing more comes.
    Over(Option<String>),
}

/// The ways to a step's nodes.
pub(super) struct Links {
    to: Vec<mpsc::Sender<Frame>>,
    news: mpsc::Receiver<(usize, News)>,
    /// Ends with the step.
    _moving: JoinSet<()>,
}

impl Links {
    /// Goes to each of the nodes, by their places in the job.
    pub fn open(job: &Job, nodes: &[usize]) -> Result<Links, String> {
        let (tell, news) = mpsc::channel(WORDS.max(nodes.len()));
        let mut moving = JoinSet::new();
        let mut to = Vec::new();
        let key = match nodes.iter().all(|node| *node == job.own) {
            true => None,
            false => Some(key(job)?),
        };
        for (at, node) in nodes.iter().enumerate() {
            let (say, words) = mpsc::channel(WORDS);
            let tell = Tell { at, tell: tell.clone() };
            match (&key, job.members.get(*node)) {
                (Some(key), Some(member)) if *node != job.own => {
                    drop(moving.spawn(far(*member, Arc::clone(key), words, tell)));
                }
                _ => drop(moving.spawn(near(words, tell))),
            }
            to.push(say);
        }
        Ok(Links { to, news, _moving: moving })
    }

    /// A node that does not take it is about to be over.
    pub fn say(&self, at: usize, frame: Frame) {
        let _ = self.to[at].try_send(frame);
    }

    pub fn say_all(&self, frame: &Frame) {
        for to in &self.to {
            let _ = to.try_send(frame.clone());
        }
    }

    pub async fn next(&mut self) -> Option<(usize, News)> {
        self.news.recv().await
    }
}

fn key(job: &Job) -> Result<Arc<PrivateKey>, String> {
    let secret = Gang::secret(&job.dir.join("ssh")).map_err(|error| format!("the gang's key: {error}"))?;
    Ok(Arc::new(keys::client(&secret).map_err(|error| error.to_string())?))
}

struct Tell {
    at: usize,
    tell: mpsc::Sender<(usize, News)>,
}

impl Tell {
    async fn say(&self, news: News) {
        // Nobody listens any more when the step is over.
        let _ = self.tell.send((self.at, news)).await;
    }

    async fn over(&self, result: io::Result<()>) {
        self.say(News::Over(result.err().map(|error| error.to_string()))).await;
    }
}

/// The node that this is.
async fn near(mut words: mpsc::Receiver<Frame>, tell: Tell) {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("muster-step").stdin(Stdio::piped()).stdout(Stdio::piped());
    let moved = async {
        let mut child = command.spawn()?;
        let (Some(mut input), Some(mut output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let mut frames = Frames::default();
        let mut buffer = vec![0; PIECE];
        loop {
            tokio::select! {
                word = words.recv() => match word {
                    Some(frame) => input.write_all(&frame.bytes()?).await.or_else(closed)?,
                    None => return Ok(()),
                },
                count = output.read(&mut buffer) => match count? {
                    0 => return Ok(()),
                    count => pass(&mut frames, &buffer[..count], &tell).await?,
                },
            }
        }
    };
    let moved = moved.await;
    tell.over(moved).await;
}

/// One that does not hear any more is about to say so itself.
fn closed(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}

async fn pass(frames: &mut Frames, bytes: &[u8], tell: &Tell) -> io::Result<()> {
    frames.add(bytes);
    while let Some(frame) = frames.next()? {
        tell.say(News::Said(frame)).await;
    }
    Ok(())
}

/// Another one.
async fn far(member: SocketAddr, key: Arc<PrivateKey>, mut words: mpsc::Receiver<Frame>, tell: Tell) {
    let moved = async {
        let client = reach(member, key).await?;
        let command =
            client::Command { line: Some(b"exec muster-step".to_vec()), ..client::Command::default() };
        let (mut output, input) = client.run(&command).await.map_err(io::Error::other)?;
        let mut writer = std::pin::pin!(input.writer());
        let mut frames = Frames::default();
        loop {
            tokio::select! {
                word = words.recv() => match word {
                    Some(frame) => {
                        writer.write_all(&frame.bytes()?).await?;
                        writer.flush().await?;
                    }
                    None => return Ok(()),
                },
                event = output.next() => match event.map_err(io::Error::other)? {
                    client::Event::Stdout(bytes) => pass(&mut frames, &bytes, &tell).await?,
                    client::Event::Stderr(bytes) => {
                        let _ = io::Write::write_all(&mut io::stderr(), &bytes);
                    }
                    client::Event::Ended(0) => return Ok(()),
                    client::Event::Ended(code) => {
                        return Err(io::Error::other(format!("its processes cannot be started there ({code})")));
                    }
                },
            }
        }
    };
    let moved = moved.await;
    tell.over(moved).await;
}

async fn reach(member: SocketAddr, key: Arc<PrivateKey>) -> io::Result<Client> {
    let until = Instant::now() + REACH;
    let stream = loop {
        match TcpStream::connect(member).await {
            Ok(stream) => break stream,
            Err(error) if Instant::now() >= until => return Err(error),
            Err(_) => sleep(PAUSE).await,
        }
    };
    stream.set_nodelay(true)?;
    Client::connect(stream, key).await.map_err(io::Error::other)
}
