//! What goes wrong, as RFC 9457 problem documents with stable codes.

use muster_model::spec::FieldError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The stable name of a kind of error. Clients act on it; the text beside it is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The selector fits several jobs.
    Ambiguous,
    /// The job names a bundle the server does not have whole.
    BundleIncomplete,
    /// The content does not have the digest it was sent under.
    ChunkMismatch,
    /// The server's disk has no room for what was sent.
    DiskFull,
    /// An idempotency key was used again for another request.
    IdempotencyConflict,
    /// Something failed in the server.
    Internal,
    /// Fields of the request are wrong; each is listed.
    InvalidFields,
    /// The request itself cannot be read.
    InvalidRequest,
    /// The job cannot do that in its state.
    InvalidState,
    /// The address does not take that method.
    MethodNotAllowed,
    /// There is no such thing.
    NotFound,
    /// The request is larger than the server takes.
    TooLarge,
    /// The server cannot write now, or is stopping; the same request may work later.
    Unavailable,
    /// The bearer token is missing or wrong.
    Unauthorized,
}

impl Code {
    /// The HTTP status it is sent with.
    pub const fn status(self) -> u16 {
        match self {
            Self::InvalidRequest | Self::ChunkMismatch => 400,
            Self::Unauthorized => 401,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::TooLarge => 413,
            Self::Ambiguous | Self::BundleIncomplete | Self::IdempotencyConflict | Self::InvalidState => 409,
            Self::InvalidFields => 422,
            Self::Internal => 500,
            Self::Unavailable => 503,
            Self::DiskFull => 507,
        }
    }

    /// The same for every problem of this code.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Ambiguous => "several jobs fit",
            Self::BundleIncomplete => "the bundle is not complete",
            Self::ChunkMismatch => "the chunk is damaged",
            Self::DiskFull => "the server's disk is full",
            Self::IdempotencyConflict => "the idempotency key was used for another request",
            Self::Internal => "the server failed",
            Self::InvalidFields => "some fields are wrong",
            Self::InvalidRequest => "the request cannot be read",
            Self::InvalidState => "not possible in this state",
            Self::MethodNotAllowed => "the method is not allowed",
            Self::NotFound => "not found",
            Self::TooLarge => "too large",
            Self::Unavailable => "not available now",
            Self::Unauthorized => "not authorized",
        }
    }
}

/// An error reply: `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[error("{detail}")]
pub struct Problem {
    /// The code as a URN, as RFC 9457 asks.
    #[serde(rename = "type")]
    pub type_uri: String,
    /// The same for every problem of this code.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What is wrong this time, in one sentence.
    pub detail: String,
    /// The stable code.
    pub code: Code,
    /// Every field that is wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// What would help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Finds the request in the server's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

impl Problem {
    /// A problem with its sentence.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let urn =
            serde_json::to_value(code).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
        Self {
            type_uri: format!("urn:muster:problem:{urn}"),
            title: code.title().into(),
            status: code.status(),
            detail: detail.into(),
            code,
            errors: Vec::new(),
            hint: None,
            request_id: None,
        }
    }

    /// With what would help.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Every field that is wrong.
    pub fn fields(errors: Vec<FieldError>) -> Self {
        let detail = match errors.as_slice() {
            [one] if one.field.is_empty() => one.message.clone(),
            [one] => format!("{}: {}", one.field, one.message),
            many => format!("{} fields are wrong", many.len()),
        };
        Self { errors, ..Self::new(Code::InvalidFields, detail) }
    }
}
