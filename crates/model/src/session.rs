//! Sessions: named shells in a task, and the commands they are given one after the other.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The session that is meant when none is named.
pub const MAIN: &str = "main";
/// The longest name.
const MAX_NAME: usize = 64;

/// The name of a session: a letter or a digit, then these and `._=@+-`, 64 characters at most.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionName(String);

/// Why a text is no session's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` cannot be the name of a session: it begins with a letter or a digit, which more of them or ._=@+- may follow, \
     {MAX_NAME} characters at most"
)]
pub struct InvalidName(String);

impl SessionName {
    /// As it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SessionName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._=@+-".contains(&byte);
        let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if begins && text.len() <= MAX_NAME && text.bytes().all(fits) {
            return Ok(Self(text.to_owned()));
        }
        Err(InvalidName(
            text.chars().take(MAX_NAME + 1).map(|c| if c.is_control() { '?' } else { c }).collect(),
        ))
    }
}

impl TryFrom<String> for SessionName {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<SessionName> for String {
    fn from(name: SessionName) -> Self {
        name.0
    }
}

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What holds a session's terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Terminal {
    /// A tmux server of the task's own.
    Tmux,
    /// The process that answers in the task; the session ends with it.
    Pty,
}

/// A named shell in a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Session {
    /// Its name.
    pub name: String,
    /// What holds its terminal.
    pub terminal: Terminal,
    /// The shell's program.
    pub shell: String,
    /// Where its files are on the node: `N.command`, `N.out` and `N.status` of every command.
    pub directory: String,
    /// When its shell was started.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub opened_at: Timestamp,
    /// Why it takes no more commands; absent while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    /// The command that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u32>,
    /// How many wait behind it.
    pub queued: u32,
    /// The last command that it was given; 0 before the first.
    pub last: u32,
}

/// How a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum CommandState {
    /// It waits for those before it.
    Queued,
    /// It runs.
    Running,
    /// It has ended, and its output is complete but for what it left running in the background.
    Done,
    /// The shell ended before the command did, or before it could begin.
    Lost,
}

impl CommandState {
    /// Whether nothing more comes.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Lost)
    }

    /// As in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::Lost => "lost",
        }
    }
}

/// A command that a session was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionCommand {
    /// Its number: the first of a session is 1, and none is used twice.
    pub number: u32,
    /// How it is.
    pub state: CommandState,
    /// Its exit status, or that of the shell which it ended; 128 and the signal's number for one that was killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<i32>,
    /// Why it is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The beginning of its text.
    pub text: String,
    /// How much it has written.
    pub output_bytes: u64,
    /// When it was given.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub queued_at: Timestamp,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub ended_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_tmux_and_a_file_system_can_have() {
        for good in ["main", "0", "task0.bert", "a=b@c+d-e_f", &"x".repeat(64)] {
            assert_eq!(good.parse::<SessionName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "-x", "a/b", "a b", "a:b", "é", "a\nb", &"x".repeat(65)] {
            assert!(bad.parse::<SessionName>().is_err(), "{bad:?}");
        }
    }
}
