//! The rules, one by one, on clusters that fit on a page.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_model::JobId;

use super::world::{POOL, World, gang, ids, node, node_id};
use crate::{
    Cause, Change, Fate, Policy, Quota, Resource, Running, Scheduler, Shape, Standing, User, Workspace,
    priority_from_apulis, priority_from_dlc,
};

const MINUTE: u64 = 60_000;

fn world(nodes: usize, devices: u32) -> World {
    let nodes = (0..nodes).map(|at| node(at, 16, &[("H100", devices)])).collect();
    let policy = Policy { min_run_time: Duration::ZERO, preempt_after: Duration::ZERO, ..Policy::default() };
    World::new(policy, nodes)
}

#[test]
fn the_highest_priority_goes_first_and_then_whoever_has_had_least() {
    let mut world = world(1, 4);
    let mut first = gang(1, 1, 2);
    first.user = "bob".into();
    world.submit(first);
    world.pass();
    // Bob is the older in the queue, and has two devices already.
    let mut bobs = gang(2, 1, 2);
    bobs.user = "bob".into();
    let anns = world.submit(gang(3, 1, 2));
    world.submit(bobs.clone());
    assert_eq!(ids(&world.pass()), std::slice::from_ref(&anns));
    world.end(&(anns, 0), Fate::Over);
    let mut urgent = gang(4, 1, 2);
    (urgent.user, urgent.priority) = ("bob".into(), 900);
    let urgent = world.submit(urgent);
    world.submit(gang(5, 1, 2));
    assert_eq!(ids(&world.pass()), [urgent]);
}

#[test]
fn nobody_has_all_the_turns_because_room_was_kept_for_them_once() {
    let mut world = world(1, 2);
    (1..=9).for_each(|number| drop(world.submit(gang(number, 1, 1))));
    let mut running = ids(&world.pass());
    // Bob's need another thing besides, so they are not in one line with ann's.
    for number in 11..=13 {
        let mut bobs = gang(number, 1, 1);
        (bobs.user, bobs.need.cpu_millis) = ("bob".into(), 1000);
        world.submit(bobs);
    }
    let mut order = Vec::new();
    while !running.is_empty() {
        world.now += MINUTE;
        world.end(&(running.remove(0), 0), Fate::Over);
        let started = ids(&world.pass());
        order.extend(started.iter().cloned());
        running.extend(started);
    }
    let bobs: Vec<JobId> = (11..=13).map(JobId::from_random).collect();
    let last = order.iter().rposition(|job| bobs.contains(job)).unwrap();
    assert!(last < 6, "bob's third is the {}th of {order:?}", last + 1);
}

#[test]
fn what_was_used_is_forgotten_by_half_in_every_half_life() {
    let mut world = world(2, 4);
    let half_life = 7 * 24 * 60 * MINUTE;
    let mut bobs = gang(1, 1, 4);
    bobs.user = "bob".into();
    let first = world.submit(bobs);
    world.pass();
    world.now += half_life;
    world.end(&(first, 0), Fate::Over);
    let used = |world: &World| {
        let usage = world.scheduler.usage(world.now);
        usage.into_iter().find(|it| it.user.as_deref() == Some("bob")).map_or(0.0, |it| it.mean)
    };
    assert!((used(&world) - 2.0).abs() < 1e-6, "half of the four that he held: {}", used(&world));
    world.now += half_life;
    assert!((used(&world) - 1.0).abs() < 1e-6);
    // It survives being written down and read.
    let mut again = Scheduler::new(Policy::default());
    again.restore(&world.scheduler.usage(world.now));
    assert_eq!(again.usage(world.now), world.scheduler.usage(world.now));
}

#[test]
fn a_gang_stays_on_one_node_or_in_one_rack_if_it_can() {
    let mut world = world(4, 4);
    let one = world.submit(gang(1, 2, 2));
    let plan = world.pass();
    assert_eq!(plan.starts[0].placements[0].node, plan.starts[0].placements[1].node);
    world.end(&(one, 0), Fate::Over);
    // Racks are of two nodes each; one of them is half used.
    let small = world.submit(gang(2, 1, 1));
    world.pass();
    world.submit(gang(3, 2, 4));
    let plan = world.pass();
    let racks: Vec<&str> =
        plan.starts[0].placements.iter().map(|it| world.nodes[&it.node].labels["rack"].as_str()).collect();
    assert_eq!(racks, ["r1", "r1"]);
    world.end(&(small, 0), Fate::Over);
}

#[test]
fn the_fullest_node_that_is_enough_is_used() {
    let mut world = world(2, 4);
    world.submit(gang(1, 1, 2));
    world.pass();
    world.submit(gang(2, 1, 1));
    let plan = world.pass();
    assert_eq!(plan.starts[0].placements[0].node, node_id(0));
    assert_eq!(plan.starts[0].placements[0].devices, [2]);
}

#[test]
fn all_devices_of_a_gang_are_of_one_model() {
    let nodes = vec![node(0, 8, &[("H100", 2), ("A100", 2)]), node(1, 8, &[("A100", 2)])];
    let mut world = World::new(Policy::default(), nodes);
    world.submit(gang(1, 2, 2));
    let plan = world.pass();
    assert_eq!(plan.starts[0].placements.len(), 2);
    world.submit(gang(2, 1, 3));
    assert!(world.pass().starts.is_empty(), "two of each are not three of one");
}

#[test]
fn quotas_are_borrowed_while_idle_and_reclaimed_when_wanted() {
    let mut world = world(2, 4);
    for workspace in ["red", "blue"] {
        world.quota(workspace, &[(Resource::Devices, Quota::shared(4))]);
    }
    let of = |id: u64, workspace: &str, devices: u32| {
        let mut request = gang(id, 1, devices);
        request.workspace = workspace.into();
        request
    };
    let own = world.submit(of(1, "red", 4));
    let borrowed = world.submit(of(2, "red", 4));
    assert_eq!(ids(&world.pass()), [own, borrowed.clone()]);
    // Blue wants its own: what red borrowed is given back, whatever its priority.
    world.now += MINUTE;
    let blue = world.submit(of(3, "blue", 2));
    let plan = world.pass();
    assert!(plan.starts.is_empty());
    assert_eq!(plan.preemptions.len(), 1);
    assert_eq!((&plan.preemptions[0].job, plan.preemptions[0].cause), (&borrowed, Cause::Reclaim));
    assert_eq!(plan.preemptions[0].by, blue);
    // Until it has left, nobody gets anything of it.
    let mut urgent = of(4, "blue", 2);
    urgent.priority = 1000;
    world.submit(urgent);
    assert!(world.pass().starts.is_empty());
    world.leave();
    assert_eq!(ids(&world.pass()).len(), 2, "blue has its four");
}

#[test]
fn a_quota_that_is_not_lent_is_not_borrowed() {
    let mut world = world(2, 4);
    world.quota("red", &[(Resource::Devices, Quota { nominal: 4, borrow: Some(2), lend: None })]);
    world.quota("blue", &[(Resource::Devices, Quota { nominal: 4, borrow: None, lend: Some(1) })]);
    let mut ask = gang(1, 1, 1);
    ask.workspace = "red".into();
    ask.shape = Shape::Many { elements: vec![1..=8], at_once: 8 };
    world.submit(ask);
    assert_eq!(world.pass().starts.len(), 5, "its own four, and the one that blue lends");
}

#[test]
fn quotas_of_a_model_count_that_model_alone() {
    let nodes = vec![node(0, 8, &[("H100", 4), ("A100", 4)])];
    let mut world = World::new(Policy::default(), nodes);
    world.quota("team", &[(Resource::Model("h100".into()), Quota::fixed(1))]);
    world.submit(gang(1, 1, 2));
    let plan = world.pass();
    assert_eq!(plan.starts[0].placements[0].devices, [4, 5], "A100s are not limited");
}

#[test]
fn only_preemptible_work_of_less_priority_makes_room_and_those_who_lose_least() {
    let mut world = world(2, 4);
    let mut make = |id: u64, priority: u32, preemptible: bool| {
        let mut request = gang(id, 1, 4);
        (request.priority, request.preemptible) = (priority, preemptible);
        world.submit(request);
        world.pass();
        world.now += 60 * MINUTE;
    };
    make(1, 100, true);
    make(2, 100, true);
    // The first has run for longer, and has saved since.
    let saved = Change::Saved { element: 0, at: world.now - 1 };
    world.scheduler.change(&JobId::from_random(1), saved);
    let mut equal = gang(3, 1, 4);
    equal.priority = 100;
    let equal = world.submit(equal);
    assert!(world.pass().preemptions.is_empty(), "not for the same priority");
    world.scheduler.withdraw(&equal);
    world.requests.remove(&equal);
    let mut urgent = gang(4, 1, 2);
    urgent.priority = 200;
    let urgent = world.submit(urgent);
    let plan = world.pass();
    assert_eq!(plan.preemptions[0].job, JobId::from_random(1));
    assert_eq!(plan.preemptions.len(), 1);
    assert!(world.pass().preemptions.is_empty(), "nobody is asked twice");
    world.leave();
    assert_eq!(ids(&world.pass()), [urgent]);
    // What is left of the victim's place is free: it comes back when there is enough.
    assert_eq!(world.scheduler.queued(), 1);
}

#[test]
fn everybody_has_their_least_time_and_is_told_when_it_is_over() {
    let nodes = vec![node(0, 8, &[("H100", 4)])];
    let policy = Policy {
        min_run_time: Duration::from_secs(600),
        preempt_after: Duration::ZERO,
        preemptions_per_day: 1,
        ..Policy::default()
    };
    let mut world = World::new(policy, nodes);
    let mut low = gang(1, 1, 4);
    (low.priority, low.preemptible) = (1, true);
    let low = world.submit(low);
    world.pass();
    let started = world.now;
    world.now += 5 * MINUTE;
    let high = world.submit(gang(2, 1, 4));
    let plan = world.pass();
    assert!(plan.preemptions.is_empty());
    assert_eq!(plan.next_at, Some(started + 10 * MINUTE));
    world.now = started + 10 * MINUTE;
    assert_eq!(world.pass().preemptions.len(), 1);
    world.leave();
    assert_eq!(ids(&world.pass()), std::slice::from_ref(&high));
    world.end(&(high, 0), Fate::Over);
    assert_eq!(ids(&world.pass()), [low]);
    // Once a day is enough: the next one waits for tomorrow.
    world.now += 20 * MINUTE;
    world.submit(gang(3, 1, 4));
    let plan = world.pass();
    assert!(plan.preemptions.is_empty());
    assert_eq!(plan.next_at, Some(started + 10 * MINUTE + 24 * 60 * MINUTE));
}

#[test]
fn small_jobs_fill_gaps_only_if_they_are_gone_in_time() {
    let mut world = world(2, 4);
    let mut running = gang(1, 1, 4);
    running.expected = Some(60 * MINUTE);
    world.submit(running);
    world.pass();
    let large = world.submit(gang(2, 2, 4));
    let mut long = gang(3, 1, 1);
    long.expected = Some(61 * MINUTE);
    let mut short = gang(4, 1, 1);
    short.expected = Some(60 * MINUTE);
    let short_id = short.job.clone();
    world.submit(long);
    world.submit(short);
    world.submit(gang(5, 1, 1));
    let no_device = world.submit(gang(6, 1, 0));
    let mut started = ids(&world.pass());
    started.sort();
    let mut expected = [short_id.clone(), no_device];
    expected.sort();
    assert_eq!(started, expected, "one is gone in time, one needs nothing that is kept");
    world.now += 60 * MINUTE;
    world.end(&(JobId::from_random(1), 0), Fate::Over);
    world.end(&(short_id, 0), Fate::Over);
    assert_eq!(ids(&world.pass())[0], large);
}

#[test]
fn elements_that_are_taken_back_leave_nothing_that_was_kept_for_them() {
    let mut world = world(1, 2);
    let mut many = gang(1, 1, 1);
    many.shape = Shape::Many { elements: vec![0..=9], at_once: 10 };
    let many = world.submit(many);
    assert_eq!(world.pass().starts.len(), 2);
    assert!(world.pass().starts.is_empty(), "room is kept for the third");
    world.scheduler.withdraw(&many);
    world.end(&(many.clone(), 1), Fate::Over);
    assert!(world.pass().starts.is_empty(), "nobody wants it any more");
    world.end(&(many, 0), Fate::Over);
    let after = world.submit(gang(2, 1, 2));
    assert_eq!(ids(&world.pass()), [after], "all of it is free again");
}

#[test]
fn elements_start_as_they_fit_and_never_more_at_once_than_they_may() {
    let mut world = world(1, 4);
    let mut many = gang(1, 1, 1);
    many.shape = Shape::Many { elements: vec![1..=3, 7..=8], at_once: 3 };
    let many = world.submit(many);
    let started =
        |world: &mut World| -> Vec<u32> { world.pass().starts.iter().map(|it| it.element).collect() };
    assert_eq!(started(&mut world), [1, 2, 3]);
    assert!(started(&mut world).is_empty());
    world.end(&(many.clone(), 2), Fate::Over);
    assert_eq!(started(&mut world), [7]);
    world.end(&(many.clone(), 3), Fate::Again);
    assert_eq!(started(&mut world), [3]);
    for element in [1, 3, 7] {
        world.end(&(many.clone(), element), Fate::Over);
    }
    assert_eq!(started(&mut world), [8]);
    world.end(&(many.clone(), 8), Fate::Over);
    assert!(!world.scheduler.knows(&many));
}

#[test]
fn a_pool_with_a_scheduler_of_its_own_is_given_jobs_by_quota_alone() {
    let mut scheduler = Scheduler::new(Policy::default());
    scheduler.set_pool("slurm", true);
    let quotas = BTreeMap::from([(Resource::Devices, Quota::fixed(8))]);
    scheduler.set_workspace("team", Workspace { weight: 1.0, quotas });
    scheduler.set_user("ann", User { weight: 1.0, max_running: Some(2) });
    for id in 1..4 {
        let mut request = gang(id, 2, 2);
        request.pool = "slurm".into();
        scheduler.submit(request);
    }
    let plan = scheduler.pass(0);
    assert_eq!(plan.starts.len(), 2);
    assert!(plan.starts[0].placements.is_empty());
    scheduler.ended(&plan.starts[0].job, 0, Fate::Over, 1);
    assert_eq!(scheduler.pass(1).starts.len(), 1);
}

#[test]
fn held_dependent_and_paused_jobs_are_not_considered() {
    let mut world = world(1, 4);
    for (id, standing) in [
        (1, Standing::Held),
        (2, Standing::Dependent("after job_x".into())),
        (3, Standing::Paused(world.now + MINUTE)),
    ] {
        let mut request = gang(id, 1, 1);
        request.standing = standing;
        world.submit(request);
    }
    let plan = world.pass();
    assert!(plan.starts.is_empty());
    assert_eq!(plan.next_at, Some(world.now + MINUTE));
    world.now += MINUTE;
    world.requests.values_mut().for_each(|request| request.standing = Standing::Ready);
    world.scheduler.change(&JobId::from_random(1), Change::Standing(Standing::Ready));
    assert_eq!(world.pass().starts.len(), 2, "released, and woken by the clock");
}

#[test]
fn a_scheduler_made_anew_goes_on_as_the_old_one_would_have() {
    let mut world = world(2, 4);
    world.quota("team", &[(Resource::Devices, Quota::shared(8))]);
    for id in 1..5 {
        world.submit(gang(id, 1, 3));
    }
    world.pass();
    let mut again = Scheduler::new(world.policy.clone());
    world.nodes.values().for_each(|node| again.set_node(node.clone()));
    again.set_workspace("team", Workspace { weight: 1.0, quotas: world.quotas["team"].clone() });
    again.restore(&world.scheduler.usage(world.now));
    world.requests.values().for_each(|request| again.submit(request.clone()));
    for ((job, element), run) in &world.running {
        again.started(Running {
            job: job.clone(),
            element: *element,
            placements: run.places.iter().cloned().map(Some).collect(),
            started_at: run.since,
            saved_at: None,
            is_leaving: false,
        });
    }
    let ended = world.running.keys().next().cloned().unwrap();
    world.now += MINUTE;
    again.ended(&ended.0, 0, Fate::Over, world.now);
    world.end(&ended, Fate::Over);
    let now = world.now;
    assert_eq!(again.pass(now), world.pass());
}

#[test]
fn a_node_that_goes_away_breaks_what_was_promised_there() {
    let mut world = world(1, 4);
    let mut low = gang(1, 1, 4);
    (low.priority, low.preemptible) = (1, true);
    world.submit(low);
    world.pass();
    world.now += 1;
    let high = world.submit(gang(2, 1, 4));
    assert_eq!(world.pass().preemptions.len(), 1);
    world.cordon(0, false);
    world.leave();
    assert!(world.pass().starts.is_empty());
    world.cordon(0, true);
    assert_eq!(ids(&world.pass()), [high]);
}

#[test]
fn a_node_that_has_less_than_it_had_breaks_what_was_promised_there() {
    let mut world = world(1, 4);
    let mut low = gang(1, 1, 4);
    (low.priority, low.preemptible) = (1, true);
    world.submit(low);
    world.pass();
    world.now += 1;
    let high = world.submit(gang(2, 1, 4));
    assert_eq!(world.pass().preemptions.len(), 1);
    let id = node_id(0);
    let state = world.nodes.get_mut(&id).unwrap();
    state.capacity.devices.pop();
    world.scheduler.set_node(state.clone());
    world.leave();
    assert!(!ids(&world.pass()).contains(&high), "one of its four devices is gone");
}

#[test]
fn nobody_waits_behind_what_never_starts() {
    let mut world = world(2, 4);
    world.quota("poor", &[(Resource::Devices, Quota::fixed(0))]);
    for id in 1..40 {
        let mut request = gang(id, 1, 4);
        match id % 2 {
            0 => request.need.devices = Some("5".parse().unwrap()),
            _ => request.workspace = "poor".into(),
        }
        world.submit(request);
    }
    let mut low = gang(50, 2, 4);
    low.priority = 1;
    let low = world.submit(low);
    for id in 100..140 {
        let small = world.submit(gang(id, 1, 4));
        world.pass();
        world.now += 30 * MINUTE;
        if id >= 102 && world.running.contains_key(&(JobId::from_random(id - 2), 0)) {
            world.end(&(JobId::from_random(id - 2), 0), Fate::Over);
        }
        if world.first_start.contains_key(&low) {
            return;
        }
        drop(small);
    }
    panic!("a gang of low priority never had its turn");
}

#[test]
fn jobs_that_all_need_something_else_are_started_as_if_they_needed_the_same() {
    let mut world = world(8, 4);
    for id in 1..400 {
        let mut request = gang(id, 1 + (id % 3) as u32, (id % 5) as u32);
        request.need.cpu_millis = 1000 + id * 7;
        request.need.memory_bytes = (1 << 30) + id * 1_000_003;
        request.user = format!("user-{}", id % 7);
        request.expected = (id % 2 == 0).then_some(id * MINUTE);
        world.submit(request);
    }
    for _ in 0..600 {
        world.pass();
        let Some(key) = world.running.keys().next().cloned() else { break };
        world.end(&key, Fate::Over);
        world.now += MINUTE;
    }
    assert!(world.requests.is_empty(), "{} never started", world.requests.len());
    world.finish();
}

#[test]
fn numbers_beyond_all_measure_are_numbers() {
    let mut world = world(1, 4);
    for workspace in ["red", "blue"] {
        world.quota(workspace, &[(Resource::Memory, Quota::shared(u64::MAX))]);
    }
    let mut request = gang(1, u32::MAX, 0);
    (request.workspace, request.need.memory_bytes) = ("red".into(), u64::MAX / 2);
    request.pool = super::world::DELEGATING.into();
    world.submit(request.clone());
    (request.job, request.pool) = (JobId::from_random(2), POOL.into());
    world.submit(request);
    let plan = world.scheduler.pass(world.now);
    assert_eq!(ids(&plan), [JobId::from_random(1)]);
    assert!(world.scheduler.explain(&JobId::from_random(2), world.now).is_some());
}

#[test]
fn priorities_of_others_are_on_our_scale() {
    assert_eq!([1, 5, 9, 20].map(priority_from_dlc), [100, 500, 900, 900]);
    assert_eq!([0, 1, 100, 2000].map(priority_from_apulis), [1, 1, 100, 1000]);
    assert_eq!(POOL, "pool");
}
