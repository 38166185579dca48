//! `muster ssh-config`: the host's own ssh, scp and rsync, through what it installs.

use std::path::PathBuf;
use std::process::{Command, Output};

use muster_testkit::Home;

use crate::{home, until};

struct Person {
    home: Home,
    folder: tempfile::TempDir,
}

impl Person {
    fn new() -> Self {
        Self { home: home(), folder: tempfile::tempdir().expect("a folder") }
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join(".ssh/config")
    }

    fn muster(&self, words: &[&str]) -> Output {
        self.home.command(words).env("HOME", self.folder.path()).output().expect("the binary starts")
    }

    /// OpenSSH finds its configuration by the account's home, not by HOME: it has to be told. The environment has nothing of
    /// muster's, as that of an editor.
    fn plain(&self, program: &str, words: &[&str]) -> Output {
        let mut command = Command::new(program);
        match program {
            "rsync" => command.args(["-e", &format!("ssh -F {}", self.config().display())]),
            _ => command.arg("-F").arg(self.config()),
        };
        command
            .args(words)
            .env("HOME", self.folder.path())
            .env_remove("MUSTER_HOME")
            .current_dir(self.home.work());
        let done = command.output();
        done.unwrap_or_else(|error| {
            panic!("{program} (Debian: apt-get install openssh-client rsync): {error}")
        })
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn plain_ssh_and_what_is_built_on_it_reach_tasks_once_it_is_installed() {
    let person = Person::new();
    let home = &person.home;
    home.write("code.txt", "code\n");
    let id = home.submit(&["-N", "2", "--name", "Bert", "--", "sh", "-c", &until("go")]);
    home.wait_for_state(&id, "running");
    std::fs::create_dir(person.folder.path().join(".ssh")).unwrap();
    let mine = "Host mine\n  User me\n";
    std::fs::write(person.config(), mine).unwrap();
    for _ in 0..2 {
        let done = person.muster(&["ssh-config", "--install"]);
        assert!(done.status.success(), "{done:?}");
    }
    let done = person.plain("ssh", &["task1.Bert", "cat code.txt; echo $RANK; exit 3"]);
    assert_eq!(
        (text(&done.stdout).as_str(), done.status.code()),
        ("code\n1\n", Some(3)),
        "{}",
        text(&done.stderr)
    );
    assert_eq!(text(&done.stderr), "");
    let done = person.plain("ssh", &["-G", "mine"]);
    assert!(text(&done.stdout).contains("\nuser me\n") || text(&done.stdout).starts_with("user me\n"));
    assert!(!text(&done.stdout).contains("ssh-proxy"));
    let done = person.plain("ssh", &["-G", "task1.example.com"]);
    assert!(!text(&done.stdout).contains("ssh-proxy"), "a name with two dots is somebody else's machine");
    let shown: serde_json::Value =
        serde_json::from_slice(&person.muster(&["ssh-config", "--json"]).stdout).unwrap();
    assert_eq!(shown["installed"], true);
    assert!(person.muster(&["ssh-config", "--uninstall"]).status.success());
    assert_eq!(std::fs::read_to_string(person.config()).unwrap(), mine);
    home.touch("go");
    home.wait_for_state(&id, "succeeded");
}

#[test]
fn scp_and_rsync_go_both_ways() {
    let person = Person::new();
    let home = &person.home;
    home.write("code.txt", "code\n");
    let id = home.submit(&["--", "sh", "-c", &until("go")]);
    home.wait_for_state(&id, "running");
    assert!(person.muster(&["ssh-config", "--install"]).status.success());
    let host = format!("task0.{id}");
    let done = person.plain("scp", &[&format!("{host}:code.txt"), "back.txt"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    home.write("tree/a/b.txt", "b\n");
    let done = person.plain("rsync", &["-a", "tree/", &format!("{host}:there/")]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(home.ok(["exec", &id, "--", "cat", "there/a/b.txt"]), "b\n");
    assert_eq!(std::fs::read_to_string(home.work().join("back.txt")).unwrap(), "code\n");
    home.touch("go");
    home.wait_for_state(&id, "succeeded");
}
