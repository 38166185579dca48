//! Jobs, their attempts and their gangs.

use std::collections::BTreeSet;

use muster_model::{Job, JobId, JobSpec, Task, Timestamp};
use rusqlite::{OptionalExtension, Result, Transaction, params};

use super::{allocation, array, removal, request};
use crate::change::NewJob;
use crate::error::{Error, doing};
use crate::row::{count, json, optional_json, time, word};

const FIND_SPEC: &str = "SELECT id FROM spec WHERE digest = ?1";
const INSERT_SPEC: &str = "INSERT INTO spec (digest, body, nodes, gpus, command) VALUES (?1, ?2, ?3, ?4, ?5)";
const INSERT_JOB: &str = "
    INSERT INTO job (
        id, name, kind, owner, workspace, spec, parent, array_index, priority, target, bundle, submitted_at,
        state, ending, reason, failed_rank, hold, attempt, retried, eligible_at, generation, exit_code, started_at,
        ended_at, source, display_name
    ) VALUES (
        ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24,
        ?25, ?26
    )";
const UPDATE_JOB: &str = "
    UPDATE job SET
        state = ?3, ending = ?4, reason = ?5, failed_rank = ?6, hold = ?7, attempt = ?8, retried = ?9,
        eligible_at = ?10, generation = ?11, exit_code = ?12, started_at = ?13, ended_at = ?14
    WHERE id = ?1 AND generation = ?2";
const RENAME_JOB: &str = "UPDATE job SET name = ?3 WHERE id = ?1 AND generation = ?2";
const REPRIORITISE: &str = "UPDATE job SET priority = ?3 WHERE id = ?1 AND generation = ?2";
const BEGIN_ATTEMPT: &str = "
    INSERT INTO attempt (job, number, started_at) VALUES (?1, ?2, ?3) ON CONFLICT (job, number) DO NOTHING";
/// Members of a group that came one by one are of several attempts; one that still has somebody goes on.
const END_ATTEMPTS: &str = "
    UPDATE attempt SET ended_at = ?2, reason = ?3, failed_rank = ?4
    WHERE job = ?1 AND ended_at IS NULL AND NOT EXISTS (
        SELECT 1 FROM task WHERE task.job = ?1 AND task.attempt = attempt.number AND task.phase <> 'ended')";
const PUT_TASK: &str = "
    INSERT INTO task (job, attempt, rank, node, devices, phase, address, \"end\", started_at, ended_at, parting)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
    ON CONFLICT (job, attempt, rank) DO UPDATE SET
        node = ?4, devices = ?5, phase = ?6, address = ?7, \"end\" = ?8, started_at = ?9, ended_at = ?10, parting = ?11";
const REMOVE_JOB: &str = "DELETE FROM job WHERE id = ?1 RETURNING spec";
const REMOVE_UNUSED_SPEC: &str =
    "DELETE FROM spec WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM job WHERE spec = ?1)";

/// Stores a new job and all that belongs to it; its number comes back.
pub(super) fn insert(transaction: &Transaction, new: &NewJob) -> Result<u64> {
    let spec = spec_id(transaction, &new.spec)?;
    let job = &new.job;
    transaction.prepare_cached(INSERT_JOB)?.execute(params![
        job.id.as_str(),
        new.name,
        word(&new.spec.kind)?,
        new.owner,
        new.workspace,
        spec,
        new.parent.as_ref().map(JobId::as_str),
        new.index,
        new.spec.priority,
        new.spec.on.to_string(),
        new.bundle.as_ref().map(|id| id.as_str()),
        time(new.submitted_at),
        job.state.as_str(),
        optional_json(job.ending.as_ref())?,
        optional_json(job.reason.as_ref())?,
        job.failed_rank,
        job.hold,
        job.attempt,
        job.retried,
        job.eligible_at.map(time),
        count(job.generation),
        job.exit_code(),
        job.started_at.map(time),
        job.ended_at.map(time),
        optional_json(new.source.as_ref())?,
        new.spec.display_name,
    ])?;
    let seq = transaction.last_insert_rowid().cast_unsigned();
    request::insert(transaction, new)?;
    array::put(transaction, job)?;
    // A job is stored before it is first tried; one that was tried all the same loses nothing.
    write_attempt(transaction, job, &job.ranks(|_| true), new.submitted_at)?;
    Ok(seq)
}

/// Finds or makes the row of a spec.
fn spec_id(transaction: &Transaction, spec: &JobSpec) -> Result<i64> {
    let body = json(spec)?;
    let digest = blake3::hash(body.as_bytes()).to_hex();
    let found =
        transaction.prepare_cached(FIND_SPEC)?.query_row([digest.as_str()], |row| row.get(0)).optional()?;
    if let Some(id) = found {
        return Ok(id);
    }
    let gpus = spec.resources.gpus.as_ref().map(ToString::to_string);
    let row = params![digest.as_str(), body, spec.nodes, gpus, spec.command.to_string()];
    transaction.prepare_cached(INSERT_SPEC)?.execute(row)?;
    Ok(transaction.last_insert_rowid())
}

/// Stores a job that has moved, if the stored one is of the generation it moved from.
pub(super) fn update(
    transaction: &Transaction,
    before_generation: u64,
    job: &Job,
    touched: &[u32],
    at: Timestamp,
) -> Result<(), Error> {
    let changed = update_row(transaction, before_generation, job).map_err(doing("store a job"))?;
    if changed == 0 {
        return Err(Error::Stale { job: job.id.clone() });
    }
    array::put(transaction, job).map_err(doing("store an array"))?;
    write_attempt(transaction, job, touched, at).map_err(doing("store a job's attempt"))
}

fn update_row(transaction: &Transaction, before_generation: u64, job: &Job) -> Result<usize> {
    transaction.prepare_cached(UPDATE_JOB)?.execute(params![
        job.id.as_str(),
        count(before_generation),
        job.state.as_str(),
        optional_json(job.ending.as_ref())?,
        optional_json(job.reason.as_ref())?,
        job.failed_rank,
        job.hold,
        job.attempt,
        job.retried,
        job.eligible_at.map(time),
        count(job.generation),
        job.exit_code(),
        job.started_at.map(time),
        job.ended_at.map(time),
    ])
}

/// Stores a job's new name, if the stored job is of the generation that was renamed.
pub(super) fn rename(
    transaction: &Transaction,
    id: &JobId,
    generation: u64,
    name: &str,
) -> Result<(), Error> {
    let row = params![id.as_str(), count(generation), name];
    let changed = transaction.prepare_cached(RENAME_JOB).and_then(|mut statement| statement.execute(row));
    match changed.map_err(doing("rename a job"))? {
        0 => Err(Error::Stale { job: id.clone() }),
        _ => Ok(()),
    }
}

/// Gives a job another priority, if the stored one is of the generation that this was decided on.
pub(super) fn reprioritise(
    transaction: &Transaction,
    id: &JobId,
    generation: u64,
    priority: u32,
) -> Result<(), Error> {
    let row = params![id.as_str(), count(generation), priority];
    let changed = transaction.prepare_cached(REPRIORITISE).and_then(|mut statement| statement.execute(row));
    match changed.map_err(doing("change a job's priority"))? {
        0 => Err(Error::Stale { job: id.clone() }),
        _ => Ok(()),
    }
}

/// Stores what changed in the gang: the attempts that begin, the tasks, and the attempts that are over.
fn write_attempt(transaction: &Transaction, job: &Job, touched: &[u32], at: Timestamp) -> Result<()> {
    if job.attempt == 0 {
        return Ok(());
    }
    let id = job.id.as_str();
    let tasks = || touched.iter().filter_map(|rank| Some((*rank, job.tasks.get(*rank as usize)?)));
    let begun: BTreeSet<u32> = tasks().map(|(_, task)| task.attempt).chain([job.attempt]).collect();
    for attempt in begun {
        transaction.prepare_cached(BEGIN_ATTEMPT)?.execute(params![id, attempt, time(at)])?;
    }
    for (rank, task) in tasks() {
        put_task(transaction, job, rank, task)?;
    }
    // Only the first write after the end finds it open: what happens to a waiting job later is no part of it.
    if !job.is_under_way() {
        let reason = optional_json(job.reason.as_ref())?;
        let statement = &mut transaction.prepare_cached(END_ATTEMPTS)?;
        statement.execute(params![id, time(at), reason, job.failed_rank])?;
    } else if let Some((_, task)) = tasks().rfind(|(_, task)| task.is_over() && job.policy.independent) {
        // The job goes on; one of its members, which may have been the only one of its attempt, does not.
        let reason = optional_json(task.end.as_ref().and_then(|end| end.failure.as_ref()))?;
        let statement = &mut transaction.prepare_cached(END_ATTEMPTS)?;
        statement.execute(params![id, time(at), reason, None::<u32>])?;
    }
    Ok(())
}

fn put_task(transaction: &Transaction, job: &Job, rank: u32, task: &Task) -> Result<()> {
    transaction.prepare_cached(PUT_TASK)?.execute(params![
        job.id.as_str(),
        task.attempt,
        rank,
        task.placement.node.as_str(),
        json(&task.placement.devices)?,
        word(&task.phase)?,
        optional_json(task.address.as_ref())?,
        optional_json(task.end.as_ref())?,
        task.started_at.map(time),
        task.ended_at.map(time),
        task.parting.as_ref().map(word).transpose()?,
    ])?;
    Ok(())
}

/// Removes a job and all that hangs on it; foreign keys take the rows that name it.
pub(super) fn remove(transaction: &Transaction, id: &JobId, at: Timestamp) -> Result<(), Error> {
    removal::owe(transaction, id, at).map_err(doing("store what nodes have to remove"))?;
    let spec = remove_row(transaction, id).map_err(doing("remove a job"))?;
    match spec {
        Some(spec) => {
            allocation::remove_stray(transaction, id).map_err(doing("remove what a job had"))?;
            remove_unused_spec(transaction, spec).map_err(doing("remove a job's spec"))
        }
        None => Err(Error::NoJob { job: id.clone() }),
    }
}

fn remove_row(transaction: &Transaction, id: &JobId) -> Result<Option<i64>> {
    transaction.prepare_cached(REMOVE_JOB)?.query_row([id.as_str()], |row| row.get(0)).optional()
}

fn remove_unused_spec(transaction: &Transaction, spec: i64) -> Result<()> {
    transaction.prepare_cached(REMOVE_UNUSED_SPEC)?.execute([spec])?;
    Ok(())
}
