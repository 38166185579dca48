//! Who asks, and whether they may: before any handler is called.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use muster_api::problem::{Code, Problem};
use muster_model::JobId;
use muster_model::account::{Role, Scope};
use muster_store::{Belongs, Change};

use super::failure::Failure;
use super::job::{read, resolve};
use super::rules::{Rule, Ruled, Rules};
use super::{Door, sse};
use crate::accounts::{Caller, no_workspace};
use crate::auth;
use crate::core::{Input, internal};
use crate::port::Origin;
use crate::state::{Shared, Visit};

/// What is sent often, changes nothing by itself, and would drown everything else in the audit log.
const UNAUDITED: &[&str] = &["missing_chunks", "put_chunks", "put_bundle", "login", "sign_up"];

/// As much of a path is on record.
const MAX_TARGET: usize = 200;

/// The job that the path names, for the handler.
#[derive(Debug, Clone)]
pub(crate) struct Found(pub JobId);

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
    let caller = match guard.admit(params, &mut request).await {
        Ok(caller) => caller,
        Err(problem) => return Failure(problem).into_response(),
    };
    let caller = caller.filter(|caller| caller.token.is_some());
    // What is still being sent when somebody is cut off is not taken.
    if let Some(caller) = caller.clone() {
        request = request.map(|body| sse::until(body, caller));
    }
    let visit = Visit::begin(guard.shared.clone());
    // The visit lasts as long as the body does: a follower is a visitor.
    next.run(request).await.map(|body| sse::hold(body, visit, caller))
}

impl Guard {
    async fn admit(
        &self,
        params: Result<RawPathParams, RawPathParamsRejection>,
        request: &mut Request,
    ) -> Result<Option<Caller>, Problem> {
        let origin = request.extensions().get::<Origin>().cloned();
        let address = origin.as_ref().map(|origin| origin.address);
        let caller = self.who(request, address);
        if let (Some(_), Some(origin)) = (&caller, &origin) {
            origin.seat.know();
        }
        let Some(ruled) = self.rule(request) else {
            // Nothing is there; only those who are known are told so.
            return caller.map(Some).ok_or_else(|| self.unknown());
        };
        if ruled.rule == Rule::Anyone {
            request.extensions_mut().insert(Stranger { address });
        }
        let Some(caller) = caller else {
            return if ruled.rule == Rule::Anyone { Ok(None) } else { Err(self.unknown()) };
        };
        let params = params.map_err(|error| Problem::new(Code::InvalidRequest, error.body_text()))?;
        let part = |name: &str| params.iter().find(|(one, _)| *one == name).map_or("", |(_, value)| value);
        let decided = self.decide(&caller, ruled.rule, part).await;
        // A request cannot be shared between threads, so what is needed of it is taken out.
        let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
        let path = request.uri().path().chars().take(MAX_TARGET).collect();
        self.write_down(&caller, ruled, is_get, path, decided.as_ref().err()).await?;
        if let Some(job) = decided? {
            request.extensions_mut().insert(Found(job));
        }
        request.extensions_mut().insert(caller.clone());
        Ok(Some(caller))
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
            Problem::new(Code::Unauthorized, "the bearer token is missing, wrong, or good no longer");
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

    /// Whether they may, and which job it is about.
    async fn decide<'a>(
        &self,
        caller: &Caller,
        rule: Rule,
        part: impl Fn(&str) -> &'a str,
    ) -> Result<Option<JobId>, Problem> {
        let rights = &caller.rights;
        reaches(caller, scope(rule))?;
        match rule {
            Rule::Anyone | Rule::Known(_) => Ok(None),
            Rule::SeeJob | Rule::SeeFiles | Rule::ChangeJob | Rule::EnterJob => {
                self.job(caller, rule, part("job")).await.map(Some)
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
                    Some(_) => Ok(None),
                }
            }
            Rule::Person(_) if part("user") == caller.name || rights.is_admin() => Ok(None),
            Rule::Person(_) => Err(forbidden(
                format!("that is {}'s own, and you are {}", part("user"), caller.name),
                "admins may",
            )),
            Rule::Admin(_) if rights.is_admin() => Ok(None),
            Rule::Admin(_) => {
                Err(forbidden("this takes an admin".into(), "`muster whoami` says what you may do"))
            }
        }
    }

    async fn job(&self, caller: &Caller, rule: Rule, selector: &str) -> Result<JobId, Problem> {
        let (sight, selector) = (caller.rights.sight(), selector.to_owned());
        let own = self.shared.accounts.as_ref().map(|_| caller.name.clone());
        let (id, belongs) = read(&self.shared, move |readers| {
            let id = resolve(readers, &selector, &sight, own.as_deref())?;
            let belongs = readers.belongs(&id).map_err(|error| internal(&error))?;
            Ok((id, belongs))
        })
        .await?;
        if caller.rights.is_admin() || rule == Rule::SeeJob {
            return Ok(id);
        }
        let Belongs { owner, workspace, is_at_home } = belongs.unwrap_or_default();
        if rule == Rule::SeeFiles && !is_at_home {
            return Ok(id);
        }
        let role = caller.rights.role(&workspace);
        let is_own = owner == caller.name && role >= Some(Role::Member);
        if is_own || (rule == Rule::ChangeJob && role == Some(Role::Lead)) {
            return Ok(id);
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

    /// What changes something, or lets somebody in, is on record before it is done. For what the core does it is enough that the
    /// core has the record first: it writes nothing without it. While the core cannot write, nobody's record is taken on trust.
    async fn write_down(
        &self,
        caller: &Caller,
        ruled: Ruled,
        is_get: bool,
        path: String,
        refused: Option<&Problem>,
    ) -> Result<(), Problem> {
        let enters = ruled.rule == Rule::EnterJob;
        let is_plain = is_get && !enters && scope(ruled.rule) < Scope::Admin;
        if self.shared.accounts.is_none() || is_plain || UNAUDITED.contains(&ruled.operation) {
            return Ok(());
        }
        let outcome = refused.map_or("allowed", |problem| problem.code.entry().code);
        let entry = caller.audit(ruled.operation, path, outcome);
        let is_beside_the_core = enters || matches!(ruled.rule, Rule::Admin(Scope::Admin));
        if is_beside_the_core || self.shared.commits.are_failing() {
            let write = |reply| Input::Write(vec![Change::Audit(entry)], None, reply);
            return self.shared.core.ask(write).await;
        }
        self.shared.core.tell(Input::Audit(Box::new(entry))).await
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
        Rule::ChangeJob | Rule::EnterJob => Scope::Write,
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
