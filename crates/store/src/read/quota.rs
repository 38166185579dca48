//! What workspaces and users may have.

use std::collections::BTreeMap;

use muster_model::quota::{UserQuota, WorkspaceQuota};
use rusqlite::{Connection, Result, Row};

use super::Readers;
use crate::error::{self, doing};
use crate::row::Columns;

const WORKSPACES: &str =
    "SELECT workspace, weight, cpu_millis, memory_bytes, gpus, models FROM workspace_quota";
const USERS: &str = "SELECT user, weight, max_running FROM user_quota";

/// What everybody may have, of those of whom something is said.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Quotas {
    /// By the workspace's name.
    pub workspaces: BTreeMap<String, WorkspaceQuota>,
    /// By the user's name; [`muster_model::quota::EVERYBODY`] is whoever is not there.
    pub users: BTreeMap<String, UserQuota>,
}

impl Readers {
    /// What everybody may have.
    pub fn quotas(&self) -> error::Result<Quotas> {
        let reader = self.reader()?;
        quotas(&reader).map_err(doing("read the quotas"))
    }
}

fn quotas(connection: &Connection) -> Result<Quotas> {
    // One moment of both.
    let transaction = connection.unchecked_transaction()?;
    let read = &*transaction;
    Ok(Quotas {
        workspaces: read.prepare_cached(WORKSPACES)?.query_map([], read_workspace)?.collect::<Result<_>>()?,
        users: read.prepare_cached(USERS)?.query_map([], read_user)?.collect::<Result<_>>()?,
    })
}

fn read_workspace(row: &Row) -> Result<(String, WorkspaceQuota)> {
    let columns = &mut Columns::new(row);
    let name = columns.plain()?;
    let quota = WorkspaceQuota {
        weight: columns.plain()?,
        cpu_millis: columns.optional_json()?,
        memory_bytes: columns.optional_json()?,
        gpus: columns.optional_json()?,
        models: columns.json()?,
    };
    Ok((name, quota))
}

fn read_user(row: &Row) -> Result<(String, UserQuota)> {
    let columns = &mut Columns::new(row);
    Ok((columns.plain()?, UserQuota { weight: columns.plain()?, max_running: columns.plain()? }))
}
