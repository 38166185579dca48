//! People, and the tokens they are known by.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use muster_api::account::{
    ChangeUser, CreateToken, CreateUser, NewToken, Place, SetDisplayName, SetPassword, TokenList, UserList,
    UserView,
};
use muster_api::problem::{Code, Problem};
use muster_model::account::{Role, Scope, Token, User, UserState, check_name, check_password};
use muster_model::spec::{FieldCode, FieldError};
use muster_model::{JobSpec, display_name};
use muster_store::AccountChange;
use serde_json::json;

use super::account::{accounts, refuse, token_view};
use super::describe::{Always, Conflicts, Limited, OnPerson, Reads, Takes};
use super::failure::{Failure, Json, Segment, Segments};
use crate::accounts::{Caller, Directory, no_workspace, secret, token_id};
use crate::core::{Input, now};
use crate::state::Shared;

/// As many tokens may one person have that are still good; logins are counted apart.
const TOKENS: usize = 100;
/// The longest that a token may be good, if it ends at all.
const LONGEST: u64 = 10 * 366 * 86_400;

/// List people: all of them for admins and leads, those of one's own workspaces for others.
#[utoipa::path(get, path = "/api/v1/users", tag = "people", operation_id = "list_users",
    responses((status = 200, body = UserList), Always, Conflicts))]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
) -> Result<Json<UserList>, Failure> {
    let accounts = accounts(&shared)?;
    let rights = &caller.rights;
    let sees_all = rights.is_admin() || rights.roles().values().any(|role| *role == Role::Lead);
    let items = accounts.look(|directory| {
        let sees = |user: &&User| {
            let mut places = directory.memberships_of(&user.name);
            sees_all || user.name == caller.name || places.any(|one| rights.role(&one.workspace).is_some())
        };
        directory.users().filter(sees).map(|user| view(directory, user, &caller)).collect()
    });
    Ok(Json(UserList { items }))
}

/// Make somebody an account.
#[utoipa::path(post, path = "/api/v1/users", tag = "people", operation_id = "create_user", request_body = CreateUser,
    responses((status = 201, body = UserView), Always, Reads, Takes, Conflicts, Limited))]
pub(super) async fn create(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Json(request): Json<CreateUser>,
) -> Result<(StatusCode, Json<UserView>), Failure> {
    let accounts = accounts(&shared)?;
    let CreateUser { name, display_name, password, admin, account } = request;
    let shown = display_name::change("display_name", display_name.as_deref(), None);
    let wrong = [
        shown.as_ref().err().cloned(),
        check_name("name", &name).err(),
        password.as_ref().and_then(|password| check_password("password", password).err()),
        account.as_ref().and_then(|account| check_name("account", account).err()),
    ];
    refuse(wrong.into_iter().flatten().collect())?;
    let password = match password {
        Some(password) => Some(accounts.hash(password).await?),
        None => None,
    };
    // An admin who says nothing else means the account of the same name; who signs up has none until an admin says which.
    let account = Some(account.unwrap_or_else(|| name.clone()));
    let user = User {
        name,
        display_name: shown.ok().flatten(),
        state: UserState::Active,
        is_admin: admin,
        password,
        account,
        created_at: now(),
    };
    let mut entry = caller.audit("create_user", user.name.clone(), "done");
    entry.detail = Some(json!({ "admin": admin }));
    let made = user.clone();
    let decide = move |directory: &Directory| {
        if directory.user(&user.name).is_some() {
            let what = format!("there is a user `{}` already", user.name);
            return Err(
                Problem::new(Code::NameTaken, what).hint("`muster user set` changes what they may do")
            );
        }
        Ok((vec![AccountChange::User(user)], ()))
    };
    accounts.change(&shared.core, Some(&caller), entry, decide).await?;
    Ok((StatusCode::CREATED, Json(accounts.look(|directory| view(directory, &made, &caller)))))
}

/// Show somebody.
#[utoipa::path(get, path = "/api/v1/users/{user}", tag = "people", operation_id = "show_user",
    params(("user" = String, Path, description = "their name")),
    responses((status = 200, body = UserView), Always, OnPerson, Conflicts))]
pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segment(user): Segment,
) -> Result<Json<UserView>, Failure> {
    let found = accounts(&shared)?
        .look(|directory| directory.require_user(&user).map(|user| view(directory, user, &caller)));
    Ok(Json(found?))
}

/// Change what somebody may do. Whoever is disabled is cut off at once; their jobs go on.
#[utoipa::path(patch, path = "/api/v1/users/{user}", tag = "people", operation_id = "change_user",
    params(("user" = String, Path, description = "their name")), request_body = ChangeUser,
    responses((status = 200, body = UserView), Always, OnPerson, Reads, Takes, Conflicts))]
pub(super) async fn change(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segment(name): Segment,
    Json(request): Json<ChangeUser>,
) -> Result<Json<UserView>, Failure> {
    let accounts = accounts(&shared)?;
    refuse(
        request
            .account
            .as_ref()
            .and_then(|account| check_name("account", account).err())
            .into_iter()
            .collect(),
    )?;
    let mut entry = caller.audit("change_user", name.clone(), "done");
    entry.detail = serde_json::to_value(&request).ok();
    let decide = move |directory: &Directory| {
        let before = directory.require_user(&name)?;
        if before.state == UserState::Pending && request.disabled == Some(false) {
            // Whoever signed up under a name need not be who is meant.
            let what = format!("{name} has signed up, and nobody has said yes");
            return Err(Problem::new(Code::InvalidState, what)
                .hint("`muster workspace add-member` says yes, `muster workspace rm-member` says no"));
        }
        let state = match request.disabled {
            Some(true) => UserState::Disabled,
            Some(false) => UserState::Active,
            None => before.state,
        };
        let user = User {
            state,
            is_admin: request.admin.unwrap_or(before.is_admin),
            account: request.account.or_else(|| before.account.clone()),
            ..before.clone()
        };
        if before.is_admin && !(user.is_admin && user.state == UserState::Active) {
            directory.require_admin_without(&name)?;
        }
        Ok((vec![AccountChange::User(user.clone())], user))
    };
    let user = accounts.change(&shared.core, Some(&caller), entry, decide).await?;
    shared.core.tell(Input::Renew(user.name.clone())).await?;
    Ok(Json(accounts.look(|directory| view(directory, &user, &caller))))
}

/// Set the display name of a user. Jobs and audit records name the user by the identifier.
#[utoipa::path(put, path = "/api/v1/users/{user}/display-name", tag = "people", operation_id = "set_display_name",
    params(("user" = String, Path, description = "their name")), request_body = SetDisplayName,
    responses((status = 200, body = UserView), Always, OnPerson, Reads, Takes, Conflicts))]
pub(super) async fn set_display_name(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segment(name): Segment,
    Json(request): Json<SetDisplayName>,
) -> Result<Json<UserView>, Failure> {
    let accounts = accounts(&shared)?;
    let display_name = display_name::change("display_name", Some(&request.display_name), None)
        .map_err(|error| Problem::fields(vec![error]))?;
    let mut entry = caller.audit("set_display_name", name.clone(), "done");
    entry.detail = Some(json!({ "display_name": display_name }));
    let decide = move |directory: &Directory| {
        let user = User { display_name, ..directory.require_user(&name)?.clone() };
        Ok((vec![AccountChange::User(user.clone())], user))
    };
    let user = accounts.change(&shared.core, Some(&caller), entry, decide).await?;
    Ok(Json(accounts.look(|directory| view(directory, &user, &caller))))
}

/// Set a password. Whoever sets their own shows the old one; all other logins of theirs end, and their tokens if that is asked for.
#[utoipa::path(put, path = "/api/v1/users/{user}/password", tag = "people", operation_id = "set_password",
    params(("user" = String, Path, description = "their name")), request_body = SetPassword,
    responses((status = 204, description = "It is the password from now on."), Always, OnPerson, Reads, Takes, Conflicts, Limited))]
pub(super) async fn set_password(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segment(name): Segment,
    Json(request): Json<SetPassword>,
) -> Result<StatusCode, Failure> {
    let accounts = accounts(&shared)?;
    refuse(check_password("password", &request.password).err().into_iter().collect())?;
    let has_one =
        accounts.look(|directory| Ok::<_, Problem>(directory.require_user(&name)?.password.is_some()))?;
    // The operator at the server itself is nobody's account, even of the same name.
    if has_one && name == caller.name && caller.token.is_some() {
        let Some(old) = &request.old else {
            let message = "whoever changes their own password must know the old one";
            return Err(Problem::fields(vec![FieldError::new("old", FieldCode::Required, message)]).into());
        };
        accounts.confirm(&caller, old).await?;
    }
    let hash = accounts.hash(request.password).await?;
    let (entry, kept) = (caller.audit("set_password", name.clone(), "done"), caller.token.clone());
    let first = shared.first_password();
    let removes = name.clone();
    let decide = move |directory: &Directory| {
        let user = User { password: Some(hash), ..directory.require_user(&name)?.clone() };
        let ends = |token: &Token| token.name.is_none() || request.tokens;
        let is_other = |token: &&Token| ends(token) && Some(&token.id) != kept.as_ref();
        let mut changes: Vec<AccountChange> = directory
            .tokens(&name)
            .filter(is_other)
            .map(|token| AccountChange::RemoveToken(token.id.clone()))
            .collect();
        changes.push(AccountChange::User(user));
        Ok((changes, ()))
    };
    accounts.change(&shared.core, Some(&caller), entry, decide).await?;
    if removes == crate::accounts::FIRST {
        // The one that was made at the first start is of no use any more.
        drop(std::fs::remove_file(first));
    }
    Ok(StatusCode::NO_CONTENT)
}

/// List somebody's tokens; the secrets are nowhere.
#[utoipa::path(get, path = "/api/v1/users/{user}/tokens", tag = "people", operation_id = "list_tokens",
    params(("user" = String, Path, description = "their name")),
    responses((status = 200, body = TokenList), Always, OnPerson, Conflicts))]
pub(super) async fn tokens(
    State(shared): State<Arc<Shared>>,
    Segment(user): Segment,
) -> Result<Json<TokenList>, Failure> {
    let items = accounts(&shared)?.look(|directory| {
        directory.require_user(&user)?;
        let mut tokens: Vec<&Token> = directory.tokens(&user).collect();
        tokens.sort_by_key(|token| token.created_at);
        Ok::<_, Problem>(tokens.into_iter().map(token_view).collect())
    });
    Ok(Json(TokenList { items: items? }))
}

/// Make a token. Its secret is shown this once.
#[utoipa::path(post, path = "/api/v1/users/{user}/tokens", tag = "people", operation_id = "create_token",
    params(("user" = String, Path, description = "their name")), request_body = CreateToken,
    responses((status = 201, body = NewToken), Always, OnPerson, Reads, Takes, Conflicts))]
pub(super) async fn create_token(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segment(user): Segment,
    Json(request): Json<CreateToken>,
) -> Result<(StatusCode, Json<NewToken>), Failure> {
    let accounts = accounts(&shared)?;
    let wrong_span = request.expires_in_s.filter(|seconds| !(1..=LONGEST).contains(seconds)).map(|seconds| {
        let message = format!("{seconds} is not from 1 to {LONGEST}");
        FieldError::new("expires_in_s", FieldCode::OutOfRange, message)
    });
    refuse([JobSpec::check_name(&request.name).err(), wrong_span].into_iter().flatten().collect())?;
    let mut entry = caller.audit("create_token", format!("{user} {}", request.name), "done");
    entry.detail = Some(json!({ "scope": request.scope, "workspace": request.workspace }));
    let is_admin = caller.rights.is_admin();
    let decide = move |directory: &Directory| {
        let owner = directory.require_user(&user)?;
        if let Some(workspace) = &request.workspace {
            directory.require_workspace(workspace)?;
            // A token would be good for nothing there, and nobody learns by it what there is.
            let role = directory.membership(&user, workspace).and_then(|membership| membership.role);
            if role.is_none() && !owner.is_admin && !is_admin {
                return Err(no_workspace(workspace));
            }
        }
        let now = now();
        let (over, good): (Vec<&Token>, Vec<&Token>) = directory
            .tokens(&user)
            .filter(|token| token.name.is_some())
            .partition(|token| token.has_expired(now));
        if good.len() >= TOKENS {
            let what = format!("{user} has {TOKENS} tokens, which are the most");
            return Err(Problem::new(Code::InvalidState, what).hint("`muster token rm` removes some"));
        }
        let is_beyond = request.scope == Scope::Admin && request.workspace.is_some();
        if is_beyond {
            let message = "a token of one workspace is good for `read` or `write`";
            return Err(Problem::fields(vec![FieldError::new("scope", FieldCode::InvalidValue, message)]));
        }
        let (secret, digest) = secret();
        let token = Token {
            id: token_id(),
            user: owner.name.clone(),
            name: Some(request.name),
            digest,
            scope: request.scope,
            workspace: request.workspace,
            created_at: now,
            expires_at: request.expires_in_s.and_then(|span| now.checked_add(Duration::from_secs(span)).ok()),
        };
        let made = NewToken { secret, token: token_view(&token) };
        let gone = over.into_iter().map(|token| AccountChange::RemoveToken(token.id.clone()));
        Ok((gone.chain([AccountChange::Token(token)]).collect(), made))
    };
    let made = accounts.change(&shared.core, Some(&caller), entry, decide).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Give a token another secret; the old one is revoked.
#[utoipa::path(post, path = "/api/v1/users/{user}/tokens/{token}/rotate", tag = "people", operation_id = "rotate_token",
    params(("user" = String, Path, description = "their name"), ("token" = String, Path, description = "its id")),
    responses((status = 200, body = NewToken), Always, OnPerson, Conflicts))]
pub(super) async fn rotate_token(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segments((user, id)): Segments<(String, String)>,
) -> Result<Json<NewToken>, Failure> {
    let accounts = accounts(&shared)?;
    let entry = caller.audit("rotate_token", format!("{user} {id}"), "done");
    let decide = move |directory: &Directory| {
        let before = directory.token(&user, &id)?;
        if before.has_expired(now()) {
            let what = format!("{id} has expired or is revoked, and another secret does not change that");
            return Err(Problem::new(Code::InvalidState, what).hint("`muster token add` makes a new one"));
        }
        let (secret, digest) = secret();
        let token = Token { digest, ..before.clone() };
        let made = NewToken { secret, token: token_view(&token) };
        Ok((vec![AccountChange::Token(token)], made))
    };
    Ok(Json(accounts.change(&shared.core, Some(&caller), entry, decide).await?))
}

/// Remove a token: whoever uses it is cut off.
#[utoipa::path(delete, path = "/api/v1/users/{user}/tokens/{token}", tag = "people", operation_id = "remove_token",
    params(("user" = String, Path, description = "their name"), ("token" = String, Path, description = "its id")),
    responses((status = 204, description = "It is gone."), Always, OnPerson, Conflicts))]
pub(super) async fn remove_token(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Segments((user, id)): Segments<(String, String)>,
) -> Result<StatusCode, Failure> {
    let accounts = accounts(&shared)?;
    let entry = caller.audit("remove_token", format!("{user} {id}"), "done");
    let decide = move |directory: &Directory| {
        directory.token(&user, &id)?;
        Ok((vec![AccountChange::RemoveToken(id)], ()))
    };
    accounts.change(&shared.core, Some(&caller), entry, decide).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Somebody, as far as the caller may know.
fn view(directory: &Directory, user: &User, caller: &Caller) -> UserView {
    let is_open = user.name == caller.name || caller.rights.is_admin();
    let places = directory.memberships_of(&user.name);
    let places = places.filter(|one| is_open || caller.rights.role(&one.workspace).is_some());
    UserView {
        name: user.name.clone(),
        display_name: user.display_name.clone(),
        state: user.state,
        admin: user.is_admin,
        account: user.account.clone().filter(|_| is_open),
        created_at: user.created_at,
        workspaces: places.map(|one| Place { workspace: one.workspace.clone(), role: one.role }).collect(),
    }
}
