//! `muster pool add`: hosts for a pool, and whether each can be used.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use muster_api::model::pool::HostSpec;
use muster_api::pool::{AddHosts, HostView, PoolView, ShowPool};

use super::list;
use crate::error::{Code, Error};
use crate::progress::Spinner;
use crate::session::Session;
use crate::terminal;

/// How long one request waits for hosts: short enough that what is shown follows what happens.
const TURN: Duration = Duration::from_secs(1);
/// What takes longer is shown.
const PATIENCE: Duration = Duration::from_secs(1);
/// What a command exits with that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Add hosts to a pool, which is made if it is not there, and wait until it is known whether they can be used
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster pool add gpu ada@gpu1 ada@gpu2
  muster pool add gpu gpu3 --key ~/.ssh/cluster --port 2222
  muster pool add gpu 'ssh://ada@gpu4:2222' --shared /mnt/nas
  muster pool add gpu gpu1                 again: tries it at once

Whatever `ssh DESTINATION` uses is used: names, users, keys, jump hosts and certificates of ~/.ssh/config, and the agent, \
of the user that the server runs as. A password cannot be asked for. \
A host's key is pinned when it is first seen. Muster's own program is copied to each host once, below ~/.muster.")]
pub(crate) struct Args {
    /// The pool's name, as in --on ssh/NAME
    name: String,
    /// What ssh is called with: host, user@host, ssh://user@host:port, or a name of ~/.ssh/config
    #[arg(value_name = "DESTINATION", required = true)]
    destinations: Vec<String>,
    /// The private key to show
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// The port of their sshd
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// The address at which other hosts reach it, if not the one that ssh reaches it at; of one host
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// A directory that all hosts of the pool share
    #[arg(long, value_name = "DIR")]
    shared: Option<String>,
    /// Do not wait until they are connected
    #[arg(long)]
    no_wait: bool,
    /// Print the pool as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    if args.address.is_some() && args.destinations.len() > 1 {
        return Err(Error::new(Code::Usage, "--address is of one host; there are several")
            .hint("add each with an address of its own"));
    }
    let session = Session::open().await?;
    let key = args.key.as_deref().map(|key| key_file(key, session.home().is_some())).transpose()?;
    let host = |destination: &String| HostSpec {
        destination: destination.clone(),
        port: args.port,
        key: key.clone(),
        address: args.address,
    };
    let request =
        AddHosts { hosts: args.destinations.iter().map(host).collect(), shared: args.shared.clone() };
    let mut pool = session.call(async |client| client.add_hosts(&args.name, &request).await).await?;
    if !args.no_wait {
        pool = tokio::select! {
            pool = settled(&session, &request.hosts, pool) => pool?,
            _ = tokio::signal::ctrl_c() => {
                terminal::note(&format!("the server goes on without you; `muster pool ls {}` shows how far it is", args.name));
                return Ok(ExitCode::from(INTERRUPTED));
            }
        };
    }
    let pool = PoolView {
        hosts: pool.hosts.into_iter().filter(|host| is_among(host, &request.hosts)).collect(),
        ..pool
    };
    report(&pool, args)
}

/// A path that the server can use: whole, and there, where the server is on this machine.
fn key_file(key: &Path, is_here: bool) -> Result<String, Error> {
    let whole = std::path::absolute(key).unwrap_or_else(|_| key.to_owned());
    if is_here && !whole.is_file() {
        return Err(Error::new(Code::Usage, format!("--key: there is no file {}", whole.display()))
            .hint("it is the private key, the one without .pub"));
    }
    match whole.into_os_string().into_string() {
        Ok(text) => Ok(text),
        Err(_) => Err(Error::new(Code::Usage, "--key: the path is not valid UTF-8")),
    }
}

fn is_among(host: &HostView, given: &[HostSpec]) -> bool {
    given.iter().any(|spec| spec.destination == host.destination && spec.port == host.port)
}

/// Waits until each host is there or has failed.
async fn settled(session: &Session, given: &[HostSpec], mut pool: PoolView) -> Result<PoolView, Error> {
    let begun = Instant::now();
    let mut spinner = Spinner::default();
    let query = ShowPool { wait_ms: Some(TURN.as_millis() as u64) };
    loop {
        let open: Vec<&str> = pool
            .hosts
            .iter()
            .filter(|host| is_among(host, given) && !host.node.connected && host.node.error.is_none())
            .map(|host| host.destination.as_str())
            .collect();
        if open.is_empty() {
            return Ok(pool);
        }
        if begun.elapsed() >= PATIENCE {
            let rest = match open.len() {
                1..=3 => open.join(", "),
                count => format!("{count} hosts"),
            };
            spinner.show(&format!("connecting to {rest}"));
        }
        let name = pool.name.clone();
        pool = session.call(async |client| client.pool(&name, &query).await).await?;
    }
}

fn report(pool: &PoolView, args: &Args) -> Result<ExitCode, Error> {
    if args.json {
        terminal::say_json(pool)?;
    } else {
        let table = list::table(std::slice::from_ref(pool));
        let text = table.render(terminal::width(), terminal::stdout_has_colours());
        terminal::to_stdout(&text)?;
    }
    let failed: Vec<String> =
        pool.hosts.iter().filter(|host| !host.node.connected).filter_map(failure).collect();
    if failed.is_empty() {
        if terminal::stderr_is_terminal() && !args.json {
            terminal::remark(&format!("run there: muster run --on {} -- COMMAND", pool.on));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let what = match (failed.len(), pool.hosts.len()) {
        (1, 1) => "the host cannot be used yet".into(),
        (some, all) => format!("{some} of {all} hosts cannot be used yet"),
    };
    let hint = format!(
        "the server goes on trying; the same command tries at once, `muster pool rm {} HOST` gives one up",
        pool.name
    );
    Err(Error::new(Code::HostUnreachable, what).details(failed).hint(hint))
}

/// What keeps a host from being used, with its name once.
fn failure(host: &HostView) -> Option<String> {
    let message = &host.node.error.as_ref()?.message;
    let is_named = message.starts_with(host.destination.as_str());
    Some(if is_named { message.clone() } else { format!("{}: {message}", host.destination) })
}
