//! Problems as replies, and extractors that answer with them.

use axum::body::Bytes;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use muster_api::problem::{Code, Problem};
use muster_model::JobId;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::guard::Found;
use crate::accounts::Caller;

/// A reply that says what is wrong.
#[derive(Debug)]
pub(crate) struct Failure(pub Problem);

/// The code of the problem in a reply, for the audit log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProblemCode(pub &'static str);

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut problem = self.0;
        let id = format!("req_{:016x}", crate::random::bits());
        if problem.status >= 500 {
            tracing::error!(request = id, code = ?problem.code, detail = problem.detail, "a request failed");
        }
        problem.request_id = Some(id);
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, serde_json::to_vec(&problem).unwrap_or_default()).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response.extensions_mut().insert(ProblemCode(problem.code.entry().code));
        if let Some(seconds) = problem.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// A JSON body; one that cannot be read is answered with a problem.
pub(crate) struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let read: Result<axum::Json<T>, JsonRejection> = axum::Json::from_request(request, state).await;
        read.map(|axum::Json(value)| Self(value)).map_err(|rejection| {
            let code = match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => Code::TooLarge,
                _ => Code::InvalidRequest,
            };
            Failure(Problem::new(code, rejection.body_text()))
        })
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

/// A body of bytes as they are; one that is too large is answered with a problem.
pub(crate) struct Raw(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        Bytes::from_request(request, state).await.map(Self).map_err(|rejection| {
            let code = match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => Code::TooLarge,
                _ => Code::InvalidRequest,
            };
            Failure(Problem::new(code, rejection.body_text()))
        })
    }
}

/// Query parameters; those that cannot be read are answered with a problem.
pub(crate) struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let read: Result<Query<T>, QueryRejection> = Query::from_request_parts(parts, state).await;
        read.map(|Query(value)| Self(value))
            .map_err(|rejection| Failure(Problem::new(Code::InvalidRequest, rejection.body_text())))
    }
}

/// The part of the path that names something; one that is not text is answered with a problem.
pub(crate) struct Segment(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let read: Result<Path<String>, PathRejection> = Path::from_request_parts(parts, state).await;
        read.map(|Path(text)| Self(text))
            .map_err(|rejection| Failure(Problem::new(Code::InvalidRequest, rejection.body_text())))
    }
}

/// The job that the path names. That the caller may do to it what they ask was found out before.
pub(crate) struct TheJob(pub JobId);

impl<S: Send + Sync> FromRequestParts<S> for TheJob {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        parts.extensions.get::<Found>().map(|Found(id)| Self(id.clone())).ok_or_else(unguarded)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        parts.extensions.get::<Self>().cloned().ok_or_else(unguarded)
    }
}

/// A rule that does not fit its operation.
fn unguarded() -> Failure {
    Failure(Problem::new(Code::Internal, "nobody was asked whether this is allowed"))
}

/// Several parts of the path; those that cannot be read are answered with a problem.
pub(crate) struct Segments<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Segments<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let read: Result<Path<T>, PathRejection> = Path::from_request_parts(parts, state).await;
        read.map(|Path(values)| Self(values))
            .map_err(|rejection| Failure(Problem::new(Code::InvalidRequest, rejection.body_text())))
    }
}

/// A JSON body that may be absent.
pub(crate) fn optional<T: DeserializeOwned + Default>(bytes: &Bytes) -> Result<T, Failure> {
    if bytes.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(bytes).map_err(|error| {
        Failure(Problem::new(Code::InvalidRequest, format!("the body cannot be read: {error}")))
    })
}
