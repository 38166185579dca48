//! The server of a task, and the files of its gang, with the host's ordinary OpenSSH client.

#[expect(dead_code, reason = "other tests use the rest")]
mod host;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use muster_model::launch::Peers;

use self::host::{Host, NAME, OTHER_NAME, make_gang, text};

#[test]
fn a_command_runs_under_every_name_and_its_end_comes_back() {
    let host = Host::start();
    for name in [NAME, OTHER_NAME, "127.0.0.1"] {
        let done = host.run("ssh", &[name, "echo out; echo err >&2; exit 3"]);
        assert_eq!((text(&done.stdout), done.status.code()), ("out\n".into(), Some(3)), "{done:?}");
        assert_eq!(text(&done.stderr), "err\n");
    }
    assert_eq!(host.run("ssh", &[NAME, "kill -9 $$"]).status.code(), Some(137));
}

#[test]
fn input_of_any_size_goes_in_and_comes_out() {
    let host = Host::start();
    let mut child =
        host.ssh().args([NAME, "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let mut stdin = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = thread::spawn(move || stdin.write_all(&sent).unwrap());
    let done = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(done.status.success() && done.stdout == bytes);
}

#[test]
fn a_command_that_leaves_something_behind_ends_all_the_same() {
    let host = Host::start();
    // What mpirun starts on its peers does so.
    let done = host.run("ssh", &[NAME, "setsid sleep 60 </dev/null >/dev/null 2>&1 & echo $!"]);
    let pid = text(&done.stdout).trim().to_owned();
    assert!(done.status.success() && Path::new("/proc").join(&pid).is_dir(), "{done:?}");
    assert!(Command::new("kill").arg(pid).status().unwrap().success());
}

#[test]
fn whoever_is_not_of_the_gang_stays_outside() {
    let host = Host::start();
    let peers = Peers { secret: "another".into(), ..host.peers.clone() };
    let other = make_gang(&host.path("other"), &peers);
    // It does not know the host, and would not be known by it.
    let ssh = || {
        let mut command = Command::new(other.bin().join("ssh"));
        command.env("HOME", host.dir.path());
        command
    };
    let done = ssh().args([NAME, "true"]).output().unwrap();
    assert_eq!(done.status.code(), Some(255));
    let trusting = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", NAME, "true"];
    let done = ssh().args(trusting).output().unwrap();
    assert_eq!(done.status.code(), Some(255));
    assert!(text(&done.stderr).contains("Permission denied"), "{}", text(&done.stderr));
}
