//! A network of a test's own: a bridge with the launcher on it, and a cable for each host.
//!
//! It lies in the test's own network namespace, because the server under test does. So that tests that run at the same time
//! take different ones, each holds a lock that the kernel lets go of with the process; what a killed test left behind under
//! a lock that nobody holds is removed by whoever looks next.

use std::fs;
use std::net::Ipv4Addr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{run, tried};

/// How many networks there can be: 10.230.0.0/24 to 10.233.255.0/24.
const COUNT: u16 = 1024;
const FIRST: u8 = 230;

pub(super) struct Network {
    number: u16,
    /// Bound and never listened to: an abstract name belongs to the network namespace, as the bridge does.
    _lock: UnixListener,
}

impl Network {
    /// Takes one that nobody has, and makes its bridge.
    pub(super) fn take() -> Self {
        sweep();
        let taken = run(Command::new("ip").args(["-4", "route", "show", "table", "all"]));
        let network = (0..COUNT)
            // Those that start at the same time begin to look at different places.
            .map(|step| ((std::process::id() as u16 % 97) * 7 + step) % COUNT)
            .filter(|number| !taken.contains(&format!("{}/24", Self::prefix(*number, 0))))
            .find_map(|number| Some(Self { number, _lock: lock(number)? }))
            .expect("one of a thousand networks is free");
        clear(number_of(&network.bridge()).expect("its own name has its number"));
        let bridge = network.bridge();
        let address = format!("{}/24", network.launcher());
        ip(&["link", "add", &bridge, "type", "bridge", "stp_state", "0"]);
        ip(&["addr", "add", &address, "dev", &bridge]);
        ip(&["link", "set", &bridge, "up"]);
        network
    }

    fn prefix(number: u16, last: u8) -> Ipv4Addr {
        let [high, low] = number.to_be_bytes();
        Ipv4Addr::new(10, FIRST + high, low, last)
    }

    /// The directory of whoever holds this network.
    pub(super) fn directory(&self) -> PathBuf {
        directory(self.number)
    }

    pub(super) fn launcher(&self) -> Ipv4Addr {
        Self::prefix(self.number, 1)
    }

    pub(super) fn address(&self, host: usize) -> Ipv4Addr {
        Self::prefix(self.number, 10 + u8::try_from(host).expect("a network has room for 200 hosts"))
    }

    pub(super) fn bridge(&self) -> String {
        format!("mh{}", self.number)
    }

    /// The launcher's end of a host's cable.
    pub(super) fn port(&self, host: usize) -> String {
        format!("mh{}-{host}", self.number)
    }

    /// Lays a host's cable into the network namespace of a process.
    pub(super) fn plug(&self, host: usize, pid: u32) {
        let (port, pid) = (self.port(host), pid.to_string());
        // A machine that is started again has the card that it had: its peers remember the card's address for a while.
        let [_, b, c, d] = self.address(host).octets();
        let card = format!("02:00:0a:{b:02x}:{c:02x}:{d:02x}");
        ip(&["link", "add", &port, "type", "veth", "peer", "name", "eth0", "address", &card, "netns", &pid]);
        ip(&["link", "set", &port, "master", &self.bridge(), "up"]);
        let address = format!("{}/24", self.address(host));
        let route = self.launcher().to_string();
        for words in [
            &["addr", "add", &address, "dev", "eth0"][..],
            &["link", "set", "eth0", "up"],
            &["route", "add", "default", "via", &route],
        ] {
            run(Command::new("nsenter").args(["--net", "-t", &pid, "ip"]).args(words));
        }
    }

    /// Takes a cable away, and with it everything that was under way on it.
    pub(super) fn unplug(&self, host: usize) {
        tried(Command::new("ip").args(["link", "del", &self.port(host)]));
    }

    /// Whether anything goes through a host's cable. As with a switch that fails, neither end sees that it is dead.
    pub(super) fn set_open(&self, host: usize, open: bool) {
        let state = if open { "3" } else { "0" };
        run(Command::new("bridge").args(["link", "set", "dev", &self.port(host), "state", state]));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        clear(self.number);
    }
}

/// Bytes that a device sent and received.
pub(super) fn traffic(device: &str) -> (u64, u64) {
    let count = |which: &str| {
        let text = fs::read_to_string(format!("/sys/class/net/{device}/statistics/{which}"));
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or_default()
    };
    (count("tx_bytes"), count("rx_bytes"))
}

/// The words of `tc` that bound what a device sends, or lift the bound.
pub(super) fn shape(device: &str, rate: Option<&str>) -> Vec<String> {
    let words = match rate {
        // A burst for some milliseconds at any rate that tests ask for; what waits longer than this is dropped, as routers do.
        Some(rate) => format!("qdisc replace dev {device} root tbf rate {rate} burst 256k latency 200ms"),
        None => format!("qdisc del dev {device} root"),
    };
    words.split(' ').map(str::to_owned).collect()
}

fn ip(words: &[&str]) {
    run(Command::new("ip").args(words));
}

fn lock(number: u16) -> Option<UnixListener> {
    let name = SocketAddr::from_abstract_name(format!("muster-hosts-{number}")).expect("a short name");
    UnixListener::bind_addr(&name).ok()
}

fn directory(number: u16) -> PathBuf {
    std::env::temp_dir().join(format!("muster-hosts-{number}"))
}

/// The number in the name of a bridge.
fn number_of(name: &str) -> Option<u16> {
    name.strip_prefix("mh")?.parse().ok().filter(|number| *number < COUNT)
}

/// Removes what killed tests left: what has a number whose lock can be had.
fn sweep() {
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
    };
    let bridges = names(Path::new("/sys/class/net"));
    let folders = names(&std::env::temp_dir());
    let numbers = bridges.iter().filter_map(|name| number_of(name)).chain(
        folders
            .iter()
            .filter_map(|name| name.strip_prefix("muster-hosts-"))
            .filter_map(|text| text.parse().ok()),
    );
    for number in numbers {
        if let Some(_held) = lock(number) {
            clear(number);
        }
    }
}

/// Removes everything under a number. Cables go with the hosts, or with the bridge's namespace; a dead one may be left.
fn clear(number: u16) {
    let bridge = format!("mh{number}");
    let ports = fs::read_dir(format!("/sys/class/net/{bridge}/brif")).into_iter().flatten().flatten();
    for port in ports.filter_map(|port| port.file_name().into_string().ok()) {
        tried(Command::new("ip").args(["link", "del", &port]));
    }
    if Path::new("/sys/class/net").join(&bridge).exists() {
        tried(Command::new("ip").args(["link", "del", &bridge]));
    }
    let _ = fs::remove_dir_all(directory(number));
}
