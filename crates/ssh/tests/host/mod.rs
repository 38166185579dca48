//! A server of a task for tests, and the host's ordinary programs that reach it.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the way tests do")]

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use muster_model::launch::{Peer, Peers};
use muster_ssh::gang::Gang;
use muster_ssh::server;
pub use muster_testkit::wait_for;
use tempfile::TempDir;
use tokio::net::TcpListener;

const OWN: [u8; 4] = [127, 0, 0, 1];
/// The host's name in its own configuration.
pub const NAME: &str = "worker-0";

pub const OTHER_NAME: &str = "task0.bert";

/// A server that runs until the test ends, and the way to it.
pub struct Host {
    pub dir: TempDir,
    pub peers: Peers,
    pub gang: Gang,
    pub port: u16,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Host {
    pub fn start() -> Host {
        let (send, port) = std::sync::mpsc::channel();
        let (_stop, stopped) = tokio::sync::oneshot::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind((IpAddr::from(OWN), 0)).await.unwrap();
                send.send(listener.local_addr().unwrap().port()).unwrap();
                tokio::select! {
                    ended = server::serve_gang(listener, "secret", Path::new("/nowhere")) => ended.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        let port = port.recv().unwrap();
        let peer = Peer { names: vec![NAME.into(), OTHER_NAME.into()], ip: OWN.into(), port };
        let peers = Peers { secret: "secret".into(), members: vec![peer] };
        let dir = tempfile::tempdir().unwrap();
        let gang = make_gang(&dir.path().join("it's a door"), &peers);
        Host { dir, peers, gang, port, _stop }
    }

    /// A program of the host with this one in its configuration.
    pub fn command(&self, program: &str) -> Command {
        let path = format!("{}:{}", self.gang.bin().display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(program);
        command.env("PATH", path).env("HOME", self.dir.path()).env_remove("SSH_AUTH_SOCK");
        command
    }

    /// Runs a program to its end.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let bin = self.gang.bin().join(program);
        let program = if bin.exists() { bin.display().to_string() } else { program.to_owned() };
        self.command(&program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"))
    }

    /// The same, of which nothing else is expected than that it succeeds.
    pub fn done(&self, program: &str, arguments: &[&str]) -> String {
        let done = self.run(program, arguments);
        assert!(done.status.success(), "{program} {arguments:?}: {done:?}");
        text(&done.stdout)
    }

    pub fn ssh(&self) -> Command {
        self.command(&self.gang.bin().join("ssh").display().to_string())
    }

    /// A connection that stays, which other calls of `ssh -S` share.
    pub fn master(&self, arguments: &[&str]) -> Master<'_> {
        let socket = self.path("master");
        let mut command = self.ssh();
        command.args(["-M", "-N", "-S"]).arg(&socket).args(arguments).arg(NAME);
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let master = Master { host: self, socket, child };
        wait_for("the connection", || master.socket.exists());
        master
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The key that the server lets in.
    pub fn key(&self) -> PathBuf {
        self.gang.config_file().with_file_name("id")
    }

    /// A path for an argument.
    pub fn at(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}

/// A member's files. While one was written, another test may have started a process, which has it open for a moment; until
/// then the system does not run it.
pub fn make_gang(dir: &Path, peers: &Peers) -> Gang {
    let gang = Gang::make(dir, peers, "anyone", None).unwrap();
    for program in std::fs::read_dir(gang.bin()).unwrap() {
        let program = program.unwrap().path();
        wait_for("the program", || {
            let tried = Command::new(&program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
            !tried.is_err_and(|error| error.kind() == std::io::ErrorKind::ExecutableFileBusy)
        });
    }
    gang
}

pub struct Master<'a> {
    host: &'a Host,
    socket: PathBuf,
    child: Child,
}

impl Master<'_> {
    pub fn ssh(&self, arguments: &[&str]) -> Command {
        let mut command = self.host.ssh();
        command.arg("-S").arg(&self.socket).args(arguments);
        command
    }
}

impl Drop for Master<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Bytes that no part of a file shares with another.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(length).collect()
}

pub fn write(path: &Path, bytes: impl AsRef<[u8]>) {
    std::fs::write(path, bytes).unwrap();
}

pub fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
