//! From what a person types to the job they mean.

use muster_model::{JobId, State, display_name};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Result, Row, params_from_iter};

use super::Readers;
use super::job::words;
use super::sight::Sight;
use crate::error::{self, doing};
use crate::row::Columns;

/// Which job a selector means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// This one.
    One(JobId),
    /// None at all.
    None,
    /// Any of these, with their names: the first few.
    Many(Vec<(JobId, String)>),
}

/// As many candidates help a person choose; more are noise.
const MOST_CANDIDATES: usize = 10;

impl Readers {
    /// The job meant by `last`, an id, a beginning of an id that starts with `job_`, a name (the newest job of that
    /// name that is not over, else the newest), a display name (the one job of it that is not over, else the only one), or a
    /// beginning of an id without `job_`, tried in this order: a name someone chose is meant before the letters an id
    /// happens to begin with. What is out of sight is not there. Where several people share a server, `own` is who asks:
    /// `last` is a job of theirs, and so is a name that they have a job of.
    pub fn resolve(&self, selector: &str, sight: &Sight, own: Option<&str>) -> error::Result<Resolution> {
        let reader = self.reader()?;
        resolve(&reader, selector, sight, own).map_err(doing("find a job"))
    }
}

fn resolve(connection: &Connection, selector: &str, sight: &Sight, own: Option<&str>) -> Result<Resolution> {
    if selector == "last" {
        let id = Wanted { name: None, owner: own, sight }.newest(connection, "")?;
        return Ok(id.map_or(Resolution::None, Resolution::One));
    }
    if selector.starts_with(JobId::PREFIX) {
        return by_prefix(connection, selector, sight);
    }
    if let Some(id) = by_name(connection, selector, sight, own)? {
        return Ok(Resolution::One(id));
    }
    match by_display_name(connection, selector, sight, own)? {
        Resolution::None => by_prefix(connection, &format!("{}{selector}", JobId::PREFIX), sight),
        found => Ok(found),
    }
}

fn by_name(connection: &Connection, name: &str, sight: &Sight, own: Option<&str>) -> Result<Option<JobId>> {
    let unfinished = words(State::ALL.iter().filter(|state| !state.is_terminal()));
    let transaction = connection.unchecked_transaction()?;
    // Somebody's own first; then anybody's.
    for owner in own.map(Some).into_iter().chain([None]) {
        let wanted = Wanted { name: Some(name), owner, sight };
        for fits in [format!("+state IN ({unfinished})"), String::new()] {
            if let Some(id) = wanted.newest(&transaction, &fits)? {
                return Ok(Some(id));
            }
        }
    }
    Ok(None)
}

/// Several jobs may have one display name, and none of them is meant more than the others: where more than one is not over, or
/// more than one has ended, the user says which.
fn by_display_name(
    connection: &Connection,
    text: &str,
    sight: &Sight,
    own: Option<&str>,
) -> Result<Resolution> {
    // No display name is longer, in any form that it may be typed in.
    if text.len() > 4 * display_name::MAX_BYTES {
        return Ok(Resolution::None);
    }
    let unfinished = words(State::ALL.iter().filter(|state| !state.is_terminal()));
    let transaction = connection.unchecked_transaction()?;
    for owner in own.map(Some).into_iter().chain([None]) {
        let mut parameters = vec![Value::from(display_name::normalized(text))];
        let mut conditions = vec!["display_name = ?1".to_owned()];
        if let Some(owner) = owner {
            parameters.push(Value::from(owner.to_owned()));
            conditions.push("+owner = ?2".to_owned());
        }
        conditions.extend(sight.condition("+workspace", &mut parameters));
        for fits in [format!("+state IN ({unfinished})"), "1".to_owned()] {
            let sql = format!(
                "SELECT id, name FROM job WHERE {} AND {fits} ORDER BY seq DESC LIMIT {MOST_CANDIDATES}",
                conditions.join(" AND ")
            );
            let mut statement = transaction.prepare_cached(&sql)?;
            let found =
                candidates(statement.query_map(params_from_iter(parameters.iter()), read_candidate)?)?;
            if found != Resolution::None {
                return Ok(found);
            }
        }
    }
    Ok(Resolution::None)
}

/// Jobs of a name or of all, of a person or of all, as far as they can be seen.
struct Wanted<'a> {
    name: Option<&'a str>,
    owner: Option<&'a str>,
    sight: &'a Sight,
}

impl Wanted<'_> {
    /// The newest of them that fits.
    fn newest(&self, connection: &Connection, fits: &str) -> Result<Option<JobId>> {
        // One index is used, the narrowest: that of a name, of a person, of a workspace.
        let (owner, workspace) = match (self.name, self.owner) {
            (Some(_), _) => ("+owner", "+workspace"),
            (None, Some(_)) => ("owner", "+workspace"),
            (None, None) => ("owner", "workspace"),
        };
        let mut parameters: Vec<Value> = Vec::new();
        let mut conditions = Vec::new();
        for (column, value) in [("name", self.name), (owner, self.owner)] {
            if let Some(value) = value {
                parameters.push(Value::from(value.to_owned()));
                conditions.push(format!("{column} = ?{}", parameters.len()));
            }
        }
        conditions.extend(Some(fits.to_owned()).filter(|fits| !fits.is_empty()));
        conditions.extend(self.sight.condition(workspace, &mut parameters));
        let filter =
            if conditions.is_empty() { String::new() } else { format!("WHERE {}", conditions.join(" AND ")) };
        let sql = format!("SELECT id FROM job {filter} ORDER BY seq DESC LIMIT 1");
        connection.prepare_cached(&sql)?.query_row(params_from_iter(parameters), read_id).optional()
    }
}

fn by_prefix(connection: &Connection, prefix: &str, sight: &Sight) -> Result<Resolution> {
    let rest = prefix.strip_prefix(JobId::PREFIX).unwrap_or_default();
    // `job_` alone names nothing, and other letters are in no id.
    if rest.is_empty() || !rest.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Ok(Resolution::None);
    }
    let mut parameters = vec![Value::from(prefix.to_owned()), Value::from(MOST_CANDIDATES as i64)];
    let seen =
        sight.condition("+workspace", &mut parameters).map_or_else(String::new, |seen| format!("AND {seen}"));
    // Ids are letters and digits, which `~` comes after.
    let sql =
        format!("SELECT id, name FROM job WHERE id >= ?1 AND id < ?1 || '~' {seen} ORDER BY id LIMIT ?2");
    let mut statement = connection.prepare_cached(&sql)?;
    candidates(statement.query_map(params_from_iter(parameters), read_candidate)?)
}

fn candidates(rows: impl Iterator<Item = Result<(JobId, String)>>) -> Result<Resolution> {
    let mut found: Vec<(JobId, String)> = rows.collect::<Result<_>>()?;
    Ok(match found.len() {
        0 => Resolution::None,
        1 => Resolution::One(found.remove(0).0),
        _ => Resolution::Many(found),
    })
}

fn read_id(row: &Row) -> Result<JobId> {
    Columns::new(row).parsed()
}

fn read_candidate(row: &Row) -> Result<(JobId, String)> {
    let columns = &mut Columns::new(row);
    Ok((columns.parsed()?, columns.plain()?))
}
