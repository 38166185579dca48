//! `muster server`: the server, by hand: no other command needs it. And what its operator needs: backup, restore, reload.

mod backup;
mod check;
mod reload;
mod restore;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use muster_api::view::ServerView;
use serde_json::{Value, json};

use crate::entry::{Hooks, ServerOptions};
use crate::error::{Code, Error};
use crate::home::Home;
use crate::place::{By, Named, Place};
use crate::private;
use crate::session::Session;
use crate::terminal;

/// What `status` exits with when nothing runs.
const NOT_RUNNING: u8 = 1;

/// Start, stop, back up or look at the server
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster server status
  muster server stop                its jobs keep running
  muster server start

Every command starts the private server when it needs it, \
and it ends by itself after 15 minutes without a job or a client. \
Its data is in MUSTER_HOME (default: $XDG_DATA_HOME/muster, else ~/.local/share/muster). \
MUSTER_SERVER or a context (`muster context`) names another server, and then none is started.")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start the private server, unless it runs
    #[command(after_help = "Examples:\n  muster server start\n  muster server start --json")]
    Start {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop the private server; its jobs keep running
    #[command(after_help = "Examples:\n  muster server stop\n  muster server stop --json")]
    Stop {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the server: its process, version, data, jobs and nodes
    #[command(after_help = "\
Examples:
  muster server status
  muster server status --json | jq .pid

Exit code: 0 when it runs, 1 when it does not.")]
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    Check(check::Args),
    Backup(backup::Args),
    Restore(restore::Args),
    Reload(reload::Args),
    /// Print the OpenAPI document of the server's interface
    #[command(after_help = "Examples:\n  muster server openapi > openapi.json")]
    Openapi {
        /// It is JSON anyway; taken so that every command takes it
        #[arg(long)]
        json: bool,
    },
    /// Run a server in the foreground
    #[command(hide = true)]
    Run(RunArgs),
}

#[derive(Debug, ClapArgs)]
struct RunArgs {
    /// The data directory (default: that of the private server)
    #[arg(long, value_name = "DIR")]
    home: Option<PathBuf>,
    /// Leave the terminal's session, and say `ready` on stdout once it serves
    #[arg(long)]
    daemon: bool,
    /// Also listen on this address: HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Take the token that people show from this file, such as a mounted Secret; a missing file: its own, in DIR/token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Seal secrets with the key in this file, 32 characters or more (default: MUSTER_SECRETS_KEY, or one in DIR/secrets.key)
    #[arg(long, value_name = "FILE")]
    secrets_key_file: Option<PathBuf>,
    /// Several people share it: each has an account, and the first, `admin`, a password in DIR/admin-password
    #[arg(long, conflicts_with = "token_file")]
    auth: bool,
    #[command(flatten)]
    tls: TlsFlags,
}

#[derive(Debug, ClapArgs)]
struct TlsFlags {
    /// Speak TLS on that address, with a certificate that is made at the first start and kept in DIR/tls.pem
    #[arg(long, requires = "listen")]
    tls: bool,
    /// The same with the certificate in this file (PEM, those that signed it after it); it is read anew when it changes
    #[arg(long, value_name = "FILE", requires_all = ["listen", "tls_key"])]
    tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert
    #[arg(long, value_name = "FILE", requires_all = ["listen", "tls_cert"])]
    tls_key: Option<PathBuf>,
    /// Speak plain HTTP on an address that other machines reach, behind a proxy that speaks TLS
    #[arg(long, requires = "listen", conflicts_with_all = ["tls", "tls_cert"])]
    listen_plain_http: bool,
}

pub(crate) fn run(args: Args, hooks: &Hooks) -> Result<ExitCode, Error> {
    match args.action {
        Action::Start { json } => crate::entry::block_on(start(json)),
        Action::Stop { json } => crate::entry::block_on(stop(json)),
        Action::Status { json } => crate::entry::block_on(status(json)),
        Action::Check(args) => check::run(&args, hooks),
        Action::Backup(args) => crate::entry::block_on(backup::run(&args)),
        Action::Restore(args) => restore::run(&args, hooks),
        Action::Reload(args) => crate::entry::block_on(reload::run(&args)),
        Action::Openapi { .. } => {
            let document = (hooks.openapi)();
            terminal::to_stdout(&format!("{}\n", document.trim_end()))?;
            Ok(ExitCode::SUCCESS)
        }
        Action::Run(args) => {
            let home = match &args.home {
                Some(home) => home.clone(),
                None => Home::from_environment()?.folder().to_owned(),
            };
            let RunArgs {
                daemon,
                listen,
                token_file,
                secrets_key_file,
                auth,
                tls: TlsFlags { tls, tls_cert, tls_key, listen_plain_http },
                ..
            } = args;
            let certificate = tls_cert.zip(tls_key);
            let tls = tls || certificate.is_some();
            Ok((hooks.server_run)(ServerOptions {
                home,
                daemon,
                listen,
                token_file,
                secrets_key_file,
                auth,
                tls,
                listen_plain_http,
                certificate,
            }))
        }
    }
}

async fn start(json: bool) -> Result<ExitCode, Error> {
    own_home("start")?;
    // One that was killed just now may have taken the connection, and takes it along: then it is started.
    let server = Session::open().await?.call(async |client| client.server().await).await?;
    show(&server, json)
}

async fn stop(json: bool) -> Result<ExitCode, Error> {
    let home = own_home("stop")?;
    let Some(client) = private::connect(&home).await? else { return nothing_runs(json, ExitCode::SUCCESS) };
    let unfinished = client.server().await.map_or(0, |server| server.unfinished_jobs);
    private::stop(&home, &client).await?;
    if json {
        terminal::say_json(&json!({"running": false, "unfinished_jobs": unfinished}))?;
    } else {
        terminal::say("the private server has stopped")?;
        if unfinished > 0 {
            let jobs = if unfinished == 1 { "1 job is" } else { &format!("{unfinished} jobs are") };
            terminal::note(&format!("{jobs} not over and will be found again by the next command"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn status(json: bool) -> Result<ExitCode, Error> {
    let server = match Place::from_environment()? {
        Place::Named(named) => Session::named(&named).await?.client().server().await?,
        Place::Private(home) => match private::connect(&home).await? {
            Some(client) => client.server().await?,
            None => return nothing_runs(json, ExitCode::from(NOT_RUNNING)),
        },
    };
    show(&server, json)
}

fn own_home(verb: &str) -> Result<Home, Error> {
    match Place::from_environment()? {
        Place::Private(home) => Ok(home),
        Place::Named(Named { endpoint, by }) => {
            let local = match by {
                By::Variable => "env -u MUSTER_SERVER muster",
                By::Flag | By::Context(_) => "muster --context local",
            };
            let message = format!("{by} names {endpoint}, which is not this command's to {verb}");
            Err(Error::new(Code::ServerNotPrivate, message)
                .hint(format!("to {verb} the private server: {local} server {verb}")))
        }
    }
}

fn nothing_runs(json: bool, code: ExitCode) -> Result<ExitCode, Error> {
    if json {
        terminal::say_json(&json!({"running": false}))?;
    } else {
        terminal::say("no private server runs; the next command starts one")?;
    }
    Ok(code)
}

fn show(server: &ServerView, json: bool) -> Result<ExitCode, Error> {
    if json {
        let mut value = serde_json::to_value(server).unwrap_or_default();
        if let Value::Object(fields) = &mut value {
            fields.insert("running".into(), Value::Bool(true));
        }
        terminal::say_json(&value)?;
        return Ok(ExitCode::SUCCESS);
    }
    let jobs = if server.unfinished_jobs == 1 { "job" } else { "jobs" };
    let (pid, version, since) = (server.pid, &server.version, server.started_at);
    terminal::say(&format!("running: process {pid}, version {version}, since {since:.0}"))?;
    terminal::say(&format!("  data:   {}", server.home))?;
    terminal::say(&format!("  jobs:   {} unfinished {jobs}", server.unfinished_jobs))?;
    if let Some(fingerprint) = &server.fingerprint {
        terminal::say(&format!("  TLS:    {fingerprint}"))?;
    }
    for node in &server.nodes {
        let state = if node.connected { "" } else { " (away)" };
        terminal::say(&format!(
            "  node:   {} on {}{state}, {} of {} slots in use",
            node.id, node.host, node.slots_used, node.slots
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
