//! Pools of SSH hosts: list, show, put, add to, remove.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use muster_api::pool::{AddHosts, PoolList, PoolView, PutPool, RemoveHosts, ShowPool};
use muster_api::problem::{Code, Problem};
use muster_model::pool::PoolSpec;
use muster_model::spec::{FieldCode, FieldError, nearest};
use tokio::time::{Instant, timeout_at};

use super::describe::{Always, Conflicts, OnPool, Reads, Takes};
use super::failure::{Failure, Json, Params, Segment};
use super::node::present;
use crate::accounts::Caller;
use crate::core::{Input, Put};
use crate::state::Shared;

/// The longest that a request waits for hosts: below what proxies and clients give up after.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// List pools, each with its hosts.
#[utoipa::path(get, path = "/api/v1/pools", tag = "pools", operation_id = "list_pools",
    responses((status = 200, body = PoolList), Always))]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
) -> Result<Json<PoolList>, Failure> {
    shared.core.ask(Input::Settled).await?;
    let mut items = shared.core.ask(Input::Pools).await?;
    let hosts = items.iter_mut().flat_map(|pool| &mut pool.hosts);
    present(&shared, &caller, hosts.map(|host| &mut host.node)).await?;
    Ok(Json(PoolList { items }))
}

/// Show a pool; wait, if that is wanted, until it is known of each host whether it can be reached.
#[utoipa::path(get, path = "/api/v1/pools/{pool}", tag = "pools", operation_id = "show_pool", params(ShowPool, ("pool" = String, Path, description = "its name")),
    responses((status = 200, body = PoolView), Always, OnPool, Reads))]
pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segment(pool): Segment,
    Params(query): Params<ShowPool>,
) -> Result<Json<PoolView>, Failure> {
    let wait = Duration::from_millis(query.wait_ms.unwrap_or(0));
    if wait > MAX_WAIT {
        let message = format!("must be a whole number from 0 to {}", MAX_WAIT.as_millis());
        return Err(Problem::fields(vec![FieldError::new("wait_ms", FieldCode::OutOfRange, message)]).into());
    }
    let deadline = Instant::now() + wait;
    let mut changes = shared.starts.changes();
    loop {
        changes.mark_unchanged();
        let view = find(&shared, &caller, &pool).await?;
        let is_open =
            view.hosts.iter().any(|host| !host.node.connected && shared.starts.is_open(&host.node.id));
        // An agent that came after the view was made is not in it.
        let is_settled = !is_open && !changes.has_changed().unwrap_or(false);
        if is_settled || wait.is_zero() || shared.stop.is_cancelled() {
            return Ok(Json(view));
        }
        tokio::select! {
            changed = timeout_at(deadline, changes.changed()) => if changed.is_err() {
                return Ok(Json(find(&shared, &caller, &pool).await?));
            },
            () = shared.stop.cancelled() => {}
        }
    }
}

/// Say what a pool is, all of it. Hosts that are not named go, if they have no tasks.
#[utoipa::path(put, path = "/api/v1/pools/{pool}", tag = "pools", operation_id = "put_pool", params(("pool" = String, Path, description = "its name")), request_body = PutPool,
    responses((status = 200, body = PoolView), Always, Reads, Takes, Conflicts))]
pub(super) async fn put(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segment(pool): Segment,
    Json(request): Json<PutPool>,
) -> Result<Json<PoolView>, Failure> {
    let spec = PoolSpec { name: pool.clone(), hosts: request.hosts, shared: request.shared };
    shared.core.ask(|reply| Input::PutPool(Box::new(spec), Put::Whole, reply)).await?;
    Ok(Json(find(&shared, &caller, &pool).await?))
}

/// Add hosts to a pool, which is made if it is not there.
#[utoipa::path(post, path = "/api/v1/pools/{pool}/hosts", tag = "pools", operation_id = "add_hosts", params(("pool" = String, Path, description = "its name")), request_body = AddHosts,
    responses((status = 200, body = PoolView), Always, Reads, Takes, Conflicts))]
pub(super) async fn add(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segment(pool): Segment,
    Json(request): Json<AddHosts>,
) -> Result<Json<PoolView>, Failure> {
    let spec = PoolSpec { name: pool.clone(), hosts: request.hosts, shared: request.shared };
    shared.core.ask(|reply| Input::PutPool(Box::new(spec), Put::More, reply)).await?;
    Ok(Json(find(&shared, &caller, &pool).await?))
}

/// Remove a pool with its hosts, and stop their agents.
#[utoipa::path(delete, path = "/api/v1/pools/{pool}", tag = "pools", operation_id = "remove_pool", params(RemoveHosts, ("pool" = String, Path, description = "its name")),
    responses((status = 204, description = "It is gone."), Always, OnPool, Conflicts))]
pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    Segment(pool): Segment,
    Params(query): Params<RemoveHosts>,
) -> Result<StatusCode, Failure> {
    shared.core.ask(|reply| Input::RemovePool { pool, force: query.force, reply }).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn find(shared: &Shared, caller: &Caller, name: &str) -> Result<PoolView, Problem> {
    let mut pools = shared.core.ask(Input::Pools).await?;
    let Some(at) = pools.iter().position(|pool| pool.name == name) else {
        let known: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
        let near = nearest(name, &known).map(|near| format!("did you mean `{near}`? "));
        let shown: String = name.chars().take(80).collect();
        return Err(Problem::new(Code::PoolNotFound, format!("there is no pool `{shown}`"))
            .hint(format!("{}`muster pool ls` lists them", near.unwrap_or_default())));
    };
    let mut pool = pools.swap_remove(at);
    present(shared, caller, pool.hosts.iter_mut().map(|host| &mut host.node)).await?;
    Ok(pool)
}
