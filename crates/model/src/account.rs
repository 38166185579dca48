//! People, the workspaces they share, and the tokens they are known by.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::spec::{FieldCode, FieldError};

/// The longest name of a person or a workspace: it becomes a part of paths and of labels elsewhere.
pub const MAX_NAME: usize = 32;
/// The shortest password; short ones are guessed.
pub const MIN_PASSWORD: usize = 10;
/// The longest: hashing costs by length, and nobody types more.
pub const MAX_PASSWORD: usize = 256;

/// What somebody may do in a workspace; each may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Role {
    /// Sees its jobs, and changes nothing.
    Viewer,
    /// Runs jobs, and has all rights over their own.
    Member,
    /// Has a say in everybody's jobs, and in who belongs to it.
    Lead,
}

impl Role {
    /// All of them, from the least.
    pub const ALL: [Role; 3] = [Role::Viewer, Role::Member, Role::Lead];

    /// As it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Member => "member",
            Role::Lead => "lead",
        }
    }
}

/// How much of what its owner may do a token is good for; each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Scope {
    /// Look at things.
    Read,
    /// Run jobs and change them.
    Write,
    /// People, workspaces, tokens, and the server itself.
    Admin,
}

impl Scope {
    /// All of them, from the least.
    pub const ALL: [Scope; 3] = [Scope::Read, Scope::Write, Scope::Admin];

    /// As it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Write => "write",
            Scope::Admin => "admin",
        }
    }
}

/// Whether somebody may come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum UserState {
    /// Has signed up, and nobody has said yes yet.
    Pending,
    /// May come in.
    Active,
    /// May not, any more.
    Disabled,
}

/// A person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// What they are called; their jobs are theirs by it.
    pub name: String,
    /// What people call them, in any script; never used as an identifier.
    pub display_name: Option<String>,
    /// Whether they may come in.
    pub state: UserState,
    /// May do everything.
    pub is_admin: bool,
    /// The hash of their password; without one they come in by tokens alone.
    pub password: Option<String>,
    /// The Unix account that their tasks run as, where an agent may choose.
    pub account: Option<String>,
    /// Since when.
    pub created_at: Timestamp,
}

/// People who share jobs, storage and limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    /// Its name.
    pub name: String,
    /// What people call it, in any script; never used as an identifier.
    pub display_name: Option<String>,
    /// The priority of jobs that name none.
    pub priority: Option<u32>,
    /// The longest that a job may run.
    pub max_run_time: Option<Duration>,
    /// Since when.
    pub created_at: Timestamp,
}

/// What somebody is in a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// The workspace.
    pub workspace: String,
    /// The person.
    pub user: String,
    /// What they are; none while they have only asked.
    pub role: Option<Role>,
    /// Since when.
    pub since: Timestamp,
}

/// What somebody is known by instead of a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// What it is called where it is listed; not a secret.
    pub id: String,
    /// Whose it is.
    pub user: String,
    /// What it is for, in its owner's words; none for one that a login made.
    pub name: Option<String>,
    /// What the secret hashes to.
    pub digest: [u8; 32],
    /// What it is good for.
    pub scope: Scope,
    /// Good in this workspace only.
    pub workspace: Option<String>,
    /// Since when.
    pub created_at: Timestamp,
    /// Until when.
    pub expires_at: Option<Timestamp>,
}

impl Token {
    /// Whether it is good no longer.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }
}

/// A name as it must be for a person or a workspace.
pub fn check_name(field: &str, name: &str) -> Result<(), FieldError> {
    let is_good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    let begins_well = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
    if begins_well && name.len() <= MAX_NAME && name.bytes().all(is_good) {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_NAME + 8).collect();
    let message = format!(
        "must be 1 to {MAX_NAME} small letters, digits, `-`, `_` or `.`, starting with a letter, not `{shown}`"
    );
    Err(FieldError::new(field, FieldCode::InvalidValue, message))
}

/// A password that is worth hashing.
pub fn check_password(field: &str, password: &str) -> Result<(), FieldError> {
    let length = password.chars().count();
    let wrong = |code, message| Err(FieldError::new(field, code, message));
    if length < MIN_PASSWORD {
        return wrong(
            FieldCode::OutOfRange,
            format!("has {length} characters; {MIN_PASSWORD} are the fewest"),
        );
    }
    if password.len() > MAX_PASSWORD {
        return wrong(FieldCode::OutOfRange, format!("is longer than {MAX_PASSWORD} bytes"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_small_and_plain() {
        for good in ["ada", "a", "team-7", "a.b_c", &"a".repeat(MAX_NAME)] {
            assert_eq!(check_name("user", good), Ok(()), "{good}");
        }
        for bad in ["", "Ada", "7up", "-a", "a b", "ä", "a/b", "..", &"a".repeat(MAX_NAME + 1)] {
            assert!(check_name("user", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn short_and_endless_passwords_are_refused() {
        assert!(check_password("password", "correct horse").is_ok());
        assert!(check_password("password", "密码密码密码密码密码").is_ok());
        assert!(check_password("password", "123456789").is_err());
        assert!(check_password("password", &"a".repeat(MAX_PASSWORD + 1)).is_err());
    }

    #[test]
    fn roles_and_scopes_are_ordered_and_spelled_as_in_json() {
        assert!(Role::Viewer < Role::Member && Role::Member < Role::Lead);
        assert!(Scope::Read < Scope::Write && Scope::Write < Scope::Admin);
        for role in Role::ALL {
            assert_eq!(serde_json::to_value(role).unwrap(), role.as_str());
        }
        for scope in Scope::ALL {
            assert_eq!(serde_json::to_value(scope).unwrap(), scope.as_str());
        }
    }
}
