//! Quotas and the queue.

use muster_model::quota::{UserQuota, WorkspaceQuota};

use super::operation::{job_path, percent_encoded as segment, with_query};
use super::{Body, Client, Error, Method};
use crate::quota::{ChangeJob, ChangeQuota, ChangeUserQuota, QueueQuery, QueueView, QuotaQuery, QuotaView};
use crate::view::JobSummary;

impl Client {
    /// Who may have what, who has what, and what this client can get now.
    pub async fn quota(&self, query: &QuotaQuery) -> Result<QuotaView, Error> {
        self.get(&with_query("/quota", &[("workspace", query.workspace.clone())])).await
    }

    /// Changes what a workspace may have.
    pub async fn change_quota(&self, of: &str, change: &ChangeQuota) -> Result<WorkspaceQuota, Error> {
        self.request(Method::PATCH, &workspace(of), Some(change)).await
    }

    /// Says nothing of a workspace any more.
    pub async fn clear_quota(&self, of: &str) -> Result<(), Error> {
        self.unary(Method::DELETE, &workspace(of), Body::None, &[]).await.map(drop)
    }

    /// Changes what a user may have; `*` is everybody who has no limit of their own.
    pub async fn change_user_quota(&self, of: &str, change: &ChangeUserQuota) -> Result<UserQuota, Error> {
        self.request(Method::PATCH, &user(of), Some(change)).await
    }

    /// Says nothing of a user any more.
    pub async fn clear_user_quota(&self, of: &str) -> Result<(), Error> {
        self.unary(Method::DELETE, &user(of), Body::None, &[]).await.map(drop)
    }

    /// Who waits, those that are to start next first.
    pub async fn queue(&self, query: &QueueQuery) -> Result<QueueView, Error> {
        let QueueQuery { workspace, user, on, limit } = query.clone();
        let limit = limit.map(|limit| limit.to_string());
        let pairs = [("workspace", workspace), ("user", user), ("on", on), ("limit", limit)];
        self.get(&with_query("/queue", &pairs)).await
    }

    /// Changes a job that is not over.
    pub async fn change_job(&self, selector: &str, change: &ChangeJob) -> Result<JobSummary, Error> {
        self.request(Method::PATCH, &job_path(selector, ""), Some(change)).await
    }
}

fn workspace(name: &str) -> String {
    format!("/quota/workspaces/{}", segment(name))
}

fn user(name: &str) -> String {
    format!("/quota/users/{}", segment(name))
}
