//! Who asks, and whether they may: before any handler is called.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use muster_api::problem::{Code, Problem};
use muster_model::JobId;
use muster_model::account::{Role, Scope};
use muster_store::{Belongs, NewAudit};
use serde_json::json;

use super::failure::Failure;
use super::job::{read, resolve};
use super::recorder::{Recorder, Recording};
use super::rules::{Rule, Ruled, Rules};
use super::{Door, sse};
use crate::accounts::{Caller, no_workspace};
use crate::core::internal;
use crate::port::Origin;
use crate::state::{Shared, Visit};
use crate::{audit, auth, disk};

/// As much of a path is on record.
const MAX_TARGET: usize = 200;

/// The job that the path names, for the handler.
#[derive(Debug, Clone)]
pub(crate) struct Found(pub JobId);

/// Operations that may use up the disk reserve: those that make room, those that revoke access, and those that ask for room
/// themselves. Every other one that may write needs room above the floor.
const USES_RESERVE: &[&str] = &[
    "stop_job",
    "suspend_job",
    "remove_job",
    "stop_task",
    "suspend_task",
    "signal_session",
    "remove_session",
    "collect_garbage",
    "stop_server",
    "reload_server",
    "drain_node",
    "remove_node",
    "remove_pool",
    "clear_quota",
    "clear_user_quota",
    "login",
    "logout",
    "change_user",
    "set_password",
    "rotate_token",
    "remove_token",
    "remove_member",
    "remove_workspace",
    "remove_secret",
    "create_job",
    "missing_chunks",
    "put_bundle",
    "put_chunks",
    "back_up_server",
];

/// Stands at a door.
pub(super) struct Guard {
    pub shared: Arc<Shared>,
    pub door: Door,
    pub rules: Rules,
}

/// Lets in who may come in, and counts visits, so that the server knows when nobody needs it.
pub(super) async fn guard(
    State(guard): State<Arc<Guard>>,
    params: Result<RawPathParams, RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Response {
    let origin = request.extensions().get::<Origin>().cloned();
    let address = origin.as_ref().map(|origin| origin.address);
    let caller = guard.who(&request, address);
    if let (Some(_), Some(origin)) = (&caller, &origin) {
        origin.seat.know();
    }
    let ruled = guard.rule(&request);
    let mut entry = guard.entry(caller.as_ref(), ruled, &request, address);
    let admitted = guard.admit(caller.clone(), ruled, params, &mut request).await;
    let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
    let recording = match admitted {
        Ok(admitted) => {
            admitted.describe(&mut entry);
            Recording::of(ruled, is_get, admitted.other_owner.is_some())
        }
        Err(problem) => return Recorder::refused(&guard.shared, entry, Failure(problem).into_response()),
    };
    let recorder = match Recorder::open(&guard.shared, entry.clone(), recording).await {
        Ok(recorder) => recorder,
        Err(problem) => return Recorder::refused(&guard.shared, entry, Failure(problem).into_response()),
    };
    let caller = caller.filter(|caller| caller.token.is_some());
    // What is still being sent when somebody is cut off is not taken.
    if let Some(caller) = caller.clone() {
        request = request.map(|body| sse::until(body, caller));
    }
    let visit = Visit::begin(guard.shared.clone());
    let response = recorder.run(next.run(request)).await;
    // The visit lasts as long as the body does: a follower is a visitor.
    response.map(|body| sse::hold(body, visit, caller))
}

/// A new name of a request in the audit log.
pub(super) fn request_id() -> String {
    format!("req_{:016x}", crate::random::bits())
}

/// A request that is permitted.
#[derive(Default)]
struct Admitted {
    /// The job that the path names.
    job: Option<JobId>,
    /// The user whose things the request is about, if the caller is another.
    other_owner: Option<String>,
}

impl Admitted {
    fn describe(&self, entry: &mut NewAudit) {
        entry.job.clone_from(&self.job);
        entry.detail = self.other_owner.as_ref().map(|owner| json!({ "owner": owner }));
    }
}

impl Guard {
    async fn admit(
        &self,
        caller: Option<Caller>,
        ruled: Option<Ruled>,
        params: Result<RawPathParams, RawPathParamsRejection>,
        request: &mut Request,
    ) -> Result<Admitted, Problem> {
        let Some(ruled) = ruled else {
            // Nothing is there; only those who are known are told so.
            return caller.map(|_| Admitted::default()).ok_or_else(|| self.unknown());
        };
        if ruled.rule == Rule::Anyone {
            self.check_room(ruled, request)?;
            let address = request.extensions().get::<Origin>().map(|origin| origin.address);
            request.extensions_mut().insert(Stranger { address });
        }
        let Some(caller) = caller else {
            return if ruled.rule == Rule::Anyone { Ok(Admitted::default()) } else { Err(self.unknown()) };
        };
        self.check_room(ruled, request)?;
        let params = params.map_err(|error| Problem::new(Code::InvalidRequest, error.body_text()))?;
        let part = |name: &str| params.iter().find(|(one, _)| *one == name).map_or("", |(_, value)| value);
        let admitted = self.decide(&caller, ruled.rule, part).await?;
        if let Some(job) = &admitted.job {
            request.extensions_mut().insert(Found(job.clone()));
        }
        request.extensions_mut().insert(caller);
        Ok(admitted)
    }

    fn check_room(&self, ruled: Ruled, request: &Request) -> Result<(), Problem> {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        if is_read || USES_RESERVE.contains(&ruled.operation) {
            return Ok(());
        }
        let (what, home) = ("nothing more can be kept", Path::new(&self.shared.home));
        self.shared.floor.check().map_err(|error| disk::problem(what, home, &error))
    }

    /// The audit entry of a request, before its outcome is known.
    fn entry(
        &self,
        caller: Option<&Caller>,
        ruled: Option<Ruled>,
        request: &Request,
        address: Option<IpAddr>,
    ) -> NewAudit {
        let operation = ruled.map_or("unknown", |ruled| ruled.operation);
        NewAudit {
            user: caller.map(|caller| caller.name.clone()),
            token: caller.and_then(|caller| caller.token.clone()),
            address: address.map(|address| address.to_string()),
            target: request.uri().path().chars().take(MAX_TARGET).collect(),
            request: self.shared.trail.is_enabled().then(request_id),
            ..NewAudit::new(crate::core::now(), operation, audit::STARTED)
        }
    }

    fn who(&self, request: &Request, address: Option<IpAddr>) -> Option<Caller> {
        if self.door == Door::Private {
            return Some(Caller::operator(&self.shared.owner));
        }
        match &self.shared.accounts {
            Some(accounts) => accounts.known_by(auth::bearer(request.headers())?, address),
            None => {
                self.shared.auth.is_person(request.headers()).then(|| Caller::operator(&self.shared.owner))
            }
        }
    }

    fn unknown(&self) -> Problem {
        let problem =
            Problem::new(Code::Unauthorized, "the bearer token is missing, wrong, expired or revoked");
        problem.hint(match self.shared.accounts {
            Some(_) => "`muster login` gets you one; MUSTER_TOKEN may have one that is out of date",
            None => "set MUSTER_TOKEN to the content of the server's `token` file",
        })
    }

    fn rule(&self, request: &Request) -> Option<Ruled> {
        let path = request.extensions().get::<MatchedPath>()?.as_str();
        // What answers to GET answers to HEAD.
        let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
        self.rules.get(&(method.clone(), path.to_owned())).copied()
    }

    /// Whether they may, and what it is about.
    async fn decide<'a>(
        &self,
        caller: &Caller,
        rule: Rule,
        part: impl Fn(&str) -> &'a str,
    ) -> Result<Admitted, Problem> {
        let rights = &caller.rights;
        reaches(caller, scope(rule))?;
        match rule {
            Rule::Anyone | Rule::Known(_) => Ok(Admitted::default()),
            Rule::Submit if rights.can_submit() => Ok(Admitted::default()),
            Rule::Submit => Err(forbidden(
                "uploading code takes a member of a workspace; viewers run no jobs".into(),
                "ask a lead of a workspace, or an admin, to make you a member",
            )),
            Rule::SeeJob | Rule::SeeFiles | Rule::ChangeJob | Rule::EnterJob => {
                let (job, owner) = self.job(caller, rule, part("job")).await?;
                Ok(Admitted {
                    job: Some(job),
                    other_owner: Some(owner).filter(|owner| *owner != caller.name),
                })
            }
            Rule::Workspace(role, _) => {
                let name = part("workspace");
                match rights.role(name) {
                    None => Err(no_workspace(name)),
                    Some(has) if has < role => {
                        let what =
                            format!("this takes a {} of {name}; you are a {}", role.as_str(), has.as_str());
                        Err(forbidden(what, "ask one of its leads, or an admin"))
                    }
                    Some(_) => {
                        let is_theirs = rights.roles().contains_key(name);
                        Ok(Admitted { job: None, other_owner: (!is_theirs).then(|| name.to_owned()) })
                    }
                }
            }
            Rule::Person(_) if part("user") == caller.name => Ok(Admitted::default()),
            Rule::Person(_) if rights.is_admin() => {
                Ok(Admitted { job: None, other_owner: Some(part("user").to_owned()) })
            }
            Rule::Person(_) => Err(forbidden(
                format!("that is {}'s own, and you are {}", part("user"), caller.name),
                "admins may",
            )),
            Rule::Admin(_) if rights.is_admin() => Ok(Admitted::default()),
            Rule::Admin(_) => {
                Err(forbidden("this takes an admin".into(), "`muster whoami` says what you may do"))
            }
        }
    }

    /// The job that a path names, and its owner.
    async fn job(&self, caller: &Caller, rule: Rule, selector: &str) -> Result<(JobId, String), Problem> {
        let (sight, selector) = (caller.rights.sight(), selector.to_owned());
        let own = self.shared.accounts.as_ref().map(|_| caller.name.clone());
        let (id, belongs) = read(&self.shared, move |readers| {
            let id = resolve(readers, &selector, &sight, own.as_deref())?;
            let belongs = readers.belongs(&id).map_err(|error| internal(&error))?;
            Ok((id, belongs))
        })
        .await?;
        let Belongs { owner, workspace, is_at_home } = belongs.unwrap_or_default();
        if caller.rights.is_admin() || rule == Rule::SeeJob || (rule == Rule::SeeFiles && !is_at_home) {
            return Ok((id, owner));
        }
        let role = caller.rights.role(&workspace);
        let is_own = owner == caller.name && role >= Some(Role::Member);
        if is_own || (rule == Rule::ChangeJob && role == Some(Role::Lead)) {
            return Ok((id, owner));
        }
        let (who, hint) = match rule {
            Rule::EnterJob => ("its owner", "`muster logs` shows what it says"),
            Rule::SeeFiles => {
                ("its owner, since its files are those of an account", "`muster logs` shows what it says")
            }
            _ => ("its owner, or a lead of its workspace", "ask one of them"),
        };
        Err(forbidden(format!("{id} is {owner}'s, of the workspace {workspace}: this takes {who}"), hint))
    }
}

/// Who is not known, and from where they come.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stranger {
    pub address: Option<IpAddr>,
}

/// What a token must be good for.
fn scope(rule: Rule) -> Scope {
    match rule {
        Rule::Anyone | Rule::SeeJob | Rule::SeeFiles => Scope::Read,
        Rule::Submit | Rule::ChangeJob | Rule::EnterJob => Scope::Write,
        Rule::Known(scope) | Rule::Workspace(_, scope) | Rule::Person(scope) | Rule::Admin(scope) => scope,
    }
}

fn reaches(caller: &Caller, scope: Scope) -> Result<(), Problem> {
    if caller.rights.reaches(scope) {
        return Ok(());
    }
    let has = caller.rights.scope().as_str();
    let what = format!("this takes a token of the scope {}; the one you came with has {has}", scope.as_str());
    Err(forbidden(what, "`muster login` gets you one that is good for all that you may do"))
}

fn forbidden(what: String, hint: &str) -> Problem {
    Problem::new(Code::Forbidden, what).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::super::rules::RULES;
    use super::USES_RESERVE;

    #[test]
    fn what_may_use_the_reserve_is_an_operation() {
        for name in USES_RESERVE {
            assert!(RULES.iter().any(|(operation, _)| operation == name), "{name}");
        }
    }
}
