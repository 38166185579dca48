//! Hosts that are unlike others: behind another host, of another architecture, and such as end what a login leaves behind.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use muster_testkit::{Account, Host, Process, copy_program, kill, wait_for};

use super::upheaval::{COUNT, check_one};
use super::{Site, slim};
use crate::attempts;

/// Puts a program of our own before the others of a directory.
fn put_script(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a program has a directory")).expect("its directory");
    fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("a program of a test");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its permissions");
}

/// Starts the server as somebody whose `~/.ssh/config` this is: the client itself looks for it in the account's home, which is
/// nobody's to change.
fn start_with_ssh_config(site: &Site, config: &str) {
    let folder = site.home.shared();
    fs::write(folder.join("config"), config).expect("an ssh configuration");
    let own = folder.join("config");
    put_script(&folder.join("bin/ssh"), &format!("exec /usr/bin/ssh -F {} \"$@\"", own.display()));
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", folder.join("bin").display());
    let started = site.home.command(["server", "start"]).env("PATH", path).output();
    assert!(started.expect("the binary starts").status.success());
}

#[test]
fn a_host_behind_another_is_reached_as_the_users_configuration_says() {
    let site = Site::bare(2);
    let (door, inner) = (site.host(0), site.host(1));
    inner.run(&format!("ip route add blackhole {}/32", site.hosts.launcher()));
    let (key, folder) = (site.hosts.key(), site.home.shared());
    let config = format!(
        "Host *\n User root\n IdentityFile {}\nHost door\n HostName {}\n UserKnownHostsFile {}/known\n \
         StrictHostKeyChecking accept-new\nHost inner\n HostName {}\n ProxyJump door\n",
        key.display(),
        door.address(),
        folder.display(),
        inner.address(),
    );
    start_with_ssh_config(&site, &config);
    let straight = SocketAddr::from((inner.address(), 22));
    assert!(
        TcpStream::connect_timeout(&straight, Duration::from_millis(300)).is_err(),
        "there is no other way"
    );
    let added = site.home.run(["pool", "add", "gpu", "inner"]);
    assert_eq!(added.code(), 0, "{}{}", added.out(), added.err());
    let job = site.submit(&["--", "sh", "-c", COUNT]);
    let shown = site.home.wait_for_state(&job, "running");
    assert_eq!(site.host_of(&shown, 0).name(), "host1", "peers reach it where it is");

    // The door goes away: what is said names what is wrong, and nothing is lost when it is back in time.
    door.cut();
    let connected = |wanted: bool| {
        wait_for(&format!("the inner host to be connected: {wanted}"), || {
            let nodes = site.home.json(["nodes", "--json"]);
            let is_it =
                |node: &serde_json::Value| node["id"] == "node_gpu.inner" && node["connected"] == wanted;
            nodes.as_array().or(nodes["items"].as_array()).is_some_and(|nodes| nodes.iter().any(is_it))
        });
    };
    connected(false);
    door.join();
    connected(true);
    check_one(&site, 1, &job);
    assert_eq!(attempts(&site.home.job(&job)).len(), 1);
}

#[test]
fn a_host_of_another_architecture_is_refused_with_the_remedy_and_the_remedy_works() {
    let mut site = Site::bare(1);
    // A build of its own: what is put beside it is part of its name, and other tests use the common one.
    let folder = site.home.shared().join("program");
    fs::create_dir(&folder).expect("a directory for the binary");
    copy_program(slim(), &folder.join("muster"));
    site.home.set_binary(folder.join("muster"));
    let foreign = if std::env::consts::ARCH == "x86_64" { "aarch64" } else { "x86_64" };
    site.host(0).run(&format!(
        "printf '#!/bin/sh\\n[ \"$1\" = -m ] && echo {foreign} || exec /usr/bin/uname \"$@\"\\n' > /usr/local/bin/uname; \
         chmod 755 /usr/local/bin/uname"
    ));
    let added = site.add(&site.destinations(Account::Root));
    let wanted = folder.join(format!("muster-{foreign}"));
    let said = format!("{}{}", added.out(), added.err());
    assert_eq!(added.code(), 125, "{said}");
    for words in
        [&format!("is {foreign} and this muster is for"), wanted.to_str().unwrap(), "restart the server"]
    {
        assert!(said.contains(words), "{words:?} is not in:\n{said}");
    }
    // In truth the machine is of ours.
    fs::copy(slim(), &wanted).expect("the other binary");
    site.home.ok(["server", "stop"]);
    let added = site.add(&site.destinations(Account::Root));
    assert_eq!(added.code(), 0, "{}{}", added.out(), added.err());
    assert_eq!(site.home.ok(["run", "--on", "ssh/gpu", "--", "hostname"]), "host0\n");
}

/// What a host that is told to keep nothing of who logged out does: every process that a login left is killed, save those
/// that the account's own manager has.
fn end_what_logins_left(host: &Host) {
    wait_for("the logins to end", || host.processes_with(" carry ").is_empty());
    let is_left = |process: &Process| {
        let line = process.words.join(" ");
        process.is("agent") || process.is("supervise") || line.contains("sleep 1000") || line.contains("i=0")
    };
    let doomed = host.processes().into_iter().filter(|process| is_left(process) && !is_managed(process.pid));
    doomed.for_each(|process| kill(process.pid));
}

/// Whether a process is one that was put into a scope of the manager's, or descends from such a one.
fn is_managed(pid: u32) -> bool {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let parent = || read("status").lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
    read("environ").split('\0').any(|entry| entry == SCOPE)
        || parent().is_some_and(|up| up > 1 && is_managed(up))
}

/// What the stand-in for systemd-run marks processes with.
const SCOPE: &str = "SCOPE_OF_A_TEST=1";

#[test]
fn where_a_host_ends_what_logins_leave_tasks_are_lost_with_a_word_and_its_agent_is_started_again() {
    let site = Site::new(1);
    let script = "echo attempt $MUSTER_ATTEMPT; [ $MUSTER_ATTEMPT -gt 1 ] || sleep 1000";
    site.home.write(
        "job.yaml",
        format!("on: ssh/gpu\nretries: {{max: 1, backoff: 100ms}}\ncommand: [sh, -c, '{script}']\n"),
    );
    let job = site.home.submit(&["--file", "job.yaml"]);
    wait_for("the task to run", || !site.host(0).processes_with("sleep 1000").is_empty());
    site.home.kill("server");
    end_what_logins_left(site.host(0));
    // What is killed is there for a moment longer.
    wait_for("the agent to be gone", || site.agents_exe(0).is_none());
    site.home.ok(["server", "start"]);
    let shown = site.home.wait_for_state(&job, "succeeded");
    let first = &attempts(&shown)[0];
    assert_eq!(first["reason"]["code"], "supervisor_lost", "{shown}");
    let help = site.home.ok(["explain", "supervisor_lost"]);
    assert!(help.contains("loginctl enable-linger"), "{help}");
    assert_eq!(site.home.ok(["logs", &job, "--attempt", "2"]), "attempt 2\n");
}

#[test]
fn where_the_account_may_linger_the_agent_and_its_tasks_outlive_every_login() {
    let site = Site::bare(1);
    let host = site.host(0);
    // As systemd has it: the account lingers, its manager listens, and whoever asks is put into a scope of that manager.
    host.run(
        &"mkdir -p /var/lib/systemd/linger /run/user/0/systemd; touch /var/lib/systemd/linger/root /run/user/0/systemd/private; \
         printf '#!/bin/sh\\n[ \"$XDG_RUNTIME_DIR\" = /run/user/0 ] || exit 1\\n\
         while [ \"$1\" != -- ]; do shift; done\\nshift\\nexec env SCOPE \"$@\"\\n' > /usr/local/bin/systemd-run; \
         chmod 755 /usr/local/bin/systemd-run"
            .replace("SCOPE", SCOPE),
    );
    let added = site.add(&site.destinations(Account::Root));
    assert_eq!(added.code(), 0, "{}{}", added.out(), added.err());
    let job = site.submit(&["--", "sh", "-c", COUNT]);
    site.home.wait_for_state(&job, "running");
    site.home.kill("server");
    end_what_logins_left(site.host(0));
    assert!(site.agents_exe(0).is_some(), "{:?}", host.processes());
    site.home.ok(["server", "start"]);
    site.wait_for_connected(0, true);
    check_one(&site, 0, &job);
    assert_eq!(attempts(&site.home.job(&job)).len(), 1);

    // A manager that does not answer is done without.
    site.home.ok(["pool", "rm", "gpu"]);
    host.run("printf '#!/bin/sh\\nexit 1\\n' > /usr/local/bin/systemd-run; rm -f /var/tmp/end");
    let added = site.add(&site.destinations(Account::Root));
    assert_eq!(added.code(), 0, "{}{}", added.out(), added.err());
}
