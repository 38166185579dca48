//! Pools, their hosts, and which nodes are drained.

use muster_model::pool::Pool;
use muster_model::{NodeId, Timestamp};
use rusqlite::{Result, Transaction, params};

use crate::row::time;

const PUT_POOL: &str = "
    INSERT INTO pool (name, shared, configured) VALUES (?1, ?2, ?3)
    ON CONFLICT (name) DO UPDATE SET shared = ?2, configured = ?3";
const REMOVE_POOL: &str = "DELETE FROM pool WHERE name = ?1";
const REMOVE_HOSTS: &str = "DELETE FROM host WHERE pool = ?1";
const INSERT_HOST: &str = "
    INSERT INTO host (node, pool, destination, port, key, address) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
const REMOVE_NODE: &str = "DELETE FROM node WHERE id = ?1";
const DRAIN: &str = "INSERT INTO drain (node, at) VALUES (?1, ?2) ON CONFLICT (node) DO NOTHING";
const UNDRAIN: &str = "DELETE FROM drain WHERE node = ?1";

/// Stores a pool as it is now. Its hosts are written anew, so that their order is the one they have now.
pub(super) fn put(transaction: &Transaction, pool: &Pool) -> Result<()> {
    transaction.prepare_cached(PUT_POOL)?.execute(params![pool.name, pool.shared, pool.configured])?;
    transaction.prepare_cached(REMOVE_HOSTS)?.execute([&pool.name])?;
    let mut insert = transaction.prepare_cached(INSERT_HOST)?;
    for host in &pool.hosts {
        let spec = &host.spec;
        let address = spec.address.map(|address| address.to_string());
        insert.execute(params![
            host.node.as_str(),
            pool.name,
            spec.destination,
            spec.port,
            spec.key,
            address
        ])?;
    }
    Ok(())
}

/// Forgets a pool; what is known of its nodes is forgotten apart from it.
pub(super) fn remove(transaction: &Transaction, name: &str) -> Result<()> {
    transaction.prepare_cached(REMOVE_POOL)?.execute([name])?;
    Ok(())
}

/// Forgets a node that is nobody's any more.
pub(super) fn remove_node(transaction: &Transaction, node: &NodeId) -> Result<()> {
    transaction.prepare_cached(REMOVE_NODE)?.execute([node.as_str()])?;
    transaction.prepare_cached(UNDRAIN)?.execute([node.as_str()])?;
    super::schedule::put_labels(transaction, node, &Default::default())
}

/// Stores whether a node is drained, and since when.
pub(super) fn drain(transaction: &Transaction, node: &NodeId, since: Option<Timestamp>) -> Result<()> {
    match since {
        Some(at) => transaction.prepare_cached(DRAIN)?.execute(params![node.as_str(), time(at)])?,
        None => transaction.prepare_cached(UNDRAIN)?.execute([node.as_str()])?,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use muster_model::pool::{HostSpec, Pool, PoolSpec};

    use crate::change::Change;
    use crate::fixture::{Fixture, at};

    fn pool(name: &str, destinations: &[&str]) -> Pool {
        let host = |destination: &&str| HostSpec {
            destination: (*destination).into(),
            port: Some(2222),
            key: Some("/key".into()),
            address: Some([10, 0, 0, 1].into()),
        };
        let hosts = destinations.iter().map(host).collect();
        Pool::new(PoolSpec { name: name.into(), hosts, shared: Some("/nas".into()) }, None, name == "b")
    }

    #[test]
    fn pools_come_back_as_they_were_put_in_their_order() {
        let mut store = Fixture::new();
        let (first, other) = (pool("a", &["z", "y"]), pool("b", &[]));
        store.writer.commit(&[&other, &first].map(|pool| Change::Pool(pool.clone()))).unwrap();
        let store = &mut store.reopen();
        assert_eq!(store.readers.pools().unwrap(), [first, other.clone()]);
        let changed = pool("a", &["x", "z", "w"]);
        store.writer.commit(&[Change::Pool(changed.clone())]).unwrap();
        assert_eq!(store.readers.pools().unwrap(), [changed, other]);
        store.writer.commit(&[Change::RemovePool("a".into())]).unwrap();
        assert_eq!((store.readers.pools().unwrap().len(), store.count("host")), (1, 0));
    }

    #[test]
    fn a_node_is_drained_until_it_is_not_or_goes() {
        let mut store = Fixture::new();
        let node: muster_model::NodeId = "node_a.z".parse().unwrap();
        let drain = |since| Change::Drain { node: node.clone(), since };
        store.writer.commit(&[drain(Some(at(1))), drain(Some(at(2)))]).unwrap();
        assert!(store.readers.drained().unwrap().contains(&node));
        store.writer.commit(&[drain(None)]).unwrap();
        assert_eq!(store.readers.drained().unwrap().len(), 0);
        store.writer.commit(&[drain(Some(at(1))), Change::RemoveNode(node.clone())]).unwrap();
        assert_eq!(store.count("drain"), 0);
    }
}
