//! Files of tasks: where they are, on their node, or among the outputs that came home.
//!
//! The node is asked first: it has everything, and what a running task writes. Outputs are what is left when the node is
//! away or has made room.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use muster_api::problem::{Code, Problem};
use muster_api::view::{FileList, FilesQuery};
use muster_link::control::{self, Received};
use muster_link::message::{FileLine, Files, FilesWanted, MAX_PIECE, StreamHeader};
use muster_link::session::Stream;
use muster_model::task::{Outputs, TaskEnd};
use muster_model::{BundleId, JobId, NodeId, TaskId};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};

use super::describe::{Always, OnJob, Reads};
use super::failure::{Failure, Json, Params, TheJob};
use super::job::{read, row};
use crate::core::{Input, internal};
use crate::outputs;
use crate::state::Shared;

/// How long agents that are started again for their files may take to come.
const COMING: Duration = Duration::from_secs(15);
/// What one list shows; more is for `recursive` requests of subdirectories.
const MAX_LISTED: usize = 10_000;

/// List a task's files.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/files", tag = "files", operation_id = "list_files",
    params(("job" = String, Path), FilesQuery), responses((status = 200, body = FileList), Always, OnJob, Reads))]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Params(query): Params<FilesQuery>,
) -> Result<Json<FileList>, Failure> {
    let place = find(&shared, job, query.attempt, query.task).await?;
    let want = if query.recursive { FilesWanted::Tree } else { FilesWanted::List };
    match ask(&shared, &place, &query.path, want).await? {
        Answer::Node(Files::Entries, stream) => Ok(Json(entries(stream).await.map_err(cut_off)?)),
        Answer::Node(..) => Err(cut_off(io::ErrorKind::InvalidData.into()).into()),
        Answer::Away(away) => {
            let bundle = place.outputs.ok_or(away)?;
            let list = move || outputs::list(&shared, &bundle, &query.path, query.recursive, MAX_LISTED);
            Ok(Json(blocking(list).await?))
        }
    }
}

/// Send a file as it is, or a directory as a tar archive.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/files/content", tag = "files", operation_id = "get_file",
    params(("job" = String, Path), FilesQuery), responses((status = 200, description = "The file, or the archive.", content(
        (inline(super::describe::Bytes) = "application/octet-stream"), (inline(super::describe::Bytes) = "application/x-tar"))),
        Always, OnJob, Reads))]
pub(super) async fn content(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Params(query): Params<FilesQuery>,
) -> Result<Response, Failure> {
    let place = find(&shared, job, query.attempt, query.task).await?;
    match ask(&shared, &place, &query.path, FilesWanted::Content).await? {
        Answer::Node(Files::File { bytes }, stream) => Ok(reply(Some(bytes), pieces(stream))),
        Answer::Node(Files::Archive, stream) => Ok(reply(None, pieces(stream))),
        Answer::Node(..) => Err(cut_off(io::ErrorKind::InvalidData.into()).into()),
        Answer::Away(away) => {
            let bundle = place.outputs.ok_or(away)?;
            let opened = blocking(move || outputs::open(&shared, &bundle, &query.path)).await?;
            Ok(reply(opened.bytes, opened.into_body()))
        }
    }
}

/// Which task is meant, and where it is.
pub(super) struct Place {
    pub(super) task: TaskId,
    pub(super) node: NodeId,
    /// How it ended, if it has.
    pub(super) end: Option<TaskEnd>,
    /// What came home of its files.
    outputs: Option<BundleId>,
    /// Its place was another scheduler's, and its agent ended with it.
    is_elsewhere: bool,
}

/// The task of this rank, or the first, in this attempt, or the last.
pub(super) async fn find(
    shared: &Shared,
    id: JobId,
    attempt: Option<u32>,
    rank: Option<u32>,
) -> Result<Place, Problem> {
    let rank = rank.unwrap_or(0);
    read(shared, move |readers| {
        let number = match attempt {
            Some(number) => number,
            None => row(readers, &id)?.job.attempt,
        };
        let tasks = readers.tasks(&id, number).map_err(|error| internal(&error))?;
        let count = tasks.len();
        let Some(task) = tasks.into_iter().nth(rank as usize) else {
            let problem = match (number, count) {
                (0, _) => Problem::new(Code::NotFound, format!("{id} has not started yet")),
                (_, 0) => Problem::new(Code::NotFound, format!("{id} has no attempt {number}")),
                _ => Problem::new(
                    Code::NotFound,
                    format!("{id} has no task {rank}; its tasks are 0 to {}", count - 1),
                ),
            };
            return Err(problem.hint(format!("`muster show {id}` lists its attempts and tasks")));
        };
        // One that was started before and not anew belongs to later attempts as well.
        let attempt = muster_model::AttemptId { job: id.clone(), number: task.attempt };
        let mut outputs = readers.outputs(&id, task.attempt).map_err(|error| internal(&error))?;
        let outputs = match outputs.remove(&rank) {
            Some(Outputs::Collected { bundle, .. }) => Some(bundle),
            Some(Outputs::Failed { .. } | Outputs::Removed { .. }) | None => None,
        };
        let allocations = readers.allocations(&id).map_err(|error| internal(&error))?;
        let is_elsewhere = task.is_over() && allocations.iter().any(|row| row.attempt == attempt);
        let (task, node, end) = (attempt.task(rank), task.placement.node, task.end);
        Ok(Place { task, node, end, outputs, is_elsewhere })
    })
    .await
}

enum Answer {
    Node(Files, BufReader<Stream>),
    /// The node cannot be asked, or has nothing of the task any more.
    Away(Problem),
}

async fn ask(shared: &Shared, place: &Place, path: &str, want: FilesWanted) -> Result<Answer, Problem> {
    let (task, node) = (&place.task, &place.node);
    let away = || {
        Problem::new(Code::Unavailable, format!("{node}, which has the files of {task}, is not connected"))
            .hint("try again when it is; `outputs:` in a job file keeps files on the server")
    };
    if place.is_elsewhere && !shared.bulks.is_open(node) {
        let attempt = task.attempt.clone();
        if shared.core.ask(|reply| Input::Visit(attempt, reply)).await? {
            shared.bulks.opened(node, COMING).await;
        }
    }
    let header = StreamHeader::Files { task: task.clone(), path: path.to_owned(), want };
    let asked = async {
        let stream = match place.end {
            Some(_) => shared.bulks.open(node).await?,
            None => shared.bulks.open_live(node).await?,
        };
        let mut stream = BufReader::with_capacity(MAX_PIECE, stream);
        control::send(&mut stream, &header).await?;
        stream.flush().await?;
        io::Result::Ok((control::receive::<Files>(&mut stream).await?, stream))
    };
    match asked.await {
        Ok((Some(Received::Message(Files::Failed { code, message })), _)) => match code.as_str() {
            "no_task" => Ok(Answer::Away(
                Problem::new(Code::NotFound, format!("the files of {task} are no longer on {node}"))
                    .hint("`outputs:` in a job file keeps files on the server"),
            )),
            "not_found" => Err(Problem::new(Code::NotFound, message)
                .hint(format!("`muster files {}` shows what is there", task.attempt.job))),
            _ => Err(Problem::new(Code::InvalidRequest, message)),
        },
        Ok((Some(Received::Message(answer)), stream)) => Ok(Answer::Node(answer, stream)),
        Ok((Some(Received::Unknown { .. }) | None, _)) | Err(_) => Ok(Answer::Away(away())),
    }
}

fn cut_off(error: io::Error) -> Problem {
    Problem::new(Code::Unavailable, format!("the node stopped answering: {error}")).hint("try again")
}

async fn entries(mut stream: BufReader<Stream>) -> io::Result<FileList> {
    let mut list = FileList { on: "node".into(), items: Vec::new(), truncated: false };
    loop {
        match control::receive(&mut stream).await? {
            Some(Received::Message(FileLine::Entry(_))) if list.items.len() == MAX_LISTED => {
                // The rest is not read, which ends the stream and with it the node's work.
                list.truncated = true;
                return Ok(list);
            }
            Some(Received::Message(FileLine::Entry(entry))) => list.items.push(entry),
            Some(Received::Message(FileLine::End)) => return Ok(list),
            Some(Received::Unknown { .. }) => {}
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// The pieces a node sends, until the one that says that it was the last. An error aborts the reply, so that nobody takes a
/// part for the whole.
pub(super) fn pieces(stream: BufReader<Stream>) -> Body {
    Body::from_stream(stream::try_unfold(stream, |mut stream| async move {
        let length = stream.read_u32_le().await? as usize;
        if length > MAX_PIECE {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        if length == 0 {
            return Ok(None);
        }
        let mut piece = vec![0; length];
        stream.read_exact(&mut piece).await?;
        Ok(Some((Bytes::from(piece), stream)))
    }))
}

/// `bytes` is known of a file; a directory comes as an archive.
fn reply(bytes: Option<u64>, body: Body) -> Response {
    let mut headers = HeaderMap::new();
    let kind = if bytes.is_some() { "application/octet-stream" } else { "application/x-tar" };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if let Some(bytes) = bytes {
        // Not Content-Length: a file that is being written to may become shorter while it is sent.
        headers.insert("x-muster-bytes", HeaderValue::from(bytes));
    }
    (headers, body).into_response()
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(Problem::new(Code::Internal, "the request failed")))
}
