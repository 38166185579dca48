//! Machines of a test's own: each with its own files, processes, names and network, and an ordinary sshd.
//!
//! A host is a set of namespaces on a bridge, over the files of this machine with its own changes in memory. It shares
//! nothing with the launcher but the programs below `/usr`, `/etc` and `/opt`, and one directory, `/shared`, as of a file server.
//! The launcher is the test itself, whose address is the bridge's. Everything lives in processes that end with the test,
//! also when it is killed; only a bridge and a small directory may then stay, until the next test removes them.

mod host;
mod intruder;
mod network;

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

pub use host::{Account, Host};
pub use intruder::Intruder;
use network::Network;

/// Some hosts on one network. Dropping them ends and removes everything.
pub struct Hosts {
    // In this order: hosts end before what they are made of.
    hosts: Vec<Host>,
    site: Arc<Site>,
}

/// What the hosts of a network share.
struct Site {
    network: Network,
    directory: PathBuf,
    disks: Disks,
}

/// A process whose mount namespace has the hosts' disks, so that this machine's has none, and a kill leaves none behind.
struct Disks {
    process: Child,
    /// When this is closed, also by the end of the test, the process ends.
    life: Option<ChildStdin>,
}

impl Hosts {
    /// Starts this many, and waits until one can log in to each.
    pub fn start(count: usize) -> Self {
        assert!(
            rustix::process::getuid().is_root(),
            "hosts are made of namespaces and a bridge, which only root may make: run this test as root"
        );
        let network = Network::take();
        let directory = network.directory();
        fs::create_dir_all(&directory).expect("a directory for the hosts");
        make_key(&directory.join("id"), "launcher");
        fs::create_dir(directory.join("shared")).expect("a directory that the hosts share");
        let everybody = fs::Permissions::from_mode(0o1777);
        fs::set_permissions(directory.join("shared"), everybody).expect("its permissions");
        let site = Arc::new(Site { disks: Disks::start(&directory), network, directory });
        let hosts: Vec<Host> = (0..count).map(|number| Host::new(number, count, &site)).collect();
        hosts.iter().for_each(Host::boot);
        hosts.iter().for_each(Host::wait_for_login);
        Self { hosts, site }
    }

    /// One of them, from 0.
    pub fn host(&self, number: usize) -> &Host {
        &self.hosts[number]
    }

    /// All of them.
    pub fn all(&self) -> &[Host] {
        &self.hosts
    }

    /// The launcher's address, where a host would reach it.
    pub fn launcher(&self) -> Ipv4Addr {
        self.site.network.launcher()
    }

    /// The private key that every account of every host lets in.
    pub fn key(&self) -> PathBuf {
        self.site.key()
    }

    /// The one directory that all of them have, which they see as `/shared`: what a site's file server is to its machines.
    pub fn shared(&self) -> PathBuf {
        self.site.directory.join("shared")
    }

    /// A private key that no host knows.
    pub fn wrong_key(&self) -> PathBuf {
        let path = self.site.directory.join("wrong");
        if !path.exists() {
            make_key(&path, "stranger");
        }
        path
    }

    /// Bounds what the launcher sends to all hosts together, as in `200mbit`; None lifts the bound.
    pub fn slow_launcher(&self, rate: Option<&str>) {
        run(Command::new("tc").args(network::shape(&self.site.network.bridge(), rate)));
    }

    /// Bytes that the launcher sent to the hosts, and received from them.
    pub fn launcher_traffic(&self) -> (u64, u64) {
        network::traffic(&self.site.network.bridge())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // A test that failed already says why.
        if !std::thread::panicking() {
            self.hosts.iter().filter(|host| host.is_on()).for_each(Host::check_intruder);
        }
        // All are told before the first is waited for.
        self.hosts.iter().for_each(Host::end);
        self.hosts.clear();
    }
}

impl Site {
    fn key(&self) -> PathBuf {
        self.directory.join("id")
    }
}

impl Disks {
    fn start(directory: &Path) -> Self {
        let script = "echo; exec cat >/dev/null";
        let mut process = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare, of Debian's package util-linux, starts");
        let mut said = process.stdout.take().expect("a pipe");
        let ready = std::io::Read::read(&mut said, &mut [0]);
        assert!(matches!(ready, Ok(1)), "a mount namespace could not be made: this needs CAP_SYS_ADMIN");
        Self { life: process.stdin.take(), process }
    }

    /// The words before a command that is to see the disks.
    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "-t", &self.process.id().to_string()]);
        command
    }

    /// A path of theirs, as the launcher opens it.
    fn path(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.process.id()));
        root.join(path.strip_prefix("/").expect("an absolute path"))
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        self.life = None;
        let _ = self.process.wait();
    }
}

/// Makes a pair of keys, the public one beside it with `.pub`.
fn make_key(path: &Path, comment: &str) {
    let words = ["-q", "-t", "ed25519", "-N", "", "-C", comment, "-f"];
    run(Command::new("ssh-keygen").args(words).arg(path));
}

/// Writes a file with these permissions, and the directories above it.
fn write(path: &Path, mode: u32, text: &str) {
    let above = path.parent().expect("a file has a directory");
    fs::create_dir_all(above).expect("the directory of a host's file");
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its permissions");
}

/// Runs a command that must succeed, and gives what it printed.
fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    assert!(
        output.status.success(),
        "{command:?} ended with {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command that may fail, because what it removes may be gone.
fn tried(command: &mut Command) {
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}
