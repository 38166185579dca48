//! The decisions about a task, with the world made up.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use muster_link::message::{Launch, Prepare, ReportPhase, TaskReport, ToServer};
use muster_model::launch::{Surroundings, Work};
use muster_model::task::{Address, Outputs, TaskEnd};
use muster_model::{Reason, TaskId};
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert, prop_oneof, proptest};

use super::life::{Life, Outcome, Phase, Step};
use super::table::{Table, Task};
use crate::record::{Ended, Record, TaskDir};

fn task() -> TaskId {
    "task0.job_0123456789.1".parse().unwrap()
}

fn address() -> Address {
    Address::new([127, 64, 0, 1], vec![])
}

fn launch() -> Box<Launch> {
    Box::new(Launch {
        task: task(),
        env: BTreeMap::new(),
        setup: None,
        setup_once: None,
        work: Work::Wait,
        paths: BTreeMap::new(),
        files: Vec::new(),
        surroundings: Surroundings::default(),
        peers: None,
        secrets: Vec::new(),
        withheld: None,
        elements: None,
        timeout_ms: None,
        grace_ms: 0,
        stop_signal: muster_model::signal::Signal::TERM,
    })
}

fn ended(failure: Option<Reason>, started: bool) -> Box<Ended> {
    let end = TaskEnd::new(failure, Some(0));
    let started_at = started.then_some(Timestamp::UNIX_EPOCH);
    Box::new(Ended { end, at: Timestamp::UNIX_EPOCH, started_at, outputs: None })
}

/// What comes of a step when all goes well and the task runs until it is stopped.
fn good(step: &Step) -> Outcome {
    match step {
        Step::Prepare => Outcome::Prepared,
        Step::End { failure } => Outcome::Ended(ended(Some(failure.clone()), false)),
        Step::Launch(_) => Outcome::Launched,
        Step::Stop { grace_ms, .. } => Outcome::Told { grace_ms: *grace_ms },
        Step::Look => Outcome::Running { at: Timestamp::UNIX_EPOCH },
        Step::Collect(ended) => {
            let outputs = Some(Outputs::Failed { message: "none match".into() });
            Outcome::Ended(Box::new(Ended { outputs, ..*ended.clone() }))
        }
        Step::Forget { .. } => Outcome::Forgotten,
        Step::Remove => Outcome::Removed,
    }
}

/// Do all there is to do, and give the steps that were made.
fn settle(life: &mut Life) -> Vec<Step> {
    let mut steps = Vec::new();
    while let Some(step) = life.next() {
        life.on_done(good(&step));
        steps.push(step);
    }
    steps
}

fn messages(life: &mut Life) -> Vec<ToServer> {
    let address = address();
    std::iter::from_fn(|| life.message(&task(), Some(&address))).collect()
}

fn running() -> Life {
    let mut life = Life::begin();
    life.on_launch(launch());
    settle(&mut life);
    life.on_change();
    settle(&mut life);
    life
}

#[test]
fn a_task_is_prepared_then_launched_then_watched() {
    let mut life = Life::begin();
    assert_eq!(settle(&mut life), [Step::Prepare]);
    assert!(matches!(messages(&mut life)[..], [ToServer::Ready { .. }]));
    life.on_launch(launch());
    assert_eq!(settle(&mut life), [Step::Launch(launch())]);
    assert_eq!(messages(&mut life), []);
    life.on_change();
    assert_eq!(settle(&mut life), [Step::Look]);
    assert!(matches!(messages(&mut life)[..], [ToServer::Started { .. }]));
    life.on_change();
    assert_eq!(life.next(), Some(Step::Look));
    life.on_done(Outcome::Ended(ended(None, true)));
    assert!(matches!(messages(&mut life)[..], [ToServer::Ended { .. }]));
    life.on_forget(false);
    assert_eq!(settle(&mut life), [Step::Forget { continues: false }]);
}

#[test]
fn a_task_that_was_never_launched_is_stopped_without_a_word_to_anyone() {
    for prepared in [false, true] {
        let mut life = Life::begin();
        if prepared {
            settle(&mut life);
        }
        life.on_stop(1000, "stopped_by_user");
        life.on_launch(launch());
        assert_eq!(settle(&mut life), [Step::End { failure: Reason::StoppedByUser }]);
        life.on_launch(launch());
        assert_eq!(settle(&mut life), []);
        assert!(matches!(messages(&mut life)[..], [ToServer::Ended { .. }]));
    }
}

#[test]
fn a_second_stop_can_only_hurry() {
    let mut life = running();
    for (grace_ms, told) in [(500, true), (500, false), (900, false), (10, true)] {
        life.on_stop(grace_ms, "stopped_by_user");
        assert_eq!(!settle(&mut life).is_empty(), told, "{grace_ms}");
    }
    life.on_remove();
    assert_eq!(settle(&mut life), [Step::Stop { grace_ms: 0, reason: "stopped_by_user".into() }]);
}

#[test]
fn a_quick_end_still_tells_that_it_started() {
    let mut life = running();
    life.on_change();
    life.next();
    life.on_done(Outcome::Ended(ended(None, true)));
    assert!(matches!(messages(&mut life)[..], [ToServer::Started { .. }, ToServer::Ended { .. }]));
    life.repeat();
    assert_eq!(messages(&mut life).len(), 2);
    assert!(matches!(life.report(None), ReportPhase::Ended { started_at: Some(_), .. }));
    assert_eq!(messages(&mut life), []);
}

#[test]
fn what_changes_during_a_look_is_looked_at_again() {
    let mut life = running();
    life.on_change();
    assert_eq!(life.next(), Some(Step::Look));
    life.on_change();
    assert_eq!(life.next(), None);
    life.on_done(Outcome::Starting);
    assert_eq!(life.next(), Some(Step::Look));
}

#[test]
fn a_supervisor_that_never_comes_is_not_started_for_ever() {
    let mut life = Life::begin();
    life.on_launch(launch());
    let mut launches = 0;
    for _ in 0..100 {
        let Some(step) = life.next() else { break };
        launches += u32::from(matches!(step, Step::Launch(_)));
        let outcome = if step == Step::Look { Outcome::NotStarted } else { good(&step) };
        life.on_done(outcome);
        life.on_change();
    }
    assert_eq!(launches, 3);
    assert!(!life.is_live());
}

#[test]
fn a_launch_that_comes_while_the_last_one_is_doubtful_is_not_lost() {
    let mut life = Life::resume(Phase::Launching);
    life.on_launch(launch());
    assert_eq!(life.next(), Some(Step::Look));
    life.on_done(Outcome::NotStarted);
    assert_eq!(life.next(), Some(Step::Launch(launch())));
}

#[derive(Debug, Clone)]
enum Input {
    Launch,
    Stop(u64),
    Forget,
    Remove,
    Change,
    /// A step ends, and with which of the ways it may.
    Done(u8),
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let input = prop_oneof![
        Just(Input::Launch),
        (0..100u64).prop_map(Input::Stop),
        Just(Input::Forget),
        Just(Input::Remove),
        Just(Input::Change),
        any::<u8>().prop_map(Input::Done),
        any::<u8>().prop_map(Input::Done),
    ];
    vec(input, 0..40)
}

#[test]
fn outputs_are_collected_once_after_the_end_and_before_anything_is_forgotten() {
    let mut life = Life::resume(Phase::Ended(ended(None, true))).with_outputs(true);
    life.on_forget(false);
    let steps = settle(&mut life);
    assert!(matches!(steps.as_slice(), [Step::Collect(_), Step::Forget { .. }]), "{steps:?}");
    let mut said = Vec::new();
    while let Some(message) = life.message(&task(), None) {
        said.push(message);
    }
    assert!(matches!(said.last(), Some(ToServer::Outputs { .. })), "{said:?}");
    assert!(matches!(said[said.len() - 2], ToServer::Ended { .. }), "{said:?}");
}

#[test]
fn outputs_that_were_collected_without_a_server_are_told_after_each_hello() {
    let outputs = Some(Outputs::Failed { message: "none match".into() });
    let life = Life::resume(Phase::Ended(Box::new(Ended { outputs, ..*ended(None, true) })));
    let prepare = Prepare {
        task: task(),
        bundle: None,
        previous: None,
        outputs: vec!["@output/**".into()],
        in_place: None,
        goes_on: false,
        ports: 0,
        shared_port: None,
        devices: vec![],
        memory_bytes: None,
        account: None,
        volumes: vec![],
        disk: Default::default(),
    };
    let dir = TaskDir::new(Path::new("/tasks"), &task());
    let mut table = Table::default();
    table.insert(task(), Task::new(&task(), dir, Record::new(prepare, None), life.with_outputs(true)));
    for _ in 0..2 {
        let reports = table.reports();
        assert!(matches!(reports[..], [TaskReport { phase: ReportPhase::Ended { .. }, .. }]), "{reports:?}");
        assert!(matches!(table.next_message(), Some(ToServer::Outputs { .. })));
        assert!(table.next_message().is_none() && !table.has_unsaid());
    }
}

#[test]
fn a_removal_does_not_wait_for_outputs() {
    let mut life = Life::resume(Phase::Ended(ended(None, true))).with_outputs(true);
    assert!(matches!(life.next(), Some(Step::Collect(_))));
    life.on_remove();
    assert!(life.is_in_vain());
    life.on_done(Outcome::Abandoned);
    assert_eq!(life.next(), Some(Step::Remove));
}

fn any_outcome(step: &Step, choice: u8) -> Outcome {
    match (step, choice % 4) {
        (_, 0) => Outcome::Failed,
        (Step::Prepare | Step::Collect(_), 1) => Outcome::Abandoned,
        (Step::Prepare | Step::Launch(_), 2) => Outcome::Impossible { failure: Reason::Hung },
        (Step::Look, 1) => Outcome::Ended(ended(None, true)),
        (Step::Look, 2) => Outcome::Starting,
        (step, _) => good(step),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn nothing_is_launched_twice_or_after_its_end_and_every_wish_comes_true(inputs in inputs(), has_outputs in any::<bool>()) {
        let mut life = Life::begin().with_outputs(has_outputs);
        let (mut doing, mut launched) = (None, false);
        for input in inputs {
            match input {
                Input::Launch => life.on_launch(launch()),
                Input::Stop(grace_ms) => life.on_stop(grace_ms, "stopped_by_user"),
                Input::Forget => life.on_forget(false),
                Input::Remove => life.on_remove(),
                Input::Change => life.on_change(),
                Input::Done(choice) => {
                    if let Some(step) = doing.take() {
                        let outcome = any_outcome(&step, choice);
                        launched |= outcome == Outcome::Launched;
                        if matches!(outcome, Outcome::Forgotten | Outcome::Removed) {
                            return Ok(());
                        }
                        life.on_done(outcome);
                    }
                }
            }
            if let Some(step) = life.next() {
                prop_assert!(doing.is_none());
                let is_start = matches!(step, Step::Launch(_) | Step::Prepare | Step::End { .. });
                prop_assert!(!(launched && is_start));
                let is_last = matches!(step, Step::Collect(_) | Step::Forget { .. } | Step::Remove);
                prop_assert!(life.is_live() || is_last);
                prop_assert!(!(life.is_unwanted() && matches!(step, Step::Launch(_) | Step::Prepare)));
                doing = Some(step);
            }
        }
        // Whatever happened, a removal comes to its end.
        if let Some(step) = doing {
            life.on_done(good(&step));
        }
        life.on_remove();
        for _ in 0..20 {
            match life.next() {
                Some(Step::Remove) => return Ok(()),
                Some(Step::Look) => life.on_done(Outcome::Ended(ended(None, true))),
                Some(step) => life.on_done(good(&step)),
                None => life.on_change(),
            }
        }
        prop_assert!(false, "it was never removed");
    }
}
