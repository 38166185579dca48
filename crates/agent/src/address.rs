//! Addresses and ports for the tasks of this node.
//!
//! Each live task has a loopback address of its own, so that several members of a gang on one machine can listen on
//! the same port number as they would on several machines. Ports that were promised are nobody else's on *any*
//! address, because many programs bind the wildcard whatever address they were told.
//!
//! A port is free when it was looked at, and a program outside Muster may still take it before the task does. Two
//! things make that rare: ports lie below the range from which the kernel serves outgoing connections, and each agent
//! begins its search at a place of its own.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use muster_model::TaskId;
use muster_model::task::Address;
use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};

/// 127.64.0.0/10: loopback, and far from 127.0.0.1 and the addresses that distributions use.
const FIRST: u32 = u32::from_be_bytes([127, 64, 0, 0]);
const COUNT: u32 = 1 << 22;
/// Below are services that machines are set up with.
const FIRST_PORT: u16 = 10_000;
/// A gang member that wants more is a mistake, and a thousand of it would use up all there are.
pub(crate) const MAX_PORTS: u32 = 64;

/// Why a task got no address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{asked} ports were asked for, and a task can have {MAX_PORTS} at most")]
    TooMany { asked: u32 },
    #[error("the node has no {asked} free ports left")]
    NoneFree { asked: u32 },
}

/// Which addresses and ports are taken by live tasks.
#[derive(Debug)]
pub(crate) struct Ledger {
    held: HashMap<TaskId, Address>,
    taken_addresses: BTreeSet<IpAddr>,
    taken_ports: BTreeSet<u16>,
    /// Where the search goes on.
    next_address: u32,
    next_port: u16,
    /// One beyond the last port that is tried.
    end_port: u16,
}

impl Ledger {
    /// `seed` decides where the search begins, `ephemeral` is where the kernel's own choice of ports begins.
    pub(crate) fn new(seed: u64, ephemeral: u16) -> Ledger {
        // A machine may be set to choose from nearly all ports; then there is no better place than the rest.
        let end_port = if ephemeral > FIRST_PORT + 1000 { ephemeral } else { u16::MAX };
        Ledger {
            held: HashMap::new(),
            taken_addresses: BTreeSet::new(),
            taken_ports: BTreeSet::new(),
            next_address: (seed % u64::from(COUNT)) as u32,
            next_port: FIRST_PORT + ((seed >> 32) % u64::from(end_port - FIRST_PORT)) as u16,
            end_port,
        }
    }

    /// An address that no other live task has, with ports that nobody uses.
    pub(crate) fn claim(&mut self, task: &TaskId, ports: u32) -> Result<Address, Error> {
        if ports > MAX_PORTS {
            return Err(Error::TooMany { asked: ports });
        }
        let ip = self.free_address();
        let mut found = Vec::new();
        for _ in FIRST_PORT..self.end_port {
            if found.len() == ports as usize {
                break;
            }
            let port = self.next_port;
            self.next_port = if port + 1 < self.end_port { port + 1 } else { FIRST_PORT };
            if !self.taken_ports.contains(&port) && is_free(ip, port) {
                found.push(port);
            }
        }
        if found.len() < ports as usize {
            return Err(Error::NoneFree { asked: ports });
        }
        let address = Address::new(ip, found);
        self.hold(task, &address);
        Ok(address)
    }

    /// Keep what was promised before, by an agent of which this one is the successor.
    pub(crate) fn hold(&mut self, task: &TaskId, address: &Address) {
        self.taken_addresses.insert(address.ip);
        self.taken_ports.extend(&address.ports);
        self.held.insert(task.clone(), address.clone());
    }

    /// The task is over.
    pub(crate) fn release(&mut self, task: &TaskId) {
        if let Some(address) = self.held.remove(task) {
            self.taken_addresses.remove(&address.ip);
            for port in &address.ports {
                self.taken_ports.remove(port);
            }
        }
    }

    fn free_address(&mut self) -> IpAddr {
        loop {
            let ip = IpAddr::from(Ipv4Addr::from(FIRST + self.next_address));
            self.next_address = (self.next_address + 1) % COUNT;
            // There are more addresses than any node has tasks, so that this ends.
            if !self.taken_addresses.contains(&ip) {
                return ip;
            }
        }
    }
}

/// The first port of the range that the kernel chooses from by itself.
pub(crate) fn ephemeral_start() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    text.split_whitespace().next().and_then(|start| start.parse().ok()).unwrap_or(32_768)
}

/// Whether the port can be bound on the address and on the wildcard, of both families.
fn is_free(ip: IpAddr, port: u16) -> bool {
    // Without IPv6 on the machine nobody can hold a port there.
    let any6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    can_bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))) == Some(true)
        && can_bind(any6) != Some(false)
        && can_bind(SocketAddr::from((ip, port))) == Some(true)
}

/// Whether a program that asks for nothing special could bind this; none if there is no such network.
fn can_bind(address: SocketAddr) -> Option<bool> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family, SocketType::STREAM, None).ok()?;
    if address.is_ipv6() {
        // As servers do that take both families: this also finds what others have for IPv6 alone.
        sockopt::set_ipv6_v6only(&socket, false).ok()?;
    }
    match bind(&socket, &address) {
        Ok(()) => Some(true),
        Err(rustix::io::Errno::ADDRNOTAVAIL) => None,
        Err(_) => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::TcpListener;

    use super::*;

    fn task(rank: u32) -> TaskId {
        format!("task{rank}.job_0123456789.1").parse().unwrap()
    }

    #[test]
    fn live_tasks_share_neither_address_nor_port() {
        let mut ledger = Ledger::new(7 << 33, ephemeral_start());
        let addresses: Vec<_> = (0..64).map(|rank| ledger.claim(&task(rank), 2).unwrap()).collect();
        assert_eq!(addresses.iter().map(|address| address.ip).collect::<HashSet<_>>().len(), 64);
        assert_eq!(addresses.iter().flat_map(|address| &address.ports).collect::<HashSet<_>>().len(), 128);
        for address in &addresses {
            assert!(
                matches!(address.ip, IpAddr::V4(ip) if ip.octets()[0] == 127 && ip.octets()[1] & 0xc0 == 64)
            );
            TcpListener::bind((address.ip, address.ports[0])).unwrap();
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.ports[1])).unwrap();
        }
    }

    #[test]
    fn a_port_that_someone_has_is_not_promised() {
        let seed = 11 << 33;
        let port = Ledger::new(seed, ephemeral_start()).claim(&task(0), 1).unwrap().ports[0];
        for taken in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST] {
            let _listener = TcpListener::bind((taken, port)).unwrap();
            let other = Ledger::new(seed, ephemeral_start()).claim(&task(0), 1).unwrap().ports[0];
            assert_ne!(other, port);
        }
    }

    #[test]
    fn what_was_released_can_be_had_again_and_what_is_held_cannot() {
        let mut ledger = Ledger::new(0, FIRST_PORT + 1001);
        let first = ledger.claim(&task(0), 1).unwrap();
        ledger.release(&task(0));
        ledger.release(&task(0));
        ledger.next_port = first.ports[0];
        ledger.next_address = 0;
        assert_eq!(ledger.claim(&task(1), 1).unwrap(), first);
        let mut successor = Ledger::new(0, FIRST_PORT + 1001);
        successor.hold(&task(1), &first);
        successor.next_port = first.ports[0];
        let other = successor.claim(&task(2), 1).unwrap();
        assert!(other.ip != first.ip && other.ports != first.ports);
    }

    #[test]
    fn too_much_is_refused_and_takes_nothing() {
        let mut ledger = Ledger::new(0, FIRST_PORT + 1001);
        assert!(matches!(ledger.claim(&task(0), MAX_PORTS + 1), Err(Error::TooMany { .. })));
        ledger.taken_ports.extend(FIRST_PORT..u16::MAX);
        assert!(matches!(ledger.claim(&task(0), 1), Err(Error::NoneFree { .. })));
        assert!(ledger.held.is_empty());
        assert!(ledger.claim(&task(0), 0).is_ok());
    }
}
