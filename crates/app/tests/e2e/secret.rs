//! Secrets: tasks have them, and nothing that the system writes or says does.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use muster_testkit::{Finished, Home, Running, wait_for, wait_for_some};
use serde_json::Value;

use crate::{home, home_with, until};

/// What may be found nowhere: no other text looks like it.
fn marker(what: &str) -> String {
    let chance = fs::read_to_string("/proc/sys/kernel/random/uuid").expect("the kernel's random numbers");
    format!("mArKeR-{what}-{}", chance.trim())
}

/// Runs a command to which a pipe brings this.
pub(crate) fn with_input(mut command: Command, input: &[u8]) -> Finished {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.stdin.take().expect("its input").write_all(input).expect("it reads");
    let done = child.wait_with_output().expect("it ends");
    Finished { status: done.status, stdout: done.stdout, stderr: done.stderr }
}

fn put(home: &Home, name: &str, value: &str) {
    let done = with_input(home.command(["secret", "put", name]), format!("{value}\n").as_bytes());
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    assert!(!done.out().contains(value));
}

/// What a task can compare its secret with that is none.
fn digest(value: &str) -> String {
    let done = with_input(Command::new("sha256sum"), value.as_bytes());
    done.out().split_whitespace().next().expect("a digest").to_owned()
}

/// A line that goes on only if the variable, and the file if there is one, are what they should be.
fn check(variable: &str, value: &str) -> String {
    format!("test \"$(printf %s \"${variable}\" | sha256sum | cut -d' ' -f1)\" = {} || exit 7", digest(value))
}

fn check_file(file: &str, value: &str) -> String {
    let path = format!("\"$MUSTER_SECRETS_DIR/{file}\"");
    format!(
        "test \"$(sha256sum < {path} | cut -d' ' -f1)\" = {} || exit 8; test \"$(stat -c %a {path})\" = 400 || exit 9",
        digest(value)
    )
}

/// Every file below, links not followed.
fn files(directory: &Path) -> Vec<PathBuf> {
    let (mut all, mut found) = (vec![directory.to_owned()], Vec::new());
    while let Some(path) = all.pop() {
        let Ok(kind) = fs::symlink_metadata(&path) else { continue };
        if kind.is_dir() {
            all.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        } else if kind.is_file() {
            found.push(path);
        }
    }
    found
}

/// Whether any of the texts is in there, also where it is compressed, and in what was compressed in that.
fn has(bytes: &[u8], texts: &[Vec<u8>], depth: usize) -> bool {
    const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    let holds = |text: &Vec<u8>| bytes.windows(text.len()).any(|window| window == text);
    if texts.iter().any(holds) {
        return true;
    }
    let begins = bytes.windows(4).enumerate().filter(|(_, window)| *window == ZSTD).map(|(at, _)| at);
    depth > 0
        && begins.into_iter().any(|at| {
            let mut plain = Vec::new();
            // What only looks like a frame, or is cut short, gives what it gives.
            let decoder = zstd::Decoder::with_buffer(&bytes[at..]).map(zstd::Decoder::single_frame);
            let _ = decoder.and_then(|mut decoder| std::io::copy(&mut decoder, &mut plain));
            has(&plain, texts, depth - 1)
        })
}

/// Where any of the markers is in what was written, as it is or as it travels.
fn found(home: &Home, markers: &[&str]) -> Vec<PathBuf> {
    let texts: Vec<Vec<u8>> = markers
        .iter()
        .flat_map(|text| [text.as_bytes().to_vec(), STANDARD.encode(text).into_bytes()])
        .collect();
    let all = home.path().parent().map(files).expect("the directory of the test");
    assert!(all.len() > 10, "there is something to search");
    all.into_iter().filter(|path| fs::read(path).is_ok_and(|bytes| has(&bytes, &texts, 3))).collect()
}

/// What is in memory for tasks of this job.
fn in_memory(job: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.to_string_lossy().contains(job)).collect()
}

fn serve(home: &Home, flags: &[&str]) -> Running {
    let folder = home.path();
    let words = ["server", "run", "--home", folder.to_str().expect("plain"), "--listen", "127.0.0.1:0"];
    let server = home.start(words.iter().chain(flags));
    server.wait_for_out("ready\n");
    server
}

#[test]
fn a_task_has_its_secrets_and_nothing_else_that_was_written_or_said_does() {
    let mut home = home_with("[local]\nenabled = true\n");
    let (token, cert, of_shell) = (marker("token"), marker("cert"), marker("shell"));
    let markers = [token.as_str(), &cert, &of_shell];
    let server = serve(&home, &["--auth"]);
    // The same variable in the shell of whoever submits is not kept either.
    home.set_variable("TOKEN", &of_shell);
    put(&home, "TOKEN", &token);
    put(&home, "my-cert", &cert);
    let line = [
        check("TOKEN", &token),
        check("OTHER", &token),
        check_file("cert.pem", &cert),
        "test -z \"$(printenv my-cert)\" && echo checked && touch $SHARED/checked".into(),
        until("end"),
    ]
    .join("; ");
    let secrets = ["--secret", "TOKEN", "--secret", "TOKEN=env:OTHER", "--secret", "my-cert=file:cert.pem"];
    let job = home.submit(&[&secrets[..], &["--", "sh", "-c", &line]].concat());
    wait_for("the task to have looked", || {
        assert_ne!(home.job(&job)["state"], "failed", "{}", home.ok(["logs", &job]));
        home.shared().join("checked").exists()
    });

    // While it runs nothing is on disk where the node has memory for it, and then only for its owner.
    let has_memory = !in_memory(&job).is_empty();
    let on_disk = found(&home, &markers);
    assert!(
        on_disk.iter().all(|path| !has_memory && path.to_string_lossy().contains("/secrets/")),
        "{on_disk:?}"
    );

    // Everything that can be asked.
    let mut said = String::new();
    for words in [
        &["show", &job, "--json"][..],
        &["show", &job],
        &["events", &job, "--json"],
        &["events", "--json"],
        &["ps", "-a", "--json"],
        &["logs", &job],
        &["audit", "--json"],
        &["secret", "ls", "--json"],
        &["secret", "ls"],
        &["why", &job],
        &["doctor", "--json"],
    ] {
        said.push_str(&home.ok(words));
    }
    assert!(said.contains("put_secret") && said.contains("my-cert as the file cert.pem"), "{said}");
    assert!(markers.iter().all(|marker| !said.contains(marker)));
    home.ok(["server", "backup", home.shared().join("all.backup").to_str().expect("plain")]);

    home.touch("end");
    home.wait_for_state(&job, "succeeded");
    assert_eq!(in_memory(&job), Vec::<PathBuf>::new());
    home.ok(["server", "backup", home.shared().join("after.backup").to_str().expect("plain")]);
    server.signal(rustix::process::Signal::TERM);
    let ended = server.finish();
    assert!(markers.iter().all(|marker| !ended.out().contains(marker) && !ended.err().contains(marker)));
    home.kill("agent");
    assert_eq!(found(&home, &markers), Vec::<PathBuf>::new());
    // The search finds what is there, also in a backup, and also compressed.
    let backup = fs::read(home.shared().join("after.backup")).expect("the backup");
    assert!(has(&backup, &[digest(&token).into_bytes()], 3), "the job's command is in the backup");
    let packed = zstd::encode_all(format!("a {token} b").as_bytes(), 3).expect("zstd");
    fs::write(home.shared().join("packed"), [&b"head"[..], &packed].concat()).expect("a file");
    assert_eq!(found(&home, &markers), [home.shared().join("packed")]);
}

#[test]
fn another_value_is_for_those_who_start_later_and_a_task_that_cannot_have_its_own_says_why() {
    let home = home();
    let (first, second) = (marker("first"), marker("second"));
    put(&home, "TOKEN", &first);
    let one = home.submit(&[
        "--secret",
        "TOKEN",
        "--",
        "sh",
        "-c",
        &format!("{}; {}; {}", until("go"), check("TOKEN", &first), until("end")),
    ]);
    home.wait_for_state(&one, "running");
    put(&home, "TOKEN", &second);
    home.touch("go");
    let two = home.submit(&["--secret", "TOKEN", "--", "sh", "-c", &check("TOKEN", &second)]);
    home.wait_for_state(&two, "succeeded");

    // Nobody submits what cannot run.
    for (words, field) in [
        (["--secret", "TOKE"], "did you mean `TOKEN`?"),
        (["--secret", "TOKEN=file:../x"], "$MUSTER_SECRETS_DIR"),
        (["--secret", "TOKEN=value"], "NAME=env:VARIABLE"),
    ] {
        let refused = home.run([&["run", "-d"][..], &words, &["--", "true"]].concat());
        assert_eq!(refused.code(), 2, "{}", refused.err());
        assert!(refused.err().contains("--secret") && refused.err().contains(field), "{}", refused.err());
    }

    // One that is gone when another attempt wants it is said so.
    home.touch("end");
    home.wait_for_state(&one, "succeeded");
    let line = format!("{}; exit 1", check("TOKEN", &second));
    let late = home.submit(&[
        "--secret",
        "TOKEN",
        "--retries",
        "1",
        "--",
        "sh",
        "-c",
        &format!("touch $SHARED/begun; {}; {line}", until("again")),
    ]);
    home.wait_for_file("begun");
    home.ok(["secret", "rm", "TOKEN"]);
    home.touch("again");
    let job = home.wait_for_state(&late, "failed");
    assert!(job.to_string().contains("there is no secret `TOKEN` in the workspace default"), "{job}");
    assert_eq!(home.run(["secret", "rm", "TOKEN"]).code(), 2);
    assert_eq!(home.json(["secret", "ls", "--json"]), Value::Array(Vec::new()));
    wait_for("nothing to be in memory", || [&one, &two, &late].iter().all(|job| in_memory(job).is_empty()));
    assert_eq!(found(&home, &[&first, &second]), Vec::<PathBuf>::new());
}

#[test]
fn whoever_comes_into_a_task_finds_its_secrets_there() {
    let home = home();
    let token = marker("token");
    put(&home, "TOKEN", &token);
    home.ok(["machine", "create", "box", "--secret", "TOKEN", "--secret", "TOKEN=file:t"]);
    let line = format!("{}; {}", check("TOKEN", &token), check_file("t", &token));
    home.ok(["exec", "box", "--", "sh", "-c", &line]);
    assert_eq!(home.kill("agent"), 1);
    home.wait_for_node();
    home.ok(["exec", "box", "--", "sh", "-c", &line]);
    home.ok(["machine", "kill", "box"]);
    home.wait_for_no_tasks();
    assert_eq!(found(&home, &[&token]), Vec::<PathBuf>::new());
}

#[test]
fn a_gang_under_a_framework_has_them_in_every_process() {
    let home = home();
    let token = marker("token");
    put(&home, "TOKEN", &token);
    let line = format!("{}; touch $SHARED/$RANK", check("TOKEN", &token));
    let words =
        ["--secret", "TOKEN", "-N", "2", "--framework", "jax", "--processes", "2", "--", "sh", "-c", &line];
    let job = home.submit(&words);
    home.wait_for_state(&job, "succeeded");
    assert!((0..4).all(|rank| home.shared().join(rank.to_string()).exists()));
    assert_eq!(found(&home, &[&token]), Vec::<PathBuf>::new());
}

#[test]
fn secrets_go_with_a_task_whose_supervisor_or_agent_is_killed() {
    let home = home();
    let token = marker("token");
    put(&home, "TOKEN", &token);
    let line = format!("touch $SHARED/begun; {}; {}; {}", until("go"), check_file("t", &token), until("end"));
    let job = home.submit(&["--secret", "TOKEN", "--secret", "TOKEN=file:t", "--", "sh", "-c", &line]);
    home.wait_for_file("begun");
    // A new agent leaves what a task has to it.
    assert_eq!(home.kill("agent"), 1);
    home.wait_for_node();
    home.touch("go");
    assert_eq!(home.job(&job)["state"], "running");
    assert_eq!(home.kill("supervise"), 1);
    home.wait_for_state(&job, "failed");
    assert_eq!(in_memory(&job), Vec::<PathBuf>::new());
    assert_eq!(found(&home, &[&token]), Vec::<PathBuf>::new());
}

#[test]
fn with_another_key_secrets_are_closed_and_with_theirs_they_open_again() {
    let mut home = home();
    let token = marker("token");
    home.set_variable("MUSTER_SECRETS_KEY", "one key that is quite long enough 1");
    put(&home, "TOKEN", &token);
    assert!(!home.path().join("secrets.key").exists(), "the one that was given is kept nowhere");
    home.ok(["server", "stop"]);
    home.set_variable("MUSTER_SECRETS_KEY", "another key that is long enough, too");
    let refused = home.run(["run", "--secret", "TOKEN", "--", "true"]);
    assert_eq!(refused.code(), 2, "{}", refused.err());
    assert!(refused.err().contains("`TOKEN` was sealed with another key"), "{}", refused.err());
    let doctor = home.run(["doctor"]);
    assert!(doctor.out().contains("1 of 1 cannot be opened"), "{}", doctor.out());
    home.ok(["server", "stop"]);
    let file = home.shared().join("key");
    fs::write(&file, "one key that is quite long enough 1\n").expect("a file");
    let server = serve(&home, &["--secrets-key-file", file.to_str().expect("plain")]);
    home.ok(["run", "--secret", "TOKEN", "--", "sh", "-c", &check("TOKEN", &token)]);
    let environments = home.processes().into_iter().filter(|process| process.is("agent"));
    for process in environments {
        let variables = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        assert!(
            !String::from_utf8_lossy(&variables).contains("MUSTER_SECRETS_KEY"),
            "an agent has no use for it"
        );
    }
    server.signal(rustix::process::Signal::TERM);
    server.finish();

    fs::write(&file, "short").expect("a file");
    let words = ["server", "run", "--home", home.path().to_str().expect("plain"), "--secrets-key-file"]
        .map(str::to_owned);
    let refused = wait_for_some("the server to be refused", || {
        let done = home.run(words.iter().cloned().chain([file.display().to_string()]));
        (done.code() != 0).then_some(done)
    });
    assert!(refused.err().contains("at least 32"), "{}", refused.err());
}
