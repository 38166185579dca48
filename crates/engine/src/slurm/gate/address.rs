//! Where compute nodes may find this machine.
//!
//! Which of its networks they are on nobody says, so all of them are named; agents try them together, and give nothing to
//! whoever does not know the gate's word.

use std::fs;
use std::net::Ipv4Addr;

/// The machine's name, as the cluster's nodes may know it, and the addresses of its interfaces.
pub(super) fn own() -> Vec<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let routes = fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let addresses = local(&routes).into_iter().map(|address| address.to_string());
    std::iter::once(name).filter(|name| !name.is_empty()).chain(addresses).collect()
}

/// The kernel's own list of what is local: an address, and on the line after it what it is.
fn local(trie: &str) -> Vec<Ipv4Addr> {
    let mut found: Vec<Ipv4Addr> = Vec::new();
    let mut last = None;
    for line in trie.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["|--", address] => last = address.parse::<Ipv4Addr>().ok(),
            ["/32", "host", "LOCAL"] => found.extend(last.take().filter(|address| !address.is_loopback())),
            _ => {}
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_kernel_but_not_the_machines_own_way_to_itself() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     +-- 10.0.0.0/24 2 0 2\n\
             \u{20}       |-- 10.0.0.7\n           /32 host LOCAL\n        |-- 10.0.0.255\n           /32 link BROADCAST\n\
             \u{20}    |-- 127.0.0.1\n        /32 host LOCAL\nLocal:\n        |-- 10.0.0.7\n           /32 host LOCAL\n";
        assert_eq!(local(trie), [Ipv4Addr::new(10, 0, 0, 7)]);
        assert!(!own().is_empty());
    }
}
