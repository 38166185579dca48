//! `muster port-forward`: ports of a task, on this machine.

mod pool;
mod port;

use std::future::pending;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::rc::Rc;

use clap::Args as ClapArgs;
use futures::FutureExt;
use futures::future::{LocalBoxFuture, select_all};
use futures::stream::{FuturesUnordered, StreamExt};
use muster_api::view::StreamEnd;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

use self::pool::Pool;
use self::port::Port;
use super::state;
use crate::call::{Caller, To};
use crate::error::{Code, Error, system_message};
use crate::follow::wait_for_end;
use crate::interrupt::Interrupts;
use crate::target::Target;
use crate::terminal;

/// Connections at once; those beyond wait to be taken.
const MAX_CONNECTIONS: usize = 512;

/// Reach ports of a task at ports of this machine
#[derive(Debug, ClapArgs)]
#[command(
    override_usage = "muster port-forward [OPTIONS] JOB[/TASK] [LOCAL:]REMOTE...",
    after_help = "\
Examples:
  muster port-forward last 6006               TensorBoard of a job, at http://127.0.0.1:6006
  muster port-forward bert/1 8080:80 9090     port 80 at 8080 here, and 9090 at 9090
  muster port-forward bert :6006              at any port that is free here
  muster port-forward bert 6006 --wait

Programs of the task need only listen on its own 127.0.0.1. \
Each connection is made anew over the server, so it goes on after a restart of the server, of the agent, or of the job. \
It ends when the job does, or with Ctrl-C.

Exit codes:
  0    the job is over
  2    there is no such task, or a port cannot be used
  130  ended by Ctrl-C"
)]
pub(crate) struct Args {
    #[command(flatten)]
    to: To,
    /// A port of the task, and the one here if that is another
    #[arg(value_name = "[LOCAL:]REMOTE", required = true)]
    ports: Vec<Port>,
    /// Listen on this address of this machine
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// Print the ports as one line of JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let caller = Caller::open().await?;
    let asked = args.to.target()?;
    let job = caller.session.call(async |client| client.job(&asked.job).await).await?.summary;
    // `last` may be another job tomorrow.
    let target = Target { job: job.id.to_string(), task: Some(asked.task.unwrap_or(0)) };
    let mut interrupts = Interrupts::listen()?;
    let start = async {
        let first = caller.call(&target, args.to.wait).await?;
        let mut listeners = Vec::new();
        for port in &args.ports {
            listeners.push(Listener::open(args.address, *port, &asked).await?);
        }
        say(args, &target, &listeners)?;
        Ok::<_, Error>((Pool::new(caller.clone(), target.clone(), first), listeners))
    };
    let (pool, listeners) = tokio::select! {
        started = start => started?,
        received = interrupts.next() => return Ok(super::run::exit_code(Some(received.exit_code()))),
    };
    let pool = Rc::new(pool);
    tokio::select! {
        ended = wait_for_end(&caller.session, &target.job) => {
            let StreamEnd { job, .. } = ended?;
            terminal::remark(&format!("{}: {}", job.id, state::words(&job)));
            Ok(ExitCode::SUCCESS)
        }
        received = interrupts.next() => Ok(super::run::exit_code(Some(received.exit_code()))),
        () = forward(&pool, &listeners) => Ok(ExitCode::SUCCESS),
    }
}

/// One port of this machine.
struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    remote: u16,
}

impl Listener {
    async fn open(address: IpAddr, port: Port, target: &Target) -> Result<Self, Error> {
        let place = SocketAddr::new(address, port.local);
        let opened = TcpListener::bind(place).await.and_then(|socket| Ok((socket.local_addr()?, socket)));
        let (address, socket) = opened.map_err(|error| {
            let remote = port.remote;
            Error::new(Code::PortUnusable, format!("cannot listen on {place}: {}", system_message(&error)))
                .hint(format!("`muster port-forward {target} :{remote}` takes any port that is free"))
        })?;
        Ok(Self { socket, address, remote: port.remote })
    }

    /// The next connection. Out of descriptors, it waits for the others to end.
    async fn accept(&self) -> (TcpStream, SocketAddr, u16) {
        loop {
            match self.socket.accept().await {
                Ok((stream, from)) => {
                    // Whoever types or asks waits for the answer to small things.
                    let _ = stream.set_nodelay(true);
                    return (stream, from, self.remote);
                }
                Err(_) => tokio::time::sleep(pool::BREATH).await,
            }
        }
    }
}

fn say(args: &Args, target: &Target, listeners: &[Listener]) -> Result<(), Error> {
    let task = target.task.unwrap_or(0);
    if !args.address.is_loopback() && !args.json {
        terminal::note("whoever reaches this machine reaches these ports");
    }
    if args.json {
        let port = |listener: &Listener| json!({"address": listener.address.ip(), "local": listener.address.port(), "remote": listener.remote});
        let ports: Vec<_> = listeners.iter().map(port).collect();
        return terminal::say(&json!({"job": target.job, "task": task, "ports": ports}).to_string());
    }
    for listener in listeners {
        terminal::say(&format!("http://{} → task {task}, port {}", listener.address, listener.remote))?;
    }
    Ok(())
}

/// Takes connections for as long as it is awaited.
async fn forward(pool: &Rc<Pool>, listeners: &[Listener]) {
    let mut connections: FuturesUnordered<LocalBoxFuture<()>> = FuturesUnordered::new();
    // Something that never ends, so that there is always something to wait for.
    connections.push(pending().boxed_local());
    loop {
        let has_room = connections.len() <= MAX_CONNECTIONS;
        let accepted = select_all(listeners.iter().map(|listener| listener.accept().boxed_local()));
        tokio::select! {
            ((stream, from, port), _, _) = accepted, if has_room => {
                connections.push(pool.clone().carry(stream, from, port).boxed_local());
            }
            _ = connections.next() => {}
        }
    }
}
