//! Reasons, and what is offered instead.

use std::time::Duration;

use muster_model::JobId;
use muster_model::spec::MAX_PRIORITY;

use super::world::{World, gang, node};
use crate::{Alternative, Policy, Quota, Resource, Standing, Tier};

fn world() -> World {
    let policy = Policy { min_run_time: Duration::ZERO, ..Policy::default() };
    World::new(policy, vec![node(0, 16, &[("H100", 4)]), node(1, 16, &[("H100", 4)])])
}

#[test]
fn every_tier_is_told_apart() {
    let mut world = world();
    world.quota("poor", &[(Resource::Devices, Quota::fixed(1))]);
    world.limit("bob", 1);
    let now = world.now;
    let tell = |world: &mut World, id: u64, change: fn(&mut crate::Request)| {
        let mut request = gang(id, 1, 1);
        change(&mut request);
        let id = world.submit(request);
        world.pass();
        let told = world.scheduler.explain(&id, now).map(|it| it.tier);
        (told, id)
    };
    assert_eq!(tell(&mut world, 1, |it| it.standing = Standing::Held).0, Some(Tier::Held));
    let after = |it: &mut crate::Request| it.standing = Standing::Dependent("after job_x:ok".into());
    assert_eq!(tell(&mut world, 2, after).0, Some(Tier::Dependency));
    let large = |it: &mut crate::Request| it.shape = crate::Shape::Gang(9);
    assert_eq!(tell(&mut world, 3, large).0, Some(Tier::NeverFits));
    let poor = |it: &mut crate::Request| {
        it.workspace = "poor".into();
        it.need.devices = Some("2".parse().unwrap());
    };
    assert_eq!(tell(&mut world, 4, poor).0, Some(Tier::NeverAllowed));
    let poor = |it: &mut crate::Request| it.workspace = "poor".into();
    assert_eq!(tell(&mut world, 5, poor).0, None, "it runs");
    assert_eq!(tell(&mut world, 6, poor).0, Some(Tier::OutOfQuota));
    let bobs = |it: &mut crate::Request| it.user = "bob".into();
    assert_eq!(tell(&mut world, 7, bobs).0, None, "it runs");
    assert_eq!(tell(&mut world, 8, bobs).0, Some(Tier::UserLimit));
    let six = |it: &mut crate::Request| it.need.devices = Some("4".parse().unwrap());
    assert_eq!(tell(&mut world, 9, six).0, None, "it runs");
    assert_eq!(tell(&mut world, 10, six).0, Some(Tier::NoCapacity));
    let one = |it: &mut crate::Request| it.need.devices = Some("2".parse().unwrap());
    assert_eq!(tell(&mut world, 11, one).0, Some(Tier::BehindOthers));
    let account = |it: &mut crate::Request| it.need.volumes = vec!["data".into()];
    let serves =
        crate::Serves { only: None, lacks: Some([("data".to_owned(), "not mounted".to_owned())].into()) };
    let before: Vec<_> = world.nodes.values().cloned().collect();
    for mut node in before {
        node.serves = serves.clone();
        world.scheduler.set_node(node);
    }
    assert_eq!(tell(&mut world, 12, account).0, Some(Tier::NotServed));
}

#[test]
fn an_estimate_names_the_job_that_ends() {
    let mut world = world();
    for id in [1, 2] {
        let mut request = gang(id, 1, 4);
        request.expected = Some(id * 60_000);
        world.submit(request);
    }
    world.pass();
    let both = world.submit(gang(3, 2, 3));
    let one = world.submit(gang(4, 1, 1));
    world.pass();
    let told = world.scheduler.explain(&both, world.now).unwrap();
    assert_eq!((told.tier, told.ahead), (Tier::NoCapacity, Some(0)));
    let estimate = told.estimate.unwrap();
    assert_eq!(estimate.at, world.now + 120_000);
    assert_eq!(estimate.when_ends, Some(JobId::from_random(2)));
    let told = world.scheduler.explain(&one, world.now).unwrap();
    assert_eq!(told.ahead, Some(1));
    assert_eq!(told.estimate.unwrap().at, world.now + 60_000, "beside the large one there is a device left");
}

#[test]
fn what_is_offered_instead_was_tried() {
    let mut world = world();
    world.submit(gang(1, 1, 3));
    world.submit(gang(2, 1, 2));
    world.pass();
    let large = world.submit(gang(3, 2, 4));
    world.pass();
    let told = world.scheduler.explain(&large, world.now).unwrap();
    assert_eq!(told.alternatives, [Alternative::Devices("1".parse().unwrap())]);
    let available = world.scheduler.available("pool", "team", "ann", world.now);
    assert_eq!((available[0].free, available[0].all, available[0].largest), (3, 8, None), "all is kept");
    world.scheduler.withdraw(&large);
    let available = world.scheduler.available("pool", "team", "ann", world.now);
    assert_eq!(available[0].largest, Some((3, 1)));
}

#[test]
fn fewer_devices_and_other_models_are_offered_with_model_and_count() {
    let nodes = vec![node(0, 16, &[("H100", 4)]), node(1, 16, &[("A100", 4)])];
    let mut world = World::new(Policy { min_run_time: Duration::ZERO, ..Policy::default() }, nodes);
    let of = |id: u64, devices: &str| {
        let mut request = gang(id, 1, 1);
        request.need.devices = Some(devices.parse().unwrap());
        request
    };
    world.submit(of(1, "H100:2"));
    world.pass();
    let waits = world.submit(of(2, "h100:4"));
    world.pass();
    let told = world.scheduler.explain(&waits, world.now).unwrap();
    let flags: Vec<String> = told.alternatives.iter().map(Alternative::flag).collect();
    assert_eq!(flags, ["--gpus h100:2", "--gpus A100:4"]);
}

#[test]
fn no_priority_is_offered_beyond_what_the_asker_may_give() {
    let mut world = world();
    for id in [1, 2] {
        let mut request = gang(id, 1, 4);
        request.preemptible = true;
        world.submit(request);
    }
    world.pass();
    let waits = world.submit(gang(3, 2, 4));
    world.pass();
    world.now += 60_000;
    let mut offered =
        |highest| world.scheduler.explain_up_to(&waits, world.now, highest).unwrap().alternatives;
    assert_eq!(offered(MAX_PRIORITY), [Alternative::Priority(501)]);
    assert_eq!(offered(501), [Alternative::Priority(501)]);
    assert_eq!(offered(500), []);
}

#[test]
fn quotas_and_hidden_jobs_are_told_in_sentences() {
    let mut world = world();
    world.quota(
        "team",
        &[(Resource::Model("h100".into()), Quota { nominal: 1, borrow: Some(5), lend: None })],
    );
    world.quota("other", &[(Resource::Model("h100".into()), Quota { nominal: 7, borrow: None, lend: None })]);
    for id in 1..=6 {
        world.submit(gang(id, 1, 1));
    }
    let waits = world.submit(gang(7, 1, 1));
    world.pass();
    let told = world.scheduler.explain(&waits, world.now).unwrap();
    assert_eq!(told.constraint, "team has 6 H100 devices, of which 1 is its own, and may borrow 5");
    let mut of_other = gang(8, 1, 3);
    of_other.workspace = "other".into();
    let reclaims = world.submit(of_other);
    world.now += 60_000;
    world.pass();
    let told = world.scheduler.explain(&reclaims, world.now).unwrap();
    assert_eq!(told.tier, Tier::WaitingForPreemption);
    assert_eq!(told.with_names(|_| None).constraint, "another job was told to end for it and may save first");
}

#[test]
fn jobs_are_listed_by_name_where_they_have_one() {
    let listed = |names: &[&str]| {
        let jobs: Vec<JobId> = (0..names.len() as u64).map(JobId::from_random).collect();
        let told = crate::Explanation {
            tier: Tier::BehindOthers,
            summary: String::new(),
            constraint: crate::why::listed(jobs.iter().map(|job| Some(job.to_string()))),
            help: String::new(),
            alternatives: Vec::new(),
            ahead: None,
            estimate: None,
            no_estimate: None,
            jobs: jobs.clone(),
        };
        let name = |job: &JobId| {
            let name = names[jobs.iter().position(|it| it == job).unwrap()];
            (!name.is_empty()).then(|| name.to_owned())
        };
        told.with_names(name).constraint
    };
    assert_eq!(listed(&[""]), "another job");
    assert_eq!(listed(&["", "", "", ""]), "4 other jobs");
    assert_eq!(listed(&["a"]), "a");
    assert_eq!(listed(&["a", "b", "c"]), "a, b and c");
    assert_eq!(listed(&["a", "", "b"]), "a, b and another job");
    assert_eq!(listed(&["a", "b", "c", "d", ""]), "a, b, c and 2 other jobs");
}

#[test]
fn labels_are_blamed_for_what_only_they_keep_from_starting() {
    let nodes = (0..4).map(|number| node(number, 16, &[("H100", 4)])).collect();
    let mut world = World::new(Policy::default(), nodes);
    let tell = |world: &mut World, id: u64, size: u32, key: &str, value: &str| {
        let mut request = gang(id, size, 4);
        request.labels = [(key.to_owned(), value.to_owned())].into();
        let id = world.submit(request);
        let told = world.scheduler.explain(&id, world.now).unwrap();
        world.scheduler.withdraw(&id);
        told
    };
    let told = tell(&mut world, 1, 1, "rack", "r9");
    assert_eq!((told.tier, &told.alternatives[..]), (Tier::NeverFits, &[Alternative::WithoutLabels][..]));
    assert_eq!(told.summary, "no node has the labels that it asks for");
    assert_eq!(told.constraint, "no node of pool is labelled rack=r9; `rack` is r0, r1 there");
    let told = tell(&mut world, 2, 1, "gpu", "fast");
    assert_eq!(told.constraint, "no node of pool is labelled gpu=fast; no node has a label `gpu`");
    assert!(told.help.contains("`muster nodes label NODE gpu=fast`"), "{}", told.help);
    let told = tell(&mut world, 3, 3, "rack", "r0");
    assert_eq!(
        told.constraint,
        "needs 4 devices for each of 3 tasks at once; of the nodes labelled rack=r0, 2 nodes have 8 such devices in all"
    );
    world.cordon(0, false);
    world.cordon(1, false);
    let told = tell(&mut world, 4, 1, "rack", "r0");
    assert_eq!((told.tier, told.constraint.as_str()), (Tier::NoNode, "it chooses nodes labelled rack=r0"));
}

#[test]
fn an_estimate_knows_of_reclaim_and_each_wait_has_one_or_says_why_not() {
    let policy = Policy { min_run_time: Duration::from_secs(600), ..Policy::default() };
    let mut world = World::new(policy, vec![node(0, 16, &[("H100", 4)])]);
    world.quota("team", &[(Resource::Devices, Quota { nominal: 0, borrow: None, lend: None })]);
    world.quota("owner", &[(Resource::Devices, Quota::shared(4))]);
    let borrower = world.submit(gang(1, 1, 4));
    world.pass();
    let mut own = gang(2, 1, 2);
    own.workspace = "owner".into();
    let own = world.submit(own);
    world.pass();
    let told = world.scheduler.explain(&own, world.now).unwrap();
    assert_eq!(told.tier, Tier::QuotaLent, "{}", told.constraint);
    let estimate = told.estimate.expect("what it has is taken back");
    assert_eq!(estimate.when_ends, Some(borrower));
    let wait = estimate.at - world.now;
    assert!((600_000..=660_000).contains(&wait), "{wait} ms");
    // The borrower comes back and says nothing of its end, so nobody knows when the next of its workspace starts.
    let next = world.submit(gang(3, 1, 4));
    let told = world.scheduler.explain(&next, world.now).unwrap();
    assert!(told.estimate.is_none() && told.no_estimate.is_some(), "{told:?}");
    let mut held = gang(4, 1, 1);
    held.standing = Standing::Held;
    let held = world.submit(held);
    let told = world.scheduler.explain(&held, world.now).unwrap();
    assert_eq!(told.no_estimate.as_deref(), Some("it starts only after it is released"));
}

#[test]
fn a_preview_leaves_no_trace() {
    let mut world = world();
    let told = world.scheduler.preview(gang(1, 1, 4), world.now, MAX_PRIORITY).unwrap();
    assert_eq!(told.tier, Tier::StartsNow);
    assert_eq!(
        world.scheduler.preview(gang(1, 1, 5), world.now, MAX_PRIORITY).unwrap().tier,
        Tier::NeverFits
    );
    world.finish();
}
