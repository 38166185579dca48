//! Files and ports of tasks the whole way: through the client, the server, the link and the agent, with ordinary programs.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use muster_testkit::{Home, wait_for_some};

use crate::{home, until};

/// What `ssh -F` needs to reach tasks of this muster.
fn config(home: &Home) -> String {
    // The first use makes the key.
    home.run(["ssh-proxy", "task0.nobody"]);
    let text = format!(
        "Host task*.*\n ProxyCommand {}\n IdentityFile \"{}\"\n IdentitiesOnly yes\n BatchMode yes\n\
         StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n",
        proxy("%h"),
        key(home).display()
    );
    home.write("ssh_config", text);
    home.work().join("ssh_config").display().to_string()
}

fn key(home: &Home) -> PathBuf {
    home.path().join("ssh/id")
}

fn proxy(host: &str) -> String {
    format!("'{}' ssh-proxy {host}", env!("CARGO_BIN_EXE_muster"))
}

/// A program that finds this muster where its user would.
fn program(home: &Home, name: impl AsRef<Path>) -> Command {
    let mut command = Command::new(name.as_ref());
    for (name, value) in home.command([""; 0]).get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.current_dir(home.work());
    command
}

fn done(home: &Home, name: &str, arguments: &[&str]) -> String {
    let done: Output = program(home, name).args(arguments).output().expect("the program starts");
    assert!(done.status.success(), "{name} {arguments:?}: {done:?}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
fn sftp_scp_and_rsync_see_a_tasks_directory() {
    let home = home();
    home.write("code.txt", "code\n");
    let id = home.submit(&["--", "sh", "-c", &format!("{}; cat tree/a/b", until("go"))]);
    home.wait_for_state(&id, "running");
    let (config, host) = (config(&home), format!("task0.{id}"));
    home.write("tree/a/b", "brought along\n");
    home.write(
        "batch",
        "get code.txt back.txt\nput batch first\nrename first second\nchmod 600 second\nls -l\n",
    );
    let listed = done(&home, "sftp", &["-F", &config, "-q", "-b", "batch", &host]);
    assert!(listed.contains("code.txt") && listed.contains("-rw-------"), "{listed}");
    assert_eq!(std::fs::read_to_string(home.work().join("back.txt")).expect("a copy"), "code\n");
    done(&home, "scp", &["-F", &config, "-q", "-rp", "tree", &format!("{host}:")]);
    done(&home, "scp", &["-F", &config, "-q", "-r", &format!("{host}:tree"), "tree2"]);
    let rsync = ["-ai", "-e", &format!("ssh -F {config}"), "tree2/", &format!("{host}:tree/")];
    // Their times differ the first time.
    done(&home, "rsync", &rsync);
    assert_eq!(done(&home, "rsync", &rsync), "");
    home.touch("go");
    home.wait_for_state(&id, "succeeded");
    assert_eq!(home.ok(["logs", &id]), "brought along\n");
}

#[test]
fn a_port_of_a_task_is_reached_through_its_connection() {
    let home = home();
    let id = home.submit(&["--", "sh", "-c", &until("go")]);
    home.wait_for_state(&id, "running");
    let (config, host) = (config(&home), format!("task0.{id}"));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let far = listener.local_addr().expect("its address").port();
    let bytes: Vec<u8> = (0..4_000_000u32).map(|i| (i % 251) as u8).collect();
    let echo = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody comes");
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).expect("it ends");
        stream.write_all(&heard).expect("it is heard");
    });
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = free.local_addr().expect("its address").port();
    drop(free);
    let forward = format!("{port}:127.0.0.1:{far}");
    let mut ssh = program(&home, "ssh");
    ssh.args(["-F", &config, "-N", "-L", &forward, &host]).stdin(Stdio::null());
    let mut ssh = ssh.spawn().expect("an OpenSSH client");
    let mut stream = wait_for_some("the forward", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
    let (mut writing, sent) = (stream.try_clone().expect("a handle"), bytes.clone());
    let writer = thread::spawn(move || {
        writing.write_all(&sent).expect("it is taken");
        writing.shutdown(Shutdown::Write).expect("one side ends");
    });
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).expect("the other side ends");
    assert!(heard == bytes);
    writer.join().expect("all was sent");
    echo.join().expect("all was heard");
    ssh.kill().expect("it ends");
    ssh.wait().expect("it has ended");
    home.touch("go");
}

#[test]
fn paramiko_reaches_a_task_through_the_proxy() {
    let variable = "MUSTER_PARAMIKO";
    let environment = std::env::var_os(variable).map(PathBuf::from).unwrap_or_else(|| {
        panic!("{variable} names no Python environment; make it with `eval \"$(scripts/examples.sh)\"`")
    });
    let home = home();
    let id = home.submit(&["--", "sh", "-c", &until("go")]);
    home.wait_for_state(&id, "running");
    config(&home);
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ssh/tests/paramiko_client.py");
    let bytes = (8 << 20).to_string();
    let mut python = program(&home, environment.join("bin/python"));
    python.arg(client).arg(proxy(&format!("task0.{id}"))).args([key(&home), home.shared()]).arg(bytes);
    let done = python.output().expect("Python starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    home.touch("go");
    home.wait_for_state(&id, "succeeded");
}
