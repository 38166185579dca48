//! A hostile local user of a host: `mallory`, who may do what every account may.
//!
//! Every host has one. When it starts, mallory has planted links and directories wherever everybody may write and muster may
//! look; when the hosts of a test end, nothing of mallory's was executed or written to. A test may also have mallory pose as
//! the agent of a node.

use std::process::Stdio;

use super::Host;
use crate::wait::wait_for_some;

/// The account, beside those of [`super::Account`].
pub(super) const PASSWD: &str = "mallory:x:4343:4343::/home/mallory:/bin/sh\n";
pub(super) const GROUP: &str = "mallory:x:4343:\n";
pub(super) const SHADOW: &str = "mallory:*:19000::::::\n";
/// What mallory does when a host starts.
pub(super) const SCRIPT: &str = include_str!("intruder.sh");
const POSE: &str = include_str!("intruder.py");
const BECOME: &str = "setpriv --reuid 4343 --regid 4343 --clear-groups";

/// What mallory has made; anything else was written through a link.
const OWN_FILES: [&str; 4] = ["bin", "loot", "pose", "taken"];

/// Mallory, on one host.
#[derive(Clone, Copy)]
pub struct Intruder<'a> {
    host: &'a Host,
}

impl<'a> Intruder<'a> {
    pub(super) fn on(host: &'a Host) -> Self {
        Self { host }
    }

    /// Runs a shell line as mallory, and gives what it printed.
    pub fn run(&self, line: &str) -> String {
        self.host.run(&format!("{BECOME} sh -c '{line}'"))
    }

    /// Offers a program under the name of a muster binary, in every place that mallory has planted.
    pub fn offer_binary(&self, name: &str) {
        self.run(&format!("cp /tmp/mallory/bin/muster-0000000000000000 /tmp/mallory/bin/{name}"));
    }

    /// Poses as the agent of a directory: holds its lock, listens at its sockets, and names a process of root's as its own, whose
    /// id this gives.
    pub fn pose_as_agent(&self, directory: &str) -> u32 {
        self.host.run(&format!("cat > /tmp/pose.py <<\'END\'\n{POSE}\nEND\nchmod 644 /tmp/pose.py"));
        let victim = self.host.run("sleep 100000 >/dev/null 2>&1 & echo $!").trim().to_owned();
        let pose = format!("{BECOME} python3 /tmp/pose.py {directory} {victim} > /tmp/mallory/pose 2>&1 &");
        self.host.run(&format!("{BECOME} touch /tmp/mallory/pose; {pose}"));
        wait_for_some("mallory to pose as an agent", || {
            let said = self.host.run("cat /tmp/mallory/pose");
            assert!(!said.contains("Error"), "{said}");
            said.contains("ready").then_some(())
        });
        victim.parse().expect("a process id")
    }

    /// What mallory got: marks of programs that were executed or files that were written, and bytes that came to a socket.
    pub fn loot(&self) -> String {
        self.host.run("cat /tmp/mallory/taken /tmp/mallory/loot 2>/dev/null; true")
    }
}

impl Host {
    /// The hostile local user of this host.
    pub fn intruder(&self) -> Intruder<'_> {
        Intruder::on(self)
    }

    /// Panics if the intruder got anything.
    pub(super) fn check_intruder(&self) {
        let look =
            "test -e /tmp/mallory/taken || echo taken is gone; cat /tmp/mallory/taken; ls -A /tmp/mallory";
        // A host that a test has broken cannot be asked.
        let Ok(finished) = self.inside().args(["sh", "-c", look]).stderr(Stdio::null()).output() else {
            return;
        };
        let seen = String::from_utf8_lossy(&finished.stdout);
        let taken: Vec<&str> = seen.lines().filter(|line| !OWN_FILES.contains(line)).collect();
        assert!(taken.is_empty(), "mallory on {} took: {taken:?}", self.name());
    }
}
