//! A job's output as a file.

use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::stream;
use muster_api::view::{DamagedLog, DownloadQuery, LogsQuery};
use muster_model::quantity::format_bytes;

use super::follower::{Follower, Turn};
use super::source::Piece;
use super::{Always, Failure, Form, OnJob, Params, Reads, TheJob, open};
use crate::http::describe::Bytes as PlainBytes;
use crate::state::Shared;

/// Download a job's output, as it is so far: one task's byte for byte, a gang's in lines that begin with the task's
/// name, and those of several processes in lines that begin with their rank. Its two outputs are in one file, in the
/// order in which they were written.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/logs/download", tag = "jobs", operation_id = "download_logs",
    params(DownloadQuery, ("job" = String, Path)),
    responses((status = 200, body = PlainBytes, content_type = "text/plain"), Always, Reads, OnJob))]
pub(in crate::http) async fn download(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Params(query): Params<DownloadQuery>,
) -> Result<Response, Failure> {
    let (task, process_rank) = (query.task, query.process_rank);
    let query = LogsQuery {
        task,
        process_rank,
        attempt: query.attempt,
        since: query.since,
        until: query.until,
        grep: query.grep,
        ignore_case: query.ignore_case,
        invert_match: query.invert_match,
        ..LogsQuery::default()
    };
    let follower = open(shared, job, query, Form::Lines).await?;
    let file = match (task, process_rank) {
        (_, Some(rank)) => format!("{}-{}-rank{rank}.log", follower.job(), follower.attempt()),
        (Some(rank), None) => format!("{}-{}-task{rank}.log", follower.job(), follower.attempt()),
        (None, None) => format!("{}-{}.log", follower.job(), follower.attempt()),
    };
    let headers = [
        (header::CONTENT_TYPE, "text/plain".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{file}\"")),
        // The bytes are a program's, whatever they look like.
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    let bytes = stream::unfold(Some(follower), async |follower| {
        let mut follower = follower?;
        match next(&mut follower).await {
            Ok(Next::Bytes(bytes)) => Some((Ok(bytes), Some(follower))),
            Ok(Next::End(note)) if note.is_empty() => None,
            Ok(Next::End(note)) => Some((Ok(note), None)),
            // An error is the last item: it cuts the connection, so that a part is not taken for the whole.
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok((headers, Body::from_stream(bytes)).into_response())
}

enum Next {
    Bytes(Bytes),
    /// With what a reader of the file must know.
    End(Bytes),
}

async fn next(follower: &mut Follower) -> io::Result<Next> {
    loop {
        match follower.turn().await.map_err(io::Error::other)? {
            Turn::Pieces(_, pieces) => return Ok(Next::Bytes(joined(&pieces, follower))),
            Turn::Again => {}
            Turn::End(end) => return Ok(Next::End(note(&end.damaged))),
            Turn::Stopped => return Err(io::Error::other("the server stops")),
        }
    }
}

/// The file says itself what of it may be wrong.
fn note(damaged: &[DamagedLog]) -> Bytes {
    let line = |damaged: &DamagedLog| {
        let (bytes, rank) = (format_bytes(damaged.bytes), damaged.rank);
        format!(
            "[muster] {bytes} of task{rank}'s log are damaged on the server's disk; what is above may be wrong there\n"
        )
    };
    damaged.iter().map(line).collect::<String>().into()
}

fn joined(pieces: &[Piece], follower: &Follower) -> Bytes {
    let mut bytes = Vec::with_capacity(pieces.iter().map(|piece| piece.bytes.len()).sum());
    for piece in pieces {
        let label = follower.label(piece);
        if label.is_empty() {
            bytes.extend_from_slice(&piece.bytes);
            continue;
        }
        for line in piece.bytes.split_inclusive(|byte| *byte == b'\n') {
            bytes.extend_from_slice(label.as_bytes());
            bytes.extend_from_slice(line);
            if !line.ends_with(b"\n") {
                bytes.push(b'\n');
            }
        }
    }
    bytes.into()
}
