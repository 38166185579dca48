//! The state machine: a table over every state and event, properties over random lives, and the stories that matter.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

mod member;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn job(nodes: u32, on_failure: OnFailure, retries: Retries) -> Job {
    let policy = Policy { nodes, on_failure, retries, leader: false, independent: false, array: None };
    Job::new(JobId::from_random(7), policy)
}

/// A group of machines: each is on its own.
fn group(nodes: u32) -> Job {
    let mut group = job(nodes, OnFailure::Stop, Retries::default());
    group.policy.independent = true;
    group
}

fn pair() -> Job {
    job(2, OnFailure::Stop, Retries::default())
}

fn admit(nodes: u32) -> Event {
    let place = |i| Placement { node: format!("node_n{i}").parse().unwrap(), devices: vec![i] };
    Event::Admit { placements: (0..nodes).map(place).collect() }
}

fn hand_over(nodes: u32) -> Event {
    let place = |i| Placement { node: format!("node_slurm.x.1.{i}").parse().unwrap(), devices: vec![] };
    Event::HandOver { placements: (0..nodes).map(place).collect() }
}

fn seated(attempt: u32, rank: u32) -> Event {
    Event::TaskSeated { attempt, rank, devices: vec![rank, 7] }
}

fn suspend(rank: u32) -> Event {
    Event::StopTask { rank, parting: Parting::Suspend }
}

fn kill(rank: u32) -> Event {
    Event::StopTask { rank, parting: Parting::Stop }
}

fn start_task(rank: u32) -> Event {
    let node = format!("node_n{rank}").parse().unwrap();
    Event::StartTask { rank, placement: Placement { node, devices: vec![rank] } }
}

fn ready(attempt: u32, rank: u32) -> Event {
    let address = Address::new([127, 0, 1, rank as u8], vec![4000 + rank as u16]);
    Event::TaskReady { attempt, rank, address }
}

fn started(attempt: u32, rank: u32) -> Event {
    Event::TaskStarted { attempt, rank, at: NOW }
}

fn ended(attempt: u32, rank: u32, failure: Option<Reason>) -> Event {
    Event::TaskEnded { attempt, rank, end: TaskEnd::new(failure, Some(0)), at: NOW }
}

fn exit(exit_code: i32) -> Option<Reason> {
    Some(Reason::exited(exit_code))
}

const STOP: Event = Event::Stop { grace: None };

/// Applies events that must all be accepted; the effects of the last one come back.
fn run(job: &mut Job, events: impl IntoIterator<Item = Event>) -> Vec<Effect> {
    events.into_iter().fold(Vec::new(), |_, event| job.apply(event, NOW).unwrap().effects)
}

/// Takes a waiting job to `Running`.
fn start(job: &mut Job) {
    let (ranks, attempt) = (job.wanted(), job.attempt + 1);
    run(job, [admit(ranks.len() as u32)]);
    run(job, ranks.iter().map(|rank| ready(attempt, *rank)));
    run(job, ranks.iter().map(|rank| started(attempt, *rank)));
    assert_eq!(job.state, State::Running);
}

fn end_all(job: &mut Job, failure: Option<Reason>) {
    for rank in job.ranks(|task| !task.is_over()) {
        let attempt = job.attempt_of(rank).number;
        run(job, [ended(attempt, rank, failure.clone())]);
    }
}

/// A gang of two that came to this state by a real path.
fn in_state(state: State) -> Job {
    brought_to(state, pair())
}

fn brought_to(state: State, mut job: Job) -> Job {
    match state {
        State::Queued => {}
        State::Starting => drop(run(&mut job, [admit(2)])),
        State::Running => start(&mut job),
        State::Stopping => {
            start(&mut job);
            run(&mut job, [STOP]);
        }
        State::Succeeded => {
            start(&mut job);
            end_all(&mut job, None);
        }
        State::Failed => {
            start(&mut job);
            end_all(&mut job, exit(1));
        }
        State::Stopped => {
            start(&mut job);
            run(&mut job, [STOP]);
            end_all(&mut job, None);
        }
        State::Suspended => {
            start(&mut job);
            run(&mut job, [Event::Suspend]);
            end_all(&mut job, None);
        }
    }
    assert_eq!(job.state, state);
    job
}

/// A gang of two that waits in somebody else's queue.
fn handed_over() -> Job {
    handed(pair())
}

fn handed(mut job: Job) -> Job {
    assert_eq!(run(&mut job, [hand_over(2)]), [Effect::HandOver]);
    assert!(job.is_handed_over() && !job.is_eligible(NOW));
    job
}

/// The columns of the table below. Without a wildcard, so that a new event cannot be left out of it.
fn columns(event: &Event) -> &'static [&'static str] {
    match event {
        Event::Admit { .. } => &["admit"],
        Event::HandOver { .. } => &["handover"],
        Event::TaskSeated { .. } => &["seated"],
        Event::TaskReady { .. } => &["ready"],
        Event::TaskStarted { .. } => &["started"],
        Event::TaskEnded { .. } => &["ended", "failed"],
        Event::Stop { .. } => &["stop"],
        Event::Preempt { .. } => &["preempt"],
        Event::Suspend => &["suspend"],
        Event::Resume => &["resume"],
        Event::StopTask { .. } => &["suspend0", "kill0"],
        Event::StartTask { .. } => &["start0"],
        // Of arrays, which have a table of their own.
        Event::Marks { .. } | Event::StopLane { .. } => &[],
        Event::GiveUp { .. } => &["giveup"],
        Event::Hold => &["hold"],
        Event::Release => &["release"],
    }
}

/// One event for each column, in order; task events speak of rank 0 of the current attempt.
fn every_event(job: &Job) -> Vec<Event> {
    let attempt = job.attempt;
    vec![
        admit(2),
        hand_over(2),
        seated(attempt.max(1), 0),
        ready(attempt.max(1), 0),
        started(attempt.max(1), 0),
        ended(attempt.max(1), 0, None),
        ended(attempt.max(1), 0, exit(3)),
        STOP,
        Event::Preempt { attempt, reason: Reason::Preempted },
        Event::Suspend,
        Event::Resume,
        Event::Hold,
        Event::Release,
        suspend(0),
        kill(0),
        start_task(0),
        Event::GiveUp { reason: Reason::Hung },
    ]
}

/// What each event makes of a gang of two in each state; `handed` is queued, elsewhere. `no` is refused for the state,
/// `stale` as overtaken, `one` since its tasks are not each on their own.
const TABLE: &str = "
           admit     handover  seated    ready     started   ended     failed    stop      preempt   suspend    resume    hold    release  suspend0  kill0  start0  giveup
queued     starting  queued    stale     stale     stale     stale     stale     stopped   no        suspended  queued    queued  queued   one       one    one     failed
handed     no        no        queued    starting  starting  starting  stopping  stopping  stopping  stopping   queued    no      queued   one       one    one     no
starting   no        no        starting  starting  starting  starting  stopping  stopping  stopping  stopping   starting  no      starting one       one    one     no
running    no        no        running   stale     stale     running   stopping  stopping  stopping  stopping   running   no      running  one       one    one     no
stopping   no        no        stopping  stale     stale     stopping  stopping  stopping  no        no         no        no      no       one       one    one     no
succeeded  no        no        stale     stale     stale     stale     stale     no        no        no         no        no      no       one       one    one     no
failed     no        no        stale     stale     stale     stale     stale     no        no        no         no        no      no       one       one    one     no
stopped    no        no        stale     stale     stale     stale     stale     no        no        no         no        no      no       one       one    one     no
suspended  no        no        stale     stale     stale     stale     stale     stopped   no        suspended  queued    no      no       one       one    one     failed
";

/// The same of two machines; `task` is refused for how the task is.
const MACHINES: &str = "
           admit     handover  seated    ready     started   ended     failed    stop      preempt   suspend    resume    hold    release  suspend0  kill0      start0  giveup
queued     starting  queued    stale     stale     stale     stale     stale     stopped   no        suspended  queued    queued  queued   no        no         no      failed
handed     no        no        queued    starting  starting  starting  starting  stopping  stopping  stopping   queued    no      queued   no        no         no      no
starting   no        no        starting  starting  starting  starting  starting  stopping  stopping  stopping   starting  no      starting starting  starting   task    no
running    no        no        running   stale     stale     running   running   stopping  stopping  stopping   running   no      running  running   running    task    no
stopping   no        no        stopping  stale     stale     stopping  stopping  stopping  no        no         no        no      no       no        stopping   no      no
succeeded  no        no        stale     stale     stale     stale     stale     no        no        no         no        no      no       no        no         no      no
failed     no        no        stale     stale     stale     stale     stale     no        no        no         no        no      no       no        no         no      no
stopped    no        no        stale     stale     stale     stale     stale     no        no        no         no        no      no       no        no         no      no
suspended  no        no        stale     stale     stale     stale     stale     stopped   no        suspended  queued    no      no       suspended suspended  starting  failed
";

#[test]
fn every_event_in_every_state_does_what_the_table_says() {
    check_table(TABLE, pair());
    check_table(MACHINES, group(2));
}

fn check_table(table: &str, fresh: Job) {
    let mut lines = table.trim().lines();
    let heads: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    let mut seen = Vec::new();
    for line in lines {
        let mut words = line.split_whitespace();
        let row = words.next().unwrap();
        let job = match row {
            "handed" => handed(fresh.clone()),
            state => brought_to(state.parse().unwrap(), fresh.clone()),
        };
        let state = job.state;
        seen.extend((row != "handed").then_some(state));
        let events = every_event(&job);
        assert_eq!((words.clone().count(), events.len()), (heads.len(), heads.len()));
        for ((head, word), event) in heads.iter().zip(words).zip(events) {
            assert!(columns(&event).contains(head), "{head} is no column for {event:?}");
            let mut after = job.clone();
            let got = match after.apply(event, NOW) {
                Ok(_) => after.state.as_str(),
                Err(Invalid::Stale) => "stale",
                Err(Invalid::State { .. }) => "no",
                Err(Invalid::Together) => "one",
                Err(Invalid::Task { .. }) => "task",
                Err(other) => panic!("{row} + {head}: {other}"),
            };
            assert_eq!(got, word, "{row} + {head}");
        }
    }
    assert_eq!(seen, State::ALL);
}

#[test]
fn a_plan_that_does_not_fill_the_gang_is_refused() {
    let mut job = pair();
    assert_eq!(job.apply(admit(1), NOW), Err(Invalid::WrongGang { nodes: 2, offered: 1 }));
    assert_eq!(job, pair());
}

#[test]
fn a_rank_beyond_the_gang_is_refused() {
    let mut job = in_state(State::Starting);
    assert_eq!(job.apply(ready(1, 2), NOW), Err(Invalid::UnknownRank { rank: 2 }));
}

#[test]
fn a_held_job_is_not_admitted_until_released() {
    let mut job = pair();
    run(&mut job, [Event::Hold]);
    assert!(!job.is_eligible(NOW));
    assert_eq!(job.apply(admit(2), NOW), Err(Invalid::State { state: State::Queued }));
    run(&mut job, [Event::Release]);
    assert!(job.is_eligible(NOW));
    run(&mut job, [admit(2)]);
}

#[test]
fn the_gang_is_launched_once_when_its_last_task_is_ready() {
    let mut job = job(3, OnFailure::Stop, Retries::default());
    assert_eq!(run(&mut job, [admit(3)]), [Effect::Prepare { ranks: vec![0, 1, 2] }]);
    assert_eq!(run(&mut job, [ready(1, 2), ready(1, 0)]), []);
    assert_eq!(run(&mut job, [ready(1, 1)]), [Effect::Launch { ranks: vec![0, 1, 2] }]);
}

#[test]
fn a_task_that_says_ready_again_gets_its_launch_again_alone() {
    let mut job = in_state(State::Starting);
    assert_eq!(run(&mut job, [ready(1, 0), ready(1, 0)]), [], "the gang is not whole yet");
    run(&mut job, [ready(1, 1)]);
    assert_eq!(run(&mut job, [ready(1, 0)]), [Effect::Launch { ranks: vec![0] }]);
    run(&mut job, [started(1, 0)]);
    assert_eq!(job.apply(ready(1, 0), NOW), Err(Invalid::Stale), "it runs: there is nothing to launch");
}

#[test]
fn one_failing_rank_stops_the_gang_and_is_named() {
    let mut job = job(3, OnFailure::Stop, Retries::default());
    start(&mut job);
    let effects = run(&mut job, [ended(1, 1, exit(3))]);
    assert_eq!(effects, [Effect::Release { rank: 1 }, Effect::Stop { ranks: vec![0, 2], grace: None }]);
    assert_eq!(job.state, State::Stopping);
    end_all(&mut job, Some(Reason::Signal { signal: 15 }));
    assert_eq!((job.state, job.failed_rank, job.reason.clone()), (State::Failed, Some(1), exit(3)));
    assert_eq!(job.exit_code(), Some(3), "the first failure counts, not what the stop did to the others");
}

#[test]
fn with_continue_the_others_run_to_their_end() {
    let mut job = job(3, OnFailure::Continue, Retries::default());
    start(&mut job);
    assert_eq!(run(&mut job, [ended(1, 1, exit(3))]), [Effect::Release { rank: 1 }]);
    assert_eq!(job.state, State::Running);
    run(&mut job, [ended(1, 0, None), ended(1, 2, exit(4))]);
    assert_eq!((job.state, job.failed_rank, job.reason.clone()), (State::Failed, Some(1), exit(3)));
}

#[test]
fn with_continue_a_task_that_cannot_start_does_not_keep_the_gang_from_running() {
    let mut job = job(2, OnFailure::Continue, Retries::default());
    run(&mut job, [admit(2), ready(1, 0), ready(1, 1), started(1, 0)]);
    run(&mut job, [ended(1, 1, Some(Reason::CommandNotFound { command: "x".into() }))]);
    assert_eq!(job.state, State::Running);
}

#[test]
fn even_with_continue_a_gang_that_was_never_whole_is_not_launched() {
    for last_words_of_the_other in [vec![ready(1, 0)], vec![]] {
        let mut job = job(2, OnFailure::Continue, Retries::default());
        run(&mut job, [admit(2)]);
        run(&mut job, last_words_of_the_other);
        let effects = run(&mut job, [ended(1, 1, Some(Reason::PrepareFailed { message: "full".into() }))]);
        assert_eq!(effects, [Effect::Release { rank: 1 }, Effect::Stop { ranks: vec![0], grace: None }]);
        assert_eq!(job.state, State::Stopping);
    }
}

#[test]
fn a_failure_is_retried_after_a_pause_that_doubles() {
    let backoff = Some(Duration::from_secs(30));
    let mut job = job(2, OnFailure::Stop, Retries { max: 2, on: vec![], backoff });
    for (attempt, pause) in [(1, 30), (2, 60)] {
        start(&mut job);
        end_all(&mut job, exit(1));
        assert_eq!((job.state, job.attempt, job.retried), (State::Queued, attempt, attempt));
        assert_eq!(job.reason, exit(1));
        let later = NOW + Duration::from_secs(pause);
        assert_eq!(job.eligible_at, Some(later));
        assert!(job.is_eligible(later) && !job.is_eligible(NOW));
    }
    start(&mut job);
    assert_eq!((job.attempt, job.failed_rank, job.eligible_at), (3, None, None));
    end_all(&mut job, exit(1));
    assert_eq!(job.state, State::Failed, "no retries are left");
}

#[test]
fn a_pause_keeps_its_length_when_the_clock_is_set_back() {
    let backoff = Some(Duration::from_secs(30));
    let mut job = job(1, OnFailure::Stop, Retries { max: 2, on: vec![], backoff });
    start(&mut job);
    end_all(&mut job, exit(1));
    let hour = Duration::from_secs(3600);
    let mut noticed = job.clone();
    noticed.move_waits(SignedDuration::from_hours(-1));
    assert_eq!(noticed.eligible_at, Some(NOW - hour + Duration::from_secs(30)));
    // Nobody was there to notice it.
    job.limit_waits(NOW - hour);
    assert_eq!(job.eligible_at, Some(NOW - hour + Duration::from_secs(30)));
    job.limit_waits(NOW);
    assert_eq!(job.eligible_at, Some(NOW - hour + Duration::from_secs(30)), "it only gets shorter");
}

#[test]
fn what_another_attempt_cannot_mend_is_not_retried() {
    let mut job = job(1, OnFailure::Stop, Retries { max: 2, ..Retries::default() });
    start(&mut job);
    end_all(&mut job, Some(Reason::CommandNotFound { command: "pyton".into() }));
    assert_eq!((job.state, job.exit_code()), (State::Failed, Some(127)));
}

#[test]
fn stop_while_failing_keeps_the_failure_and_forgets_the_retry() {
    let mut job = job(2, OnFailure::Stop, Retries { max: 2, ..Retries::default() });
    start(&mut job);
    run(&mut job, [ended(1, 0, exit(3))]);
    let grace = Some(Duration::ZERO);
    assert_eq!(run(&mut job, [Event::Stop { grace }]), [Effect::Stop { ranks: vec![1], grace }]);
    end_all(&mut job, None);
    assert_eq!((job.state, job.failed_rank, job.reason.clone()), (State::Failed, Some(0), exit(3)));
}

#[test]
fn stop_overrules_preemption_and_suspension() {
    for event in [Event::Preempt { attempt: 1, reason: Reason::Preempted }, Event::Suspend] {
        let mut job = in_state(State::Running);
        run(&mut job, [event, STOP]);
        end_all(&mut job, None);
        assert_eq!((job.state, job.reason), (State::Stopped, Some(Reason::StoppedByUser)));
    }
}

#[test]
fn a_preempted_job_waits_again_at_no_cost_to_its_retries() {
    let mut job = in_state(State::Running);
    run(&mut job, [Event::Preempt { attempt: 1, reason: Reason::Preempted }]);
    end_all(&mut job, Some(Reason::Signal { signal: 15 }));
    assert_eq!((job.state, job.retried, job.reason.clone()), (State::Queued, 0, Some(Reason::Preempted)));
    start(&mut job);
    end_all(&mut job, None);
    assert_eq!((job.state, job.attempt, job.reason), (State::Succeeded, 2, None));
}

#[test]
fn a_suspended_job_comes_back_as_a_new_attempt() {
    let mut job = in_state(State::Suspended);
    run(&mut job, [Event::Resume]);
    start(&mut job);
    assert_eq!((job.attempt, job.reason), (2, None));
}

#[test]
fn a_wish_that_is_asked_for_twice_is_done_once() {
    let mut job = in_state(State::Running);
    run(&mut job, [Event::Suspend]);
    assert_eq!(run(&mut job, [Event::Suspend]), [], "nobody is told again");
    end_all(&mut job, None);
    assert_eq!(run(&mut job, [Event::Suspend]), []);
    assert_eq!((job.state, &job.reason), (State::Suspended, &Some(Reason::Suspended)));
    run(&mut job, [Event::Resume, Event::Resume]);
    start(&mut job);
    assert_eq!(run(&mut job, [Event::Resume, Event::Release]), []);
    assert_eq!((job.state, job.attempt), (State::Running, 2));
}

#[test]
fn a_task_that_turns_up_while_the_gang_stops_is_stopped() {
    let mut job = in_state(State::Starting);
    run(&mut job, [ready(1, 0), STOP]);
    let stop = |rank| [Effect::Stop { ranks: vec![rank], grace: None }];
    assert_eq!(run(&mut job, [ready(1, 1)]), stop(1));
    assert_eq!(run(&mut job, [started(1, 0)]), stop(0));
}

/// A step of a random life, made an event of the job it meets.
#[derive(Debug, Clone)]
enum Step {
    Admit {
        offered: u32,
        elsewhere: bool,
    },
    Task {
        kind: u32,
        rank: u32,
        behind: u32,
        failure: Option<Reason>,
    },
    Preempt {
        behind: u32,
    },
    /// One member alone.
    Member {
        kind: u32,
        rank: u32,
    },
    Plain(Event),
}

fn step() -> impl Strategy<Value = Step> {
    let failure = prop::option::weighted(0.2, prop::sample::select(Reason::examples()));
    // Most messages are of the current attempt, or nothing would ever happen.
    let behind = || prop_oneof![9 => Just(0u32), 1 => 1u32..3];
    let plain = prop::sample::select(vec![
        STOP,
        Event::Suspend,
        Event::Resume,
        Event::Hold,
        Event::Release,
        Event::GiveUp { reason: Reason::Hung },
    ]);
    prop_oneof![
        4 => (prop_oneof![9 => Just(0u32), 1 => 1u32..6], any::<bool>())
            .prop_map(|(offered, elsewhere)| Step::Admit { offered, elsewhere }),
        40 => (0u32..4, 0u32..4, behind(), failure)
            .prop_map(|(kind, rank, behind, failure)| Step::Task { kind, rank, behind, failure }),
        1 => behind().prop_map(|behind| Step::Preempt { behind }),
        3 => (0u32..4, 0u32..4).prop_map(|(kind, rank)| Step::Member { kind, rank }),
        1 => plain.prop_map(Step::Plain),
    ]
}

fn event_of(step: Step, job: &Job, launched: &BTreeSet<(u32, u32)>) -> Event {
    match step {
        Step::Admit { offered, elsewhere } => {
            let offered = if offered == 0 { job.wanted().len() as u32 } else { offered };
            if elsewhere { hand_over(offered) } else { admit(offered) }
        }
        Step::Preempt { behind } => {
            Event::Preempt { attempt: job.attempt.saturating_sub(behind), reason: Reason::Preempted }
        }
        Step::Member { kind: 0, rank } => suspend(rank),
        Step::Member { kind: 1, rank } => kill(rank),
        Step::Member { rank, .. } => start_task(rank),
        Step::Plain(event) => event,
        Step::Task { kind, rank, behind, failure } => {
            let attempt = job.attempt_of(rank).number.saturating_sub(behind);
            // Nodes send nonsense late, twice or not at all, but none starts or ends well what it was not told to launch.
            let was_launched = launched.contains(&(attempt, rank));
            match (kind, was_launched, failure) {
                (0, true, _) => started(attempt, rank),
                (1, true, failure) | (1, false, failure @ Some(_)) => ended(attempt, rank, failure),
                (2, ..) => seated(attempt, rank),
                _ => ready(attempt, rank),
            }
        }
    }
}

fn is_of_another_attempt(event: &Event, job: &Job) -> bool {
    match event {
        Event::TaskSeated { attempt, rank, .. }
        | Event::TaskReady { attempt, rank, .. }
        | Event::TaskStarted { attempt, rank, .. }
        | Event::TaskEnded { attempt, rank, .. }
        | Event::Marks { attempt, rank, .. }
        | Event::StopLane { attempt, rank, .. } => *attempt != job.attempt_of(*rank).number,
        Event::Preempt { attempt, .. } => *attempt != job.attempt,
        Event::Admit { .. } | Event::HandOver { .. } | Event::Stop { .. } | Event::Suspend => false,
        Event::StopTask { .. } | Event::StartTask { .. } => false,
        Event::Resume | Event::GiveUp { .. } | Event::Hold | Event::Release => false,
    }
}

/// What the outside has been told so far, by attempt and rank.
#[derive(Default)]
struct Told {
    released: BTreeMap<(u32, u32), u32>,
    launched: BTreeSet<(u32, u32)>,
}

impl Told {
    fn hear(&mut self, job: &Job, effects: &[Effect]) {
        let task = |rank: u32| (job.attempt_of(rank).number, rank);
        for effect in effects {
            match effect {
                Effect::Release { rank } => *self.released.entry(task(*rank)).or_default() += 1,
                Effect::Launch { ranks } => self.launched.extend(ranks.iter().map(|rank| task(*rank))),
                Effect::HandOver | Effect::Prepare { .. } | Effect::Stop { .. } | Effect::Grant { .. } => {}
            }
        }
    }
}

fn check_step(before: &Job, event: &Event, after: &Job, came: &Result<Applied, Invalid>) {
    match came {
        Err(_) => assert_eq!(before, after, "a refused event changes nothing"),
        Ok(applied) => {
            assert!(!before.state.is_terminal(), "nothing leaves a terminal state");
            assert!(!is_of_another_attempt(event, before), "a stale attempt changes nothing");
            assert_eq!(after.generation, before.generation + 1);
            for rank in 0..after.tasks.len() {
                let changed = before.tasks.get(rank) != Some(&after.tasks[rank]);
                assert!(
                    !changed || applied.touched.contains(&(rank as u32)),
                    "the store would miss rank {rank}"
                );
            }
        }
    }
}

fn check_state(job: &Job, told: &Told) {
    let alive = job.ranks(|task| task.phase != TaskPhase::Ended);
    let elsewhere = job.state == State::Queued && !alive.is_empty();
    assert_eq!(
        State::HOLDS_RESOURCES.contains(&job.state) || elsewhere,
        !alive.is_empty(),
        "{:?}",
        job.state
    );
    assert_eq!(job.is_handed_over(), elsewhere);
    let is_silent = |task: &Task| task.phase == TaskPhase::Assigned || task.is_killed();
    assert!(!elsewhere || job.all(is_silent), "it starts with the first word");
    assert_eq!(job.ending.is_some(), job.state == State::Stopping);
    assert_eq!(job.ended_at.is_some(), job.state.is_terminal());
    assert_eq!(job.exit_code().is_some(), job.state.is_terminal());
    assert_eq!(job.tasks.len() as u32, if job.attempt == 0 { 0 } else { job.policy.nodes });
    assert!(job.retried <= job.policy.retries.max);
    if job.state == State::Running && !job.policy.independent {
        assert!(job.all(|task| task.phase >= TaskPhase::Running));
    }
    let is_launched = job.state == State::Running
        || job.state == State::Starting && job.all(|task| task.phase >= TaskPhase::Ready);
    for rank in job.unlaunched().into_iter().filter(|_| is_launched) {
        let attempt = job.attempt_of(rank).number;
        assert!(told.launched.contains(&(attempt, rank)), "rank {rank} would wait for ever");
    }
    if job.state == State::Queued || job.state == State::Suspended {
        assert!(!job.wanted().is_empty(), "somebody is waited for");
    }
    for (rank, task) in (0..).zip(&job.tasks) {
        assert!(task.attempt <= job.attempt && task.attempt > 0);
        assert!(job.policy.independent || task.attempt == job.attempt && task.parting.is_none());
        let released = told.released.get(&(task.attempt, rank)).copied().unwrap_or(0);
        assert_eq!(
            released,
            u32::from(task.phase == TaskPhase::Ended),
            "rank {rank} is released when it ends"
        );
        assert_eq!(task.end.is_some(), task.phase == TaskPhase::Ended);
    }
    assert!(told.released.values().all(|times| *times == 1), "released exactly once");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_life_keeps_the_rules(
        nodes in 1u32..4,
        keep_going: bool,
        independent: bool,
        max in 0u32..3,
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let on_failure = if keep_going { OnFailure::Continue } else { OnFailure::Stop };
        let mut job = job(nodes, on_failure, Retries { max, ..Retries::default() });
        job.policy.independent = independent;
        let mut told = Told::default();
        for step in steps {
            let before = job.clone();
            let event = event_of(step, &job, &told.launched);
            let came = job.apply(event.clone(), NOW);
            check_step(&before, &event, &job, &came);
            told.hear(&job, came.as_ref().map_or(&[], |applied| &applied.effects));
            check_state(&job, &told);
        }
    }
}

#[test]
fn a_gang_with_a_leader_succeeds_when_the_leader_does_whatever_becomes_of_those_who_waited() {
    let mut job = pair();
    job.policy.leader = true;
    start(&mut job);
    let effects = run(&mut job, [ended(1, 0, None)]);
    assert!(effects.contains(&Effect::Stop { ranks: vec![1], grace: None }), "{effects:?}");
    assert_eq!((job.state, &job.ending), (State::Stopping, &Some(Ending::Succeed)));
    // Who asks for a stop now comes too late to change how it ended.
    run(&mut job, [STOP, ended(1, 1, Some(Reason::Signal { signal: 15 }))]);
    assert_eq!((job.state, job.exit_code()), (State::Succeeded, Some(0)));
    assert_eq!(job.reason, None);
}

#[test]
fn a_gang_with_a_leader_fails_with_whoever_fails_first() {
    for first in [0, 1] {
        let mut job = pair();
        job.policy.leader = true;
        start(&mut job);
        run(&mut job, [ended(1, first, exit(3))]);
        end_all(&mut job, None);
        assert_eq!((job.state, job.exit_code()), (State::Failed, Some(3)));
    }
}

#[test]
fn a_resumed_job_goes_back_to_its_nodes_and_a_failed_one_does_not() {
    let mut parked = in_state(State::Suspended);
    assert_eq!(parked.preferred(), []);
    run(&mut parked, [Event::Resume]);
    let nodes: Vec<String> = parked.preferred().iter().map(ToString::to_string).collect();
    assert_eq!(nodes, ["node_n0", "node_n1"]);
    start(&mut parked);
    assert_eq!(parked.preferred(), []);
    let mut job = job(2, OnFailure::Stop, Retries { max: 1, on: vec![], backoff: None });
    start(&mut job);
    end_all(&mut job, exit(1));
    assert_eq!((job.state, job.preferred()), (State::Queued, vec![]));
}

#[test]
fn whoever_is_suspended_on_the_way_back_to_the_queue_stays_out_of_it() {
    let mut job = in_state(State::Running);
    run(&mut job, [Event::Preempt { attempt: 1, reason: Reason::Preempted }, Event::Suspend]);
    end_all(&mut job, None);
    assert_eq!(job.state, State::Suspended);
}

#[test]
fn a_resumed_job_does_not_wait_out_the_pause_of_its_last_failure() {
    let backoff = Some(Duration::from_secs(3600));
    let mut job = job(1, OnFailure::Stop, Retries { max: 1, on: vec![], backoff });
    start(&mut job);
    end_all(&mut job, exit(1));
    assert!(!job.is_eligible(NOW));
    run(&mut job, [Event::Suspend, Event::Resume]);
    assert!(job.is_eligible(NOW));
}

#[test]
fn a_gang_that_was_handed_over_starts_when_its_first_agent_is_ready_and_runs_as_any_other() {
    let mut job = handed_over();
    run(&mut job, [seated(1, 0), seated(1, 1)]);
    assert_eq!((job.state, &job.tasks[1].placement.devices), (State::Queued, &vec![1, 7]));
    assert_eq!(run(&mut job, [ready(1, 1)]), []);
    assert_eq!(job.state, State::Starting);
    assert_eq!(run(&mut job, [ready(1, 0)]), [Effect::Launch { ranks: vec![0, 1] }]);
    run(&mut job, [started(1, 0), started(1, 1)]);
    end_all(&mut job, None);
    assert_eq!((job.state, job.attempt), (State::Succeeded, 1));
}

#[test]
fn what_is_handed_over_is_wound_down_and_not_just_dropped() {
    for (event, state) in [(STOP, State::Stopped), (Event::Suspend, State::Suspended)] {
        let mut job = handed_over();
        let effects = run(&mut job, [event]);
        assert_eq!(effects, [Effect::Stop { ranks: vec![0, 1], grace: None }]);
        assert_eq!(job.state, State::Stopping);
        end_all(&mut job, Some(Reason::StoppedByUser));
        assert_eq!(job.state, state);
    }
}

#[test]
fn a_gang_that_is_refused_fails_and_one_whose_allocation_failed_is_tried_again() {
    let message = String::from("no");
    for (reason, state) in [
        (Reason::Refused { message: message.clone() }, State::Failed),
        (Reason::AllocationFailed { message }, State::Queued),
    ] {
        let mut job = job(2, OnFailure::Continue, Retries { max: 1, ..Retries::default() });
        run(&mut job, [hand_over(2)]);
        end_all(&mut job, Some(reason));
        assert_eq!((job.state, job.is_handed_over()), (state, false));
    }
}

#[test]
fn whose_place_another_scheduler_takes_waits_again_at_no_cost_to_its_retries() {
    let displaced = Reason::Displaced { message: "n1 is drained".into() };
    for (on_failure, reason) in [(OnFailure::Stop, Reason::Preempted), (OnFailure::Continue, displaced)] {
        let mut job = job(2, on_failure, Retries::default());
        start(&mut job);
        let effects = run(&mut job, [ended(1, 1, Some(reason.clone()))]);
        assert_eq!(effects, [Effect::Release { rank: 1 }, Effect::Stop { ranks: vec![0], grace: None }]);
        end_all(&mut job, exit(1));
        assert_eq!((job.state, job.retried, job.reason.clone()), (State::Queued, 0, Some(reason)));
        assert!(job.is_eligible(NOW));
    }
}
