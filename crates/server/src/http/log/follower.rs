//! Reading the logs of a job's attempts until all was read that was asked for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::select_all;
use muster_api::problem::{Code, Problem};
use muster_api::view::{DamagedLog, LogsQuery, MissingLog, StreamEnd};
use muster_launch::contract::logged_processes;
use muster_model::{AttemptId, JobId, Task, Timestamp};
use muster_store::JobRow;
use tokio::sync::watch;
use tokio::time::timeout;

use super::cursor::{Cursor, Mark};
use super::lacks;
use super::source::{Piece, Selection, Source, read_on};
use crate::core::{Input, internal};
use crate::http::job::{read, row};
use crate::log_store::blocking;
use crate::state::Shared;
use crate::view;

/// How long the end of a log is waited for that is not here although its task is over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// The end of a task is often known a moment before the last of its log is here. Whoever asks in between gets all
    /// of it, unless nothing comes for this long.
    pub arrival: Duration,
    /// A follower waits longer for a node that is away: an agent that restarts needs a few seconds to come back.
    pub away: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { arrival: Duration::from_secs(5), away: Duration::from_secs(30) }
    }
}

/// What became of a turn.
pub(super) enum Turn {
    /// Output of an attempt.
    Pieces(u32, Vec<Piece>),
    /// Nothing to show, and more to do.
    Again,
    /// Everything was shown.
    End(Box<StreamEnd>),
    /// The server stops.
    Stopped,
}

pub(super) struct Follower {
    shared: Arc<Shared>,
    news: watch::Receiver<u64>,
    job: JobId,
    nodes: u32,
    /// How many processes of each task are told apart.
    processes: u32,
    is_array: bool,
    query: LogsQuery,
    selection: Selection,
    patience: Patience,
    attempt: u32,
    sources: Vec<Source>,
    /// When something was last read.
    heard: Instant,
    /// What was given up.
    missing: Vec<MissingLog>,
    damaged: Vec<DamagedLog>,
    is_stopped: bool,
}

/// The attempt that is read if none is named. A machine that was not started anew has an earlier one than its group.
fn newest(row: &JobRow, rank: Option<u32>) -> u32 {
    rank.map_or(row.job.attempt, |rank| row.job.attempt_of(rank).number)
}

impl Follower {
    pub fn new(
        shared: Arc<Shared>,
        row: JobRow,
        query: LogsQuery,
        selection: Selection,
        patience: Patience,
    ) -> Self {
        Self {
            news: shared.news.clone(),
            shared,
            attempt: query.attempt.unwrap_or_else(|| newest(&row, query.task)),
            processes: logged_processes(&row.spec),
            is_array: row.job.policy.array.is_some(),
            job: row.job.id,
            nodes: row.spec.nodes,
            query,
            selection,
            patience,
            sources: Vec::new(),
            heard: Instant::now(),
            missing: Vec::new(),
            damaged: Vec::new(),
            is_stopped: false,
        }
    }

    /// Opens the logs where a reader left off, or where the query says.
    pub async fn begin(mut self, cursor: Option<Cursor>) -> Self {
        let cursor = cursor.unwrap_or(Cursor { attempt: self.attempt, marks: BTreeMap::new() });
        self.attempt = cursor.attempt;
        if self.selection.tail.is_some() {
            self.arrival().await;
        }
        self.open(cursor.marks).await;
        // The last lines are those of where one begins; of what comes later, all is new.
        self.selection.tail = None;
        self
    }

    pub fn job(&self) -> &JobId {
        &self.job
    }

    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether the output of several tasks is shown together.
    pub fn is_gang(&self) -> bool {
        self.nodes > 1 && self.query.task.is_none()
    }

    /// The rank of the process that wrote something, where its task has several.
    pub fn process_rank(&self, piece: &Piece) -> Option<u32> {
        let process = piece.process.map(u32::from).filter(|process| *process < self.processes);
        // Each element of an array is a job of its own.
        let first = if self.is_array { 0 } else { piece.rank * self.processes };
        process.filter(|_| self.processes > 1).map(|process| first + process)
    }

    /// What stands before a line where the output of several is shown together.
    pub fn label(&self, piece: &Piece) -> String {
        match self.process_rank(piece).filter(|_| self.query.task.is_none()) {
            Some(rank) => format!("rank{rank} | "),
            None if self.is_gang() => format!("task{} | ", piece.rank),
            None => String::new(),
        }
    }

    /// Opens the logs of the current attempt; before the first there are none.
    async fn open(&mut self, marks: BTreeMap<u32, Mark>) {
        let attempt = AttemptId { job: self.job.clone(), number: self.attempt };
        let wanted = self.query.task;
        let ranks = if self.attempt == 0 {
            Vec::new()
        } else {
            wanted.map_or((0..self.nodes).collect(), |rank| vec![rank])
        };
        let (logs, selection) = (self.shared.logs.clone(), self.selection.clone());
        let open = move |rank: u32| Source::open(&logs, &attempt.task(rank), &selection, marks.get(&rank));
        let opened = blocking(move || Ok(ranks.into_iter().map(open).collect())).await;
        self.sources = opened.unwrap_or_default();
    }

    /// Waits for the logs of tasks that are over, for as long as more of them comes: which lines are the last is known
    /// only then.
    async fn arrival(&self) {
        let Ok((_, tasks)) = self.read_job().await else { return };
        let attempt = AttemptId { job: self.job.clone(), number: self.attempt };
        let wanted = self.query.task;
        let is_read = |rank: u32| wanted.is_none_or(|wanted| wanted == rank);
        for rank in (0..self.nodes).filter(|rank| is_read(*rank)) {
            let Some(task) = self.task(&tasks, rank) else { continue };
            let log = self.shared.logs.open(&attempt.task(rank));
            let mut grown = log.watch();
            while lacks(task, *grown.borrow_and_update()) {
                tokio::select! {
                    grown = timeout(self.patience.arrival, grown.changed()) => {
                        if !matches!(grown, Ok(Ok(()))) { return }
                    }
                    () = self.shared.stop.cancelled() => return,
                }
            }
        }
    }

    /// Reads what is there; with nothing there, decides whether more can come, and waits for it.
    pub async fn turn(&mut self) -> Result<Turn, Problem> {
        if self.is_stopped {
            return Ok(Turn::Stopped);
        }
        self.news.borrow_and_update();
        self.sources.iter_mut().for_each(|source| drop(source.grown.borrow_and_update()));
        // The job is read before its logs: what it says is complete then is.
        let (row, tasks) = self.read_job().await?;
        let over: Vec<bool> = self
            .sources
            .iter()
            .map(|source| self.task(&tasks, source.rank).is_some_and(Task::is_over))
            .collect();
        self.sources.iter_mut().zip(over).for_each(|(source, is_over)| source.is_over = is_over);
        let (pieces, is_news) = self.fill().await?;
        if is_news {
            self.heard = Instant::now();
            return Ok(if pieces.is_empty() { Turn::Again } else { Turn::Pieces(self.attempt, pieces) });
        }
        if self.is_arriving(&tasks).await? {
            return Ok(Turn::Again);
        }
        let is_past = !self.sources.is_empty() && self.sources.iter().all(|source| source.is_past);
        let is_complete = is_past || self.is_over(&tasks);
        let is_last =
            row.job.state.is_terminal() || (self.query.attempt.is_some() && self.attempt < row.job.attempt);
        let is_next = self.query.attempt.is_none() && self.attempt < row.job.attempt;
        if self.query.follow && !self.is_too_late() && !(is_complete && (is_last || is_next || is_past)) {
            self.wait(self.until_too_late()).await;
            return Ok(Turn::Again);
        }
        let rest = self.finish(&tasks);
        if !rest.is_empty() {
            return Ok(Turn::Pieces(self.attempt, rest));
        }
        if self.query.follow && is_complete && is_next && !is_past {
            self.attempt += 1;
            self.open(BTreeMap::new()).await;
            self.heard = Instant::now();
            return Ok(Turn::Again);
        }
        Ok(Turn::End(Box::new(StreamEnd {
            missing: std::mem::take(&mut self.missing),
            damaged: std::mem::take(&mut self.damaged),
            ..view::end(&row)
        })))
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

    /// Reads on, up to a bound: what is to be shown, and whether there was anything.
    async fn fill(&mut self) -> Result<(Vec<Piece>, bool), Problem> {
        let mut sources = std::mem::take(&mut self.sources);
        let filled = blocking(move || {
            let step = read_on(&mut sources)?;
            Ok((sources, step))
        })
        .await;
        let (sources, step) = filled.map_err(|error| {
            tracing::error!(job = %self.job, %error, "a log cannot be read");
            Problem::new(Code::Internal, "the log cannot be read")
        })?;
        self.sources = sources;
        Ok((step.pieces, step.is_news))
    }

    /// The task whose log is read. Of machines that start one by one, most are of another attempt, and their log is there.
    fn task<'a>(&self, tasks: &'a [Task], rank: u32) -> Option<&'a Task> {
        tasks.get(rank as usize).filter(|task| task.attempt == self.attempt)
    }

    /// Whether the tasks whose logs are read are over.
    fn is_over(&self, tasks: &[Task]) -> bool {
        let mut tasks = self.sources.iter().filter_map(|source| self.task(tasks, source.rank));
        tasks.all(Task::is_over)
    }

    /// The tasks that are over and have written more than is here.
    fn lacking<'a>(&self, tasks: &'a [Task]) -> Vec<(u32, &'a Task, u64)> {
        let may_come = |source: &&Source| !source.is_past && !source.is_cut_off;
        let lacking = self.sources.iter().filter(may_come).filter_map(|source| {
            let task = self.task(tasks, source.rank)?;
            lacks(task, source.offset()).then(|| (source.rank, task, source.offset()))
        });
        lacking.collect()
    }

    /// Waits for the rest of logs whose tasks are over; false once there is none, or it is not worth waiting for. Who
    /// follows waits as long as the nodes are there that have it.
    async fn is_arriving(&mut self, tasks: &[Task]) -> Result<bool, Problem> {
        let lacking = self.lacking(tasks);
        if lacking.is_empty() || (self.query.follow && !self.is_over(tasks)) {
            return Ok(false);
        }
        if self.doubt(tasks).await? {
            return Ok(true);
        }
        let limit = if self.query.follow { self.patience.away } else { self.patience.arrival };
        let left = limit.saturating_sub(self.heard.elapsed());
        if left.is_zero() {
            let nodes =
                if self.query.follow { self.shared.core.ask(Input::Nodes).await? } else { Vec::new() };
            let is_there =
                |task: &Task| nodes.iter().any(|node| node.connected && node.id == task.placement.node);
            if !lacking.iter().any(|(_, task, _)| is_there(task)) {
                return Ok(false);
            }
            self.heard = Instant::now();
        }
        // Whether more has come or not, the next turn decides.
        self.wait(Some(left)).await;
        Ok(true)
    }

    /// Notices logs of which a part is not here and on no node: a node that is there and owes nothing of a task has sent all of it. It may
    /// have done so since the log was read, so that it is read once more before it is given up. True if there is something to look at again.
    async fn doubt(&mut self, tasks: &[Task]) -> Result<bool, Problem> {
        let nodes = self.shared.core.ask(Input::Nodes).await?;
        let owed = self.shared.core.ask(Input::Unsettled).await?;
        let attempt = AttemptId { job: self.job.clone(), number: self.attempt };
        let is_gone = |rank: u32, task: &Task| {
            nodes.iter().any(|node| node.connected && node.id == task.placement.node)
                && !owed.contains(&attempt.task(rank))
        };
        let gone: Vec<(u32, u64)> = self
            .lacking(tasks)
            .into_iter()
            .filter(|(rank, task, _)| is_gone(*rank, task))
            .map(|(rank, task, _)| (rank, task.end.as_ref().and_then(|end| end.log_bytes).unwrap_or(0)))
            .collect();
        for (rank, end) in &gone {
            let Some(source) = self.sources.iter_mut().find(|source| source.rank == *rank) else { continue };
            if std::mem::replace(&mut source.is_doubted, true) {
                source.cut_off(*end);
            }
        }
        Ok(!gone.is_empty())
    }

    /// What is there is all there is: lines that never ended are shown, and what did not come is noted.
    fn finish(&mut self, tasks: &[Task]) -> Vec<Piece> {
        let mut rest = Vec::new();
        self.sources.iter_mut().for_each(|source| source.finish(&mut rest));
        let missing = self.lacking(tasks).into_iter().map(|(rank, task, offset)| MissingLog {
            attempt: self.attempt,
            rank,
            node: task.placement.node.clone(),
            bytes: task.end.as_ref().and_then(|end| end.log_bytes).unwrap_or(0) - offset,
        });
        let missing: Vec<_> = missing.collect();
        // A second look replaces the first.
        self.missing.retain(|missing| missing.attempt != self.attempt);
        self.missing.extend(missing);
        let attempt = self.attempt;
        let damaged = self.sources.iter().flat_map(|source| {
            let rank = source.rank;
            let places = source.damage.iter();
            places.map(move |(from, to)| DamagedLog { attempt, rank, offset: *from, bytes: to - from })
        });
        let damaged: Vec<_> = damaged.collect();
        self.damaged.retain(|damaged| damaged.attempt != self.attempt);
        self.damaged.extend(damaged);
        rest
    }

    /// How long until nothing can come any more that is not too late, the way of the log included.
    fn until_too_late(&self) -> Option<Duration> {
        let until = Timestamp::from_microsecond(i64::try_from(self.selection.until?).ok()?).ok()?;
        let left = Duration::try_from(until.duration_since(crate::core::now())).unwrap_or_default();
        Some(left + self.patience.arrival)
    }

    fn is_too_late(&self) -> bool {
        let past =
            |until: u64| u64::try_from(crate::core::now().as_microsecond()).is_ok_and(|now| now > until);
        self.selection.until.is_some_and(past) && self.heard.elapsed() >= self.patience.arrival
    }

    /// Until something changes, or for so long.
    async fn wait(&mut self, limit: Option<Duration>) {
        let growth = self.sources.iter_mut().map(|source| Box::pin(source.grown.changed()));
        let grown = async {
            if growth.len() == 0 { std::future::pending().await } else { select_all(growth).await.0 }
        };
        let late = async {
            match limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = grown => {}
            () = late => {}
            // A watch that is gone means the server stops; so does this stream.
            changed = self.news.changed() => self.is_stopped |= changed.is_err(),
            () = self.shared.stop.cancelled() => self.is_stopped = true,
        }
    }
}
