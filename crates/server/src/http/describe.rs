//! What operations have in common, for the document: the refusals each may answer with, and streams of events.
//!
//! Statuses are named one by one, never as a range: a reply that is not described is a mistake that the fuzz test finds.

use std::collections::BTreeMap;

use muster_api::problem::Problem;
use muster_api::view::{EventView, LogChunk, StreamEnd};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, ObjectBuilder, OneOfBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder, Schema,
    schema::{KnownFormat, SchemaFormat, SchemaType, Type},
};
use utoipa::{IntoResponses, Modify, PartialSchema, ToSchema};

/// Any operation: who does not show the token is turned away, and a server may fail or be stopping.
pub(crate) struct Always;
/// An operation that reads a path, parameters or a body.
pub(crate) struct Reads;
/// An operation that takes a body of limited size.
pub(crate) struct Takes;
/// An operation that stores what somebody sends, as far as they may.
pub(crate) struct Stores;
/// An operation on a job, named by the caller.
pub(crate) struct OnJob;
/// An operation on a node, named by its id.
pub(crate) struct OnNode;
/// An operation on a pool, named by the caller.
pub(crate) struct OnPool;
/// An operation on somebody, named by the caller.
pub(crate) struct OnPerson;
/// An operation on a workspace, named by the caller.
pub(crate) struct OnWorkspace;
/// An operation on a secret, named by the caller.
pub(crate) struct OnSecret;
/// An operation that can be asked for too often.
pub(crate) struct Limited;
/// An operation that the state of things may forbid.
pub(crate) struct Conflicts;

type Responses = BTreeMap<String, RefOr<Response>>;

fn problems(statuses: &[(u16, &str)]) -> Responses {
    let content = || ContentBuilder::new().schema(Some(Ref::from_schema_name(Problem::name()))).build();
    let response = |text: &str| {
        ResponseBuilder::new().description(text).content("application/problem+json", content()).build()
    };
    statuses.iter().map(|(status, text)| (status.to_string(), response(text).into())).collect()
}

impl IntoResponses for Always {
    fn responses() -> Responses {
        problems(&[
            (401, "The bearer token is missing, wrong, expired or revoked."),
            (403, "Who asks may not do that."),
            (500, "The server failed; its log has the request's id."),
            (503, "The server cannot write now, or is stopping; the same request may work later."),
            (507, "The server's disk is full."),
        ])
    }
}

impl IntoResponses for Reads {
    fn responses() -> Responses {
        problems(&[(400, "The request cannot be read."), (422, "Some fields are wrong; each is listed.")])
    }
}

impl IntoResponses for Takes {
    fn responses() -> Responses {
        problems(&[(413, "The body is larger than the server takes.")])
    }
}

impl IntoResponses for Stores {
    fn responses() -> Responses {
        problems(&[
            (409, "The caller has stored as much as they may."),
            (429, "Too many uploads are under way; the reply says when to try again."),
        ])
    }
}

impl IntoResponses for OnJob {
    fn responses() -> Responses {
        problems(&[
            (400, "The request cannot be read."),
            (404, "There is no such job."),
            (409, "The name fits several jobs, or the job's state forbids it."),
        ])
    }
}

impl IntoResponses for OnNode {
    fn responses() -> Responses {
        problems(&[(400, "The request cannot be read."), (404, "There is no such node.")])
    }
}

impl IntoResponses for OnPool {
    fn responses() -> Responses {
        problems(&[(400, "The request cannot be read."), (404, "There is no such pool.")])
    }
}

impl IntoResponses for OnPerson {
    fn responses() -> Responses {
        problems(&[
            (400, "The request cannot be read."),
            (404, "There is no such user, or nothing of theirs."),
        ])
    }
}

impl IntoResponses for OnWorkspace {
    fn responses() -> Responses {
        problems(&[(400, "The request cannot be read."), (404, "There is no such workspace, or user.")])
    }
}

impl IntoResponses for OnSecret {
    fn responses() -> Responses {
        problems(&[(400, "The request cannot be read."), (404, "There is no such workspace, or secret.")])
    }
}

impl IntoResponses for Limited {
    fn responses() -> Responses {
        problems(&[(429, "That was too often; `Retry-After` says when to come back.")])
    }
}

impl IntoResponses for Conflicts {
    fn responses() -> Responses {
        problems(&[(409, "The state of things forbids it; the code says what.")])
    }
}

/// A body of bytes as they are; the framework would describe them as a list of numbers.
pub(crate) struct Bytes;

impl PartialSchema for Bytes {
    fn schema() -> RefOr<Schema> {
        let format = SchemaFormat::KnownFormat(KnownFormat::Binary);
        ObjectBuilder::new().schema_type(SchemaType::new(Type::String)).format(Some(format)).into()
    }
}

impl ToSchema for Bytes {}

/// A stream of a job's events.
pub(crate) struct JobEvents;
/// A stream of a job's output.
pub(crate) struct LogEvents;

impl PartialSchema for JobEvents {
    fn schema() -> RefOr<Schema> {
        stream("A server-sent event: `event`s as they happen, then `end`.", &[("event", EventView::name())])
    }
}

impl PartialSchema for LogEvents {
    fn schema() -> RefOr<Schema> {
        stream("A server-sent event: pieces of output (`log`), then `end`.", &[("log", LogChunk::name())])
    }
}

impl ToSchema for JobEvents {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        mention::<EventView>(schemas);
        mention::<StreamEnd>(schemas);
    }
}

impl ToSchema for LogEvents {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        mention::<LogChunk>(schemas);
        mention::<StreamEnd>(schemas);
    }
}

fn mention<T: ToSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}

/// One event of a stream: its name says what its data is. Every stream may end with `end`, or break off with `error`.
fn stream(description: &str, events: &[(&str, std::borrow::Cow<'static, str>)]) -> RefOr<Schema> {
    let closing = [("end", StreamEnd::name()), ("error", Problem::name())];
    let all = events.iter().chain(&closing);
    let schema = all.fold(OneOfBuilder::new().description(Some(description)), |schema, (name, data)| {
        schema.item(one_event(name, data))
    });
    schema.into()
}

fn one_event(name: &str, data: &str) -> ObjectBuilder {
    let text = || ObjectBuilder::new().schema_type(SchemaType::new(Type::String));
    ObjectBuilder::new()
        .property("event", text().enum_values(Some([name])))
        .property("id", text().description(Some("Send it back as `Last-Event-ID` to go on from here.")))
        .property(
            "data",
            text().content_media_type("application/json").content_schema(Some(Ref::from_schema_name(data))),
        )
        .required("event")
        .required("data")
}

/// Says that every operation wants the token.
pub(crate) struct Token;

impl Modify for Token {
    fn modify(&self, document: &mut OpenApi) {
        let mut http = Http::new(HttpAuthScheme::Bearer);
        http.description =
            Some("The content of the server's `token` file; not needed on its private socket.".into());
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(http));
        document.security = Some(vec![SecurityRequirement::new("token", [""; 0])]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    #[test]
    fn every_operation_has_its_own_id_and_names_its_refusals_one_by_one() {
        let document: Value = serde_json::from_str(&crate::http::openapi()).unwrap();
        let mut ids = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let id = operation["operationId"].as_str().unwrap_or_default();
                assert!(ids.insert(id), "{method} {path}: another operation has the id `{id}`");
                let responses = operation["responses"].as_object().unwrap();
                for status in ["401", "500", "503", "507"] {
                    assert!(responses.contains_key(status), "{method} {path}: add `Always` to its responses");
                }
                for (status, response) in responses {
                    let number: u16 = status.parse().unwrap_or_default();
                    assert!(number > 0, "{method} {path}: {status} is a range; see http/describe.rs");
                    let problem = &response["content"]["application/problem+json"];
                    assert_eq!(number >= 400, problem.is_object(), "{method} {path}: {status}");
                }
                for parameter in operation["parameters"].as_array().into_iter().flatten() {
                    let name = parameter["name"].as_str().unwrap();
                    let in_path = parameter["in"] == "path";
                    assert_eq!(in_path, path.contains(&format!("{{{name}}}")), "{method} {path}: {name}");
                }
            }
        }
    }
}
