//! Counts of repeated requests: one entry stands for all that are alike within a window.
//!
//! Pure: the caller brings the time. The first request of its kind gives a row at once; if more come, the end of the window
//! gives a second row of the same entry, with their number. The number of entries per window is bounded for each user, for
//! all unauthenticated callers together, and in all: beyond a bound, requests are counted with less detail. Reads of what
//! belongs to another person have a bound of their own: refusals do not hide them.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use muster_model::JobId;
use muster_store::NewAudit;

use super::STARTED;

/// Requests that are alike are counted for this long.
const WINDOW: Duration = Duration::from_secs(600);
/// Entries per window with full detail, for the refusals of each user.
const PER_USER: usize = 200;
/// The same for a user's reads of what belongs to others. A read has two entries, its beginning and its outcome.
const READS: usize = 400;
/// Entries of a user's reads up to which each still names the job.
const READS_BY_JOB: usize = 2000;
/// Entries per window with full detail, for all unauthenticated callers.
const STRANGERS: usize = 100;
/// Entries per window in all.
const TOTAL: usize = 10_000;
/// The operation of an entry that stands for several.
const ANY_OPERATION: &str = "any";

/// Why a request is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum CountedKind {
    #[default]
    Refusal,
    /// A permitted read of what belongs to another person.
    ForeignRead,
}

/// Requests are alike if they have the same key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Key {
    kind: CountedKind,
    user: Option<String>,
    address: Option<String>,
    operation: String,
    target: String,
    job: Option<JobId>,
    outcome: String,
}

impl Key {
    /// A user is the same user at every address; an unauthenticated caller chooses the target freely.
    fn of(entry: &NewAudit, kind: CountedKind) -> Self {
        let (operation, outcome) = (entry.operation.clone(), entry.outcome.clone());
        match &entry.user {
            Some(user) => Self {
                kind,
                user: Some(user.clone()),
                target: entry.target.clone(),
                job: entry.job.clone(),
                operation,
                outcome,
                ..Self::default()
            },
            None => Self { kind, address: entry.address.clone(), operation, outcome, ..Self::default() },
        }
    }

    /// The same without the target, for reads that still name the job.
    fn by_job(&self) -> Self {
        Self { target: String::new(), ..self.clone() }
    }

    /// The same with less detail, for callers who have used up their entries.
    fn coarse(self) -> Self {
        let operation = if self.user.is_some() { self.operation } else { ANY_OPERATION.to_owned() };
        Self { kind: self.kind, user: self.user, operation, outcome: self.outcome, ..Self::default() }
    }

    /// The bound that the entry counts to.
    fn owner(&self) -> (Option<String>, CountedKind) {
        (self.user.clone(), self.kind)
    }

    fn overflow() -> Self {
        Self { operation: ANY_OPERATION.to_owned(), outcome: "refused".to_owned(), ..Self::default() }
    }

    /// Shows in an entry what the key tells apart, and of a known user the token and the address of the first request.
    fn strip(&self, entry: NewAudit) -> NewAudit {
        let is_full = *self == Self::of(&entry, self.kind);
        if is_full {
            return entry;
        }
        let is_known = self.user.is_some();
        NewAudit {
            user: self.user.clone(),
            token: entry.token.filter(|_| is_known),
            address: entry.address.filter(|_| is_known),
            // The owner of the job.
            detail: entry.detail.filter(|_| self.job.is_some()),
            job: self.job.clone(),
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
    /// How many are open, by user and kind.
    by_user: HashMap<(Option<String>, CountedKind), usize>,
}

impl Tally {
    /// Counts a request. Returns the row to write if it is the first of its kind.
    pub fn count(&mut self, entry: NewAudit, kind: CountedKind, now: Instant) -> Option<NewAudit> {
        let key = self.key(&entry, kind);
        if let Some(counted) = self.open.get_mut(&key) {
            counted.count += 1;
            return None;
        }
        let entry = key.strip(entry);
        *self.by_user.entry(key.owner()).or_default() += 1;
        self.ends.push_back((now + WINDOW, key.clone()));
        self.open.insert(key, entry.clone());
        Some(entry)
    }

    /// Forgets an entry whose first row was not written.
    pub fn forget(&mut self, entry: &NewAudit, kind: CountedKind) {
        let key = self.key(entry, kind);
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
        if let Some(open) = self.by_user.get_mut(&key.owner()) {
            *open -= 1;
            if *open == 0 {
                self.by_user.remove(&key.owner());
            }
        }
        // Outcomes are counted as entries of their own.
        Some(entry).filter(|entry| entry.count > 1 && entry.outcome != STARTED)
    }

    fn key(&self, entry: &NewAudit, kind: CountedKind) -> Key {
        let full = Key::of(entry, kind);
        let is_open = |key: &Key| self.open.contains_key(key);
        let most = match (kind, &full.user) {
            (_, None) => STRANGERS,
            (CountedKind::Refusal, Some(_)) => PER_USER,
            (CountedKind::ForeignRead, Some(_)) => READS,
        };
        let open = self.by_user.get(&full.owner()).copied().unwrap_or(0);
        let has_room = |most| open < most && self.open.len() < TOTAL;
        if is_open(&full) || has_room(most) {
            return full;
        }
        if kind == CountedKind::ForeignRead && full.job.is_some() {
            let by_job = full.by_job();
            if is_open(&by_job) || has_room(READS_BY_JOB) {
                return by_job;
            }
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
        assert_eq!(
            tally.count(ada.clone(), CountedKind::Refusal, now),
            Some(ada.clone()),
            "the first is written at once"
        );
        for last in 0..50 {
            assert_eq!(
                tally.count(refusal(Some("ada"), &format!("10.0.0.{last}"), "/a"), CountedKind::Refusal, now),
                None
            );
        }
        assert!(tally.count(refusal(Some("ada"), "10.0.0.1", "/b"), CountedKind::Refusal, now).is_some());
        assert_eq!(tally.expire(now + WINDOW / 2), []);
        let counted = tally.expire(now + WINDOW);
        assert_eq!(counted, [NewAudit { count: 51, ..ada.clone() }], "a single one needs no second row");
        assert!(tally.next_due().is_none());
        assert!(tally.count(ada, CountedKind::Refusal, now + WINDOW).is_some(), "a new window");
    }

    #[test]
    fn a_flood_gives_a_bounded_number_of_rows() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        let mut rows = 0;
        for number in 0..100_000_u32 {
            let (address, target) = (format!("2001:db8::{number:x}"), format!("/{number}"));
            rows += usize::from(
                tally.count(refusal(None, &address, &target), CountedKind::Refusal, now).is_some(),
            );
            rows += usize::from(
                tally.count(refusal(Some("eve"), &address, &target), CountedKind::Refusal, now).is_some(),
            );
        }
        assert!(rows <= STRANGERS + PER_USER + 2, "{rows}");
        // Another user still has entries with full detail.
        let bob = refusal(Some("bob"), "10.0.0.1", "/b");
        assert_eq!(tally.count(bob.clone(), CountedKind::Refusal, now), Some(bob));
        let counted: u64 = tally.expire_all().iter().map(|entry| entry.count).sum();
        assert_eq!(counted, 200_000 - (STRANGERS + PER_USER) as u64, "none is lost");
    }

    #[test]
    fn a_read_begins_once_in_a_window_unless_its_row_was_not_written() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        let begun = NewAudit { outcome: STARTED.into(), ..refusal(Some("root"), "10.0.0.1", "/a") };
        let done = NewAudit { outcome: "done".into(), ..begun.clone() };
        assert!(tally.count(begun.clone(), CountedKind::ForeignRead, now).is_some());
        tally.forget(&begun, CountedKind::ForeignRead);
        assert!(tally.count(begun.clone(), CountedKind::ForeignRead, now).is_some(), "it is tried again");
        assert!(tally.count(done.clone(), CountedKind::ForeignRead, now).is_some());
        assert!(
            tally.count(begun, CountedKind::ForeignRead, now).is_none()
                && tally.count(done.clone(), CountedKind::ForeignRead, now).is_none()
        );
        assert_eq!(
            tally.expire(now + WINDOW),
            [NewAudit { count: 2, ..done }],
            "the outcome is the last row"
        );
        assert!(tally.open.is_empty() && tally.by_user.is_empty() && tally.ends.is_empty());
    }

    #[test]
    fn refusals_hide_neither_reads_nor_the_token_of_the_caller() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        let with_token = |entry| NewAudit { token: Some("tok_1".into()), ..entry };
        let mut last = None;
        for number in 0..1000 {
            let refused = with_token(refusal(Some("lead"), "10.0.0.1", &format!("/{number}")));
            last = tally.count(refused, CountedKind::Refusal, now).or(last);
        }
        let last = last.unwrap();
        assert_eq!((last.target.as_str(), last.token.as_deref()), ("", Some("tok_1")), "it has less detail");
        assert_eq!(last.address.as_deref(), Some("10.0.0.1"));
        let read = |job: usize, file: usize| NewAudit {
            job: Some(JobId::from_random(job as u64)),
            detail: Some(serde_json::json!({ "owner": "ada" })),
            outcome: "done".into(),
            ..with_token(refusal(Some("lead"), "10.0.0.1", &format!("/{job}/{file}")))
        };
        let first = tally.count(read(0, 0), CountedKind::ForeignRead, now);
        assert_eq!(first, Some(read(0, 0)), "in full detail");
        for file in 1..READS {
            tally.count(read(0, file), CountedKind::ForeignRead, now);
        }
        let next = tally.count(read(1, 0), CountedKind::ForeignRead, now);
        let request = read(1, 0).request;
        assert_eq!(next, Some(NewAudit { target: String::new(), request, ..read(1, 0) }), "names the job");
        assert_eq!(tally.count(read(1, 1), CountedKind::ForeignRead, now), None);
        let rows = (2..5000).filter_map(|job| tally.count(read(job, 0), CountedKind::ForeignRead, now));
        assert_eq!(rows.count(), READS_BY_JOB - READS, "bounded");
    }

    #[test]
    fn many_users_are_bounded_as_well() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        for user in 0..200 {
            for number in 0..100 {
                tally.count(
                    refusal(Some(&format!("u{user}")), "10.0.0.1", &format!("/{number}")),
                    CountedKind::Refusal,
                    now,
                );
            }
        }
        assert!(tally.open.len() <= TOTAL + 1, "{}", tally.open.len());
        assert_eq!(tally.by_user.values().sum::<usize>(), tally.open.len());
    }
}
