//! `muster gate`: what runs on the login node, as the user whose jobs they are.
//!
//! Two things pass it: Slurm's programs, which the engine has it run, and the connections of agents, which find it on the
//! cluster's network and which it hands on over its own input and output. It holds no state but what lies in its directory, and
//! ends with its input; a submission that has begun is brought to its end first.

mod address;
mod attempt;
pub(super) mod programs;
pub(super) mod wire;

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use muster_link::dial::Post;
use muster_link::own_dir::{OwnDir, check_ancestors};
use muster_link::session::{self, Incoming, Opener, Side, Stream};
use muster_model::AttemptId;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::local::write_private;
use crate::ssh::carry::{FAILED, READY, say};
use attempt::Attempt;
use programs::Programs;
use wire::{Answer, Ask, Found, Who, hear};

/// A program of Slurm's that only asks; the controller may be busy.
const QUESTION: Duration = Duration::from_secs(120);
/// Who comes and does not say our word has come by mistake.
const GREETING: Duration = Duration::from_secs(10);
/// How long submissions may take that were begun for an engine which is gone.
const LAST: Duration = Duration::from_secs(120);
/// Connections that wait to be let in.
const BACKLOG: u32 = 1024;
/// Accepting fails when files run out; a moment later there may be some.
const PAUSE: Duration = Duration::from_millis(100);

/// What stands in the directory of a server's attempts, for agents.
pub const HOME: &str = "home";
/// What stands in the directory of an attempt of which nothing is to run any more.
pub const CLOSED: &str = "closed";

/// `muster gate DIR --server NAME [--address A] [--programs DIR] [--conf FILE]`.
pub fn run(words: &[OsString]) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.and_then(|runtime| {
        let served = runtime.block_on(serve(words));
        // A read of the standard input may never end.
        runtime.shutdown_background();
        served
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Whoever listened may be gone, and with it the need to know.
            let _ = say(&format!("{FAILED} {error}"));
            ExitCode::FAILURE
        }
    }
}

async fn serve(words: &[OsString]) -> io::Result<()> {
    let options = Options::read(words)?;
    if rustix::process::getuid().is_root() {
        let message = "jobs are never run as root; log in as somebody else, or set slurm.user";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    check_ancestors(&options.base)?;
    let own = OwnDir::open(&options.base)?.create_below(&format!("slurm-{}", options.server))?;
    let dir = own.path().to_owned();
    let (listener, post) = listen(&dir, options.addresses)?;
    let gate = Arc::new(Gate { dir, programs: Programs::new(options.programs, options.conf) });
    say(READY)?;
    // A login's streams may be pipes or sockets; read and written as files they are the same.
    let file =
        |stream: BorrowedFd| stream.try_clone_to_owned().map(|fd| tokio::fs::File::from_std(fd.into()));
    let io = tokio::io::join(file(io::stdin().as_fd())?, file(io::stdout().as_fd())?);
    converse(io, gate, listener, post).await;
    Ok(())
}

/// Until the engine is gone.
async fn converse<T>(io: T, gate: Arc<Gate>, listener: TcpListener, post: Post)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (opener, incoming, driver) = session::start(io, Side::Agent);
    let over = CancellationToken::new();
    let until_over = async {
        // Whatever became of the way to it.
        let _ = driver.await;
        over.cancel();
    };
    tokio::join!(until_over, answer(gate, incoming, &over), admit(listener, Arc::new(post), opener, &over));
}

/// The words after `muster gate`.
struct Options {
    base: PathBuf,
    server: String,
    addresses: Vec<String>,
    programs: Option<PathBuf>,
    conf: Option<PathBuf>,
}

impl Options {
    fn read(words: &[OsString]) -> io::Result<Self> {
        let value = |name: &str| words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
        let text = |name: &str| value(name).and_then(|word| word.to_str()).map(str::to_owned);
        let server = text("--server").filter(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        let (Some(base), Some(server)) = (words.first(), server) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is started by a server alone"));
        };
        let base = std::path::absolute(base)?;
        Ok(Self {
            base,
            server,
            addresses: text("--address").into_iter().collect(),
            programs: value("--programs").map(PathBuf::from),
            conf: value("--conf").map(PathBuf::from),
        })
    }
}

/// Listens where the last gate did, if it can, so that agents find it without looking, and says where in the file.
fn listen(dir: &Path, addresses: Vec<String>) -> io::Result<(TcpListener, Post)> {
    let path = dir.join(HOME);
    let last: Option<Post> = std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let listener = match last.as_ref().map(|last| bind(last.port)) {
        Some(Ok(listener)) => listener,
        Some(Err(_)) | None => bind(0)?,
    };
    let word = || Ok::<_, io::Error>(format!("{:016x}", getrandom::u64().map_err(io::Error::other)?));
    let (ask, answer) = match last {
        // Those who dial now have read it already.
        Some(last) => (last.ask, last.answer),
        None => (word()?, word()?),
    };
    let addresses = if addresses.is_empty() { address::own() } else { addresses };
    let port = listener.local_addr()?.port();
    let post = Post { boot_id: Post::boot_id(), addresses, port, ask, answer };
    write_private(&path, &serde_json::to_string(&post)?)?;
    Ok((listener, post))
}

fn bind(port: u16) -> io::Result<TcpListener> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(([0, 0, 0, 0], port).into())?;
    socket.listen(BACKLOG)
}

/// Answers the engine, until it is gone and what it had begun is over.
async fn answer(gate: Arc<Gate>, mut incoming: Incoming, over: &CancellationToken) {
    let mut work = JoinSet::new();
    loop {
        tokio::select! {
            stream = incoming.next() => match stream {
                Some(stream) => drop(work.spawn(Arc::clone(&gate).serve(stream))),
                None => break,
            },
            Some(_) = work.join_next() => {}
            () = over.cancelled() => break,
        }
    }
    let last = async { while work.join_next().await.is_some() {} };
    // What hangs now, hangs; the next gate finds what it has left.
    let _ = tokio::time::timeout(LAST, last).await;
}

/// Hands agents on to the engine.
async fn admit(listener: TcpListener, post: Arc<Post>, opener: Opener, over: &CancellationToken) {
    let mut work = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(work.spawn(hand_on(stream, Arc::clone(&post), opener.clone()))),
                Err(_) => tokio::time::sleep(PAUSE).await,
            },
            Some(_) = work.join_next() => {}
            () = over.cancelled() => return,
        }
    }
}

async fn hand_on(mut agent: TcpStream, post: Arc<Post>, opener: Opener) {
    // A connection that breaks is made anew by its agent.
    let _ = agent.set_nodelay(true);
    let admitted = tokio::time::timeout(GREETING, post.admit(&mut agent)).await;
    if matches!(admitted, Ok(Ok(())))
        && let Ok(mut engine) = opener.open().await
    {
        let _ = tokio::io::copy_bidirectional(&mut agent, &mut engine).await;
    }
}

struct Gate {
    dir: PathBuf,
    programs: Programs,
}

impl Gate {
    async fn serve(self: Arc<Self>, mut stream: Stream) {
        let answer = match hear(&mut stream).await {
            Ok(ask) => {
                self.answer(ask).await.unwrap_or_else(|error| Answer::Failed { message: error.to_string() })
            }
            Err(error) => Answer::Failed { message: error.to_string() },
        };
        // An engine that is gone asks again when it is back.
        let _ = wire::say(&mut stream, &answer).await;
    }

    async fn answer(&self, ask: Ask) -> io::Result<Answer> {
        let attempt = |id: &AttemptId| Attempt::new(&self.dir, id);
        Ok(match ask {
            Ask::Who => Answer::Who(Who {
                uid: rustix::process::getuid().as_raw(),
                dir: self.dir.to_string_lossy().into_owned(),
                binary: std::env::current_exe()?.to_string_lossy().into_owned(),
            }),
            Ask::Run { argv } => Answer::Ran(self.programs.run(&argv, Stdio::null(), QUESTION).await),
            Ask::Submit(submit) => {
                Answer::Submission(attempt(&submit.attempt).submit(*submit, &self.programs).await?)
            }
            Ask::Look { attempts } => {
                let attempts: Vec<Found> = attempts.iter().map(|id| attempt(id).found()).collect();
                Answer::Found { attempts }
            }
            Ask::Adopt { attempt: id, job } => {
                attempt(&id).adopt(&job)?;
                Answer::Done
            }
            Ask::Close { attempt: id } => {
                attempt(&id).close()?;
                Answer::Done
            }
            Ask::Sweep { live, kept_s } => {
                let (dir, kept) = (self.dir.clone(), Duration::from_secs(kept_s));
                tokio::task::spawn_blocking(move || attempt::sweep(&dir, &live, kept)).await??;
                Answer::Done
            }
            Ask::Remove { job } => {
                let dir = self.dir.clone();
                tokio::task::spawn_blocking(move || attempt::remove(&dir, &job)).await??;
                Answer::Done
            }
            Ask::Salvage { attempt: id } => {
                salvage(&attempt(&id))?;
                Answer::Done
            }
        })
    }
}

/// Starts an agent for every rank that has files. Each ends by itself, also if the real one still lives.
fn salvage(attempt: &Attempt) -> io::Result<()> {
    for rank in attempt.ranks()? {
        let log = attempt.dir().join(rank.to_string()).join("agent.log");
        let log: File = OpenOptions::new().create(true).append(true).mode(0o600).open(log)?;
        let mut command = std::process::Command::new("/proc/self/exe");
        command.arg0("muster").args(["agent", "--gang"]).arg(attempt.dir());
        command.args(["--rank", &rank.to_string(), "--salvage"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).current_dir("/");
        let mut child = command.spawn()?;
        // Somebody must collect its exit status, and it ends soon.
        std::thread::Builder::new().name("salvage".into()).stack_size(64 * 1024).spawn(move || {
            let _ = child.wait();
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
