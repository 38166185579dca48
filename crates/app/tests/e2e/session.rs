//! Sessions: shells in a task that keep their state, in tmux and without it.

use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use muster_testkit::http::Request;
use muster_testkit::{Finished, Home, wait_for, wait_for_some};
use serde_json::{Value, json};

use crate::{home, until};

/// What holds the terminals.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Tmux,
    Pty,
}

/// A task that runs until it is stopped, and its sessions.
struct Scene {
    home: Home,
    id: String,
}

impl Scene {
    fn new(way: Way) -> Self {
        Self::with_shell(way, "/bin/bash")
    }

    fn with_shell(way: Way, shell: &str) -> Self {
        let home = home();
        let path = match way {
            Way::Tmux => std::env::var("PATH").expect("PATH"),
            Way::Pty => without_tmux(&home),
        };
        let (path, shell) = (format!("PATH={path}"), format!("SHELL={shell}"));
        let id = home.submit(&[
            "--env",
            &path,
            "--env",
            &shell,
            "--env",
            &home.bare_shells(),
            "--",
            "sh",
            "-c",
            "exec sleep 600",
        ]);
        home.wait_for_state(&id, "running");
        Self { home, id }
    }

    /// Runs a text in the main session.
    fn run(&self, text: &str) -> Finished {
        self.home.run(["session", "run", &self.id, "-c", text])
    }

    /// The same, which must succeed, and what it wrote.
    fn ok(&self, text: &str) -> String {
        let done = self.run(text);
        assert_eq!(done.code(), 0, "{text}: {}{}{}", done.out(), done.err(), self.home.diagnosis());
        done.out()
    }

    /// Gives a command without waiting for it.
    fn give(&self, text: &str) -> u64 {
        let given = self.home.json(["session", "run", &self.id, "--detach", "--json", "-c", text]);
        given["number"].as_u64().expect("a number")
    }

    fn command(&self, number: u64) -> Value {
        self.home.get(&self.path(&format!("/commands/{number}?wait=30"))).json()
    }

    fn output(&self, number: u64) -> Vec<u8> {
        let reply = self.home.get(&self.path(&format!("/commands/{number}/output")));
        assert_eq!(reply.status, 200);
        reply.body
    }

    fn path(&self, rest: &str) -> String {
        format!("/api/v1/jobs/{}/sessions/main{rest}", self.id)
    }

    fn terminal(&self) -> Value {
        self.home.get(&self.path("")).json()["terminal"].clone()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.home.run(["stop", &self.id, "--force"]);
    }
}

/// All programs of this machine but tmux.
fn without_tmux(home: &Home) -> String {
    let bin = home.shared().join("bin");
    std::fs::create_dir(&bin).expect("a folder");
    for folder in ["/usr/bin", "/bin"] {
        for entry in std::fs::read_dir(folder).expect("programs") {
            let entry = entry.expect("a program");
            if entry.file_name() != "tmux" {
                // Many are in both.
                let _ = symlink(entry.path(), bin.join(entry.file_name()));
            }
        }
    }
    bin.display().to_string()
}

fn keeps_its_state(scene: &Scene) {
    let work = scene.ok("pwd");
    assert_eq!(
        scene.ok("mkdir -p 'a b' && cd 'a b'; export WORD=\"two words\"; umask 027; f() { echo \"f: $1\"; }"),
        ""
    );
    assert_eq!(
        scene.ok("pwd; echo \"$WORD\"; umask -S; f x"),
        format!("{}/a b\ntwo words\nu=rwx,g=rx,o=\nf: x\n", work.trim())
    );
    let failed = scene.run("false");
    assert_eq!((failed.code(), failed.out(), failed.err()), (1, String::new(), String::new()));
    assert_eq!(scene.run("return 7; echo no").code(), 7, "`return` ends the command alone");
    assert_eq!(scene.run("(exit 9)").code(), 9);
    assert_eq!(scene.ok("f y"), "f: y\n");
    let other = scene.home.run(["session", "run", &scene.id, "--name", "other", "--", "pwd"]);
    assert_eq!(other.out(), work, "another session has a shell of its own");
}

#[test]
fn a_session_in_tmux_keeps_what_its_commands_change() {
    let scene = Scene::new(Way::Tmux);
    keeps_its_state(&scene);
    assert_eq!(scene.terminal(), "tmux");
}

#[test]
fn a_session_without_tmux_keeps_what_its_commands_change() {
    let scene = Scene::new(Way::Pty);
    keeps_its_state(&scene);
    assert_eq!(scene.terminal(), "pty");
}

#[test]
fn the_plain_shell_and_zsh_can_be_the_shell_of_a_session() {
    for shell in ["/bin/dash", "/usr/bin/zsh"] {
        let scene = Scene::with_shell(Way::Tmux, shell);
        keeps_its_state(&scene);
        // What makes such a shell drop everything and go back to its prompt ends the command, too.
        for (mistake, status) in [("echo ${nothing:?is not set}", 1..=126), ("if ; then (", 1..=126)] {
            let done = scene.run(mistake);
            assert!(status.contains(&done.code()), "{shell}: {mistake}: {} {}", done.code(), done.err());
        }
        assert_eq!(scene.ok("f z"), "f: z\n", "{shell}");
        assert_eq!(scene.home.get(&scene.path("")).json()["shell"], shell);
    }
}

#[test]
fn any_text_reaches_the_shell_as_it_is() {
    let scene = Scene::new(Way::Tmux);
    for (text, expected) in [
        ("echo one\necho two", "one\ntwo\n"),
        ("cat <<'END'\n$HOME `x` \"q\" 'q' \\\nEND\n", "$HOME `x` \"q\" 'q' \\\n"),
        ("echo a # b", "a\n"),
        ("echo 'a # b' \"it's\"", "a # b it's\n"),
        ("# nothing but a comment", ""),
        ("", ""),
        ("echo Größe 模型 🚀", "Größe 模型 🚀\n"),
        ("x=$((1 + 2)); echo $x ${x}% '$x' \\$x", "3 3% $x $x\n"),
        ("for i in 1 2\ndo\n  echo $i\ndone", "1\n2\n"),
        ("echo tab\there", "tab here\n"),
        ("echo a && echo b || echo c; ! true; echo \"!\"", "a\nb\n!\n"),
        ("echo no line end | tr -d '\\n'", "no line end"),
    ] {
        assert_eq!(scene.ok(text), expected, "{text:?}");
    }
    // Words are passed on as they are.
    let words = ["session", "run", &scene.id, "--", "printf", "%s|", "a b", "$HOME", "it's", "", "*"];
    assert_eq!(scene.home.ok(words), "a b|$HOME|it's||*|");
}

#[test]
fn long_commands_and_long_output_are_complete_the_moment_the_status_is_there() {
    let scene = Scene::new(Way::Tmux);
    scene.ok("true");
    let long = format!("echo {} | wc -c", "x".repeat(1 << 20));
    let given = scene.home.post(&scene.path("/commands"), &json!({ "command": long })).json();
    let number = given["number"].as_u64().expect("a number");
    assert_eq!(scene.command(number)["exit_status"], 0, "{given}");
    assert_eq!(scene.output(number), b"1048577\n");
    let number = scene.give("head -c 5000000 /dev/zero | tr '\\0' o; head -c 5000000 /dev/zero | tr '\\0' e >&2; exit_with() { return 4; }; exit_with");
    let command = scene.command(number);
    let output = scene.output(number);
    assert_eq!(
        (command["state"].as_str(), command["exit_status"].as_i64()),
        (Some("done"), Some(4)),
        "{command}"
    );
    assert_eq!(output.len(), 10_000_000);
    assert!(
        output[..5_000_000].iter().all(|byte| *byte == b'o')
            && output[5_000_000..].iter().all(|byte| *byte == b'e')
    );
    assert_eq!(command["output_bytes"], 10_000_000);
}

#[test]
fn what_is_left_in_the_background_holds_nothing_up() {
    let scene = Scene::new(Way::Tmux);
    let begun = Instant::now();
    let number = scene.give(&format!("( {}; echo late ) & echo now", until("go")));
    let command = scene.command(number);
    assert_eq!(command["state"], "done", "{command}");
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(scene.ok("echo next"), "next\n");
    scene.home.touch("go");
    wait_for("what was left to be heard of", || {
        String::from_utf8_lossy(&scene.output(number)).contains("late\n")
    });
}

#[test]
fn commands_queue_and_run_in_order_and_the_same_key_is_one_command() {
    let scene = Scene::new(Way::Tmux);
    // A program that reads its input must not eat what waits behind it.
    let first = scene.give(&format!("{}; read -t 0.2 line; echo \"[$line]\"", until("go")));
    for i in 0..50 {
        let reply = scene
            .home
            .post(&scene.path("/commands"), &json!({ "command": format!("echo {i} >> \"$SHARED/order\"") }));
        assert_eq!(reply.status, 201);
    }
    let queued = scene.home.get(&scene.path("")).json();
    assert_eq!(
        (queued["queued"].as_u64(), queued["last"].as_u64()),
        (Some(50), Some(first + 50)),
        "{queued}"
    );
    let once = || {
        let request =
            Request::post(&scene.path("/commands"), &json!({ "command": "echo once >> \"$SHARED/order\"" }));
        scene.home.door().ask(&request.header("idempotency-key", "k1")).json()["number"].clone()
    };
    let number = once();
    assert_eq!(once(), number);
    scene.home.touch("go");
    assert_eq!(scene.command(number.as_u64().unwrap())["exit_status"], 0);
    assert_eq!(once(), number);
    let expected: String = (0..50).map(|i| format!("{i}\n")).chain(["once\n".into()]).collect();
    assert_eq!(scene.home.wait_for_file("order"), expected);
    assert_eq!(scene.output(first), b"[]\n");
}

/// What a command does that ends its shell, and with which status the shell ends.
const ENDS: [(&str, Option<i64>); 5] = [
    ("exit 3", Some(3)),
    ("exec true", Some(0)),
    ("kill -9 $$", Some(137)),
    ("set -e; false", Some(1)),
    ("exec bash", None),
];

fn reports_the_end_of_its_shell(way: Way) {
    let scene = Scene::new(way);
    scene.ok("true");
    for (text, status) in ENDS {
        let begun = Instant::now();
        let command = scene.give(text);
        let behind = scene.home.post(&scene.path("/commands"), &json!({ "command": "echo never" }));
        let ended = scene.command(command);
        assert_eq!(ended["state"], "lost", "{way:?} {text}: {ended}");
        assert_eq!(ended["exit_status"].as_i64(), status, "{way:?} {text}: {ended}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{text}: {:?}", begun.elapsed());
        // It may have come too late to be taken.
        if behind.status == 201 {
            let behind = scene.command(behind.json()["number"].as_u64().expect("a number"));
            assert_eq!((&behind["state"], &behind["reason"]), (&ended["state"], &ended["reason"]), "{text}");
        }
        let refused = scene.run("echo hello");
        assert_eq!(refused.code(), 2, "{}", refused.err());
        assert!(
            refused.err().contains("error[session_over]") && refused.err().contains("--fresh"),
            "{}",
            refused.err()
        );
        let fresh = scene.home.ok(["session", "run", &scene.id, "--fresh", "--", "echo", "hello"]);
        assert_eq!(fresh, "hello\n");
    }
    let done = scene.run("echo before; exit 5");
    assert_eq!((done.code(), done.out().as_str()), (5, "before\n"), "{}", done.err());
    assert!(done.err().contains("error[command_lost]"), "{}", done.err());
}

#[test]
fn a_command_that_ends_its_shell_in_tmux_is_reported_at_once() {
    reports_the_end_of_its_shell(Way::Tmux);
}

#[test]
fn a_command_that_ends_its_shell_without_tmux_is_reported_at_once() {
    reports_the_end_of_its_shell(Way::Pty);
}

#[test]
fn ctrl_c_goes_to_the_command_and_a_signal_to_what_runs() {
    let scene = Scene::new(Way::Tmux);
    let client =
        scene.home.start(["session", "run", &scene.id, "-c", "sh -c 'echo up; exec sleep 600'; echo never"]);
    client.wait_for_out("up");
    client.signal(rustix::process::Signal::INT);
    let done = client.finish();
    assert_eq!((done.code(), done.out().as_str()), (130, "up\n"), "{}", done.err());
    let number = scene.give("sleep 600");
    wait_for("it to run, and to end", || {
        // A shell that has not started it yet does not mind.
        scene.home.ok(["session", "signal", &scene.id, "TERM"]);
        scene.home.get(&scene.path(&format!("/commands/{number}"))).json()["exit_status"] == 143
    });
    let wrong = scene.home.run(["session", "signal", &scene.id, "FOO"]);
    assert_eq!(wrong.code(), 2, "{}", wrong.err());
    let late = scene.home.run(["session", "run", &scene.id, "--timeout", "100ms", "--", "sleep", "600"]);
    assert_eq!(late.code(), 124, "{}", late.err());
}

/// Kills these while a command runs and another waits; both run once, with their output and status.
fn survives(way: Way, victims: &[&str]) {
    let scene = Scene::new(way);
    scene.ok("X=1");
    let client = scene.home.start([
        "session",
        "run",
        &scene.id,
        "-c",
        &format!("echo ran >> \"$SHARED/ran\"; echo up; {}; echo $X done; (exit 6)", until("go")),
    ]);
    client.wait_for_out("up");
    let second = scene.give("echo second >> \"$SHARED/ran\"; echo $X");
    for victim in victims {
        assert!(scene.home.kill(victim) > 0, "there is a {victim}");
    }
    scene.home.touch("go");
    let done = client.finish();
    assert_eq!(
        (done.code(), done.out().as_str()),
        (6, "up\n1 done\n"),
        "{way:?} {victims:?}: {}",
        done.err()
    );
    // A server that was killed is started by whoever needs it.
    let second = scene.home.run(["session", "wait", &scene.id, &second.to_string()]);
    assert_eq!(second.code(), 0, "{}", second.err());
    assert_eq!(scene.home.wait_for_file("ran"), "ran\nsecond\n");
}

#[test]
fn a_session_outlives_server_and_agent() {
    survives(Way::Tmux, &["server", "agent"]);
    survives(Way::Pty, &["server", "agent"]);
}

#[test]
fn a_session_in_tmux_outlives_who_answers_in_the_task() {
    survives(Way::Tmux, &["inside"]);
}

#[test]
fn a_session_without_tmux_says_that_who_held_it_is_gone() {
    let scene = Scene::new(Way::Pty);
    let number = scene.give("sleep 600");
    wait_for("it to run", || scene.home.get(&scene.path("")).json()["running"].as_u64() == Some(number));
    assert_eq!(scene.home.kill("inside"), 1);
    let lost = wait_for_some("another one to answer", || {
        let command = scene.command(number);
        command["state"].is_string().then_some(command)
    });
    assert_eq!(lost["state"], "lost", "{lost}");
    assert!(lost["reason"].as_str().unwrap().contains("tmux"), "{lost}");
}

#[test]
fn a_task_with_idle_sessions_stops_without_delay() {
    for way in [Way::Tmux, Way::Pty] {
        let scene = Scene::new(way);
        scene.ok("true");
        let begun = Instant::now();
        scene.home.ok(["stop", &scene.id, "--grace", "60s"]);
        scene.home.wait_for_state(&scene.id, "stopped");
        assert!(begun.elapsed() < Duration::from_secs(20), "{way:?}: {:?}", begun.elapsed());
        scene.home.wait_for_no_tasks();
    }
}

#[test]
fn people_can_sit_down_at_a_session_and_see_what_its_commands_write() {
    for (way, leave) in [(Way::Tmux, "\x02d"), (Way::Pty, "\x1d")] {
        let scene = Scene::new(way);
        scene.ok("PS1='ready> '; X=5");
        let mut terminal = scene.home.start_on_terminal(["session", "attach", &scene.id]);
        terminal.wait_for("ready> ", 1);
        scene.ok("echo written by $X");
        terminal.wait_for("written by 5", 1);
        terminal.press("echo typed by $X; Y=6\n");
        terminal.wait_for("typed by 5", 1);
        terminal.press(leave);
        let (status, screen) = terminal.finish();
        assert_eq!(status.code(), Some(0), "{way:?}: {screen}");
        assert_eq!(scene.ok("echo $Y"), "6\n", "{way:?}: what was typed stays");
        let refused = scene.home.run(["session", "attach", &scene.id]);
        assert_eq!(refused.code(), 2, "without a terminal: {}", refused.err());
    }
}

#[test]
fn sessions_are_listed_opened_and_removed() {
    let scene = Scene::new(Way::Tmux);
    assert_eq!(scene.home.json(["session", "ls", &scene.id, "--json"])["items"], json!([]));
    scene.home.ok(["session", "open", &scene.id, "--name", "task0.x"]);
    scene.ok("echo shown");
    let list = scene.home.ok(["session", "ls", &scene.id]);
    assert!(list.contains("task0.x") && list.contains("main") && list.contains("idle"), "{list}");
    let commands = scene.home.ok(["session", "ls", &scene.id, "--name", "main"]);
    assert!(commands.contains("echo shown") && commands.contains("done"), "{commands}");
    assert_eq!(scene.home.ok(["session", "output", &scene.id]), "shown\n");
    scene.home.ok(["session", "rm", &scene.id]);
    let gone = scene.home.run(["session", "output", &scene.id]);
    assert_eq!(gone.code(), 2);
    assert!(gone.err().contains("error[not_found]"), "{}", gone.err());
    for name in ["", "a/b", "-x", "a b"] {
        assert_eq!(
            scene.home.run(["session", "open", &scene.id, &format!("--name={name}")]).code(),
            2,
            "{name}"
        );
    }
}
