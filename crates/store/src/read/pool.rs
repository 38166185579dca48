//! Pools, their hosts, and which nodes are drained.

use std::collections::BTreeSet;

use muster_model::NodeId;
use muster_model::pool::{Host, HostSpec, Pool};
use rusqlite::{Connection, Result, Row};

use super::Readers;
use crate::error::{self, doing};
use crate::row::Columns;

const POOLS: &str = "SELECT name, shared, configured FROM pool ORDER BY name";
const HOSTS: &str = "SELECT pool, node, destination, port, key, address FROM host ORDER BY seq";
const DRAINED: &str = "SELECT node FROM drain";

impl Readers {
    /// Every pool with its hosts, by name.
    pub fn pools(&self) -> error::Result<Vec<Pool>> {
        let reader = self.reader()?;
        pools(&reader).map_err(doing("read the pools"))
    }

    /// The nodes that are to get no new tasks.
    pub fn drained(&self) -> error::Result<BTreeSet<NodeId>> {
        let reader = self.reader()?;
        drained(&reader).map_err(doing("read which nodes are drained"))
    }
}

fn pools(connection: &Connection) -> Result<Vec<Pool>> {
    let mut pools: Vec<Pool> =
        connection.prepare_cached(POOLS)?.query_map([], read_pool)?.collect::<Result<_>>()?;
    for row in connection.prepare_cached(HOSTS)?.query_map([], read_host)? {
        let (name, host) = row?;
        if let Some(pool) = pools.iter_mut().find(|pool| pool.name == name) {
            pool.hosts.push(host);
        }
    }
    Ok(pools)
}

fn read_pool(row: &Row) -> Result<Pool> {
    let columns = &mut Columns::new(row);
    Ok(Pool {
        name: columns.plain()?,
        shared: columns.plain()?,
        configured: columns.plain()?,
        hosts: Vec::new(),
    })
}

fn read_host(row: &Row) -> Result<(String, Host)> {
    let columns = &mut Columns::new(row);
    let pool = columns.plain()?;
    let node = columns.parsed()?;
    let spec = HostSpec {
        destination: columns.plain()?,
        port: columns.plain()?,
        key: columns.plain()?,
        address: columns.optional_parsed()?,
    };
    Ok((pool, Host { node, spec }))
}

fn drained(connection: &Connection) -> Result<BTreeSet<NodeId>> {
    let mut statement = connection.prepare_cached(DRAINED)?;
    statement.query_map([], |row| Columns::new(row).parsed())?.collect()
}
