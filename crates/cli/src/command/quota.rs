//! `muster quota`: who may have what, who has what, and what one can get now.

mod amount;
pub(crate) mod tables;

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use muster_api::model::quota::EVERYBODY;
use muster_api::quota::{ChangeQuota, ChangeUserQuota, QuotaQuery, QuotaView};
use serde_json::json;

use self::amount::{Limit, cpus, gpus, memory, model, weight};
use crate::error::Error;
use crate::session::Session;
use crate::terminal;

/// Show what workspaces may have and have, and what you can get now; or change it
#[derive(Debug, ClapArgs)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  muster quota                                   who has what, and what starts now
  muster quota --workspace vision
  muster quota set vision --gpus 16 --model H100=8,borrow=4,lend=0 --cpus 200 --memory 2TB --weight 2
  muster quota set vision --gpus unlimited
  muster quota user ada --max-running 8
  muster quota clear vision

What is a workspace's own it gets back whenever it wants it: until then others may borrow what it leaves idle, unless it \
lends less. A resource without a quota has no bound."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Only this workspace, and what you can get there
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Say what a workspace may have; what is not named stays
    #[command(after_help = "\
Examples:
  muster quota set vision --gpus 16
  muster quota set vision --model H100=8,borrow=4,lend=0
  muster quota set vision --cpus 200 --memory 2TB --weight 2
  muster quota set vision --gpus unlimited

AMOUNT is what is its own, then how much more it may borrow of what others leave idle, and how much of its own it lends \
while it is idle: 16,borrow=4,lend=0. Without them both are without end.")]
    Set(Box<SetArgs>),
    /// Say how much one user may run at once, or everybody
    #[command(after_help = "\
Examples:
  muster quota user ada --max-running 8
  muster quota user ada --max-running 0        as many as everybody again
  muster quota user --everybody --max-running 16
  muster quota user ada --weight 0.5")]
    User(UserArgs),
    /// Let a workspace have everything again, as if nothing had been said of it
    #[command(
        after_help = "Examples:\n  muster quota clear vision\n  muster quota clear --user ada\n  muster quota clear --everybody"
    )]
    Clear(ClearArgs),
}

#[derive(Debug, ClapArgs)]
struct SetArgs {
    /// Which
    workspace: String,
    /// Devices of all models together
    #[arg(long, value_name = "AMOUNT", value_parser = gpus)]
    gpus: Option<Limit>,
    /// Devices of one model
    #[arg(long, value_name = "MODEL=AMOUNT", value_parser = model)]
    model: Vec<(String, Limit)>,
    /// CPUs
    #[arg(long, value_name = "AMOUNT", value_parser = cpus)]
    cpus: Option<Limit>,
    /// Memory, such as 2TB
    #[arg(long, value_name = "AMOUNT", value_parser = memory)]
    memory: Option<Limit>,
    /// Its part of what is fair beside the others'; 1 is what everybody has
    #[arg(long, value_name = "NUMBER", value_parser = weight)]
    weight: Option<f64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, ClapArgs)]
struct UserArgs {
    /// Who
    #[arg(required_unless_present = "everybody")]
    user: Option<String>,
    /// Whoever has no limit of their own
    #[arg(long, conflicts_with = "user")]
    everybody: bool,
    /// How many jobs, or elements of arrays, may run at once; 0 for no limit of their own
    #[arg(long, value_name = "NUMBER")]
    max_running: Option<u32>,
    /// Their part of what is fair beside the others' of a workspace; 1 is what everybody has
    #[arg(long, value_name = "NUMBER", value_parser = weight, conflicts_with = "everybody")]
    weight: Option<f64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, ClapArgs)]
struct ClearArgs {
    /// Which
    #[arg(required_unless_present_any = ["user", "everybody"])]
    workspace: Option<String>,
    /// What is said of a user, instead
    #[arg(long, value_name = "NAME", conflicts_with = "workspace")]
    user: Option<String>,
    /// What is said of everybody, instead
    #[arg(long, conflicts_with_all = ["workspace", "user"])]
    everybody: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    match &args.action {
        None => show(args).await?,
        Some(Action::Set(args)) => set(args).await?,
        Some(Action::User(args)) => set_user(args).await?,
        Some(Action::Clear(args)) => clear(args).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(args: &Args) -> Result<(), Error> {
    let session = Session::open().await?;
    let query = QuotaQuery { workspace: args.workspace.clone() };
    let view = session.call(async |client| client.quota(&query).await).await?;
    if args.json {
        return terminal::say_json(&view);
    }
    let (width, colours) = (terminal::width(), terminal::stdout_has_colours());
    let texts: Vec<String> = tables::all(&view).iter().map(|table| table.render(width, colours)).collect();
    terminal::to_stdout(&texts.join("\n"))?;
    if view.workspaces.is_empty() {
        terminal::hint(&unbounded(&view));
    }
    Ok(())
}

fn unbounded(view: &QuotaView) -> String {
    let name = view.workspace.as_deref().unwrap_or("WORKSPACE");
    format!("no workspace has a quota or uses anything; `muster quota set {name} --gpus 8` would give it one")
}

async fn set(args: &SetArgs) -> Result<(), Error> {
    let mut change = ChangeQuota { weight: args.weight, ..ChangeQuota::default() };
    let plain = [
        ("gpus", args.gpus, &mut change.gpus),
        ("cpu_millis", args.cpus, &mut change.cpu_millis),
        ("memory_bytes", args.memory, &mut change.memory_bytes),
    ];
    for (name, limit, field) in plain {
        match limit {
            Some(Limit::Quota(quota)) => *field = Some(quota),
            Some(Limit::Unlimited) => change.unlimited.push(name.into()),
            None => {}
        }
    }
    for (model, limit) in &args.model {
        match limit {
            Limit::Quota(quota) => drop(change.models.insert(model.clone(), *quota)),
            Limit::Unlimited => change.unlimited.push(model.clone()),
        }
    }
    let session = Session::open().await?;
    let workspace = &args.workspace;
    let quota = session.call(async |client| client.change_quota(workspace, &change).await).await?;
    match args.json {
        true => terminal::say_json(&quota),
        false => terminal::say(&format!("{workspace}: {}", tables::words(&quota))),
    }
}

async fn set_user(args: &UserArgs) -> Result<(), Error> {
    let user = args.user.as_deref().unwrap_or(EVERYBODY);
    let change = ChangeUserQuota { weight: args.weight, max_running: args.max_running };
    let session = Session::open().await?;
    let quota = session.call(async |client| client.change_user_quota(user, &change).await).await?;
    if args.json {
        return terminal::say_json(&quota);
    }
    let who = if user == EVERYBODY { "everybody" } else { user };
    let most = match quota.max_running {
        Some(most) => format!("runs at most {most} at once"),
        None if user == EVERYBODY => "has no limit".into(),
        None => "runs as many at once as everybody".into(),
    };
    let weight = if quota.weight == 1.0 { String::new() } else { format!(", weight {}", quota.weight) };
    terminal::say(&format!("{who} {most}{weight}"))
}

async fn clear(args: &ClearArgs) -> Result<(), Error> {
    let session = Session::open().await?;
    let user = args.user.as_deref().or(args.everybody.then_some(EVERYBODY));
    match (user, &args.workspace) {
        (Some(user), _) => session.call(async |client| client.clear_user_quota(user).await).await?,
        (None, Some(name)) => session.call(async |client| client.clear_quota(name).await).await?,
        (None, None) => {}
    }
    let name = user.or(args.workspace.as_deref()).unwrap_or_default();
    let shown = if name == EVERYBODY { "everybody" } else { name };
    match args.json {
        true => terminal::say_json(&json!({ "name": name })),
        false => terminal::say(&format!("{shown} has no quota")),
    }
}
