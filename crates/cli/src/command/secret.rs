//! `muster secret`: what tasks are given that nobody is shown.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use jiff::Timestamp;
use muster_api::account::Place;
use muster_api::model::account::Role;
use muster_api::model::spec::MAX_SECRET;
use serde_json::json;

use crate::error::{Code, Error};
use crate::session::Session;
use crate::table::Table;
use crate::{duration, password, terminal};

/// The workspace of whoever names none.
const DEFAULT: &str = "default";

/// Put, list and remove secrets that tasks are given
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster secret put HF_TOKEN                     asks for the value, unseen
  printenv HF_TOKEN | muster secret put HF_TOKEN
  muster secret put cluster --from-file ~/.kube/config
  muster run --secret HF_TOKEN --secret cluster=file:config -- python train.py
  muster secret ls

A secret belongs to a workspace; its members put it, and give it to their jobs by its name. There is no way to read it back. \
Files are in the directory that MUSTER_SECRETS_DIR names.")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, ClapArgs)]
struct Of {
    /// Of this workspace (default: yours, if you are in one alone, or `default`)
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Put a secret, or another value in its place; tasks that start from then on get it
    #[command(
        after_help = "Examples:\n  muster secret put HF_TOKEN\n  muster secret put cluster --from-file ~/.kube/config"
    )]
    Put {
        /// What to call it: letters, digits, _, -
        name: String,
        /// Take the value from this file, as it is; `-` is standard input
        #[arg(long, value_name = "FILE")]
        from_file: Option<PathBuf>,
        #[command(flatten)]
        of: Of,
    },
    /// List secrets: names, and who has put them when
    #[command(after_help = "Examples:\n  muster secret ls\n  muster secret ls --json | jq -r '.[].name'")]
    Ls {
        #[command(flatten)]
        of: Of,
    },
    /// Remove a secret; tasks that have it keep it until they end
    #[command(after_help = "Examples:\n  muster secret rm HF_TOKEN")]
    Rm {
        /// Which
        name: String,
        #[command(flatten)]
        of: Of,
    },
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    match &args.action {
        Action::Put { name, from_file, of } => {
            // Before anything is started or asked: whoever types a value wants it to be of use.
            let value = value(name, from_file.as_deref())?;
            let session = Session::open().await?;
            let workspace = workspace(&session, of).await?;
            let put = session.client().put_secret(&workspace, name, value).await?;
            match of.json {
                true => terminal::say_json(&put)?,
                false => terminal::say(&format!(
                    "{name} is there; `muster run --secret {name}` gives it to a job"
                ))?,
            }
        }
        Action::Ls { of } => list(&Session::open().await?, of).await?,
        Action::Rm { name, of } => {
            let session = Session::open().await?;
            let workspace = workspace(&session, of).await?;
            session.client().remove_secret(&workspace, name).await?;
            match of.json {
                true => terminal::say_json(&json!({ "workspace": workspace, "name": name }))?,
                false => terminal::say(&format!("{name} is gone"))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(session: &Session, of: &Of) -> Result<(), Error> {
    let workspace = workspace(session, of).await?;
    let secrets = session.call(async |client| client.secrets(&workspace).await).await?.items;
    if of.json {
        return terminal::say_json(&secrets);
    }
    if secrets.is_empty() {
        terminal::hint(&format!("{workspace} has no secrets; `muster secret put NAME` puts one there"));
    }
    let mut table = Table::new(&["NAME", "BYTES", "PUT BY", "PUT"]);
    for one in &secrets {
        let row = [
            one.name.clone(),
            one.size.to_string(),
            one.put_by.clone(),
            duration::age(one.put_at, Timestamp::now()),
        ];
        table.row(row.map(Into::into).into());
    }
    terminal::to_stdout(&table.render(terminal::width(), terminal::stdout_has_colours()))
}

/// The workspace that a job would be of that names none.
async fn workspace(session: &Session, of: &Of) -> Result<String, Error> {
    if let Some(name) = &of.workspace {
        return Ok(name.clone());
    }
    let me = session.call(async |client| client.whoami().await).await?;
    let is_able = |place: &&Place| place.role >= Some(Role::Member);
    let able: Vec<&str> =
        me.workspaces.iter().filter(is_able).map(|place| place.workspace.as_str()).collect();
    match able[..] {
        [only] if me.accounts => Ok(only.to_owned()),
        _ if !me.accounts || able.contains(&DEFAULT) || (able.is_empty() && me.admin) => {
            Ok(DEFAULT.to_owned())
        }
        [] => Err(Error::new(Code::Usage, "you are a member of no workspace, and so have no secrets")
            .hint("a lead can make you one: `muster workspace add-member WORKSPACE YOU`")),
        _ => Err(Error::new(Code::Usage, format!("you are in several workspaces: {}", able.join(", ")))
            .hint("name one with --workspace")),
    }
}

/// As it is in a file; a line that is typed or piped is without its end.
fn value(name: &str, file: Option<&Path>) -> Result<Vec<u8>, Error> {
    let stdin = || io::stdin().lock();
    match file {
        Some(path) if path == Path::new("-") => bytes(stdin(), "standard input"),
        Some(path) => {
            let shown = path.display().to_string();
            let file = File::open(path)
                .map_err(|error| Error::io(Code::SystemFailed, format!("open {shown}"), &error))?;
            bytes(file, &shown)
        }
        None if io::stdin().is_terminal() => Ok(password::unseen(name)?.into_bytes()),
        None => {
            let mut value = bytes(stdin(), "standard input")?;
            // What `echo` and `printenv` add is not a part of it.
            if value.last() == Some(&b'\n') {
                value.pop();
            }
            Ok(value)
        }
    }
}

fn bytes(from: impl Read, what: &str) -> Result<Vec<u8>, Error> {
    let mut value = Vec::new();
    let failed = |error: io::Error| Error::io(Code::SystemFailed, format!("read {what}"), &error);
    from.take(MAX_SECRET as u64 + 1).read_to_end(&mut value).map_err(failed)?;
    if value.len() > MAX_SECRET {
        let message = format!("{what} has more than {MAX_SECRET} bytes, the most a secret may have");
        return Err(Error::new(Code::Usage, message).hint("keep large files in a volume or beside your code"));
    }
    Ok(value)
}
