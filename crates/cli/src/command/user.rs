//! `muster user`: the people of a server.

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use muster_api::account::{ChangeUser, CreateUser, Place, PutMember, SetPassword, UserView};
use muster_api::client::Client;
use muster_api::model::Timestamp;
use muster_api::model::account::UserState;
use serde_json::json;

use super::workspace::RoleFlag;
use crate::error::Error;
use crate::session::Session;
use crate::table::Table;
use crate::{duration, password, terminal};

/// List people, make accounts, disable them, set passwords
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster user add ada --workspace nlp --role member
  muster user ls
  muster user set --display-name 王芳  your own
  muster user disable ada             cut off at once; her jobs go on
  muster user passwd                  your own

For servers that people share (`muster server run --auth`).")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List people
    #[command(after_help = "Examples:\n  muster user ls\n  muster user ls --json | jq -r '.[].name'")]
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make somebody an account
    #[command(after_help = "\
Examples:
  muster user add ada --workspace nlp
  muster user add wangfang --display-name 王芳
  muster user add ci --no-password && muster token add ci --user ci --scope write
  pwgen 20 1 | muster user add ada --password-stdin")]
    Add {
        /// What to call them: small letters, digits, -, _, .
        name: String,
        /// What people call them, in any script
        #[arg(long, value_name = "TEXT")]
        display_name: Option<String>,
        /// May do everything
        #[arg(long)]
        admin: bool,
        /// No password: they come in by tokens alone
        #[arg(long, conflicts_with = "password_stdin")]
        no_password: bool,
        /// A member of this workspace
        #[arg(long, value_name = "WORKSPACE")]
        workspace: Option<String>,
        /// What they are there
        #[arg(long, value_enum, default_value_t, requires = "workspace")]
        role: RoleFlag,
        /// The Unix account of their tasks (default: of their name)
        #[arg(long, value_name = "ACCOUNT")]
        account: Option<String>,
        #[command(flatten)]
        password: password::From,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change a user's display name or rights
    #[command(
        after_help = "Examples:\n  muster user set --display-name 王芳      your own\n  muster user set ada --display-name ''    none any more\n  muster user set ada --admin true\n  muster user set ada --account ada.l"
    )]
    Set {
        /// Who (default: you)
        name: Option<String>,
        /// What people call them, in any script; '' for nothing
        #[arg(long, value_name = "TEXT")]
        display_name: Option<String>,
        /// Whether they may do everything
        #[arg(long, value_name = "BOOL")]
        admin: Option<bool>,
        /// The Unix account of their tasks
        #[arg(long, value_name = "ACCOUNT")]
        account: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Cut somebody off: tokens, streams and calls end at once, jobs go on
    #[command(after_help = "Examples:\n  muster user disable ada")]
    Disable {
        /// Who
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Let somebody in again
    #[command(after_help = "Examples:\n  muster user enable ada")]
    Enable {
        /// Who
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Set a password; whoever sets their own is asked for the old one
    #[command(after_help = "\
Examples:
  muster user passwd
  muster user passwd ada              as an admin
  printf '%s\\n' \"$NEW\" | muster user passwd ada --password-stdin
  printf '%s\\n' \"$OLD\" \"$NEW\" | muster user passwd --password-stdin
  muster user passwd ada --end-tokens  somebody may have had the old one

Their other logins are over by it. Tokens that were made for programs stay good, unless --end-tokens says otherwise.")]
    Passwd {
        /// Whose (default: your own)
        name: Option<String>,
        /// End their tokens, too
        #[arg(long)]
        end_tokens: bool,
        #[command(flatten)]
        password: password::From,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    match &args.action {
        Action::Ls { json } => list(&session, *json).await?,
        Action::Add { json, .. } => {
            let user = add(&session, &args.action).await?;
            said(&user, *json, &format!("{} has an account", user.name))?;
        }
        Action::Set { json, .. } => {
            let user = set(&session, &args.action).await?;
            said(&user, *json, &format!("{} is changed", user.name))?;
        }
        Action::Disable { name, json } | Action::Enable { name, json } => {
            let disabled = matches!(args.action, Action::Disable { .. });
            let request = ChangeUser { disabled: Some(disabled), ..ChangeUser::default() };
            let user = session.call(async |client| client.change_user(name, &request).await).await?;
            let what = if disabled { "is cut off; their jobs go on" } else { "may come in again" };
            said(&user, *json, &format!("{name} {what}"))?;
        }
        Action::Passwd { name, end_tokens, password, json } => {
            let user = set_password(&session, name.as_deref(), *password, *end_tokens).await?;
            if *json {
                terminal::say_json(&json!({ "user": user, "tokens_ended": end_tokens }))?;
            } else {
                let what = if *end_tokens { "logins and tokens" } else { "logins" };
                terminal::say(&format!("{user} has a new password; other {what} of theirs are over"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(session: &Session, json: bool) -> Result<(), Error> {
    let users = session.call(async |client| client.users().await).await?.items;
    if json {
        return terminal::say_json(&users);
    }
    let mut table = Table::new(&["NAME", "STATE", "ADMIN", "WORKSPACES", "SINCE"]);
    for user in &users {
        let state = match user.state {
            UserState::Pending => "pending",
            UserState::Active => "active",
            UserState::Disabled => "disabled",
        };
        let admin = if user.admin { "admin" } else { "-" };
        let since = duration::age(user.created_at, Timestamp::now());
        let row = [user.name.clone(), state.into(), admin.into(), places(&user.workspaces), since];
        table.row(row.map(Into::into).into());
    }
    let display_names: Vec<_> = users.iter().map(|user| user.display_name.as_deref()).collect();
    table.insert_after(0, "DISPLAY NAME", &display_names);
    terminal::to_stdout(&table.render(terminal::width(), terminal::stdout_has_colours()))
}

async fn add(session: &Session, action: &Action) -> Result<UserView, Error> {
    let Action::Add { name, display_name, admin, no_password, workspace, role, account, password, .. } =
        action
    else {
        unreachable!("it is called for that one alone")
    };
    if let Some(workspace) = workspace {
        // Before anything is made of it.
        session.call(async |client| client.workspace(workspace).await).await?;
    }
    let password = match no_password {
        true => None,
        false => Some(password.chosen(&format!("A first password for {name}, of 10 characters or more: "))?),
    };
    let request = CreateUser {
        name: name.clone(),
        display_name: display_name.clone(),
        password,
        admin: *admin,
        account: account.clone(),
    };
    let mut user = session.client().create_user(&request).await?;
    if let Some(workspace) = workspace {
        let request = PutMember { role: (*role).into() };
        session.call(async |client| client.put_member(workspace, name, &request).await).await?;
        user = session.call(async |client| client.user(name).await).await?;
    }
    Ok(user)
}

/// Admins change rights; a user may change their own display name as well.
async fn set(session: &Session, action: &Action) -> Result<UserView, Error> {
    let Action::Set { name, display_name, admin, account, .. } = action else {
        unreachable!("it is called for that one alone")
    };
    let name = match name {
        Some(name) => name.clone(),
        None => session.call(async |client| client.whoami().await).await?.user,
    };
    let request = ChangeUser { admin: *admin, account: account.clone(), disabled: None };
    let change = async |client: &Client| client.change_user(&name, &request).await;
    let Some(shown) = display_name else { return session.call(change).await };
    if admin.is_some() || account.is_some() {
        session.call(change).await?;
    }
    session.call(async |client| client.set_display_name(&name, shown).await).await
}

async fn set_password(
    session: &Session,
    name: Option<&str>,
    from: password::From,
    tokens: bool,
) -> Result<String, Error> {
    let me = session.call(async |client| client.whoami().await).await?;
    let name = name.unwrap_or(&me.user).to_owned();
    // Whoever is the server's own user has no password, and needs none.
    let is_own = name == me.user && me.token.is_some();
    let old = if is_own { Some(from.known("The old password: ")?) } else { None };
    let password = from.chosen(&format!("A new password for {name}: "))?;
    session.client().set_password(&name, &SetPassword { password, old, tokens }).await?;
    Ok(name)
}

fn said(user: &UserView, json: bool, text: &str) -> Result<(), Error> {
    if json { terminal::say_json(user) } else { terminal::say(text) }
}

fn places(places: &[Place]) -> String {
    let shown =
        |place: &Place| format!("{} ({})", place.workspace, place.role.map_or("asked", |role| role.as_str()));
    if places.is_empty() { "-".into() } else { places.iter().map(shown).collect::<Vec<_>>().join(", ") }
}
