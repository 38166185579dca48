//! What is over of people's: old entries of the audit log, tokens that are good no longer, sign-ups that nobody said yes to.

use std::sync::Arc;

use muster_api::problem::Problem;
use muster_model::Timestamp;
use muster_store::{AccountChange, Change, NewAudit};
use serde_json::json;

use super::round::read;
use crate::accounts::{Caller, Directory};
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

/// Removes tokens that are good no longer, and those who wait in vain.
pub(super) async fn expired(shared: &Arc<Shared>) -> Result<(), Problem> {
    let Some(accounts) = &shared.accounts else { return Ok(()) };
    let now = now();
    let (sign_ups, tokens) = accounts.look(|directory| over(directory, now));
    if sign_ups.is_empty() && tokens.is_empty() {
        return Ok(());
    }
    let mut entry = Caller::operator("server").audit("remove_expired", "", "done");
    entry.detail = Some(json!({ "sign_ups": sign_ups, "tokens": tokens.len() }));
    // Asked again: somebody may have been let in meanwhile.
    let decide = move |directory: &Directory| {
        let (sign_ups, tokens) = over(directory, now);
        let gone = sign_ups.into_iter().map(AccountChange::RemoveUser);
        Ok((gone.chain(tokens.into_iter().map(AccountChange::RemoveToken)).collect(), ()))
    };
    accounts.change(&shared.core, None, entry, decide).await
}

/// Who has signed up for nothing, and which tokens are good no longer.
fn over(directory: &Directory, now: Timestamp) -> (Vec<String>, Vec<String>) {
    let sign_ups = directory.expired_sign_ups(now).map(|user| user.name.clone()).collect();
    (sign_ups, directory.expired_tokens(now).map(|token| token.id.clone()).collect())
}
