//! How much of the server's disk each workspace takes: logs, outputs and code of its jobs.
//!
//! Code is added up in every round of retention, chunk by chunk, since bundles share most of theirs; between rounds, a job
//! adds what was uploaded for it. Logs and outputs are measured when somebody submits, at most once a minute. A submission
//! to a workspace that has reached its limit is refused, after measuring anew: removing jobs helps at once.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muster_api::problem::{Code, Problem};
use muster_model::quantity::format_bytes;
use muster_store::Readers;

use crate::bundle::NamedCode;
use crate::core::internal;
use crate::log_store::LogStore;
use crate::state::Shared;

/// For how long logs and outputs of a workspace that is below its limit are not measured again.
const MEASUREMENT_LASTS: Duration = Duration::from_secs(60);
/// The same for one that has reached it: somebody is making room.
const RECHECK: Duration = Duration::from_secs(2);

/// What workspaces have, as far as it was measured.
#[derive(Default)]
pub(crate) struct WorkspaceUsage {
    workspaces: Mutex<HashMap<String, Usage>>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Usage {
    code_bytes: u64,
    /// Logs and outputs, and when they were measured.
    rest: Option<(Instant, u64)>,
}

impl Usage {
    /// The whole, if it need not be measured again before it is compared with the limit.
    fn known(&self, now: Instant, limit: u64) -> Option<u64> {
        let (at, rest) = self.rest?;
        let bytes = self.code_bytes.saturating_add(rest);
        let lasts = if bytes < limit { MEASUREMENT_LASTS } else { RECHECK };
        (now.duration_since(at) < lasts).then_some(bytes)
    }
}

impl WorkspaceUsage {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Usage>> {
        self.workspaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job of the workspace has brought new code.
    pub fn add_code(&self, workspace: &str, bytes: u64) {
        if bytes > 0 {
            let mut workspaces = self.lock();
            let usage = workspaces.entry(workspace.to_owned()).or_default();
            usage.code_bytes = usage.code_bytes.saturating_add(bytes);
        }
    }

    /// Adds up the code of all workspaces. Waits for the disk.
    pub fn measure_code(&self, readers: &Readers) -> muster_store::Result<()> {
        let mut code: HashMap<String, u64> = HashMap::new();
        let (mut current, mut seen) = (String::new(), HashSet::new());
        readers.each_workspace_manifest(|workspace, manifest| {
            if current != workspace {
                current = workspace.to_owned();
                seen.clear();
            }
            *code.entry(current.clone()).or_default() += new_bytes(manifest, &mut seen);
        })?;
        let mut workspaces = self.lock();
        workspaces.retain(|name, _| code.contains_key(name));
        for (name, bytes) in code {
            let usage = workspaces.entry(name).or_default();
            *usage = Usage { code_bytes: bytes, rest: None };
        }
        Ok(())
    }
}

/// Charges a workspace with the code of a submission when dropped, unless the submission was refused. The job may be made
/// also if the caller disconnects before the answer.
pub(crate) struct CodeCharge<'a> {
    usage: &'a WorkspaceUsage,
    workspace: &'a str,
    code: Option<NamedCode>,
}

impl<'a> CodeCharge<'a> {
    pub fn new(shared: &'a Shared, workspace: &'a str, code: Option<NamedCode>) -> Self {
        Self { usage: &shared.usage, workspace, code }
    }

    /// The submission was refused.
    pub fn cancel(&mut self) {
        self.code = None;
    }
}

impl Drop for CodeCharge<'_> {
    fn drop(&mut self) {
        if let Some(code) = self.code.take() {
            self.usage.add_code(self.workspace, code.count());
        }
    }
}

/// The length of a manifest's text, and of those of its chunks that were not seen before.
fn new_bytes(manifest: &str, seen: &mut HashSet<u64>) -> u64 {
    let mut bytes = manifest.len() as u64;
    for line in manifest.lines().skip(1) {
        let mut words = line.split(' ').skip(1);
        let (id, length) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let digest = id.rsplit('_').next().and_then(|digest| u64::from_str_radix(digest.get(..16)?, 16).ok());
        if digest.is_some_and(|digest| seen.insert(digest)) {
            bytes = bytes.saturating_add(length.parse().unwrap_or(0));
        }
    }
    bytes
}

/// Refuses a submission to a workspace that has stored as much as it may. Where people have no accounts there is no limit but
/// the disk's.
pub(crate) async fn check(shared: &Arc<Shared>, workspace: &str) -> Result<(), Problem> {
    let limit = shared.limits().workspace_bytes;
    if shared.accounts.is_none() {
        return Ok(());
    }
    let known = shared.usage.lock().get(workspace).and_then(|usage| usage.known(Instant::now(), limit));
    let bytes = match known {
        Some(bytes) => bytes,
        None => {
            let (store, name) = (shared.clone(), workspace.to_owned());
            let measured = tokio::task::spawn_blocking(move || measure(&store, &name)).await;
            measured.unwrap_or_else(|_| Err(Problem::new(Code::Internal, "the request failed")))?
        }
    };
    if bytes < limit {
        return Ok(());
    }
    Err(Problem::new(
        Code::StorageLimit,
        format!(
            "the jobs of the workspace {workspace} have {} of logs, outputs and code on the server; its limit is {} (limits.workspace)",
            format_bytes(bytes),
            format_bytes(limit)
        ),
    )
    .hint("remove jobs that are not needed, `muster rm JOB`; an admin can raise the limit"))
}

fn measure(shared: &Shared, workspace: &str) -> Result<u64, Problem> {
    let (over, live) = shared.readers.workspace_bytes(workspace).map_err(|error| internal(&error))?;
    let growing = live_bytes(&shared.logs, &live).map_err(|error| {
        crate::disk::problem("the logs cannot be measured", std::path::Path::new(&shared.home), &error)
    })?;
    let mut workspaces = shared.usage.lock();
    let usage = workspaces.entry(workspace.to_owned()).or_default();
    let rest = over.saturating_add(growing);
    usage.rest = Some((Instant::now(), rest));
    Ok(usage.code_bytes.saturating_add(rest))
}

fn live_bytes(logs: &LogStore, jobs: &[muster_model::JobId]) -> io::Result<u64> {
    jobs.iter().try_fold(0_u64, |sum, job| Ok(sum.saturating_add(logs.bytes(job)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_that_bundles_share_count_once() {
        let manifest = |digits: &[char]| -> String {
            let line = |digit: &char| format!("c chunk_{} 100\n", digit.to_string().repeat(64));
            format!("muster bundle 1\n{}", digits.iter().map(line).collect::<String>())
        };
        let mut seen = HashSet::new();
        let (first, second) = (manifest(&['1', '2', '1']), manifest(&['2', '3']));
        assert_eq!(new_bytes(&first, &mut seen), 200 + first.len() as u64);
        assert_eq!(new_bytes(&second, &mut seen), 100 + second.len() as u64);
    }

    #[test]
    fn a_full_workspace_is_measured_again_sooner() {
        let now = Instant::now();
        let usage = Usage { code_bytes: 50, rest: Some((now, 50)) };
        let later = now + RECHECK;
        assert_eq!(usage.known(later, 101), Some(100));
        assert_eq!(usage.known(later, 100), None);
        assert_eq!(usage.known(now, 100), Some(100));
        assert_eq!(usage.known(now + MEASUREMENT_LASTS, 101), None);
    }
}
