//! What nodes have yet to remove.

use muster_model::{JobId, NodeId, Timestamp};
use rusqlite::{Result, Transaction, params};

use crate::row::time;

/// Other schedulers are told on their own, and their nodes go with what they ran.
const OWE: &str = "
    INSERT OR IGNORE INTO removal (node, job, owed_at)
    SELECT DISTINCT task.node, task.job, ?2 FROM task CROSS JOIN node ON node.id = task.node
    WHERE task.job = ?1 AND NOT EXISTS (SELECT 1 FROM allocation WHERE allocation.job = ?1)";
const CONFIRM: &str = "DELETE FROM removal WHERE node = ?1 AND job = ?2";

/// Every node that ran a task of a job owes its removal. The job's tasks are still there.
pub(super) fn owe(transaction: &Transaction, job: &JobId, at: Timestamp) -> Result<()> {
    transaction.prepare_cached(OWE)?.execute(params![job.as_str(), time(at)])?;
    Ok(())
}

/// A node has removed all that it had of a job.
pub(super) fn confirm(transaction: &Transaction, node: &NodeId, job: &JobId) -> Result<()> {
    transaction.prepare_cached(CONFIRM)?.execute([node.as_str(), job.as_str()])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use muster_model::{JobId, NodeId};

    use crate::change::{Change, NodeRow};
    use crate::fixture::{Fixture, admit, at, new_job};
    use crate::read::removal::OwedRemovals;

    fn node(id: &str) -> NodeRow {
        NodeRow {
            id: id.parse().unwrap(),
            engine: "ssh".into(),
            name: "ssh/p".into(),
            host: id.into(),
            incarnation: None,
            capacity: Default::default(),
            token_hash: None,
            last_seen_at: None,
        }
    }

    /// A job of two tasks that is gone again, since the moment 2.
    fn ran_and_removed(store: &mut Fixture) -> JobId {
        let mut job = store.add(new_job(1)).job;
        store.apply(&mut job, admit(2), at(1));
        store.writer.commit(&[Change::RemoveJob { job: job.id.clone(), at: at(2) }]).unwrap();
        job.id
    }

    fn owed(store: &Fixture, node: &NodeId) -> usize {
        store.readers.removals(node, None, 10).unwrap().len()
    }

    #[test]
    fn a_removal_is_owed_by_the_nodes_that_ran_the_job_until_they_confirm_it() {
        let mut store = Fixture::new();
        let nodes = ["node_n0", "node_n1", "node_other"].map(node);
        let puts = nodes.clone().map(|node| Change::Node(Box::new(node)));
        store.writer.commit(&puts).unwrap();
        let job = ran_and_removed(&mut store);
        let mut store = store.reopen();
        assert_eq!(nodes.each_ref().map(|node| owed(&store, &node.id)), [1, 1, 0]);
        let owed_by = |node: &NodeRow| OwedRemovals { node: node.id.clone(), jobs: 1, since: Some(at(2)) };
        assert_eq!(store.readers.owed_removals().unwrap(), [owed_by(&nodes[0]), owed_by(&nodes[1])]);
        let first = nodes[0].id.clone();
        assert_eq!(store.readers.removals(&first, None, 10).unwrap(), std::slice::from_ref(&job));
        assert_eq!(store.readers.removals(&first, Some(&job), 10).unwrap(), []);
        store.writer.commit(&[Change::ConfirmRemoval { node: first, job }]).unwrap();
        assert_eq!(nodes.each_ref().map(|node| owed(&store, &node.id)), [0, 1, 0]);
    }

    #[test]
    fn a_node_that_goes_owes_nothing() {
        let mut store = Fixture::new();
        let ran = node("node_n0");
        store.writer.commit(&[Change::Node(Box::new(ran.clone()))]).unwrap();
        ran_and_removed(&mut store);
        assert_eq!(store.count("removal"), 1);
        store.writer.commit(&[Change::RemoveNode(ran.id)]).unwrap();
        assert_eq!(store.count("removal"), 0);
    }
}
