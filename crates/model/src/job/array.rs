//! Arrays: a job whose tasks are *lanes*, each of which runs elements one after the other.
//!
//! Lanes come and go on their own, as machines do, and whichever is free takes what is next. An element is always in
//! exactly one place: nobody has it, it waits a while after a failure, a lane was given it, or it is over. Only a mark in
//! the lane's log says that it began or ended, so whoever dies, what is known of an element is what its supervisor wrote.
//!
//! Lanes are given little at a time, so that none is left with much when the others are done, and so that others who wait
//! for room need not wait long: a lane that is given nothing more ends when it has done what it has.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::{Applied, Effect, Ending, Invalid, Job, State};
use crate::Timestamp;
use crate::array::{Element, ElementCounts, ElementState, Grant, Mark, Marked};
use crate::error_line::ErrorLine;
use crate::ranges::Ranges;
use crate::reason::Reason;
use crate::spec::{Array, OnFailure, Retries};
use crate::task::{Placement, Task, TaskEnd};

/// How much work a lane is given at once.
const AHEAD_MICROS: u64 = 1_000_000;
/// The most elements that a lane is given at once, however short they are.
const MOST_AHEAD: u32 = 5000;
/// How often in a row a lane may be lost before it has finished anything, whatever the job's retries.
const BARREN: u32 = 3;

/// What became of an array's elements, and who has the others. Places, not indices: see [`Array`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    total: u32,
    left: Ranges,
    /// Those that failed and are tried again: how often they did.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    tries: BTreeMap<u32, u32>,
    /// Of them, those that wait first.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    resting: BTreeMap<u32, Timestamp>,
    lanes: BTreeMap<u32, Lane>,
    succeeded: u32,
    failed: u32,
    /// How long an element takes, in the mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mean_micros: Option<u64>,
    /// How many lanes failed in a row before they had finished anything.
    #[serde(default)]
    barren: u32,
    /// The error of the first element that failed for good and named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_error: Option<ErrorLine>,
}

/// A task of an array that is not over.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Lane {
    /// How much of its log is accounted for.
    pub offset: u64,
    /// What it was given and has not finished.
    granted: Vec<Grant>,
    /// The number of its last grant.
    grants: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    began: Option<Began>,
    /// It gets nothing more.
    #[serde(default)]
    is_closed: bool,
    /// It alone is to end, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    leaving: Option<Reason>,
    /// How many elements it has finished.
    #[serde(default)]
    finished: u32,
}

/// An element that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Began {
    place: u32,
    at: Timestamp,
    log_from: u64,
}

impl Lane {
    fn outstanding(&self) -> u32 {
        self.granted.iter().map(|grant| grant.places.len()).sum()
    }

    /// Takes an element off its list; whether it had it.
    fn tick_off(&mut self, place: u32) -> bool {
        let had = self.granted.iter_mut().any(|grant| grant.places.remove(place));
        // What says that nothing more comes is kept until the lane has ended.
        self.granted.retain(|grant| grant.last || !grant.places.is_empty());
        had
    }

    fn give(&mut self, places: Ranges, last: bool) -> Grant {
        self.grants += 1;
        self.is_closed |= last;
        let grant = Grant { number: self.grants, places, last };
        self.granted.push(grant.clone());
        grant
    }
}

impl Progress {
    /// All of it is yet to be done.
    pub fn new(total: u32) -> Self {
        Self {
            total,
            left: Ranges::first(total),
            tries: BTreeMap::new(),
            resting: BTreeMap::new(),
            lanes: BTreeMap::new(),
            succeeded: 0,
            failed: 0,
            mean_micros: None,
            barren: 0,
            first_error: None,
        }
    }

    /// How many elements are how.
    pub fn counts(&self) -> ElementCounts {
        let running = self.lanes.values().filter(|lane| lane.began.is_some()).count() as u32;
        let (total, succeeded, failed) = (self.total, self.succeeded, self.failed);
        ElementCounts { total, succeeded, failed, running, waiting: total - succeeded - failed - running }
    }

    /// The lane of a rank, if its task is not over.
    pub fn lane(&self, rank: u32) -> Option<&Lane> {
        self.lanes.get(&rank)
    }

    /// What a lane was given and has not finished: to be said again to whoever may have missed it.
    pub fn granted(&self, rank: u32) -> Vec<Grant> {
        self.lanes.get(&rank).map(|lane| lane.granted.clone()).unwrap_or_default()
    }

    /// The elements that run, by index.
    pub fn running(&self, array: &Array, attempt_of: impl Fn(u32) -> u32) -> Vec<Element> {
        let running = self.lanes.iter().filter_map(|(rank, lane)| {
            let began = lane.began.as_ref()?;
            Some(Element {
                index: array.index(began.place)?,
                state: ElementState::Running,
                tries: 1 + self.tries.get(&began.place).copied().unwrap_or(0),
                attempt: attempt_of(*rank),
                rank: *rank,
                started_at: began.at,
                ended_at: None,
                failure: None,
                log_from: began.log_from,
                log_to: None,
            })
        });
        let mut running: Vec<Element> = running.collect();
        running.sort_by_key(|element| element.index);
        running
    }

    /// The places of elements that wait, from one on and in order; those that run are among them.
    pub fn unfinished_from(&self, place: u32) -> impl Iterator<Item = u32> + '_ {
        let mut all = self.left.clone();
        self.resting.keys().for_each(|place| all.insert(*place));
        self.lanes.values().flat_map(|lane| &lane.granted).for_each(|grant| all.extend(&grant.places));
        let all: Vec<u32> = all.from(place).collect();
        all.into_iter()
    }

    fn is_done(&self) -> bool {
        self.succeeded + self.failed == self.total
    }

    /// Lets those go on that have waited long enough.
    fn wake(&mut self, now: Timestamp) {
        let due: Vec<u32> =
            self.resting.iter().filter(|(_, at)| **at <= now).map(|(place, _)| *place).collect();
        for place in due {
            self.resting.remove(&place);
            self.left.insert(place);
        }
    }

    pub(super) fn move_waits(&mut self, by: SignedDuration) {
        self.resting.values_mut().for_each(|at| *at += by);
    }

    pub(super) fn limit_waits(&mut self, retries: &Retries, now: Timestamp) {
        for (place, at) in &mut self.resting {
            let tries = self.tries.get(place).copied().unwrap_or(0);
            *at = (*at).min(now + retries.delay(tries));
        }
    }

    /// How often its lanes or one of its elements were tried again, at most.
    pub(super) fn retried(&self) -> u32 {
        self.tries.values().copied().max().unwrap_or(0).max(self.barren)
    }

    /// What is next for a lane: as much as takes about a second, and never more than its part of what is left.
    fn share(&self) -> u32 {
        let lanes = (self.lanes.len() as u32).max(1);
        self.left.len().div_ceil(2 * lanes).min(self.ahead()).max(1)
    }

    /// How many elements take about a second; one, while that is not known.
    fn ahead(&self) -> u32 {
        let by_time = self.mean_micros.map_or(1, |mean| AHEAD_MICROS / mean.max(1));
        u32::try_from(by_time).unwrap_or(MOST_AHEAD).clamp(1, MOST_AHEAD)
    }

    /// Gives a lane more before it runs dry, or tells it that nothing more comes.
    fn top_up(&mut self, rank: u32, is_crowded: bool) -> Option<Grant> {
        let (share, ahead) = (self.share(), self.ahead());
        let lane = self.lanes.get_mut(&rank)?;
        if lane.is_closed || lane.outstanding() * 2 > ahead - ahead % 2 {
            return None;
        }
        // One that has only just come is to have done something before it makes room.
        if is_crowded && lane.grants > 0 {
            return Some(lane.give(Ranges::default(), true));
        }
        let places = self.left.take(share);
        let is_last = self.left.is_empty();
        Some(lane.give(places, is_last))
    }

    fn measure(&mut self, micros: u64) {
        // The last twenty or so count: what comes next is most like them.
        self.mean_micros = Some(self.mean_micros.map_or(micros, |mean| (mean * 19 + micros) / 20).max(1));
    }

    /// An element is over: how it is now, and how often it has run.
    fn settle(
        &mut self,
        place: u32,
        failure: Option<&Reason>,
        retries: &Retries,
        now: Timestamp,
    ) -> (ElementState, u32) {
        let before = self.tries.remove(&place).unwrap_or(0);
        let tries = before + 1;
        match failure {
            None => {
                self.succeeded += 1;
                (ElementState::Succeeded, tries)
            }
            Some(reason) if tries <= retries.max && retries.allows(reason) => {
                self.tries.insert(place, tries);
                match retries.delay(tries) {
                    delay if delay.is_zero() => self.left.insert(place),
                    delay => drop(self.resting.insert(place, now + delay)),
                }
                (ElementState::Waiting, tries)
            }
            Some(reason) => {
                self.failed += 1;
                if let (None, Reason::ExitCode { error, .. }) = (&self.first_error, reason) {
                    self.first_error.clone_from(error);
                }
                (ElementState::Failed, tries)
            }
        }
    }
}

impl Job {
    /// How many more lanes would have something to do.
    pub fn lanes_wanted(&self) -> u32 {
        let (Some(progress), Some(array)) = (&self.array, &self.policy.array) else { return 0 };
        match self.state {
            State::Queued | State::Starting | State::Running if !self.hold => {
                (array.lanes().saturating_sub(progress.lanes.len() as u32)).min(progress.left.len())
            }
            State::Queued
            | State::Starting
            | State::Running
            | State::Stopping
            | State::Succeeded
            | State::Failed
            | State::Stopped
            | State::Suspended => 0,
        }
    }

    /// The rank that the next lane gets.
    pub fn next_lane(&self) -> u32 {
        let free = self.tasks.iter().position(|task| task.is_over());
        free.unwrap_or(self.tasks.len()) as u32
    }

    /// Whether one lane alone was told to end.
    pub fn is_leaving(&self, rank: u32) -> bool {
        self.leaving(rank).is_some()
    }

    pub(super) fn leaving(&self, rank: u32) -> Option<&Reason> {
        self.array.as_ref()?.lanes.get(&rank)?.leaving.as_ref()
    }

    /// A lane has a place. What it does first is written down with that.
    pub(super) fn start_lane(
        &mut self,
        rank: u32,
        placement: Placement,
        now: Timestamp,
    ) -> Result<Applied, Invalid> {
        let is_free = self.tasks.get(rank as usize).is_none_or(|task| task.is_over());
        match self.state {
            State::Queued | State::Starting | State::Running if !self.hold => {}
            _ => return self.refuse(),
        }
        if !is_free || rank as usize > self.tasks.len() {
            return Err(Invalid::UnknownRank { rank });
        }
        if let Some(progress) = &mut self.array {
            progress.wake(now);
        }
        let state = self.state;
        let Some(progress) = self.array.as_mut().filter(|progress| !progress.left.is_empty()) else {
            return Err(Invalid::State { state });
        };
        progress.lanes.insert(rank, Lane::default());
        // Said when it is launched.
        progress.top_up(rank, false);
        self.attempt += 1;
        self.eligible_at = None;
        let task = Task::assigned(self.attempt, placement);
        match self.tasks.get_mut(rank as usize) {
            Some(before) => *before = task,
            None => self.tasks.push(task),
        }
        if self.state == State::Queued {
            self.state = State::Starting;
            self.started_at = None;
        }
        Ok(Applied {
            touched: vec![rank],
            effects: vec![Effect::Prepare { ranks: vec![rank] }],
            ..Applied::default()
        })
    }

    /// Lanes do not wait for each other.
    pub(super) fn after_lane_ready(&self, applied: &mut Applied, rank: u32) {
        let effect = match self.state == State::Stopping || self.is_leaving(rank) {
            true => Effect::Stop { ranks: vec![rank], grace: None },
            false => Effect::Launch { ranks: vec![rank] },
        };
        applied.effects.push(effect);
    }

    pub(super) fn after_lane_started(&mut self, applied: &mut Applied, rank: u32, at: Timestamp) {
        if self.state == State::Stopping || self.is_leaving(rank) {
            applied.effects.push(Effect::Stop { ranks: vec![rank], grace: None });
        } else if self.state == State::Starting {
            self.state = State::Running;
            self.started_at = self.started_at.or(Some(at));
        }
    }

    /// One lane's place is needed: it gives back what it has not finished.
    pub(super) fn on_stop_lane(
        &mut self,
        attempt: u32,
        rank: u32,
        reason: Reason,
    ) -> Result<Applied, Invalid> {
        self.task(attempt, rank)?;
        let lane = self.array.as_mut().and_then(|progress| progress.lanes.get_mut(&rank));
        let lane = lane.filter(|lane| lane.leaving.is_none()).ok_or(Invalid::Stale)?;
        lane.leaving = Some(reason);
        lane.is_closed = true;
        Ok(Applied {
            touched: vec![rank],
            effects: vec![Effect::Stop { ranks: vec![rank], grace: None }],
            ..Applied::default()
        })
    }

    /// What a lane's log says.
    pub(super) fn on_marks(
        &mut self,
        (attempt, rank): (u32, u32),
        marks: Vec<Marked>,
        offset: u64,
        is_crowded: bool,
        now: Timestamp,
    ) -> Result<Applied, Invalid> {
        self.task(attempt, rank)?;
        let is_ending = self.state == State::Stopping || self.is_leaving(rank);
        let Some(progress) = &mut self.array else { return Err(Invalid::Stale) };
        let lane = progress.lanes.get_mut(&rank).filter(|lane| lane.offset < offset).ok_or(Invalid::Stale)?;
        lane.offset = offset;
        let mut applied = Applied::default();
        for marked in marks {
            applied.elements.extend(self.on_mark((attempt, rank), marked, now));
        }
        if let Some(progress) = &mut self.array
            && !is_ending
        {
            progress.wake(now);
            let grant = progress.top_up(rank, is_crowded);
            applied.effects.extend(grant.map(|grant| Effect::Grant { rank, grant }));
        }
        self.stop_after_failure(&mut applied);
        Ok(applied)
    }

    fn on_mark(&mut self, (attempt, rank): (u32, u32), marked: Marked, now: Timestamp) -> Option<Element> {
        let (array, progress) = (self.policy.array.as_ref()?, self.array.as_mut()?);
        match marked.mark {
            Mark::Began { element } => {
                let place = array.place(element)?;
                let lane = progress.lanes.get_mut(&rank)?;
                lane.began = Some(Began { place, at: marked.at, log_from: marked.end });
                None
            }
            Mark::Ended { element, failure, stopped } => {
                let place = array.place(element)?;
                let lane = progress.lanes.get_mut(&rank)?;
                let began = lane.began.take().filter(|began| began.place == place)?;
                if !lane.tick_off(place) {
                    return None;
                }
                let (state, tries) = if stopped {
                    // It was not allowed to finish, which is not its fault. One that saves and says that all went well has
                    // not finished either, as with any job that is told to end. What it wrote can be read until it runs again.
                    progress.left.insert(place);
                    (ElementState::Waiting, 1 + progress.tries.get(&place).copied().unwrap_or(0))
                } else {
                    lane.finished += 1;
                    progress.barren = 0;
                    let micros = marked.at.as_microsecond() - began.at.as_microsecond();
                    progress.measure(u64::try_from(micros).unwrap_or(0));
                    progress.settle(place, failure.as_ref(), &self.policy.retries, now)
                };
                Some(Element {
                    index: element,
                    state,
                    tries,
                    attempt,
                    rank,
                    started_at: began.at,
                    ended_at: Some(marked.at),
                    failure,
                    log_from: began.log_from,
                    log_to: Some(marked.offset),
                })
            }
        }
    }

    /// Where the others are to end with the first that failed, they do.
    fn stop_after_failure(&mut self, applied: &mut Applied) {
        let has_failed = self.array.as_ref().is_some_and(|progress| progress.failed > 0);
        let is_live = matches!(self.state, State::Starting | State::Running);
        if has_failed && is_live && self.policy.on_failure == OnFailure::Stop {
            let reason = self.elements_failed();
            let stopping = self.wind_down(Ending::Fail { reason, retry: false }, None);
            applied.effects.extend(stopping.effects);
        }
    }

    fn elements_failed(&self) -> Reason {
        let counts = self.array.as_ref().map(|progress| progress.counts()).unwrap_or_default();
        let error = self.array.as_ref().and_then(|progress| progress.first_error.clone());
        Reason::ElementsFailed { failed: counts.failed, total: counts.total, error }
    }

    /// A lane is over, and all that its log says is accounted for.
    pub(super) fn after_lane_ended(
        &mut self,
        applied: &mut Applied,
        rank: u32,
        (end, at): (&TaskEnd, Timestamp),
        now: Timestamp,
    ) {
        let is_told = self.state == State::Stopping || self.is_leaving(rank);
        let attempt = self.attempt_of(rank).number;
        let Some(progress) = &mut self.array else { return };
        let Some(mut lane) = progress.lanes.remove(&rank) else { return };
        if let Some(began) = lane.began.take() {
            let reason = end.failure.clone().unwrap_or(Reason::SupervisorLost);
            if !is_told && !reason.requeues() && lane.tick_off(began.place) {
                lane.finished += 1;
                let (state, tries) = progress.settle(began.place, Some(&reason), &self.policy.retries, now);
                applied.elements.extend(
                    self.policy.array.as_ref().and_then(|array| array.index(began.place)).map(|index| {
                        Element {
                            index,
                            state,
                            tries,
                            attempt,
                            rank,
                            started_at: began.at,
                            ended_at: Some(at),
                            failure: Some(reason),
                            log_from: began.log_from,
                            log_to: end.log_bytes,
                        }
                    }),
                );
            }
        }
        lane.granted.iter().for_each(|grant| progress.left.extend(&grant.places));
        if lane.finished == 0 && !is_told {
            self.after_barren_lane(applied, end.failure.clone(), now);
        }
        self.stop_after_failure(applied);
        self.after_last_lane(now);
    }

    /// A lane that has finished nothing: the next may fare no better.
    fn after_barren_lane(&mut self, applied: &mut Applied, failure: Option<Reason>, now: Timestamp) {
        let Some((progress, reason)) = self.array.as_mut().zip(failure) else { return };
        if reason.requeues() {
            return;
        }
        progress.barren += 1;
        let is_its_own = matches!(reason, Reason::SetupFailed { .. } | Reason::PrepareFailed { .. });
        let allowed = self.policy.retries.max + if is_its_own { 0 } else { BARREN };
        if progress.barren > allowed {
            let stopping = self.wind_down(Ending::Fail { reason, retry: false }, None);
            applied.effects.extend(stopping.effects);
        } else {
            self.eligible_at = Some(now + self.policy.retries.delay(progress.barren));
        }
    }

    /// Nobody is left: it is over, or waits for lanes again.
    fn after_last_lane(&mut self, now: Timestamp) {
        let Some(progress) = &mut self.array else { return };
        if !progress.lanes.is_empty() {
            return;
        }
        // Whoever asked it to make room, or to end, came too late for that.
        let is_overtaken = !matches!(self.ending, Some(Ending::Fail { .. }));
        match self.state {
            State::Starting | State::Running | State::Stopping if progress.is_done() && is_overtaken => {
                self.ending = Some(match progress.failed {
                    0 => Ending::Succeed,
                    _ => Ending::Fail { reason: self.elements_failed(), retry: false },
                });
                self.finish(now);
            }
            State::Stopping => self.finish(now),
            State::Starting | State::Running => {
                progress.wake(now);
                let rested = progress.resting.values().min().copied().filter(|_| progress.left.is_empty());
                self.eligible_at = self.eligible_at.max(rested);
                self.state = State::Queued;
            }
            State::Queued | State::Succeeded | State::Failed | State::Stopped | State::Suspended => {}
        }
    }

    #[cfg(test)]
    fn wake_elements(&mut self, now: Timestamp) {
        if let Some(progress) = &mut self.array {
            progress.wake(now);
        }
    }
}

#[cfg(test)]
mod tests;
