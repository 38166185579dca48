//! What a command failed with: how it is said, what helps, and the exit code.

use std::fmt::Write;
use std::io;
use std::process::ExitCode;

use muster_api::client::{self, EndpointError};
use muster_api::model::spec::FieldError;
use muster_api::{Code, Problem};

use crate::terminal::{self, Colour};

/// Whose fault it is; this alone decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What the user gave cannot be used.
    Input,
    /// Muster itself failed, or what it stands on.
    Failed,
    /// A wait was given up.
    Timeout,
    /// Whoever read our output has gone; there is nobody to say it to.
    OutputClosed,
}

/// Why a command ends early.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Error {
    kind: Kind,
    message: String,
    /// One line each, below the message.
    details: Vec<String>,
    hint: Option<String>,
}

impl Error {
    pub fn input(message: impl Into<String>) -> Self {
        Self { kind: Kind::Input, message: message.into(), details: Vec::new(), hint: None }
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self { kind: Kind::Failed, ..Self::input(message) }
    }

    pub fn timeout(message: impl Into<String>) -> Self {
        Self { kind: Kind::Timeout, ..Self::input(message) }
    }

    /// An operation of the system that failed: `cannot write X: no space left on device`.
    pub fn io(what: impl std::fmt::Display, source: &io::Error) -> Self {
        Self::failed(format!("cannot {what}: {}", system_message(source)))
    }

    /// Every field that is wrong, at once.
    pub fn fields(errors: &[FieldError]) -> Self {
        let line = |error: &FieldError| match error.field.as_str() {
            "" => error.message.clone(),
            field => format!("{field}: {}", error.message),
        };
        match errors {
            [one] => Self::input(line(one)),
            many => Self {
                details: many.iter().map(line).collect(),
                ..Self::input(format!("{} fields are wrong", many.len()))
            },
        }
    }

    /// An error in writing the command's own output.
    pub fn output(source: &io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::BrokenPipe => {
                Self { kind: Kind::OutputClosed, ..Self::failed("the output was closed") }
            }
            _ => Self::io("write the output", source),
        }
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub fn detail(mut self, line: String) -> Self {
        self.details.push(line);
        self
    }

    #[must_use]
    pub fn details(mut self, details: Vec<String>) -> Self {
        self.details = details;
        self
    }

    pub fn is_output_closed(&self) -> bool {
        self.kind == Kind::OutputClosed
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self.kind {
            Kind::Input => 2,
            Kind::Timeout => 124,
            Kind::Failed => 125,
            // As if SIGPIPE had ended us, which is how `head` ends every other program.
            Kind::OutputClosed => 141,
        })
    }

    /// Says it on stderr.
    pub fn report(&self) {
        if self.kind == Kind::OutputClosed {
            return;
        }
        let colours = terminal::stderr_has_colours();
        let mut text = format!("{} {}\n", terminal::paint("error:", Colour::Red, colours), self.message);
        for line in &self.details {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {line}");
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "{} {hint}", terminal::paint("hint:", Colour::Cyan, colours));
        }
        terminal::to_stderr(&text);
    }
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        match error {
            client::Error::Problem(problem) => (*problem).into(),
            client::Error::Unreachable { ref endpoint, ref source } => {
                Self::failed(format!("cannot reach the server at {endpoint}: {}", system_message(source)))
            }
            client::Error::Protocol(_) => Self::failed(chain(&error)).hint(
                "is MUSTER_SERVER the address of a muster server, of about the version of this client?",
            ),
            client::Error::Lost { .. } | client::Error::Silent { .. } => Self::failed(chain(&error)),
        }
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        let input = match problem.code {
            Code::Ambiguous
            | Code::InvalidFields
            | Code::InvalidRequest
            | Code::InvalidState
            | Code::NotFound
            | Code::TooLarge
            | Code::Unauthorized => true,
            Code::BundleIncomplete
            | Code::ChunkMismatch
            | Code::DiskFull
            | Code::IdempotencyConflict
            | Code::Internal
            | Code::MethodNotAllowed
            | Code::Unavailable => false,
        };
        let mut error = if problem.errors.is_empty() {
            Self::input(problem.detail)
        } else {
            Self::fields(&problem.errors)
        };
        error.kind = if input { Kind::Input } else { Kind::Failed };
        error.hint = problem.hint;
        if let (false, Some(id)) = (input, problem.request_id) {
            error.details.push(format!("request {id} in the server's log"));
        }
        error
    }
}

impl From<EndpointError> for Error {
    fn from(error: EndpointError) -> Self {
        let variable = if error == EndpointError::Token { "MUSTER_TOKEN" } else { "MUSTER_SERVER" };
        Self::input(format!("{variable}: {error}"))
    }
}

/// The system's words without its number: `no such file or directory`.
pub(crate) fn system_message(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// An error with everything that caused it, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // A transparent error says its source's words already.
        if !text.ends_with(&cause_text) {
            // Writing to a String cannot fail.
            let _ = write!(text, ": {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_field_is_one_line_and_many_are_a_list() {
        let one = Error::fields(&[FieldError::new("nodes", "must be a whole number")]);
        assert_eq!((one.message.as_str(), one.details.len()), ("nodes: must be a whole number", 0));
        let many = Error::fields(&[FieldError::new("nodes", "a"), FieldError::new("", "b")]);
        assert_eq!(many.message, "2 fields are wrong");
        assert_eq!(many.details, ["nodes: a", "b"]);
    }

    #[test]
    fn the_users_mistakes_and_the_servers_have_different_exit_codes() {
        for (code, exit) in [(Code::NotFound, 2), (Code::InvalidFields, 2), (Code::Internal, 125)] {
            assert_eq!(Error::from(Problem::new(code, "x")).exit_code(), ExitCode::from(exit), "{code:?}");
        }
    }

    #[test]
    fn the_systems_words_come_without_their_number() {
        assert_eq!(system_message(&io::Error::from_raw_os_error(2)), "no such file or directory");
    }
}
