//! Coming in and going out.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use muster_api::account::{Login, NewToken, Place, SignUp, TokenView, WhoAmI};
use muster_api::problem::{Code, Problem};
use muster_model::account::{Membership, Token, User, UserState, check_name, check_password};
use muster_model::spec::{FieldCode, FieldError};
use muster_store::{AccountChange, Change, NewAudit};

use super::describe::{Always, Conflicts, Limited, Reads, Takes};
use super::failure::{Failure, Json};
use super::guard::Stranger;
use crate::accounts::{Accounts, Caller, Directory, LOGIN, secret, token_id};
use crate::core::{Input, now};
use crate::state::Shared;

/// As many may be open for one person; the oldest goes.
const LOGINS: usize = 50;
/// As many may wait to be approved: beyond that somebody is playing.
const PENDING: usize = 500;

/// Log in: get a token for a password.
#[utoipa::path(post, path = "/api/v1/login", tag = "people", operation_id = "login", request_body = Login,
    responses((status = 200, body = NewToken), Always, Reads, Takes, Conflicts, Limited), security(()))]
pub(super) async fn login(
    State(shared): State<Arc<Shared>>,
    stranger: Option<Extension<Stranger>>,
    Json(request): Json<Login>,
) -> Result<Json<NewToken>, Failure> {
    let accounts = accounts(&shared)?;
    let address = stranger.and_then(|stranger| stranger.address);
    let entry = |outcome: &str| NewAudit {
        at: now(),
        user: Some(request.user.chars().take(64).collect()),
        token: None,
        address: address.map(|address| address.to_string()),
        operation: "login".into(),
        target: String::new(),
        outcome: outcome.into(),
        detail: None,
    };
    let user = match accounts.sign_in(&request.user, &request.password, address).await {
        Ok(user) => user,
        Err(problem) => {
            // What was not even tried is not worth a line, nor is a name that nobody has: somebody would fill the disk with them.
            let is_known = accounts.look(|directory| directory.user(&request.user).is_some());
            if problem.code != Code::TooManyRequests && is_known {
                let row = Change::Audit(entry(problem.code.entry().code));
                shared.core.ask(|reply| Input::Write(vec![row], None, reply)).await?;
            }
            return Err(problem.into());
        }
    };
    let lasts = shared.login;
    let made = accounts
        .change(&shared.core, None, entry("done"), move |directory| log_in(directory, &user, lasts))
        .await?;
    Ok(Json(made))
}

fn log_in(
    directory: &Directory,
    user: &User,
    lasts: Duration,
) -> Result<(Vec<AccountChange>, NewToken), Problem> {
    // Hashing takes its time, and the password may have become another meanwhile.
    let is_same = |known: &User| known.state == UserState::Active && known.password == user.password;
    if !directory.user(&user.name).is_some_and(is_same) {
        return Err(Problem::new(Code::Unauthorized, "the account was changed just now").hint("try again"));
    }
    let now = now();
    let (secret, digest) = secret();
    let token = Token {
        id: token_id(),
        user: user.name.clone(),
        name: None,
        digest,
        scope: LOGIN,
        workspace: None,
        created_at: now,
        expires_at: now.checked_add(lasts).ok(),
    };
    let mut logins: Vec<&Token> = directory.tokens(&user.name).filter(|token| token.name.is_none()).collect();
    logins.sort_by_key(|token| token.created_at);
    let over = logins.len().saturating_sub(LOGINS - 1);
    let is_over = |token: &Token| token.expires_at.is_some_and(|end| end <= now);
    let gone = logins.iter().enumerate().filter(|(place, token)| *place < over || is_over(token));
    let mut changes: Vec<AccountChange> =
        gone.map(|(_, token)| AccountChange::RemoveToken(token.id.clone())).collect();
    changes.push(AccountChange::Token(token.clone()));
    Ok((changes, NewToken { secret, token: token_view(&token) }))
}

/// Ask for an account; a lead of the workspace, or an admin, says yes or no.
#[utoipa::path(post, path = "/api/v1/signup", tag = "people", operation_id = "sign_up", request_body = SignUp,
    responses((status = 202, description = "Somebody has to approve it."), Always, Reads, Takes, Conflicts, Limited),
    security(()))]
pub(super) async fn sign_up(
    State(shared): State<Arc<Shared>>,
    stranger: Option<Extension<Stranger>>,
    Json(request): Json<SignUp>,
) -> Result<StatusCode, Failure> {
    let accounts = accounts(&shared)?;
    let address = stranger.and_then(|stranger| stranger.address);
    let SignUp { user, password, workspace } = request;
    let wrong = [
        check_name("user", &user).err(),
        check_password("password", &password).err(),
        check_name("workspace", &workspace).err(),
        is_reserved(&shared, &user).then(|| {
            FieldError::new(
                "user",
                FieldCode::InvalidValue,
                format!("`{user}` is the server's own; choose another"),
            )
        }),
    ];
    refuse(wrong.into_iter().flatten().collect())?;
    let hash = accounts.hash_for_stranger(password, &user, address).await?;
    let entry = NewAudit {
        at: now(),
        user: Some(user.clone()),
        token: None,
        address: address.map(|address| address.to_string()),
        operation: "sign_up".into(),
        target: workspace.clone(),
        outcome: "done".into(),
        detail: None,
    };
    let decide = move |directory: &Directory| {
        directory.require_workspace(&workspace)?;
        let pending = directory.users().filter(|user| user.state == UserState::Pending).count();
        if directory.user(&user).is_some() || pending >= PENDING {
            return Err(match pending >= PENDING {
                true => Problem::new(Code::Unavailable, "too many accounts wait for approval already"),
                false => Problem::new(Code::NameTaken, format!("the name `{user}` is taken"))
                    .hint("choose another; `muster login` is for who has an account"),
            });
        }
        let (name, created_at) = (user.clone(), now());
        let user = User {
            name,
            state: UserState::Pending,
            is_admin: false,
            password: Some(hash),
            account: None,
            created_at,
        };
        let membership = Membership { workspace, user: user.name.clone(), role: None, since: created_at };
        Ok((vec![AccountChange::User(user), AccountChange::Membership(membership)], ()))
    };
    accounts.change(&shared.core, None, entry, decide).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Log out: the token that this comes with is good no longer.
#[utoipa::path(post, path = "/api/v1/logout", tag = "people", operation_id = "logout",
    responses((status = 204, description = "It is good no longer."), Always, Conflicts))]
pub(super) async fn logout(State(shared): State<Arc<Shared>>, caller: Caller) -> Result<StatusCode, Failure> {
    let accounts = accounts(&shared)?;
    let Some(id) = caller.token.clone() else {
        return Err(Problem::new(
            Code::InvalidState,
            "you came without a token, so there is nothing to log out",
        )
        .into());
    };
    let entry = caller.audit("logout", id.clone(), "done");
    accounts
        .change(&shared.core, Some(&caller), entry, move |_| Ok((vec![AccountChange::RemoveToken(id)], ())))
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Who you are to the server, and what you may do.
#[utoipa::path(get, path = "/api/v1/whoami", tag = "people", operation_id = "whoami",
    responses((status = 200, body = WhoAmI), Always))]
pub(super) async fn whoami(State(shared): State<Arc<Shared>>, caller: Caller) -> Json<WhoAmI> {
    let roles = caller.rights.roles().iter();
    let place = |(workspace, role): (&String, &_)| Place { workspace: workspace.clone(), role: Some(*role) };
    Json(WhoAmI {
        admin: caller.rights.is_admin(),
        accounts: shared.accounts.is_some(),
        scope: caller.rights.scope(),
        workspaces: roles.map(place).collect(),
        user: caller.name,
        token: caller.token,
    })
}

/// The accounts of a server that has them.
pub(super) fn accounts(shared: &Shared) -> Result<&Arc<Accounts>, Problem> {
    shared.accounts.as_ref().ok_or_else(|| {
        Problem::new(Code::NoAccounts, "this server has no accounts: it is one person's own")
            .hint("a server for several people is started with `muster server run --auth`")
    })
}

/// What the server's own user does is done by this name, and nobody takes it for theirs.
fn is_reserved(shared: &Shared, name: &str) -> bool {
    name == shared.owner || name == "server"
}

pub(super) fn refuse(errors: Vec<FieldError>) -> Result<(), Problem> {
    if errors.is_empty() { Ok(()) } else { Err(Problem::fields(errors)) }
}

pub(super) fn token_view(token: &Token) -> TokenView {
    let Token { id, user, name, scope, workspace, created_at, expires_at, .. } = token.clone();
    TokenView { id, user, name, scope, workspace, created_at, expires_at }
}
