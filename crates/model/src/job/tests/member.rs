//! The stories of machines, each on its own.

use super::*;

fn lost() -> Option<Reason> {
    Some(Reason::NodeLost { node: "node_n1".into() })
}

#[test]
fn one_machine_of_a_group_is_stopped_and_started_and_the_others_go_on() {
    let mut job = group(2);
    start(&mut job);
    assert_eq!(run(&mut job, [suspend(1)]), [Effect::Stop { ranks: vec![1], grace: None }]);
    assert_eq!(run(&mut job, [ended(1, 1, exit(143))]), [Effect::Release { rank: 1 }]);
    assert_eq!((job.state, job.failed_rank, job.reason.clone()), (State::Running, None, None));
    assert_eq!(job.tasks[1].end.as_ref().unwrap().failure, Some(Reason::Suspended));
    assert_eq!(run(&mut job, [start_task(1)]), [Effect::Prepare { ranks: vec![1] }]);
    assert_eq!((job.attempt, job.task_id(0).attempt.number, job.task_id(1).attempt.number), (2, 1, 2));
    assert_eq!(job.apply(started(1, 1), NOW), Err(Invalid::Stale), "that was another attempt");
    assert_eq!(run(&mut job, [ready(2, 1)]), [Effect::Launch { ranks: vec![1] }]);
    run(&mut job, [started(2, 1)]);
    assert_eq!(run(&mut job, [ended(1, 0, lost())]), [Effect::Release { rank: 0 }]);
    assert_eq!((job.state, job.failed_rank), (State::Running, Some(0)));
    run(&mut job, [start_task(0)]);
    assert_eq!((job.failed_rank, job.reason), (None, None), "what was mended is no failure any more");
}

#[test]
fn a_group_is_suspended_when_its_last_machine_is_over_and_any_was_suspended() {
    let mut job = group(2);
    start(&mut job);
    run(&mut job, [suspend(0), ended(1, 0, None), ended(1, 1, lost())]);
    assert_eq!((job.state, job.reason.clone()), (State::Suspended, Some(Reason::Suspended)));
    let mut one = job.clone();
    run(&mut one, [start_task(1), ready(2, 1), started(2, 1)]);
    assert_eq!((one.state, one.tasks[0].standing()), (State::Running, Standing::Suspended));
    run(&mut job, [Event::Resume]);
    start(&mut job);
    assert_eq!(job.attempt, 2);
}

#[test]
fn a_machine_that_was_killed_does_not_come_back_with_its_group() {
    let mut job = group(3);
    start(&mut job);
    run(&mut job, [kill(1), ended(1, 1, None)]);
    let refused = Err(Invalid::Task { rank: 1, standing: Standing::Killed });
    assert_eq!(job.apply(start_task(1), NOW), refused);
    run(&mut job, [Event::Suspend, ended(1, 0, None), ended(1, 2, None), Event::Resume]);
    assert_eq!((job.wanted(), job.preferred().len()), (vec![0, 2], 2));
    assert_eq!(job.apply(admit(3), NOW), Err(Invalid::WrongGang { nodes: 2, offered: 3 }));
    start(&mut job);
    assert_eq!((job.tasks[1].attempt, job.tasks[2].attempt), (1, 2));
    run(&mut job, [kill(0), kill(2), ended(2, 2, None), ended(2, 0, exit(143))]);
    assert_eq!((job.state, job.reason), (State::Stopped, Some(Reason::StoppedByUser)));
}

#[test]
fn a_machine_that_is_over_can_still_be_killed_and_the_last_one_ends_the_group() {
    let mut job = group(2);
    start(&mut job);
    run(&mut job, [Event::Suspend]);
    end_all(&mut job, None);
    run(&mut job, [kill(0)]);
    assert_eq!((job.state, job.reason.clone()), (State::Suspended, Some(Reason::Suspended)));
    run(&mut job, [kill(1)]);
    assert_eq!((job.state, job.reason), (State::Stopped, Some(Reason::StoppedByUser)));
}

#[test]
fn machines_that_gather_do_not_wait_for_one_that_is_over() {
    let mut job = group(2);
    run(&mut job, [admit(2), ready(1, 0)]);
    let launch = [Effect::Release { rank: 1 }, Effect::Launch { ranks: vec![0] }];
    assert_eq!(run(&mut job, [ended(1, 1, lost())]), launch);
    run(&mut job, [started(1, 0)]);
    assert_eq!(job.state, State::Running);
    let mut job = group(2);
    run(&mut job, [admit(2), ready(1, 0), suspend(1)]);
    let both = [Effect::Stop { ranks: vec![1], grace: None }, Effect::Launch { ranks: vec![0] }];
    assert_eq!(run(&mut job, [ready(1, 1)]), both);
}

#[test]
fn a_group_whose_machines_all_failed_is_tried_again_as_its_job_says() {
    let mut job = group(2);
    job.policy.retries = Retries { max: 1, ..Retries::default() };
    start(&mut job);
    end_all(&mut job, lost());
    assert_eq!((job.state, job.failed_rank), (State::Queued, Some(0)));
    start(&mut job);
    run(&mut job, [kill(0), ended(2, 0, None), ended(2, 1, lost())]);
    assert_eq!((job.state, job.failed_rank, job.reason), (State::Failed, Some(1), lost()));
}

#[test]
fn what_is_to_go_for_good_does_not_stay_after_all() {
    let mut job = group(2);
    start(&mut job);
    run(&mut job, [suspend(0), kill(0)]);
    assert_eq!(job.apply(suspend(0), NOW), Err(Invalid::Task { rank: 0, standing: Standing::Ending }));
    run(&mut job, [Event::Suspend]);
    end_all(&mut job, None);
    assert!(job.state == State::Suspended && job.tasks[0].is_killed() && job.tasks[1].is_suspended());
    assert_eq!(job.apply(suspend(7), NOW), Err(Invalid::UnknownRank { rank: 7 }));
}
