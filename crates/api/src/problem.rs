//! What goes wrong, as RFC 9457 problem documents with stable codes.

use muster_model::spec::FieldError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

muster_model::catalogue! {
    /// The stable name of a kind of error. Clients act on it; the text beside it is for people.
    #[derive(Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Code {
        /// The selector fits several jobs.
        Ambiguous = "ambiguous" => "Write more letters of the id; `muster ps -a` lists the jobs.",
        /// The job names a bundle that the server does not have whole.
        BundleIncomplete = "bundle_incomplete" => "Run the command again: it sends what is missing.",
        /// The content of a chunk does not have the digest it was sent under.
        ChunkMismatch = "chunk_mismatch" => "Run the command again; if it happens again, something between client and server changes bytes.",
        /// The server's configuration says it, and it is changed there.
        Configured = "configured" => "Change config.toml (`muster config path` says where it is), then `muster server reload`.",
        /// Who asks is known, and may not do that.
        Forbidden = "forbidden" => "Ask somebody who may: a lead of the workspace, or an admin; `muster whoami` says what you may do.",
        /// An idempotency key was used again for another request.
        IdempotencyConflict = "idempotency_conflict" => "Use a new Idempotency-Key for a new request.",
        /// Jobs that are not over need it.
        InUse = "in_use" => "Wait until they are over, or stop them (`muster stop JOB`); --force removes a host with its tasks.",
        /// Something failed in the server that should not.
        Internal = "internal" => "Look for the request's id in the server's log, and report it.",
        /// Fields of the request are wrong; each is listed with its own code.
        InvalidFields = "invalid_fields" => "Correct every field that is listed; nothing was done.",
        /// The request itself cannot be read.
        InvalidRequest = "invalid_request" => "Correct it as the message says; openapi.json describes every request.",
        /// The job cannot do that in its present state.
        InvalidState = "invalid_state" => "`muster show JOB` says what state it is in; stop it, or wait until it is over.",
        /// There is no such job.
        JobNotFound = "job_not_found" => "`muster ps -a` lists all jobs.",
        /// The address does not take that method.
        MethodNotAllowed = "method_not_allowed" => "Use a method that openapi.json has for this address.",
        /// Another job that is not over has this name, and a machine is known by its name.
        NameTaken = "name_taken" => "Choose another name, or end the job that has it; `muster machine ls` and `muster ps` list them.",
        /// The server is one person's own, and has no accounts.
        NoAccounts = "no_accounts" => "Start the server with `muster server run --auth` for several people to share it.",
        /// A machine was to start alone, and nothing is free that it could have.
        NoRoom = "no_room" => "Make room (`muster ps` and `muster machine ls` list who has it), or start it later; the message says what is missing.",
        /// There is no such node.
        NodeNotFound = "node_not_found" => "`muster nodes` lists all nodes.",
        /// There is nothing at the address.
        NotFound = "not_found" => "Use an address of openapi.json; client and server may differ in version.",
        /// There is no such pool.
        PoolNotFound = "pool_not_found" => "`muster pool ls` lists the pools; `muster pool add NAME USER@HOST` makes one.",
        /// The server's config.toml says something that is not to be.
        ServerConfigInvalid = "server_config_invalid" => "Correct the field that is named in the server's config.toml, then `muster server reload`.",
        /// The server's disk is full.
        ServerDiskFull = "server_disk_full" => "Free space where the server keeps its data (`muster server status` says where), then try again.",
        /// The session's shell has ended: it takes no more commands.
        SessionOver = "session_over" => "Open it anew: `muster session open JOB --name NAME --fresh`, or `session run --fresh`.",
        /// The user or the workspace has stored as much as it may.
        StorageLimit = "storage_limit" => "Remove jobs that are not needed (`muster rm JOB`, then `muster gc` by an admin), or ask an admin to raise the limit that the message names.",
        /// The request is larger than the server takes.
        TooLarge = "too_large" => "Make it smaller: a job names its data, it does not contain it.",
        /// The server is asked too often, or was given too many wrong passwords.
        TooManyRequests = "too_many_requests" => "Wait as long as the message says, then try again.",
        /// The bearer token is missing, wrong, expired or revoked.
        Unauthorized = "unauthorized" => "Log in (`muster login`), or set MUSTER_TOKEN to a token that the server knows you by.",
        /// The server cannot do it now, or is stopping; the same request may work later.
        Unavailable = "unavailable" => "Try again in a moment; if it goes on, look into the server's log.",
        /// The server is newer than the client, and says something the client does not know.
        #[serde(other)]
        Unknown = "unknown" => "Use a client of the server's version; the message says what is wrong.",
    }
}

impl Code {
    /// The HTTP status it is sent with.
    pub const fn status(self) -> u16 {
        match self {
            Self::InvalidRequest | Self::ChunkMismatch => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::JobNotFound | Self::NodeNotFound | Self::NotFound | Self::PoolNotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::TooLarge => 413,
            Self::Ambiguous
            | Self::BundleIncomplete
            | Self::Configured
            | Self::IdempotencyConflict
            | Self::InUse
            | Self::InvalidState
            | Self::NameTaken
            | Self::NoAccounts
            | Self::NoRoom
            | Self::ServerConfigInvalid
            | Self::SessionOver
            | Self::StorageLimit => 409,
            Self::InvalidFields => 422,
            Self::TooManyRequests => 429,
            Self::Internal | Self::Unknown => 500,
            Self::Unavailable => 503,
            Self::ServerDiskFull => 507,
        }
    }

    /// The same for every problem of this code.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Ambiguous => "several jobs fit",
            Self::BundleIncomplete => "the bundle is not complete",
            Self::ChunkMismatch => "the chunk is damaged",
            Self::Configured => "it is in the configuration",
            Self::Forbidden => "not allowed",
            Self::InUse => "it is in use",
            Self::IdempotencyConflict => "the idempotency key was used for another request",
            Self::Internal => "the server failed",
            Self::InvalidFields => "some fields are wrong",
            Self::InvalidRequest => "the request cannot be read",
            Self::InvalidState => "not possible in this state",
            Self::JobNotFound => "no such job",
            Self::MethodNotAllowed => "the method is not allowed",
            Self::NameTaken => "the name is taken",
            Self::NoAccounts => "there are no accounts",
            Self::NoRoom => "there is no room",
            Self::NodeNotFound => "no such node",
            Self::NotFound => "not found",
            Self::PoolNotFound => "no such pool",
            Self::ServerConfigInvalid => "the configuration cannot be used",
            Self::ServerDiskFull => "the server's disk is full",
            Self::SessionOver => "the session is over",
            Self::StorageLimit => "the storage limit is reached",
            Self::TooLarge => "too large",
            Self::TooManyRequests => "too many requests",
            Self::Unauthorized => "not authorized",
            Self::Unavailable => "not available now",
            Self::Unknown => "not known to this client",
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
    /// The same request may work after so many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
    /// Finds the request in the server's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

impl Problem {
    /// A problem with its sentence.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            type_uri: format!("urn:muster:problem:{}", code.entry().code),
            title: code.title().into(),
            status: code.status(),
            detail: detail.into(),
            code,
            errors: Vec::new(),
            hint: None,
            retry_after: None,
            request_id: None,
        }
    }

    /// With what would help.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// With how many seconds to wait before the next try.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_is_the_same_in_json() {
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.entry().code);
        }
    }

    #[test]
    fn a_code_of_a_newer_server_is_read_as_unknown() {
        let mut json = serde_json::to_value(Problem::new(Code::TooLarge, "x")).unwrap();
        json["code"] = "of_tomorrow".into();
        json["errors"] = serde_json::json!([{"field": "x", "message": "y"}, {"field": "x", "code": "new", "message": "y"}]);
        let problem: Problem = serde_json::from_value(json).unwrap();
        assert_eq!(problem.code, Code::Unknown);
        assert!(problem.errors.iter().all(|error| error.code == Default::default()));
    }
}
