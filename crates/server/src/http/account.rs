//! Coming in and going out.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use muster_api::account::{Login, NewToken, Place, SignUp, TokenView, WhoAmI};
use muster_api::problem::{Code, Problem};
use muster_model::account::{Membership, Token, User, UserState, check_name, check_password};
use muster_model::spec::FieldError;
use muster_store::{AccountChange, NewAudit};

use super::describe::{Always, Conflicts, Limited, Reads, Takes};
use super::failure::{Failure, Json};
use super::guard::Stranger;
use super::job::read;
use crate::accounts::{Accounts, Caller, Directory, LOGIN, in_step, secret, token_id};
use crate::audit;
use crate::core::{internal, now};
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
    let begun = Instant::now();
    let address = stranger.and_then(|stranger| stranger.address);
    let entry = record("login", &request.user, address, "");
    // A name that no account has may be a password typed into the wrong field: it is not recorded.
    if accounts.look(|directory| directory.user(&request.user).is_some()) {
        audit::name_user(&request.user);
    }
    let user = match accounts.sign_in(&request.user, &request.password, address).await {
        Ok(user) => user,
        Err(problem) => {
            audit::state_refusal(&problem);
            if problem.code == Code::TooManyRequests {
                return Err(problem.into());
            }
            in_step(begun).await;
            return Err(problem.into());
        }
    };
    let lasts = shared.entrance.map_or(Duration::ZERO, |entrance| entrance.login);
    let made =
        accounts.change(&shared.core, None, entry, move |directory| log_in(directory, &user, lasts)).await?;
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
    let gone = logins.iter().enumerate().filter(|(place, token)| *place < over || token.has_expired(now));
    let mut changes: Vec<AccountChange> =
        gone.map(|(_, token)| AccountChange::RemoveToken(token.id.clone())).collect();
    changes.push(AccountChange::Token(token.clone()));
    Ok((changes, NewToken { secret, token: token_view(&token) }))
}

/// Ask for an account; a lead of the workspace, or an admin, says yes or no.
///
/// The answer is the same whether or not there is such a workspace, and whether or not the name is free.
#[utoipa::path(post, path = "/api/v1/signup", tag = "people", operation_id = "sign_up", request_body = SignUp,
    responses((status = 202, description = "Somebody has to approve it."), Always, Reads, Takes, Conflicts, Limited),
    security(()))]
pub(super) async fn sign_up(
    State(shared): State<Arc<Shared>>,
    stranger: Option<Extension<Stranger>>,
    Json(request): Json<SignUp>,
) -> Result<StatusCode, Failure> {
    let accounts = accounts(&shared)?;
    if !shared.entrance.is_some_and(|entrance| entrance.sign_up) {
        return Err(Problem::new(Code::Forbidden, "nobody can sign up here")
            .hint("ask an admin for an account: `muster user add`")
            .into());
    }
    let begun = Instant::now();
    let address = stranger.and_then(|stranger| stranger.address);
    let wrong = [
        check_name("user", &request.user).err(),
        check_password("password", &request.password).err(),
        check_name("workspace", &request.workspace).err(),
    ];
    refuse(wrong.into_iter().flatten().collect())?;
    let hash = accounts.hash_for_stranger(request.password, &request.user, address).await?;
    let entry = record("sign_up", &request.user, address, &request.workspace);
    let is_reserved = is_reserved(&shared, &request.user) || has_history(&shared, &request.user).await?;
    let (user, workspace) = (request.user, request.workspace);
    let decide = |directory: &Directory| newcomer(directory, &user, hash, &workspace, is_reserved);
    match accounts.change(&shared.core, None, entry, decide).await {
        // Who is there is nobody's business who is not.
        Err(problem) if matches!(problem.code, Code::NotFound | Code::NameTaken) => {
            tracing::info!(user, workspace, %problem, "a sign-up came to nothing");
        }
        changed => changed?,
    }
    in_step(begun).await;
    Ok(StatusCode::ACCEPTED)
}

/// What somebody did whom nobody knows yet.
fn record(operation: &str, user: &str, address: Option<IpAddr>, target: &str) -> NewAudit {
    NewAudit {
        user: Some(user.chars().take(64).collect()),
        address: address.map(|address| address.to_string()),
        target: target.into(),
        ..NewAudit::new(now(), operation, audit::DONE)
    }
}

/// Somebody who is to wait for a lead's word.
fn newcomer(
    directory: &Directory,
    name: &str,
    hash: String,
    workspace: &str,
    is_reserved: bool,
) -> Result<(Vec<AccountChange>, ()), Problem> {
    let created_at = now();
    let late: Vec<&str> = directory.expired_sign_ups(created_at).map(|user| user.name.as_str()).collect();
    let pending = directory.users().filter(|user| user.state == UserState::Pending).count();
    if pending - late.len() >= PENDING {
        return Err(Problem::new(Code::Unavailable, "too many accounts wait for approval already")
            .hint("ask an admin for an account, or try again another day"));
    }
    directory.require_workspace(workspace)?;
    if is_reserved || directory.user(name).is_some_and(|user| !late.contains(&user.name.as_str())) {
        return Err(Problem::new(Code::NameTaken, format!("the name `{name}` is taken")));
    }
    let user = User {
        name: name.to_owned(),
        display_name: None,
        state: UserState::Pending,
        is_admin: false,
        password: Some(hash),
        account: None,
        created_at,
    };
    let (workspace, user_name) = (workspace.to_owned(), name.to_owned());
    let asks = Membership { workspace, user: user_name, role: None, since: created_at };
    let gone = late.into_iter().map(|name| AccountChange::RemoveUser(name.to_owned()));
    Ok((gone.chain([AccountChange::User(user), AccountChange::Membership(asks)]).collect(), ()))
}

/// Log out: revoke the token that this comes with.
#[utoipa::path(post, path = "/api/v1/logout", tag = "people", operation_id = "logout",
    responses((status = 204, description = "It is revoked."), Always, Conflicts))]
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

/// Whether jobs are kept under a name that nobody has now: of a server that had no accounts yet, or of an operator. Who signs up
/// under it would be taken for their owner.
async fn has_history(shared: &Arc<Shared>, name: &str) -> Result<bool, Problem> {
    let name = name.to_owned();
    read(shared, move |readers| readers.has_jobs_of(&name).map_err(|error| internal(&error))).await
}

pub(super) fn refuse(errors: Vec<FieldError>) -> Result<(), Problem> {
    if errors.is_empty() { Ok(()) } else { Err(Problem::fields(errors)) }
}

pub(super) fn token_view(token: &Token) -> TokenView {
    let Token { id, user, name, scope, workspace, created_at, expires_at, .. } = token.clone();
    TokenView { id, user, name, scope, workspace, created_at, expires_at }
}

#[cfg(test)]
mod tests {
    use muster_model::Timestamp;
    use muster_model::account::Workspace;

    use super::*;

    fn pending(name: &str, days: i64) -> User {
        User {
            name: name.into(),
            display_name: None,
            state: UserState::Pending,
            is_admin: false,
            password: None,
            account: None,
            created_at: now() - jiff::SignedDuration::from_hours(days * 24),
        }
    }

    fn directory(users: Vec<User>) -> Directory {
        let workspace = Workspace {
            name: "nlp".into(),
            display_name: None,
            priority: None,
            max_run_time: None,
            created_at: Timestamp::UNIX_EPOCH,
        };
        Directory::new(muster_store::Accounts { users, workspaces: vec![workspace], ..Default::default() })
    }

    #[test]
    fn those_who_wait_are_bounded_and_those_who_waited_too_long_go() {
        let ask = |directory: &Directory, name: &str| newcomer(directory, name, "hash".into(), "nlp", false);
        let many =
            |days| directory((0..PENDING).map(|number| pending(&format!("u{number}"), days)).collect());
        assert_eq!(ask(&many(13), "new").unwrap_err().code, Code::Unavailable);
        // Of the name, and of the workspace, nothing is said by it.
        assert_eq!(ask(&many(13), "u1").unwrap_err().code, Code::Unavailable);
        let (changes, ()) = ask(&many(15), "new").unwrap();
        assert_eq!(changes.len(), PENDING + 2, "all of them go, and one comes");

        let two = directory(vec![pending("late", 15), pending("new", 1)]);
        assert_eq!(ask(&two, "new").unwrap_err().code, Code::NameTaken);
        let (changes, ()) = ask(&two, "late").unwrap();
        assert_eq!(changes[0], AccountChange::RemoveUser("late".into()));
        assert!(matches!(&changes[1], AccountChange::User(user) if user.name == "late"));
        let late: Vec<&str> = two.expired_sign_ups(now()).map(|user| user.name.as_str()).collect();
        assert_eq!(late, ["late"]);
    }
}
