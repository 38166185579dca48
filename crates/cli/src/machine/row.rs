//! A machine as a line of a list: where it is and what it has.

use std::collections::BTreeMap;

use muster_api::model::{JobId, NodeId, State, Timestamp};
use muster_api::view::{JobDetail, JobSummary, NodeView};
use serde::Serialize;

use super::{Member, kept};
use crate::error::Error;
use crate::session::Session;

/// One machine.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    /// `task0.v100`.
    pub name: String,
    pub group: String,
    pub rank: u32,
    pub job: JobId,
    pub state: State,
    /// Why it is there, in words.
    pub message: Option<String>,
    pub on: String,
    pub owner: String,
    /// Where it is, while it has a place.
    pub node: Option<NodeId>,
    pub address: Option<String>,
    /// The accelerators it has, by model.
    pub devices: BTreeMap<String, usize>,
    pub labels: BTreeMap<String, String>,
    pub submitted_at: Timestamp,
}

impl Row {
    /// `V100 x 8`.
    pub fn gpus(&self) -> String {
        let parts: Vec<String> =
            self.devices.iter().map(|(model, count)| format!("{model} x {count}")).collect();
        if parts.is_empty() { "-".into() } else { parts.join(", ") }
    }
}

/// Every machine of these groups.
pub(crate) async fn rows(session: &Session, groups: &[JobSummary]) -> Result<Vec<Row>, Error> {
    let nodes = session.call(async |client| client.nodes().await).await?.items;
    let mut all = Vec::new();
    for group in groups {
        let id = group.id.as_str();
        let job = session.call(async |client| client.job(id).await).await?;
        all.extend(of_group(&job, &nodes));
    }
    Ok(all)
}

/// Those that were given back for good are not there any more.
fn of_group(job: &JobDetail, nodes: &[NodeView]) -> Vec<Row> {
    kept(job).into_iter().map(|rank| of_task(job, rank, nodes)).collect()
}

fn of_task(job: &JobDetail, rank: u32, nodes: &[NodeView]) -> Row {
    let summary = &job.summary;
    let Member { name, state, message } = Member::of(job, rank);
    let holds = State::HOLDS_RESOURCES.contains(&state);
    let attempt = job.attempts.last().filter(|_| holds);
    let task = attempt.and_then(|attempt| attempt.tasks.iter().find(|task| task.rank == rank));
    let node = task.and_then(|task| nodes.iter().find(|node| node.id == task.node));
    let mut devices = BTreeMap::new();
    for view in node.iter().flat_map(|node| &node.devices) {
        if task.is_some_and(|task| task.devices.contains(&view.device.index)) {
            *devices.entry(view.device.model.clone()).or_default() += 1;
        }
    }
    Row {
        name,
        group: summary.name.clone(),
        rank,
        job: summary.id.clone(),
        state,
        message: message.or_else(|| summary.message.clone().filter(|_| state == summary.state)),
        on: summary.on.clone(),
        owner: summary.owner.clone(),
        node: task.map(|task| task.node.clone()),
        address: task.and_then(|task| task.address.as_ref()).map(|address| address.ip.to_string()),
        devices,
        labels: summary.labels.clone(),
        submitted_at: summary.submitted_at,
    }
}
