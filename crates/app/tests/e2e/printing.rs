//! What the client prints of a server whose every text is hostile.

use std::collections::BTreeSet;
use std::fs;

use muster_model::printable;
use muster_testkit::http::{Door, Request};
use muster_testkit::{Finished, HOSTILE, Home, HostileServer, Running, SHOWN, Terminal};
use serde_json::{Value, json};

use crate::home_with;

/// Commands that print texts of the server, with what they need to say something.
const WALKED: &[&[&str]] = &[
    &["ps", "-a"],
    &["show", "JOB"],
    &["show", "nothing-of-this-name"],
    &["why", "JOB"],
    &["elements", "ARRAY"],
    &["events", "JOB"],
    &["events"],
    &["files", "JOB"],
    &["get", "JOB", "no-such-file"],
    &["cp", "JOB:no-such-file", "."],
    &["exec", "JOB", "--", "true"],
    &["port-forward", "JOB", "8080"],
    &["session", "ls", "JOB"],
    &["wait", "JOB"],
    &["attach", "ARRAY"],
    &["stop", "JOB"],
    &["suspend", "JOB"],
    &["resume", "JOB"],
    &["hold", "JOB"],
    &["release", "JOB"],
    &["priority", "JOB", "7"],
    &["rm", "nothing-of-this-name"],
    &["clone", "JOB", "--dry-run"],
    &["run", "--dry-run", "--json", "--", "true"],
    &["submit", "no-such-script"],
    &["queue"],
    &["quota"],
    &["top", "--once"],
    &["nodes"],
    &["pool", "ls"],
    &["machine", "ls"],
    &["whoami"],
    &["user", "ls"],
    &["token", "ls"],
    &["workspace", "ls"],
    &["secret", "ls", "--workspace", "nlp"],
    &["audit"],
    &["gc"],
    &["server", "status"],
    &["server", "reload"],
    &["doctor"],
    &["login", "SERVER", "--user", "ada", "--name", "elsewhere", "--password-stdin"],
    &["signup", "SERVER", "--user", "eve", "--workspace", "nlp", "--password-stdin"],
    // The last: the token ends with it.
    &["logout"],
];

/// Commands that print nothing of a server, and those whose output is the task's own; `logs` has its own test.
const EXEMPT: &[&str] = &[
    "init",
    "logs",
    "ssh",
    "sim",
    "explain",
    "context",
    "config",
    "ssh-config",
    "completion",
    "version",
    "help",
];

/// What a task writes, as `printf` takes it: a colour, the clipboard, a cleared screen, a query.
const WRITTEN: &str = r"\033[31mred\033[0m \033]52;c;cm0=\007 \033[2J \033[c end\n";

/// A server with accounts, a job in it, and a hostile server before it.
struct Scene {
    home: Home,
    server: Running,
    address: String,
    /// Of the admin, whose jobs they are, and of another person.
    tokens: [String; 2],
    hostile: HostileServer,
    job: String,
    array: String,
}

impl Scene {
    fn start() -> Self {
        let home = home_with("[local]\nenabled = true\ndevices = [\"H100:2\"]\n");
        home.share_with_everybody();
        let folder = home.path();
        let place =
            ["server", "run", "--home", folder.to_str().expect("plain"), "--listen", "127.0.0.1:0", "--auth"];
        let server = home.start(place);
        server.wait_for_out("ready\n");
        let address = fs::read_to_string(folder.join("server.address")).expect("where it listens");
        let door = Door::Tcp(address.clone());
        let password = fs::read_to_string(folder.join("admin-password")).expect("the first password");
        let token = log_in(&door, "admin", password.trim());
        let admin = |words: &[&str]| {
            let mut command = home.command(words);
            command.env("MUSTER_SERVER", format!("http://{address}")).env("MUSTER_TOKEN", &token);
            let done = Running::start(command).finish();
            assert_eq!(done.code(), 0, "{words:?}: {}{}", done.out(), done.err());
            done.out()
        };
        admin(&["workspace", "add", "nlp"]);
        admin(&["workspace", "add-member", "nlp", "admin", "--role", "lead"]);
        admin(&["user", "set", "admin", "--account", "nobody"]);
        let submit = |words: &[&str]| {
            let words = [&["run", "-d", "--json", "--workspace", "nlp", "--env", "C=d"], words].concat();
            let job: Value = serde_json::from_str(&admin(&words)).expect("JSON");
            job["id"].as_str().expect("an id").to_owned()
        };
        let job = submit(&["--", "printf", WRITTEN]);
        let array = submit(&["--array", "0-1", "--", "false"]);
        for id in [&job, &array] {
            admin(&["events", "-f", id]);
        }
        let document = include_str!("../../../../openapi/openapi.json");
        let document = serde_json::from_str(document).expect("the API's document");
        let socket = home.shared().join("hostile.sock");
        let bearer = format!("Bearer {token}");
        let created =
            json!({"name": "bob", "password": "a password of bob's", "account": null, "admin": true});
        let created = Request::post("/api/v1/users", &created).header("authorization", &bearer);
        let created = door.ask(&created);
        assert!(created.status < 300, "{}", created.text());
        let tokens = [token.clone(), log_in(&door, "bob", "a password of bob's")];
        let hostile = HostileServer::start(&socket, door, &[("authorization", &bearer)], &document);
        Self { home, server, address, tokens, hostile, job, array }
    }

    fn words<'a>(&'a self, words: &[&'a str], address: &'a str) -> Vec<String> {
        let word = |word: &&str| {
            word.replace("JOB", &self.job).replace("ARRAY", &self.array).replace("SERVER", address)
        };
        words.iter().map(word).collect()
    }

    fn command(&self, words: &[&str]) -> std::process::Command {
        let address = self.hostile.address();
        let mut command = self.home.command(self.words(words, &address));
        command.env("MUSTER_SERVER", &address);
        command
    }

    fn run(&self, words: &[&str]) -> Finished {
        let mut command = self.command(words);
        let input = self.home.shared().join("password");
        fs::write(&input, "no password of theirs\n").expect("an input");
        command.stdin(fs::File::open(input).expect("the input"));
        Running::start(command).finish()
    }

    fn stop(self) {
        self.server.signal(rustix::process::Signal::TERM);
        assert_eq!(self.server.finish().code(), 0);
    }
}

fn log_in(door: &Door, user: &str, password: &str) -> String {
    let reply = door.ask(&Request::post("/api/v1/login", &json!({"user": user, "password": password})));
    assert!(reply.status < 300, "{}", reply.text());
    reply.json()["secret"].as_str().expect("a token").to_owned()
}

/// What is wrong with a text: a character that is not drawn in its place, or a line that begins with the server's words.
fn fault(what: &[&str], text: &str) -> Option<String> {
    let odd: BTreeSet<char> =
        text.chars().filter(|letter| !printable::is_printable(*letter) && *letter != '\n').collect();
    let forged = text.lines().find(|line| line.starts_with("FORGED"));
    let unread = ["error[server_foreign]", "error[usage]"].into_iter().find(|error| text.contains(error));
    let is_safe = odd.is_empty() && forged.is_none() && unread.is_none();
    (!is_safe).then(|| format!("{what:?} prints {odd:?} {forged:?} {unread:?}:\n{text:?}"))
}

fn assert_safe(what: &[&str], text: &str) {
    assert_eq!(fault(what, text), None);
}

#[test]
fn no_command_executes_a_text_of_the_server() {
    let scene = Scene::start();
    let (mut faults, mut silent) = (Vec::new(), Vec::new());
    for words in WALKED {
        let done = scene.run(words);
        let text = format!("{}{}", done.out(), done.err());
        faults.extend(fault(words, &text));
        if !text.contains(SHOWN) {
            silent.push(words);
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // Most of them show a text of the server's; the others would be a hole in this test.
    assert!(silent.len() * 3 < WALKED.len(), "{silent:?} show no text of the server's");
    for words in [&["show", "JOB"][..], &["why", "JOB"], &["ps", "-a"], &["nodes"], &["audit"], &["events"]] {
        assert!(!silent.contains(&&words), "{words:?}");
    }
    scene.stop();
}

#[test]
fn json_stays_json_and_is_printable() {
    let scene = Scene::start();
    for words in
        [&["show", "JOB", "--json"][..], &["ps", "-a", "--json"], &["nodes", "--json"], &["audit", "--json"]]
    {
        let done = scene.run(words);
        assert_eq!(done.code(), 0, "{}", done.err());
        assert_safe(words, &done.out());
        let text = done.out();
        let documents = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        let documents: Vec<Value> = documents.map(|document| document.expect("JSON")).collect();
        assert!(documents.iter().any(|document| holds(document, HOSTILE)), "{words:?}: {text}");
    }
    let done = scene.run(&["show", "nothing-of-this-name", "--json"]);
    assert_safe(&["show"], &done.err());
    let problem: Value = serde_json::from_str(&done.err()).expect("JSON");
    assert!(holds(&problem, HOSTILE), "{problem}");
    scene.stop();
}

fn holds(value: &Value, text: &str) -> bool {
    match value {
        Value::String(found) => found.ends_with(text),
        Value::Array(items) => items.iter().any(|item| holds(item, text)),
        Value::Object(fields) => fields.values().any(|value| holds(value, text)),
        _ => false,
    }
}

#[test]
fn on_a_terminal_only_our_own_colours_are_executed() {
    let scene = Scene::start();
    let dry = ["run", "--dry-run", "--", "true"];
    for words in [&["show", "JOB"][..], &["why", "JOB"], &["events", "JOB"], &["nodes"], &["ps", "-a"], &dry]
    {
        let (status, screen) = Terminal::start(&scene.command(words)).finish();
        assert_eq!(status.code(), Some(0), "{screen}");
        assert!(
            !screen.contains("\x1b]") && !screen.contains('\u{9b}') && !screen.contains('\u{202e}'),
            "{screen:?}"
        );
        assert!(
            screen.replace(SHOWN, "").split('\x1b').skip(1).all(|rest| rest.starts_with('[')),
            "{screen:?}"
        );
    }
    scene.stop();
}

#[test]
fn every_command_is_walked_or_says_why_not() {
    let home = home_with("");
    let help = home.ok(["--help"]);
    let commands = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let names =
        commands.take_while(|line| line.starts_with("  ")).filter_map(|line| line.split_whitespace().next());
    let missing: Vec<&str> = names
        .filter(|name| !EXEMPT.contains(name) && !WALKED.iter().any(|words| words[0] == *name))
        .collect();
    assert!(missing.is_empty(), "add {missing:?} to WALKED, or to EXEMPT with a reason");
}

#[test]
fn a_log_of_another_person_is_text_and_colours_on_a_terminal() {
    let scene = Scene::start();
    let [own, other] = &scene.tokens;
    let command = |token: &str, words: &[&str]| {
        let mut command = scene.home.command(scene.words(words, ""));
        command.env("MUSTER_SERVER", format!("http://{}", scene.address)).env("MUSTER_TOKEN", token);
        command
    };
    let on_terminal = |token: &str, words: &[&str]| {
        let (status, screen) = Terminal::start(&command(token, words)).finish();
        assert_eq!(status.code(), Some(0), "{screen}");
        screen
    };
    let raw = "\x1b[31mred\x1b[0m \x1b]52;c;cm0=\x07 \x1b[2J \x1b[c end";
    let safe = "\x1b[31mred\x1b[0m \\x1b]52;c;cm0=\\x07 \\x1b[2J \\x1b[c end";
    assert!(on_terminal(own, &["logs", "JOB"]).contains(raw));
    for words in [&["logs", "JOB"][..], &["logs", "JOB", "--timestamps"], &["attach", "JOB"]] {
        let screen = on_terminal(other, words);
        assert!(screen.contains(safe) && !screen.contains("\x1b]"), "{words:?}: {screen:?}");
    }
    assert!(on_terminal(other, &["logs", "JOB", "--raw"]).contains(raw));
    // A pipe gets every byte.
    let done = Running::start(command(other, &["logs", "JOB"])).finish();
    assert_eq!(done.out(), format!("{raw}\n"));
    scene.stop();
}
