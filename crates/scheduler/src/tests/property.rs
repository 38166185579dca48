//! What must hold on every cluster, whatever happens on it.

use std::time::Duration;

use muster_model::JobId;
use proptest::prelude::*;

use super::world::{DELEGATING, World, gang, node, node_id};
use crate::outlook::LEAVING;
use crate::{
    Backfill, Change, Fate, NodeState, Order, Policy, Quota, Request, Resource, Scheduler, Shape, Standing,
};

#[derive(Debug, Clone)]
enum Event {
    Submit(Ask),
    End(usize, bool),
    Leave,
    Wait(u64),
    Cordon(usize, bool),
    Priority(usize, u32),
    Hold(usize, bool),
    Withdraw(usize),
    TaskEnds(usize),
    /// A workspace's quota is another one.
    Quota(usize, (usize, u64, Option<u64>, Option<u64>)),
    /// A node has fewer CPUs, or as many as at first.
    Shrink(usize, bool),
    /// The scheduler is made anew, as a server does that was restarted.
    Restart,
}

#[derive(Debug, Clone)]
struct Ask {
    size: u32,
    devices: u32,
    model: Option<&'static str>,
    cpus: u64,
    exclusive: bool,
    workspace: usize,
    user: usize,
    priority: u32,
    preemptible: bool,
    expected: Option<u64>,
    many: Option<u32>,
    rack: Option<u32>,
    memory: u64,
    exclude: Option<usize>,
    prefer: Option<usize>,
    is_delegated: bool,
}

fn asks() -> impl Strategy<Value = Ask> {
    let size = (1u32..4, 0u32..5, prop::sample::select(vec![None, None, Some("H100"), Some("910B")]));
    let rest = (0u64..5, prop::bool::weighted(0.1), 0usize..3, 0usize..3);
    let rank = (1u32..5, any::<bool>(), prop::option::of(1u64..50));
    let shape = (prop::option::weighted(0.2, 1u32..4), prop::option::weighted(0.15, 0u32..2));
    let place = (0u64..4, prop::option::weighted(0.1, 0usize..4), prop::option::weighted(0.1, 0usize..4));
    let all = (size, rest, rank, shape, place, prop::bool::weighted(0.1));
    all.prop_map(|(size, rest, rank, shape, place, is_delegated)| Ask {
        size: size.0,
        devices: size.1,
        model: size.2,
        cpus: rest.0,
        exclusive: rest.1,
        workspace: rest.2,
        user: rest.3,
        priority: rank.0 * 100,
        preemptible: rank.1,
        expected: rank.2.map(|minutes| minutes * 60_000),
        many: shape.0,
        rack: shape.1,
        memory: place.0,
        exclude: place.1,
        prefer: place.2,
        is_delegated,
    })
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        8 => asks().prop_map(Event::Submit),
        4 => (any::<usize>(), any::<bool>()).prop_map(|(which, again)| Event::End(which, again)),
        2 => Just(Event::Leave),
        3 => (1u64..120).prop_map(|minutes| Event::Wait(minutes * 60_000)),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(which, usable)| Event::Cordon(which, usable)),
        1 => (any::<usize>(), 1u32..6).prop_map(|(which, priority)| Event::Priority(which, priority * 100)),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(which, held)| Event::Hold(which, held)),
        1 => any::<usize>().prop_map(Event::Withdraw),
        1 => any::<usize>().prop_map(Event::TaskEnds),
        1 => (0usize..3, quota()).prop_map(|(workspace, quota)| Event::Quota(workspace, quota)),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(which, less)| Event::Shrink(which, less)),
        1 => Just(Event::Restart),
    ];
    prop::collection::vec(event, 1..25)
}

fn clusters() -> impl Strategy<Value = Vec<NodeState>> {
    let size = (1u64..9, 0u32..5, 0u32..3);
    prop::collection::vec(size, 1..5).prop_map(|sizes| {
        let nodes = sizes.iter().enumerate();
        nodes.map(|(at, (cpus, h100, npu))| node(at, *cpus, &[("H100", *h100), ("910B", *npu)])).collect()
    })
}

fn policies() -> impl Strategy<Value = Policy> {
    let backfill = prop::sample::select(vec![Backfill::Reserve, Backfill::Strict, Backfill::Greedy]);
    let order = prop::sample::select(vec![Order::FairShare, Order::Age]);
    (backfill, order, 0u64..40, 0u32..4, 0u64..3).prop_map(|(backfill, order, least, often, patience)| {
        Policy {
            backfill,
            order,
            patience: Duration::from_secs(patience * 600),
            min_run_time: Duration::from_secs(least * 60),
            preemptions_per_day: often,
            preempt_after: Duration::from_secs(patience * 30),
            ..Policy::default()
        }
    })
}

type Quotas = Vec<(usize, u64, Option<u64>, Option<u64>)>;

fn quota() -> impl Strategy<Value = (usize, u64, Option<u64>, Option<u64>)> {
    let limit = || prop::option::of(0u64..5);
    (0usize..4, 0u64..7, limit(), limit())
}

fn quotas() -> impl Strategy<Value = Quotas> {
    prop::collection::vec(quota(), 0..5)
}

fn resource((at, nominal, borrow, lend): (usize, u64, Option<u64>, Option<u64>)) -> (Resource, Quota) {
    let (resource, by) = match at {
        0 => (Resource::Devices, 1),
        1 => (Resource::Model("h100".into()), 1),
        2 => (Resource::Cpu, 1000),
        _ => (Resource::Memory, 16 << 30),
    };
    let quota =
        Quota { nominal: nominal * by, borrow: borrow.map(|it| it * by), lend: lend.map(|it| it * by) };
    (resource, quota)
}

fn world(policy: Policy, nodes: Vec<NodeState>, quotas: &Quotas, limit: Option<u32>) -> World {
    let mut world = World::new(policy, nodes);
    for workspace in 0..3 {
        let of = quotas.iter().enumerate().filter(|(at, _)| at % 3 == workspace).map(|(_, it)| it);
        let of: Vec<(Resource, Quota)> = of.map(|it| resource(*it)).collect();
        world.quota(&format!("w{workspace}"), &of);
    }
    if let Some(limit) = limit {
        world.limit("u0", limit);
    }
    world
}

fn request(id: u64, ask: &Ask) -> Request {
    let mut request = gang(id, ask.size, ask.devices);
    if let (Some(model), Some(devices)) = (ask.model, request.need.devices.as_mut()) {
        devices.model = Some(model.into());
    }
    request.need.cpu_millis = ask.cpus * 1000;
    request.need.exclusive = ask.exclusive;
    request.workspace = format!("w{}", ask.workspace);
    request.user = format!("u{}", ask.user);
    request.priority = ask.priority;
    request.preemptible = ask.preemptible;
    request.expected = ask.expected;
    if let Some(at_once) = ask.many {
        request.shape = Shape::Many { elements: vec![0..=3], at_once };
    }
    request.need.memory_bytes = ask.memory * (16 << 30);
    request.exclude.extend(ask.exclude.map(node_id));
    request.prefer.extend(ask.prefer.map(node_id));
    if ask.is_delegated {
        request.pool = DELEGATING.into();
    }
    request.labels.extend(ask.rack.map(|rack| ("rack".to_owned(), format!("r{rack}"))));
    request
}

fn pick<T: Clone>(all: &[T], which: usize) -> Option<T> {
    (!all.is_empty()).then(|| all[which % all.len()].clone())
}

fn apply(world: &mut World, id: u64, event: &Event) {
    let running: Vec<(JobId, u32)> = world.running.keys().cloned().collect();
    let is_running = |world: &World, job: &JobId| world.running.keys().any(|(id, _)| id == job);
    let waiting: Vec<JobId> = world.requests.keys().filter(|job| !is_running(world, job)).cloned().collect();
    match event {
        Event::Submit(ask) => drop(world.submit(request(id, ask))),
        Event::End(which, again) => {
            if let Some(key) = pick(&running, *which) {
                world.end(&key, if *again { Fate::Again } else { Fate::Over });
            }
        }
        Event::Leave => drop(world.leave()),
        Event::Wait(span) => world.now += span,
        Event::Cordon(which, usable) => world.cordon(which % world.nodes.len(), *usable),
        Event::Priority(which, priority) => {
            if let Some(job) = pick(&waiting, *which) {
                world.requests.get_mut(&job).unwrap().priority = *priority;
                world.scheduler.change(&job, Change::Priority(*priority));
            }
        }
        Event::Hold(which, held) => {
            if let Some(job) = pick(&waiting, *which) {
                let standing = if *held { Standing::Held } else { Standing::Ready };
                world.requests.get_mut(&job).unwrap().standing = standing.clone();
                world.scheduler.change(&job, Change::Standing(standing));
            }
        }
        Event::Withdraw(which) => {
            if let Some(job) = pick(&waiting, *which) {
                world.requests.remove(&job);
                world.scheduler.withdraw(&job);
            }
        }
        Event::TaskEnds(which) => {
            if let Some((job, element)) = pick(&running, *which) {
                // Ranks end from the last one on, so that the books know which are left by their number.
                let run = world.running.get_mut(&(job.clone(), element)).unwrap();
                if run.places.pop().is_some() {
                    let rank = run.places.len() as u32;
                    world.scheduler.task_ended(&job, element, rank);
                }
            }
        }
        Event::Quota(workspace, quota) => {
            world.is_requoted = true;
            world.quota(&format!("w{workspace}"), &[resource(*quota)]);
        }
        Event::Shrink(which, is_less) => world.shrink(which % world.nodes.len(), *is_less),
        Event::Restart => {
            let is_thorough = world.scheduler.is_thorough;
            world.restart();
            world.scheduler.is_thorough = is_thorough;
        }
    }
}

/// When a job starts if every run ends as expected, and those that are to end for others take their time for it.
fn starts_at(scheduler: &Scheduler, job: &JobId, now: u64) -> Option<u64> {
    let mut played = scheduler.clone();
    let of = |run: &u32| (JobId::clone(&played.jobs[played.runs[*run].job].id), played.runs[*run].element);
    let mut leaving: Vec<(u64, (JobId, u32))> =
        played.leaving.iter().map(|run| (now + LEAVING, of(run))).collect();
    let (mut at, mut look_at) = (now, Some(now));
    for _ in 0..2000 {
        leaving.sort();
        let ends = played.pools.iter().filter_map(|pool| pool.ends.first().copied()).min();
        let first = leaving.first().map(|(at, _)| *at);
        let next = [first, ends.map(|(at, _)| at), look_at].into_iter().flatten().min()?;
        at = at.max(next);
        if first == Some(next) {
            let (_, (job, element)) = leaving.remove(0);
            played.ended(&job, element, Fate::Again, at);
        } else if let Some((_, run)) = ends.filter(|(at, _)| *at == next) {
            let run = &played.runs[run];
            let (job, element) = (JobId::clone(&played.jobs[run.job].id), run.element);
            leaving.retain(|(_, other)| *other != (job.clone(), element));
            played.ended(&job, element, Fate::Over, at);
        }
        look_at = loop {
            let plan = played.pass(at);
            if plan.starts.iter().any(|start| start.job == *job) {
                return Some(at);
            }
            leaving.extend(plan.preemptions.into_iter().map(|it| (at + LEAVING, (it.job, it.element))));
            match plan.next_at {
                Some(next) if next <= at => {}
                next => break next,
            }
        };
    }
    None
}

/// All that is planned at one moment, by passes that each call for the next: that they come to an end is part of it. One that passes
/// something over may find it a pass later.
fn settle(world: &mut World) -> [Vec<(JobId, u32)>; 2] {
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        let plan = world.pass();
        starts.extend(plan.starts.into_iter().map(|start| (start.job, start.element)));
        ends.extend(plan.preemptions.into_iter().map(|it| (it.job, it.element)));
        if plan.next_at != Some(world.now) {
            starts.sort();
            ends.sort();
            return [starts, ends];
        }
    }
    panic!("each pass calls for the next");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12_000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_over_allocated_gangs_are_whole_and_everything_comes_back(
        nodes in clusters(),
        policy in policies(),
        quotas in quotas(),
        limit in prop::option::of(1u32..3),
        events in events(),
        is_thorough in any::<bool>(),
    ) {
        let mut twin = world(policy.clone(), nodes.clone(), &quotas, limit);
        // What is passed over because it is known not to start, would not have started.
        twin.scheduler.is_thorough = is_thorough;
        let mut world = world(policy, nodes, &quotas, limit);
        for (id, event) in (1..).zip(&events) {
            apply(&mut world, id, event);
            apply(&mut twin, id, event);
            prop_assert_eq!(settle(&mut twin), settle(&mut world), "the same events have the same plan");
        }
        world.finish();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    /// With nothing else happening, preemptions come to an end: whoever is ended comes back to the queue at once, and may end
    /// whom it may.
    #[test]
    fn preemption_never_cycles(nodes in clusters(), quotas in quotas(), jobs in prop::collection::vec(asks(), 1..14)) {
        let policy = Policy {
            min_run_time: Duration::ZERO,
            preempt_after: Duration::ZERO,
            preemptions_per_day: u32::MAX,
            ..Policy::default()
        };
        let mut world = world(policy, nodes, &quotas, None);
        let mut rounds = 0;
        for (id, ask) in (1..).zip(&jobs) {
            world.submit(request(id, ask));
            loop {
                let plan = world.pass();
                let left = world.leave();
                if plan.preemptions.is_empty() && plan.starts.is_empty() && left == 0 {
                    break;
                }
                rounds += 1;
                prop_assert!(rounds < 400, "it goes on for ever");
            }
        }
        world.finish();
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Everything that is offered instead of what a job asked for is tried by doing it.
    #[test]
    fn every_alternative_starts(
        nodes in clusters(),
        policy in policies(),
        quotas in quotas(),
        events in events(),
    ) {
        let policy = Policy { backfill: Backfill::Reserve, ..policy };
        let mut world = world(policy, nodes, &quotas, Some(2));
        for (id, event) in (1..).zip(&events) {
            apply(&mut world, id, event);
            while world.pass().next_at == Some(world.now) {}
        }
        // Whoever was refused whole nodes by a quota, and these were taken later in the same pass, is looked at by the next.
        while world.pass().next_at == Some(world.now) {}
        let (now, waiting) = (world.now, world.requests.clone());
        for (job, mut request) in waiting {
            let Some(told) = world.scheduler.explain(&job, now) else { continue };
            if world.running.keys().any(|(id, _)| *id == job) {
                continue;
            }
            for alternative in &told.alternatives {
                let mut trial = world.scheduler.clone();
                let asked = request.clone();
                alternative.apply(&mut request);
                trial.withdraw(&job);
                trial.submit(std::mem::replace(&mut request, asked));
                let plan = trial.settle(now);
                let is_started = plan.starts.iter().any(|start| start.job == job);
                let is_promised = plan.preemptions.iter().any(|it| it.by == job);
                let may_wait = matches!(alternative, crate::Alternative::Priority(_));
                prop_assert!(is_started || may_wait && is_promised, "{job} does not start {}", alternative.words());
            }
            if let Some(estimate) = told.estimate {
                prop_assert_eq!(starts_at(&world.scheduler, &job, now), Some(estimate.at), "{} starts when it is said", job);
            }
        }
        world.finish();
    }

    /// A gang as large as the cluster starts although small jobs of higher priority keep coming: at the latest when everybody
    /// that was before it, and everything that ran, has had its time.
    #[test]
    fn a_large_gang_waits_no_longer_than_it_must(
        size in 2usize..5,
        small in prop::collection::vec((1u32..4, 1u64..20, any::<bool>(), 1u32..9), 10..40),
        before in 0usize..4,
    ) {
        let policy = Policy { patience: Duration::ZERO, preemption: false, ..Policy::default() };
        let nodes = (0..size).map(|at| node(at, 8, &[("H100", 4)])).collect();
        let mut world = World::new(policy, nodes);
        const LONGEST: u64 = 20;
        let large = JobId::from_random(1000);
        let mut ends: Vec<(u64, (JobId, u32))> = Vec::new();
        let mut due = None;
        for (at, (devices, length, is_known, priority)) in small.iter().cycle().take(400).enumerate() {
            let minute = world.now;
            if at == before {
                let mut request = gang(at as u64, size as u32, 4);
                request.job = large.clone();
                request.priority = 1;
                world.submit(request);
                due = Some(minute + (before as u64 + 2) * LONGEST);
            }
            let mut request = gang(at as u64 + 1, 1, *devices);
            request.place += 1;
            request.priority = priority * 100;
            request.expected = is_known.then_some(*length);
            let job = world.submit(request);
            world.requests.get_mut(&job).unwrap().submitted_at = *length;
            for start in world.pass().starts {
                let length = if start.job == large { 1 } else { world.requests[&start.job].submitted_at };
                ends.push((minute + length, (start.job, start.element)));
            }
            world.now += 1;
            let over: Vec<_> = ends.extract_if(.., |(at, _)| *at <= world.now).collect();
            over.iter().for_each(|(_, key)| world.end(key, Fate::Over));
            if let Some(start) = world.first_start.get(&large) {
                prop_assert!(*start <= due.unwrap(), "started {} after it was due", start - due.unwrap());
                return Ok(());
            }
        }
        prop_assert!(false, "it never started");
    }
}
