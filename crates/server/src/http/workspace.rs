//! Workspaces, and who is what in them.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use muster_api::account::{
    CreateWorkspace, MemberView, PutMember, WorkspaceList, WorkspaceSettings, WorkspaceView,
};
use muster_api::problem::{Code, Problem};
use muster_model::account::{Membership, Role, User, UserState, Workspace, check_name};
use muster_model::display_name;
use muster_model::spec::{FieldCode, FieldError, MAX_PRIORITY};
use muster_store::AccountChange;

use super::account::{accounts, refuse};
use super::describe::{Always, Conflicts, OnPerson, OnWorkspace, Reads, Takes};
use super::failure::{Failure, Json, Segment, Segments};
use crate::accounts::{Caller, Directory};
use crate::core::{DEFAULT_WORKSPACE, now};
use crate::state::Shared;

/// The longest time that can be asked for: a year.
const LONGEST_MS: u64 = 366 * 86_400_000;

/// List the workspaces that the caller is something in; admins see all.
#[utoipa::path(get, path = "/api/v1/workspaces", tag = "people", operation_id = "list_workspaces",
    responses((status = 200, body = WorkspaceList), Always, Conflicts))]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
) -> Result<Json<WorkspaceList>, Failure> {
    let items = accounts(&shared)?.look(|directory| {
        let sees = |one: &&Workspace| caller.rights.role(&one.name).is_some();
        directory.workspaces().filter(sees).map(|one| view(directory, one, &caller)).collect()
    });
    Ok(Json(WorkspaceList { items }))
}

/// Make a workspace.
#[utoipa::path(post, path = "/api/v1/workspaces", tag = "people", operation_id = "create_workspace",
    request_body = CreateWorkspace, responses((status = 201, body = WorkspaceView), Always, Reads, Takes, Conflicts))]
pub(super) async fn create(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Json(request): Json<CreateWorkspace>,
) -> Result<(StatusCode, Json<WorkspaceView>), Failure> {
    let accounts = accounts(&shared)?;
    let name = check_name("name", &request.name).err();
    refuse(name.into_iter().chain(wrong(&request.settings)).collect())?;
    let empty = Workspace {
        name: request.name,
        display_name: None,
        priority: None,
        max_run_time: None,
        created_at: now(),
    };
    let made = with(empty, &request.settings);
    let (entry, workspace) = (caller.audit("create_workspace", made.name.clone(), "done"), made.clone());
    let decide = move |directory: &Directory| {
        if directory.workspace(&workspace.name).is_some() {
            let what = format!("there is a workspace `{}` already", workspace.name);
            return Err(Problem::new(Code::NameTaken, what).hint("`muster workspace set` changes it"));
        }
        Ok((vec![AccountChange::Workspace(workspace)], ()))
    };
    accounts.change(&shared.core, Some(&caller), entry, decide).await?;
    Ok((StatusCode::CREATED, Json(accounts.look(|directory| view(directory, &made, &caller)))))
}

/// Show a workspace, and who is what there.
#[utoipa::path(get, path = "/api/v1/workspaces/{workspace}", tag = "people", operation_id = "show_workspace",
    params(("workspace" = String, Path, description = "its name")),
    responses((status = 200, body = WorkspaceView), Always, OnWorkspace, Conflicts))]
pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segment(name): Segment,
) -> Result<Json<WorkspaceView>, Failure> {
    let found = accounts(&shared)?
        .look(|directory| directory.require_workspace(&name).map(|one| view(directory, one, &caller)));
    Ok(Json(found?))
}

/// Change a workspace: what is absent stays, and 0 or an empty text takes it away.
#[utoipa::path(patch, path = "/api/v1/workspaces/{workspace}", tag = "people", operation_id = "change_workspace",
    params(("workspace" = String, Path, description = "its name")), request_body = WorkspaceSettings,
    responses((status = 200, body = WorkspaceView), Always, OnWorkspace, Reads, Takes, Conflicts))]
pub(super) async fn change(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segment(name): Segment,
    Json(request): Json<WorkspaceSettings>,
) -> Result<Json<WorkspaceView>, Failure> {
    let accounts = accounts(&shared)?;
    refuse(wrong(&request).collect())?;
    let mut entry = caller.audit("change_workspace", name.clone(), "done");
    entry.detail = serde_json::to_value(&request).ok();
    let decide = move |directory: &Directory| {
        let workspace = with(directory.require_workspace(&name)?.clone(), &request);
        Ok((vec![AccountChange::Workspace(workspace.clone())], workspace))
    };
    let made = accounts.change(&shared.core, Some(&caller), entry, decide).await?;
    Ok(Json(accounts.look(|directory| view(directory, &made, &caller))))
}

/// Remove a workspace that has no jobs any more.
#[utoipa::path(delete, path = "/api/v1/workspaces/{workspace}", tag = "people", operation_id = "remove_workspace",
    params(("workspace" = String, Path, description = "its name")),
    responses((status = 204, description = "It is gone."), Always, OnWorkspace, Conflicts))]
pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segment(name): Segment,
) -> Result<StatusCode, Failure> {
    let accounts = accounts(&shared)?;
    if name == DEFAULT_WORKSPACE {
        let what = format!("{DEFAULT_WORKSPACE} is the workspace of jobs that name none, and stays");
        return Err(Problem::new(Code::InvalidState, what).into());
    }
    let entry = caller.audit("remove_workspace", name.clone(), "done");
    let decide = move |directory: &Directory| {
        directory.require_workspace(&name)?;
        Ok((vec![AccountChange::RemoveWorkspace(name)], ()))
    };
    accounts.change(&shared.core, Some(&caller), entry, decide).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Make somebody something in a workspace; who has asked for an account has one from then on.
#[utoipa::path(put, path = "/api/v1/workspaces/{workspace}/members/{user}", tag = "people", operation_id = "put_member",
    params(("workspace" = String, Path, description = "its name"), ("user" = String, Path, description = "their name")),
    request_body = PutMember,
    responses((status = 200, body = WorkspaceView), Always, OnWorkspace, OnPerson, Reads, Takes, Conflicts))]
pub(super) async fn put_member(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segments((workspace, name)): Segments<(String, String)>,
    Json(request): Json<PutMember>,
) -> Result<Json<WorkspaceView>, Failure> {
    let accounts = accounts(&shared)?;
    let entry = caller.audit("put_member", format!("{workspace} {name} {}", request.role.as_str()), "done");
    let (is_admin, of) = (caller.rights.is_admin(), workspace.clone());
    let decide = move |directory: &Directory| {
        directory.require_workspace(&of)?;
        let user = directory.require_user(&name)?;
        let has_asked = directory.membership(&name, &of).is_some();
        let mut changes = Vec::new();
        if user.state == UserState::Pending {
            if !has_asked && !is_admin {
                return Err(Problem::new(Code::Forbidden, format!("{name} has not asked for {of}"))
                    .hint("a lead of the workspace that they asked for decides, or an admin"));
            }
            changes.push(AccountChange::User(User { state: UserState::Active, ..user.clone() }));
        }
        let membership = Membership { workspace: of, user: name, role: Some(request.role), since: now() };
        changes.push(AccountChange::Membership(membership));
        Ok((changes, ()))
    };
    accounts.change(&shared.core, Some(&caller), entry, decide).await?;
    let found = accounts
        .look(|directory| directory.require_workspace(&workspace).map(|one| view(directory, one, &caller)));
    Ok(Json(found?))
}

/// Take somebody out of a workspace, or say no to who has asked. Their jobs there go on, out of their sight.
#[utoipa::path(delete, path = "/api/v1/workspaces/{workspace}/members/{user}", tag = "people", operation_id = "remove_member",
    params(("workspace" = String, Path, description = "its name"), ("user" = String, Path, description = "their name")),
    responses((status = 204, description = "They are nothing there any more."), Always, OnWorkspace, OnPerson, Conflicts))]
pub(super) async fn remove_member(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segments((workspace, name)): Segments<(String, String)>,
) -> Result<StatusCode, Failure> {
    let accounts = accounts(&shared)?;
    let entry = caller.audit("remove_member", format!("{workspace} {name}"), "done");
    let decide = move |directory: &Directory| {
        directory.require_workspace(&workspace)?;
        let user = directory.require_user(&name)?;
        if directory.membership(&name, &workspace).is_none() {
            let what = format!("{name} is nothing in {workspace}");
            return Err(Problem::new(Code::NotFound, what).hint("`muster workspace show` lists its members"));
        }
        let is_alone = directory.memberships_of(&name).count() == 1;
        // An account that was only asked for is not there if nobody wants it.
        let change = match user.state == UserState::Pending && is_alone {
            true => AccountChange::RemoveUser(name),
            false => AccountChange::RemoveMembership { workspace, user: name },
        };
        Ok((vec![change], ()))
    };
    accounts.change(&shared.core, Some(&caller), entry, decide).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ask to become a member of a workspace; its leads decide.
///
/// The answer is the same whether or not there is such a workspace.
#[utoipa::path(post, path = "/api/v1/workspaces/{workspace}/requests", tag = "people", operation_id = "ask_to_join",
    params(("workspace" = String, Path, description = "its name")),
    responses((status = 202, description = "Its leads decide."), Always, OnPerson, Conflicts))]
pub(super) async fn ask_to_join(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segment(workspace): Segment,
) -> Result<StatusCode, Failure> {
    let accounts = accounts(&shared)?;
    let entry = caller.audit("ask_to_join", workspace.clone(), "done");
    let name = caller.name.clone();
    let decide = move |directory: &Directory| {
        directory.require_user(&name)?;
        let is_there = directory.workspace(&workspace).is_some();
        let is_known = directory.membership(&name, &workspace).is_some();
        let asks = Membership { workspace, user: name, role: None, since: now() };
        // Who is something there already, or has asked, has nothing to ask for.
        let changes = if is_there && !is_known { vec![AccountChange::Membership(asks)] } else { Vec::new() };
        Ok((changes, ()))
    };
    accounts.change(&shared.core, Some(&caller), entry, decide).await?;
    Ok(StatusCode::ACCEPTED)
}

fn wrong(settings: &WorkspaceSettings) -> impl Iterator<Item = FieldError> {
    let range = |field, value: u64, most| {
        FieldError::new(field, FieldCode::OutOfRange, format!("{value} is not from 0 to {most}"))
    };
    let priority = settings.priority.filter(|value| *value > MAX_PRIORITY);
    let longest = settings.max_run_time_ms.filter(|value| *value > LONGEST_MS);
    [
        display_name::change("display_name", settings.display_name.as_deref(), None).err(),
        priority.map(|value| range("priority", value.into(), u64::from(MAX_PRIORITY))),
        longest.map(|value| range("max_run_time_ms", value, LONGEST_MS)),
    ]
    .into_iter()
    .flatten()
}

fn with(before: Workspace, settings: &WorkspaceSettings) -> Workspace {
    let priority = settings.priority.or(before.priority).filter(|value| *value > 0);
    let longest = settings.max_run_time_ms.map(Duration::from_millis).or(before.max_run_time);
    let display_name = match settings.display_name.as_deref() {
        None => before.display_name,
        Some(text) => Some(display_name::normalized(text)).filter(|text| !text.is_empty()),
    };
    Workspace { display_name, priority, max_run_time: longest.filter(|span| !span.is_zero()), ..before }
}

fn view(directory: &Directory, workspace: &Workspace, caller: &Caller) -> WorkspaceView {
    let role = caller.rights.role(&workspace.name);
    let members = directory.members(&workspace.name);
    // Who has asked is for those who decide.
    let members = members.filter(|one| one.role.is_some() || role == Some(Role::Lead));
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    WorkspaceView {
        name: workspace.name.clone(),
        display_name: workspace.display_name.clone(),
        priority: workspace.priority,
        max_run_time_ms: workspace.max_run_time.map(millis),
        created_at: workspace.created_at,
        role,
        members: members
            .map(|one| MemberView {
                user: one.user.clone(),
                display_name: directory.user(&one.user).and_then(|user| user.display_name.clone()),
                role: one.role,
                since: one.since,
            })
            .collect(),
    }
}
