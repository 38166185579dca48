//! What the scheduler remembers beyond jobs and nodes.

use std::collections::{BTreeMap, HashMap};

use muster_model::job::State;
use muster_model::{JobId, NodeId, Timestamp};
use rusqlite::{Connection, Result, Row, params};

use super::Readers;
use super::job::words;
use crate::change::UsageRow;
use crate::error::{self, doing};
use crate::row::{Columns, time};

const USAGE: &str = "SELECT workspace, user, mean, at FROM usage";
const LABELS: &str = "SELECT node, key, value FROM label";

/// What nodes are labelled with.
type Labels = HashMap<NodeId, BTreeMap<String, String>>;

impl Readers {
    /// What everybody had used when it was last written down.
    pub fn usage(&self) -> error::Result<Vec<UsageRow>> {
        let reader = self.reader()?;
        usage(&reader).map_err(doing("read what was used"))
    }

    /// What every node is labelled with.
    pub fn labels(&self) -> error::Result<Labels> {
        let reader = self.reader()?;
        labels(&reader).map_err(doing("read the labels of nodes"))
    }

    /// When jobs that are not over were ended for others, since a moment; the oldest first.
    pub fn preempted_since(&self, since: Timestamp) -> error::Result<HashMap<JobId, Vec<Timestamp>>> {
        let reader = self.reader()?;
        preempted_since(&reader, since).map_err(doing("read which jobs made room for others"))
    }
}

fn usage(connection: &Connection) -> Result<Vec<UsageRow>> {
    let read = |row: &Row| {
        let columns = &mut Columns::new(row);
        Ok(UsageRow {
            workspace: columns.plain()?,
            user: Some(columns.plain::<String>()?).filter(|user| !user.is_empty()),
            mean: columns.plain()?,
            at: columns.time()?,
        })
    };
    connection.prepare_cached(USAGE)?.query_map([], read)?.collect()
}

fn labels(connection: &Connection) -> Result<Labels> {
    let read = |row: &Row| {
        let columns = &mut Columns::new(row);
        Ok((columns.parsed()?, columns.plain()?, columns.plain()?))
    };
    let mut labels = Labels::new();
    for row in connection.prepare_cached(LABELS)?.query_map([], read)? {
        let (node, key, value) = row?;
        labels.entry(node).or_default().insert(key, value);
    }
    Ok(labels)
}

fn preempted_since(connection: &Connection, since: Timestamp) -> Result<HashMap<JobId, Vec<Timestamp>>> {
    let sql = format!(
        "SELECT attempt.job, attempt.ended_at FROM job JOIN attempt ON attempt.job = job.id
         WHERE job.state IN ({}) AND attempt.ended_at > ?1 AND attempt.reason ->> '$.code' = 'preempted'
         ORDER BY attempt.ended_at",
        words(State::ALL.iter().filter(|state| !state.is_terminal()))
    );
    let read = |row: &Row| {
        let columns = &mut Columns::new(row);
        Ok((columns.parsed()?, columns.time()?))
    };
    let mut found: HashMap<JobId, Vec<Timestamp>> = HashMap::new();
    for row in connection.prepare_cached(&sql)?.query_map(params![time(since)], read)? {
        let (job, at): (JobId, Timestamp) = row?;
        found.entry(job).or_default().push(at);
    }
    Ok(found)
}
