//! `muster context`: servers by name.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use muster_testkit::Running;
use serde_json::json;

use crate::home;

#[test]
fn commands_talk_to_the_server_of_the_context_that_is_used() {
    let (there, mut here) = (home(), home());
    let folder = there.path();
    let words = ["server", "run", "--home", folder.to_str().unwrap(), "--listen", "127.0.0.1:0", "--tls"];
    let server = there.start(words);
    server.wait_for_out("ready\n");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let (url, token) = (format!("https://{}", read("server.address")), read("token"));
    let status = there.json(["server", "status", "--json"]);
    let pin = status["fingerprint"].as_str().unwrap();

    assert_eq!(here.json(["context", "ls", "--json"])[0]["name"], "local");
    here.ok(["context", "add", "there", &url]);
    let unknown = here.run(["--context", "there", "ps"]);
    assert_eq!(unknown.code(), 125, "{}", unknown.err());
    let remedy = format!("muster context add there {url} --fingerprint {pin}");
    assert!(unknown.err().contains(&remedy), "{}", unknown.err());
    here.ok(["context", "add", "there", &url, "--fingerprint", pin]);
    // A token that may be anybody's is not shown to whoever is in use.
    here.set_variable("MUSTER_TOKEN", &token);
    let unknown = here.run(["--context", "there", "ps"]);
    assert!(
        unknown.err().contains("unauthorized") && unknown.err().contains("MUSTER_TOKEN is not shown"),
        "{}",
        unknown.err()
    );
    let mut together = here.command(["ps"]);
    together.env("MUSTER_CONTEXT", "there");
    assert_eq!(Running::start(together).finish().code(), 0, "the two go together");
    // What it knows its user by is the context's own, and the pin stays.
    let mut given = here.command(["context", "add", "there", &url, "--token-stdin"]);
    given.stdin(fs::File::open(folder.join("token")).unwrap()).env_remove("MUSTER_TOKEN");
    assert_eq!(Running::start(given).finish().code(), 0);
    here.set_variable("MUSTER_TOKEN", "");
    let pid = |words: &[&str]| here.json(words)["pid"].clone();
    assert_eq!(pid(&["--context", "there", "server", "status", "--json"]), json!(server.pid()));
    assert_ne!(pid(&["server", "start", "--json"]), json!(server.pid()));

    here.ok(["context", "use", "there"]);
    assert_eq!(pid(&["server", "status", "--json"]), json!(server.pid()));
    assert_eq!(here.ok(["run", "--", "echo", "there"]), "there\n");
    let listed = here.json(["context", "ls", "--json"]);
    let current: Vec<_> = listed.as_array().unwrap().iter().filter(|it| it["current"] == true).collect();
    assert_eq!((current.len(), &current[0]["name"]), (1, &json!("there")));
    assert!(here.ok(["context", "ls"]).lines().any(|line| line.starts_with('*') && line.contains("there")));
    let mode = fs::metadata(here.path().join("contexts.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let stop = here.run(["server", "stop"]);
    assert_eq!(stop.code(), 2, "{}", stop.err());
    assert!(stop.err().contains("muster --context local server stop"), "{}", stop.err());
    assert_ne!(pid(&["--context", "local", "server", "status", "--json"]), json!(server.pid()));

    here.ok(["context", "rm", "there"]);
    assert_ne!(pid(&["server", "status", "--json"]), json!(server.pid()));
    here.ok(["server", "stop"]);
}

#[test]
fn a_context_that_cannot_be_is_refused_with_the_remedy_and_changes_nothing() {
    let home = home();
    home.ok(["context", "add", "lab", "http://lab:1"]);
    let file = home.path().join("contexts.json");
    let before = fs::read(&file).unwrap();
    let pin = format!("sha256:{}", "0f".repeat(32));
    for (words, code, word) in [
        (&["context", "use", "nowhere"][..], "no_such_context", "lab, local"),
        (&["context", "rm", "nowhere"], "no_such_context", "nowhere"),
        (&["context", "rm", "local"], "context_invalid", "private server"),
        (&["context", "add", "local", "http://a:1"], "context_invalid", "private server"),
        (&["context", "add", "a b", "http://a:1"], "context_invalid", "a b"),
        (&["context", "add", "x", "lab:1"], "server_address_invalid", "https://HOST:PORT"),
        (&["context", "add", "x", "http://a:1", "--fingerprint", &pin], "fingerprint_invalid", "https://"),
        (&["context", "add", "x", "https://a:1", "--fingerprint", "12"], "fingerprint_invalid", "64"),
        (&["context", "add", "lab", "http://lab:1", "--token-stdin"], "usage", "no token"),
        (&["--context", "nowhere", "ps"], "no_such_context", "muster context add nowhere URL"),
    ] {
        let done = home.run(words);
        assert_eq!(done.code(), 2, "{words:?}: {}", done.err());
        assert!(done.err().contains(code) && done.err().contains(word), "{words:?}: {}", done.err());
    }
    assert_eq!(fs::read(&file).unwrap(), before);
    let mut command = home.command(["--context", "lab", "ps"]);
    command.env("MUSTER_SERVER", "http://127.0.0.1:1");
    let done = Running::start(command).finish();
    assert_eq!(done.code(), 2, "which of the two was meant? {}", done.err());
}
