//! Addresses and ports for the tasks of this node.
//!
//! Where the machine is a gang's whole world, each live task has a loopback address of its own, so that several members of a gang on one machine can listen on
//! the same port number as they would on several machines; where gangs span machines, all have the machine's. Ports that were promised are nobody else's on *any*
//! address, because many programs bind the wildcard whatever address they were told.
//!
//! A shared port is the exception: members of one attempt may have the same number, each on its own address.
//!
//! A port is free when it was looked at, and a program outside Muster may still take it before the task does. Two
//! things make that rare: ports lie below the range from which the kernel serves outgoing connections, and each agent
//! begins its search at a place of its own.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use muster_model::task::Address;
use muster_model::{AttemptId, TaskId};
use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};

use crate::network::{self, Network, Place};

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
    #[error("the node has no {asked} free ports left, one after the other")]
    NoneFree { asked: u32 },
    #[error(transparent)]
    Network(#[from] network::Error),
}

/// Which addresses and ports are taken by live tasks.
#[derive(Debug)]
pub(crate) struct Ledger {
    network: Network,
    held: HashMap<TaskId, Address>,
    taken_addresses: BTreeSet<IpAddr>,
    taken_ports: BTreeSet<u16>,
    /// Shared ports: of which attempt, and on which addresses.
    shared: BTreeMap<u16, (AttemptId, BTreeSet<IpAddr>)>,
    /// Where the search goes on.
    next_address: u32,
    next_port: u16,
    /// One beyond the last port that is tried.
    end_port: u16,
}

impl Ledger {
    /// `seed` decides where the search begins, `ephemeral` is where the kernel's own choice of ports begins.
    pub(crate) fn new(network: Network, seed: u64, ephemeral: u16) -> Ledger {
        // A machine may be set to choose from nearly all ports; then there is no better place than the rest.
        let end_port = if ephemeral > FIRST_PORT + 1000 { ephemeral } else { u16::MAX };
        Ledger {
            network,
            held: HashMap::new(),
            taken_addresses: BTreeSet::new(),
            taken_ports: BTreeSet::new(),
            shared: BTreeMap::new(),
            next_address: (seed % u64::from(COUNT)) as u32,
            next_port: FIRST_PORT + ((seed >> 32) % u64::from(end_port - FIRST_PORT)) as u16,
            end_port,
        }
    }

    /// An address that peers reach, with ports that nobody uses, one after the other. `shared` is a port that all
    /// members of the attempt are asked to have: it is given if it can be.
    pub(crate) fn claim(&mut self, task: &TaskId, ports: u32, shared: Option<u16>) -> Result<Address, Error> {
        if ports > MAX_PORTS {
            return Err(Error::TooMany { asked: ports });
        }
        let place = match self.network.place()? {
            Some(place) => place,
            None => Place { ip: self.free_address(), interface: "lo".into(), infiniband: None },
        };
        let shared_port = shared.filter(|port| self.can_share(*port, &task.attempt, place.ip));
        let ports = self.free_ports(place.ip, ports, shared_port)?;
        let Place { ip, interface, infiniband } = place;
        let address =
            Address { ip, ports, shared_port, interface: Some(interface), infiniband, account: None };
        self.hold(task, &address);
        Ok(address)
    }

    fn can_share(&self, port: u16, attempt: &AttemptId, ip: IpAddr) -> bool {
        let is_ours = match self.shared.get(&port) {
            Some((owner, addresses)) => owner == attempt && !addresses.contains(&ip),
            None => !self.taken_ports.contains(&port),
        };
        // On its address alone: a member that has started may listen on the same port of another one.
        is_ours && can_bind(SocketAddr::from((ip, port))) == Some(true)
    }

    fn free_ports(&mut self, ip: IpAddr, count: u32, shared: Option<u16>) -> Result<Vec<u16>, Error> {
        let count = count as usize;
        let mut found = Vec::with_capacity(count);
        // A row that lies across the place where the search began is found in the second round.
        for _ in 0..2 * usize::from(self.end_port - FIRST_PORT) {
            if found.len() == count {
                return Ok(found);
            }
            let port = self.next_port;
            let is_last = port + 1 >= self.end_port;
            self.next_port = if is_last { FIRST_PORT } else { port + 1 };
            let is_taken =
                self.taken_ports.contains(&port) || self.shared.contains_key(&port) || shared == Some(port);
            if !is_taken && is_free(ip, port) {
                found.push(port);
            } else {
                found.clear();
            }
            if is_last && found.len() < count {
                found.clear();
            }
        }
        if found.len() == count { Ok(found) } else { Err(Error::NoneFree { asked: count as u32 }) }
    }

    /// Keep what was promised before, by an agent of which this one is the successor.
    pub(crate) fn hold(&mut self, task: &TaskId, address: &Address) {
        self.taken_addresses.insert(address.ip);
        self.taken_ports.extend(&address.ports);
        if let Some(port) = address.shared_port {
            let (_, addresses) = self.shared.entry(port).or_insert((task.attempt.clone(), BTreeSet::new()));
            addresses.insert(address.ip);
        }
        self.held.insert(task.clone(), address.clone());
    }

    /// The task is over.
    pub(crate) fn release(&mut self, task: &TaskId) {
        let Some(address) = self.held.remove(task) else { return };
        self.taken_addresses.remove(&address.ip);
        for port in &address.ports {
            self.taken_ports.remove(port);
        }
        if let Some(port) = address.shared_port
            && let Some((_, addresses)) = self.shared.get_mut(&port)
        {
            addresses.remove(&address.ip);
            if addresses.is_empty() {
                self.shared.remove(&port);
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

    use proptest::prelude::{ProptestConfig, TestCaseError, any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn task(rank: u32) -> TaskId {
        format!("task{rank}.job_0123456789.1").parse().unwrap()
    }

    fn ledger(seed: u64, ephemeral: u16) -> Ledger {
        Ledger::new(Network::Loopback, seed, ephemeral)
    }

    fn member(job: u8, rank: u32) -> TaskId {
        format!("task{rank}.job_012345678{job}.1").parse().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn gangs_on_one_host_never_collide_whatever_comes_and_goes(
            seed: u64,
            steps in proptest::collection::vec((any::<bool>(), 0..4_u8, 0..4_u32, 0..12_u32, 0..3_u16), 1..60),
        ) {
            // A narrow range, so that it fills up; and shared ports inside it, so that all kinds meet.
            let mut ledger = ledger(seed, FIRST_PORT + 1001);
            ledger.end_port = FIRST_PORT + 120;
            ledger.next_port = FIRST_PORT + (seed % 120) as u16;
            for (claims, job, rank, ports, shared) in steps {
                let task = member(job, rank);
                if !claims || ledger.held.contains_key(&task) {
                    ledger.release(&task);
                } else if let Ok(address) = ledger.claim(&task, ports, Some(FIRST_PORT + 40 + shared)) {
                    prop_assert_eq!(address.ports.len(), ports as usize);
                    prop_assert!(address.ports.windows(2).all(|pair| pair[1] == pair[0] + 1));
                    prop_assert_eq!(address.interface.as_deref(), Some("lo"));
                }
                check(&ledger)?;
            }
            let tasks: Vec<_> = ledger.held.keys().cloned().collect();
            tasks.iter().for_each(|task| ledger.release(task));
            prop_assert!(ledger.taken_ports.is_empty() && ledger.shared.is_empty());
            prop_assert!(ledger.taken_addresses.is_empty());
        }
    }

    /// Where the searches of tests begin that listen on what they find: thousands of ports apart, because tests run at
    /// once, and to see whether a port is free is to have it for a moment.
    const LIVE: u64 = 3_000 << 32;
    const GANG: u64 = 6_000 << 32;
    const EVERYWHERE: u64 = 9_000 << 32;
    const PROMISED: u64 = 12_000 << 32;

    /// Every address and port has one owner, but for shared ports within an attempt.
    fn check(ledger: &Ledger) -> Result<(), TestCaseError> {
        let mut addresses = HashSet::new();
        let mut ports: HashMap<u16, &TaskId> = HashMap::new();
        for (task, address) in &ledger.held {
            prop_assert!(addresses.insert(address.ip));
            for port in &address.ports {
                prop_assert!(ports.insert(*port, task).is_none(), "{} twice", port);
            }
        }
        for (task, address) in &ledger.held {
            let Some(shared) = address.shared_port else { continue };
            prop_assert!(!ports.contains_key(&shared));
            let others = ledger.held.iter().filter(|(_, other)| other.shared_port == Some(shared));
            for (other, _) in others {
                prop_assert_eq!(&other.attempt, &task.attempt);
            }
        }
        Ok(())
    }

    #[test]
    fn members_of_a_gang_share_a_port_and_nobody_else_gets_it() {
        let port = ledger(GANG, ephemeral_start()).claim(&task(0), 1, None).unwrap().ports[0];
        let mut ledger = ledger(GANG, ephemeral_start());
        let [first, second] = [0, 1].map(|rank| ledger.claim(&member(1, rank), 2, Some(port)).unwrap());
        assert_eq!((first.shared_port, second.shared_port), (Some(port), Some(port)));
        let _listeners = [first.ip, second.ip].map(|ip| TcpListener::bind((ip, port)).unwrap());
        assert_eq!(ledger.claim(&member(2, 0), 2, Some(port)).unwrap().shared_port, None);
        let mut successor = Ledger::new(Network::Loopback, GANG, ephemeral_start());
        successor.hold(&member(1, 0), &first);
        let other = successor.claim(&member(2, 0), 1, Some(port)).unwrap();
        assert!(other.shared_port.is_none() && !other.ports.contains(&port));
        assert_eq!(successor.claim(&member(1, 2), 1, Some(port)).unwrap().shared_port, Some(port));
    }

    #[test]
    fn a_port_that_someone_has_everywhere_is_not_shared() {
        let port = ledger(EVERYWHERE, ephemeral_start()).claim(&task(0), 1, None).unwrap().ports[0];
        let _listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
        let address = ledger(EVERYWHERE, ephemeral_start()).claim(&task(0), 1, Some(port)).unwrap();
        assert_eq!(address.shared_port, None);
    }

    #[test]
    fn live_tasks_share_neither_address_nor_port() {
        let mut ledger = ledger(LIVE, ephemeral_start());
        let addresses: Vec<_> = (0..64).map(|rank| ledger.claim(&task(rank), 2, None).unwrap()).collect();
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
        let seed = PROMISED;
        let port = ledger(seed, ephemeral_start()).claim(&task(0), 1, None).unwrap().ports[0];
        for taken in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST] {
            let _listener = TcpListener::bind((taken, port)).unwrap();
            let other = ledger(seed, ephemeral_start()).claim(&task(0), 1, None).unwrap().ports[0];
            assert_ne!(other, port);
        }
    }

    #[test]
    fn what_was_released_can_be_had_again_and_what_is_held_cannot() {
        let mut ledger = ledger(0, FIRST_PORT + 1001);
        let first = ledger.claim(&task(0), 1, None).unwrap();
        ledger.release(&task(0));
        ledger.release(&task(0));
        ledger.next_port = first.ports[0];
        ledger.next_address = 0;
        assert_eq!(ledger.claim(&task(1), 1, None).unwrap(), first);
        let mut successor = Ledger::new(Network::Loopback, 0, FIRST_PORT + 1001);
        successor.hold(&task(1), &first);
        successor.next_port = first.ports[0];
        let other = successor.claim(&task(2), 1, None).unwrap();
        assert!(other.ip != first.ip && other.ports != first.ports);
    }

    #[test]
    fn too_much_is_refused_and_takes_nothing() {
        let mut ledger = ledger(0, FIRST_PORT + 1001);
        assert!(matches!(ledger.claim(&task(0), MAX_PORTS + 1, None), Err(Error::TooMany { .. })));
        ledger.taken_ports.extend(FIRST_PORT..u16::MAX);
        assert!(matches!(ledger.claim(&task(0), 1, None), Err(Error::NoneFree { .. })));
        assert!(ledger.held.is_empty());
        assert!(ledger.claim(&task(0), 0, None).is_ok());
    }
}
