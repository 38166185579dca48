//! One round: logs, outputs, bundles, chunks, in this order, because each frees what the next one looks at.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use muster_api::problem::Problem;
use muster_api::view::{GcReport, NodeFreed};
use muster_model::{JobId, Timestamp};
use muster_store::{KeptRow, Readers};
use tokio::sync::mpsc;

use super::Limit;
use crate::bundle::with_chunks;
use crate::chunk_store::sweep::{Marks, Swept};
use crate::core::{Input, Kept, internal, now};
use crate::log_store::blocking;
use crate::state::Shared;
use crate::view;

/// Rows looked at at once.
const PAGE: u32 = 256;
/// Bundles removed in one transaction: their manifests may be long, and others wait for the writer.
const BUNDLES: u32 = 32;
/// How long nodes may take to say what they removed. They go on, whether somebody waits or not.
const NODES: Duration = Duration::from_secs(20);
/// A log that is still not whole so long after its job ended never will be.
const ARRIVED: Duration = Duration::from_secs(24 * 3600);

/// Removes what need not be kept, or says what it would.
pub(crate) async fn collect(shared: &Arc<Shared>, dry_run: bool) -> Result<GcReport, Problem> {
    // One at a time: a second one would count what the first is about to remove.
    let _alone = shared.collecting.lock().await;
    let mut report = GcReport { dry_run, ..GcReport::default() };
    let nodes = if dry_run { None } else { Some(ask_nodes(shared).await?) };
    if !dry_run {
        super::people::audit(shared).await?;
        super::people::expired(shared).await?;
        remove_strays(shared).await?;
    }
    measure_logs(shared).await?;
    report.logs_bytes = logs(shared, dry_run).await?;
    report.outputs_bytes = outputs(shared, dry_run).await?;
    report.bundles = bundles(shared, dry_run).await?;
    if !dry_run && shared.accounts.is_some() {
        shared.uploads.forget(shared.keep().unused);
        let store = shared.clone();
        read(shared, move |readers| store.usage.measure_code(readers)).await?;
    }
    let swept = chunks(shared, dry_run).await?;
    (report.chunks, report.chunk_bytes) = (swept.chunks, swept.bytes);
    if let Some((asked, answers)) = nodes {
        report.nodes = wait_for_nodes(asked, answers).await;
    }
    report.owed = read(shared, Readers::owed_removals).await?.into_iter().map(view::owed_removals).collect();
    Ok(report)
}

type Answers = mpsc::Receiver<(muster_model::NodeId, u64)>;

async fn ask_nodes(shared: &Shared) -> Result<(usize, Answers), Problem> {
    let (sender, answers) = mpsc::channel(1024);
    let asked = shared.core.ask(|reply| Input::Collect(sender, reply)).await?;
    Ok((asked.len(), answers))
}

async fn wait_for_nodes(asked: usize, mut answers: Answers) -> Vec<NodeFreed> {
    let mut freed: Vec<NodeFreed> = Vec::new();
    let all = async {
        while freed.len() < asked
            && let Some((node, bytes)) = answers.recv().await
        {
            freed.push(NodeFreed { node, bytes });
        }
    };
    // A node that says nothing is left out.
    drop(tokio::time::timeout(NODES, all).await);
    freed.sort_by(|a, b| a.node.cmp(&b.node));
    freed
}

/// Logs whose job is gone, or whose log is: what a server that was killed did not get to remove.
async fn remove_strays(shared: &Arc<Shared>) -> Result<(), Problem> {
    let (logs, readers) = (shared.logs.clone(), shared.readers.clone());
    let grace = shared.keep().unused;
    let removed = blocking(move || logs.remove_strays(&readers, grace)).await;
    removed.map_err(|error| crate::disk::problem("old logs cannot be removed", home(shared), &error))
}

/// Writes down how large the logs are of jobs that ended since the last round.
async fn measure_logs(shared: &Arc<Shared>) -> Result<(), Problem> {
    let mut after = Timestamp::UNIX_EPOCH;
    loop {
        let (page, logs) =
            (read(shared, move |readers| readers.unmeasured_logs(after, PAGE)).await?, shared.logs.clone());
        let Some(last) = page.last() else { return Ok(()) };
        after = last.ended_at;
        let settled_before = now() - ARRIVED;
        let measured = blocking(move || {
            let sizes = page.into_iter().map(|row| {
                let bytes = logs.bytes(&row.job)?;
                let is_whole = bytes >= row.bytes || row.ended_at < settled_before;
                Ok(is_whole.then_some((row.job, bytes)))
            });
            sizes.filter_map(Result::transpose).collect::<std::io::Result<Vec<(JobId, u64)>>>()
        });
        let sizes = measured
            .await
            .map_err(|error| crate::disk::problem("the logs cannot be measured", home(shared), &error))?;
        if !sizes.is_empty() {
            shared.core.ask(|reply| Input::LogBytes(sizes, reply)).await?;
        }
    }
}

async fn logs(shared: &Arc<Shared>, dry_run: bool) -> Result<u64, Problem> {
    let total = read(shared, Readers::log_total).await?;
    let mut budget = Budget::new(shared.keep().logs, total);
    loop {
        let after = budget.after;
        let page = read(shared, move |readers| readers.oldest_logs(after, PAGE)).await?;
        let Some(doomed) = budget.take(page) else { return Ok(budget.freed) };
        for row in doomed.into_iter().filter(|_| !dry_run) {
            shared.core.ask(|reply| Input::RemoveKept(Kept::Logs(row.job.clone()), row.bytes, reply)).await?;
            let logs = shared.logs.clone();
            let removed = blocking(move || logs.remove(&row.job)).await;
            removed.map_err(|error| crate::disk::problem("a log cannot be removed", home(shared), &error))?;
        }
    }
}

async fn outputs(shared: &Arc<Shared>, dry_run: bool) -> Result<u64, Problem> {
    let total = read(shared, Readers::output_total).await?;
    let mut budget = Budget::new(shared.keep().outputs, total);
    loop {
        let after = budget.after;
        let page = read(shared, move |readers| readers.oldest_outputs(after, PAGE)).await?;
        let Some(doomed) = budget.take(page) else { return Ok(budget.freed) };
        for row in doomed.into_iter().filter(|_| !dry_run) {
            shared
                .core
                .ask(|reply| Input::RemoveKept(Kept::Outputs(row.job.clone()), row.bytes, reply))
                .await?;
        }
    }
}

async fn bundles(shared: &Arc<Shared>, dry_run: bool) -> Result<u64, Problem> {
    let unused_since = now() - shared.keep().unused;
    if dry_run {
        return read(shared, move |readers| readers.unused_bundles(unused_since)).await;
    }
    let mut removed = 0;
    loop {
        let some =
            shared.core.ask(|reply| Input::RemoveBundles { unused_since, limit: BUNDLES, reply }).await?;
        removed += some;
        if some < u64::from(BUNDLES) {
            return Ok(removed);
        }
    }
}

async fn chunks(shared: &Arc<Shared>, dry_run: bool) -> Result<Swept, Problem> {
    let begun = SystemTime::now();
    // What a run would remove before it came here is not marked.
    let unused_since = dry_run.then(|| now() - shared.keep().unused);
    let marks = read(shared, move |readers| {
        let marks = std::cell::RefCell::new(Marks::default());
        let manifest = |text: &str| marks.borrow_mut().add_manifest(text);
        readers.each_manifest(unused_since, manifest, |id| marks.borrow_mut().add(id))?;
        Ok(marks.into_inner().finish())
    })
    .await?;
    let store = shared.clone();
    with_chunks(shared, move || store.chunks.sweep(&marks, begun, dry_run)).await
}

/// Which of the oldest must go, for age or for room.
struct Budget {
    limit: Limit,
    total: u64,
    freed: u64,
    after: Timestamp,
    expired_before: Option<Timestamp>,
}

impl Budget {
    fn new(limit: Limit, total: u64) -> Self {
        let expired_before = limit.age.and_then(|age| now().checked_sub(age).ok());
        Self { limit, total, freed: 0, after: Timestamp::UNIX_EPOCH, expired_before }
    }

    /// Of the oldest, those that go; `None` once the rest may stay.
    fn take(&mut self, oldest: Vec<KeptRow>) -> Option<Vec<KeptRow>> {
        let mut doomed = Vec::new();
        for row in oldest {
            let expired = self.expired_before.is_some_and(|before| row.ended_at < before);
            if !expired && self.total <= self.limit.bytes {
                break;
            }
            self.total = self.total.saturating_sub(row.bytes);
            self.freed += row.bytes;
            self.after = row.ended_at;
            doomed.push(row);
        }
        if doomed.is_empty() { None } else { Some(doomed) }
    }
}

fn home(shared: &Shared) -> &std::path::Path {
    std::path::Path::new(&shared.home)
}

pub(super) async fn read<T: Send + 'static>(
    shared: &Shared,
    work: impl FnOnce(&Readers) -> muster_store::Result<T> + Send + 'static,
) -> Result<T, Problem> {
    let readers = shared.readers.clone();
    let done = blocking(move || Ok(work(&readers))).await;
    match done {
        Ok(done) => done.map_err(|error| internal(&error)),
        Err(_) => Err(Problem::new(muster_api::Code::Internal, "the request failed")),
    }
}
