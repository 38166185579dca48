//! Which of the machine's addresses a task's peers reach.
//!
//! Programs that are told nothing ask the machine for its name and take the first interface they find, which on a machine
//! with containers is a bridge that nobody else can see. So it is decided here, once for all of a gang's libraries.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::str::FromStr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

/// The number of InfiniBand among kinds of hardware, in the kernel's `if_arp.h`.
const INFINIBAND: u16 = 32;
/// Interfaces that lead to containers and virtual machines of this machine, by the beginning of their names.
const VIRTUAL: [&str; 12] =
    ["docker", "veth", "br-", "virbr", "cni", "flannel", "cali", "vxlan", "tunl", "vnet", "podman", "lxc"];

/// Which addresses the tasks of a node have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Network {
    /// One of the loopback network's for each task: all of a gang is on this machine.
    #[default]
    Loopback,
    /// That of the interface which leads to other machines.
    Host,
    /// That of the interface with this name.
    Interface(String),
    /// That which this file names: the address at which the node is known to be reached. Where it names none, as `Host`, if that
    /// can be.
    Named(PathBuf),
}

impl FromStr for Network {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Network, Infallible> {
        Ok(match text {
            "loopback" => Network::Loopback,
            "host" => Network::Host,
            name => Network::Interface(name.to_owned()),
        })
    }
}

/// Why a task has no address.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the node's network interfaces cannot be listed")]
    List(#[source] io::Error),
    #[error("the node has no network interface with an address that leads to other machines; it has {found}")]
    None { found: String },
    #[error("the node's network interface {name} is not there, is down, or has no address; it has {found}")]
    NotThere { name: String, found: String },
}

/// Where a task is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) ip: IpAddr,
    pub(crate) interface: String,
    /// The address of the node's InfiniBand interface, where it has one.
    pub(crate) infiniband: Option<IpAddr>,
}

impl Network {
    /// Where the machine is reached; none if every task has an address of its own.
    pub(crate) fn place(&self) -> Result<Option<Place>, Error> {
        // Asked every time: an interface may come up, or get another address, in an agent's life.
        let interfaces = || interfaces().map_err(Error::List);
        match self {
            Network::Loopback => Ok(None),
            Network::Host => choose(&interfaces()?, None, way_out()).map(Some),
            Network::Interface(name) => choose(&interfaces()?, Some(name), way_out()).map(Some),
            Network::Named(file) => {
                let named = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
                match named {
                    Some(ip) => known(&interfaces()?, ip, way_out()).map(Some),
                    // A machine that is its own server may have no other network than the one within.
                    None => Network::Host.place().or(Ok(None)),
                }
            }
        }
    }
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Interface {
    name: String,
    /// Those that peers may use, the older kind first.
    ips: Vec<IpAddr>,
    is_up: bool,
    is_loopback: bool,
    is_infiniband: bool,
}

impl Interface {
    fn is_virtual(&self) -> bool {
        self.is_loopback || VIRTUAL.iter().any(|beginning| self.name.starts_with(beginning))
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ips: Vec<_> = self.ips.iter().map(IpAddr::to_string).collect();
        let ips = if ips.is_empty() { "no address".to_owned() } else { ips.join(", ") };
        write!(f, "{} ({ips}{})", self.name, if self.is_up { "" } else { ", down" })
    }
}

/// The place with this address, which need not be one of the machine's own: it may be translated on the way.
fn known(interfaces: &[Interface], ip: IpAddr, way_out: Option<IpAddr>) -> Result<Place, Error> {
    let has = |interface: &&Interface| interface.is_up && interface.ips.contains(&ip);
    let named = interfaces.iter().find(has).map(|interface| interface.name.as_str());
    Ok(Place { ip, ..choose(interfaces, named, way_out)? })
}

/// InfiniBand first, since whoever has it has it for this; then the interface of the way to other machines; then
/// any that is not virtual.
fn choose(interfaces: &[Interface], named: Option<&str>, way_out: Option<IpAddr>) -> Result<Place, Error> {
    let usable = |interface: &&Interface| interface.is_up && !interface.ips.is_empty();
    let infiniband = interfaces.iter().filter(usable).find(|interface| interface.is_infiniband);
    let found = || {
        let texts: Vec<_> = interfaces.iter().map(Interface::to_string).collect();
        if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
    };
    let chosen = match named {
        Some(name) => interfaces
            .iter()
            .filter(usable)
            .find(|interface| interface.name == name)
            .ok_or_else(|| Error::NotThere { name: name.to_owned(), found: found() })?,
        None => {
            let leads = |interface: &&Interface| {
                !interface.is_loopback && way_out.is_some_and(|ip| interface.ips.contains(&ip))
            };
            let leading = || interfaces.iter().filter(usable).find(leads);
            let physical = || interfaces.iter().filter(usable).find(|interface| !interface.is_virtual());
            infiniband.or_else(leading).or_else(physical).ok_or_else(|| Error::None { found: found() })?
        }
    };
    let of_way_out = way_out.filter(|ip| chosen.ips.contains(ip));
    Ok(Place {
        ip: of_way_out.unwrap_or(chosen.ips[0]),
        interface: chosen.name.clone(),
        infiniband: infiniband.map(|interface| interface.ips[0]),
    })
}

/// The address that the machine would use to reach others. Nothing is sent: the kernel only looks the way up.
fn way_out() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // A network for documentation, which the default route alone leads to.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified()).then_some(ip)
}

fn interfaces() -> io::Result<Vec<Interface>> {
    let mut found: Vec<Interface> = Vec::new();
    for entry in getifaddrs().map_err(io::Error::from)? {
        let at = found.iter().position(|interface| interface.name == entry.interface_name);
        let at = at.unwrap_or_else(|| {
            found.push(Interface {
                is_up: entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
                is_loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
                is_infiniband: entry.interface_name.starts_with("ib"),
                ips: Vec::new(),
                name: entry.interface_name.clone(),
            });
            found.len() - 1
        });
        let Some(address) = &entry.address else { continue };
        found[at].is_infiniband |= address.as_link_addr().is_some_and(|link| link.hatype() == INFINIBAND);
        found[at].ips.extend(ip(address));
        found[at].ips.sort_by_key(IpAddr::is_ipv6);
    }
    Ok(found)
}

/// An address that means the same to peers. Those of the link alone need the interface named beside them.
fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
    let v6 = || address.as_sockaddr_in6().map(|address| address.ip());
    v4.or_else(|| v6().filter(|ip| !ip.is_unicast_link_local()).map(IpAddr::from))
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    fn interface(name: &str, ip: &str) -> Interface {
        Interface {
            name: name.into(),
            ips: ip.split_whitespace().map(|ip| ip.parse().unwrap()).collect(),
            is_up: true,
            is_loopback: name == "lo",
            is_infiniband: name.starts_with("ib"),
        }
    }

    fn chosen(interfaces: &[Interface], named: Option<&str>, way_out: Option<&str>) -> String {
        match choose(interfaces, named, way_out.map(|ip| ip.parse().unwrap())) {
            Ok(place) => format!("{} {}", place.interface, place.ip),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn infiniband_comes_first_and_what_is_virtual_last() {
        let machine = [
            interface("lo", "127.0.0.1"),
            interface("docker0", "172.17.0.1"),
            interface("eth0", "10.0.0.5 fd00::5"),
            interface("eth1", "10.1.0.5"),
        ];
        assert_eq!(chosen(&machine, None, None), "eth0 10.0.0.5");
        assert_eq!(chosen(&machine, None, Some("10.1.0.5")), "eth1 10.1.0.5");
        // Where the way out is over a bridge, that is where the machine's address is.
        assert_eq!(chosen(&machine, None, Some("172.17.0.1")), "docker0 172.17.0.1");
        assert_eq!(chosen(&machine, Some("eth1"), Some("10.0.0.5")), "eth1 10.1.0.5");
        assert_eq!(chosen(&machine, Some("lo"), None), "lo 127.0.0.1");
        let mut with_infiniband = machine.to_vec();
        with_infiniband.push(interface("ib0", "192.168.9.5"));
        assert_eq!(chosen(&with_infiniband, None, Some("10.0.0.5")), "ib0 192.168.9.5");
        let by_name = choose(&with_infiniband, Some("eth0"), None).unwrap();
        assert_eq!(by_name.infiniband, Some([192, 168, 9, 5].into()));
        with_infiniband[4].is_up = false;
        assert_eq!(chosen(&with_infiniband, None, Some("10.0.0.5")), "eth0 10.0.0.5");
    }

    #[test]
    fn an_address_that_is_known_stays_also_where_no_interface_has_it() {
        let machine =
            [interface("lo", "127.0.0.1"), interface("eth0", "10.0.0.5"), interface("eth1", "10.1.0.5")];
        let place = |ip: &str| known(&machine, ip.parse().unwrap(), Some([10, 0, 0, 5].into())).unwrap();
        let text = |place: Place| format!("{} {}", place.interface, place.ip);
        assert_eq!(text(place("10.1.0.5")), "eth1 10.1.0.5");
        assert_eq!(text(place("203.0.113.9")), "eth0 203.0.113.9");
        assert_eq!(text(place("127.0.0.1")), "lo 127.0.0.1");
    }

    #[test]
    fn a_machine_that_nobody_reaches_is_told_so() {
        let machine = [interface("lo", "127.0.0.1"), interface("veth12", "10.9.0.1"), interface("eth0", "")];
        let told = chosen(&machine, None, None);
        assert!(told.contains("lo (127.0.0.1), veth12 (10.9.0.1), eth0 (no address)"), "{told}");
        assert!(chosen(&machine, Some("ib0"), None).contains("ib0 is not there"));
    }

    /// Real interfaces, in a network of their own: this test starts itself again in one.
    #[test]
    fn real_interfaces_are_found_as_they_are() {
        const INSIDE: &str = "MUSTER_TEST_OWN_NETWORK";
        if std::env::var_os(INSIDE).is_none() {
            let test = "network::tests::real_interfaces_are_found_as_they_are";
            let mut inside = Command::new("unshare");
            inside.args(["--net", "--"]).arg(std::env::current_exe().unwrap()).args(["--exact", test]);
            let output =
                inside.env(INSIDE, "1").output().expect("run this with `unshare` of util-linux installed");
            let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success(),
                "{text}; it needs root and `ip` of iproute2: `sudo -E cargo test`"
            );
            return;
        }
        assert!(matches!(Network::Host.place(), Err(Error::None { .. })));
        let ip = |words: &str| {
            let status = Command::new("ip").args(words.split(' ')).status().unwrap();
            assert!(status.success(), "ip {words}");
        };
        let make = |name: &str, address: &str| {
            ip(&format!("link add {name} type veth peer name veth-{name}"));
            ip(&format!("link set veth-{name} up"));
            ip(&format!("addr add {address} dev {name}"));
        };
        let add = |name: &str, address: &str| {
            make(name, address);
            ip(&format!("link set {name} up"));
        };
        let place = |network: Network| {
            let place = network.place().unwrap().unwrap();
            (format!("{} {}", place.interface, place.ip), place.infiniband)
        };
        // The kernel takes its time to say that an interface which was set up is running.
        let becomes = |network: Network, wanted: (&str, Option<IpAddr>)| {
            let deadline = Instant::now() + Duration::from_secs(10);
            let is = |place: &(String, Option<IpAddr>)| (place.0.as_str(), place.1) == wanted;
            while !network.place().is_ok_and(|it| it.is_some()) || !is(&place(network.clone())) {
                assert!(Instant::now() < deadline, "{:?} and not {wanted:?}", network.place());
                std::thread::yield_now();
            }
        };
        add("docker0", "172.17.0.1/16");
        add("eth0", "10.77.0.5/24");
        becomes(Network::Host, ("eth0 10.77.0.5", None));
        add("eth1", "10.78.0.5/24");
        becomes("eth1".parse().unwrap(), ("eth1 10.78.0.5", None));
        assert_eq!(place(Network::Host), ("eth0 10.77.0.5".into(), None));
        ip("route add default via 10.78.0.1");
        assert_eq!(place(Network::Host), ("eth1 10.78.0.5".into(), None));
        make("ib0", "10.79.0.5/24");
        assert_eq!(place(Network::Host), ("eth1 10.78.0.5".into(), None), "it is down");
        ip("link set ib0 up");
        let infiniband = Some([10, 79, 0, 5].into());
        becomes(Network::Host, ("ib0 10.79.0.5", infiniband));
        assert_eq!(place("eth0".parse().unwrap()), ("eth0 10.77.0.5".into(), infiniband));
        assert_eq!(Network::Loopback.place().unwrap(), None);
    }
}
