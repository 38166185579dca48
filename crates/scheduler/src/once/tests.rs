//! The planner's rules, on small clusters by hand and on random ones by property.

use muster_model::node::{Capacity, Device, Vendor};
use muster_model::{JobId, NodeId};
use proptest::prelude::*;

use super::*;
use crate::explain::explain;

fn node(name: &str, cpus: u64, devices: u32) -> Free {
    let devices = (0..devices)
        .map(|index| Device {
            index,
            vendor: Vendor::Nvidia,
            model: "H100".into(),
            uuid: format!("{name}-{index}"),
            memory_bytes: 80 << 30,
            simulated: true,
            ip: None,
        })
        .collect();
    let id: NodeId = format!("node_{name}").parse().unwrap();
    Free::whole(id, Capacity { cpu_millis: cpus * 1000, memory_bytes: 64 << 30, slots: 64, devices })
}

fn gang(id: u64, nodes: u32, devices: u32) -> Waiting {
    let devices = (devices > 0).then(|| devices.to_string().parse().unwrap());
    Waiting {
        job: JobId::from_random(id),
        nodes,
        need: Need { devices, ..Need::default() },
        prefer: Vec::new(),
    }
}

fn admitted(plan: &[Admission]) -> Vec<JobId> {
    plan.iter().map(|admission| admission.job.clone()).collect()
}

#[test]
fn a_gang_starts_whole_or_waits_whole() {
    let mut free = [node("a", 8, 8)];
    let (three, two) = (gang(1, 3, 4), gang(2, 2, 4));
    assert!(plan(&mut free, [&three].into_iter()).is_empty());
    assert_eq!(admitted(&plan(&mut free, [&two].into_iter())), [two.job]);
    assert!(free[0].devices.is_empty());
}

#[test]
fn a_blocked_gang_keeps_what_it_could_have() {
    let mut free = [node("a", 8, 8)];
    let running = gang(1, 1, 4);
    plan(&mut free, [&running].into_iter());
    let (large, small, no_device) = (gang(2, 1, 8), gang(3, 1, 2), gang(4, 1, 0));
    // What competes with the large one waits behind it; what does not is not kept waiting.
    let plan = plan(&mut free, [&large, &small, &no_device].into_iter());
    assert_eq!(admitted(&plan), [no_device.job]);
}

#[test]
fn smaller_jobs_do_not_take_the_places_a_blocked_gang_could_have() {
    let mut free = [node("a", 8, 8), node("b", 8, 8)];
    plan(&mut free, [&gang(1, 1, 8)].into_iter());
    let (large, small) = (gang(2, 2, 8), gang(3, 1, 2));
    assert!(plan(&mut free, [&large, &small].into_iter()).is_empty());
}

#[test]
fn a_long_queue_of_blocked_gangs_hides_nobody_behind_it() {
    let mut free = [node("a", 8, 8)];
    plan(&mut free, [&gang(1, 1, 8)].into_iter());
    let blocked: Vec<Waiting> = (2..5000).map(|id| gang(id, 1, 1)).collect();
    let last = gang(9999, 1, 0);
    assert_eq!(admitted(&plan(&mut free, blocked.iter().chain([&last]))), [last.job]);
}

#[test]
fn what_never_fits_blocks_nobody() {
    let mut free = [node("a", 8, 8)];
    let (never, small) = (gang(1, 1, 9), gang(2, 1, 8));
    assert_eq!(admitted(&plan(&mut free, [&never, &small].into_iter())), [small.job]);
}

#[test]
fn fuller_nodes_are_filled_first() {
    let mut free = [node("a", 8, 8), node("b", 8, 2)];
    let small = gang(1, 1, 2);
    let plan = plan(&mut free, [&small].into_iter());
    assert_eq!(plan[0].placements[0].node.as_str(), "node_b");
}

#[test]
fn every_obstacle_names_what_would_help() {
    let free = [node("a", 8, 8)];
    let never = explain(&free, &gang(1, 1, 9), 0).unwrap();
    assert_eq!(never.code, "never_fits");
    assert!(never.help.contains('8'), "{never:?}");
    let many = explain(&free, &gang(1, 3, 4), 0).unwrap();
    assert!(many.help.contains("--nodes 2"), "{many:?}");
    let mut busy = free.clone();
    plan(&mut busy, [&gang(1, 1, 6)].into_iter());
    let wait = explain(&busy, &gang(2, 1, 4), 0).unwrap();
    assert_eq!(wait.code, "no_capacity");
    assert!(wait.help.contains("2 devices instead of 4"), "{wait:?}");
    assert_eq!(explain(&[], &gang(1, 1, 0), 0).unwrap().code, "no_node");
    assert_eq!(explain(&free, &gang(1, 1, 8), 0), None);
}

fn whole(id: u64, nodes: u32) -> Waiting {
    Waiting { need: Need { exclusive: true, ..Need::default() }, ..gang(id, nodes, 0) }
}

#[test]
fn a_machine_has_its_node_alone_and_all_its_devices() {
    let empty = [node("a", 8, 4), node("b", 8, 2)];
    let mut free = empty.clone();
    let machines = whole(1, 2);
    let plan_of = |free: &mut [Free], waiting: &Waiting| plan(free, [waiting].into_iter());
    let admitted = plan_of(&mut free, &machines).remove(0);
    let devices: Vec<usize> = admitted.placements.iter().map(|place| place.devices.len()).collect();
    assert_eq!(devices, [2, 4]);
    assert!(plan_of(&mut free, &gang(2, 1, 0)).is_empty(), "nothing else starts there");
    assert!(plan_of(&mut free, &whole(3, 1)).is_empty());
    for placement in &admitted.placements {
        let node = free.iter_mut().find(|node| node.node == placement.node).unwrap();
        node.release(&machines.need, &placement.devices);
    }
    assert_eq!(free, empty);
    // Where something runs, there is no machine, however little it is.
    plan_of(&mut free, &gang(4, 1, 1));
    assert_eq!(
        explain(&free, &whole(5, 2), 0).unwrap().constraint,
        "needs a whole node for each of 2 tasks at once; 1 of 2 nodes has nothing on it"
    );
    assert!(!fits_ever(&empty, 3, &machines.need));
}

#[test]
fn a_waiting_machine_is_not_overtaken_for_ever() {
    let mut free = [node("a", 8, 4)];
    plan(&mut free, [&gang(1, 1, 1)].into_iter());
    assert!(plan(&mut free, [&whole(2, 1), &gang(3, 1, 1)].into_iter()).is_empty());
}

#[test]
fn every_rank_goes_back_to_the_node_it_had() {
    let mut free = [node("a", 8, 0), node("b", 8, 0), node("c", 8, 0)];
    let had = |names: &[&str]| names.iter().map(|name| format!("node_{name}").parse().unwrap()).collect();
    let back = Waiting { prefer: had(&["c", "a"]), ..whole(1, 2) };
    let nodes = |plan: &[Admission]| -> Vec<String> {
        plan[0].placements.iter().map(|place| place.node.to_string()).collect()
    };
    assert_eq!(nodes(&plan(&mut free, [&back].into_iter())), ["node_c", "node_a"]);
    // One that is taken is replaced, and the other rank keeps its own.
    let mut free = [node("a", 8, 0), node("b", 8, 0), node("c", 8, 0)];
    free[2].usable = false;
    assert_eq!(nodes(&plan(&mut free, [&back].into_iter())), ["node_b", "node_a"]);
}

proptest! {
    #[test]
    fn nothing_is_ever_over_claimed_and_everything_comes_back(
        sizes in prop::collection::vec((1u64..16, 0u32..9), 1..5),
        jobs in prop::collection::vec((1u32..5, 0u32..9, 0u64..6000, prop::bool::weighted(0.2)), 0..30),
    ) {
        let whole: Vec<Free> = sizes.iter().enumerate().map(|(i, (c, d))| node(&format!("n{i}"), *c, *d)).collect();
        let queue: Vec<Waiting> = jobs.iter().enumerate().map(|(i, (nodes, devices, cpu, exclusive))| {
            let mut waiting = gang(i as u64, *nodes, *devices);
            waiting.need.cpu_millis = *cpu;
            waiting.need.exclusive = *exclusive;
            waiting
        }).collect();
        let mut free = whole.clone();
        let plan = plan(&mut free, queue.iter());
        for node in &whole {
            let mut claimed_devices = Vec::new();
            let mut claimed_cpu = 0;
            let (mut tasks, mut alone) = (0, false);
            for admission in &plan {
                let waiting = queue.iter().find(|waiting| waiting.job == admission.job).unwrap();
                prop_assert_eq!(admission.placements.len(), waiting.nodes as usize);
                for placement in admission.placements.iter().filter(|placement| placement.node == node.node) {
                    let asked = waiting.need.devices.as_ref().map_or(0, |r| r.count as usize);
                    let given = if waiting.need.exclusive { node.devices.len() } else { asked };
                    prop_assert_eq!(placement.devices.len(), given);
                    (tasks, alone) = (tasks + 1, alone || waiting.need.exclusive);
                    claimed_devices.extend(placement.devices.clone());
                    claimed_cpu += waiting.need.cpu_millis;
                }
            }
            prop_assert!(claimed_cpu <= node.capacity.cpu_millis);
            prop_assert!(tasks <= 1 || !alone, "something runs beside a machine");
            let count = claimed_devices.len();
            claimed_devices.sort_unstable();
            claimed_devices.dedup();
            prop_assert_eq!(claimed_devices.len(), count, "a device was given twice");
        }
        for admission in &plan {
            let waiting = queue.iter().find(|waiting| waiting.job == admission.job).unwrap();
            for placement in &admission.placements {
                let node = free.iter_mut().find(|node| node.node == placement.node).unwrap();
                node.release(&waiting.need, &placement.devices);
            }
        }
        prop_assert_eq!(free, whole);
    }
}
