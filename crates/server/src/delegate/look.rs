//! When to look at an engine's allocations, and what to tell of what was seen.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use muster_engine::{Error, Key, Observed, Status};
use muster_model::AttemptId;
use tokio::time::{sleep, timeout};

use super::{Delegate, Done, GangTarget, News, Open, Submitter, find};
use crate::keeper::{silent, words};

/// How often to look when nothing happens. Agents say by themselves what matters; this is for what nobody tells.
const EVERY: Duration = Duration::from_secs(10);
/// How soon what was handed over is looked at: what has not begun by then says why it waits.
const SOON: Duration = Duration::from_secs(1);
/// Looks are this far apart, however much is asked: many who ask at once share one.
const GAP: Duration = Duration::from_millis(500);
/// How soon a look that failed is repeated.
const AGAIN: Duration = Duration::from_secs(3);
/// A scheduler under load takes its time.
const LOOK: Duration = Duration::from_secs(60);

/// When the allocations of an account are looked at.
#[derive(Debug, Default)]
pub(super) struct Looks {
    is_looking: bool,
    /// Somebody asked after the look that goes on had begun.
    is_asked: bool,
    ended_at: Option<Instant>,
    /// When the next one is due.
    due_at: Option<Instant>,
    /// Which time counts: every change sets a new one.
    round: u64,
}

/// A look.
#[derive(Debug)]
pub(super) struct Look {
    submitter: Submitter,
    asked: Vec<(AttemptId, GangTarget)>,
    number: u64,
    /// It is at those that the engine named, and not at all.
    is_part: bool,
}

impl Delegate<'_> {
    /// Somebody waits for an answer about this allocation.
    pub(super) fn look_soon(&mut self, attempt: &AttemptId) {
        let Some(open) = self.open.get_mut(attempt) else { return };
        open.is_asked = true;
        let submitter = open.target.submitter();
        let looks = self.looks.entry(submitter.clone()).or_default();
        if looks.is_looking {
            looks.is_asked = true;
            return;
        }
        let wait = looks.ended_at.map_or(Duration::ZERO, |at| GAP.saturating_sub(at.elapsed()));
        self.set_time(submitter, wait);
    }

    /// There is something new to look at; many that come at once share a look.
    pub(super) fn look_in_time(&mut self, attempt: &AttemptId) {
        let Some(submitter) = self.open.get(attempt).map(|open| open.target.submitter()) else { return };
        let looks = self.looks.entry(submitter.clone()).or_default();
        let is_due = looks.due_at.is_some_and(|at| at <= Instant::now() + SOON);
        if !is_due && !looks.is_looking {
            self.set_time(submitter, SOON);
        }
    }

    fn set_time(&mut self, submitter: Submitter, wait: Duration) {
        let looks = self.looks.entry(submitter.clone()).or_default();
        looks.due_at = Some(Instant::now() + wait);
        looks.round += 1;
        let round = looks.round;
        self.work.push(Box::pin(async move {
            sleep(wait).await;
            Done::Time(submitter, round)
        }));
    }

    pub(super) fn on_time(&mut self, submitter: Submitter, round: u64) {
        let Some(looks) = self.looks.get_mut(&submitter).filter(|looks| looks.round == round) else { return };
        looks.due_at = None;
        let is_its = |open: &Open| open.target.submitter() == submitter && open.is_there();
        let there = self.open.iter().filter(|(_, open)| is_its(open));
        let asked: Vec<_> = there.map(|(attempt, open)| (attempt.clone(), open.target.clone())).collect();
        // The next one that comes sets the time anew.
        if asked.is_empty() {
            return;
        }
        looks.is_looking = true;
        looks.is_asked = false;
        self.look(submitter, asked, false);
    }

    fn look(&mut self, submitter: Submitter, asked: Vec<(AttemptId, GangTarget)>, is_part: bool) {
        self.begun += 1;
        let look = Look { submitter, asked, number: self.begun, is_part };
        let shared = self.shared;
        self.work.push(Box::pin(async move {
            let keys: Vec<Key> = look.asked.iter().map(|(attempt, target)| target.key(attempt)).collect();
            let looked = async {
                let late = |_| Err(Error::retryable("ask what became of jobs", silent()));
                let engine = find(shared, look.submitter.engine)?;
                timeout(LOOK, engine.status(&keys)).await.unwrap_or_else(late)
            };
            let result = looked.await;
            Done::Look(look, result)
        }));
    }

    /// Hears from an engine what is new, from when it first has something of ours.
    pub(super) fn listen(&mut self, engine: &'static str) {
        let Ok(found) = find(self.shared, engine) else { return };
        if self.listening.insert(engine) {
            self.work.push(Box::pin(async move { Done::Changed(engine, found.changed().await) }));
        }
    }

    /// What is new is looked at as it is said. Meanwhile the engine gathers what comes after.
    pub(super) fn on_changed(&mut self, engine: &'static str, keys: Vec<Key>) {
        let open = |key| match key {
            Key::Gang { attempt, .. } => {
                let open = self.open.get(&attempt).filter(|open| open.is_there())?;
                Some((attempt, open.target.clone()))
            }
            Key::Node(_) => None,
        };
        let asked: Vec<_> = keys.into_iter().filter_map(open).collect();
        if asked.is_empty() {
            return self.hear_again(engine);
        }
        self.look(Submitter { engine, account: None }, asked, true);
    }

    fn hear_again(&mut self, engine: &'static str) {
        self.listening.remove(engine);
        self.listen(engine);
    }

    pub(super) fn on_looked(&mut self, look: Look, result: Result<Vec<Observed>, Error>) {
        let Look { submitter, asked, number, is_part } = look;
        if is_part {
            // Whether all is well is for the look at all to say.
            self.report_all(asked, result.unwrap_or_default(), number, true);
            return self.hear_again(submitter.engine);
        }
        let looks = self.looks.entry(submitter.clone()).or_default();
        looks.is_looking = false;
        looks.ended_at = Some(Instant::now());
        // Whoever asked while this went on may want to know what happened after it had begun.
        let is_asked_again = looks.is_asked;
        let observed = match result {
            Ok(observed) => observed,
            Err(error) => {
                let trouble = words(&error);
                let places: BTreeSet<GangTarget> = asked.into_iter().map(|(_, target)| target).collect();
                places.iter().for_each(|place| self.shared.troubles.set(place, Some(&trouble)));
                return self.set_time(submitter, AGAIN);
            }
        };
        let is_any_unanswered = self.report_all(asked, observed, number, is_asked_again);
        // What was handed over while it went on was not in it.
        let is_unseen = |open: &Open| {
            open.target.submitter() == submitter
                && open.is_there()
                && open.said.is_none()
                && !is_any_unanswered
        };
        let wait = match (is_asked_again, self.open.values().any(is_unseen)) {
            (true, _) => GAP,
            (false, true) => SOON,
            (false, false) if is_any_unanswered => AGAIN,
            (false, false) => EVERY,
        };
        self.set_time(submitter, wait);
    }

    /// Tells what was seen, and says whether somebody did not answer.
    fn report_all(
        &mut self,
        asked: Vec<(AttemptId, GangTarget)>,
        observed: Vec<Observed>,
        number: u64,
        stays_asked: bool,
    ) -> bool {
        let mut troubles: BTreeMap<GangTarget, Option<String>> = BTreeMap::new();
        for ((attempt, target), observed) in asked.into_iter().zip(observed) {
            let trouble = troubles.entry(target).or_default();
            match observed.status {
                Status::Unanswered(message) => *trouble = Some(message),
                _ => self.report(attempt, observed, number, stays_asked),
            }
        }
        for (target, trouble) in &troubles {
            self.shared.troubles.set(target, trouble.as_deref());
        }
        troubles.into_values().any(|trouble| trouble.is_some())
    }

    /// Tells what is new, and whoever asked what is not.
    fn report(&mut self, attempt: AttemptId, observed: Observed, number: u64, stays_asked: bool) {
        let Some(open) = self.open.get_mut(&attempt).filter(|open| open.is_there()) else { return };
        if open.seen > number || open.said.as_ref() == Some(&observed) && !open.is_asked {
            return;
        }
        open.seen = number;
        open.is_asked &= stays_asked;
        open.said = Some(observed.clone());
        self.news.push((attempt, News::Observed(observed)));
    }
}
