//! A server's own history as a trace: what its users really asked for, and for how long it ran.
//!
//! Nothing is foreseen here: a job counts with the time that it ran. How long one would have run that has not ended is not known, so one that runs
//! counts with its time so far, and one that waits with what it says, or with what half of the others took.

use std::collections::BTreeMap;

use muster_api::model::Timestamp;
use muster_api::model::quantity::DeviceRequest;
use muster_api::view::{JobSummary, ListJobs, NodeView};
use muster_scheduler::simulate::{JobLine, NodeLine, Trace, WorkspaceLine};

use crate::error::{Code, Error};
use crate::session::Session;

/// The most a page can have.
const PAGE: u32 = 1000;
const GIB: f64 = (1u64 << 30) as f64;
/// What a job takes if none has ever ended, in seconds.
const UNKNOWN: f64 = 3600.0;

/// Asks the server for the newest jobs of all or of one place, and for the nodes there.
pub(super) async fn ask(on: Option<&str>, most: u32) -> Result<Trace, Error> {
    let session = Session::open().await?;
    let nodes = session.call(async |client| client.nodes().await).await?.items;
    let mut jobs: Vec<JobSummary> = Vec::new();
    let mut query = ListJobs { limit: Some(PAGE.min(most)), ..ListJobs::default() };
    loop {
        let page = session.call(async |client| client.jobs(&query).await).await?;
        jobs.extend(page.items.into_iter().filter(|job| on.is_none_or(|on| job.on == on)));
        query.cursor = page.next_cursor;
        if query.cursor.is_none() || jobs.len() >= most as usize {
            break;
        }
    }
    jobs.truncate(most as usize);
    let nodes: Vec<NodeView> = nodes.into_iter().filter(|it| on.is_none_or(|on| place(it) == on)).collect();
    let there = || on.map_or(String::new(), |on| format!(" on {on}"));
    let missing =
        |what: &str| Error::new(Code::TraceInvalid, format!("this server has no {what}{}", there()));
    let trace = trace(&nodes, &jobs, Timestamp::now());
    if trace.nodes.is_empty() {
        let hint = "`muster nodes` shows those there are; what another scheduler places cannot be played";
        return Err(missing("nodes").hint(hint));
    }
    if trace.jobs.is_empty() {
        return Err(missing("jobs").hint("without --history, work is made up"));
    }
    Ok(trace)
}

/// Where a node belongs, as jobs say it.
fn place(node: &NodeView) -> String {
    match &node.pool {
        Some(pool) => format!("{}/{pool}", node.engine),
        None => node.engine.clone(),
    }
}

fn trace(nodes: &[NodeView], jobs: &[JobSummary], now: Timestamp) -> Trace {
    let first = jobs.iter().map(|job| job.submitted_at).min().unwrap_or(now);
    let mut ran: Vec<f64> =
        jobs.iter().filter_map(|job| Some(between(job.started_at?, job.ended_at?))).collect();
    ran.sort_by(f64::total_cmp);
    let usual = ran.get(ran.len() / 2).copied().unwrap_or(UNKNOWN);
    let mut jobs: Vec<JobLine> = jobs.iter().filter_map(|it| job(it, first, now, usual)).collect();
    jobs.sort_by(|a, b| a.at.total_cmp(&b.at));
    let mut makes: BTreeMap<(u64, u64, u32, u32, String), u32> = BTreeMap::new();
    nodes.iter().for_each(|it| *makes.entry(make(it)).or_default() += 1);
    let nodes = makes.into_iter().map(|((cpu_millis, memory_gib, slots, devices, model), count)| {
        let cpus = u32::try_from(cpu_millis / 1000).unwrap_or(u32::MAX);
        NodeLine { count, devices, model, slots: Some(slots), ..NodeLine::new(cpus, memory_gib) }
    });
    let names: std::collections::BTreeSet<&String> = jobs.iter().map(|job| &job.workspace).collect();
    let workspaces = names.into_iter().map(|name| WorkspaceLine::new(name.clone())).collect();
    Trace { nodes: nodes.collect(), workspaces, jobs }
}

/// What a node has: CPUs in thousandths, memory in GiB, slots, devices of the model of which it has the most, and that model.
fn make(node: &NodeView) -> (u64, u64, u32, u32, String) {
    let mut models: BTreeMap<&str, u32> = BTreeMap::new();
    node.devices.iter().for_each(|it| *models.entry(&it.device.model).or_default() += 1);
    let (model, devices) = models.into_iter().max_by_key(|(_, count)| *count).unwrap_or(("none", 0));
    (node.cpu_millis, node.memory_bytes >> 30, node.slots, devices, model.to_owned())
}

fn between(from: Timestamp, to: Timestamp) -> f64 {
    (to.as_millisecond() - from.as_millisecond()).max(0) as f64 / 1000.0
}

/// A job as it is played; none, if it was over before it ran.
fn job(job: &JobSummary, first: Timestamp, now: Timestamp, usual: f64) -> Option<JobLine> {
    let asks = &job.asks;
    let says = asks.timeout_ms.map(|limit| limit as f64 / 1000.0);
    let runs = match (job.started_at, job.ended_at) {
        (Some(started), ended) => between(started, ended.unwrap_or(now)),
        (None, Some(_)) => return None,
        (None, None) => says.unwrap_or(usual),
    };
    Some(JobLine {
        at: between(first, job.submitted_at),
        runs,
        says,
        workspace: asks.workspace.clone(),
        user: job.owner.clone(),
        nodes: job.nodes.max(1),
        gpus: job.gpus.as_deref().and_then(|gpus| gpus.parse::<DeviceRequest>().ok()),
        cpus: asks.cpu_millis as f64 / 1000.0,
        memory_gib: asks.memory_bytes as f64 / GIB,
        priority: asks.priority,
        preemptible: asks.preemptible,
        exclusive: asks.exclusive,
        saves: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(number: u64, times: [Option<i64>; 3], timeout_ms: Option<u64>) -> JobSummary {
        let [submitted, started, ended] =
            times.map(|at| at.map(|at| Timestamp::from_second(at).expect("a moment")));
        let job = serde_json::json!({
            "id": muster_api::model::JobId::from_random(number),
            "name": "digits", "state": "succeeded", "reason": null, "message": null, "nodes": 2, "gpus": "H100:4",
            "command": "python train.py", "on": "local", "owner": "ann", "attempt": 1, "exit_code": 0,
            "submitted_at": submitted, "started_at": started, "ended_at": ended,
            "asks": { "workspace": "nlp", "priority": 700, "cpu_millis": 1500, "memory_bytes": 3u64 << 30, "timeout_ms": timeout_ms },
        });
        serde_json::from_value(job).expect("a job")
    }

    #[test]
    fn jobs_count_with_the_time_that_they_ran() {
        let jobs = [
            summary(1, [Some(1000), Some(1010), Some(1040)], None),
            summary(2, [Some(1005), Some(1020), None], Some(600_000)),
            summary(3, [Some(1006), None, Some(1007)], None),
            summary(4, [Some(1008), None, None], None),
        ];
        let trace = trace(&[], &jobs, Timestamp::from_second(1100).expect("a moment"));
        let shown: Vec<_> = trace.jobs.iter().map(|job| (job.at, job.runs, job.says)).collect();
        assert_eq!(
            shown,
            [(0.0, 30.0, None), (5.0, 80.0, Some(600.0)), (8.0, 30.0, None)],
            "one that ended, one that runs, and one that waits; not one that was over before it ran"
        );
        let first = &trace.jobs[0];
        assert_eq!((first.cpus, first.memory_gib, first.priority, first.nodes), (1.5, 3.0, 700, 2));
        assert_eq!((first.workspace.as_str(), first.user.as_str()), ("nlp", "ann"));
    }
}
