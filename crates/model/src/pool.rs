//! Pools: SSH hosts under a name. What somebody says of them is checked here; whether they can be reached is found out by
//! trying.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::NodeId;
use crate::spec::{FieldCode, FieldError};

/// The longest name of a pool: with a host's name behind it, it must still fit a node's id.
pub const MAX_NAME: usize = 40;
/// The most hosts of one pool: beyond what anybody has, small enough that a mistake is caught.
pub const MAX_HOSTS: usize = 10_000;
/// As long as a host's part of a node's id may be, with room for what makes it unique.
const MAX_HOST_NAME: usize = 50;
/// The longest text of a destination or a path.
const MAX_TEXT: usize = 1024;

/// How a host is reached, as somebody says it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostSpec {
    /// What `ssh` is called with: `host`, `user@host`, `ssh://user@host:port`, or a name of the SSH configuration.
    pub destination: String,
    /// The port of its sshd, where the SSH configuration does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The private key to show, a file on the server's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The address at which the other hosts reach it, if not the one that its sshd is reached at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub address: Option<IpAddr>,
}

/// A host of a pool: a node, and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// What it is called everywhere else.
    pub node: NodeId,
    /// How it is reached.
    pub spec: HostSpec,
}

/// SSH hosts under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its name, as in `ssh/NAME`.
    pub name: String,
    /// Its hosts, in the order they were given.
    pub hosts: Vec<Host>,
    /// A directory that all of them share.
    pub shared: Option<String>,
    /// It is in config.toml, and changed there.
    pub configured: bool,
}

/// What somebody says of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolSpec {
    /// Its name.
    pub name: String,
    /// Its hosts.
    pub hosts: Vec<HostSpec>,
    /// A directory that all of them share.
    pub shared: Option<String>,
}

impl PoolSpec {
    /// Everything that is wrong with it, each with the field's name.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if let Err(message) = check_name(&self.name) {
            errors.push(FieldError::new("pool", FieldCode::InvalidValue, message));
        }
        if self.hosts.len() > MAX_HOSTS {
            let message = format!("has {} hosts; {MAX_HOSTS} are the most", self.hosts.len());
            errors.push(FieldError::new("hosts", FieldCode::OutOfRange, message));
            return errors;
        }
        let mut seen = BTreeSet::new();
        for (i, host) in self.hosts.iter().enumerate() {
            host.check(&format!("hosts[{i}]"), &mut errors);
            if !seen.insert((&host.destination, host.port)) {
                let message = format!("`{}` is there twice", shown(&host.destination));
                errors.push(FieldError::new(
                    format!("hosts[{i}].destination"),
                    FieldCode::InvalidValue,
                    message,
                ));
            }
        }
        if let Some(shared) = &self.shared
            && let Err(message) = check_path(shared, false)
        {
            errors.push(FieldError::new("shared", FieldCode::InvalidValue, message));
        }
        errors
    }
}

impl HostSpec {
    fn check(&self, field: &str, errors: &mut Vec<FieldError>) {
        let mut wrong = |name: &str, message: String| {
            errors.push(FieldError::new(format!("{field}.{name}"), FieldCode::InvalidValue, message));
        };
        if let Err(message) = check_destination(&self.destination) {
            wrong("destination", message);
        }
        if self.port == Some(0) {
            wrong("port", "must be a number from 1 to 65535".into());
        }
        if let Some(Err(message)) = self.key.as_ref().map(|key| check_path(key, true)) {
            wrong("key", message);
        }
    }

    /// The machine's name in the destination, as part of a node's id: `ada@GPU1.lab` is `gpu1.lab`.
    fn slug(&self) -> String {
        let text = self.destination.strip_prefix("ssh://").unwrap_or(&self.destination);
        let text = text.split('/').next().unwrap_or(text);
        let text = text.rsplit_once('@').map_or(text, |(_, host)| host);
        let host = match text.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or(rest),
            // Of several colons the last begins no port: it is an IPv6 address.
            None => match text.split_once(':') {
                Some((host, port)) if !port.contains(':') => host,
                _ => text,
            },
        };
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
        let slug: String = host.to_ascii_lowercase().chars().map(plain).take(MAX_HOST_NAME).collect();
        if slug.is_empty() { "host".into() } else { slug }
    }
}

impl Pool {
    /// A pool as it is to be. A host that is there already keeps its node; whoever is new gets a name of its own.
    pub fn new(spec: PoolSpec, before: Option<&Self>, configured: bool) -> Self {
        let PoolSpec { name, hosts, shared } = spec;
        let known = |host: &HostSpec| {
            let hosts = before.into_iter().flat_map(|pool| &pool.hosts);
            hosts.clone().find(|known| known.spec.is_same_machine(host)).map(|known| known.node.clone())
        };
        let mut taken: BTreeSet<NodeId> = hosts.iter().filter_map(known).collect();
        let hosts = hosts.into_iter().map(|spec| {
            let node = known(&spec).unwrap_or_else(|| free_id(&name, &spec.slug(), &taken));
            taken.insert(node.clone());
            Host { node, spec }
        });
        Self { hosts: hosts.collect(), name, shared, configured }
    }

    /// The same with more hosts. One that is there already is from now on reached as it is said here.
    pub fn with(&self, more: Vec<HostSpec>, shared: Option<String>) -> Self {
        let mut hosts: Vec<HostSpec> = self.hosts.iter().map(|host| host.spec.clone()).collect();
        for host in more {
            match hosts.iter_mut().find(|known| known.is_same_machine(&host)) {
                Some(known) => *known = host,
                None => hosts.push(host),
            }
        }
        let shared = shared.or_else(|| self.shared.clone());
        Self::new(PoolSpec { name: self.name.clone(), hosts, shared }, Some(self), self.configured)
    }

    /// The same without some of its hosts.
    pub fn without(&self, node: &NodeId) -> Self {
        let mut rest = self.clone();
        rest.hosts.retain(|host| host.node != *node);
        rest
    }
}

impl HostSpec {
    /// Whether both mean the same machine and account: then it is one host, however it is reached.
    fn is_same_machine(&self, other: &Self) -> bool {
        self.destination == other.destination && self.port.unwrap_or(22) == other.port.unwrap_or(22)
    }
}

/// A node's id that no other host of the pool has.
fn free_id(pool: &str, slug: &str, taken: &BTreeSet<NodeId>) -> NodeId {
    let names = std::iter::once(slug.to_owned()).chain((2..).map(|i| format!("{slug}-{i}")));
    let mut ids = names.filter_map(|name| format!("{}{pool}.{name}", NodeId::PREFIX).parse().ok());
    let free = ids.find(|id| !taken.contains(id));
    free.expect("a checked pool's name and a slug make an id, and numbers do not end")
}

/// Whether a pool may be called so.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    let fits =
        (1..=MAX_NAME).contains(&name.len()) && name.chars().all(plain) && !name.starts_with(['-', '_']);
    if fits {
        return Ok(());
    }
    let rule = format!("1 to {MAX_NAME} letters, digits, `-` and `_`, beginning with a letter or digit");
    Err(format!("`{}` cannot be a pool's name: {rule}", shown(name)))
}

/// Whether `ssh` may be called with it: nothing that it would take for an option, or a shell for more than a word.
fn check_destination(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("is empty; write host, user@host, or a name of your SSH configuration".into());
    }
    let odd = |c: char| c.is_whitespace() || c.is_control() || "'\"`$\\<>|;&(){}*?!#".contains(c);
    if text.len() > MAX_TEXT || text.starts_with('-') || text.contains(odd) {
        let ways = "host, user@host, ssh://user@host:port, or a name of your SSH configuration";
        return Err(format!("`{}` is no destination; write {ways}", shown(text)));
    }
    Ok(())
}

fn check_path(text: &str, may_be_home: bool) -> Result<(), String> {
    let is_absolute = text.starts_with('/') || (may_be_home && text.starts_with("~/"));
    if is_absolute && text.len() <= MAX_TEXT && !text.contains(char::is_control) {
        return Ok(());
    }
    let ways = if may_be_home { "an absolute path, or ~/…" } else { "an absolute path" };
    Err(format!("`{}` is not {ways}", shown(text)))
}

fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(destinations: &[&str]) -> PoolSpec {
        let host = |text: &&str| HostSpec { destination: (*text).into(), ..HostSpec::default() };
        PoolSpec { name: "gpu".into(), hosts: destinations.iter().map(host).collect(), shared: None }
    }

    fn nodes(pool: &Pool) -> Vec<&str> {
        pool.hosts.iter().map(|host| host.node.as_str()).collect()
    }

    #[test]
    fn nodes_are_called_after_their_machines() {
        for (destination, node) in [
            ("gpu1", "node_gpu.gpu1"),
            ("ada@GPU1.lab.example", "node_gpu.gpu1.lab.example"),
            ("ada@10.0.0.1", "node_gpu.10.0.0.1"),
            ("ssh://ada@gpu1:2222", "node_gpu.gpu1"),
            ("ssh://[fd00::1]:22/", "node_gpu.fd00--1"),
            ("fd00::1", "node_gpu.fd00--1"),
            ("größe", "node_gpu.gr--e"),
        ] {
            let spec = spec(&[destination]);
            assert_eq!(spec.check(), [], "{destination}");
            assert_eq!(nodes(&Pool::new(spec, None, false)), [node], "{destination}");
        }
        let long = spec(&[&"x".repeat(500)]);
        assert_eq!(Pool::new(long, None, false).hosts.len(), 1);
    }

    #[test]
    fn two_accounts_of_one_machine_are_two_nodes_that_keep_their_names() {
        let pool = Pool::new(spec(&["a@h", "b@h"]), None, false);
        assert_eq!(nodes(&pool), ["node_gpu.h", "node_gpu.h-2"]);
        let turned = Pool::new(spec(&["b@h", "c@h", "a@h"]), Some(&pool), false);
        assert_eq!(nodes(&turned), ["node_gpu.h-2", "node_gpu.h-3", "node_gpu.h"]);
        let rest = turned.without(&"node_gpu.h".parse().unwrap());
        assert_eq!(nodes(&rest), ["node_gpu.h-2", "node_gpu.h-3"]);
    }

    #[test]
    fn a_host_that_is_added_again_is_reached_as_was_said_last() {
        let pool = Pool::new(PoolSpec { shared: Some("/nas".into()), ..spec(&["h", "i"]) }, None, false);
        let again =
            HostSpec { destination: "h".into(), port: Some(22), key: Some("/k".into()), address: None };
        let more = pool.with(vec![again.clone(), HostSpec { destination: "j".into(), ..again }], None);
        assert_eq!(nodes(&more), ["node_gpu.h", "node_gpu.i", "node_gpu.j"]);
        assert_eq!(more.hosts[0].spec.key.as_deref(), Some("/k"));
        assert_eq!(more.shared.as_deref(), Some("/nas"));
    }

    #[test]
    fn everything_that_is_wrong_is_named() {
        let host = |destination: &str| HostSpec { destination: destination.into(), ..HostSpec::default() };
        let wrong = PoolSpec {
            name: "a/b".into(),
            hosts: vec![
                host("-oProxyCommand=x"),
                host("a b"),
                host(""),
                host("$(x)"),
                host("h"),
                host("h"),
                HostSpec { port: Some(0), key: Some("id".into()), ..host("i") },
            ],
            shared: Some("~/nas".into()),
        };
        let fields: Vec<String> = wrong.check().into_iter().map(|error| error.field).collect();
        assert_eq!(
            fields,
            [
                "pool",
                "hosts[0].destination",
                "hosts[1].destination",
                "hosts[2].destination",
                "hosts[3].destination",
                "hosts[5].destination",
                "hosts[6].port",
                "hosts[6].key",
                "shared"
            ]
        );
        for name in ["", "a.b", "-a", "a b", "é", &"x".repeat(41)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
