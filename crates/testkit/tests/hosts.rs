//! Hosts of a test's own are machines to whoever uses them, and nothing is left of them.

use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;

use muster_testkit::{Account, Host, Hosts, wait_for};

/// Logs in and runs a line.
fn login(host: &Host, account: Account, line: &str) -> (bool, String) {
    let output = host.ssh_command(account).arg(line).output().expect("ssh starts");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[test]
fn they_share_nothing() {
    let hosts = Hosts::start(2);
    for (number, host) in hosts.all().iter().enumerate() {
        let seen = login(
            host,
            Account::Root,
            "hostname; echo mine > ~/file; touch /etc/mark /tmp/mark; ls /tmp | grep mark",
        );
        assert_eq!(seen, (true, format!("host{number}\nmark")));
        let pid: u32 = host.run("cat /run/sshd.pid").trim().parse().expect("a number");
        assert!(pid < 100, "processes are its own: {pid}");
    }
    hosts
        .host(0)
        .run("rm /etc/mark && echo changed > /root/file && mkdir /var/tmp/x; sleep 1000 >/dev/null 2>&1 &");
    let other = "cat ~/file; ls /etc/mark; ls -d /var/tmp/x; ps -e | grep -c sleep; ls -d /work";
    assert_eq!(login(hosts.host(1), Account::Root, other).1, "mine\n/etc/mark\n0");
    assert!(!fs::exists("/etc/mark").expect("it can be looked for"), "the launcher's files do not change");
    let address = hosts.host(1).address();
    assert!(hosts.host(0).run(&format!("ssh-keyscan -T 5 {address} 2>/dev/null")).contains("ed25519"));
}

#[test]
fn an_ordinary_account_may_do_what_people_may() {
    let hosts = Hosts::start(1);
    let host = hosts.host(0);
    let line = "whoami; pwd; touch /root/x 2>/dev/null || echo denied; unshare -rm true && echo namespaces; echo > ~/y";
    assert_eq!(login(host, Account::Ordinary, line), (true, "train\n/home/train\ndenied\nnamespaces".into()));
    host.read_only_home();
    assert_eq!(login(host, Account::Ordinary, "echo > ~/z || cat ~/y && echo kept").1, "kept");
    assert!(!login(host, Account::Root, "touch ~/z 2>/dev/null").0, "a home that cannot be written to");
    host.only_sh();
    assert_eq!(login(host, Account::Ordinary, "echo $0; command -v bash").1, "sh");
    host.without("tmux");
    assert!(!login(host, Account::Root, "command -v tmux").0);
}

#[test]
fn a_cut_cable_is_silent_and_joined_again_carries_on() {
    let hosts = Hosts::start(2);
    let host = hosts.host(0);
    let mut there = host.ssh_command(Account::Root);
    let there = there.arg("cat").stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut there = there.spawn().expect("ssh starts");
    let mut input = there.stdin.take().expect("a pipe");
    let mut output = std::io::BufReader::new(there.stdout.take().expect("a pipe"));
    let mut echo = |word: &str| {
        use std::io::{BufRead, Write};
        writeln!(input, "{word}").expect("ssh reads");
        let mut line = String::new();
        output.read_line(&mut line).expect("ssh answers");
        line.trim().to_owned()
    };
    assert_eq!(echo("before"), "before");
    host.cut();
    assert!(!login(host, Account::Root, "true").0, "nobody can log in");
    assert!(login(hosts.host(1), Account::Root, "true").0, "the other one is not cut off");
    assert!(there.try_wait().expect("it can be asked").is_none(), "the connection is not told");
    assert_eq!(host.run("echo still").trim(), "still");
    host.join();
    assert_eq!(echo("after"), "after");
    drop(input);
    assert!(there.wait().expect("it ends").success());
}

#[test]
fn a_reboot_ends_everything_and_keeps_files() {
    let hosts = Hosts::start(1);
    let host = hosts.host(0);
    let key = host.run("cat /etc/ssh/ssh_host_ed25519_key.pub");
    host.run("touch /root/kept /usr/local/kept /tmp/gone; setsid sleep 98765 >/dev/null 2>&1 &");
    wait_for("a process of the host's", || host.processes_with("sleep 98765").len() == 1);
    host.reboot();
    assert!(host.processes_with("sleep 98765").is_empty());
    assert_eq!(login(host, Account::Root, "ls -d /root/kept /usr/local/kept /tmp/gone 2>&1 | wc -l").1, "3");
    assert_eq!(
        host.run("ls /root /usr/local/kept; ls /tmp | grep gone || true"),
        "/usr/local/kept\n\n/root:\nkept\n"
    );
    assert_eq!(host.run("cat /etc/ssh/ssh_host_ed25519_key.pub"), key);
    host.new_host_key();
    assert_ne!(host.run("cat /etc/ssh/ssh_host_ed25519_key.pub"), key);
    assert!(login(host, Account::Root, "true").0);
}

#[test]
fn a_disk_fills_up_and_is_freed() {
    let hosts = Hosts::start(1);
    let host = hosts.host(0);
    let write = "head -c 100000 /dev/zero > /root/file && head -c 100000 /dev/zero > /var/big";
    host.fill_disk();
    assert!(host.try_run(write).err().contains("No space left"));
    host.free_disk();
    host.run(write);
}

#[test]
fn cables_are_counted_and_slow() {
    let hosts = Hosts::start(1);
    let host = hosts.host(0);
    let send = || {
        let begun = Instant::now();
        let bytes = fs::File::open("/dev/zero").expect("zeros");
        let mut command = host.ssh_command(Account::Root);
        let mut sent = command.arg("head -c 4000000 >/dev/null").stdin(bytes).spawn().expect("ssh starts");
        assert!(sent.wait().expect("ssh ends").success());
        begun.elapsed()
    };
    let before = (host.traffic(), hosts.launcher_traffic());
    hosts.slow_launcher(Some("16mbit"));
    assert!(send().as_secs_f32() > 1.5, "four megabytes at two in a second");
    hosts.slow_launcher(None);
    host.slow(Some("16mbit"));
    assert!(send().as_secs_f32() > 1.5, "four megabytes at two in a second");
    host.slow(None);
    let sent = |before: (u64, u64), now: (u64, u64)| now.0 - before.0;
    for sent in [sent(before.0, host.traffic()), sent(before.1, hosts.launcher_traffic())] {
        assert!((8_000_000..20_000_000).contains(&sent), "{sent} bytes went over the cable");
    }
}

#[test]
fn nothing_is_left_of_them() {
    let mounts = || fs::read_to_string("/proc/self/mounts").expect("mounts").lines().count();
    let before = mounts();
    let (bridge, pids, folder) = {
        let hosts = Hosts::start(3);
        assert_eq!(mounts(), before, "this machine's mounts do not change");
        hosts.host(2).cut();
        hosts.host(1).run("setsid sleep 1000 >/dev/null 2>&1 &");
        let pids: BTreeSet<u32> =
            hosts.all().iter().flat_map(|host| host.processes()).map(|it| it.pid).collect();
        assert!(pids.len() >= 10, "{pids:?}");
        (hosts.launcher(), pids, hosts.key().parent().expect("a folder").to_owned())
    };
    assert!(std::net::TcpListener::bind((bridge, 0)).is_err(), "the launcher's address is gone");
    assert!(!folder.exists(), "{}", folder.display());
    assert!(pids.iter().all(|pid| !muster_testkit::is_alive(*pid)));
}

#[test]
fn what_a_killed_launcher_leaves_is_removed_by_the_next() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let mut command = Command::new(env!("CARGO_BIN_EXE_hosts"));
    let mut launcher =
        command.arg("2").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(launcher.stdout.take().expect("a pipe"))
        .read_line(&mut line)
        .expect("it says where they are");
    let said: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let folder =
        std::path::Path::new(said["key"].as_str().expect("a path")).parent().expect("a folder").to_owned();
    let number = folder.to_str().and_then(|text| text.rsplit('-').next()).expect("a number").to_owned();
    let bridge = format!("/sys/class/net/mh{number}");
    assert!(fs::exists(&bridge).expect("it can be looked for"));
    launcher.kill().expect("it can be killed");
    launcher.wait().expect("it ends");
    let inits = || muster_testkit::with_word(&format!("muster-hosts-{number}/"));
    wait_for("the hosts to end with it", || inits().is_empty());
    let _next = Hosts::start(0);
    assert!(!folder.exists() && !fs::exists(&bridge).expect("it can be looked for"));
}
