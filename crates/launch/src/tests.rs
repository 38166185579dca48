//! Gangs for the tests of all contracts, and what holds for every one of them.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use muster_model::launch::Work;
use muster_model::node::{Account, Device, Vendor};
use muster_model::spec::JobSpec;
use muster_model::task::Address;
use muster_model::{AttemptId, JobId};
use serde_json::{Value, json};

use crate::{Gang, Member, Port, parts, settle, tell_apart};

/// A settled spec.
pub(crate) fn spec(mut fields: Value) -> JobSpec {
    if fields.get("command").is_none() && fields.get("kind").is_none() {
        fields["command"] = json!(["python", "train.py"]);
    }
    let mut spec = JobSpec::from_value(fields).unwrap();
    settle(&mut spec);
    spec
}

/// A gang of this spec on hosts of their own, with as many devices as it asks for.
pub(crate) fn gang(spec: &JobSpec) -> Gang<'_> {
    let member = |rank: u32| Member {
        host: format!("host{rank}"),
        account: Account { name: "ann".into(), uid: 1000, gid: 1000, home: "/home/ann".into() },
        address: Address {
            shared_port: Some(20_022),
            interface: Some("eth0".into()),
            ..Address::new(
                Ipv4Addr::new(10, 0, 0, 1 + rank as u8),
                (0..crate::ports(spec) as u16).map(|port| 10_000 + 100 * rank as u16 + port).collect(),
            )
        },
        devices: (0..spec.resources.device_count()).map(|index| (index, device(rank, index))).collect(),
    };
    Gang {
        attempt: AttemptId { job: JobId::from_random(7), number: 2 },
        job_name: "bert".into(),
        workspace: "vision".into(),
        spec,
        shares_directories: true,
        members: (0..spec.nodes).map(member).collect(),
    }
}

fn device(rank: u32, index: u32) -> Device {
    Device {
        index,
        vendor: Vendor::Nvidia,
        model: "H100".into(),
        uuid: format!("GPU-{rank}-{index}"),
        memory_bytes: 80 << 30,
        simulated: false,
        ip: None,
    }
}

#[test]
fn members_on_one_machine_do_not_share_a_port_that_two_agents_found_free() {
    let spec = spec(json!({ "nodes": 3, "framework": "mpi" }));
    let mut gang = gang(&spec);
    gang.members[2].address.ip = gang.members[0].address.ip;
    tell_apart(&mut gang.members);
    let ports: Vec<u16> = gang.members.iter().map(|member| member.port(Port::Ssh)).collect();
    assert_eq!(ports, [20_022, 20_022, 10_201]);
}

/// The same on hosts with Ascend devices, each with an address of its own.
pub(crate) fn ascend_gang(spec: &JobSpec) -> Gang<'_> {
    let mut gang = gang(spec);
    for (rank, member) in (0..).zip(&mut gang.members) {
        for (number, device) in &mut member.devices {
            device.vendor = Vendor::Ascend;
            device.model = "910B".into();
            device.uuid = format!("NPU-{rank}-{number}");
            device.ip = Some(Ipv4Addr::new(192, 168, 10 + *number as u8, 1 + rank).into());
        }
    }
    gang
}

#[test]
fn every_member_agrees_on_rank_0_and_knows_itself() {
    let spec = spec(json!({"nodes": 3}));
    let gang = gang(&spec);
    for (rank, part) in parts(&gang).iter().enumerate() {
        let get = |name: &str| part.env[name].as_str();
        assert_eq!(get("RANK"), rank.to_string());
        assert_eq!((get("WORLD_SIZE"), get("MUSTER_NODES")), ("3", "3"));
        assert_eq!((get("MASTER_ADDR"), get("MASTER_PORT")), ("10.0.0.1", "10000"));
        assert_eq!(get("MUSTER_HOSTS"), "10.0.0.1,10.0.0.2,10.0.0.3");
        assert_eq!(get("MUSTER_TASK_ID"), gang.attempt.task(rank as u32).to_string());
        assert_eq!(get("MUSTER_ATTEMPT"), "2");
        assert_eq!(part.defaults["NCCL_SOCKET_IFNAME"], "eth0");
    }
}

#[test]
fn a_process_is_told_what_torchrun_tells_its_workers() {
    let numbers = |env: &BTreeMap<String, String>| {
        let get = |name: &str| env[name].clone();
        [
            get("RANK") + " of " + &get("WORLD_SIZE"),
            get("LOCAL_RANK") + " of " + &get("LOCAL_WORLD_SIZE"),
            get("GROUP_RANK") + " of " + &get("GROUP_WORLD_SIZE"),
            get("ROLE_RANK") + " of " + &get("ROLE_WORLD_SIZE") + " " + &get("ROLE_NAME"),
            "node ".to_owned() + &get("NODE_RANK"),
        ]
    };
    for framework in ["plain", "pytorch", "deepspeed", "jax", "paddle"] {
        let spec = spec(json!({"nodes": 2, "framework": framework}));
        let env = parts(&gang(&spec)).remove(1).env;
        assert_eq!(numbers(&env), ["1 of 2", "0 of 1", "1 of 2", "1 of 2 default", "node 1"], "{framework}");
        assert!(env.keys().all(|name| !name.starts_with("TORCHELASTIC_")), "no agent of torchrun's is there");
    }
    let spec = spec(json!({"nodes": 2, "framework": "jax", "processes": 2}));
    let part = parts(&gang(&spec)).remove(1);
    assert_eq!(part.defaults["NNODES"], "2");
    let Work::Run(processes) = part.work else { panic!("it runs") };
    let told: Vec<_> = processes.iter().map(|process| numbers(&process.env)).collect();
    assert_eq!(told[0], ["2 of 4", "0 of 2", "1 of 2", "2 of 4 default", "node 1"]);
    assert_eq!(told[1], ["3 of 4", "1 of 2", "1 of 2", "3 of 4 default", "node 1"]);
}

#[test]
fn processes_of_mpirun_do_not_find_the_numbers_of_their_task() {
    for fields in
        [json!({"nodes": 2, "command": "mpirun train"}), json!({"nodes": 2, "framework": "horovod"})]
    {
        let spec = spec(fields);
        for part in parts(&gang(&spec)) {
            for name in ["RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"] {
                assert_eq!(part.env.get(name), None, "{name}");
            }
        }
    }
}

#[test]
fn members_go_by_their_numbers_the_jobs_name_and_its_id() {
    let spec = spec(json!({"nodes": 2}));
    let gang = gang(&spec);
    let job = &gang.attempt.job;
    let names = |rank| crate::names(&gang, rank).join(" ");
    assert_eq!(names(0), format!("worker-0 ib-worker-0 ps-0 task0.bert task0.{job}"));
    assert_eq!(names(1), format!("worker-1 ib-worker-1 task1.bert task1.{job}"));
}

#[test]
fn members_let_each_other_in_only_where_somebody_comes() {
    let lets_in = |fields| parts(&gang(&spec(fields))).iter().map(|part| part.peers).collect::<Vec<_>>();
    assert_eq!(lets_in(json!({"nodes": 2})), [false, false]);
    assert_eq!(lets_in(json!({"nodes": 2, "framework": "pytorch"})), [false, false]);
    assert_eq!(lets_in(json!({"nodes": 2, "command": "mpirun train"})), [true, true]);
    assert_eq!(lets_in(json!({"nodes": 2, "command": "ssh worker-1 hostname"})), [true, true]);
    assert_eq!(lets_in(json!({"nodes": 2, "faces": ["dlws"]})), [true, true]);
    // Who waits for what another one starts must be reached by it.
    assert_eq!(lets_in(json!({"nodes": 2, "command_on": "first"})), [true, true]);
    assert_eq!(lets_in(json!({"nodes": 1, "command_on": "first"})), [false]);
    assert_eq!(lets_in(json!({"nodes": 2, "peers": true})), [true, true]);
    assert_eq!(lets_in(json!({"nodes": 2, "peers": false, "command": "mpirun train"})), [false, false]);
}

#[test]
fn machines_wait_have_no_ranks_and_reach_each_other() {
    let machines = |nodes: u32| spec(json!({"kind": "machine", "name": "v100", "nodes": nodes}));
    for nodes in [1, 2] {
        let spec = machines(nodes);
        for part in parts(&gang(&spec)) {
            assert_eq!((part.work, part.peers), (Work::Wait, nodes > 1));
            assert!(part.env.contains_key("MUSTER_RANK"));
            for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"] {
                assert!(!part.env.contains_key(name), "a program there would take {name} for its own");
            }
        }
    }
}
