//! What a command failed with: how it is said, what helps, and the exit code.

use std::fmt::Write;
use std::io;
use std::process::ExitCode;

use muster_api::Problem;
use muster_api::client::{self, EndpointError, TlsError};
use muster_api::model::catalogue::Entry;
use muster_api::model::printable;
use muster_api::model::spec::FieldError;
use serde_json::json;

use crate::terminal::{self, Colour};

mod code;
pub(crate) mod usage;

pub(crate) use code::Code;

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

impl Kind {
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Input => 2,
            Self::Timeout => 124,
            Self::Failed => 125,
            // As if SIGPIPE had ended us, which is how `head` ends every other program.
            Self::OutputClosed => 141,
        }
    }

    /// Whose fault a refusal of the server is.
    pub const fn of_problem(code: muster_api::Code) -> Self {
        use muster_api::Code;
        match code {
            Code::Ambiguous
            | Code::Configured
            | Code::Forbidden
            | Code::InUse
            | Code::InvalidFields
            | Code::InvalidRequest
            | Code::InvalidState
            | Code::JobNotFound
            | Code::NameTaken
            | Code::NoAccounts
            | Code::NoRoom
            | Code::NodeNotFound
            | Code::NotFound
            | Code::PoolNotFound
            | Code::ServerConfigInvalid
            | Code::SessionOver
            | Code::TooLarge
            | Code::Unauthorized => Self::Input,
            Code::BundleIncomplete
            | Code::ChunkMismatch
            | Code::IdempotencyConflict
            | Code::Internal
            | Code::MethodNotAllowed
            | Code::ServerDiskFull
            | Code::StorageLimit
            | Code::TooManyRequests
            | Code::Unavailable
            | Code::Unknown => Self::Failed,
        }
    }
}

/// How errors are said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// In lines for people.
    Text,
    /// As one line of JSON, for a command that was asked for JSON.
    Json,
}

/// Why a command ends early. None can be made without a code of the catalogue.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Error {
    entry: Entry,
    kind: Kind,
    message: String,
    /// One line each, below the message.
    details: Vec<String>,
    /// The fields that are wrong, if it is about fields.
    fields: Vec<FieldError>,
    hint: Option<String>,
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self::of(code.entry(), code.kind(), message.into())
    }

    fn of(entry: Entry, kind: Kind, message: String) -> Self {
        Self { entry, kind, message, details: Vec::new(), fields: Vec::new(), hint: None }
    }

    /// An operation of the system that failed: `cannot write X: no space left on device`.
    pub fn io(code: Code, what: impl std::fmt::Display, source: &io::Error) -> Self {
        let code = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::DiskFull,
            _ => code,
        };
        Self::new(code, format!("cannot {what}: {}", system_message(source)))
    }

    /// Every field that is wrong, at once. One alone has its own code, which says more than that of them all.
    pub fn fields(errors: &[FieldError]) -> Self {
        let line = |error: &FieldError| match error.field.as_str() {
            "" => error.message.clone(),
            field => format!("{field}: {}", error.message),
        };
        let (entry, message, details) = match errors {
            [one] => (one.code.entry(), line(one), Vec::new()),
            many => (
                muster_api::Code::InvalidFields.entry(),
                format!("{} fields are wrong", many.len()),
                many.iter().map(line).collect(),
            ),
        };
        Self { details, fields: errors.to_vec(), ..Self::of(entry, Kind::Input, message) }
    }

    /// An error in writing the command's own output.
    pub fn output(source: &io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Code::OutputClosed, "the output was closed"),
            _ => Self::io(Code::OutputFailed, "write the output", source),
        }
    }

    /// What is written for programs cannot be written.
    pub fn encoding(format: &str, source: impl std::fmt::Display) -> Self {
        Self::new(Code::ClientInternal, format!("cannot write {format}: {source}"))
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// An address, a fingerprint or a token that cannot be used, and who has said it.
    pub fn endpoint(by: &str, error: EndpointError) -> Self {
        let code = match error {
            EndpointError::Token => Code::TokenInvalid,
            EndpointError::Fingerprint(_) | EndpointError::NothingToPin { .. } => Code::FingerprintInvalid,
            EndpointError::Form { .. } => Code::ServerAddressInvalid,
        };
        Self::new(code, format!("{by}: {error}"))
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

    pub fn code(&self) -> &'static str {
        self.entry.code
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.exit_number())
    }

    /// The same, for those who compare it.
    pub fn exit_number(&self) -> u8 {
        self.kind.exit_code()
    }

    /// What went wrong, in one line, and what helps: for a command that goes on all the same.
    pub fn in_words(&self) -> (String, String) {
        let lines: Vec<&str> =
            std::iter::once(&self.message).chain(&self.details).map(String::as_str).collect();
        (lines.join("; "), self.remedy().unwrap_or_else(|| self.entry.remedy.to_owned()))
    }

    /// Says it on stderr.
    pub fn report(&self, format: Format) {
        if self.kind == Kind::OutputClosed {
            return;
        }
        terminal::to_stderr(&match format {
            Format::Text => self.text(terminal::stderr_has_colours()),
            Format::Json => format!("{}\n", printable::json(&self.json().to_string())),
        });
    }

    fn text(&self, colours: bool) -> String {
        let title = terminal::paint(&format!("error[{}]:", self.entry.code), Colour::Red, colours);
        let mut text = format!("{title} {}\n", terminal::indented(&self.message));
        for line in &self.details {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {}", terminal::indented(line));
        }
        if let Some(hint) = self.remedy() {
            let title = terminal::paint("hint:", Colour::Cyan, colours);
            let _ = writeln!(text, "{title} {}", terminal::indented(&hint));
        }
        text
    }

    /// The same names as in the server's problem documents.
    fn json(&self) -> serde_json::Value {
        json!({
            "code": self.entry.code,
            "message": self.message,
            "hint": self.remedy(),
            "errors": self.fields,
            "details": if self.fields.is_empty() { self.details.as_slice() } else { &[] },
        })
    }

    /// What helps in this case, else what helps with this code. A field's message says it already.
    fn remedy(&self) -> Option<String> {
        let general = || (self.fields.is_empty()).then(|| self.entry.remedy.to_owned());
        self.hint.clone().or_else(general)
    }
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        match error {
            client::Error::Problem(problem) => (*problem).into(),
            client::Error::Unreachable { ref endpoint, ref source } => Self::new(
                Code::ServerUnreachable,
                format!("cannot reach the server at {endpoint}: {}", system_message(source)),
            ),
            client::Error::Tls { ref source, .. } => {
                let code = match source {
                    TlsError::Unknown { .. } => Code::CertificateUnknown,
                    TlsError::Changed { .. } => Code::CertificateChanged,
                    _ => Code::TlsFailed,
                };
                Self::new(code, chain(&error))
            }
            client::Error::Protocol(_) => Self::new(Code::ServerForeign, chain(&error)),
            client::Error::Lost { .. } => Self::new(Code::ConnectionLost, chain(&error)),
            client::Error::Silent { .. } | client::Error::Stuck { .. } => {
                Self::new(Code::ServerSilent, chain(&error))
            }
        }
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        // A code of tomorrow's server still comes with a status of today.
        let kind = match problem.code {
            muster_api::Code::Unknown if (400..500).contains(&problem.status) => Kind::Input,
            code => Kind::of_problem(code),
        };
        let mut error = if problem.errors.is_empty() {
            Self::of(problem.code.entry(), kind, problem.detail)
        } else {
            Self::fields(&problem.errors)
        };
        error.hint = problem.hint;
        if let (Kind::Failed, Some(id)) = (kind, problem.request_id) {
            error.details.push(format!("request {id} in the server's log"));
        }
        error
    }
}

/// The system's words without its number: `no such file or directory`.
pub(crate) fn system_message(error: &io::Error) -> String {
    let text = error.to_string();
    let mut letters = without_number(&text).chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

fn without_number(text: &str) -> &str {
    text.split(" (os error").next().unwrap_or(text)
}

/// An error with everything that caused it, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = without_number(&error.to_string()).to_owned();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = match cause.downcast_ref::<io::Error>() {
            Some(error) => system_message(error),
            None => without_number(&cause.to_string()).to_owned(),
        };
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
    use muster_api::model::spec::FieldCode;

    use super::*;

    fn wrong(field: &str, message: &str) -> FieldError {
        FieldError::new(field, FieldCode::OutOfRange, message)
    }

    #[test]
    fn one_wrong_field_is_one_line_and_many_are_a_list() {
        let one = Error::fields(&[wrong("nodes", "must be a whole number")]);
        assert_eq!(one.text(false), "error[out_of_range]: nodes: must be a whole number\n");
        let many = Error::fields(&[wrong("nodes", "a"), wrong("", "b")]);
        assert_eq!(many.text(false), "error[invalid_fields]: 2 fields are wrong\n  nodes: a\n  b\n");
    }

    #[test]
    fn the_users_mistakes_and_the_servers_have_different_exit_codes() {
        use muster_api::Code;
        for (code, exit) in [(Code::JobNotFound, 2), (Code::InvalidFields, 2), (Code::Internal, 125)] {
            assert_eq!(Error::from(Problem::new(code, "x")).exit_code(), ExitCode::from(exit), "{code:?}");
        }
        let tomorrow = Problem { status: 422, ..Problem::new(Code::Unknown, "x") };
        assert_eq!(Error::from(tomorrow).exit_code(), ExitCode::from(2));
    }

    #[test]
    fn an_error_without_a_remedy_of_its_own_has_that_of_its_code() {
        let error = Error::new(Code::Usage, "x");
        assert!(error.text(false).ends_with(&format!("hint: {}\n", Code::Usage.entry().remedy)));
        let error = error.hint("do y");
        assert_eq!(error.text(false), "error[usage]: x\nhint: do y\n");
    }

    #[test]
    fn as_json_an_error_is_one_line_with_the_names_of_the_api() {
        let error = Error::fields(&[wrong("nodes", "a")]).hint("b");
        assert_eq!(
            error.json(),
            json!({"code": "out_of_range", "message": "nodes: a", "hint": "b", "details": [],
                "errors": [{"field": "nodes", "code": "out_of_range", "message": "a"}]})
        );
        assert_eq!(error.json().to_string().lines().count(), 1);
    }

    #[test]
    fn a_full_disk_has_its_own_code_whatever_failed() {
        let full = io::Error::from_raw_os_error(28);
        assert_eq!(Error::io(Code::HomeUnusable, "write x", &full).code(), "disk_full");
    }

    #[test]
    fn the_systems_words_come_without_their_number() {
        assert_eq!(system_message(&io::Error::from_raw_os_error(2)), "no such file or directory");
    }
}
