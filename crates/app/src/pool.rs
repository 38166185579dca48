//! `[pools.NAME]` of `config.toml`: SSH hosts under a name.

use std::net::IpAddr;

use anyhow::bail;
use muster_model::pool::{HostSpec, PoolSpec};
use serde::Deserialize;

/// `[pools.NAME]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Its hosts: destinations, or tables with more about each.
    hosts: Vec<Host>,
    /// The private key of all that name none.
    key: Option<String>,
    /// The port of all that name none.
    port: Option<u16>,
    /// A directory that all of them share.
    shared: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "a host is a text such as \"ada@gpu1\", or a table with `destination`, `port`, `key`, `address`"
)]
enum Host {
    Destination(String),
    Whole(Whole),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Whole {
    destination: String,
    port: Option<u16>,
    key: Option<String>,
    address: Option<IpAddr>,
}

impl Pool {
    /// The pool of this name, or everything that is wrong with it.
    pub fn read(&self, name: &str) -> anyhow::Result<PoolSpec> {
        let host = |host: &Host| {
            let whole = match host.clone() {
                Host::Whole(whole) => whole,
                Host::Destination(destination) => Whole { destination, port: None, key: None, address: None },
            };
            HostSpec {
                destination: whole.destination,
                port: whole.port.or(self.port),
                key: whole.key.or_else(|| self.key.clone()),
                address: whole.address,
            }
        };
        let hosts = self.hosts.iter().map(host).collect();
        let spec = PoolSpec { name: name.into(), hosts, shared: self.shared.clone() };
        let errors = spec.check();
        if errors.is_empty() {
            return Ok(spec);
        }
        let line = |error: &muster_model::spec::FieldError| match error.field.as_str() {
            "pool" => format!("pools.{name}: {}", error.message),
            field => format!("pools.{name}.{field}: {}", error.message),
        };
        bail!("{}", errors.iter().map(line).collect::<Vec<_>>().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_does_not_say_the_pool_says() {
        let text = "hosts = ['ada@h1', { destination = 'h2', port = 2222, address = '10.0.0.2' }]\n\
            key = '~/.ssh/lab'\nport = 22\nshared = '/nas'";
        let pool: Pool = toml::from_str(text).unwrap();
        let spec = pool.read("gpu").unwrap();
        assert_eq!((spec.name.as_str(), spec.shared.as_deref()), ("gpu", Some("/nas")));
        assert_eq!((spec.hosts[0].port, spec.hosts[1].port), (Some(22), Some(2222)));
        assert!(spec.hosts.iter().all(|host| host.key.as_deref() == Some("~/.ssh/lab")));
        assert_eq!(spec.hosts[1].address, Some([10, 0, 0, 2].into()));
    }
}
