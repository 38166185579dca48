//! Secrets of workspaces: put, listed by name, removed. None is ever given back.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use muster_api::problem::{Code, Problem};
use muster_api::secret::{SecretList, SecretView};
use muster_model::spec::{FieldCode, FieldError, JobSpec, MAX_SECRET, Secret};
use muster_store::{Change, SecretRow};

use super::account::refuse;
use super::describe::{Always, OnSecret, OnWorkspace, Reads, Takes};
use super::failure::{Failure, Json, Raw, Segment, Segments};
use super::job::read;
use crate::accounts::Caller;
use crate::core::{Input, internal, now};
use crate::state::Shared;

/// List the secrets of a workspace: names, never values.
#[utoipa::path(get, path = "/api/v1/workspaces/{workspace}/secrets", tag = "secrets", operation_id = "list_secrets",
    params(("workspace" = String, Path, description = "its name; `default` on a server without accounts")),
    responses((status = 200, body = SecretList), Always, OnWorkspace, Reads))]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Segment(workspace): Segment,
) -> Result<Json<SecretList>, Failure> {
    check_workspace(&shared, &workspace)?;
    let rows = read(&shared, move |readers| readers.secrets(&workspace).map_err(|error| internal(&error)));
    Ok(Json(SecretList { items: rows.await?.into_iter().map(view).collect() }))
}

/// Put a secret: the body is its value, of at most 64 KiB. Tasks that start from now on are given this one.
#[utoipa::path(put, path = "/api/v1/workspaces/{workspace}/secrets/{secret}", tag = "secrets", operation_id = "put_secret",
    params(("workspace" = String, Path, description = "its name; `default` on a server without accounts"),
        ("secret" = String, Path, description = "its name")),
    request_body(content = inline(super::describe::Bytes), content_type = "application/octet-stream"),
    responses((status = 200, body = SecretView), Always, OnWorkspace, Reads, Takes))]
pub(super) async fn put(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segments((workspace, name)): Segments<(String, String)>,
    Raw(value): Raw,
) -> Result<Json<SecretView>, Failure> {
    check_workspace(&shared, &workspace)?;
    let mut errors = Vec::new();
    if let Err(message) = Secret::check_name(&name) {
        errors.push(FieldError::new("name", FieldCode::InvalidValue, message));
    }
    if value.len() > MAX_SECRET {
        let message = format!("has {} bytes; a secret has at most {MAX_SECRET}", value.len());
        errors.push(FieldError::new("value", FieldCode::OutOfRange, message));
    }
    refuse(errors)?;
    let sealed = shared.vault.seal(&workspace, &name, &value);
    let sealed = sealed.map_err(|_| Problem::new(Code::Internal, "the secret could not be sealed"))?;
    let size = value.len() as u64;
    let row = SecretRow { workspace, name, sealed, size, put_by: caller.name, put_at: now() };
    shared.core.ask(|reply| Input::Write(vec![Change::Secret(row.clone())], None, reply)).await?;
    Ok(Json(view(row)))
}

/// Remove a secret. Tasks that were given it keep it until they end.
#[utoipa::path(delete, path = "/api/v1/workspaces/{workspace}/secrets/{secret}", tag = "secrets", operation_id = "remove_secret",
    params(("workspace" = String, Path, description = "its name; `default` on a server without accounts"),
        ("secret" = String, Path, description = "its name")),
    responses((status = 204, description = "It is gone."), Always, OnSecret, Reads))]
pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    Segments((workspace, name)): Segments<(String, String)>,
) -> Result<StatusCode, Failure> {
    check_workspace(&shared, &workspace)?;
    let (of, one) = (workspace.clone(), name.clone());
    let found = read(&shared, move |readers| readers.secret(&of, &one).map_err(|error| internal(&error)));
    if found.await?.is_none() {
        let what = format!("there is no secret `{name}` in the workspace {workspace}");
        return Err(Problem::new(Code::NotFound, what).hint("`muster secret ls` lists them").into());
    }
    let change = Change::RemoveSecret { workspace, name };
    shared.core.ask(|reply| Input::Write(vec![change], None, reply)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Where people have accounts a workspace is there, or is not; elsewhere it is only a name.
pub(super) fn check_workspace(shared: &Shared, workspace: &str) -> Result<(), Problem> {
    match &shared.accounts {
        Some(accounts) => accounts.look(|directory| directory.require_workspace(workspace).map(drop)),
        None => JobSpec::check_name(workspace)
            .map(drop)
            .map_err(|error| Problem::fields(vec![FieldError { field: "workspace".into(), ..error }])),
    }
}

fn view(row: SecretRow) -> SecretView {
    let SecretRow { workspace, name, size, put_by, put_at, .. } = row;
    SecretView { workspace, name, size, put_by, put_at }
}
