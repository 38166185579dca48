//! People, workspaces, tokens and the audit log on the wire.

use muster_model::account::{Role, Scope, UserState};
use muster_model::{JobId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// `POST /login`.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// Who.
    #[schema(max_length = 32)]
    pub user: String,
    /// What only they know.
    #[schema(max_length = 256)]
    pub password: String,
}

/// `POST /signup`: an account that waits for somebody to say yes.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignUp {
    /// What to be called: small letters, digits, `-`, `_`, `.`.
    #[schema(max_length = 32)]
    pub user: String,
    /// What only they know, of at least 10 characters.
    #[schema(max_length = 256)]
    pub password: String,
    /// The workspace to become a member of; one of its leads decides.
    #[schema(max_length = 32)]
    pub workspace: String,
}

/// A token as it is made: the only time that its secret is shown.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct NewToken {
    /// The secret, to be shown as a bearer token.
    pub secret: String,
    /// What it is.
    pub token: TokenView,
}

/// A token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// What it is called; not a secret.
    pub id: String,
    /// Whose it is.
    pub user: String,
    /// What it is for; absent for one that a login made.
    #[serde(default)]
    pub name: Option<String>,
    /// What it is good for.
    pub scope: Scope,
    /// Good in this workspace only.
    #[serde(default)]
    pub workspace: Option<String>,
    /// Since when.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Until when.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
}

/// `GET /users/{user}/tokens`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// The oldest first.
    pub items: Vec<TokenView>,
}

/// `POST /users/{user}/tokens`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// What it is for.
    #[schema(max_length = 63)]
    pub name: String,
    /// What it is to be good for.
    pub scope: Scope,
    /// Good in this workspace only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// For how long it is good; for ever, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_s: Option<u64>,
}

/// `GET /whoami`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WhoAmI {
    /// What they are called.
    pub user: String,
    /// May do everything.
    pub admin: bool,
    /// Whether the server has accounts at all; without them whoever gets in may do everything.
    pub accounts: bool,
    /// What the token is good for.
    pub scope: Scope,
    /// The token's id, if they came with one.
    #[serde(default)]
    pub token: Option<String>,
    /// Where they are something.
    pub workspaces: Vec<Place>,
}

/// What somebody is in a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Place {
    /// The workspace.
    pub workspace: String,
    /// What they are there; absent while they have only asked.
    #[serde(default)]
    pub role: Option<Role>,
}

/// A person.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct UserView {
    /// What they are called: their identifier, which records and jobs name them by.
    pub name: String,
    /// What people call them, in any script. Not unique.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Whether they may come in.
    pub state: UserState,
    /// May do everything.
    pub admin: bool,
    /// The Unix account of their tasks, where an agent may choose.
    #[serde(default)]
    pub account: Option<String>,
    /// Since when.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Where they are something, as far as the caller may know.
    pub workspaces: Vec<Place>,
}

/// `GET /users`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct UserList {
    /// By name.
    pub items: Vec<UserView>,
}

/// `POST /users`.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateUser {
    /// What to call them: small letters, digits, `-`, `_`, `.`.
    #[schema(max_length = 32)]
    pub name: String,
    /// What people call them, in any script: up to 100 characters, none of them invisible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 100)]
    pub display_name: Option<String>,
    /// Their first password; without one they come in by tokens alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    pub password: Option<String>,
    /// Whether they may do everything.
    #[serde(default)]
    pub admin: bool,
    /// The Unix account of their tasks, where an agent may choose; the one of their name, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 32)]
    pub account: Option<String>,
}

/// `PATCH /users/{user}`: what is absent stays.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeUser {
    /// Whether they may do everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<bool>,
    /// Whether they may not come in: what they have open ends at once, their jobs go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<bool>,
    /// The Unix account of their tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 32)]
    pub account: Option<String>,
}

/// `PUT /users/{user}/display-name`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetDisplayName {
    /// What people call them, in any script: up to 100 characters, none of them invisible; an empty text takes it away.
    #[schema(max_length = 100)]
    pub display_name: String,
}

/// `PUT /users/{user}/password`.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPassword {
    /// The new one.
    #[schema(max_length = 256)]
    pub password: String,
    /// The old one; whoever changes their own must know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    pub old: Option<String>,
    /// Whether the tokens of theirs go, too, and not only the logins.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tokens: bool,
}

/// A workspace.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceView {
    /// Its name.
    pub name: String,
    /// What people call it, in any script. Not unique.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// The priority of jobs that name none.
    #[serde(default)]
    pub priority: Option<u32>,
    /// The longest that a job may run, in milliseconds.
    #[serde(default)]
    pub max_run_time_ms: Option<u64>,
    /// Since when.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// What the caller is there.
    #[serde(default)]
    pub role: Option<Role>,
    /// Who is what there. Those without a role have asked, which its leads see.
    pub members: Vec<MemberView>,
}

/// Somebody of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberView {
    /// Who.
    pub user: String,
    /// What people call them, in any script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// What they are; absent while they have only asked.
    #[serde(default)]
    pub role: Option<Role>,
    /// Since when.
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
}

/// `GET /workspaces`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceList {
    /// By name.
    pub items: Vec<WorkspaceView>,
}

/// `POST /workspaces`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateWorkspace {
    /// What to call it: small letters, digits, `-`, `_`, `.`.
    #[schema(max_length = 32)]
    pub name: String,
    /// What else to say of it.
    #[serde(flatten)]
    pub settings: WorkspaceSettings,
}

/// `PATCH /workspaces/{workspace}`: what is absent stays, and 0 or an empty text takes it away.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceSettings {
    /// What people call it, in any script: up to 100 characters, none of them invisible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 100)]
    pub display_name: Option<String>,
    /// The priority of jobs that name none, from 1 to 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// The longest that a job may run, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_run_time_ms: Option<u64>,
}

/// `PUT /workspaces/{workspace}/members/{user}`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutMember {
    /// What they are to be.
    pub role: Role,
}

/// `GET /audit`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    /// Only what this person did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Only this operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// As many, from 1 to 1000; 100 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// An entry of the audit log.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Its number. An entry gets a new number when its outcome or its count changes.
    pub seq: u64,
    /// The request. It stays the same when the number changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// By whom, as far as that is known.
    #[serde(default)]
    pub user: Option<String>,
    /// With which token.
    #[serde(default)]
    pub token: Option<String>,
    /// From where.
    #[serde(default)]
    pub address: Option<String>,
    /// What: the name of an operation.
    pub operation: String,
    /// To what.
    pub target: String,
    /// The job that the operation made, changed or read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub job: Option<JobId>,
    /// `done`, or the code of the problem. `started` while the operation goes on, or if the server ended before it did. Entries of
    /// earlier versions may have `allowed`: the operation was permitted.
    pub outcome: String,
    /// The HTTP status of the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How many requests this entry stands for: the same refusal, or the same read, within ten minutes is one entry.
    #[serde(default = "one")]
    pub count: u64,
    /// What else matters of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub detail: Option<serde_json::Value>,
}

fn one() -> u64 {
    1
}

/// `GET /audit/lines`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditLinesQuery {
    /// Only entries after this number; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
}

/// `GET /audit`: newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AuditPage {
    /// Newest first.
    pub items: Vec<AuditEntry>,
    /// Where the next page begins, if there is more.
    #[serde(default)]
    pub next_cursor: Option<String>,
}
