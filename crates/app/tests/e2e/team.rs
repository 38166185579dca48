//! A server that people share, used as they use it: the program, over TCP, each with a home of their own.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use muster_testkit::http::{Door, Request};
use muster_testkit::{Finished, Home, Running, wait_for};
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

use crate::{home_with, until};

/// A server with accounts.
struct Team {
    home: Home,
    server: Running,
    address: String,
}

impl Team {
    fn start(flags: &[&str]) -> Self {
        Self::configured("[local]\nenabled = true\n", flags)
    }

    fn configured(config: &str, flags: &[&str]) -> Self {
        let home = home_with(config);
        home.share_with_everybody();
        let (server, address) = Self::serve(&home, "127.0.0.1:0", flags);
        Self { home, server, address }
    }

    fn serve(home: &Home, listen: &str, flags: &[&str]) -> (Running, String) {
        let folder = home.path();
        let place =
            ["server", "run", "--home", folder.to_str().expect("plain"), "--listen", listen, "--auth"];
        let server = home.start(place.iter().chain(flags));
        server.wait_for_out("ready\n");
        (server, fs::read_to_string(folder.join("server.address")).expect("where it listens"))
    }

    /// Kills the server, and starts it again where people know it.
    fn kill_and_restart(self) -> Self {
        assert_eq!(self.home.kill("server"), 1);
        let (server, address) = Self::serve(&self.home, &self.address, &[]);
        Self { server, address, ..self }
    }

    /// Somebody elsewhere, who knows nothing of the server but what they were told.
    fn person<'a>(&'a self, name: &'a str) -> Person<'a> {
        Person { team: self, name }
    }

    /// The first admin, by what the server leaves for whoever runs it.
    fn admin(&self) -> Person<'_> {
        let admin = self.person("admin");
        let password =
            fs::read_to_string(self.home.path().join("admin-password")).expect("the first password");
        admin.log_in(password.trim());
        admin
    }

    fn stop(self) {
        self.server.signal(rustix::process::Signal::TERM);
        assert_eq!(self.server.finish().code(), 0);
    }
}

struct Person<'a> {
    team: &'a Team,
    name: &'a str,
}

impl Person<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.team.home.command(words);
        command.env("MUSTER_HOME", self.team.home.shared().join(self.name)).env("USER", self.name);
        command
    }

    fn run(&self, words: &[&str]) -> Finished {
        Running::start(self.command(words)).finish()
    }

    /// With something to read, as from a pipe.
    fn run_with(&self, words: &[&str], input: &str) -> Finished {
        let path = self.team.home.shared().join(format!("{}.in", self.name));
        fs::write(&path, format!("{input}\n")).expect("an input");
        let mut command = self.command(words);
        command.stdin(File::open(path).expect("the input"));
        Running::start(command).finish()
    }

    fn ok(&self, words: &[&str]) -> String {
        let done = self.run(words);
        assert_eq!(done.code(), 0, "{} {words:?}: {}{}", self.name, done.out(), done.err());
        done.out()
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ok(words)).expect("JSON")
    }

    fn refused(&self, words: &[&str], code: &str) {
        let done = self.run(words);
        assert_eq!(done.code(), 2, "{} {words:?}: {}{}", self.name, done.out(), done.err());
        assert!(done.err().contains(&format!("error[{code}]")), "{} {words:?}: {}", self.name, done.err());
    }

    fn log_in(&self, password: &str) {
        let url = format!("http://{}", self.team.address);
        let words = ["login", &url, "--user", self.name, "--name", "team", "--password-stdin"];
        let done = self.run_with(&words, password);
        assert_eq!(done.code(), 0, "{}: {}", self.name, done.err());
        assert!(!done.out().contains("mst_") && !done.err().contains("mst_"), "nobody sees the token");
    }

    /// A job that goes on until its end is there.
    fn submit(&self, words: &[&str], end: &str) -> String {
        let line = format!("echo begun; {}", until(end));
        let shared = format!("SHARED={}", self.team.home.shared().display());
        let words: Vec<&str> =
            ["run", "-d", "--json", "--env", &shared].into_iter().chain(words.iter().copied()).collect();
        let job = self.json(&[&words[..], &["--", "sh", "-c", &line]].concat());
        job["id"].as_str().expect("an id").to_owned()
    }
}

fn password(name: &str) -> String {
    format!("the password of {name}")
}

/// The account of their tasks: every machine has these two.
fn account(name: &str) -> &str {
    if name == "bob" { "daemon" } else { "nobody" }
}

/// Two workspaces, and who is what in them.
fn people<'a>(team: &'a Team, members: &[(&'a str, &str, &str)]) -> Vec<Person<'a>> {
    let admin = team.admin();
    for workspace in ["nlp", "cv"] {
        admin.ok(&["workspace", "add", workspace]);
    }
    let mut all = Vec::new();
    for (name, workspace, role) in members {
        let words = ["user", "add", name, "--workspace", workspace, "--role", role, "--password-stdin"];
        let words = [&words[..], &["--account", account(name)]].concat();
        let done = admin.run_with(&words, &password(name));
        assert_eq!(done.code(), 0, "{}", done.err());
        let person = team.person(name);
        person.log_in(&password(name));
        all.push(person);
    }
    all
}

#[test]
fn two_people_share_a_server_and_nothing_else() {
    let team = Team::start(&[]);
    let everybody = people(&team, &[("ada", "nlp", "member"), ("bob", "cv", "member")]);
    let [ada, bob] = &everybody[..] else { panic!("two people") };
    assert!(ada.ok(&["whoami"]).contains("member of nlp"));
    let job = ada.submit(&["--name", "secret"], "end");
    wait_for("it to run", || ada.json(&["show", &job, "--json"])["state"] == "running");
    assert_eq!(ada.json(&["show", &job, "--json"])["owner"], "ada");

    // To bob it is not there, whatever he calls it and whatever he does.
    assert_eq!(bob.json(&["ps", "-a", "--json"]), json!([]));
    for selector in [job.as_str(), "secret", "last"] {
        for command in ["show", "logs", "why", "stop", "files"] {
            bob.refused(&[command, selector], "job_not_found");
        }
        bob.refused(&["exec", selector, "--", "true"], "job_not_found");
    }
    bob.refused(&["run", "-d", "--workspace", "nlp", "--", "true"], "invalid_value");
    bob.refused(&["nodes", "drain", "local"], "forbidden");
    bob.refused(&["user", "add", "eve", "--no-password"], "forbidden");
    // A name of his own is his own.
    let other = bob.submit(&["--name", "secret"], "end");
    assert_eq!(bob.json(&["show", "secret", "--json"])["id"], other.as_str());
    assert_eq!(ada.json(&["show", "secret", "--json"])["id"], job.as_str());

    // In a workspace that both are in, he sees; and changes nothing.
    team.admin().ok(&["workspace", "add-member", "nlp", "bob", "--role", "viewer"]);
    wait_for("what it said", || bob.ok(&["logs", &job]) == "begun\n");
    bob.refused(&["stop", &job], "forbidden");
    bob.refused(&["exec", &job, "--", "true"], "forbidden");
    bob.refused(&["run", "-d", "--workspace", "nlp", "--", "true"], "forbidden");
    assert_eq!(ada.ok(&["exec", &job, "--", "echo", "hers"]), "hers\n");

    // A lead may end it, and not go in.
    team.admin().ok(&["workspace", "add-member", "nlp", "bob", "--role", "lead"]);
    bob.refused(&["exec", &job, "--", "true"], "forbidden");
    bob.ok(&["stop", &job]);
    wait_for("its end", || ada.json(&["show", &job, "--json"])["state"] == "stopped");
    team.home.touch("end");

    // All of it is on record, and no secret.
    let audit = team.admin().ok(&["audit", "-n", "1000"]);
    assert!(audit.contains("stop_job") && audit.contains("ssh") && audit.contains("forbidden"), "{audit}");
    assert!(!audit.contains("mst_") && !audit.contains(&password("ada")), "{audit}");
    ada.refused(&["audit"], "forbidden");
    ada.ok(&["logout"]);
    ada.refused(&["ps"], "unauthorized");
    wait_for("the other job", || bob.json(&["show", &other, "--json"])["state"] == "succeeded");
    team.stop();
}

#[test]
fn whoever_is_disabled_is_out_at_once() {
    let team = Team::start(&[]);
    let everybody = people(&team, &[("ada", "nlp", "member")]);
    let ada = &everybody[0];
    let job = ada.submit(&[], "end");
    let follower = Running::start(ada.command(&["logs", "-f", &job]));
    follower.wait_for_out("begun\n");
    let inside = Running::start(ada.command(&["exec", &job, "--", "sh", "-c", "echo in; sleep 1000"]));
    inside.wait_for_out("in\n");
    let token = ada.ok(&["token", "add", "script"]);

    let admin = team.admin();
    admin.ok(&["user", "disable", "ada"]);
    for ended in [follower, inside] {
        let done = ended.finish_within(Duration::from_secs(15));
        assert_ne!(done.code(), 0, "{}{}", done.out(), done.err());
    }
    ada.refused(&["ps"], "unauthorized");
    let by_token = |words: &[&str]| {
        let mut command = team.home.command(words);
        command.env("MUSTER_HOME", team.home.shared().join("script"));
        command.env("MUSTER_SERVER", format!("http://{}", team.address)).env("MUSTER_TOKEN", token.trim());
        Running::start(command).finish().code()
    };
    assert_eq!(by_token(&["ps"]), 2);
    // Her job goes on, and she may come back.
    assert_eq!(admin.json(&["show", &job, "--json"])["state"], "running");
    admin.ok(&["user", "enable", "ada"]);
    assert_eq!(by_token(&["ps"]), 0);
    ada.ok(&["ps"]);
    team.home.touch("end");
    wait_for("its end", || ada.json(&["show", &job, "--json"])["state"] == "succeeded");
    team.stop();
}

#[test]
fn an_owner_who_left_gets_no_secret_in_a_later_attempt() {
    let team = Team::start(&[]);
    let everybody = people(&team, &[("ada", "nlp", "member"), ("lea", "nlp", "lead")]);
    let [ada, lea] = &everybody[..] else { panic!("two people") };
    let admin = team.admin();
    let put = |value: &str| {
        let done = lea.run_with(&["secret", "put", "TOKEN", "--workspace", "nlp"], value);
        assert_eq!(done.code(), 0, "{}", done.err());
    };
    put("the first value");
    let shared = format!("SHARED={}", team.home.shared().display());
    let line = format!("echo begun; echo \"$TOKEN\" >> \"$SHARED/seen\"; {}; exit 1", until("end"));
    fs::write(team.home.shared().join("seen"), "").expect("a file");
    fs::set_permissions(team.home.shared().join("seen"), fs::Permissions::from_mode(0o666))
        .expect("open to all");
    let words = [
        "run",
        "-d",
        "--json",
        "--env",
        &shared,
        "--secret",
        "TOKEN",
        "--retries",
        "2",
        "--",
        "sh",
        "-c",
        &line,
    ];
    let job = ada.json(&words)["id"].as_str().expect("an id").to_owned();
    let waiting = ada.json(&["run", "-d", "--json", "--hold", "--secret", "TOKEN", "--", "true"]);
    let waiting = waiting["id"].as_str().expect("an id").to_owned();
    let seen = || fs::read_to_string(team.home.shared().join("seen")).expect("a file");
    wait_for("the first attempt to have its secret", || seen() == "the first value\n");

    admin.ok(&["user", "disable", "ada"]);
    admin.ok(&["workspace", "rm-member", "nlp", "ada"]);
    put("another value");
    wait_for("what runs to go on", || admin.json(&["show", &job, "--json"])["state"] == "running");
    let why = admin.ok(&["why", &waiting]);
    assert!(why.contains("the account `ada` is disabled"), "{why}");
    team.home.touch("end");
    admin.ok(&["release", &waiting]);
    for (job, attempts) in [(&job, 1), (&waiting, 0)] {
        wait_for("its end", || admin.json(&["show", job, "--json"])["state"] == "failed");
        let shown = admin.json(&["show", job, "--json"]);
        assert_eq!(shown["reason"]["code"], "owner_not_allowed", "{shown}");
        assert_eq!(shown["attempt"], attempts, "{shown}");
    }
    assert_eq!(seen(), "the first value\n");
    team.stop();
}

#[test]
fn an_account_is_asked_for_on_the_command_line() {
    let team = Team::start(&[]);
    let everybody = people(&team, &[("lea", "nlp", "lead")]);
    let (lea, new) = (&everybody[0], team.person("new"));
    let url = format!("http://{}", team.address);
    let words = ["signup", &url, "--workspace", "nlp", "--password-stdin"];
    let short = new.run_with(&words, "short");
    assert_eq!((short.code(), short.err().contains("10 are the fewest")), (2, true), "{}", short.err());
    assert_eq!(new.run_with(&words, &password("new")).code(), 0);
    let early = new.run_with(&["login", &url, "--password-stdin"], &password("new"));
    assert!(early.err().contains("waits for somebody to approve it"), "{}", early.err());
    assert!(lea.ok(&["workspace", "show", "nlp"]).contains("has asked     new"));
    lea.ok(&["workspace", "add-member", "nlp", "new"]);
    new.log_in(&password("new"));
    // They have chosen their name themselves: it does not make them whoever is called so on the machines.
    let none = new.run(&["run", "--", "echo", "runs"]);
    assert_eq!(none.code(), 2, "{}{}", none.out(), none.err());
    for word in ["no admin has said which account", "muster user set NAME --account ACCOUNT"] {
        assert!(none.err().contains(word), "{word}: {}", none.err());
    }
    team.admin().ok(&["user", "set", "new", "--account", "nobody"]);
    assert_eq!(new.ok(&["run", "--", "id", "-un"]), "nobody\n");
    // The password is changed with the old one, and other logins are over by it.
    let elsewhere = team.person("elsewhere");
    let words = ["login", &url, "--user", "new", "--name", "team", "--password-stdin"];
    assert_eq!(elsewhere.run_with(&words, &password("new")).code(), 0);
    elsewhere.ok(&["ps"]);
    let change = ["user", "passwd", "--password-stdin"];
    assert_eq!(new.run_with(&change, "a wrong old one\nanother password").code(), 2);
    let changed = new.run_with(&change, &format!("{}\nanother password", password("new")));
    assert_eq!(changed.code(), 0, "{}", changed.err());
    elsewhere.refused(&["ps"], "unauthorized");
    new.ok(&["ps"]);
    assert_eq!(elsewhere.run_with(&words, &password("new")).code(), 2);
    let me = new.json(&["whoami", "--json"]);
    assert_eq!((me["user"].as_str(), me["admin"].as_bool()), (Some("new"), Some(false)));
    team.stop();
}

/// How long a process has had the processor.
fn processor_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let fields: Vec<u64> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|n| n.parse().ok())
        .collect();
    Duration::from_millis(fields.iter().sum::<u64>() * 10)
}

#[test]
fn ten_thousand_wrong_passwords_cost_little_and_keep_nobody_out() {
    const TRIES: usize = 10_000;
    const CALLERS: usize = 4;
    let team = Team::start(&[]);
    let everybody = people(&team, &[("ada", "nlp", "member"), ("bob", "nlp", "member")]);
    let [ada, bob] = &everybody[..] else { panic!("two people") };
    let before = processor_time(team.server.pid());
    let begun = Instant::now();
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let team = &team;
        let attack = move |caller: usize| {
            let door = Door::Tcp(team.address.clone());
            let guess = |number: usize| {
                // Half of them at one account, half at names that may be there.
                let user = if number.is_multiple_of(2) { "ada".to_owned() } else { format!("user{number}") };
                let login = json!({ "user": user, "password": format!("guess number {number}") });
                door.ask(&Request::post("/api/v1/login", &login)).status
            };
            (0..TRIES / CALLERS).map(|number| guess(number * CALLERS + caller)).collect::<Vec<_>>()
        };
        let callers: Vec<_> = (0..CALLERS).map(|caller| scope.spawn(move || attack(caller))).collect();
        // Meanwhile, from the same address, somebody else comes in; and she, by what she has.
        bob.log_in(&password("bob"));
        ada.ok(&["ps"]);
        assert!(callers.iter().any(|caller| !caller.is_finished()), "it went on meanwhile");
        callers.into_iter().flat_map(|caller| caller.join().expect("a caller")).collect()
    });
    let (took, cost) = (begun.elapsed(), processor_time(team.server.pid()) - before);
    let tried = statuses.iter().filter(|status| **status == 401).count();
    assert!(statuses.iter().all(|status| matches!(status, 401 | 429)), "{statuses:?}");
    // What is hashed is bounded by time alone, however many there are.
    let bound = 40 + took.as_secs() as usize * 2;
    assert!(tried <= bound, "{tried} of {TRIES} were tried in {took:?}");
    // A request that is turned away costs next to nothing; this is a build for tests, on a machine with other work.
    assert!(cost < Duration::from_secs(30), "{cost:?}");
    // She has to wait for a moment at most, because it was her name that was tried.
    ada.log_in(&password("ada"));
    eprintln!("{TRIES} wrong passwords in {took:?}: {tried} tried, {cost:?} of processor time");
    team.stop();
}

#[test]
fn two_people_have_their_turns_whoever_came_first() {
    let config = "[local]\nenabled = true\ndevices = [\"H100:2\"]\n[scheduler]\nhalf_life = \"1m\"\n";
    let team = Team::configured(config, &[]);
    let names = |team: &Team| {
        let everybody = people(team, &[("ada", "nlp", "member"), ("bob", "nlp", "member")]);
        let submit = |person: &Person, number: usize| {
            let words = ["run", "-d", "--gpus", "1", "--json", "--name"];
            let name = format!("{}-{number}", person.name);
            person.json(&[&words[..], &[&name, "--", "sleep", "0.4"]].concat());
        };
        (0..10).for_each(|number| submit(&everybody[0], number));
        (0..5).for_each(|number| submit(&everybody[1], number));
    };
    names(&team);
    // What was used, and who waits, is known to the server that comes back.
    let team = team.kill_and_restart();
    let ada = team.person("ada");
    let jobs = || ada.json(&["ps", "-a", "--json"]).as_array().cloned().expect("a list");
    wait_for("all to be over", || jobs().iter().all(|job| job["state"] == "succeeded"));
    let mut started: Vec<(String, String)> = jobs()
        .iter()
        .map(|job| {
            (job["started_at"].as_str().unwrap().to_owned(), job["owner"].as_str().unwrap().to_owned())
        })
        .collect();
    started.sort();
    let order: Vec<&str> = started.iter().map(|(_, owner)| owner.as_str()).collect();
    // Ada was there first and had asked for all; bob did not wait for her to be done.
    let first_of_bob = order.iter().position(|owner| *owner == "bob").unwrap();
    let later = order[first_of_bob..].iter().filter(|owner| **owner == "ada").count();
    assert_eq!(order.len(), 15);
    assert!(later >= 4, "bob had his turns beside her, and not after her: {order:?}");
    team.stop();
}

#[test]
fn people_and_workspaces_have_names_in_any_script() {
    let team = Team::start(&[]);
    let everybody =
        people(&team, &[("ada", "nlp", "lead"), ("bob", "nlp", "member"), ("eve", "cv", "member")]);
    let [ada, bob, eve] = &everybody[..] else { panic!("three people") };
    let admin = team.person("admin");

    // Their own, and a workspace's by those who lead it.
    bob.ok(&["user", "set", "--display-name", "王芳"]);
    bob.ok(&["user", "set", "bob", "--display-name", "王芳"]);
    bob.refused(&["user", "set", "ada", "--display-name", "x"], "forbidden");
    bob.refused(&["user", "set", "--display-name", "x", "--admin", "true"], "forbidden");
    bob.refused(&["workspace", "set", "nlp", "--display-name", "x"], "forbidden");
    eve.refused(&["workspace", "set", "nlp", "--display-name", "x"], "not_found");
    ada.ok(&["workspace", "set", "nlp", "--display-name", "自然语言处理"]);
    admin.ok(&["workspace", "add", "ops", "--display-name", "运维"]);
    admin.ok(&["user", "add", "zhao", "--no-password", "--display-name", "Zhao\u{308}"]);
    admin.ok(&["user", "set", "eve", "--display-name", "Ève", "--account", "daemon"]);

    // Beside the identifiers, and in line.
    let shown = |of: &Value, name: &str| {
        let one = of.as_array().expect("a list").iter().find(|one| one["name"] == name).expect("it is there");
        one["display_name"].clone()
    };
    let users = admin.json(&["user", "ls", "--json"]);
    let expected = [("bob", "王芳"), ("zhao", "Zhaö"), ("eve", "Ève")];
    assert!(expected.iter().all(|(name, text)| shown(&users, name) == *text), "{users}");
    assert_eq!(
        (shown(&users, "ada"), shown(&admin.json(&["workspace", "ls", "--json"]), "ops")),
        (Value::Null, json!("运维"))
    );
    for (words, column, cells) in
        [(["user", "ls"], "STATE", "active"), (["workspace", "ls"], "YOU ARE", "lead")]
    {
        let table = admin.ok(&words);
        let start = |line: &str, cell: &str| line.find(cell).map(|at| line[..at].width());
        let header = table.lines().next().expect("a header");
        assert!(start(header, "DISPLAY NAME").is_some(), "{table}");
        for row in table.lines().skip(1) {
            assert_eq!(start(row, cells), start(header, column), "{table}");
        }
    }
    let workspace = bob.ok(&["workspace", "show", "nlp"]);
    assert!(
        workspace.contains("display name  自然语言处理") && workspace.contains("bob (王芳)"),
        "{workspace}"
    );

    // What would pass for something else is refused; what stays is a name beside an identifier.
    for hostile in ["admin\u{202e}", "a\u{200b}da", " ada", "ada\x1b[2K", &"王".repeat(101)] {
        let done = bob.run(&["user", "set", "--display-name", hostile]);
        assert_eq!(done.code(), 2, "{hostile:?}: {}", done.err());
        assert!(done.err().contains("display_name: must"), "{hostile:?}: {}", done.err());
        let done = ada.run(&["workspace", "set", "nlp", "--display-name", hostile]);
        assert_eq!(done.code(), 2, "{hostile:?}: {}", done.err());
    }
    bob.ok(&["user", "set", "--display-name", "ada"]);
    let job = bob.submit(&["--name", "训练任务"], "end");
    assert_eq!(admin.json(&["show", &job, "--json"])["owner"], "bob");
    let job_of_ada = ada.submit(&["--name", "训练任务"], "end");
    assert_eq!(bob.json(&["show", "训练任务", "--json"])["id"], json!(job), "one's own comes first");
    eve.refused(&["show", "训练任务"], "job_not_found");
    admin.refused(&["show", "训练任务"], "ambiguous");
    bob.refused(&["stop", &job_of_ada], "forbidden");

    // Records name identifiers.
    let lines = admin.ok(&["audit", "-n", "1000", "--json"]);
    let entries = serde_json::Deserializer::from_str(&lines).into_iter();
    let entries: Vec<Value> = entries.collect::<Result<_, _>>().expect("JSON");
    let own = entries
        .iter()
        .find(|one| one["operation"] == "set_display_name" && one["detail"]["display_name"] == "王芳");
    let own = own.expect("the change is on record");
    assert_eq!((&own["user"], &own["target"]), (&json!("bob"), &json!("bob")));
    for entry in &entries {
        let text = format!("{}{}", entry["user"], entry["target"]);
        assert!(text.is_ascii(), "{entry}");
    }

    // They outlive a kill, and go when nothing is said.
    let team = team.kill_and_restart();
    let bob = team.person("bob");
    let named = || shown(&bob.json(&["user", "ls", "--json"]), "bob");
    assert_eq!(named(), "ada");
    bob.ok(&["user", "set", "--display-name", ""]);
    assert_eq!(named(), Value::Null);
    fs::write(team.home.shared().join("end"), "").expect("the end");
    team.stop();
}
