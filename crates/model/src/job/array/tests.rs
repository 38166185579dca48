use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::id::{JobId, NodeId};
use crate::job::{Event, Policy};
use crate::task::Address;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn job(array: &str, retries: u32) -> Job {
    let policy = Policy {
        nodes: 1,
        on_failure: OnFailure::Continue,
        retries: Retries { max: retries, ..Retries::default() },
        leader: false,
        independent: true,
        array: Some(std::sync::Arc::new(array.parse().unwrap())),
    };
    Job::new(JobId::from_random(1), policy)
}

fn placement() -> Placement {
    Placement { node: "node_local".parse::<NodeId>().unwrap(), devices: Vec::new() }
}

/// A supervisor as it would be: it does what it was given, in order.
#[derive(Debug, Default, Clone)]
struct Supervisor {
    attempt: u32,
    todo: Vec<u32>,
    seen: BTreeSet<u32>,
    under_way: Option<u32>,
    last: bool,
    log: u64,
}

/// A job, and all that is outside of it.
struct World {
    job: Job,
    lanes: BTreeMap<u32, Supervisor>,
    /// How often each index began, and how each ended for good.
    began: BTreeMap<u32, u32>,
    over: BTreeMap<u32, ElementState>,
    now: i64,
    most_at_once: usize,
}

impl World {
    fn new(array: &str, retries: u32) -> Self {
        let job = job(array, retries);
        Self {
            job,
            lanes: BTreeMap::new(),
            began: BTreeMap::new(),
            over: BTreeMap::new(),
            now: 0,
            most_at_once: 0,
        }
    }

    fn apply(&mut self, event: Event) -> Result<(), Invalid> {
        self.now += 1;
        let applied = self.job.apply(event, at(self.now))?;
        for effect in applied.effects {
            match effect {
                Effect::Launch { ranks } => ranks.into_iter().for_each(|rank| self.launch(rank)),
                Effect::Grant { rank, grant } => self.grant(rank, &grant),
                Effect::Stop { ranks, .. } => ranks.into_iter().for_each(|rank| self.stop(rank)),
                Effect::Prepare { .. } | Effect::Release { .. } | Effect::HandOver => {}
            }
        }
        for element in applied.elements {
            if matches!(element.state, ElementState::Succeeded | ElementState::Failed) {
                assert_eq!(
                    self.over.insert(element.index, element.state),
                    None,
                    "{} ended twice",
                    element.index
                );
            }
        }
        self.check();
        Ok(())
    }

    fn grant(&mut self, rank: u32, grant: &Grant) {
        let array = self.job.policy.array.clone().unwrap();
        let Some(supervisor) = self.lanes.get_mut(&rank) else { return };
        if supervisor.seen.insert(grant.number) {
            supervisor.todo.extend(grant.places.iter().map(|place| array.index(place).unwrap()));
            supervisor.last |= grant.last;
        }
    }

    fn launch(&mut self, rank: u32) {
        for grant in self.job.array.as_ref().unwrap().granted(rank) {
            self.grant(rank, &grant);
        }
        let attempt = self.job.attempt_of(rank).number;
        self.apply(Event::TaskStarted { attempt, rank, at: at(self.now) }).unwrap();
    }

    fn stop(&mut self, rank: u32) {
        if let Some(supervisor) = self.lanes.get_mut(&rank) {
            supervisor.todo.clear();
            supervisor.last = true;
        }
    }

    /// One lane more, if one is wanted.
    fn start(&mut self) {
        if self.job.lanes_wanted() == 0 {
            return;
        }
        let rank = self.job.next_lane();
        if self.apply(Event::StartTask { rank, placement: placement() }).is_ok() {
            let attempt = self.job.attempt_of(rank).number;
            self.lanes.insert(rank, Supervisor { attempt, ..Supervisor::default() });
            let address = Address::new([127, 0, 0, 1], Vec::new());
            self.apply(Event::TaskReady { attempt, rank, address }).unwrap();
        }
    }

    fn marks(&mut self, rank: u32, mark: Mark) {
        let supervisor = self.lanes.get_mut(&rank).unwrap();
        let (offset, attempt) = (supervisor.log, supervisor.attempt);
        supervisor.log += 20;
        let marked = Marked { mark, at: at(self.now), offset, end: offset + 20 };
        let event =
            Event::Marks { attempt, rank, marks: vec![marked], offset: offset + 20, is_crowded: false };
        self.apply(event.clone()).unwrap();
        assert_eq!(self.apply(event), Err(Invalid::Stale), "what was said is said once");
    }

    /// A lane goes on: an element begins or ends, or nothing is left and it ends.
    fn step(&mut self, rank: u32, failure: Option<Reason>) {
        let Some(supervisor) = self.lanes.get_mut(&rank) else { return };
        let is_stopped = self.job.state == State::Stopping || self.job.is_leaving(rank);
        if let Some(element) = supervisor.under_way.take() {
            self.marks(rank, Mark::Ended { element, failure, stopped: is_stopped });
        } else if !supervisor.todo.is_empty() {
            let element = supervisor.todo.remove(0);
            supervisor.under_way = Some(element);
            *self.began.entry(element).or_default() += 1;
            self.marks(rank, Mark::Began { element });
        } else if supervisor.last {
            self.end(rank, None);
        }
    }

    fn end(&mut self, rank: u32, failure: Option<Reason>) {
        let Some(supervisor) = self.lanes.remove(&rank) else { return };
        let end = TaskEnd::new(failure, Some(supervisor.log));
        let event = Event::TaskEnded { attempt: supervisor.attempt, rank, end, at: at(self.now) };
        self.apply(event).unwrap();
    }

    /// Every element is in exactly one place.
    fn check(&mut self) {
        let progress = self.job.array.as_ref().unwrap();
        let array = self.job.policy.array.as_ref().unwrap();
        let mut places: Vec<u32> = progress.left.iter().chain(progress.resting.keys().copied()).collect();
        places.extend(
            progress.lanes.values().flat_map(|lane| &lane.granted).flat_map(|grant| grant.places.iter()),
        );
        places.extend(self.over.keys().map(|index| array.place(*index).unwrap()));
        places.sort_unstable();
        // Within an event, what has just ended is noted after it.
        let all: Vec<u32> = (0..array.count()).collect();
        assert_eq!(places, all);
        let counts = progress.counts();
        assert_eq!(counts.waiting + counts.running + counts.succeeded + counts.failed, counts.total);
        assert!(progress.lanes.len() as u32 <= array.lanes());
        self.most_at_once = self.most_at_once.max(progress.lanes.len());
        let text = serde_json::to_string(progress).unwrap();
        assert_eq!(serde_json::from_str::<Progress>(&text).unwrap(), **progress);
    }

    /// Lets it run to its end, with nothing more going wrong.
    fn finish(&mut self) {
        if self.job.state == State::Suspended {
            self.apply(Event::Resume).unwrap();
        }
        for _ in 0..10_000 {
            if self.job.state.is_terminal() {
                return;
            }
            self.start();
            let ranks: Vec<u32> = self.lanes.keys().copied().collect();
            ranks.into_iter().for_each(|rank| self.step(rank, None));
            if self.job.state == State::Suspended {
                self.apply(Event::Resume).unwrap();
            }
            self.now += 1;
            self.job.wake_elements(at(self.now));
        }
        panic!("it does not end: {:?}", self.job);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Start,
    Go { lane: u32, fails: bool },
    Lose { lane: u32 },
    StopLane { lane: u32 },
    Suspend,
    Resume,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Start),
        20 => (0u32..4, prop::bool::weighted(0.2)).prop_map(|(lane, fails)| Step::Go { lane, fails }),
        1 => (0u32..4).prop_map(|lane| Step::Lose { lane }),
        1 => (0u32..4).prop_map(|lane| Step::StopLane { lane }),
        1 => Just(Step::Suspend),
        2 => Just(Step::Resume),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_element_runs_to_its_end_once_whatever_happens_to_lanes(
        count in 1u32..40,
        at_once in 1u32..5,
        retries in 0u32..3,
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut world = World::new(&format!("1-{count}%{at_once}"), retries);
        for step in steps {
            let attempt = |world: &World, lane| world.job.attempt_of(lane).number;
            match step {
                Step::Start => world.start(),
                Step::Go { lane, fails } => {
                    world.step(lane, fails.then_some(Reason::exited(1)));
                }
                Step::Lose { lane } => world.end(lane, Some(Reason::SupervisorLost)),
                Step::StopLane { lane } => {
                    let (attempt, reason) = (attempt(&world, lane), Reason::Preempted);
                    let _ = world.apply(Event::StopLane { attempt, rank: lane, reason });
                }
                Step::Suspend => drop(world.apply(Event::Suspend)),
                Step::Resume => drop(world.apply(Event::Resume)),
            }
        }
        world.finish();
        let progress = world.job.array.clone().unwrap();
        prop_assert!(world.most_at_once as u32 <= at_once);
        prop_assert!(progress.lanes.is_empty());
        // Lanes that are lost before they have done anything may end all of it.
        if progress.is_done() {
            prop_assert_eq!(world.over.len() as u32, count);
            let failed = world.over.values().filter(|state| **state == ElementState::Failed).count() as u32;
            prop_assert_eq!(failed, progress.failed);
            prop_assert_eq!(world.job.state == State::Succeeded, failed == 0);
        } else {
            prop_assert_eq!(world.job.reason.clone(), Some(Reason::SupervisorLost));
        }
    }
}

#[test]
fn an_array_of_short_elements_is_given_out_in_pieces_that_take_about_a_second() {
    let mut progress = Progress::new(10_000);
    progress.lanes.insert(0, Lane::default());
    progress.lanes.insert(1, Lane::default());
    assert_eq!(progress.top_up(0, false).unwrap().places.len(), 1, "nobody knows yet how long one takes");
    assert_eq!(progress.top_up(0, false), None);
    progress.lanes.get_mut(&0).unwrap().tick_off(0);
    progress.measure(1000);
    assert_eq!(progress.top_up(0, false).unwrap().places.len(), 1000);
    assert_eq!(progress.top_up(0, false), None, "it has enough");
    // Towards the end it is the lane's part of what is left.
    progress.left = Ranges::first(100);
    progress.lanes.get_mut(&0).unwrap().granted.clear();
    assert_eq!(progress.top_up(0, false).unwrap().places.len(), 25);
}

#[test]
fn a_lane_gets_nothing_more_while_others_wait_but_what_it_has_first() {
    let mut progress = Progress::new(100);
    progress.lanes.insert(0, Lane::default());
    assert_eq!(progress.top_up(0, true).unwrap().places.len(), 1);
    progress.lanes.get_mut(&0).unwrap().tick_off(0);
    let grant = progress.top_up(0, true).unwrap();
    assert_eq!((grant.places.len(), grant.last), (0, true));
    assert_eq!(progress.top_up(0, false), None);
}

#[test]
fn a_failed_element_rests_before_it_is_tried_again_and_the_job_with_it() {
    let mut world = World::new("7", 1);
    world.job.policy.retries.backoff = Some(Duration::from_secs(60));
    world.start();
    world.step(0, None);
    world.step(0, Some(Reason::exited(2)));
    world.step(0, None);
    assert_eq!((world.job.state, world.job.lanes_wanted()), (State::Queued, 0));
    let until = world.job.eligible_at.unwrap();
    world.job.wake_elements(until);
    assert_eq!(world.job.lanes_wanted(), 1);
    world.finish();
    assert_eq!((world.job.state, world.began[&7]), (State::Succeeded, 2));
}

#[test]
fn a_setup_that_fails_ends_the_array_and_not_only_its_lane() {
    let mut world = World::new("1-10%2", 0);
    world.start();
    world.start();
    world.end(0, Some(Reason::SetupFailed { exit_code: 3 }));
    assert_eq!(world.job.state, State::Stopping);
    world.end(1, None);
    assert_eq!(
        (world.job.state, world.job.reason),
        (State::Failed, Some(Reason::SetupFailed { exit_code: 3 }))
    );
}

#[test]
fn one_failure_ends_all_where_the_job_says_so() {
    let mut world = World::new("1-10%1", 0);
    world.job.policy.on_failure = OnFailure::Stop;
    world.start();
    world.step(0, None);
    world.step(0, Some(Reason::exited(2)));
    assert_eq!(world.job.state, State::Stopping);
    world.end(0, None);
    assert_eq!(world.job.reason, Some(Reason::ElementsFailed { failed: 1, total: 10, error: None }));
}

#[test]
fn the_job_names_the_error_of_the_first_element_that_failed_for_good() {
    let mut world = World::new("1-2%1", 1);
    let mut first = None;
    for _ in 0..100 {
        world.start();
        let Some((rank, lane)) = world.lanes.iter().next() else { break };
        let (rank, under_way) = (*rank, lane.under_way);
        let tries = under_way.map_or(0, |index| world.began[&index]);
        let error = format!("ValueError: element {under_way:?}, try {tries}");
        if tries == 2 {
            first.get_or_insert(error.clone());
        }
        world.step(rank, Some(Reason::ExitCode { exit_code: 1, error: ErrorLine::new(&error) }));
    }
    let error = ErrorLine::new(&first.unwrap());
    let message = format!("2 of 2 elements failed; the first error: {}", error.as_ref().unwrap());
    let reason = Reason::ElementsFailed { failed: 2, total: 2, error };
    assert_eq!(reason.message(), message);
    assert_eq!(world.job.reason, Some(reason));
}
