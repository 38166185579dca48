//! What is over of people's: old entries of the audit log.

use std::sync::Arc;

use muster_api::problem::Problem;
use muster_store::{Change, NewAudit};

use super::round::read;
use crate::core::{Input, now};
use crate::state::Shared;

/// Entries that go in one transaction.
const ENTRIES: u32 = 1000;

/// Removes entries that are too old. The first thing is the entry that says so.
pub(super) async fn audit(shared: &Arc<Shared>) -> Result<(), Problem> {
    let Some(before) = shared.keep().audit.and_then(|age| now().checked_sub(age).ok()) else { return Ok(()) };
    let entries = read(shared, move |readers| readers.audit_before(before)).await?;
    if entries == 0 {
        return Ok(());
    }
    let remove = || Change::RemoveAudit { before, limit: ENTRIES };
    let mut changes = vec![Change::Audit(NewAudit::removal(now(), before, entries)), remove()];
    for _ in 0..entries.div_ceil(u64::from(ENTRIES)) {
        let now = std::mem::replace(&mut changes, vec![remove()]);
        shared.core.ask(|reply| Input::Write(now, None, reply)).await?;
    }
    tracing::info!(entries, %before, "removed old entries of the audit log");
    Ok(())
}
