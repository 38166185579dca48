//! A job's output: all of it, its end, or as it comes.
//!
//! A follower pulls: it reads the server's copies at its own speed and waits for growth, so a slow or absent reader
//! costs nothing and slows nobody.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::Response;
use axum::response::sse::Event;
use base64::Engine as _;
use futures::future::select_all;
use futures::stream;
use muster_api::problem::{Code, Problem};
use muster_api::view::{LogChunk, LogStream, LogsQuery};
use muster_link::log::{Reader, Record, Stream, Tail};
use muster_model::spec::{FieldCode, FieldError};
use muster_model::task::TaskPhase;
use muster_model::{AttemptId, JobId, Task, Timestamp};
use muster_store::JobRow;
use tokio::sync::watch;
use tokio::time::timeout;

use super::describe::{Always, LogEvents, OnJob, Reads};
use super::failure::{Failure, Params, Segment};
use super::job::{has_logs, read, resolve, row};
use super::sse;
use crate::core::internal;
use crate::log_store::{Log, blocking};
use crate::state::Shared;
use crate::view;

/// The end of a task is often known a moment before the last of its log is here. Whoever asks in between gets all of it,
/// unless nothing comes for this long: then its node is gone.
const ARRIVAL: Duration = Duration::from_secs(5);
/// Bytes turned into events at once: bounds what a follower holds.
const FILL: usize = 256 * 1024;

/// Read or follow a job's output. Server-sent events `log` (a `LogChunk`) and, last, `end`.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/logs", tag = "jobs", operation_id = "follow_logs", params(LogsQuery, ("job" = String, Path)),
    responses((status = 200, body = LogEvents, content_type = "text/event-stream"),
        Always, Reads, OnJob))]
pub(super) async fn follow(
    State(shared): State<Arc<Shared>>,
    Segment(job): Segment,
    Params(query): Params<LogsQuery>,
) -> Result<Response, Failure> {
    let row = read(&shared, move |readers| {
        let id = resolve(readers, &job)?;
        row(readers, &id)
    })
    .await?;
    has_logs(&row)?;
    let cursor = query.cursor.as_deref().map(parse_cursor).transpose()?;
    if let Some(rank) = query.task.filter(|rank| *rank >= row.spec.nodes) {
        let message = format!("there is no task {rank}; the job's tasks are 0 to {}", row.spec.nodes - 1);
        return Err(Problem::fields(vec![FieldError::new("task", FieldCode::OutOfRange, message)]).into());
    }
    if query.tail.is_some() && query.attempt.is_none_or(|attempt| attempt == row.job.attempt) {
        arrival(&shared, &row, query.task).await;
    }
    let follower = Follower::new(shared, row, query, cursor);
    Ok(sse::reply(stream::unfold(follower, async |mut follower| {
        let event = follower.next().await?;
        Some((event, follower))
    })))
}

/// Waits for the logs of tasks that are over, for as long as more of them comes: which lines are the last is known only
/// then.
async fn arrival(shared: &Shared, row: &JobRow, task: Option<u32>) {
    let attempt = AttemptId { job: row.job.id.clone(), number: row.job.attempt };
    let wanted = (0..).zip(&row.job.tasks).filter(|(rank, _)| task.is_none_or(|wanted| wanted == *rank));
    for (rank, task) in wanted {
        let log = shared.logs.open(&attempt.task(rank));
        let mut grown = log.watch();
        while lacks(task, *grown.borrow_and_update()) {
            tokio::select! {
                grown = timeout(ARRIVAL, grown.changed()) => if !matches!(grown, Ok(Ok(()))) { return },
                () = shared.stop.cancelled() => return,
            }
        }
    }
}

/// Whether a task that is over has written more than this.
fn lacks(task: &Task, offset: u64) -> bool {
    task.end.as_ref().and_then(|end| end.log_bytes).is_some_and(|length| offset < length)
}

/// Where a client left off: an attempt, and an offset for each rank it has seen.
struct Cursor {
    attempt: u32,
    offsets: BTreeMap<u32, u64>,
}

fn parse_cursor(text: &str) -> Result<Cursor, Problem> {
    let parsed = text.split_once('@').and_then(|(attempt, ranks)| {
        let offsets = ranks.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
            let (rank, offset) = pair.split_once(':')?;
            Some((rank.parse().ok()?, offset.parse().ok()?))
        });
        Some(Cursor { attempt: attempt.parse().ok()?, offsets: offsets.collect::<Option<_>>()? })
    });
    let problem = || {
        let message = "must be ATTEMPT@RANK:OFFSET,RANK:OFFSET…";
        Problem::fields(vec![FieldError::new("cursor", FieldCode::InvalidValue, message)])
    };
    parsed.ok_or_else(problem)
}

/// One task's log being read.
struct Source {
    rank: u32,
    /// Keeps the log shared with its writer, who announces growth through it.
    _log: Arc<Log>,
    grown: watch::Receiver<u64>,
    reader: Reader,
    tail: Option<Tail>,
    pending: Option<Record>,
}

struct Follower {
    shared: Arc<Shared>,
    news: watch::Receiver<u64>,
    job: JobId,
    query: LogsQuery,
    attempt: u32,
    sources: Vec<Source>,
    ready: VecDeque<Event>,
    /// When something was last read.
    heard: Instant,
    done: bool,
}

impl Follower {
    fn new(shared: Arc<Shared>, row: JobRow, query: LogsQuery, cursor: Option<Cursor>) -> Self {
        let attempt =
            cursor.as_ref().map(|cursor| cursor.attempt).or(query.attempt).unwrap_or(row.job.attempt);
        let mut follower = Self {
            news: shared.news.clone(),
            shared,
            job: row.job.id,
            query,
            attempt,
            sources: Vec::new(),
            ready: VecDeque::new(),
            heard: Instant::now(),
            done: false,
        };
        let offsets = cursor.map(|cursor| cursor.offsets).unwrap_or_default();
        follower.open(row.spec.nodes, &offsets);
        follower
    }

    /// Opens the logs of the current attempt; before the first there are none.
    fn open(&mut self, nodes: u32, offsets: &BTreeMap<u32, u64>) {
        let attempt = AttemptId { job: self.job.clone(), number: self.attempt };
        let ranks = (0..nodes)
            .filter(|rank| self.attempt > 0 && self.query.task.is_none_or(|wanted| wanted == *rank));
        self.sources = ranks
            .map(|rank| {
                let log = self.shared.logs.open(&attempt.task(rank));
                let offset = offsets.get(&rank).and_then(|offset| log.dir.align(*offset).ok());
                let wanted = self.query.tail.filter(|_| offset.is_none());
                let tail = wanted.and_then(|lines| log.dir.tail(lines as usize).ok());
                let start = offset.or(tail.as_ref().map(|tail| tail.offset)).unwrap_or(0);
                let reader = Reader::new(log.dir.clone(), start);
                Source { rank, grown: log.watch(), reader, tail, pending: None, _log: log }
            })
            .collect();
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.done {
                return None;
            }
            if let Err(problem) = self.turn().await {
                self.done = true;
                return Some(sse::event("error", None, &problem));
            }
        }
    }

    /// Reads what is there; with nothing there, decides whether more can come, and waits for it.
    async fn turn(&mut self) -> Result<(), Problem> {
        self.news.borrow_and_update();
        self.sources.iter_mut().for_each(|source| drop(source.grown.borrow_and_update()));
        // The job is read before its logs: what it says is complete then is.
        let (row, tasks) = self.read_job().await?;
        self.fill().await?;
        if !self.ready.is_empty() {
            self.heard = Instant::now();
            return Ok(());
        }
        let patience = ARRIVAL.saturating_sub(self.heard.elapsed());
        if !self.query.follow && !patience.is_zero() && self.is_arriving(&tasks) {
            // Whether more has come or not, the next turn decides.
            drop(timeout(patience, self.wait()).await);
            return Ok(());
        }
        let attempt_over = self.is_complete(&tasks);
        if attempt_over && self.query.attempt.is_none() && self.query.follow && self.attempt < row.job.attempt
        {
            self.attempt += 1;
            self.open(row.spec.nodes, &BTreeMap::new());
            return Ok(());
        }
        let over =
            row.job.state.is_terminal() || (self.query.attempt.is_some() && self.attempt < row.job.attempt);
        if !self.query.follow || (over && attempt_over) {
            self.ready.push_back(sse::event("end", None, &view::end(&row)));
            self.done = true;
            return Ok(());
        }
        self.wait().await;
        Ok(())
    }

    /// The job, and the gang of the attempt that is being read. An earlier attempt's log may still be on its way when
    /// the next one has begun.
    async fn read_job(&self) -> Result<(JobRow, Vec<Task>), Problem> {
        let (job, attempt) = (self.job.clone(), self.attempt);
        read(&self.shared, move |readers| {
            let row = row(readers, &job)?;
            let tasks = match (1..row.job.attempt).contains(&attempt) {
                true => readers.tasks(&job, attempt).map_err(|error| internal(&error))?,
                false => row.job.tasks.clone(),
            };
            Ok((row, tasks))
        })
        .await
    }

    /// Whether everything that the tasks of the attempt will ever write was read.
    fn is_complete(&self, tasks: &[Task]) -> bool {
        self.sources.iter().all(|source| {
            tasks
                .get(source.rank as usize)
                .is_none_or(|task| task.phase == TaskPhase::Ended && !lacks(task, source.reader.offset()))
        })
    }

    /// Whether a task is over and the rest of its log is still on its way.
    fn is_arriving(&self, tasks: &[Task]) -> bool {
        self.sources.iter().any(|source| {
            tasks.get(source.rank as usize).is_some_and(|task| lacks(task, source.reader.offset()))
        })
    }

    async fn wait(&mut self) {
        let growth = self.sources.iter_mut().map(|source| Box::pin(source.grown.changed()));
        let grown = async {
            if growth.len() == 0 { std::future::pending().await } else { select_all(growth).await.0 }
        };
        tokio::select! {
            _ = grown => {}
            // A watch that is gone means the server stops; so does this stream.
            changed = self.news.changed() => self.done |= changed.is_err(),
            () = self.shared.stop.cancelled() => self.done = true,
        }
    }

    /// Turns records into events, oldest first across tasks, up to a bound.
    async fn fill(&mut self) -> Result<(), Problem> {
        let mut sources = std::mem::take(&mut self.sources);
        let attempt = self.attempt;
        let filled = blocking(move || {
            let events = read_merged(&mut sources, attempt)?;
            Ok((sources, events))
        })
        .await;
        let (sources, events) = filled.map_err(|error| {
            tracing::error!(job = %self.job, %error, "a log cannot be read");
            Problem::new(Code::Internal, "the log cannot be read")
        })?;
        self.sources = sources;
        self.ready.extend(events);
        Ok(())
    }
}

fn read_merged(sources: &mut [Source], attempt: u32) -> std::io::Result<Vec<Event>> {
    let mut events = Vec::new();
    let mut bytes = 0;
    while bytes < FILL {
        for source in sources.iter_mut().filter(|source| source.pending.is_none()) {
            source.pending = source.reader.next_record().map_err(std::io::Error::other)?;
        }
        let oldest = sources
            .iter_mut()
            .filter(|source| source.pending.is_some())
            .min_by_key(|source| source.pending.as_ref().map(|record| record.time_micros));
        let Some(source) = oldest else { break };
        let Some(record) = source.pending.take() else { break };
        let shown = match &mut source.tail {
            Some(tail) => tail.trim(record.stream, &record.bytes),
            None => &record.bytes,
        };
        bytes += record.bytes.len();
        if !shown.is_empty() {
            events.push(sse::event("log", None, &chunk(attempt, source.rank, &record, shown)));
        }
    }
    Ok(events)
}

fn chunk(attempt: u32, rank: u32, record: &Record, bytes: &[u8]) -> LogChunk {
    let text = std::str::from_utf8(bytes).ok().map(str::to_owned);
    let base64 = text.is_none().then(|| base64::engine::general_purpose::STANDARD.encode(bytes));
    LogChunk {
        attempt,
        rank,
        stream: match record.stream {
            Stream::Stdout => LogStream::Stdout,
            Stream::Stderr => LogStream::Stderr,
        },
        at: i64::try_from(record.time_micros)
            .ok()
            .and_then(|micros| Timestamp::from_microsecond(micros).ok())
            .unwrap_or(Timestamp::UNIX_EPOCH),
        text,
        base64,
        next: record.end(),
    }
}
