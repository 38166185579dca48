//! Counts of repeated requests: one entry stands for all that are alike within a window.
//!
//! Pure: the caller brings the time. The first request of its kind gives a row at once; if more come, the end of the window
//! gives a second row of the same entry, with their number. The number of entries per window is bounded for each user, for
//! all unauthenticated callers together, and in all: beyond a bound, requests are counted with less detail.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use muster_model::JobId;
use muster_store::NewAudit;

use super::STARTED;

/// Requests that are alike are counted for this long.
const WINDOW: Duration = Duration::from_secs(600);
/// Entries per window with full detail, for each user.
const PER_USER: usize = 200;
/// Entries per window with full detail, for all unauthenticated callers.
const STRANGERS: usize = 100;
/// Entries per window in all.
const TOTAL: usize = 10_000;
/// The operation of an entry that stands for several.
const ANY_OPERATION: &str = "any";

/// Requests are alike if they have the same key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Key {
    user: Option<String>,
    address: Option<String>,
    operation: String,
    target: String,
    job: Option<JobId>,
    outcome: String,
}

impl Key {
    /// A user is the same user at every address; an unauthenticated caller chooses the target freely.
    fn of(entry: &NewAudit) -> Self {
        let (operation, outcome) = (entry.operation.clone(), entry.outcome.clone());
        match &entry.user {
            Some(user) => Self {
                user: Some(user.clone()),
                target: entry.target.clone(),
                job: entry.job.clone(),
                operation,
                outcome,
                ..Self::default()
            },
            None => Self { address: entry.address.clone(), operation, outcome, ..Self::default() },
        }
    }

    /// The same with less detail, for callers who have used up their entries.
    fn coarse(self) -> Self {
        let operation = if self.user.is_some() { self.operation } else { ANY_OPERATION.to_owned() };
        Self { user: self.user, operation, outcome: self.outcome, ..Self::default() }
    }

    fn overflow() -> Self {
        Self { operation: ANY_OPERATION.to_owned(), outcome: "refused".to_owned(), ..Self::default() }
    }

    /// Shows in an entry what the key tells apart, and no more.
    fn strip(&self, entry: NewAudit) -> NewAudit {
        let is_full = *self == Self::of(&entry);
        if is_full {
            return entry;
        }
        NewAudit {
            user: self.user.clone(),
            request: entry.request,
            status: entry.status,
            ..NewAudit::new(entry.at, &self.operation, &self.outcome)
        }
    }
}

/// Entries whose window has not ended.
#[derive(Debug, Default)]
pub(super) struct Tally {
    open: HashMap<Key, NewAudit>,
    /// In the order in which windows end.
    ends: VecDeque<(Instant, Key)>,
    /// How many are open, by user.
    by_user: HashMap<Option<String>, usize>,
}

impl Tally {
    /// Counts a request. Returns the row to write if it is the first of its kind.
    pub fn count(&mut self, entry: NewAudit, now: Instant) -> Option<NewAudit> {
        let key = self.key(&entry);
        if let Some(counted) = self.open.get_mut(&key) {
            counted.count += 1;
            return None;
        }
        let entry = key.strip(entry);
        *self.by_user.entry(key.user.clone()).or_default() += 1;
        self.ends.push_back((now + WINDOW, key.clone()));
        self.open.insert(key, entry.clone());
        Some(entry)
    }

    /// Forgets an entry whose first row was not written.
    pub fn forget(&mut self, entry: &NewAudit) {
        let key = self.key(entry);
        drop(self.end(&key));
        self.ends.retain(|(_, one)| *one != key);
    }

    /// Ends windows. Returns the rows of entries that stand for more than their first request.
    pub fn expire(&mut self, now: Instant) -> Vec<NewAudit> {
        let mut rows = Vec::new();
        while let Some((_, key)) = self.ends.pop_front_if(|(end, _)| *end <= now) {
            rows.extend(self.end(&key));
        }
        rows
    }

    /// Ends all windows.
    pub fn expire_all(&mut self) -> Vec<NewAudit> {
        let ends = std::mem::take(&mut self.ends);
        ends.into_iter().filter_map(|(_, key)| self.end(&key)).collect()
    }

    /// When the next window ends.
    pub fn next_due(&self) -> Option<Instant> {
        self.ends.front().map(|(end, _)| *end)
    }

    fn end(&mut self, key: &Key) -> Option<NewAudit> {
        let entry = self.open.remove(key)?;
        if let Some(open) = self.by_user.get_mut(&key.user) {
            *open -= 1;
            if *open == 0 {
                self.by_user.remove(&key.user);
            }
        }
        // Outcomes are counted as entries of their own.
        Some(entry).filter(|entry| entry.count > 1 && entry.outcome != STARTED)
    }

    fn key(&self, entry: &NewAudit) -> Key {
        let full = Key::of(entry);
        let is_open = |key: &Key| self.open.contains_key(key);
        let most = if full.user.is_some() { PER_USER } else { STRANGERS };
        let has_room = self.by_user.get(&full.user).copied().unwrap_or(0) < most;
        if is_open(&full) || (has_room && self.open.len() < TOTAL) {
            return full;
        }
        let coarse = full.coarse();
        if is_open(&coarse) || self.open.len() < TOTAL { coarse } else { Key::overflow() }
    }
}

#[cfg(test)]
mod tests {
    use muster_model::Timestamp;

    use super::*;

    fn refusal(user: Option<&str>, address: &str, target: &str) -> NewAudit {
        NewAudit {
            user: user.map(Into::into),
            address: Some(address.into()),
            target: target.into(),
            request: Some(format!("req_{target}{address}")),
            ..NewAudit::new(Timestamp::UNIX_EPOCH, "get_file", "forbidden")
        }
    }

    #[test]
    fn requests_that_are_alike_are_one_entry_with_their_number() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        let ada = refusal(Some("ada"), "10.0.0.1", "/a");
        assert_eq!(tally.count(ada.clone(), now), Some(ada.clone()), "the first is written at once");
        for last in 0..50 {
            assert_eq!(tally.count(refusal(Some("ada"), &format!("10.0.0.{last}"), "/a"), now), None);
        }
        assert!(tally.count(refusal(Some("ada"), "10.0.0.1", "/b"), now).is_some());
        assert_eq!(tally.expire(now + WINDOW / 2), []);
        let counted = tally.expire(now + WINDOW);
        assert_eq!(counted, [NewAudit { count: 51, ..ada.clone() }], "a single one needs no second row");
        assert!(tally.next_due().is_none());
        assert!(tally.count(ada, now + WINDOW).is_some(), "a new window");
    }

    #[test]
    fn a_flood_gives_a_bounded_number_of_rows() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        let mut rows = 0;
        for number in 0..100_000_u32 {
            let (address, target) = (format!("2001:db8::{number:x}"), format!("/{number}"));
            rows += usize::from(tally.count(refusal(None, &address, &target), now).is_some());
            rows += usize::from(tally.count(refusal(Some("eve"), &address, &target), now).is_some());
        }
        assert!(rows <= STRANGERS + PER_USER + 2, "{rows}");
        // Another user still has entries with full detail.
        let bob = refusal(Some("bob"), "10.0.0.1", "/b");
        assert_eq!(tally.count(bob.clone(), now), Some(bob));
        let counted: u64 = tally.expire_all().iter().map(|entry| entry.count).sum();
        assert_eq!(counted, 200_000 - (STRANGERS + PER_USER) as u64, "none is lost");
    }

    #[test]
    fn a_read_begins_once_in_a_window_unless_its_row_was_not_written() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        let begun = NewAudit { outcome: STARTED.into(), ..refusal(Some("root"), "10.0.0.1", "/a") };
        let done = NewAudit { outcome: "done".into(), ..begun.clone() };
        assert!(tally.count(begun.clone(), now).is_some());
        tally.forget(&begun);
        assert!(tally.count(begun.clone(), now).is_some(), "it is tried again");
        assert!(tally.count(done.clone(), now).is_some());
        assert!(tally.count(begun, now).is_none() && tally.count(done.clone(), now).is_none());
        assert_eq!(
            tally.expire(now + WINDOW),
            [NewAudit { count: 2, ..done }],
            "the outcome is the last row"
        );
        assert!(tally.open.is_empty() && tally.by_user.is_empty() && tally.ends.is_empty());
    }

    #[test]
    fn many_users_are_bounded_as_well() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        for user in 0..200 {
            for number in 0..100 {
                tally.count(refusal(Some(&format!("u{user}")), "10.0.0.1", &format!("/{number}")), now);
            }
        }
        assert!(tally.open.len() <= TOTAL + 1, "{}", tally.open.len());
        assert_eq!(tally.by_user.values().sum::<usize>(), tally.open.len());
    }
}
