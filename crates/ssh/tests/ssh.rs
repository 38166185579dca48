//! The server of a task, and the files of its gang, with the host's ordinary OpenSSH client.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the way tests do")]

use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;

use muster_model::launch::{Peer, Peers};
use muster_ssh::gang::Gang;
use muster_ssh::server;
use tempfile::TempDir;
use tokio::net::TcpListener;

const OWN: [u8; 4] = [127, 0, 0, 1];

/// A server that runs until the test ends, and the way to it.
struct Host {
    dir: TempDir,
    peers: Peers,
    gang: Gang,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Host {
    fn start() -> Host {
        let (send, port) = std::sync::mpsc::channel();
        let (_stop, stopped) = tokio::sync::oneshot::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind((IpAddr::from(OWN), 0)).await.unwrap();
                send.send(listener.local_addr().unwrap().port()).unwrap();
                tokio::select! {
                    ended = server::serve_gang(listener, "secret") => ended.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        let names = vec!["worker-0".into(), "task0.bert".into()];
        let peer = Peer { names, ip: OWN.into(), port: port.recv().unwrap() };
        let peers = Peers { secret: "secret".into(), members: vec![peer] };
        let dir = tempfile::tempdir().unwrap();
        let gang = Gang::make(&dir.path().join("it's a door"), &peers, "anyone").unwrap();
        Host { dir, peers, gang, _stop }
    }

    fn command(&self, gang: &Gang, program: &str) -> Command {
        let path = format!("{}:{}", gang.bin().display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(gang.bin().join(program));
        command.env("PATH", path).env("HOME", self.dir.path());
        command
    }

    fn ssh(&self, arguments: &[&str]) -> Output {
        let done = self.command(&self.gang, "ssh").args(arguments).output();
        done.expect("an OpenSSH client (Debian: apt-get install openssh-client)")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_command_runs_under_every_name_and_its_end_comes_back() {
    let host = Host::start();
    for name in ["worker-0", "task0.bert", "127.0.0.1"] {
        let done = host.ssh(&[name, "echo out; echo err >&2; exit 3"]);
        assert_eq!((text(&done.stdout), done.status.code()), ("out\n".into(), Some(3)), "{done:?}");
        assert_eq!(text(&done.stderr), "err\n");
    }
    assert_eq!(host.ssh(&["worker-0", "kill -9 $$"]).status.code(), Some(137));
}

#[test]
fn input_of_any_size_goes_in_and_comes_out() {
    let host = Host::start();
    let mut child = host
        .command(&host.gang, "ssh")
        .args(["worker-0", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
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
    let done = host.ssh(&["worker-0", "setsid sleep 60 </dev/null >/dev/null 2>&1 & echo $!"]);
    let pid = text(&done.stdout).trim().to_owned();
    assert!(done.status.success() && Path::new("/proc").join(&pid).is_dir(), "{done:?}");
    assert!(Command::new("kill").arg(pid).status().unwrap().success());
}

#[test]
fn whoever_is_not_of_the_gang_stays_outside() {
    let host = Host::start();
    let peers = Peers { secret: "another".into(), ..host.peers.clone() };
    let other = Gang::make(&host.dir.path().join("other"), &peers, "anyone").unwrap();
    // It does not know the host, and would not be known by it.
    let done = host.command(&other, "ssh").args(["worker-0", "true"]).output().unwrap();
    assert_eq!(done.status.code(), Some(255));
    let trusting =
        ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "worker-0", "true"];
    let done = host.command(&other, "ssh").args(trusting).output().unwrap();
    assert_eq!(done.status.code(), Some(255));
    assert!(text(&done.stderr).contains("Permission denied"), "{}", text(&done.stderr));
}
