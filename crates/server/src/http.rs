//! The REST interface: one file for each group of endpoints, and the document made from them.
//!
//! A handler reads its request, asks the core or the readers, and shapes the reply. It decides nothing.

mod account;
mod audit;
mod backup;
mod bundle;
mod call;
mod cluster;
mod describe;
mod doctor;
mod element;
mod event;
mod failure;
mod file;
mod gc;
mod guard;
mod job;
mod limits;
mod log;
mod metrics;
mod node;
mod pass_on;
mod pool;
mod queue;
mod quota;
mod recorder;
mod rules;
mod secret;
mod server;
mod session;
mod sse;
mod task;
mod user;
mod workspace;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware;
use axum::routing::get;
use describe::Token;
pub(crate) use failure::{Failure, Params};
use muster_api::problem::{Code, Problem};
use utoipa::OpenApi;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;

use self::guard::Guard;
use crate::state::Shared;

/// Requests other than chunks are small; the largest carries an environment.
const MAX_BODY: usize = 8 << 20;
/// Strangers have little to say.
const MAX_LOGIN: usize = 16 << 10;

#[derive(OpenApi)]
#[openapi(components(schemas(Problem)), modifiers(&Token), info(
    title = "Muster",
    description = "Runs training code as distributed jobs. Errors are RFC 9457 problem documents with stable codes.",
    license(name = "Apache-2.0")
))]
struct Document;

/// The OpenAPI document, as served and as committed.
pub fn openapi() -> String {
    let (_, document) = api().split_for_parts();
    let mut text = document.to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

fn api() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(job::create, job::list))
        .routes(routes!(job::show, job::remove, queue::change))
        .routes(routes!(job::stop))
        .routes(routes!(job::suspend))
        .routes(routes!(job::resume))
        .routes(routes!(job::hold))
        .routes(routes!(job::release))
        .routes(routes!(job::rename))
        .routes(routes!(task::suspend))
        .routes(routes!(task::resume))
        .routes(routes!(task::stop))
        .routes(routes!(task::rename))
        .routes(routes!(job::why))
        .routes(routes!(element::list))
        .routes(routes!(event::follow))
        .routes(routes!(event::follow_all))
        .routes(routes!(log::follow))
        .routes(routes!(log::download))
        .routes(routes!(file::list))
        .routes(routes!(file::content))
        .routes(routes!(call::ssh))
        .routes(routes!(session::list))
        .routes(routes!(session::show, session::open, session::remove))
        .routes(routes!(session::run, session::commands))
        .routes(routes!(session::command))
        .routes(routes!(session::output))
        .routes(routes!(session::signal))
        .routes(routes!(session::attach))
        .routes(routes!(call::copy))
        .routes(routes!(metrics::of_job))
        .routes(routes!(node::list))
        .routes(routes!(cluster::list))
        .routes(routes!(node::remove))
        .routes(routes!(node::drain))
        .routes(routes!(node::undrain))
        .routes(routes!(node::label))
        .routes(routes!(pool::list))
        .routes(routes!(pool::show, pool::put, pool::remove))
        .routes(routes!(pool::add))
        .routes(routes!(queue::list))
        .routes(routes!(quota::show))
        .routes(routes!(quota::change, quota::clear))
        .routes(routes!(quota::change_user, quota::clear_user))
        .routes(routes!(metrics::of_node))
        .routes(routes!(job::diff))
        .routes(routes!(bundle::put).layer(DefaultBodyLimit::disable()))
        .routes(routes!(bundle::missing))
        .routes(routes!(bundle::put_chunks))
        .routes(routes!(gc::collect))
        .routes(routes!(server::show))
        .routes(routes!(doctor::show))
        .routes(routes!(server::shutdown))
        .routes(routes!(account::login).layer(DefaultBodyLimit::max(MAX_LOGIN)))
        .routes(routes!(account::sign_up).layer(DefaultBodyLimit::max(MAX_LOGIN)))
        .routes(routes!(account::logout))
        .routes(routes!(account::whoami))
        .routes(routes!(user::list, user::create))
        .routes(routes!(user::show, user::change))
        .routes(routes!(user::set_display_name))
        .routes(routes!(user::set_password))
        .routes(routes!(user::tokens, user::create_token))
        .routes(routes!(user::rotate_token))
        .routes(routes!(user::remove_token))
        .routes(routes!(workspace::list, workspace::create))
        .routes(routes!(workspace::show, workspace::change, workspace::remove))
        .routes(routes!(workspace::put_member, workspace::remove_member))
        .routes(routes!(workspace::ask_to_join))
        .routes(routes!(secret::list))
        .routes(routes!(secret::put, secret::remove))
        .routes(routes!(audit::list))
        .routes(routes!(audit::lines))
        .routes(routes!(server::reload))
        .routes(routes!(backup::take))
}

/// Who is on the other end of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    /// The Unix socket: its mode has checked the user.
    Private,
    /// TCP: everyone must show a token.
    Public,
}

/// Everything served through one door.
pub(crate) fn router(shared: &Arc<Shared>, door: Door) -> Result<Router, String> {
    let (api, document) = api().split_for_parts();
    let guard = Arc::new(Guard { shared: shared.clone(), door, rules: rules::of(&document)? });
    let text = document.to_json().unwrap_or_default();
    let people = api
        .route(rules::METRICS.1, get(metrics::show))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(guard, guard::guard));
    Ok(Router::new()
        .merge(people)
        .route("/healthz", get(async || "ok\n"))
        .route(
            "/api/v1/openapi.json",
            get(async move || ([("content-type", "application/json")], text.clone())),
        )
        .route(muster_link::dial::PATH, get(crate::link::accept))
        .fallback(async || Failure(Problem::new(Code::NotFound, "there is nothing at this address")))
        .method_not_allowed_fallback(async || {
            Failure(Problem::new(Code::MethodNotAllowed, "this address does not take that method"))
        })
        .with_state(shared.clone()))
}
