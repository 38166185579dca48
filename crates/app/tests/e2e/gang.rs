//! Gangs: what their tasks are given, that they start and end together, and the devices they claim.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use muster_testkit::{Home, with_word};
use serde_json::{Value, json};

use crate::{attempts, home, home_with, python, tasks, until};

/// Every rank meets the others where the platform says rank 0 is, and says what it was given.
const RENDEZVOUS: &str = r#"
import json, os, socket
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(master, backlog=world)
    peers = [server.accept()[0] for _ in range(world - 1)]
    total = sum(int(peer.makefile().readline()) for peer in peers)
    for peer in peers:
        peer.sendall(b"%d\n" % total)
else:
    import time
    deadline = time.monotonic() + 30
    while True:
        try:
            peer = socket.create_connection(master)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    peer.sendall(b"%d\n" % rank)
    total = int(peer.makefile().readline())
names = [name for name in os.environ if name.startswith("MUSTER_")] + ["MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"]
given = {name: os.environ[name] for name in names} | {"rank": rank, "world": world, "total": total}
given["cwd"] = os.getcwd()
print(json.dumps(given))
"#;

/// Submits a gang that meets.
fn meet(home: &Home, nodes: u32) -> String {
    home.write("meet.py", RENDEZVOUS);
    home.submit(&["-N", &nodes.to_string(), "--", python(), "-I", "-S", "meet.py"])
}

/// What each rank of a gang that met says it was given; checked for everything its members must agree on.
fn check_meeting(home: &Home, job: &str, nodes: u32) -> Vec<Value> {
    let waited = home.run(["wait", job]);
    assert_eq!(waited.code(), 0, "{}", home.run(["logs", job]).err());
    let text = home.ok(["logs", job]);
    let mut given: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line.split_once('|').expect("a label").1).expect("what a rank said"))
        .collect();
    given.sort_by_key(|task| task["rank"].as_u64());
    assert_eq!(given.len(), nodes as usize, "{text}");
    let hosts: Vec<&str> = given[0]["MUSTER_HOSTS"].as_str().expect("a list").split(',').collect();
    assert_eq!(
        hosts.iter().collect::<BTreeSet<_>>().len(),
        nodes as usize,
        "every task has its own address: {hosts:?}"
    );
    assert!(
        hosts.iter().all(|host| host.parse::<Ipv4Addr>().expect("an address").is_loopback()),
        "{hosts:?}"
    );
    let detail = home.job(job);
    for (rank, task) in given.iter().enumerate() {
        assert_eq!((&task["rank"], &task["world"]), (&json!(rank), &json!(nodes)));
        assert_eq!(task["total"], json!((0..nodes).sum::<u32>()), "the sum of all ranks went through rank 0");
        for name in ["MUSTER_HOSTS", "MASTER_ADDR", "MASTER_PORT", "MUSTER_NODES", "MUSTER_ATTEMPT"] {
            assert_eq!(task[name], given[0][name], "{name}");
        }
        assert_eq!((&task["MUSTER_JOB_ID"], &task["MUSTER_NODES"]), (&json!(job), &json!(nodes.to_string())));
        assert_eq!((&task["MUSTER_ATTEMPT"], &task["LOCAL_RANK"]), (&json!("1"), &json!("0")));
        assert_eq!(task["MUSTER_JOB_NAME"], detail["name"]);
        assert_eq!(tasks(&detail)[rank]["address"]["ip"], json!(hosts[rank]));
    }
    assert_eq!(given[0]["MASTER_ADDR"], json!(hosts[0]));
    for name in ["MUSTER_TASK_ID", "MUSTER_OUTPUT_DIR", "cwd"] {
        let distinct: BTreeSet<_> = given.iter().map(|task| task[name].as_str().expect(name)).collect();
        assert_eq!(distinct.len(), nodes as usize, "{name} is each task's own");
    }
    given
}

/// Nothing is claimed any more.
fn check_all_is_free(home: &Home) {
    let nodes = home.json(["nodes", "--json"]);
    for node in nodes.as_array().expect("a list of nodes") {
        for amount in ["slots_used", "cpu_millis_used", "memory_bytes_used"] {
            assert_eq!(node[amount], 0, "{amount}: {node}");
        }
        for device in node["devices"].as_array().expect("a list of devices") {
            assert_eq!(device["job"], Value::Null, "{device}");
        }
    }
}

#[test]
fn a_gang_of_two_meets_and_two_gangs_at_once_do_not_collide() {
    let home = home();
    let jobs = [meet(&home, 2), meet(&home, 2)];
    let places: Vec<Vec<Value>> = jobs.iter().map(|job| check_meeting(&home, job, 2)).collect();
    assert_ne!(places[0][0]["MASTER_PORT"], places[1][0]["MASTER_PORT"]);
    check_all_is_free(&home);
}

#[test]
fn a_gang_of_sixteen_meets() {
    let home = home();
    let job = meet(&home, 16);
    check_meeting(&home, &job, 16);
    check_all_is_free(&home);
}

#[test]
fn one_failing_rank_stops_the_gang_and_is_shown_first() {
    let home = home();
    let mark = format!("gang-{}", std::process::id());
    let script = r#"
if [ "$RANK" = 2 ]; then
    while [ ! -e "$SHARED/0" ] || [ ! -e "$SHARED/1" ] || [ ! -e "$SHARED/3" ]; do sleep 0.01; done
    echo "loss is nan" >&2; exit 9
fi
echo "rank $RANK works"; touch "$SHARED/$RANK"; exec sleep 600"#;
    let done = home.run(["run", "-N", "4", "--", "sh", "-c", script, &mark]);
    assert_eq!(done.code(), 9, "{}", done.err());
    assert_eq!(with_word(&mark), []);
    let said = done.err();
    let summary = &said[said.find("error[exit_code]:").expect("a summary")..];
    let place = |text: &str| summary.find(text).unwrap_or_else(|| panic!("{text:?} is not in\n{summary}"));
    assert!(place("task2 exited with code 9") < place("task2 | loss is nan"), "{summary}");
    assert!(place("task2 | loss is nan") < place("3 other tasks were stopped"), "{summary}");
    assert!(!summary.contains("works"), "the others are folded: {summary}");
    for rank in [0, 1, 3] {
        assert!(done.out().contains(&format!("task{rank} | rank {rank} works\n")), "{}", done.out());
    }
    let job = home.job("last");
    assert_eq!((&job["failed_rank"], &job["exit_code"]), (&json!(2), &json!(9)));
    assert_eq!(job["reason"], json!({"code": "exit_code", "exit_code": 9, "error": "loss is nan"}));
    let why = home.json(["why", "last", "--json"]);
    assert!(why["constraint"].as_str().is_some_and(|text| text.contains("task2")), "{why}");
    check_all_is_free(&home);
}

#[test]
fn a_gang_that_is_to_continue_outlives_its_failing_rank() {
    let home = home();
    let script = format!("[ \"$RANK\" = 0 ] && exit 5; {}; echo finished", until("go"));
    let words = ["-N", "3", "--on-failure", "continue", "--", "sh", "-c", &script];
    let id = home.submit(&words);
    muster_testkit::wait_for("rank 0 to end", || {
        let job = home.get(&format!("/api/v1/jobs/{id}")).json();
        attempts(&job).last().is_some_and(|last| last["tasks"][0]["phase"] == "ended")
    });
    let job = home.wait_for_state(&id, "running");
    assert_eq!(tasks(&job)[1]["phase"], "running");
    home.touch("go");
    assert_eq!(home.run(["wait", &id]).code(), 5);
    let mut lines: Vec<String> = home.ok(["logs", &id]).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["task1 | finished", "task2 | finished"]);
    let job = home.job(&id);
    assert_eq!((&job["failed_rank"], &tasks(&job)[1]["failure"]), (&json!(0), &Value::Null));
}

#[test]
fn a_gang_that_cannot_fit_waits_whole_and_starts_when_there_is_room() {
    let home = home_with("[local]\nslots = 3\n");
    let first = home.submit(&["-N", "2", "--", "sh", "-c", &until("go")]);
    home.wait_for_state(&first, "running");
    let gang = home.submit(&["-N", "3", "--", "sh", "-c", "echo started"]);
    let why = home.json(["why", &gang, "--json"]);
    assert_eq!(why["code"], "no_capacity");
    assert!(why["summary"].as_str().is_some_and(|text| text.contains("1 of its 3 tasks")), "{why}");
    assert!(why["constraint"].as_str().is_some_and(|text| text.contains("1 slot free")), "{why}");
    assert_eq!(why["options"][0]["change"], "--nodes 1", "{why}");
    let waiting = home.job(&gang);
    assert_eq!(
        (&waiting["state"], &waiting["attempt"]),
        (&json!("queued"), &json!(0)),
        "no part of it starts"
    );
    let client = home.start(["run", "-N", "2", "--name", "watched", "--", "true"]);
    muster_testkit::wait_for("the client to say what it waits for", || {
        client.err().contains("waits for room")
    });
    home.touch("go");
    home.wait_for_state(&gang, "succeeded");
    assert_eq!(client.finish().code(), 0);
    assert_eq!(home.ok(["logs", &gang]).lines().count(), 3);
    check_all_is_free(&home);
}

#[test]
fn devices_are_claimed_whole_shown_and_given_back() {
    let home = home_with("[local]\ndevices = [\"H100:8\"]\n");
    let node = home.wait_for_node();
    assert_eq!(node["devices"].as_array().map(Vec::len), Some(8));
    assert!(node["devices"].as_array().unwrap().iter().all(|device| device["simulated"] == true), "{node}");
    let script = format!("echo \"$CUDA_VISIBLE_DEVICES\"; {}", until("go"));
    let holders = [
        home.submit(&["-N", "2", "--gpus", "2", "--", "sh", "-c", &script]),
        home.submit(&["--gpus", "H100:3", "--", "sh", "-c", &script]),
    ];
    for job in &holders {
        home.wait_for_state(job, "running");
    }
    assert!(home.ok(["nodes"]).contains("8x H100 80 GB simulated (1 free)"), "{}", home.ok(["nodes"]));

    // Too much for now: it waits, and says for what.
    let third = home.submit(&["--gpus", "2", "--", "sh", "-c", "echo \"$CUDA_VISIBLE_DEVICES\""]);
    let why = home.json(["why", &third, "--json"]);
    assert_eq!(why["code"], "no_capacity");
    assert!(why["constraint"].as_str().is_some_and(|text| text.contains("1 such device free")), "{why}");
    assert_eq!(why["options"][0]["change"], "--gpus 1", "{why}");

    // Without asking there are none, and one is told so.
    let done = home.run(["run", "--", "sh", "-c", "echo \"[${CUDA_VISIBLE_DEVICES-unset}]\""]);
    assert_eq!(done.out(), "[]\n");
    assert!(done.err().contains("8 simulated H100") && done.err().contains("--gpus"), "{}", done.err());

    let view = home.json(["nodes", "--json"]);
    let held = |job: &str| -> BTreeSet<u64> {
        let devices = view[0]["devices"].as_array().unwrap().iter();
        devices
            .filter(|device| device["job"] == json!(job))
            .map(|device| device["index"].as_u64().unwrap())
            .collect()
    };
    home.touch("go");
    let mut seen = BTreeSet::new();
    for job in &holders {
        home.wait_for_state(job, "succeeded");
        let log = home.ok(["logs", job]);
        let mut own = BTreeSet::new();
        for (line, task) in log.lines().zip(tasks(&home.job(job))) {
            let devices =
                line.rsplit(' ').next().unwrap().split(',').map(|index| index.parse::<u64>().unwrap());
            for device in devices {
                assert!(seen.insert(device), "device {device} was given twice");
                own.insert(device);
            }
            assert!(!task["devices"].as_array().unwrap().is_empty(), "{task}");
        }
        assert_eq!(own, held(job), "what the tasks saw is what `nodes` showed");
    }
    assert_eq!(seen.len(), 7);
    home.wait_for_state(&third, "succeeded");
    check_all_is_free(&home);
}

#[test]
fn asking_for_more_than_there_is_names_the_most_there_is() {
    let home = home_with("[local]\ndevices = [\"H100:8\"]\nslots = 20\ncpus = 4\nmemory = \"8GB\"\n");
    home.wait_for_node();
    for (words, field, most) in [
        (&["--gpus", "9"][..], "--gpus:", "one node is 8"),
        (&["--gpus", "A100:1"], "--gpus:", "no node here has such a device"),
        (&["-N", "5", "--gpus", "2"], "--nodes:", "--nodes 4 or fewer"),
        (&["-N", "21"], "--nodes:", "--nodes 20 or fewer"),
        (&["--cpus", "5"], "--cpus:", "4 CPUs"),
        (&["--memory", "9GB"], "--memory:", "8 GB"),
        (&["--gpus", "1", "--memory", "9GB"], "--memory:", "8 GB"),
    ] {
        let done = home.run(["run"].iter().chain(words).chain(&["--", "true"]));
        assert_eq!(done.code(), 2, "{words:?}: {}", done.err());
        assert!(done.err().contains(field) && done.err().contains(most), "{words:?}: {}", done.err());
    }
    assert_eq!(home.json(["ps", "-a", "--json"]), json!([]));
    let done = home.run(["run", "-N", "4", "--gpus", "2", "--cpus", "1", "--memory", "2GB", "--", "true"]);
    assert_eq!(done.code(), 0, "exactly what there is can be had: {}", done.err());
}

#[test]
fn ascend_devices_are_given_through_their_own_variable() {
    let home = home_with("[local]\ndevices = [\"ascend:4\"]\n");
    home.wait_for_node();
    let script = "echo \"[$ASCEND_RT_VISIBLE_DEVICES][${CUDA_VISIBLE_DEVICES-unset}]\"";
    assert_eq!(home.ok(["run", "--gpus", "ascend:2", "--", "sh", "-c", script]), "[0,1][]\n");
    assert_eq!(home.ok(["run", "--", "sh", "-c", script]), "[][]\n");
    assert_eq!(home.run(["run", "--gpus", "H100:1", "--", "true"]).code(), 2);
}

#[test]
fn devices_of_two_makers_on_one_node_are_told_apart() {
    let home = home_with("[local]\ndevices = [\"H100:2\", \"ascend:2\"]\n");
    home.wait_for_node();
    let script = format!("echo \"[$CUDA_VISIBLE_DEVICES][$ASCEND_RT_VISIBLE_DEVICES]\"; {}", until("go"));
    let nvidia = home.submit(&["--gpus", "H100:2", "--", "sh", "-c", &script]);
    home.wait_for_state(&nvidia, "running");
    let ascend = home.submit(&["--gpus", "ascend:2", "--", "sh", "-c", &script]);
    home.wait_for_state(&ascend, "running");
    home.touch("go");
    home.wait_for_state(&nvidia, "succeeded");
    home.wait_for_state(&ascend, "succeeded");
    assert_eq!(home.ok(["logs", &nvidia]), "[0,1][]\n");
    assert_eq!(home.ok(["logs", &ascend]), "[][0,1]\n");
    check_all_is_free(&home);
}

#[test]
fn a_retry_is_a_new_attempt_and_the_old_one_stays_visible() {
    let home = home();
    let script = "echo \"try $MUSTER_ATTEMPT\"; [ \"$MUSTER_ATTEMPT\" = 3 ] || exit 8";
    let done = home.run(["run", "--retries", "2", "--", "sh", "-c", script]);
    assert_eq!((done.code(), done.out().as_str()), (0, "try 1\ntry 2\ntry 3\n"), "{}", done.err());
    assert!(done.err().contains("attempt 3 begins"), "{}", done.err());
    let job = home.job("last");
    let codes: Vec<&Value> = attempts(&job).iter().map(|attempt| &attempt["reason"]["exit_code"]).collect();
    assert_eq!((codes, &job["attempt"]), (vec![&json!(8), &json!(8), &Value::Null], &json!(3)));
    assert_eq!(home.ok(["logs", "last", "--attempt", "1"]), "try 1\n");
    assert_eq!(home.ok(["logs", "last"]), "try 3\n");
    assert!(home.ok(["show", "last"]).contains("exited with code 8"));

    let done = home.run(["run", "--retries", "1", "--", "sh", "-c", "exit 8"]);
    assert_eq!((done.code(), attempts(&home.job("last")).len()), (8, 2), "{}", done.err());
    // What another try cannot mend is not tried again.
    let done = home.run(["run", "--retries", "3", "--", "no-such-program-7f3"]);
    assert_eq!((done.code(), attempts(&home.job("last")).len()), (127, 1), "{}", done.err());
    home.write("job.yaml", "retries: {max: 2, on: [signal], backoff: 300ms}\ncommand: exit 8\n");
    let done = home.run(["run", "job.yaml"]);
    assert_eq!((done.code(), attempts(&home.job("last")).len()), (8, 1), "{}", done.err());
    let done = home.run(["run", "job.yaml", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!((done.code(), attempts(&home.job("last")).len()), (137, 3), "{}", done.err());
    check_all_is_free(&home);
}

#[test]
fn cpus_and_memory_are_claimed_only_by_who_asks() {
    let home = home_with("[local]\ncpus = 3\nmemory = \"4GB\"\nslots = 8\n");
    home.wait_for_node();
    let wait = until("go");
    let cpus = home.submit(&["-N", "2", "--cpus", "1.25", "--", "sh", "-c", &wait]);
    let memory = home.submit(&["--memory", "3GB", "--", "sh", "-c", &wait]);
    let neither = home.submit(&["-N", "7", "--", "sh", "-c", &wait]);
    for job in [&cpus, &memory, &neither] {
        home.wait_for_state(job, "running");
    }
    let node = &home.json(["nodes", "--json"])[0];
    assert_eq!((&node["cpu_millis_used"], &node["cpu_millis"]), (&json!(2500), &json!(3000)));
    assert_eq!((&node["memory_bytes_used"], &node["memory_bytes"]), (&json!(3u64 << 30), &json!(4u64 << 30)));
    assert_eq!(
        (&node["slots_used"], &node["slots"]),
        (&json!(8), &json!(8)),
        "one that asks for CPUs takes no slot"
    );
    let late = [
        (home.submit(&["--cpus", "1", "--", "true"]), "0.5 CPUs free"),
        (home.submit(&["--memory", "2GB", "--cpus", "0.1", "--", "true"]), "1 GB of memory free"),
    ];
    for (job, free) in &late {
        let why = home.json(["why", job, "--json"]);
        assert_eq!(why["code"], "no_capacity", "{why}");
        assert!(why["constraint"].as_str().is_some_and(|text| text.contains(free)), "{why}");
    }
    home.touch("go");
    for (job, _) in &late {
        home.wait_for_state(job, "succeeded");
    }
    for job in [&cpus, &memory, &neither] {
        home.wait_for_state(job, "succeeded");
    }
    check_all_is_free(&home);
}

#[test]
fn the_queue_goes_by_priority_then_by_age() {
    let home = home_with("[local]\nslots = 1\n");
    let blocker = home.submit(&["--", "sh", "-c", &until("go")]);
    home.wait_for_state(&blocker, "running");
    let mut jobs = Vec::new();
    for (name, priority) in [("low", "100"), ("middle-old", "500"), ("high", "900"), ("middle-new", "500")] {
        let script = format!("echo {name} >> \"$SHARED/order\"");
        jobs.push(home.submit(&["--name", name, "--priority", priority, "--", "sh", "-c", &script]));
    }
    home.touch("go");
    for job in &jobs {
        home.wait_for_state(job, "succeeded");
    }
    assert_eq!(home.wait_for_file("order"), "high\nmiddle-old\nmiddle-new\nlow\n");
}
