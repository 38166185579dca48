//! The server: started on demand and only once, replaced, stopped, gone when idle; and its interface as programs see it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use muster_testkit::http::{Door, Event, Request};
use muster_testkit::{Home, Running, executable, is_alive, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{home, home_with, until};

/// A task that prints numbered lines until it is told to end, and notes how far it is.
fn counting(last: &str) -> String {
    format!(
        "i=0; while [ ! -e \"$SHARED/{last}\" ]; do i=$((i + 1)); echo \"line $i\"; echo $i > \"$SHARED/at.new\"; \
         mv \"$SHARED/at.new\" \"$SHARED/at\"; sleep 0.01; done"
    )
}

/// Waits until the counting task has printed so many more lines.
fn wait_for_progress(home: &Home, lines: u64) {
    let at = || home.wait_for_file("at").trim().parse::<u64>().unwrap_or(0);
    let goal = at() + lines;
    wait_for("the task to go on", || at() >= goal);
}

/// The counting task's log: every line, once, in order.
fn check_count(home: &Home, job: &str) {
    let text = home.ok(["logs", job]);
    let count: u64 = home.wait_for_file("at").trim().parse().expect("a number");
    let expected: String = (1..=count).map(|i| format!("line {i}\n")).collect();
    assert_eq!(text, expected);
}

#[test]
fn ten_commands_from_nothing_start_one_server() {
    let home = home();
    let words =
        |i: usize| if i.is_multiple_of(2) { &["nodes"][..] } else { &["run", "--", "sh", "-c", "exit 3"] };
    let commands: Vec<Running> = (0..10).map(|i| home.start(words(i))).collect();
    for (i, command) in commands.into_iter().enumerate() {
        let done = command.finish();
        assert_eq!(done.code(), if i.is_multiple_of(2) { 0 } else { 3 }, "{}", done.err());
    }
    assert_eq!(home.processes_as("server").len(), 1);
    let log = fs::read_to_string(home.path().join("server.log")).unwrap();
    assert_eq!(log.matches("the server is ready").count(), 1, "{log}");
    wait_for("the agent to be there", || home.processes_as("agent").len() == 1);

    // Nobody else may come in, or look.
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&home.path()), 0o700);
    for private in ["server.sock", "token", "server.key", "node/token"] {
        assert_eq!(mode(&home.path().join(private)), 0o600, "{private}");
    }
}

#[test]
fn another_binary_replaces_the_server_and_jobs_survive() {
    let mut home = home();
    let job = home.submit(&["--", "sh", "-c", &counting("end")]);
    wait_for_progress(&home, 10);
    let server = home.server_pid();
    let client = home.start(["run", "--", "sh", "-c", &format!("echo up; {}; exit 3", until("end"))]);
    client.wait_for_out("up\n");
    let follower = home.start(["logs", "-f", &job]);
    follower.wait_for_out("line 10\n");

    let copy = home.work().with_file_name("muster-of-tomorrow");
    // By another process: a file that this one has open for writing may be so, for a moment, in a child of another test
    // that was just forked, and then cannot be executed.
    let copied =
        std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_muster")).arg(&copy).status().unwrap();
    assert!(copied.success());
    home.set_binary(&copy);
    assert_eq!(home.json(["ps", "--state", "running", "--json"]).as_array().map(Vec::len), Some(2));
    assert_ne!(home.server_pid(), server);
    // It has let go of everything when the command ends; its process goes a moment later.
    wait_for("the old server to go", || !is_alive(server));
    let copy = copy.canonicalize().unwrap();
    assert_eq!(executable(home.server_pid()).as_deref(), Some(copy.as_path()));
    wait_for("the agent to be the new binary too", || {
        let agents = home.processes_as("agent");
        agents.len() == 1 && executable(agents[0].pid).as_deref() == Some(copy.as_path())
    });
    wait_for_progress(&home, 10);
    home.touch("end");
    let done = client.finish();
    assert_eq!(
        (done.code(), done.out().as_str()),
        (3, "up\n"),
        "a client of the old server goes on: {}",
        done.err()
    );
    home.wait_for_state(&job, "succeeded");
    assert_eq!(home.job(&job)["attempt"], 1);
    check_count(&home, &job);
    assert_eq!(follower.finish().out(), home.ok(["logs", &job]), "a follower sees every line once");
}

#[test]
fn a_stopped_server_leaves_its_jobs_running() {
    let home = home();
    let job = home.submit(&["--", "sh", "-c", &counting("end")]);
    let ends =
        home.submit(&["--", "sh", "-c", &format!("echo before; {}; echo after; exit 9", until("alone"))]);
    wait_for_progress(&home, 10);
    home.wait_for_state(&ends, "running");
    let server = home.server_pid();
    let said = home.json(["server", "stop", "--json"]);
    assert_eq!((&said["running"], &said["unfinished_jobs"]), (&json!(false), &json!(2)));
    wait_for("the server to go", || !is_alive(server));
    let done = home.run(["server", "status", "--json"]);
    assert_eq!(
        (done.code(), serde_json::from_slice::<Value>(&done.stdout).unwrap()),
        (1, json!({"running": false}))
    );
    assert_eq!(home.run(["server", "stop"]).code(), 0, "stopping what does not run is no error");
    // One job ends while nobody looks.
    home.touch("alone");
    wait_for_progress(&home, 10);
    wait_for("the other task to end", || home.processes_as("supervise").len() == 1);
    assert_eq!(home.processes_as("server"), []);

    assert_eq!(home.run(["wait", &ends]).code(), 9);
    assert_eq!(home.ok(["logs", &ends]), "before\nafter\n");
    home.touch("end");
    home.wait_for_state(&job, "succeeded");
    check_count(&home, &job);
    let started = home.json(["server", "start", "--json"]);
    assert_eq!((&started["running"], &started["pid"]), (&json!(true), &json!(home.server_pid())));
}

#[test]
fn a_server_that_nobody_needs_ends_and_its_agent_with_it() {
    let home = home_with("[server]\nidle_exit = \"300ms\"\n");
    assert_eq!(home.run(["run", "--", "true"]).code(), 0);
    wait_for("server and agent to end", || home.processes().is_empty());
    assert!(!home.path().join("server.sock").exists());

    // The next command starts it again, and it stays as long as a job does.
    let job = home.submit(&["--", "sh", "-c", "sleep 1.5; touch \"$SHARED/over\""]);
    let record = || -> Value {
        serde_json::from_str(&fs::read_to_string(home.path().join("server.json")).unwrap()).unwrap()
    };
    let before = record();
    home.wait_for_file("over");
    assert_eq!(record(), before, "one server was there all the time");
    assert!(is_alive(u32::try_from(before["pid"].as_u64().unwrap()).unwrap()));
    assert_eq!(home.run(["wait", &job]).code(), 0);
    wait_for("server and agent to end", || home.processes().is_empty());
    assert_eq!(home.ok(["ps", "-aq"]).lines().count(), 2, "what they kept is there");
}

#[test]
fn a_data_directory_with_a_very_long_path_works() {
    let name = format!("with space {}/größe {}/home", "a".repeat(100), "b".repeat(100));
    let home = Home::named(env!("CARGO_BIN_EXE_muster"), name);
    let done = home.run(["run", "-N", "2", "--", "sh", "-c", "echo hi"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    assert_eq!(done.out().lines().count(), 2);
    home.ok(["server", "stop"]);
    assert_eq!(home.ok(["logs", "last", "--task", "1"]), "hi\n");
}

#[test]
fn a_wrong_configuration_is_said_to_whoever_starts_the_server() {
    for (config, word) in [
        ("[local]\nslotz = 3\n", "slotz"),
        ("[local]\ndevices = [\"H100:many\"]\n", "H100:many"),
        ("[server]\nidle_exit = \"soon\"\n", "soon"),
        ("[local]\ntree_kill = \"magic\"\n", "magic"),
        ("[local\n", "config.toml"),
    ] {
        let home = home_with(config);
        let done = home.run(["ps"]);
        assert_eq!(done.code(), 125, "{config}: {}", done.err());
        assert!(done.err().contains(word) && done.err().contains("config.toml"), "{config}: {}", done.err());
        assert!(!done.err().contains("panicked"), "{}", done.err());
    }
}

#[test]
fn a_server_that_runs_nothing_itself_asks_where_to() {
    let home = home_with("[local]\nenabled = false\n");
    let done = home.run(["run", "--", "true"]);
    assert_eq!(done.code(), 2, "{}", done.err());
    assert!(done.err().contains("no local engine") && done.err().contains("--on"), "{}", done.err());
    assert_eq!(home.json(["nodes", "--json"]).as_array().map(Vec::len), Some(0));
}

#[test]
fn a_named_server_is_reached_by_address_and_token() {
    let home = home();
    let folder = home.path();
    let words = ["server", "run", "--home", folder.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let server = home.start(words);
    server.wait_for_out("ready\n");
    let address = fs::read_to_string(home.path().join("server.address")).unwrap();
    let token = fs::read_to_string(home.path().join("token")).unwrap();
    let remote = |words: &[&str], token: Option<&str>| {
        let mut command = home.command(words);
        command.env("MUSTER_SERVER", format!("http://{address}")).env("MUSTER_HOME", "/nonexistent");
        if let Some(token) = token {
            command.env("MUSTER_TOKEN", token);
        }
        Running::start(command).finish()
    };
    let done = remote(&["run", "--", "sh", "-c", "echo $RANK over TCP; exit 6"], Some(&token));
    assert_eq!((done.code(), done.out().as_str()), (6, "0 over TCP\n"), "{}", done.err());
    let status: Value =
        serde_json::from_slice(&remote(&["server", "status", "--json"], Some(&token)).stdout).unwrap();
    assert_eq!(status["pid"], json!(server.pid()));
    for wrong in [None, Some("wrong"), Some("")] {
        let done = remote(&["ps"], wrong);
        assert_eq!(done.code(), 2, "{wrong:?}: {}", done.err());
        assert!(done.err().contains("token"), "{wrong:?}: {}", done.err());
    }
    let mut command = home.command(["ps", "-q"]);
    command
        .env("MUSTER_SERVER", format!("unix:{}/server.sock", folder.display()))
        .env("MUSTER_HOME", "/nonexistent");
    let done = Running::start(command).finish();
    assert_eq!((done.code(), done.out().lines().count()), (0, 1), "{}", done.err());
    let done = remote(&["server", "stop"], Some(&token));
    assert_eq!(done.code(), 2, "another's server is not ours to stop: {}", done.err());

    let door = Door::Tcp(address.clone());
    for path in ["/api/v1/jobs", "/api/v1/nodes", "/api/v1/server", "/metrics"] {
        door.ask(&Request::get(path)).problem(401, "unauthorized");
        let wrong = Request::get(path).header("authorization", "Bearer wrong");
        door.ask(&wrong).problem(401, "unauthorized");
        let right = Request::get(path).header("authorization", &format!("Bearer {token}"));
        assert_eq!(door.ask(&right).status, 200, "{path}");
    }
    let refused = Request::post("/api/v1/server/shutdown", &json!({}));
    door.ask(&refused).problem(401, "unauthorized");
    assert_eq!(door.ask(&Request::get("/healthz")).status, 200, "whether it lives is no secret");
    server.signal(Signal::TERM);
    assert_eq!(server.finish().code(), 0);

    let done = remote(&["ps"], Some(&token));
    assert_eq!(done.code(), 125, "{}", done.err());
    assert!(done.err().contains(&address) && done.err().contains("MUSTER_SERVER"), "{}", done.err());
}

#[test]
fn a_token_that_an_operator_chose_goes_before_the_servers_own() {
    let home = home();
    let (folder, file) = (home.path(), home.shared().join("token"));
    let words =
        ["server", "run", "--home", folder.to_str().unwrap(), "--listen", "127.0.0.1:0", "--token-file"];
    let words = words.iter().copied().chain(file.to_str());
    let start = || {
        let server = home.start(words.clone());
        server.wait_for_out("ready\n");
        (server, Door::Tcp(fs::read_to_string(folder.join("server.address")).unwrap()))
    };
    let status = |door: &Door, token: &str| {
        let asked = Request::get("/api/v1/jobs").header("authorization", &format!("Bearer {token}"));
        door.ask(&asked).status
    };
    let (server, door) = start();
    let own = fs::read_to_string(folder.join("token")).unwrap();
    assert_eq!(status(&door, &own), 200, "a Secret that nobody made is no file");
    server.signal(Signal::TERM);
    assert_eq!(server.finish().code(), 0);

    fs::write(&file, "chosen\n").unwrap();
    let (server, door) = start();
    assert_eq!((status(&door, "chosen"), status(&door, &own)), (200, 401));
    server.signal(Signal::TERM);
    assert_eq!(server.finish().code(), 0);

    fs::write(&file, "two words\n").unwrap();
    let refused = home.start(words).finish();
    assert_eq!(refused.code(), 125, "{}", refused.err());
    assert!(refused.err().contains("one line of plain characters"), "{}", refused.err());
}

#[test]
fn health_metrics_and_the_description_of_the_interface_are_served() {
    let home = home();
    home.wait_for_node();
    assert_eq!(home.run(["run", "--", "true"]).code(), 0);
    assert_eq!((home.get("/healthz").status, home.get("/healthz").text().as_str()), (200, "ok\n"));

    let metrics = home.get("/metrics").text();
    for line in [
        "muster_jobs{state=\"succeeded\"} 1",
        "muster_jobs{state=\"running\"} 0",
        "muster_node_connected{node=\"node_local\"} 1",
        "muster_node_slots{node=\"node_local\",use=\"used\"} 0",
    ] {
        assert!(metrics.lines().any(|known| known == line), "{line}\n{metrics}");
    }

    let served = home.get("/api/v1/openapi.json").json();
    let printed: Value = serde_json::from_str(&home.ok(["server", "openapi"])).unwrap();
    assert_eq!(served, printed);
    assert!(served["paths"]["/api/v1/jobs/{job}/logs"]["get"].is_object());
}

#[test]
fn problems_name_what_is_wrong() {
    let home = home();
    home.wait_for_node();
    let spec = json!({"spec": {"command": [], "nodes": 0, "colour": "red", "resources": {"cpus": "many"},
        "timeout": "soon", "retries": {"on": ["boredom"]}}});
    let problem = home.post("/api/v1/jobs", &spec).problem(422, "invalid_fields");
    let fields: BTreeSet<&str> =
        problem["errors"].as_array().unwrap().iter().map(|error| error["field"].as_str().unwrap()).collect();
    let expected = ["colour", "command", "nodes", "resources.cpus", "retries.on", "timeout"];
    assert_eq!(fields, BTreeSet::from(expected), "{problem}");
    assert!(problem["request_id"].is_string(), "{problem}");

    let door = home.door();
    let json = |text: &str| {
        Request::new("POST", "/api/v1/jobs")
            .header("content-type", "application/json")
            .body(text.as_bytes().to_vec())
    };
    door.ask(&json("{")).problem(400, "invalid_request");
    door.ask(&json("[]")).problem(400, "invalid_request");
    door.ask(&json(r#"{"spec": {"command": "true"}, "surprise": 1}"#)).problem(400, "invalid_request");
    let plain = Request::new("POST", "/api/v1/jobs").body(br#"{"spec": {"command": "true"}}"#.to_vec());
    door.ask(&plain).problem(400, "invalid_request");
    let unknown_bundle = json!({"spec": {"command": "true"}, "bundle": format!("bundle_{}", "0".repeat(64))});
    let reply = home.post("/api/v1/jobs", &unknown_bundle);
    assert!([400, 409, 422].contains(&reply.status), "{}", reply.text());

    home.get("/api/v1/jobs/nope").problem(404, "job_not_found");
    home.get("/api/v1/jobs/nope/logs").problem(404, "job_not_found");
    home.get("/api/v1/nothing/here").problem(404, "not_found");
    home.get("/").problem(404, "not_found");
    door.ask(&Request::new("DELETE", "/api/v1/nodes")).problem(405, "method_not_allowed");
    door.ask(&Request::new("PUT", "/api/v1/jobs/x/why")).problem(405, "method_not_allowed");
    let long = format!("{{\"spec\": {{\"command\": \"{}\"}}}}", "x".repeat(9 << 20));
    door.ask(&json(&long)).problem(413, "too_large");
    for query in ["limit=0", "limit=1001", "state=confused", "cursor=x"] {
        home.get(&format!("/api/v1/jobs?{query}")).problem(422, "invalid_fields");
    }
    home.get("/api/v1/jobs?limit=many").problem(400, "invalid_request");
    home.get("/api/v1/jobs?colour=red").problem(400, "invalid_request");
    let both = home.get("/api/v1/jobs?limit=0&state=confused,odd").problem(422, "invalid_fields");
    assert_eq!(both["errors"].as_array().map(Vec::len), Some(3), "{both}");
    assert_eq!(home.json(["ps", "-a", "--json"]), json!([]));
}

#[test]
fn pages_show_each_job_once() {
    let home = home();
    home.ok(["server", "start"]);
    let submit = || {
        let reply = home.post("/api/v1/jobs", &json!({"spec": {"command": "true", "clean_env": true}}));
        reply.json()["id"].as_str().unwrap().to_owned()
    };
    let mut ids: Vec<String> = (0..25).map(|_| submit()).collect();
    ids.reverse();
    let mut seen = Vec::new();
    let mut path = "/api/v1/jobs?limit=10".to_owned();
    let mut sizes = Vec::new();
    loop {
        let page = home.get(&path).json();
        let items = page["items"].as_array().unwrap();
        sizes.push(items.len());
        seen.extend(items.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        // What comes meanwhile is newer, and moves nothing.
        submit();
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/api/v1/jobs?limit=10&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, ids);
    assert_eq!(sizes, [10, 10, 5]);
    let exactly = home.get("/api/v1/jobs?limit=28").json();
    assert_eq!(
        (exactly["items"].as_array().map(Vec::len), &exactly["next_cursor"]),
        (Some(28), &Value::Null)
    );
    wait_for("all to be over", || home.get("/api/v1/server").json()["unfinished_jobs"] == 0);
}

#[test]
fn events_are_numbered_and_go_on_where_a_client_left_off() {
    let home = home();
    let job = home.submit(&["--", "sh", "-c", &format!("{}; exit 4", until("go"))]);
    home.wait_for_state(&job, "running");
    let path = format!("/api/v1/jobs/{job}/events?follow=true");
    let mut live = home.door().follow(&Request::get(&path));
    let mut events: Vec<Event> = Vec::new();
    let kind = |event: &Event| serde_json::from_str::<Value>(&event.data).expect("JSON")["kind"].clone();
    while events.last().map(kind) != Some(json!("running")) {
        events.push(live.next().expect("the stream goes on while the job does"));
    }
    home.touch("go");
    events.extend(live);
    let end = events.pop().unwrap();
    assert_eq!((end.kind.as_str(), &end.id), ("end", &None));
    let end: Value = serde_json::from_str(&end.data).unwrap();
    assert_eq!((&end["job"]["state"], &end["job"]["exit_code"]), (&json!("failed"), &json!(4)));
    let kinds: Vec<Value> = events.iter().map(kind).collect();
    assert_eq!(kinds.first(), Some(&json!("submitted")));
    assert!(kinds.contains(&json!("starting")) && kinds.contains(&json!("task_ended")), "{kinds:?}");
    assert_eq!(kinds.last(), Some(&json!("failed")), "{kinds:?}");
    let ids: Vec<u64> = events.iter().map(|event| event.id.as_ref().unwrap().parse().unwrap()).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");

    for seen in 0..events.len() {
        let resumed = Request::get(&path).header("last-event-id", &ids[seen].to_string());
        let mut rest: Vec<Event> = home.door().follow(&resumed).collect();
        assert_eq!(rest.pop().map(|event| event.kind), Some("end".into()));
        assert_eq!(rest, events[seen + 1..], "after {seen}");
    }
    // A stream that is followed ends when its server does, and its client finds out where it was.
    let other = home.submit(&["--", "sh", "-c", &until("never")]);
    home.wait_for_state(&other, "running");
    let path = format!("/api/v1/jobs/{other}/events?follow=true");
    let cut = home.door().follow(&Request::get(&path));
    home.ok(["server", "stop"]);
    assert!(cut.into_iter().all(|event| event.kind == "event"), "a job that goes on has no end");
    home.ok(["stop", "--force", &other]);
}

#[test]
fn garbage_hurts_nobody() {
    let home = home();
    home.wait_for_node();
    let (server, agent) = (home.server_pid(), home.processes_as("agent"));
    let send = |bytes: &[u8]| {
        let mut connection = home.door().connect().unwrap();
        // Where the server has heard enough it closes, and the rest cannot be sent.
        let _ = connection.write_all(bytes);
        connection
    };
    let noise: Vec<u8> = (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8).collect();
    let endless_header = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(1 << 20));
    let lying = b"POST /api/v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 18446744073709551615\r\n\r\n{";
    for bytes in [&noise[..], b"\r\n\r\n\r\n", b"GET", endless_header.as_bytes(), lying, b"\0"] {
        drop(send(bytes));
    }
    // Half a request, held open while others are served.
    let held = send(b"POST /api/v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"spec\"");

    let token = fs::read_to_string(home.path().join("node/token")).unwrap();
    let upgrade = |channel: &str, token: &str| {
        format!(
            "GET /api/v1/link?channel={channel}&node=node_local HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\n\
             upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             authorization: Bearer {}\r\n\r\n",
            token.trim()
        )
    };
    let answer = |connection: &mut dyn Read| {
        let mut line = [0; 12];
        connection.read_exact(&mut line).unwrap();
        String::from_utf8_lossy(&line).into_owned()
    };
    home.get("/api/v1/link").problem(400, "invalid_request");
    assert_eq!(answer(&mut send(upgrade("control", "wrong").as_bytes())), "HTTP/1.1 401");
    // In the name of a real node, with its token: noise, noise in proper frames, and silence.
    let frame = |payload: &[u8]| {
        let mut frame = vec![0x82, 0x80 | 126];
        frame.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(payload);
        frame
    };
    let mut silent = Vec::new();
    assert_eq!(answer(&mut send(upgrade("neither", &token).as_bytes())), "HTTP/1.1 400");
    for channel in ["control", "bulk"] {
        for bytes in [noise.clone(), frame(&noise[..30_000]), frame(&[0; 500]), Vec::new()] {
            let mut connection = send(upgrade(channel, &token).as_bytes());
            assert_eq!(answer(&mut connection), "HTTP/1.1 101", "{channel}");
            let _ = connection.write_all(&bytes);
            silent.push(connection);
        }
    }
    let done = home.run(["run", "-N", "2", "--", "sh", "-c", "echo $RANK"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    assert_eq!(done.out().lines().count(), 2);
    drop((held, silent));
    assert_eq!((home.server_pid(), home.processes_as("agent")), (server, agent));
    assert_eq!(home.run(["run", "--", "true"]).code(), 0);
    let log = fs::read_to_string(home.path().join("server.log")).unwrap();
    assert!(!log.contains("panicked"), "{log}");
}

/// Another account made the data directory first, or may put one in its place: a server there would be theirs.
#[test]
fn a_data_directory_that_another_account_can_change_is_not_used() {
    let home = home();
    fs::create_dir(home.path()).unwrap();
    let refused = |named: &str| {
        for words in [&["run", "--", "true"][..], &["ps"], &["server", "run"]] {
            let done = home.run(words);
            assert!(done.code() != 0 && done.err().contains(named), "{words:?}: {}", done.err());
        }
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "nothing was made there");
    };
    std::os::unix::fs::chown(home.path(), Some(54_321), None).unwrap();
    refused("54321");
    std::os::unix::fs::chown(home.path(), Some(0), None).unwrap();
    fs::set_permissions(home.path(), PermissionsExt::from_mode(0o777)).unwrap();
    refused("every account");
}

#[test]
fn other_accounts_read_nothing_of_a_data_directory_that_is_open_to_them() {
    let home = home();
    fs::create_dir(home.path()).unwrap();
    fs::set_permissions(home.path(), PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(home.run(["run", "--", "echo", "private"]).code(), 0);
    for name in ["logs", "chunks", "muster.db", "muster.db-wal", "server.sock", "gate.sock"] {
        let mode = fs::metadata(home.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{name} has mode {mode:o}");
    }
}

#[test]
fn a_server_that_has_stopped_is_told_of_and_given_up_after_half_a_minute() {
    let home = home();
    let folder = home.path();
    let server = home.start(["server", "run", "--home", folder.to_str().unwrap()]);
    server.wait_for_out("ready\n");
    let job = home.submit(&["--", "sh", "-c", "echo begun; sleep 600"]);
    let follower = ["logs", "-f", &job];
    let following = home.start(follower);
    following.wait_for_out("begun\n");
    server.signal(Signal::STOP);
    let begun = Instant::now();
    let asking = [&["ps"][..], &["run", "--", "true"], &["doctor"]].map(|words| (words, home.start(words)));
    for (words, command) in asking.into_iter().chain([(&follower[..], following)]) {
        wait_for("a word of the server", || command.err().contains("waiting for the server at unix:"));
        let done = command.finish_within(Duration::from_secs(120));
        assert!(begun.elapsed() >= Duration::from_secs(28), "{words:?} was given up early");
        let said = if words == ["doctor"] { done.out() } else { done.err() };
        assert_eq!(done.code(), 125, "{words:?}: {}{}", done.out(), done.err());
        assert!(said.contains("gave no answer for 30 seconds"), "{words:?}: {said}");
        assert_eq!(done.err().matches("waiting for the server").count(), 1, "{}", done.err());
    }
    server.signal(Signal::CONT);
    home.ok(["stop", &job]);
}

/// What a browser would send for a page of another origin: a cookie, a token in the address, a preflight.
#[test]
fn a_page_of_another_origin_reads_and_changes_nothing() {
    let home = home();
    let folder = home.path();
    let server = home.start(["server", "run", "--home", folder.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    server.wait_for_out("ready\n");
    let address = fs::read_to_string(home.path().join("server.address")).unwrap();
    let token = fs::read_to_string(home.path().join("token")).unwrap();
    let door = Door::Tcp(address);
    let page = |request: Request| request.header("origin", "https://evil.example");
    let cookie = format!("token={token}; muster={token}; authorization=Bearer {token}");
    door.ask(&page(Request::get("/api/v1/jobs")).header("cookie", &cookie)).problem(401, "unauthorized");
    let query = format!("/api/v1/jobs?token={token}&access_token={token}");
    door.ask(&page(Request::get(&query))).problem(401, "unauthorized");
    let plain =
        Request::new("POST", "/api/v1/jobs").header("content-type", "text/plain").header("cookie", &cookie);
    door.ask(&page(plain.body(b"{\"spec\":{\"command\":[\"true\"]}}".to_vec()))).problem(401, "unauthorized");
    let preflight = Request::new("OPTIONS", "/api/v1/jobs").header("access-control-request-method", "POST");
    let known = Request::get("/api/v1/jobs").header("authorization", &format!("Bearer {token}"));
    for request in [preflight, known] {
        let reply = door.ask(&page(request));
        assert_eq!(reply.header("access-control-allow-origin"), None);
    }
}
