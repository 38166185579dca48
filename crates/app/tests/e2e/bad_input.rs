//! What people get wrong, tried on the real binary: each is answered with a code of the catalogue, a clear message and
//! exit code 2, and changes nothing.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use muster_testkit::http::Request;
use muster_testkit::{Finished, Home};
use serde_json::{Value, json};

use crate::{home, home_with, python};

/// How long anything may take to be refused; generous, for a debug build on a busy machine.
const QUICKLY: Duration = Duration::from_secs(10);

/// A muster with its server running, and what there is in it, so that a refusal can be seen to change nothing.
struct Tried {
    home: Home,
    codes: BTreeSet<String>,
}

impl Tried {
    fn new(home: Home) -> Self {
        home.wait_for_node();
        let listed = home.json(["explain", "--json"]);
        let code = |entry: &Value| entry["code"].as_str().expect("an entry has a code").to_owned();
        let codes = listed.as_array().expect("a list").iter().map(code).collect();
        Self { home, codes }
    }

    /// Runs a command that must be refused with this code, in words that name all of these.
    fn refused<S: AsRef<OsStr>>(&self, words: &[S], code: &str, named: &[&str]) {
        let command = self.home.command(words);
        self.refused_command(command, code, named);
    }

    fn refused_command(&self, command: Command, code: &str, named: &[&str]) {
        let shown = format!("{command:?}");
        let before = contents(&self.home);
        let begun = Instant::now();
        let done = finish(command);
        assert!(begun.elapsed() < QUICKLY, "{shown} took {:?}", begun.elapsed());
        assert_eq!(done.code(), 2, "{shown}: {}", done.err());
        assert_eq!(done.out(), "", "{shown}");
        self.check_words(&shown, &done, code, named);
        assert_eq!(contents(&self.home), before, "{shown} has changed something");
    }

    fn check_words(&self, shown: &str, done: &Finished, code: &str, named: &[&str]) {
        let said = done.err();
        assert!(said.starts_with(&format!("error[{code}]: ")), "{shown}: not {code}: {said}");
        assert!(self.codes.contains(code), "{code} is not in the catalogue");
        for text in named {
            assert!(said.contains(text), "{shown}: {text:?} is not in: {said}");
        }
        assert!(said.len() < 4000, "{shown}: {} bytes are too many to read", said.len());
        assert!(!said.contains("panicked"), "{shown}: {said}");
    }

    /// Runs a job file that must be refused.
    fn refused_file(&self, text: impl AsRef<[u8]>, code: &str, named: &[&str]) {
        self.home.write("bad.yaml", text);
        self.refused(&["run", "bad.yaml"], code, named);
    }
}

/// Everything that a submission could leave behind: jobs, rows of bundles, chunks.
fn contents(home: &Home) -> (Value, String, usize) {
    let count = "import sqlite3, sys; c = sqlite3.connect(f'file:{sys.argv[1]}?mode=ro', uri=True); \
                 print(c.execute('select count(*) from bundle').fetchone()[0])";
    let bundles = Command::new(python()).args(["-c", count]).arg(home.path().join("muster.db")).output();
    let bundles = bundles.expect("python3 has SQLite");
    assert!(bundles.status.success(), "{}", String::from_utf8_lossy(&bundles.stderr));
    let jobs = home.json(["ps", "-a", "--json"]);
    (jobs, String::from_utf8_lossy(&bundles.stdout).into_owned(), files_below(&home.path().join("chunks")))
}

fn files_below(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { files_below(&entry.path()) } else { 1 }).sum()
}

fn finish(mut command: Command) -> Finished {
    let done = command.output().expect("the binary starts");
    Finished { status: done.status, stdout: done.stdout, stderr: done.stderr }
}

/// The same command without the rights by which the superuser reads what is not readable.
fn without_override(command: &Command) -> Command {
    let mut plain = Command::new("setpriv");
    plain.args(["--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all", "--"]);
    plain.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => plain.env(name, value),
            None => plain.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        plain.current_dir(folder);
    }
    plain
}

#[test]
fn wrong_fields_are_named_with_their_value_and_remedy() {
    let tried = Tried::new(home());
    for (field, code, named) in [
        ("noodes: 2", "unknown_field", &["noodes", "did you mean `nodes`?"][..]),
        ("resources: {gpu: 8}", "unknown_field", &["resources.gpu", "`gpus`"]),
        ("nodes: [1]", "wrong_type", &["nodes", "whole number", "a list"]),
        ("nodes: two", "wrong_type", &["nodes", "`two`"]),
        ("resources: 8", "wrong_type", &["resources", "map of fields", "a number"]),
        ("preemptible: perhaps", "wrong_type", &["preemptible", "true or false", "`perhaps`"]),
        ("env: [A]", "wrong_type", &["env", "map of names to values"]),
        ("nodes: 0", "out_of_range", &["nodes", "from 1 to 100000", "`0`"]),
        ("nodes: 1000000", "out_of_range", &["nodes", "from 1 to 100000", "`1000000`"]),
        ("nodes: -3", "out_of_range", &["nodes", "`-3`"]),
        ("nodes: 99999999999999999999999999", "job_file_invalid", &["bad.yaml:2:8: nodes", "too large"]),
        ("priority: 1.0e+300", "out_of_range", &["priority", "from 0 to 1000"]),
        ("resources: {cpus: 1.0e+300}", "out_of_range", &["resources.cpus", "100000"]),
        ("resources: {cpus: .nan}", "job_file_invalid", &["resources.cpus", "not a number"]),
        ("resources: {memory: 0}", "out_of_range", &["resources.memory", "more than nothing"]),
        ("resources: {gpus: 4294967296}", "invalid_value", &["resources.gpus", "`4294967296`", "H100:8"]),
        ("timeout: -5s", "invalid_value", &["timeout", "`-5s`", "90s"]),
        ("timeout: -5", "invalid_value", &["timeout", "`-5`"]),
        ("timeout: 0", "out_of_range", &["timeout", "more than nothing"]),
        ("timeout: 1.0e+16", "out_of_range", &["timeout", "36500d"]),
        ("env: {'A=B': 1}", "invalid_value", &["env", "`A=B`", "has no `=`"]),
        ("env: {A: \"x\\0y\"}", "invalid_value", &["env", "A", "NUL"]),
        ("name: 'not a name'", "invalid_value", &["name", "`not a name`", "letters, digits"]),
        ("name: last", "invalid_value", &["name", "`last`"]),
        ("retries: {on: [tiredness]}", "invalid_value", &["retries.on", "`tiredness`", "node_lost"]),
        ("on: mars/base", "invalid_value", &["on", "mars"]),
        ("on: k8s/prod", "not_supported", &["on", "k8s", "local"]),
        ("image: pytorch", "not_supported", &["image", "leave it out"]),
        ("workdir: nowhere", "workdir_missing", &["workdir", "nowhere"]),
    ] {
        tried.refused_file(format!("command: 'true'\n{field}\n"), code, named);
    }
    for (command, code, named) in [
        ("command: ''", "required", &["command", "empty"][..]),
        ("command: []", "required", &["command", "program"]),
        ("command: ['']", "required", &["command", "program"]),
        ("nodes: 1", "required", &["command", "missing"]),
        ("command: {run: x}", "wrong_type", &["command", "a map"]),
        ("command: [\"a\\0b\"]", "invalid_value", &["command", "NUL"]),
    ] {
        tried.refused_file(format!("{command}\n"), code, named);
    }
    tried.refused_file("command: 'true'\nnodes: 0\nnoodes: 2\n", "invalid_fields", &["nodes:", "noodes:"]);
}

#[test]
fn a_file_that_is_no_job_is_refused_whatever_it_is() {
    let tried = Tried::new(home());
    tried.refused_file("command: [a\n", "job_file_invalid", &["bad.yaml:2:1"]);
    tried.refused_file("- a\n- b\n", "job_file_invalid", &["bad.yaml", "map of fields", "command: python"]);
    tried.refused_file("command: a\ncommand: b\n", "job_file_invalid", &["bad.yaml", "duplicate"]);
    tried.refused_file(b"command: 'true'\nname: \xff\n", "job_file_invalid", &["line 2", "UTF-8"]);
    let nested = format!("command: {}{}\n", "[".repeat(100_000), "]".repeat(100_000));
    tried.refused_file(nested, "job_file_invalid", &["bad.yaml", "more than 1000 brackets"]);
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        bomb.push_str(&format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 9].join(", ")));
    }
    tried.refused_file(bomb, "job_file_invalid", &["bad.yaml", "repetition limit"]);
    let many: String = (0..50_000).map(|i| format!("f{i}: 1\n")).collect();
    tried.refused_file(many, "invalid_fields", &["49980 more fields"]);

    tried.refused(&["run", "missing.yaml"], "job_file_unreadable", &["missing.yaml", "no such file"]);
    let work = tried.home.work();
    fs::create_dir(work.join("folder.yaml")).unwrap();
    tried.refused(&["run", "folder.yaml"], "job_file_unreadable", &["folder.yaml", "directory"]);
    symlink("loop.yaml", work.join("loop.yaml")).unwrap();
    tried.refused(&["run", "loop.yaml"], "job_file_unreadable", &["loop.yaml", "symbolic links"]);
    assert!(Command::new("mkfifo").arg(work.join("pipe.yaml")).status().unwrap().success());
    tried.refused(&["run", "pipe.yaml"], "job_file_unreadable", &["pipe.yaml", "nobody writes"]);
    let _socket = UnixListener::bind(work.join("socket.yaml")).unwrap();
    tried.refused(&["run", "socket.yaml"], "job_file_unreadable", &["socket.yaml", "socket"]);
    tried.refused(&["run", "--file", "/dev/zero"], "job_file_too_large", &["/dev/zero", "1 MB"]);
}

#[test]
fn a_job_of_a_hundred_megabytes_is_refused_at_once_and_held_by_nobody() {
    let tried = Tried::new(home());
    let path = tried.home.work().join("huge.yaml");
    let file = fs::File::create(&path).unwrap();
    // Spaces would be as good; a hole needs no disk.
    file.set_len(100 << 20).unwrap();
    // The rights to this much memory are enough for everything else a client does.
    let mut limited = Command::new("sh");
    let client = tried.home.command(["run", "huge.yaml"]);
    limited.args(["-c", "ulimit -d 65536; exec \"$0\" run huge.yaml"]).arg(client.get_program());
    for (name, value) in client.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited.current_dir(tried.home.work());
    tried.refused_command(limited, "job_file_too_large", &["huge.yaml", "larger than 1 MB"]);
    fs::remove_file(&path).unwrap();

    let peak = || {
        let status = fs::read_to_string(format!("/proc/{}/status", tried.home.server_pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let before = peak();
    let begun = Instant::now();
    let request = Request::new("POST", "/api/v1/jobs").header("content-type", "application/json");
    let body = format!("{{\"spec\": {{\"command\": \"{}\"}}}}", "x".repeat(100 << 20)).into_bytes();
    tried.home.door().ask(&request.body(body)).problem(413, "too_large");
    assert!(begun.elapsed() < QUICKLY, "{:?}", begun.elapsed());
    let grown = peak().saturating_sub(before);
    assert!(grown < 48 << 10, "the server has grown by {grown} kB");
    assert_eq!(tried.home.json(["ps", "-a", "--json"]), json!([]));
}

#[test]
fn a_server_is_not_brought_down_by_what_it_is_sent() {
    let home = home();
    home.wait_for_node();
    let post = |text: &str| {
        let request = Request::new("POST", "/api/v1/jobs").header("content-type", "application/json");
        home.door().ask(&request.body(text.as_bytes().to_vec()))
    };
    let deep = format!("{{\"spec\": {}{}}}", "[".repeat(200_000), "]".repeat(200_000));
    post(&deep).problem(400, "invalid_request");
    post(r#"{"spec": {"command": "true", "nodes": 1e999}}"#).problem(400, "invalid_request");
    let fields: Vec<String> = (0..200_000).map(|i| format!("\"f{i}\": 1")).collect();
    let many = post(&format!("{{\"spec\": {{\"command\": \"true\", {}}}}}", fields.join(", ")));
    many.problem(422, "invalid_fields");
    assert!(many.body.len() < 20_000, "{} bytes of reply", many.body.len());
    for (name, value) in [("A=B", "1"), ("", "1"), ("A", "x\0y")] {
        let request = json!({"spec": {"command": "true"}, "environment": {name: value}});
        let problem = home.post("/api/v1/jobs", &request).problem(422, "invalid_fields");
        assert_eq!(problem["errors"][0]["code"], "invalid_value", "{problem}");
    }
    // The largest numbers that can be written are beyond everything there is.
    assert_eq!(home.json(["ps", "-a", "--json"]), json!([]));
    let id = home.submit(&["--", "true"]);
    home.wait_for_state(&id, "succeeded");
    let most = u64::MAX;
    let page = home.get(&format!("/api/v1/jobs?cursor={most}")).json();
    assert_eq!(page["items"].as_array().map(Vec::len), Some(1), "{page}");
    let events: Vec<_> =
        home.door().follow(&Request::get(&format!("/api/v1/jobs/{id}/events?after={most}"))).collect();
    assert_eq!(events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), ["end"]);
    let cursor = format!("1@{}:{most},0:{most}", u32::MAX);
    let logs = home.door().follow(&Request::get(&format!("/api/v1/jobs/{id}/logs?cursor={cursor}")));
    assert!(logs.count() <= 2);
    for path in ["/api/v1/jobs/%00", "/api/v1/jobs/%ff", "/api/v1/jobs/..%2f..%2fetc", "/api/v1/jobs/%F0%9F"]
    {
        let status = home.get(path).status;
        assert!([400, 404].contains(&status), "{path}: {status}");
    }
    home.get("/healthz");
    let log = fs::read_to_string(home.path().join("server.log")).unwrap_or_default();
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn more_devices_than_any_node_has_are_refused_with_the_most_there_are() {
    let tried = Tried::new(home_with("[local]\ndevices = [\"H100:4\"]\n"));
    let of_gpus = "not_enough_resources";
    tried.refused(&["run", "--gpus", "8", "--", "true"], of_gpus, &["--gpus", "needs 8", "4"]);
    tried.refused(
        &["run", "--gpus", "A100:1", "--", "true"],
        of_gpus,
        &["--gpus", "no node", "muster nodes"],
    );
    tried.refused(
        &["run", "-N", "5", "--gpus", "1", "--", "true"],
        of_gpus,
        &["--nodes", "--nodes 4 or fewer"],
    );
    tried.refused(&["run", "--memory", "1000TB", "--", "true"], of_gpus, &["--memory", "largest node has"]);
    tried.refused(
        &["run", "--gpus", "1", "--node-label", "disk=fast", "--", "true"],
        of_gpus,
        &["--node-label", "labelled disk=fast", "muster nodes label NODE disk=fast"],
    );
    tried.refused(&["run", "--cpus", "99999", "--", "true"], of_gpus, &["--cpus", "largest node has"]);
}

#[test]
fn what_is_not_utf8_is_refused_where_it_must_be_text_and_kept_where_it_need_not() {
    let tried = Tried::new(home());
    let odd = |text: &[u8]| OsString::from_vec(text.to_vec());
    let words = |rest: &[&[u8]]| -> Vec<OsString> {
        ["run"].iter().map(OsString::from).chain(rest.iter().map(|word| odd(word))).collect()
    };
    tried.refused(&words(&[b"--", b"echo", b"\xff\xfe"]), "command_not_utf8", &["word 2", "UTF-8"]);
    tried.refused(&words(&[b"--env", b"A=\xff", b"--", b"true"]), "not_utf8", &["--env", "UTF-8"]);
    tried.refused(&words(&[b"--name", b"\xff", b"--", b"true"]), "usage", &["UTF-8"]);
    tried.refused(
        &words(&[b"--env", b"=x", b"--", b"true"]),
        "invalid_value",
        &["--env", "name of a variable"],
    );
    tried.refused(&words(&[b"-e", b"NOT_SET", b"--", b"true"]), "variable_not_set", &["NOT_SET=VALUE"]);
    let folder = tried.home.work().join(odd(b"folder-\xff"));
    fs::create_dir(&folder).unwrap();
    let in_folder = words(&[b"--workdir", b"folder-\xff", b"--", b"true"]);
    tried.refused(&in_folder, "workdir_unusable", &["--workdir", "UTF-8", "rename"]);

    // A file of the code may have any name.
    fs::write(folder.join(odd(b"file-\xfe")), "whole\n").unwrap();
    let shown = tried.home.ok(["run", "--", "sh", "-c", "cat folder-*/file-*"]);
    assert_eq!(shown, "whole\n");
}

#[test]
fn a_code_directory_that_cannot_be_used_is_refused() {
    let tried = Tried::new(home());
    let work = tried.home.work();
    symlink("circle-b", work.join("circle-a")).unwrap();
    symlink("circle-a", work.join("circle-b")).unwrap();
    fs::write(work.join("file"), "").unwrap();
    for (name, code, named) in [
        ("nowhere", "workdir_missing", "no directory"),
        ("circle-a", "workdir_unusable", "symbolic links"),
        ("file", "workdir_unusable", "not a directory"),
    ] {
        tried.refused(&["run", "--workdir", name, "--", "true"], code, &["--workdir", name, named]);
    }
    fs::remove_file(work.join("file")).unwrap();
    fs::write(work.join("secret"), "not for everyone").unwrap();
    fs::set_permissions(work.join("secret"), fs::Permissions::from_mode(0o000)).unwrap();
    let command = without_override(&tried.home.command(["run", "--", "true"]));
    tried.refused_command(
        command,
        "bundle_file_unreadable",
        &["secret", "permission denied", ".musterignore"],
    );
    fs::remove_file(work.join("secret")).unwrap();
    fs::create_dir(work.join("closed")).unwrap();
    fs::set_permissions(work.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
    let command = without_override(&tried.home.command(["run", "--", "true"]));
    tried.refused_command(command, "bundle_file_unreadable", &["closed", ".musterignore"]);
    fs::set_permissions(work.join("closed"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn pipes_sockets_and_circles_in_the_code_hold_up_nobody() {
    let home = home();
    let work = home.work();
    symlink("circle-b", work.join("circle-a")).unwrap();
    symlink("circle-a", work.join("circle-b")).unwrap();
    symlink(".", work.join("self")).unwrap();
    assert!(Command::new("mkfifo").arg(work.join("pipe")).status().unwrap().success());
    let _socket = UnixListener::bind(work.join("socket")).unwrap();
    home.write("kept.txt", "kept\n");
    let begun = Instant::now();
    let done = home.run(["run", "--", "sh", "-c", "ls; readlink circle-a self; cat kept.txt"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    assert!(begun.elapsed() < QUICKLY, "{:?}", begun.elapsed());
    assert_eq!(done.out(), "circle-a\ncircle-b\nkept.txt\nself\ncircle-b\n.\nkept\n");
    assert!(done.err().contains("pipe") && done.err().contains("socket"), "{}", done.err());
}

/// Either the job gets one state of the file, or whoever submits is told that there is none.
#[test]
fn a_file_that_changes_while_it_is_read_is_whole_or_refused() {
    let home = home();
    home.wait_for_node();
    // Every state is one letter, many times: two letters in one copy are two states.
    let size = 6 << 20;
    home.write("changing", vec![b'a'; size]);
    let path = home.work().join("changing");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for letter in (b'a'..=b'z').cycle() {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                // In place, as an editor or a training run writes: the reader sees the file half old and half new.
                fs::write(&path, vec![letter; size]).unwrap();
            }
        });
        for _ in 0..3 {
            let done = home.run([
                "run",
                "--",
                "sh",
                "-c",
                "fold -w 1 changing | sort -u | tr -d '\\n'; wc -c < changing",
            ]);
            match done.code() {
                // One letter of one state, or none of the moment in which it was empty.
                0 => check_one_state(&done.out(), size),
                2 => {
                    let said = done.err();
                    assert!(
                        said.contains("error[bundle_file_changes]: ") && said.contains("changing"),
                        "{said}"
                    );
                }
                other => panic!("{other}: {}", done.err()),
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

fn check_one_state(shown: &str, size: usize) {
    let shown = shown.trim();
    let letters = shown.chars().filter(char::is_ascii_alphabetic).count();
    let bytes: usize =
        shown.trim_start_matches(|c: char| c.is_ascii_alphabetic()).trim().parse().expect(shown);
    assert!(letters <= 1 && bytes <= size, "a mixture of states: {shown}");
}

#[test]
fn a_name_belongs_to_one_job_at_a_time() {
    let tried = Tried::new(home());
    let first = tried.home.submit(&["--name", "twice", "--", "sh", "-c", &crate::until("go")]);
    // What is compared before and after a refusal includes the state of every job.
    tried.home.wait_for_state(&first, "running");
    let twice = &["run", "--name", "twice", "--", "true"];
    tried.refused(twice, "name_in_use", &["--name", "`twice`", "not over", "muster stop twice"]);
    tried.home.touch("go");
    tried.home.wait_for_state(&first, "succeeded");
    let second = tried.home.submit(&["--name", "twice", "--", "true"]);
    assert_eq!(tried.home.job("twice")["id"], json!(second), "a name is that of its newest job");
    tried.home.wait_for_state(&second, "succeeded");
}

#[test]
fn a_job_of_nobody_is_said_not_to_be_there() {
    let tried = Tried::new(home());
    let nobodys = "job_0000000000";
    for command in ["show", "logs", "wait", "stop", "rm", "why"] {
        tried.refused(&[command, nobodys], "job_not_found", &[nobodys, "muster ps"]);
    }
    tried.refused(&["show", "../../etc/passwd"], "job_not_found", &["../../etc/passwd"]);
    tried.refused(&["show", "a%00b?x=1#y"], "job_not_found", &["a%00b?x=1#y"]);
    let done = tried.home.run(["show", nobodys, "--json"]);
    assert_eq!(done.code(), 2, "{}", done.err());
    let error: Value = serde_json::from_str(&done.err()).expect("one JSON document");
    assert_eq!((&error["code"], &error["errors"]), (&json!("job_not_found"), &json!([])), "{error}");
    assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("muster ps")), "{error}");
}

#[test]
fn every_other_way_to_fail_has_its_code_too() {
    let tried = Tried::new(home());
    tried.refused(&["explain", "job_not_fund"], "no_such_error", &["did you mean `job_not_found`?"]);
    tried.refused(&["shwo"], "usage", &["show"]);
    let id = tried.home.submit(&["--", "true"]);
    tried.home.wait_for_state(&id, "succeeded");
    tried.refused(&["logs", &id, "--task", "5"], "task_not_found", &["--task", "5", "0 to 0"]);
    let running = tried.home.submit(&["--", "sh", "-c", &crate::until("go")]);
    tried.home.wait_for_state(&running, "running");
    tried.refused(&["rm", &running], "invalid_state", &[&running, "running", "--force"]);
    let with = |tried: &Tried, name: &str, value: &OsStr| {
        let mut command = tried.home.command(["ps"]);
        command.env(name, value);
        command
    };
    let command = with(&tried, "MUSTER_SERVER", OsStr::new("ftp://nowhere"));
    tried.refused_command(command, "server_address_invalid", &["MUSTER_SERVER", "hint: "]);
    let command = with(&tried, "MUSTER_SERVER", OsStr::from_bytes(b"\xff"));
    tried.refused_command(command, "server_address_invalid", &["MUSTER_SERVER", "UTF-8"]);
    let mut command = with(&tried, "MUSTER_SERVER", OsStr::new("http://127.0.0.1:1"));
    command.env("MUSTER_TOKEN", "two\nlines");
    tried.refused_command(command, "token_invalid", &["MUSTER_TOKEN"]);
    let mut command = tried.home.command(["server", "stop"]);
    command.env("MUSTER_SERVER", "http://127.0.0.1:1");
    tried.refused_command(command, "server_not_private", &["http://127.0.0.1:1", "env -u MUSTER_SERVER"]);
    let mut command = tried.home.command(["ps"]);
    command.env_remove("MUSTER_HOME").env_remove("XDG_DATA_HOME").env_remove("HOME");
    tried.refused_command(command, "no_home", &["HOME is not set", "MUSTER_HOME"]);
    let mut command = tried.home.command(["run", "--", "true"]);
    command.current_dir("/");
    tried.refused_command(command, "workdir_too_wide", &["root directory", "--in-place"]);

    // What is nobody's mistake has another exit code.
    for (command, code, exit) in [
        (with(&tried, "MUSTER_SERVER", OsStr::new("http://127.0.0.1:1")), "server_unreachable", 125),
        (with(&tried, "MUSTER_HOME", OsStr::new("/dev/null/x")), "home_unusable", 125),
        (waiting(&tried.home), "wait_timeout", 124),
    ] {
        let shown = format!("{command:?}");
        let done = finish(command);
        assert_eq!(done.code(), exit, "{shown}: {}", done.err());
        tried.check_words(&shown, &done, code, &["hint: "]);
    }
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = tried.home.command(["ps"]);
    let done = command.stdout(full).output().unwrap();
    let done = Finished { status: done.status, stdout: done.stdout, stderr: done.stderr };
    assert_eq!(done.code(), 125);
    tried.check_words("ps > /dev/full", &done, "disk_full", &["no space left"]);
    tried.home.touch("go");
}

/// A command that gives up waiting.
fn waiting(home: &Home) -> Command {
    let id = home.submit(&["--", "sh", "-c", &crate::until("go")]);
    home.command(["wait", &id, "--timeout", "50ms"])
}
