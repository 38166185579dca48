//! Machines, as every command and face deals with them: named, found, made, waited for.
//!
//! A group of machines is one job; a machine is one of its tasks, `task0.NAME`. What is asked of a group is asked of all of
//! it; one of several that is named is stopped, started and killed alone.

mod member;
mod name;
mod row;
mod wait;

use std::collections::BTreeMap;

use muster_api::model::spec::{Kind, nearest};
use muster_api::model::{JobId, State};
use muster_api::view::{CreateJob, JobDetail, JobSummary, ListJobs, StopJob};
use serde_json::Value;

pub(crate) use self::member::{
    Meant, Member, by_group, kept, kill_one, over, reachable, resume_one, suspend_one, until_one,
};
pub(crate) use self::name::Named;
pub(crate) use self::row::{Row, rows};
pub(crate) use self::wait::{Waited, until, until_ready};
use crate::command::run::idempotency_key;
use crate::error::{Code, Error};
use crate::session::Session;
use crate::spec::Flags;

/// The most a page can have; who has more machines sees them on further pages.
const PAGE: u32 = 1000;

/// Every group that is not over, the oldest first, and only those with these labels.
pub(crate) async fn all(session: &Session, labels: &[String]) -> Result<Vec<JobSummary>, Error> {
    list(session, ListJobs { label: (!labels.is_empty()).then(|| labels.join(",")), ..ListJobs::default() })
        .await
}

async fn list(session: &Session, query: ListJobs) -> Result<Vec<JobSummary>, Error> {
    let unfinished: Vec<&str> =
        State::ALL.into_iter().filter(|state| !state.is_terminal()).map(|state| state.as_str()).collect();
    let (state, kind) = (Some(unfinished.join(",")), Some(Kind::Machine.to_string()));
    let mut query = ListJobs { state, kind, limit: Some(PAGE), ..query };
    let mut jobs = Vec::new();
    loop {
        let page = session.call(async |client| client.jobs(&query).await).await?;
        jobs.extend(page.items);
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            jobs.reverse();
            return Ok(jobs);
        }
    }
}

/// The group of this name, if it is not over.
pub(crate) async fn lookup(session: &Session, name: &str) -> Result<Option<JobSummary>, Error> {
    let found = list(session, ListJobs { name: Some(name.to_owned()), ..ListJobs::default() }).await?;
    Ok(found.into_iter().next())
}

/// The machine that has this name of its own, in a group that is not over: one's own group where others have the name as well.
pub(crate) async fn by_own_name(session: &Session, name: &str) -> Result<Option<Meant>, Error> {
    if name == "last" || name.starts_with(JobId::PREFIX) {
        return Ok(None);
    }
    let query = ListJobs { machine: Some(name.to_owned()), ..ListJobs::default() };
    // A server of an older build knows no such names, and says that it does not know the question.
    let Ok(found) = list(session, query).await else { return Ok(None) };
    let mut machines = Vec::new();
    for job in found {
        let id = job.id.as_str();
        let detail = session.call(async |client| client.job(id).await).await?;
        machines.extend(member::named(&detail, name).map(|rank| Meant { job, rank: Some(rank) }));
    }
    if machines.len() > 1 {
        let mut own = Vec::new();
        for machine in machines {
            if !session.is_of_another(&machine.job.owner).await? {
                own.push(machine);
            }
        }
        machines = own;
    }
    match machines.len() {
        0 | 1 => Ok(machines.pop()),
        _ => {
            let ids: Vec<&str> = machines.iter().map(|machine| machine.job.id.as_str()).collect();
            let message = format!("machines of {} are called `{name}`", ids.join(" and "));
            Err(Error::new(Code::MachineNotFound, message)
                .hint("name one by its group and number: task1.GROUP"))
        }
    }
}

/// A job by its selector, and which of its tasks was named. Where there is no such job, it may be a machine's own name.
pub(crate) async fn job_and_task(
    session: &Session,
    job: &str,
    task: Option<u32>,
) -> Result<(JobDetail, Option<u32>), Error> {
    let not_found = muster_api::Code::JobNotFound.entry().code;
    let error = match session.call(async |client| client.job(job).await).await {
        Err(error) if task.is_none() && error.code() == not_found => error,
        found => return Ok((found?, task)),
    };
    let Some(own) = by_own_name(session, job).await? else { return Err(error) };
    let id = own.job.id.as_str();
    Ok((session.call(async |client| client.job(id).await).await?, own.rank))
}

/// What was named: a group, or one of its machines.
pub(crate) async fn find(session: &Session, named: &Named) -> Result<Meant, Error> {
    let Some(job) = lookup(session, &named.group).await? else {
        let own = match named.rank {
            None => by_own_name(session, &named.group).await?,
            Some(_) => None,
        };
        return match own {
            Some(own) => Ok(own),
            None => Err(missing(session, named).await),
        };
    };
    match named.rank {
        Some(rank) if rank >= job.nodes => {
            let message = format!("there is no {named}; `{}` has {} machines", job.name, job.nodes);
            Err(Error::new(Code::TaskNotFound, message)
                .hint(format!("they are task0 to task{}", job.nodes - 1)))
        }
        rank => Ok(Meant { job, rank }),
    }
}

async fn missing(session: &Session, named: &Named) -> Error {
    let error = Error::new(Code::MachineNotFound, format!("there is no machine `{named}`"));
    let known = all(session, &[]).await.unwrap_or_default();
    let names: Vec<&str> = known.iter().map(|job| job.name.as_str()).collect();
    match nearest(&named.group, &names) {
        Some(near) => error.hint(format!("did you mean `{near}`? `muster machine ls` lists them")),
        None => error,
    }
}

/// The same; one of several is meant alone.
pub(crate) async fn find_meant(session: &Session, named: &Named) -> Result<Meant, Error> {
    let Meant { job, rank } = find(session, named).await?;
    Ok(Meant { rank: rank.filter(|_| job.nodes > 1), job })
}

/// Gives a group another name, or one machine of several a name of its own. What was renamed.
pub(crate) async fn rename(session: &Session, old: &Named, new: &Named) -> Result<Meant, Error> {
    let Meant { job, rank } = find_meant(session, old).await?;
    let id = job.id.as_str();
    let job = match rank {
        Some(rank) => {
            let name = new.to_string();
            session.call(async |client| client.rename_task(id, rank, &name).await).await?
        }
        None if new.rank.is_some() && job.nodes > 1 => {
            let message = format!("{new} is one machine, and {} are to be renamed", job.nodes);
            return Err(Error::new(Code::Usage, message).hint(format!("name a group: {}", new.group)));
        }
        None => session.call(async |client| client.rename_job(id, &new.group).await).await?,
    };
    Ok(Meant { job, rank })
}

/// Makes a group. The flags are those that said what it is to be, for errors in the user's words.
pub(crate) async fn create(
    session: &Session,
    flags: &Flags,
    spec: Value,
    environment: Option<BTreeMap<String, String>>,
) -> Result<JobDetail, Error> {
    let create = CreateJob { spec, bundle: None, source: None, environment };
    let key = idempotency_key()?;
    session
        .call(async |client| {
            client.create_job(&create, &key).await.map_err(|error| flags.in_users_words(error))
        })
        .await
}

/// Whoever asked for several machines wants all of them: a new group that lacks one is given back, and said why.
pub(crate) async fn all_or_none(session: &Session, job: &JobDetail) -> Result<(), Error> {
    let Some(rank) = over(job).into_iter().next() else { return Ok(()) };
    kill(session, job.summary.id.as_str()).await?;
    let lacking = Member::of(job, rank);
    let message =
        format!("{} could not be had, and so the others were given back: {}", lacking.name, lacking.words());
    Err(Error::new(Code::TaskNotRunning, message)
        .hint(format!("`muster events {}` says more", job.summary.id)))
}

/// Parks a group; one that is parked already is left as it is.
pub(crate) async fn suspend(session: &Session, id: &str) -> Result<JobSummary, Error> {
    session.call(async |client| client.suspend_job(id).await).await
}

/// Brings a group back; one that is there already is left as it is, and one that is being parked is waited for. Machines
/// that are not there, of a group that is, are [started](start_rest) one by one.
pub(crate) async fn resume(session: &Session, id: &str) -> Result<JobSummary, Error> {
    until(session, id, |state| state != State::Stopping).await?;
    session.call(async |client| client.resume_job(id).await).await
}

/// Starts those machines of a group that do not run, and waits for them. Every one is tried, and the first failure told.
pub(crate) async fn start_rest(session: &Session, id: &str, wait: bool) -> Result<(), Error> {
    let job = session.call(async |client| client.job(id).await).await?;
    let (mut started, mut failure) = (Vec::new(), None);
    for rank in over(&job) {
        match resume_one(session, id, rank).await {
            Ok(_) => started.push(rank),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    for rank in started.into_iter().filter(|_| wait) {
        let up = until_one(session, id, rank, |state| state != State::Starting).await?;
        failure = failure.or(up.must_run().err());
    }
    failure.map_or(Ok(()), Err)
}

/// Ends a group for good.
pub(crate) async fn kill(session: &Session, id: &str) -> Result<JobSummary, Error> {
    let how = StopJob::default();
    session
        .call(async |client| match client.stop_job(id, &how).await {
            Err(error) if error.code() == Some(muster_api::Code::InvalidState) => {
                Ok(client.job(id).await?.summary)
            }
            other => other,
        })
        .await
}
