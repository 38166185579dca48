//! Jobs: make, list, show, stop, remove, and why.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use muster_api::problem::{Code, Problem};
use muster_api::view::{
    CreateJob, CreateJobQuery, JobDetail, JobPage, JobSummary, ListJobs, Preview, RenameJob, StopJob, Why,
};
use muster_bundle::chunk;
use muster_engine::{Accounts, Class, Error, Family, Gang, GangChange};
use muster_model::JobId;
use muster_model::job::Event;
use muster_model::spec::{After, FieldCode, FieldError, JobSpec, Kind, Target, is_label, nearest};
use muster_store::{JobFilter, JobRow, Readers, Resolution, Sight};
use tokio::time::timeout;

use super::describe::{Always, Conflicts, OnJob, Reads, Takes};
use super::failure::{self, Failure, Json, Params, TheJob};
use super::limits;
use super::metrics::add_present;
use super::pass_on::pass_on;
use crate::accounts::Caller;
use crate::audit;
use crate::core::{DEFAULT_WORKSPACE, Input, Question, Submission, account_of, internal};
use crate::keeper::{silent, words};
use crate::state::Shared;
use crate::usage::CodeCharge;
use crate::{bundle, disk, upload, usage, view};

/// Jobs on a page when the caller does not say.
const DEFAULT_PAGE: u32 = 100;
/// Jobs whose names a mistyped one is compared with.
const RECENT: u32 = 200;
/// The longest key a client may choose.
const MAX_KEY: usize = 255;
/// How long another scheduler may take to say what it would refuse: whoever submits waits for it.
const CHECK: Duration = Duration::from_secs(2);
/// How many mistakes of one kind are named one by one.
const MAX_REPORTED: usize = 20;

/// Make a job.
#[utoipa::path(post, path = "/api/v1/jobs", tag = "jobs", operation_id = "create_job", params(CreateJobQuery,
    ("Idempotency-Key" = Option<String>, Header, description = "Repeating a request with the same key makes one job.")),
    request_body = CreateJob,
    responses((status = 201, body = JobDetail), (status = 200, body = Preview, description = "dry run"),
        Always, Reads, Takes, Conflicts))]
pub(super) async fn create(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Params(query): Params<CreateJobQuery>,
    headers: HeaderMap,
    Json(request): Json<CreateJob>,
) -> Result<Response, Failure> {
    let key = idempotency_key(&headers)?.map(|key| own_key(&shared, &caller, key));
    let digest = key.is_some().then(|| digest(&request));
    let mut spec = checked(&shared, &request)?;
    limits::enter(&shared, &caller, &request, &mut spec)?;
    spec.after = name_after(&shared, &caller, std::mem::take(&mut spec.after)).await?;
    let trouble = check_there(&shared, &caller.name, &spec, key.clone()).await?;
    if query.dry_run {
        audit::skip_success();
        let name = spec.name.clone().unwrap_or_else(|| spec.default_name());
        shared.core.ask(Input::Settled).await?;
        let asked = shared
            .core
            .ask(|reply| Input::Preview(Box::new(spec.clone()), caller.name.clone(), reply))
            .await?;
        let workspace = spec.workspace.as_deref().unwrap_or(DEFAULT_WORKSPACE);
        let mut why = answer(&shared, &caller, workspace, asked).await?;
        if let Some(trouble) = trouble {
            why.constraint = Some(format!("{} does not answer now: {trouble}", spec.on));
        }
        return Ok(Json(Preview { launch: view::launch(&spec), spec, name, why }).into_response());
    }
    let workspace = spec.workspace.clone().unwrap_or_else(|| DEFAULT_WORKSPACE.to_owned());
    check_storage(&shared, &workspace).await?;
    let code = match &request.bundle {
        Some(id) => Some(bundle::check(&shared, &caller, id.clone()).await?),
        None => None,
    };
    check_source(&shared, &caller, &request).await?;
    let takes_environment = takes_environment(&shared, &spec);
    let submission = Submission {
        spec,
        owner: caller.name.clone(),
        bundle: request.bundle,
        source: request.source,
        environment: request.environment.filter(|_| takes_environment),
        idempotency: key.zip(digest),
        sight: caller.rights.sight(),
    };
    let mut charge = CodeCharge::new(&shared, &workspace, code);
    let made = submit(&shared, submission).await;
    if made.is_err() {
        charge.cancel();
    }
    drop(charge);
    let id = made?;
    let detail = read(&shared, move |readers| show_one(readers, &id)).await?;
    Ok((StatusCode::CREATED, Json(detail)).into_response())
}

/// Whether a job is to have its submitter's variables. On a cluster of another site, they would mean nothing.
fn takes_environment(shared: &Shared, spec: &JobSpec) -> bool {
    let engine = shared.engines.get(spec.on.engine());
    engine.is_some_and(|engine| {
        let capabilities = engine.capabilities();
        capabilities.family == Family::Fleet || capabilities.submitter_environment
    })
}

/// The jobs that one waits for, by their ids: names may mean others later. Nobody waits for what they cannot see.
async fn name_after(shared: &Shared, caller: &Caller, after: Vec<After>) -> Result<Vec<After>, Problem> {
    if after.is_empty() {
        return Ok(after);
    }
    let (sight, own) = (caller.rights.sight(), shared.accounts.as_ref().map(|_| caller.name.clone()));
    let named = move |readers: &Readers| {
        let mut errors = Vec::new();
        let mut all = Vec::new();
        for (index, after) in after.into_iter().enumerate() {
            match resolve(readers, &after.job, &sight, own.as_deref()) {
                Ok(id) => all.push(After { job: id.to_string(), ..after }),
                Err(problem) => {
                    let message = [Some(problem.detail), problem.hint].into_iter().flatten();
                    let message = message.collect::<Vec<_>>().join("; ");
                    errors.push(FieldError::new(format!("after[{index}]"), FieldCode::InvalidValue, message));
                }
            }
        }
        if errors.is_empty() { Ok(all) } else { Err(Problem::fields(errors)) }
    };
    read(shared, named).await
}

/// Nobody gets somebody else's job for a key that they happen to share.
fn own_key(shared: &Shared, caller: &Caller, key: String) -> String {
    if shared.accounts.is_some() { format!("{}/{key}", caller.name) } else { key }
}

/// A server that has just started knows its nodes by what they had the last time. Whoever asks for more than that is looked
/// at again once they have spoken.
async fn submit(shared: &Shared, submission: Submission) -> Result<JobId, Problem> {
    let ask = |submission| shared.core.ask(|reply| Input::Submit(Box::new(submission), reply));
    let too_much =
        |problem: &Problem| problem.errors.iter().any(|error| error.code == FieldCode::NotEnoughResources);
    match ask(submission.clone()).await {
        Err(problem) if too_much(&problem) => {
            shared.core.ask(Input::Settled).await?;
            ask(submission).await
        }
        answer => answer,
    }
}

/// Everything about a request that can be checked without looking at other jobs.
fn checked(shared: &Shared, request: &CreateJob) -> Result<JobSpec, Problem> {
    let mut spec = JobSpec::from_value(request.spec.clone()).map_err(Problem::fields)?;
    // First, since the rest reads the command word by word.
    let too_long = limits::check_lengths(request, &spec);
    if !too_long.is_empty() {
        return Err(Problem::fields(too_long));
    }
    muster_launch::settle(&mut spec);
    let mut errors = muster_launch::check(&spec);
    match shared.engines.get(spec.on.engine()) {
        Some(engine) => {
            let capabilities = engine.capabilities();
            errors.extend(capabilities.check(&spec));
            // What is in the output directory can be had after the end wherever a job ran.
            if !capabilities.keeps_files && spec.outputs.is_empty() && spec.kind != Kind::Machine {
                spec.outputs.push("@output/**".into());
            }
        }
        None => {
            let names = shared.engines.names().join(", ");
            let remedy = match &spec.on {
                Target::Slurm(_) => "; a [slurm] section in config.toml makes one",
                Target::Kubernetes(_) => "; a kubeconfig, or a [k8s] section in config.toml, makes one",
                Target::Local => "; `--on`, or `on` of a job file, says where else to run",
                Target::Ssh(_) => "",
            };
            let message = format!("this server has no {} engine; it has: {names}{remedy}", spec.on.engine());
            errors.push(FieldError::new("on", FieldCode::NotSupported, message));
        }
    }
    let wrong = request
        .environment
        .iter()
        .flatten()
        .filter(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0'));
    for (name, _) in wrong.take(MAX_REPORTED) {
        let shown: String = name.chars().take(60).collect();
        let message = format!(
            "`{shown}` cannot be a variable: no name is empty or has a `=`, and nothing has a NUL in it"
        );
        errors.push(FieldError::new("environment", FieldCode::InvalidValue, message));
    }
    let unsupported =
        [("endpoints", !spec.endpoints.is_empty(), "endpoints are not available on this server")];
    errors.extend(
        unsupported
            .iter()
            .filter(|(_, asked, _)| *asked)
            .map(|(field, _, why)| FieldError::new(*field, FieldCode::NotSupported, *why)),
    );
    if spec.kind == Kind::Machine && request.bundle.is_some() {
        let message = "a machine runs nothing of its own, and so has no code; leave it out";
        errors.push(FieldError::new("bundle", FieldCode::NotSupported, message));
    }
    if errors.is_empty() { Ok(spec) } else { Err(Problem::fields(errors)) }
}

/// What another scheduler would refuse comes back as what is wrong with the request. One that does not answer in time, for the
/// reason that is returned, may still refuse the job when it is given it.
async fn check_there(
    shared: &Shared,
    owner: &str,
    spec: &JobSpec,
    key: Option<String>,
) -> Result<Option<String>, Problem> {
    let engine = shared.engines.get(spec.on.engine());
    let Some(engine) = engine.filter(|one| one.capabilities().family == Family::Delegating) else {
        return Ok(None);
    };
    if let Some(key) = key {
        // What was made once was taken then. Asked again, the other scheduler might have no room for a second one.
        let made = move |readers: &Readers| readers.idempotent(&key).map_err(|error| internal(&error));
        if read(shared, made).await?.is_some() {
            return Ok(None);
        }
    }
    let name = spec.name.clone().unwrap_or_else(|| spec.default_name());
    let workspace = spec.workspace.as_deref().unwrap_or(DEFAULT_WORKSPACE);
    let volumes = shared.volumes.iter().filter(|_| engine.capabilities().volumes && !spec.without_volumes);
    let volumes = volumes.map(|volume| volume.given(owner, workspace)).collect();
    let gang = Gang { name, place: spec.on.place().to_owned(), spec: Arc::new(spec.clone()), volumes };
    let late = |_| Err(Error::retryable("ask what it would refuse", silent()));
    let account = account_of(shared.accounts.as_deref(), &shared.engines, &shared.owner, owner, &spec.on);
    let account = account.filter(|_| engine.capabilities().accounts == Accounts::Owners);
    match timeout(CHECK, engine.check(&gang, account.as_deref())).await.unwrap_or_else(late) {
        Ok(errors) if errors.is_empty() => Ok(None),
        Ok(errors) => Err(Problem::fields(errors)),
        Err(error) if error.class == Class::Terminal => {
            Err(Problem::fields(vec![FieldError::new("on", FieldCode::NotSupported, words(&error))]))
        }
        Err(error) => {
            tracing::debug!(on = %spec.on, error = words(&error), "what it would refuse is not known");
            Ok(Some(words(&error)))
        }
    }
}

/// That there is room for what a job brings: on the server's disk, and for its workspace.
async fn check_storage(shared: &Arc<Shared>, workspace: &str) -> Result<(), Problem> {
    let home = Path::new(&shared.home);
    shared.floor.check().map_err(|error| disk::problem("the job cannot be kept", home, &error))?;
    usage::check(shared, workspace).await
}

/// The difference to the commit must have been sent, as the code was; then it stays for as long as the job does. A tenant
/// has sent it, or may see a job that has it beside the same code.
async fn check_source(shared: &Arc<Shared>, caller: &Caller, request: &CreateJob) -> Result<(), Problem> {
    let diff = request.source.as_ref().and_then(|source| source.diff.clone());
    let Some(diff) = diff else { return Ok(()) };
    let (store, tenant) = (shared.clone(), upload::tenant(shared, caller));
    let (user, sight, code) = (caller.name.clone(), caller.rights.sight(), request.bundle.clone());
    let missing = bundle::with_chunks(shared, move || {
        let tenant = match (tenant, &code) {
            (Some(tenant), Some(code)) => {
                let is_seen = store.readers.has_code(code, Some(&diff), &user, &sight);
                (!is_seen.map_err(io::Error::other)?).then_some(tenant)
            }
            (tenant, _) => tenant,
        };
        let missing = bundle::missing_for(&store, std::iter::once(chunk::digest(&diff)), tenant.as_deref())?;
        store.chunks.settle()?;
        Ok(missing)
    });
    match missing.await?.first() {
        Some(diff) => {
            let message = format!("{diff} is not here; send it first with POST /api/v1/chunks");
            Err(Problem::fields(vec![FieldError::new("source.diff", FieldCode::Required, message)]))
        }
        None => Ok(()),
    }
}

pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| !key.is_empty() && key.len() <= MAX_KEY);
    let problem = || {
        Problem::new(
            Code::InvalidRequest,
            format!("the Idempotency-Key must be 1 to {MAX_KEY} plain characters"),
        )
    };
    key.map(|key| Some(key.to_owned())).ok_or_else(problem)
}

fn digest(request: &CreateJob) -> String {
    blake3::hash(&serde_json::to_vec(request).unwrap_or_default()).to_hex().to_string()
}

/// List jobs, newest first.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs", operation_id = "list_jobs", params(ListJobs),
    responses((status = 200, body = JobPage), Always, Reads))]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Params(query): Params<ListJobs>,
) -> Result<Json<JobPage>, Failure> {
    let limit = query.limit.unwrap_or(DEFAULT_PAGE);
    let filter = JobFilter { sight: caller.rights.sight(), ..filter(query)? };
    let rows =
        read(&shared, move |readers| readers.jobs(&filter, limit + 1).map_err(|error| internal(&error)))
            .await?;
    let more = rows.len() > limit as usize;
    let next_cursor = rows.get(limit as usize - 1).filter(|_| more).map(|row| row.seq.to_string());
    let items: Vec<JobSummary> = rows.into_iter().take(limit as usize).map(view::summary).collect();
    Ok(Json(JobPage { items, next_cursor }))
}

fn filter(query: ListJobs) -> Result<JobFilter, Problem> {
    let mut errors = Vec::new();
    let mut states = Vec::new();
    for state in query.state.iter().flat_map(|states| states.split(',')) {
        match state.trim().parse() {
            Ok(state) => states.push(state),
            Err(message) => errors.push(FieldError::new("state", FieldCode::Required, message)),
        }
    }
    let kind = match query.kind.map(|kind| kind.parse::<Kind>()).transpose() {
        Ok(kind) => kind,
        Err(message) => {
            errors.push(FieldError::new("kind", FieldCode::InvalidValue, message));
            None
        }
    };
    let mut labels = Vec::new();
    for label in query.label.iter().flat_map(|labels| labels.split(',')) {
        match label.split_once('=').filter(|(name, _)| is_label(name)) {
            Some((name, value)) => labels.push((name.to_owned(), value.to_owned())),
            None => {
                let message = "must be NAME=VALUE; several are separated by commas";
                errors.push(FieldError::new("label", FieldCode::InvalidValue, message));
            }
        }
    }
    if labels.len() > MAX_REPORTED {
        let message = format!("has {} labels; at most {MAX_REPORTED} can be asked for", labels.len());
        errors.push(FieldError::new("label", FieldCode::OutOfRange, message));
    }
    errors.truncate(MAX_REPORTED);
    if !query.limit.is_none_or(|limit| (1..=1000).contains(&limit)) {
        let message = "must be a whole number from 1 to 1000";
        errors.push(FieldError::new("limit", FieldCode::OutOfRange, message));
    }
    let before_seq = match query.cursor.as_ref().map(|cursor| cursor.parse()) {
        Some(Err(_)) => {
            let message = "is not one this server gave; start without it";
            errors.push(FieldError::new("cursor", FieldCode::Required, message));
            None
        }
        // What the database counts with ends earlier than what the text can say.
        Some(Ok(seq)) => Some(u64::min(seq, i64::MAX as u64)),
        None => None,
    };
    if !errors.is_empty() {
        return Err(Problem::fields(errors));
    }
    Ok(JobFilter {
        states,
        name: query.name,
        machine: query.machine,
        kind,
        labels,
        before_seq,
        ..JobFilter::default()
    })
}

/// Show a job: by id, unique prefix, name, display name, or `last`.
#[utoipa::path(get, path = "/api/v1/jobs/{job}", tag = "jobs", operation_id = "show_job", params(("job" = String, Path, description = "id, prefix, name, display name or `last`")),
    responses((status = 200, body = JobDetail), Always, OnJob))]
pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
) -> Result<Json<JobDetail>, Failure> {
    let mut detail = read(&shared, move |readers| show_one(readers, &job)).await?;
    add_present(&shared, &mut detail);
    Ok(Json(detail))
}

/// Ask a job to end.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/stop", tag = "jobs", operation_id = "stop_job", params(("job" = String, Path)), request_body = Option<StopJob>,
    responses((status = 200, body = JobSummary), Always, OnJob, Reads, Takes))]
pub(super) async fn stop(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    body: Bytes,
) -> Result<Json<JobSummary>, Failure> {
    let StopJob { grace_ms } = failure::optional(&body)?;
    moved(&shared, job, Event::Stop { grace: grace_ms.map(Duration::from_millis) }).await
}

/// Suspend a job: its tasks end, it holds nothing, and its name stays its own.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/suspend", tag = "jobs", operation_id = "suspend_job", params(("job" = String, Path)),
    responses((status = 200, body = JobSummary), Always, OnJob))]
pub(super) async fn suspend(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
) -> Result<Json<JobSummary>, Failure> {
    moved(&shared, job, Event::Suspend).await
}

/// Resume a suspended job; it prefers the nodes it had.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/resume", tag = "jobs", operation_id = "resume_job", params(("job" = String, Path)),
    responses((status = 200, body = JobSummary), Always, OnJob))]
pub(super) async fn resume(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
) -> Result<Json<JobSummary>, Failure> {
    moved(&shared, job, Event::Resume).await
}

async fn moved(shared: &Arc<Shared>, id: JobId, event: Event) -> Result<Json<JobSummary>, Failure> {
    shared.core.ask(|reply| Input::Job(id.clone(), event, reply)).await?;
    let row = read(shared, move |readers| row(readers, &id)).await?;
    Ok(Json(view::row_summary(&row)))
}

/// Changes a job where it waits: here, or at another scheduler.
async fn changed(
    shared: &Arc<Shared>,
    id: JobId,
    change: GangChange,
    event: Event,
) -> Result<Json<JobSummary>, Failure> {
    let Some(gang) = pass_on(shared, &id, change).await? else {
        return moved(shared, id, event).await;
    };
    shared.core.ask(|reply| Input::PassedOn(gang, change, reply)).await?;
    let row = read(shared, move |readers| row(readers, &id)).await?;
    Ok(Json(view::row_summary(&row)))
}

/// Keep a job that waits in the queue.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/hold", tag = "jobs", operation_id = "hold_job", params(("job" = String, Path)),
    responses((status = 200, body = JobSummary), Always, OnJob))]
pub(super) async fn hold(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
) -> Result<Json<JobSummary>, Failure> {
    changed(&shared, job, GangChange::Hold, Event::Hold).await
}

/// Release a held job.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/release", tag = "jobs", operation_id = "release_job", params(("job" = String, Path)),
    responses((status = 200, body = JobSummary), Always, OnJob))]
pub(super) async fn release(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
) -> Result<Json<JobSummary>, Failure> {
    changed(&shared, job, GangChange::Release, Event::Release).await
}

/// Give a job that is not over another name.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/rename", tag = "jobs", operation_id = "rename_job", params(("job" = String, Path)), request_body = RenameJob,
    responses((status = 200, body = JobSummary), Always, OnJob, Reads, Takes))]
pub(super) async fn rename(
    State(shared): State<Arc<Shared>>,
    TheJob(id): TheJob,
    Json(request): Json<RenameJob>,
) -> Result<Json<JobSummary>, Failure> {
    let name = JobSpec::check_name(&request.name).map_err(|error| Problem::fields(vec![error]))?;
    shared.core.ask(|reply| Input::Rename(id.clone(), name, reply)).await?;
    let row = read(&shared, move |readers| row(readers, &id)).await?;
    Ok(Json(view::row_summary(&row)))
}

/// Remove a job that is over, with its log and files.
#[utoipa::path(delete, path = "/api/v1/jobs/{job}", tag = "jobs", operation_id = "remove_job", params(("job" = String, Path)),
    responses((status = 204, description = "It is gone."), Always, OnJob))]
pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    TheJob(id): TheJob,
) -> Result<StatusCode, Failure> {
    shared.core.ask(|reply| Input::Remove(id.clone(), reply)).await?;
    let logs = shared.logs.clone();
    if let Err(error) = crate::log_store::blocking(move || logs.remove(&id)).await {
        tracing::warn!(%error, "a removed job's log could not be deleted");
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Why a job waits, or why it ended.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/why", tag = "jobs", operation_id = "explain_job", params(("job" = String, Path)),
    responses((status = 200, body = Why), Always, OnJob))]
pub(super) async fn why(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    TheJob(id): TheJob,
) -> Result<Json<Why>, Failure> {
    if let Some(asked) = shared.core.ask(|reply| Input::Why(id.clone(), reply)).await? {
        let about = id.clone();
        let row = read(&shared, move |readers| row(readers, &about)).await?;
        let why = answer(&shared, &caller, &row.workspace, asked).await?;
        return Ok(Json(Why { display_name: row.spec.display_name.clone(), ..why }));
    }
    let row = read(&shared, move |readers| row(readers, &id)).await?;
    Ok(Json(Why { display_name: row.spec.display_name.clone(), ..view::why_over(&row) }))
}

/// Finds out what the core left open about a job of a workspace. Jobs that the caller may not see have no name there, and no
/// priority is offered that the caller may not give.
async fn answer(shared: &Shared, caller: &Caller, workspace: &str, asked: Question) -> Result<Why, Problem> {
    let sight = caller.rights.sight();
    let highest_priority = limits::highest_priority(shared, caller, workspace)?;
    read(shared, move |readers| {
        Ok(asked.answer(highest_priority, |id| match readers.job(id) {
            Ok(Some(row)) if sight.has(&row.workspace) => Some(row.name),
            Ok(_) | Err(_) => None,
        }))
    })
    .await
}

/// What the code of a job differed in from its commit, as `git diff` prints it.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/diff", tag = "jobs", operation_id = "get_diff", params(("job" = String, Path)),
    responses((status = 200, body = String, content_type = "text/plain"), Always, OnJob))]
pub(super) async fn diff(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
) -> Result<Response, Failure> {
    let row = read(&shared, move |readers| row(readers, &job)).await?;
    let none = || {
        Problem::new(Code::NotFound, format!("{} has no difference to a commit", row.job.id))
            .hint("one is kept when the code is in a git repository with uncommitted changes")
    };
    let id = row.source.as_ref().and_then(|source| source.diff.clone()).ok_or_else(none)?;
    let (store, wanted) = (shared.clone(), id.clone());
    let stored = bundle::with_chunks(&shared, move || store.chunks.read(&wanted)).await?;
    let text = stored.and_then(|stored| chunk::decode(&id, &stored).ok());
    let damaged =
        || Problem::new(Code::NotFound, "the difference was damaged on the server's disk and is gone");
    let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok((kind, text.ok_or_else(damaged)?).into_response())
}

/// That a job's logs are there to be read, or when they went.
pub(super) fn has_logs(row: &JobRow) -> Result<(), Problem> {
    let Some(at) = row.logs_removed_at else { return Ok(()) };
    Err(Problem::new(Code::NotFound, format!("the log of {} was removed to make room at {at}", row.job.id))
        .hint("`[keep] logs` and `logs_age` in config.toml say how much is kept, and for how long"))
}

/// Reads the database off the threads that serve connections.
pub(super) async fn read<T: Send + 'static>(
    shared: &Shared,
    work: impl FnOnce(&Readers) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let readers = shared.readers.clone();
    tokio::task::spawn_blocking(move || work(&readers))
        .await
        .unwrap_or_else(|_| Err(Problem::new(Code::Internal, "the request failed")))
}

/// The one job a selector means. `own`: who asks, where several people do.
pub(super) fn resolve(
    readers: &Readers,
    selector: &str,
    sight: &Sight,
    own: Option<&str>,
) -> Result<JobId, Problem> {
    let shown: String = selector.chars().take(80).collect();
    match readers.resolve(selector, sight, own).map_err(|error| internal(&error))? {
        Resolution::One(id) => Ok(id),
        Resolution::None if selector == "last" => {
            let what = if own.is_some() { "you have no jobs yet" } else { "there are no jobs yet" };
            Err(Problem::new(Code::JobNotFound, what).hint("`muster run -- COMMAND` makes one"))
        }
        Resolution::None => {
            let rest = "`muster ps --all` lists them; a name, an id or the beginning of one will do";
            let near = nearest_job(readers, selector, sight)?.map(|near| format!("did you mean `{near}`? "));
            Err(Problem::new(Code::JobNotFound, format!("there is no job `{shown}`"))
                .hint(format!("{}{rest}", near.unwrap_or_default())))
        }
        Resolution::Many(fitting) => {
            let list: Vec<String> =
                fitting.iter().take(5).map(|(id, name)| format!("{id} ({name})")).collect();
            Err(Problem::new(Code::Ambiguous, format!("`{shown}` fits several jobs: {}", list.join(", ")))
                .hint("name the job by its id, or by more of the beginning of it"))
        }
    }
}

/// The name or id, of the recent jobs, that a mistyped selector is nearest to.
fn nearest_job(readers: &Readers, selector: &str, sight: &Sight) -> Result<Option<String>, Problem> {
    let filter = JobFilter { sight: sight.clone(), ..JobFilter::default() };
    let recent = readers.jobs(&filter, RECENT).map_err(|error| internal(&error))?;
    let ids = recent.iter().map(|job| job.id.as_str()).filter(|_| selector.starts_with(JobId::PREFIX));
    let shown = recent.iter().filter_map(|job| job.display_name.as_deref());
    let known: Vec<&str> = recent.iter().map(|job| job.name.as_str()).chain(shown).chain(ids).collect();
    Ok(nearest(selector, &known).map(str::to_owned))
}

pub(super) fn row(readers: &Readers, id: &JobId) -> Result<JobRow, Problem> {
    let row = readers.job(id).map_err(|error| internal(&error))?;
    row.ok_or_else(|| Problem::new(Code::JobNotFound, format!("there is no job `{id}`")))
}

fn show_one(readers: &Readers, id: &JobId) -> Result<JobDetail, Problem> {
    view::detail(readers, row(readers, id)?)
}
