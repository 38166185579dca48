//! All that is shown at one moment.

use muster_api::client::{Client, Error};
use muster_api::model::{State, Timestamp};
use muster_api::quota::{QueueQuery, QueueView, QuotaQuery, QuotaView};
use muster_api::view::{JobSummary, ListJobs, NodeView};
use serde::Serialize;

/// As many jobs are shown of the queue.
const QUEUE: u32 = 200;
/// As many are looked at for one's own.
const JOBS: u32 = 1000;

#[derive(Debug, Clone, Serialize)]
pub(super) struct Picture {
    pub at: Timestamp,
    /// Who looks.
    pub user: String,
    pub nodes: Vec<NodeView>,
    pub queue: QueueView,
    /// One's own that are not over, the newest first.
    pub jobs: Vec<JobSummary>,
    pub quota: QuotaView,
    /// Why it is old.
    #[serde(skip)]
    pub trouble: Option<String>,
}

impl Picture {
    pub async fn take(client: &Client) -> Result<Self, Error> {
        let queue = QueueQuery { limit: Some(QUEUE), ..QueueQuery::default() };
        let unfinished = State::ALL.iter().filter(|state| !state.is_terminal());
        let states: Vec<&str> = unfinished.map(|state| state.as_str()).collect();
        let mine = ListJobs { state: Some(states.join(",")), limit: Some(JOBS), ..ListJobs::default() };
        let me = client.whoami().await?;
        let mut jobs = client.jobs(&mine).await?.items;
        jobs.retain(|job| !me.accounts || job.owner == me.user);
        Ok(Self {
            at: Timestamp::now(),
            nodes: client.nodes().await?.items,
            queue: client.queue(&queue).await?,
            quota: client.quota(&QuotaQuery::default()).await?,
            user: me.user,
            jobs,
            trouble: None,
        })
    }
}
