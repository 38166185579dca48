//! `muster config`, and what every command has in common: completion, colours, help.

use muster_testkit::wait_for;

use crate::home;

#[test]
fn settings_are_set_where_they_are_read_and_comments_stay() {
    let home = home();
    let path = home.ok(["config", "path"]);
    assert_eq!(path.trim(), home.path().join("config.toml").to_str().unwrap());
    assert!(!home.path().exists(), "looking at the configuration makes nothing");
    let shown = home.ok(["config"]);
    let has = |line: &str| line.split_whitespace().take(2).eq(["server.idle_exit", "15m"]);
    assert!(shown.lines().any(has), "{shown}");

    home.configure("# of mine\n[local]\nslots = 3 # few\n");
    home.ok(["config", "set", "local.devices", "H100:2"]);
    home.ok(["config", "set", "local.slots", "5"]);
    let text = std::fs::read_to_string(home.path().join("config.toml")).unwrap();
    assert_eq!(text, "# of mine\n[local]\nslots = 5 # few\ndevices = [\"H100:2\"]\n");
    let node = home.wait_for_node();
    assert_eq!((node["slots"].as_u64(), node["devices"].as_array().map(Vec::len)), (Some(5), Some(2)));

    let settings = home.json(["config", "--json"]);
    let of = |key: &str| settings.as_array().unwrap().iter().find(|it| it["key"] == key).unwrap().clone();
    assert_eq!((&of("local.slots")["value"], &of("local.slots")["source"]), (&"5".into(), &"file".into()));
    assert_eq!(of("home")["place"], "MUSTER_HOME");
    let done = home.run(["config", "unset", "local.slots"]);
    assert!(done.status.success() && done.err().contains("muster server stop"), "{}", done.err());
    assert!(!std::fs::read_to_string(home.path().join("config.toml")).unwrap().contains("slots"));
}

#[test]
fn a_wrong_setting_is_refused_and_changes_nothing() {
    let home = home();
    let before = "[local]\nslots = 3\n";
    home.configure(before);
    for (words, message) in [
        (vec!["config", "set", "local.slots", "many"], "for example: muster config set local.slots"),
        (vec!["config", "set", "local.slots", "0"], "more than nothing"),
        (vec!["config", "set", "local.tree_kill", "axe"], "axe"),
        (vec!["config", "set", "local.slot", "1"], "did you mean `local.slots`?"),
        (vec!["config", "unset", "slots"], "did you mean `local.slots`?"),
    ] {
        let done = home.run(&words);
        assert_eq!(done.code(), 2, "{words:?}: {}", done.err());
        assert!(done.err().contains(message), "{words:?}: {}", done.err());
    }
    assert_eq!(std::fs::read_to_string(home.path().join("config.toml")).unwrap(), before);
    home.configure("[local]\nslots = \"x\"\n");
    let done = home.run(["config"]);
    assert_eq!(done.code(), 2);
    assert!(done.err().contains("config.toml"), "{}", done.err());
}

#[test]
fn every_shell_gets_a_completion() {
    let home = home();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = home.ok(["completion", shell]);
        assert!(script.contains("clone") && script.contains("nodes"), "{shell}");
    }
    assert_eq!(home.run(["completion", "tcsh"]).code(), 2);
    assert!(!home.path().exists(), "it starts nothing");
}

#[test]
fn help_has_a_page_of_exit_codes() {
    let text = home().ok(["help", "exit-codes"]);
    assert!(!text.contains("Usage:"), "{text}");
    assert!(text.contains("137") && text.contains("doctor"), "{text}");
}

#[test]
fn nothing_that_is_piped_has_colours_unless_they_are_asked_for() {
    let home = home();
    home.write("job.yaml", "command: 'true'\n");
    let lines: &[&[&str]] = &[
        &["run", "--", "sh", "-c", "exit 3"],
        &["run", "-N", "2", "--", "sh", "-c", "echo a; exit 3"],
        &["run", "--dry-run", "--", "true"],
        &["run", "--nodes", "0", "--", "true"],
        &["submit", "job.yaml"],
        &["clone", "last", "--nodes", "2"],
        &["clone", "last", "--dry-run"],
        &["ps", "-a"],
        &["show", "last"],
        &["logs", "last"],
        &["exec", "last", "--", "true"],
        &["ssh", "last", "--", "true"],
        &["attach", "last"],
        &["port-forward", "last", "80"],
        &["ssh-config"],
        &["files", "last"],
        &["get", "last", "-o", "here"],
        &["session", "ls", "last"],
        &["cp", "last:here", "there"],
        &["gc"],
        &["events", "last"],
        &["events"],
        &["wait", "last"],
        &["why", "last"],
        &["stop", "last"],
        &["suspend", "last"],
        &["resume", "last"],
        &["hold", "last"],
        &["release", "last"],
        &["priority", "last", "600"],
        &["queue"],
        &["quota"],
        &["quota", "set", "vision", "--gpus", "4"],
        &["top", "--once"],
        &["machine", "create", "m"],
        &["machine", "ls"],
        &["machine", "kill", "m"],
        &["machine", "stop", "m"],
        &["nodes"],
        &["nodes", "drain", "local"],
        &["nodes", "undrain", "local"],
        &["nodes", "drain", "nobody"],
        &["pool", "ls"],
        &["pool", "rm", "nobody"],
        &["server", "status"],
        &["context", "ls"],
        &["context", "use", "nobody"],
        &["login"],
        &["logout"],
        &["signup", "--workspace", "w"],
        &["whoami"],
        &["user", "ls"],
        &["token", "ls"],
        &["workspace", "ls"],
        &["secret", "ls"],
        &["audit"],
        &["server", "reload"],
        &["server", "backup", "all.backup"],
        &["server", "restore", "all.backup"],
        &["config"],
        &["init"],
        &["init"],
        &["config", "path"],
        &["doctor"],
        &["sim", "--nodes", "4", "--jobs", "50"],
        &["elements", "last"],
        &["explain"],
        &["explain", "usage"],
        &["completion", "bash"],
        &["version"],
        &["help"],
        &["run", "--help"],
        &["shwo"],
        &["rm", "last"],
        &["show", "nobody"],
    ];
    let help = home.ok(["help"]);
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    for name in listed.filter_map(|line| line.split_whitespace().next()) {
        assert!(lines.iter().any(|words| words[0] == name), "add a line of `{name}` to this test");
    }
    for words in lines {
        let done = home.run(*words);
        for output in [&done.stdout, &done.stderr] {
            assert!(!output.contains(&0x1b), "{words:?}: {:?}", String::from_utf8_lossy(output));
        }
    }
    assert!(home.run(["ps", "-a", "--color", "always"]).stdout.contains(&0x1b));
    let terminal = home.start_on_terminal(["ps", "-a", "--color", "never"]);
    wait_for("the list", || terminal.screen().contains("COMMAND"));
    assert!(!terminal.screen().contains('\u{1b}'), "{}", terminal.screen());
}
