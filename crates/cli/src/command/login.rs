//! `muster login`, `muster logout`, `muster signup`, `muster whoami`: who one is to a server.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use muster_api::account::{Login, NewToken, SignUp, WhoAmI};
use muster_api::client::{self, Client};
use muster_api::model::printable;
use serde_json::json;

use crate::contexts::{Context, LOCAL, Store};
use crate::error::{Code, Error};
use crate::place::{self, By, Named, Place};
use crate::session::Session;
use crate::{password, terminal};

/// How often a server that asks for patience is tried again, and how long it may ask for.
const TRIES: u32 = 5;
const LONGEST_WAIT: u64 = 30;

/// Log in to a server that people share
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster login https://head.lab:7717 --user ada
  muster login https://head.lab:7717 --user ada --name lab --fingerprint sha256:4f3c…
  muster login                        again, to the server in use
  printf '%s\\n' \"$PASSWORD\" | muster login --user ada --password-stdin

The server is known by a name from then on (`muster context ls`), and is the one that commands talk to. \
The password is not kept; what is kept is a token, which `muster logout` ends. \
The first user of a server is `admin`; the password is in the file admin-password of its data directory.")]
pub(crate) struct Args {
    /// The server: https://HOST:PORT; the one in use, if absent
    url: Option<String>,
    /// Who you are there (default: as on this machine)
    #[arg(long, short, value_name = "NAME")]
    user: Option<String>,
    /// What to call the server from now on (default: its host)
    #[arg(long, value_name = "CONTEXT", requires = "url")]
    name: Option<String>,
    #[command(flatten)]
    password: password::From,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Ask for an account on a server that people share
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster signup https://head.lab:7717 --user ada --workspace nlp

A lead of that workspace says yes (`muster workspace add-member nlp ada`); then `muster login` lets you in. \
The server does not tell strangers whether there is such a workspace, or whether the name is free: if nothing comes of it, ask the lead.")]
pub(crate) struct SignUpArgs {
    /// The server: https://HOST:PORT; the one in use, if absent
    url: Option<String>,
    /// What to be called there (default: as on this machine)
    #[arg(long, short, value_name = "NAME")]
    user: Option<String>,
    /// The workspace to become a member of
    #[arg(long, value_name = "WORKSPACE")]
    workspace: String,
    #[command(flatten)]
    password: password::From,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Log out: revoke the token of this machine
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  muster logout\n  muster --context lab logout")]
pub(crate) struct LogoutArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Say who you are to the server, and what you may do
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  muster whoami\n  muster whoami --json | jq -r .user")]
pub(crate) struct WhoamiArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let goal = Goal::find(args.url.as_deref(), args.name.as_deref())?;
    let user = args.user.clone().map_or_else(own_name, Ok)?;
    let client = goal.connect().await?;
    goal.warn();
    let password = args.password.known(&format!("Password of {user}: "))?;
    let made = log_in(&client, &Login { user, password }).await?;
    goal.keep(&made.secret)?;
    if args.json {
        // Where nobody keeps it for them, they get it.
        let secret = goal.name.is_none().then_some(&made.secret);
        let said =
            json!({ "user": made.token.user, "token": made.token, "context": goal.name, "secret": secret });
        terminal::say_json(&said)?;
        return Ok(ExitCode::SUCCESS);
    }
    let until =
        made.token.expires_at.map_or_else(String::new, |end| format!(" until {}", end.strftime("%F")));
    match &goal.name {
        Some(name) => terminal::say(&format!("{} is logged in to {name}{until}", made.token.user))?,
        // Nobody keeps it for them, so they get it.
        None => terminal::say(&made.secret)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Somebody else's failed tries may stand in the way for a moment.
async fn log_in(client: &Client, login: &Login) -> Result<NewToken, Error> {
    for _ in 1..TRIES {
        match client.login(login).await {
            Err(client::Error::Problem(problem)) if problem.code == muster_api::Code::TooManyRequests => {
                let wait = problem.retry_after.unwrap_or(1);
                if wait > LONGEST_WAIT {
                    return Err(client::Error::Problem(problem).into());
                }
                terminal::note(&format!("{}; trying again in {wait} s", problem.detail));
                tokio::time::sleep(Duration::from_secs(wait)).await;
            }
            answer => return Ok(answer?),
        }
    }
    Ok(client.login(login).await?)
}

pub(crate) async fn sign_up(args: &SignUpArgs) -> Result<ExitCode, Error> {
    let goal = Goal::find(args.url.as_deref(), None)?;
    let user = args.user.clone().map_or_else(own_name, Ok)?;
    let client = goal.connect().await?;
    goal.warn();
    let password = args.password.chosen(&format!("A password for {user}, of 10 characters or more: "))?;
    let request = SignUp { user: user.clone(), password, workspace: args.workspace.clone() };
    client.sign_up(&request).await?;
    if args.json {
        terminal::say_json(&json!({ "user": user, "workspace": args.workspace, "state": "pending" }))?;
    } else {
        terminal::say(&format!(
            "asked: if {user} is a free name, a lead of {} can say yes; then `muster login`",
            args.workspace
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn logout(args: &LogoutArgs) -> Result<ExitCode, Error> {
    let Place::Named(Named { endpoint, by }) = Place::from_environment()? else {
        return Err(Error::new(Code::Usage, "the private server knows you without a login")
            .hint("`muster context ls` lists other servers"));
    };
    match Client::connect(endpoint).await?.logout().await {
        Ok(()) => {}
        // It was good no longer already.
        Err(client::Error::Problem(problem)) if problem.code == muster_api::Code::Unauthorized => {}
        Err(error) => return Err(error.into()),
    }
    if let By::Context(name) = &by {
        Store::from_environment()?.update(name, |context| context.token = None)?;
    }
    if args.json {
        terminal::say_json(&json!({ "logged_out": true }))?;
    } else {
        terminal::say("logged out")?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn whoami(args: &WhoamiArgs) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let me = session.call(async |client| client.whoami().await).await?;
    if args.json {
        terminal::say_json(&me)?;
    } else {
        terminal::to_stdout(&format!("{}\n", described(&me)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn described(me: &WhoAmI) -> String {
    if !me.accounts {
        return format!("{}, on a server that is one person's own", me.user);
    }
    let mut lines = vec![match (me.admin, me.token.is_some()) {
        (true, false) => format!("{}, the server's own user, who may do everything", me.user),
        (true, true) => format!("{}, an admin", me.user),
        (false, _) => me.user.clone(),
    }];
    for place in &me.workspaces {
        let role = place.role.map_or("asked to join", |role| role.as_str());
        lines.push(format!("  {role} of {}", place.workspace));
    }
    if me.workspaces.is_empty() && !me.admin {
        lines.push("  a member of no workspace; `muster workspace join NAME` asks to be".into());
    }
    if me.token.is_some() {
        lines.push(format!("  with a token that is good to {}", me.scope.as_str()));
    }
    lines.iter().map(|line| printable::inline(line)).collect::<Vec<_>>().join("\n")
}

/// Where somebody logs in, and under which name that is kept.
struct Goal {
    endpoint: client::Endpoint,
    name: Option<String>,
    /// The context as it is to be, if it is a new one.
    new: Option<Context>,
}

impl Goal {
    fn find(url: Option<&str>, name: Option<&str>) -> Result<Self, Error> {
        let Some(url) = url else {
            return match Place::from_environment()? {
                Place::Named(Named { endpoint, by }) => {
                    let name = if let By::Context(name) = by { Some(name) } else { None };
                    Ok(Self { endpoint, name, new: None })
                }
                Place::Private(_) => {
                    Err(Error::new(Code::Usage, "which server? The private one knows you without a login")
                        .hint("muster login https://HOST:PORT --user NAME"))
                }
            };
        };
        let pinned = std::env::var("MUSTER_FINGERPRINT").ok().filter(|pinned| !pinned.is_empty());
        let name = name.map_or_else(|| host_of(url), str::to_owned);
        let known = Store::from_environment()?.get(&name)?;
        let context = Context::new(url, place::chosen_fingerprint().or(pinned.as_deref()))?;
        // A server that is known already must show what it has shown before.
        let context = context.renewed(&name, known, false)?;
        let wrong = |error| Error::endpoint("URL", error);
        let mut endpoint: client::Endpoint = context.url.parse().map_err(wrong)?;
        if let Some(fingerprint) = &context.fingerprint {
            endpoint = endpoint.with_fingerprint(fingerprint).map_err(wrong)?;
        }
        Ok(Self { endpoint, name: Some(name), new: Some(context) })
    }

    async fn connect(&self) -> Result<Client, Error> {
        Ok(Client::connect(self.endpoint.clone()).await?)
    }

    /// Where somebody on the way could read the password.
    fn warn(&self) {
        let url = self.endpoint.to_string();
        let host = url.strip_prefix("http://").unwrap_or_default();
        let is_near = ["127.", "localhost", "[::1]"].iter().any(|near| host.starts_with(near));
        if !host.is_empty() && !is_near {
            terminal::note(&format!("{url} is not encrypted: whoever is on the way can read the password"));
        }
    }

    fn keep(&self, secret: &str) -> Result<(), Error> {
        let Some(name) = &self.name else { return Ok(()) };
        let store = Store::from_environment()?;
        if let Some(context) = &self.new {
            let mut context = context.clone();
            context.token = Some(secret.to_owned());
            store.put(name, context)?;
            return store.choose(name);
        }
        store.update(name, |context| context.token = Some(secret.to_owned()))
    }
}

/// What a server is called by those who do not say.
fn host_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = match rest.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default().replace(':', "-"),
        None => rest.split(['/', ':']).next().unwrap_or_default().to_owned(),
    };
    let name = host.trim_matches('-');
    if name.is_empty() || name == LOCAL { "server".into() } else { name.to_owned() }
}

fn own_name() -> Result<String, Error> {
    let name = std::env::var("USER").ok().filter(|name| !name.is_empty());
    name.ok_or_else(|| Error::new(Code::Usage, "who are you? --user NAME"))
}
