//! `muster token`: what scripts and machines are known by.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use muster_api::account::{CreateToken, NewToken};
use muster_api::model::Timestamp;
use muster_api::model::account::Scope;
use serde_json::json;

use crate::error::Error;
use crate::session::Session;
use crate::table::Table;
use crate::{duration, terminal};

/// Make, list, rotate and remove tokens
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster token add ci --scope write --workspace nlp --expires 90d
  muster token ls
  muster token rotate tok_4be1c02f7a
  muster token rm tok_4be1c02f7a

A token is shown once. Give it to a program as MUSTER_TOKEN, beside MUSTER_SERVER.")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum ScopeFlag {
    Read,
    #[default]
    Write,
    Admin,
}

impl From<ScopeFlag> for Scope {
    fn from(flag: ScopeFlag) -> Self {
        match flag {
            ScopeFlag::Read => Self::Read,
            ScopeFlag::Write => Self::Write,
            ScopeFlag::Admin => Self::Admin,
        }
    }
}

#[derive(Debug, Clone, ClapArgs)]
struct Whose {
    /// Somebody else's, as an admin
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List tokens; those without a name are logins
    #[command(after_help = "Examples:\n  muster token ls\n  muster token ls --user ada")]
    Ls(Whose),
    /// Make a token, and show its secret this once
    #[command(after_help = "\
Examples:
  muster token add ci
  muster token add dashboard --scope read --expires 30d
  export MUSTER_TOKEN=$(muster token add notebook)

Scopes: read looks at things, write runs jobs and changes them, admin is for people, workspaces and the server. \
A token is never good for more than its owner may do.")]
    Add {
        /// What it is for
        name: String,
        /// What it is good for
        #[arg(long, value_enum, default_value_t)]
        scope: ScopeFlag,
        /// Good in this workspace only
        #[arg(long, value_name = "WORKSPACE")]
        workspace: Option<String>,
        /// Good for so long (default: for ever)
        #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
        expires: Option<Duration>,
        #[command(flatten)]
        whose: Whose,
    },
    /// Give a token another secret; the old one is revoked
    #[command(after_help = "Examples:\n  muster token rotate tok_4be1c02f7a")]
    Rotate {
        /// Its id
        id: String,
        #[command(flatten)]
        whose: Whose,
    },
    /// Remove a token; whoever uses it is cut off
    #[command(after_help = "Examples:\n  muster token rm tok_4be1c02f7a")]
    Rm {
        /// Its id
        id: String,
        #[command(flatten)]
        whose: Whose,
    },
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let whose = match &args.action {
        Action::Ls(whose) => whose,
        Action::Add { whose, .. } | Action::Rotate { whose, .. } | Action::Rm { whose, .. } => whose,
    };
    let user = match &whose.user {
        Some(user) => user.clone(),
        None => session.call(async |client| client.whoami().await).await?.user,
    };
    match &args.action {
        Action::Ls(_) => list(&session, &user, whose.json).await?,
        Action::Add { name, scope, workspace, expires, .. } => {
            let request = CreateToken {
                name: name.clone(),
                scope: (*scope).into(),
                workspace: workspace.clone(),
                expires_in_s: expires.map(|span| span.as_secs()),
            };
            made(&session.client().create_token(&user, &request).await?, whose.json)?;
        }
        Action::Rotate { id, .. } => made(&session.client().rotate_token(&user, id).await?, whose.json)?,
        Action::Rm { id, .. } => {
            session.client().delete_token(&user, id).await?;
            if whose.json {
                terminal::say_json(&json!({ "id": id }))?;
            } else {
                terminal::say(&format!("{id} is revoked"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(session: &Session, user: &str, json: bool) -> Result<(), Error> {
    let tokens = session.call(async |client| client.tokens(user).await).await?.items;
    if json {
        return terminal::say_json(&tokens);
    }
    let mut table = Table::new(&["ID", "NAME", "SCOPE", "WORKSPACE", "MADE", "UNTIL"]);
    for token in &tokens {
        let until = token.expires_at.map_or("-".into(), |end| end.strftime("%F %R").to_string());
        let row = [
            token.id.clone(),
            token.name.clone().unwrap_or_else(|| "(login)".into()),
            token.scope.as_str().into(),
            token.workspace.clone().unwrap_or_else(|| "all".into()),
            duration::age(token.created_at, Timestamp::now()),
            until,
        ];
        table.row(row.map(Into::into).into());
    }
    terminal::to_stdout(&table.render(terminal::width(), terminal::stdout_has_colours()))
}

/// The secret alone on stdout, so that it can be taken into a variable.
fn made(made: &NewToken, json: bool) -> Result<(), Error> {
    if json {
        return terminal::say_json(made);
    }
    terminal::note(&format!("{} is shown this once", made.token.id));
    terminal::say(&made.secret)
}
