//! One host: what it is made of, and what can happen to it.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};

use super::{Site, intruder, make_key, network, run, tried, write};
use crate::Finished;
use crate::process::{self, Process};
use crate::wait::wait_for;

const INIT: &str = include_str!("init.sh");
/// Of the launcher's directories these are seen by hosts, because programs are in them.
const SHOWN: [&str; 10] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt", "var"];
/// These a host has, with nothing of the launcher's in them. There is nothing else.
const EMPTY: [&str; 11] =
    ["dev", "home", "mnt", "proc", "root", "run", "shared", "sys", "tmp", "var/log", "var/tmp"];
/// More than any test writes; memory is taken only for what is there.
const DISK: &str = "size=6g";
const ORDINARY_ID: u32 = 4242;

/// The accounts of a host. The launcher's key is let in to both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Account {
    /// `root`.
    Root,
    /// `train`, which may do what everybody may.
    Ordinary,
}

impl Account {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Ordinary => "train",
        }
    }

    /// Its home.
    pub fn home(self) -> &'static str {
        match self {
            Self::Root => "/root",
            Self::Ordinary => "/home/train",
        }
    }

    fn id(self) -> u32 {
        match self {
            Self::Root => 0,
            Self::Ordinary => ORDINARY_ID,
        }
    }
}

/// A machine of its own.
pub struct Host {
    number: usize,
    site: Arc<Site>,
    power: Mutex<Option<Power>>,
}

/// A host that runs: `unshare`, whose one child is the host's first process.
struct Power {
    process: Child,
    /// When this is closed, also by the end of the test, the host ends as without current.
    life: Option<ChildStdin>,
}

impl Host {
    pub(super) fn new(number: usize, count: usize, site: &Arc<Site>) -> Self {
        let host = Self { number, site: Arc::clone(site), power: Mutex::new(None) };
        host.make_disk();
        host.install(count);
        host
    }

    /// Where the launcher and the other hosts reach it.
    pub fn address(&self) -> Ipv4Addr {
        self.site.network.address(self.number)
    }

    /// Its name, as it knows it: `host0`.
    pub fn name(&self) -> String {
        format!("host{}", self.number)
    }

    /// What one tells ssh: `root@10.230.0.10`.
    pub fn destination(&self) -> String {
        self.destination_of(Account::Root)
    }

    /// The same for one of its accounts.
    pub fn destination_of(&self, account: Account) -> String {
        format!("{}@{}", account.name(), self.address())
    }

    /// The ordinary client with the launcher's key, which asks nothing and remembers no host: words of a command may follow.
    pub fn ssh_command(&self, account: Account) -> Command {
        let mut command = Command::new("ssh");
        for option in [
            "BatchMode=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
            "IdentitiesOnly=yes",
            "ConnectTimeout=5",
        ] {
            command.args(["-o", option]);
        }
        command.args(["-F", "none", "-i"]).arg(self.site.key()).arg(self.destination_of(account));
        command
    }

    /// Runs a shell line in it as root, without its network, so also while that is cut.
    pub fn try_run(&self, line: &str) -> Finished {
        let output = self.inside().args(["sh", "-c", line]).stdin(Stdio::null()).output();
        let output = output.expect("nsenter, of Debian's package util-linux, starts");
        Finished { status: output.status, stdout: output.stdout, stderr: output.stderr }
    }

    /// The same with a line that must succeed; gives what it printed.
    pub fn run(&self, line: &str) -> String {
        let finished = self.try_run(line);
        assert!(
            finished.status.success(),
            "'{line}' on {} ended with {}\n{}{}",
            self.name(),
            finished.status,
            finished.out(),
            finished.err()
        );
        finished.out()
    }

    /// Its living processes, with the ids that the launcher's machine gives them.
    pub fn processes(&self) -> Vec<Process> {
        let pid = self.pid();
        let Ok(own) = fs::read_link(format!("/proc/{pid}/ns/pid_for_children")) else { return Vec::new() };
        process::living(|pid| fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|other| other == own))
    }

    /// Those that have this in their command line.
    pub fn processes_with(&self, words: &str) -> Vec<Process> {
        self.processes().into_iter().filter(|process| process.words.join(" ").contains(words)).collect()
    }

    /// Bytes that were sent to it, and received from it.
    pub fn traffic(&self) -> (u64, u64) {
        network::traffic(&self.site.network.port(self.number))
    }

    /// Cuts its cable: nothing comes through, and neither end is told.
    pub fn cut(&self) {
        self.site.network.set_open(self.number, false);
    }

    /// Joins its cable again.
    pub fn join(&self) {
        self.site.network.set_open(self.number, true);
    }

    /// Bounds what goes over its cable, in each direction, as in `200mbit`; None lifts the bound.
    pub fn slow(&self, rate: Option<&str>) {
        let mut ends = [Command::new("tc"), self.inside()];
        ends[0].args(network::shape(&self.site.network.port(self.number), rate));
        ends[1].arg("tc").args(network::shape("eth0", rate));
        for end in &mut ends {
            match rate {
                Some(_) => drop(run(end)),
                // A cable that was laid anew has no bound to lift.
                None => tried(end),
            }
        }
    }

    /// Takes its current away: everything in it ends at once, and nobody hears of it.
    pub fn power_off(&self) {
        // First, so that no connection of it says goodbye.
        self.site.network.unplug(self.number);
        self.end();
        if let Some(mut power) = self.power().take() {
            let _ = power.process.wait();
        }
    }

    /// Whether it has current.
    pub fn is_on(&self) -> bool {
        self.power().is_some()
    }

    /// Starts it with the files that it had, and waits until one can log in.
    pub fn power_on(&self) {
        self.boot();
        self.wait_for_login();
    }

    /// Off and on again.
    pub fn reboot(&self) {
        self.power_off();
        self.power_on();
    }

    /// Leaves no space on its disk, homes included.
    pub fn fill_disk(&self) {
        let disk = self.site.disks.path(&self.directory().join("disk"));
        let now = rustix::fs::statvfs(&disk).expect("a host has a disk");
        let used = (now.f_blocks - now.f_bfree) * now.f_frsize;
        self.remount_disk(&format!("size={used}"));
    }

    /// Gives it space again.
    pub fn free_disk(&self) {
        self.remount_disk(DISK);
    }

    /// Makes every home one that cannot be written to, until it is started again.
    pub fn read_only_home(&self) {
        self.run("mount -o remount,bind,ro /root && mount -o remount,bind,ro /home");
    }

    /// Removes a program.
    pub fn without(&self, program: &str) {
        self.run(&format!("while at=$(command -v {program}); do rm -f \"$at\" || exit; done"));
    }

    /// Leaves its accounts no other shell than `/bin/sh`.
    pub fn only_sh(&self) {
        self.run("sed -i 's#:[^:]*$#:/bin/sh#' /etc/passwd");
        for shell in ["bash", "zsh"] {
            self.without(shell);
        }
    }

    /// Gives it another key, as a machine that was installed anew has.
    pub fn new_host_key(&self) {
        let key = "/etc/ssh/ssh_host_ed25519_key";
        self.run(&format!("rm -f {key}* && ssh-keygen -q -t ed25519 -N '' -f {key}"));
        self.run("kill -HUP $(cat /run/sshd.pid)");
        // The one of before may answer for a moment longer, and then none for another moment.
        let new = self.run(&format!("cut -d ' ' -f 2 {key}.pub"));
        let address = self.address().to_string();
        wait_for("sshd to show its new key", || {
            let seen = Command::new("ssh-keyscan").args(["-T", "2", &address]).stderr(Stdio::null()).output();
            seen.is_ok_and(|seen| String::from_utf8_lossy(&seen.stdout).contains(new.trim()))
        });
    }

    /// Starts its first process and lays its cable.
    pub(super) fn boot(&self) {
        let mut power = self.power();
        assert!(power.is_none(), "{} runs already", self.name());
        let log = fs::File::create(self.directory().join("log")).expect("a host's log");
        let mut process = self
            .site
            .disks
            .enter()
            .args("unshare --mount --uts --ipc --net --pid --fork sh".split(' '))
            .arg(self.directory().join("init.sh"))
            .arg(self.directory())
            .arg(self.name())
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("nsenter, of Debian's package util-linux, starts");
        let pid = process.id();
        let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let own = of("self");
        wait_for("a host's own network", || of(&pid.to_string()).is_some_and(|net| Some(net) != own));
        self.site.network.plug(self.number, pid);
        *power = Some(Power { life: process.stdin.take(), process });
    }

    /// Waits until one can log in.
    pub(super) fn wait_for_login(&self) {
        wait_for(&format!("{} to start", self.name()), || {
            let mut power = self.power();
            let process = &mut power.as_mut().expect("it was started").process;
            let log = || fs::read_to_string(self.directory().join("log")).unwrap_or_default();
            assert!(process.try_wait().is_ok_and(|ended| ended.is_none()), "a host ended: {}", log());
            self.greets()
        });
    }

    /// Lets its first process end, and with it all others; whoever wants to know waits for it.
    pub(super) fn end(&self) {
        if let Some(power) = self.power().as_mut() {
            power.life = None;
        }
    }

    fn power(&self) -> MutexGuard<'_, Option<Power>> {
        // A test that failed while it held this is about to remove the host.
        self.power.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether its sshd answers.
    fn greets(&self) -> bool {
        let address = SocketAddr::from((self.address(), 22));
        let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_millis(500)) else {
            return false;
        };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
        let mut word = [0; 4];
        stream.read_exact(&mut word).is_ok() && &word == b"SSH-"
    }

    /// The words before a command that runs in it.
    pub(super) fn inside(&self) -> Command {
        let pid = self.pid();
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &pid.to_string(), "--mount", "--uts", "--ipc", "--net"])
            .arg(format!("--pid=/proc/{pid}/ns/pid_for_children"))
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", Account::Root.home());
        command
    }

    fn pid(&self) -> u32 {
        self.power().as_ref().expect("the host runs").process.id()
    }

    fn directory(&self) -> PathBuf {
        self.site.directory.join(self.number.to_string())
    }

    /// Its disk, in memory.
    fn make_disk(&self) {
        let at = self.directory();
        for folder in ["disk", "root"] {
            fs::create_dir_all(at.join(folder)).expect("a directory of a host");
        }
        fs::write(at.join("init.sh"), INIT).expect("a script of a host");
        fs::write(at.join("intruder.sh"), intruder::SCRIPT).expect("a script of a host");
        let options = format!("{DISK},mode=755");
        run(self
            .site
            .disks
            .enter()
            .args(["mount", "-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(at.join("disk")));
    }

    fn remount_disk(&self, size: &str) {
        let disk = self.directory().join("disk");
        run(self.site.disks.enter().args(["mount", "-o", &format!("remount,{size}")]).arg(disk));
    }

    /// Puts on its disk what makes it a host of its own: accounts, keys, names.
    fn install(&self, count: usize) {
        let disk = self.site.disks.path(&self.directory().join("disk"));
        for folder in ["upper", "work", "root", "home", "var/tmp"] {
            fs::create_dir_all(disk.join(folder)).expect("a directory on a host's disk");
        }
        permit(&disk.join("var/tmp"), 0o1777);
        hide_launcher(&disk.join("upper"));
        let etc = disk.join("upper/etc");
        self.accounts(&etc);
        for account in [Account::Root, Account::Ordinary] {
            self.furnish(account, &disk.join(account.home().trim_start_matches('/')));
        }
        let names = (0..count).map(|number| format!("{}\thost{number}\n", self.site.network.address(number)));
        let hosts: String = std::iter::once("127.0.0.1\tlocalhost\n".to_owned()).chain(names).collect();
        write(&etc.join("hosts"), 0o644, &hosts);
        write(&etc.join("hostname"), 0o644, &format!("{}\n", self.name()));
        write(&etc.join("ssh/sshd_config"), 0o644, SSHD);
        make_key(&etc.join("ssh/ssh_host_ed25519_key"), &self.name());
    }

    /// Root and the ordinary account, beside those that the launcher's machine has. Neither has a password.
    fn accounts(&self, etc: &Path) {
        let read = |name: &str| fs::read_to_string(Path::new("/etc").join(name)).unwrap_or_default();
        let others = |name: &str| -> String {
            let is_ours =
                |line: &&str| !["root:", "train:", "mallory:"].iter().any(|name| line.starts_with(name));
            read(name).lines().filter(is_ours).map(|line| format!("{line}\n")).collect()
        };
        let lines = [
            ("passwd", 0o644, "root:x:0:0::/root:/bin/bash\ntrain:x:4242:4242::/home/train:/bin/bash\n"),
            ("group", 0o644, "root:x:0:\ntrain:x:4242:\n"),
            // A star is no password, while an exclamation mark would lock the account, also for keys.
            ("shadow", 0o600, "root:*:19000::::::\ntrain:*:19000::::::\n"),
        ];
        let intruders = [intruder::PASSWD, intruder::GROUP, intruder::SHADOW];
        for ((name, mode, ours), intruder) in lines.into_iter().zip(intruders) {
            write(&etc.join(name), mode, &format!("{ours}{intruder}{}", others(name)));
        }
    }

    /// A home with the launcher's key.
    fn furnish(&self, account: Account, home: &Path) {
        let public = fs::read_to_string(self.site.key().with_extension("pub")).expect("the launcher's key");
        write(&home.join(".ssh/authorized_keys"), 0o600, &public);
        permit(home, 0o700);
        permit(&home.join(".ssh"), 0o700);
        for path in [home.to_owned(), home.join(".ssh"), home.join(".ssh/authorized_keys")] {
            chown(path, Some(account.id()), Some(account.id())).expect("a home is its account's");
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.power_off();
    }
}

/// What every host's sshd is told. As installed, save that it does without a session manager.
const SSHD: &str = "UsePAM no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\nHostKey /etc/ssh/ssh_host_ed25519_key\nPidFile /run/sshd.pid\nPrintMotd no\nSubsystem sftp /usr/lib/openssh/sftp-server\n";

/// Hides what is the launcher's alone: an overlay shows nothing below a directory with this mark, and nothing at all where
/// there is this device.
fn hide_launcher(upper: &Path) {
    for folder in EMPTY {
        let path = upper.join(folder);
        fs::create_dir_all(&path).expect("a directory on a host's disk");
        setxattr(&path, "trusted.overlay.opaque", b"y", XattrFlags::empty()).expect("a mark of an overlay");
    }
    let names = fs::read_dir("/").expect("the root can be listed").flatten().map(|entry| entry.file_name());
    let is_known = |name: &OsString| SHOWN.iter().chain(&EMPTY).any(|known| name == known);
    for name in names.filter(|name| !is_known(name)) {
        mknodat(CWD, upper.join(name), FileType::CharacterDevice, Mode::empty(), 0)
            .expect("a mark of an overlay");
    }
}

fn permit(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions of a host's file");
}
