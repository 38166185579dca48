//! Quotas: who may have what, who has what, and what somebody can get now.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use muster_api::problem::Problem;
use muster_api::quota::{ChangeQuota, ChangeUserQuota, QuotaQuery, QuotaView};
use muster_model::account::Role;
use muster_model::quota::{EVERYBODY, UserQuota, WorkspaceQuota};
use muster_model::spec::{FieldCode, FieldError};
use muster_store::NewAudit;
use serde_json::Value;

use super::describe::{Always, OnPerson, OnWorkspace, Reads, Takes};
use super::failure::{Failure, Json, Params, Segment};
use super::job::read;
use super::secret::check_workspace;
use crate::accounts::{Caller, no_workspace};
use crate::audit;
use crate::core::{DEFAULT_WORKSPACE, Input, QuotaAsked, QuotaChange};
use crate::state::Shared;

/// The longest name of somebody that is taken where nobody has an account.
const MAX_NAME: usize = 64;

/// Who may have what, who has what, and what the caller can get now.
#[utoipa::path(get, path = "/api/v1/quota", tag = "quota", operation_id = "show_quota", params(QuotaQuery),
    responses((status = 200, body = QuotaView), Always, OnWorkspace, Reads))]
pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Params(query): Params<QuotaQuery>,
) -> Result<Json<QuotaView>, Failure> {
    if let Some(name) = &query.workspace {
        check_workspace(&shared, name)?;
        if caller.rights.role(name).is_none() {
            return Err(no_workspace(name).into());
        }
    }
    shared.core.ask(Input::Settled).await?;
    let asked = QuotaAsked {
        sight: caller.rights.sight(),
        user: caller.name.clone(),
        is_admin: caller.rights.is_admin(),
        workspace: query.workspace.clone().or_else(|| own_workspace(&shared, &caller)),
        only: query.workspace,
    };
    let (view, offers) = shared.core.ask(|reply| Input::QuotaView(Box::new(asked), reply)).await?;
    let available = read(&shared, move |_| Ok(offers.find())).await?;
    Ok(Json(QuotaView { available, ..view }))
}

/// Change what a workspace may have: what is absent stays.
#[utoipa::path(patch, path = "/api/v1/quota/workspaces/{workspace}", tag = "quota", operation_id = "change_quota",
    params(("workspace" = String, Path, description = "its name; `default` on a server without accounts")),
    request_body = ChangeQuota,
    responses((status = 200, body = WorkspaceQuota), Always, OnWorkspace, Reads, Takes))]
pub(super) async fn change(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segment(workspace): Segment,
    Json(request): Json<ChangeQuota>,
) -> Result<Json<WorkspaceQuota>, Failure> {
    check_workspace(&shared, &workspace)?;
    let detail = serde_json::to_value(&request).ok();
    let change = QuotaChange::Workspace(workspace.clone(), request);
    put(&shared, &caller, ("change_quota", &workspace), detail, change).await?;
    let quotas = shared.core.ask(Input::Quotas).await?;
    Ok(Json(quotas.workspaces.get(&workspace).cloned().unwrap_or_default()))
}

/// Say nothing of a workspace any more: it may have everything, and is as much as any other.
#[utoipa::path(delete, path = "/api/v1/quota/workspaces/{workspace}", tag = "quota", operation_id = "clear_quota",
    params(("workspace" = String, Path, description = "its name; `default` on a server without accounts")),
    responses((status = 204, description = "It has no quota."), Always, OnWorkspace, Reads))]
pub(super) async fn clear(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segment(workspace): Segment,
) -> Result<StatusCode, Failure> {
    check_workspace(&shared, &workspace)?;
    let change = QuotaChange::ClearWorkspace(workspace.clone());
    put(&shared, &caller, ("clear_quota", &workspace), None, change).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Change what a user may have: what is absent stays.
#[utoipa::path(patch, path = "/api/v1/quota/users/{user}", tag = "quota", operation_id = "change_user_quota",
    params(("user" = String, Path, description = "their name; `*` for everybody who has no limit of their own")),
    request_body = ChangeUserQuota,
    responses((status = 200, body = UserQuota), Always, OnPerson, Reads, Takes))]
pub(super) async fn change_user(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segment(user): Segment,
    Json(request): Json<ChangeUserQuota>,
) -> Result<Json<UserQuota>, Failure> {
    check_user(&shared, &user)?;
    let detail = serde_json::to_value(&request).ok();
    let change = QuotaChange::User(user.clone(), request);
    put(&shared, &caller, ("change_user_quota", &user), detail, change).await?;
    let quotas = shared.core.ask(Input::Quotas).await?;
    Ok(Json(quotas.users.get(&user).copied().unwrap_or_default()))
}

/// Say nothing of a user any more: they may have what everybody may.
#[utoipa::path(delete, path = "/api/v1/quota/users/{user}", tag = "quota", operation_id = "clear_user_quota",
    params(("user" = String, Path, description = "their name; `*` for everybody who has no limit of their own")),
    responses((status = 204, description = "They have no quota."), Always, OnPerson, Reads))]
pub(super) async fn clear_user(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segment(user): Segment,
) -> Result<StatusCode, Failure> {
    check_user(&shared, &user)?;
    let change = QuotaChange::ClearUser(user.clone());
    put(&shared, &caller, ("clear_user_quota", &user), None, change).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Has the core change it, and write down who did where people have accounts.
async fn put(
    shared: &Shared,
    caller: &Caller,
    (operation, target): (&str, &str),
    detail: Option<Value>,
    change: QuotaChange,
) -> Result<(), Problem> {
    // Without accounts there is no record to describe.
    audit::describe(&NewAudit { detail, ..caller.audit(operation, target, audit::DONE) });
    shared.core.ask(|reply| Input::ChangeQuota(Box::new(change), reply)).await
}

/// Where what the caller asks for is counted, if they do not say: where their jobs are that do not say either.
fn own_workspace(shared: &Shared, caller: &Caller) -> Option<String> {
    let Some(accounts) = &shared.accounts else { return Some(DEFAULT_WORKSPACE.to_owned()) };
    let named = accounts.look(|directory| directory.default_workspace(&caller.rights)).ok();
    let first = || {
        let able = caller.rights.roles().iter().find(|(_, role)| **role >= Role::Member);
        able.map(|(name, _)| name.clone())
    };
    named.or_else(first)
}

/// Where people have accounts a user is there, or is not; elsewhere it is only a name.
fn check_user(shared: &Shared, user: &str) -> Result<(), Problem> {
    if user == EVERYBODY {
        return Ok(());
    }
    if let Some(accounts) = &shared.accounts {
        return accounts.look(|directory| directory.require_user(user).map(drop));
    }
    let is_plain = |c: char| !c.is_control() && !c.is_whitespace() && c != '/';
    if user.len() <= MAX_NAME && user.chars().all(is_plain) {
        return Ok(());
    }
    let shown: String = user.chars().take(MAX_NAME).collect();
    let message = format!("`{}` is nobody's name; `muster whoami` shows yours", shown.escape_debug());
    Err(Problem::fields(vec![FieldError::new("user", FieldCode::InvalidValue, message)]))
}
