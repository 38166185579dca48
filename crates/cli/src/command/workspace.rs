//! `muster workspace`: people who share jobs and limits.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use muster_api::account::{CreateWorkspace, PutMember, WorkspaceSettings, WorkspaceView};
use muster_api::model::account::Role;
use muster_api::model::printable;
use serde_json::json;

use crate::error::Error;
use crate::session::Session;
use crate::table::Table;
use crate::{duration, terminal};

/// List workspaces, make them, and say who is what in them
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster workspace add nlp --priority 600 --max-run-time 2d
  muster workspace add-member nlp ada --role lead
  muster workspace show nlp           its members, and who has asked to be one
  muster run --workspace nlp -- python train.py

A viewer sees the jobs of a workspace; a member runs jobs, and has all rights over their own; a lead has a say in \
everybody's, and in who belongs to it.")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(crate) enum RoleFlag {
    Viewer,
    #[default]
    Member,
    Lead,
}

impl From<RoleFlag> for Role {
    fn from(flag: RoleFlag) -> Self {
        match flag {
            RoleFlag::Viewer => Self::Viewer,
            RoleFlag::Member => Self::Member,
            RoleFlag::Lead => Self::Lead,
        }
    }
}

#[derive(Debug, Clone, ClapArgs)]
struct Settings {
    /// What people call it, in any script; '' for nothing
    #[arg(long, value_name = "TEXT")]
    display_name: Option<String>,
    /// The priority of jobs that name none, and the highest that members may name: 1 to 1000, or 0 for the usual one
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<u32>,
    /// The longest that a job may run, such as 2d; 0 for no bound
    #[arg(long, value_name = "DURATION", value_parser = span)]
    max_run_time: Option<Duration>,
}

/// A duration, where nothing is written as 0.
fn span(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { duration::parse(text) }
}

impl From<&Settings> for WorkspaceSettings {
    fn from(given: &Settings) -> Self {
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Self {
            display_name: given.display_name.clone(),
            priority: given.priority,
            max_run_time_ms: given.max_run_time.map(millis),
        }
    }
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the workspaces that you are in
    #[command(
        after_help = "Examples:\n  muster workspace ls\n  muster workspace ls --json | jq -r '.[].name'"
    )]
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a workspace, and who is what there
    #[command(after_help = "Examples:\n  muster workspace show nlp")]
    Show {
        /// Which
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a workspace
    #[command(
        after_help = "Examples:\n  muster workspace add nlp\n  muster workspace add nlp --max-run-time 2d\n  muster workspace add nlp --display-name 自然语言处理"
    )]
    Add {
        /// What to call it: small letters, digits, -, _, .
        name: String,
        #[command(flatten)]
        settings: Settings,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change a workspace
    #[command(
        after_help = "Examples:\n  muster workspace set nlp --priority 700\n  muster workspace set nlp --max-run-time 0"
    )]
    Set {
        /// Which
        name: String,
        #[command(flatten)]
        settings: Settings,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a workspace that has no jobs
    #[command(after_help = "Examples:\n  muster workspace rm nlp")]
    Rm {
        /// Which
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make somebody something in a workspace; say yes to who has asked
    #[command(
        after_help = "Examples:\n  muster workspace add-member nlp ada\n  muster workspace add-member nlp bob --role viewer"
    )]
    AddMember {
        /// Which workspace
        name: String,
        /// Who
        user: String,
        /// What they are to be
        #[arg(long, value_enum, default_value_t)]
        role: RoleFlag,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take somebody out of a workspace; say no to who has asked
    #[command(after_help = "Examples:\n  muster workspace rm-member nlp bob")]
    RmMember {
        /// Which workspace
        name: String,
        /// Who
        user: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Ask to become a member; a lead says yes or no
    #[command(after_help = "Examples:\n  muster workspace join nlp")]
    Join {
        /// Which workspace
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    match &args.action {
        Action::Ls { json } => list(&session, *json).await?,
        Action::Show { name, json } => {
            let one = session.call(async |client| client.workspace(name).await).await?;
            said(&one, *json, described(&one).trim_end())?;
        }
        Action::Add { name, settings, json } => {
            let request = CreateWorkspace { name: name.clone(), settings: settings.into() };
            let one = session.client().create_workspace(&request).await?;
            said(
                &one,
                *json,
                &format!("{name} is there; `muster workspace add-member {name} USER` fills it"),
            )?;
        }
        Action::Set { name, settings, json } => {
            let request = WorkspaceSettings::from(settings);
            let one = session.call(async |client| client.change_workspace(name, &request).await).await?;
            said(&one, *json, &format!("{name} is changed"))?;
        }
        Action::Rm { name, json } => {
            session.client().delete_workspace(name).await?;
            done(*json, name, &format!("{name} is gone"))?;
        }
        Action::AddMember { name, user, role, json } => {
            let request = PutMember { role: (*role).into() };
            let one = session.call(async |client| client.put_member(name, user, &request).await).await?;
            said(&one, *json, &format!("{user} is a {} of {name}", request.role.as_str()))?;
        }
        Action::RmMember { name, user, json } => {
            session.client().delete_member(name, user).await?;
            done(*json, name, &format!("{user} is nothing in {name} any more"))?;
        }
        Action::Join { name, json } => {
            session.client().ask_to_join(name).await?;
            done(*json, name, &format!("if there is a workspace {name}, its leads are asked"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(session: &Session, json: bool) -> Result<(), Error> {
    let workspaces = session.call(async |client| client.workspaces().await).await?.items;
    if json {
        return terminal::say_json(&workspaces);
    }
    if workspaces.is_empty() {
        terminal::hint("you are in no workspace; `muster workspace join NAME` asks to be");
    }
    let mut table = Table::new(&["NAME", "YOU ARE", "MEMBERS", "PRIORITY", "MAX RUN TIME"]);
    for one in &workspaces {
        let row = [
            one.name.clone(),
            one.role.map_or("-", |role| role.as_str()).into(),
            one.members.iter().filter(|member| member.role.is_some()).count().to_string(),
            one.priority.map_or("-".into(), |priority| priority.to_string()),
            longest(one),
        ];
        table.row(row.map(Into::into).into());
    }
    let display_names: Vec<_> = workspaces.iter().map(|one| one.display_name.as_deref()).collect();
    table.insert_after(0, "DISPLAY NAME", &display_names);
    terminal::to_stdout(&table.render(terminal::width(), terminal::stdout_has_colours()))
}

fn longest(one: &WorkspaceView) -> String {
    one.max_run_time_ms.map_or("-".into(), |ms| duration::shown(Duration::from_millis(ms)))
}

fn described(one: &WorkspaceView) -> String {
    let priority = one.priority.map_or("the usual".into(), |priority| priority.to_string());
    let name = printable::inline(&one.name);
    let mut text = format!("{name}\n");
    if let Some(shown) = &one.display_name {
        text.push_str(&format!("  display name  {}\n", printable::inline(shown)));
    }
    text.push_str(&format!("  priority      {priority}\n  max run time  {}\n", longest(one)));
    for member in &one.members {
        let role = member.role.map_or("has asked", |role| role.as_str());
        let shown = member.display_name.as_ref().map(|shown| format!(" ({shown})")).unwrap_or_default();
        let member = format!("{}{shown}", member.user);
        text.push_str(&format!("  {role:<12}  {}\n", printable::inline(&member)));
    }
    text
}

fn said(one: &WorkspaceView, json: bool, text: &str) -> Result<(), Error> {
    if json { terminal::say_json(one) } else { terminal::say(text) }
}

fn done(json: bool, name: &str, text: &str) -> Result<(), Error> {
    if json { terminal::say_json(&json!({ "name": name })) } else { terminal::say(text) }
}
