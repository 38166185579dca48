//! `muster context`: servers by name, and which of them commands talk to.

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use muster_api::client::Endpoint;
use serde_json::{Value, json};

use crate::contexts::{Context, LOCAL, Store};
use crate::error::Error;
use crate::home::Home;
use crate::place::{self, By, Place};
use crate::table::Table;
use crate::{password, terminal};

/// Name servers, and choose the one that commands talk to
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster context add lab https://head.lab:7717 --fingerprint sha256:4f3c…
  muster context use lab               from now on, in every shell
  muster --context lab ps              once
  export MUSTER_CONTEXT=lab            in this shell
  muster context use local             back to the private server

The context `local` is the private server, which is always there. \
Contexts are kept in contexts.json of MUSTER_HOME, with their tokens, for you alone to read. \
--server and MUSTER_SERVER go before all of them.")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the contexts, and which one commands talk to
    #[command(after_help = "Examples:\n  muster context ls\n  muster context ls --json | jq -r '.[].name'")]
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add a context, or give the one of this name another address or certificate
    #[command(after_help = "\
Examples:
  muster context add lab https://head.lab:7717
  muster context add lab https://10.0.0.5:7717 --fingerprint sha256:4f3c…
  muster context add lab https://10.0.0.5:7717 --fingerprint sha256:77ab… --replace-fingerprint
  ssh head cat /var/lib/muster/token | muster context add lab https://10.0.0.5:7717 --token-stdin

--fingerprint pins the server's certificate, for one that it has made itself: `muster server status` says it on the \
server's machine. Without it the certificate must be of an authority that this machine knows. \
A context keeps its token and its pin as long as its address stays the same; another certificate is pinned only with --replace-fingerprint. \
--token-stdin is for a server without accounts, or for a token of your own; `muster login` gets one for a password.")]
    Add {
        /// What to call it
        name: String,
        /// Where it is: https://HOST:PORT, http://HOST:PORT or unix:/PATH
        url: String,
        /// Talk to it from now on
        #[arg(long = "use")]
        choose: bool,
        /// Pin the certificate of --fingerprint in place of another, or none without it
        #[arg(long)]
        replace_fingerprint: bool,
        /// Read the token that it knows you by from standard input, and keep it
        #[arg(long)]
        token_stdin: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Talk to this server from now on
    #[command(
        after_help = "Examples:\n  muster context use lab\n  muster context use local    the private server"
    )]
    Use {
        /// Which
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a context away, with its token
    #[command(after_help = "Examples:\n  muster context rm lab")]
    Rm {
        /// Which
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a context; without a name the server that commands talk to now, and who says so
    #[command(after_help = "Examples:\n  muster context show\n  muster context show lab --json")]
    Show {
        /// Which
        name: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let store = Store::from_environment()?;
    match &args.action {
        Action::Ls { json } => list(&store, *json)?,
        Action::Add { name, url, choose, replace_fingerprint, token_stdin, json } => {
            let mut context = Context::new(url, place::chosen_fingerprint())?;
            if *token_stdin {
                context.token = Some(token(&context)?);
            }
            store.put_with(name, context, *replace_fingerprint)?;
            if *choose {
                store.choose(name)?;
            }
            done(&store, name, *json, if *choose { "is added and used from now on" } else { "is added" })?;
        }
        Action::Use { name, json } => {
            store.choose(name)?;
            done(&store, name, *json, "is used from now on")?;
            if std::env::var_os("MUSTER_SERVER").is_some_and(|server| !server.is_empty()) {
                terminal::note("MUSTER_SERVER is set in this shell, and goes before it");
            }
        }
        Action::Rm { name, json } => {
            let was_current = store.current()? == *name;
            store.remove(name)?;
            if *json {
                terminal::say_json(&json!({"name": name, "removed": true}))?;
            } else {
                terminal::say(&format!("{name} is taken away"))?;
            }
            if was_current {
                terminal::note("commands talk to the private server again");
            }
        }
        Action::Show { name: Some(name), json } => {
            let all = store.read()?;
            let context = all.find(name)?.cloned();
            show(name, context.as_ref(), all.current() == name, *json)?;
        }
        Action::Show { name: None, json } => show_effective(&store, *json)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A token that was given, if it can be one.
fn token(context: &Context) -> Result<String, Error> {
    let token = password::line("--token-stdin", "token")?;
    let endpoint: Endpoint = context.url.parse().map_err(|error| Error::endpoint("URL", error))?;
    endpoint.with_token(&token).map_err(|error| Error::endpoint("--token-stdin", error))?;
    Ok(token)
}

fn done(store: &Store, name: &str, json: bool, said: &str) -> Result<(), Error> {
    if json {
        let all = store.read()?;
        return terminal::say_json(&document(name, all.find(name)?, all.current() == name));
    }
    terminal::say(&format!("{name} {said}"))
}

fn list(store: &Store, json: bool) -> Result<(), Error> {
    let all = store.read()?;
    let each = std::iter::once((LOCAL, None))
        .chain(all.contexts.iter().map(|(name, context)| (name.as_str(), Some(context))));
    if json {
        let documents: Vec<Value> =
            each.map(|(name, context)| document(name, context, name == all.current())).collect();
        return terminal::say_json(&documents);
    }
    let mut table = Table::new(&["", "NAME", "SERVER", "CERTIFICATE", "TOKEN"]);
    for (name, context) in each {
        let mark = if name == all.current() { "*" } else { "" };
        let certificate = context.and_then(|it| it.fingerprint.as_deref()).map(short);
        table.row(vec![
            mark.into(),
            name.into(),
            context.map_or("the private server", |it| it.url.as_str()).into(),
            certificate.unwrap_or_else(|| "-".into()).into(),
            if context.is_some_and(|it| it.token.is_some()) { "yes" } else { "-" }.into(),
        ]);
    }
    let text = table.render(terminal::width(), terminal::stdout_has_colours());
    terminal::to_stdout(&text)
}

/// Enough to tell two of them apart; `show` has the whole.
fn short(fingerprint: &str) -> String {
    fingerprint.get(..19).map_or_else(|| fingerprint.to_owned(), |begin| format!("{begin}…"))
}

/// Without the token: this is what people paste into bug reports.
fn document(name: &str, context: Option<&Context>, is_current: bool) -> Value {
    json!({
        "name": name,
        "url": context.map(|it| &it.url),
        "fingerprint": context.and_then(|it| it.fingerprint.as_ref()),
        "has_token": context.is_some_and(|it| it.token.is_some()),
        "current": is_current,
    })
}

fn show(name: &str, context: Option<&Context>, is_current: bool, json: bool) -> Result<(), Error> {
    if json {
        return terminal::say_json(&document(name, context, is_current));
    }
    let used = if is_current { ", which commands talk to" } else { "" };
    let Some(context) = context else { return terminal::say(&format!("{name}: the private server{used}")) };
    let certificate = context.fingerprint.as_deref().unwrap_or("of an authority that this machine knows");
    terminal::say(&format!("{name}: {}{used}", context.url))?;
    terminal::say(&format!("  certificate: {certificate}"))?;
    terminal::say(&format!("  token:       {}", if context.token.is_some() { "yes" } else { "none" }))
}

/// What holds for the next command, whoever says so.
fn show_effective(store: &Store, json: bool) -> Result<(), Error> {
    match Place::from_environment()? {
        Place::Named(named) => match &named.by {
            By::Context(name) => {
                let all = store.read()?;
                show(name, all.find(name)?, all.current() == name, json)
            }
            by if json => terminal::say_json(
                &json!({"name": null, "url": named.endpoint.to_string(), "by": by.to_string(),
                    "fingerprint": named.endpoint.fingerprint().map(|it| it.to_string())}),
            ),
            by => terminal::say(&format!("{}, by {by}", named.endpoint)),
        },
        Place::Private(home) => private(&home, json),
    }
}

fn private(home: &Home, json: bool) -> Result<(), Error> {
    if json {
        return terminal::say_json(&document(LOCAL, None, true));
    }
    terminal::say(&format!("{LOCAL}: the private server, in {}", home.folder().display()))
}
