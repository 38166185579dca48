//! `muster show`: everything about one job.

pub(crate) mod usage;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use jiff::SignedDuration;
use muster_api::model::bundle::Source;
use muster_api::model::quantity::{format_bytes, format_duration};
use muster_api::model::spec::{
    DEFAULT_GRACE, DEFAULT_PRIORITY, JobSpec, Kind, OnFailure, Secret, Target, Volume,
};
use muster_api::model::task::TaskPhase;
use muster_api::model::{CommandOn, Framework, State, Timestamp};
use muster_api::view::{AllocationView, AttemptView, JobDetail, LaunchView, TaskView};
use muster_launch::detect::{Nothing, Starts, starts};
use serde_json::Value;

use super::{OneJob, elements, state};
use crate::duration::{age, between, shown};
use crate::error::{Code, Error};
use crate::session::Session;
use crate::spec::launched;
use crate::table::Table;
use crate::terminal;

/// Show everything about a job: spec, tasks, attempts, what it uses, and why it ended
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Examples:\n  muster show last\n  muster show digits --json | jq .spec\n  muster show digits --diff | git apply"
)]
pub(crate) struct Args {
    #[command(flatten)]
    job: OneJob,
    /// Print how its code differed from its git commit, and nothing else
    #[arg(long, conflicts_with = "json")]
    diff: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    if args.diff {
        return diff(&session, &args.job.job).await;
    }
    let job = session.call(async |client| client.job(&args.job.job).await).await?;
    if args.json {
        terminal::say_json(&job)?;
    } else {
        let (now, colours) = (Timestamp::now(), terminal::stdout_has_colours());
        let mut text = text(&job, now, colours);
        if let Some(failed) = elements::first_failed(&session, &job, now).await? {
            text.push_str(&format!("\nfailed elements:\n{}", failed.render(terminal::width(), colours)));
        }
        terminal::to_stdout(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn diff(session: &Session, selector: &str) -> Result<ExitCode, Error> {
    let job = session.call(async |client| client.job(selector).await).await?;
    let id = &job.summary.id;
    match &job.source {
        None => {
            let message = format!("it is not known which commit the code of {id} was of");
            return Err(Error::new(Code::CommitUnknown, message));
        }
        Some(source) if source.diff.is_none() => {
            terminal::note(&format!("the code of {id} was that of commit {}", source.commit));
        }
        Some(_) => {
            let text = session.call(async |client| client.diff(id.as_str()).await).await?;
            terminal::document(&text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn text(job: &JobDetail, now: Timestamp, colours: bool) -> String {
    let mut lines = life(job, now, colours);
    lines.extend(request(&job.spec));
    lines.extend(job.summary.elements.map(|counts| ("elements", elements::words(&counts))));
    lines.extend(job.allocation.as_ref().map(|one| ("allocation", allocation(one))));
    lines.extend(job.launch.as_ref().map(|launch| started(&job.spec, launch)).unwrap_or_default());
    lines.extend(job.source.as_ref().map(|source| ("commit", commit(source))));
    lines.extend(job.attempts.last().and_then(notices).map(|text| ("notice", text)));
    lines.extend(job.attempts.last().and_then(collected).map(|text| ("collected", text)));
    let mut text = String::new();
    for (name, value) in lines {
        // Continuation lines of a script stay below its first.
        text.push_str(&format!("{:<11} {}\n", format!("{name}:"), value.replace('\n', "\n            ")));
    }
    if let Some(last) = job.attempts.last() {
        let hosts = job.allocation.as_ref().map_or(&[][..], |allocation| &allocation.hosts);
        text.push_str(&format!("\n{}", tasks(last, hosts, now).render(terminal::width(), colours)));
        for (title, table) in usage::tables(last) {
            text.push_str(&format!("\n{title}:\n{}", table.render(terminal::width(), colours)));
        }
    }
    if job.attempts.len() > 1 {
        text.push_str(&format!("\n{}", attempts(&job.attempts, now).render(terminal::width(), colours)));
    }
    text
}

/// What became of the outputs of each task, as far as that is known.
fn collected(attempt: &AttemptView) -> Option<String> {
    let texts: Vec<String> = attempt
        .tasks
        .iter()
        .filter_map(|task| Some(format!("task{}: {}", task.rank, task.outputs.as_ref()?.message())))
        .collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

/// How the tasks of the last attempt took it that they were told to end.
fn notices(attempt: &AttemptView) -> Option<String> {
    let texts: Vec<String> = attempt.tasks.iter().filter_map(notice).collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

/// `task0: preempted; saved 2s later, and ended by itself`.
fn notice(task: &TaskView) -> Option<String> {
    let notice = task.notice.as_ref()?;
    let saved = match task.saved_at.map(|at| at.duration_since(notice.at)) {
        None => "did not say that it saved".to_owned(),
        Some(since) if since.is_negative() => format!("saved {} before", span(-since)),
        Some(since) => format!("saved {} later", span(since)),
    };
    let end = if notice.killed { "was killed when its grace was over" } else { "ended by itself" };
    Some(format!("task{}: {}; {saved}, and {end}", task.rank, notice.reason))
}

fn span(span: SignedDuration) -> String {
    format_duration(Duration::from_secs(span.unsigned_abs().as_secs()))
}

type Lines = Vec<(&'static str, String)>;

/// What became of it.
fn life(job: &JobDetail, now: Timestamp, colours: bool) -> Lines {
    let summary = &job.summary;
    let mut state = state::words(summary);
    if let Some(rank) = job.failed_rank {
        // One that goes on without it does not say why in its state.
        let why = summary.message.as_ref().filter(|_| summary.state == State::Running);
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        state.push_str(&format!(" (task{rank}{why})"));
    }
    if let Some(colour) = state::colour(summary.state) {
        state = terminal::paint(&state, colour, colours);
    }
    let mut lines = vec![("job", summary.id.to_string()), ("name", summary.name.clone())];
    lines.extend(summary.display_name.as_ref().map(|name| ("display name", name.clone())));
    lines.push(("state", state));
    let one = job.failed_rank.filter(|_| summary.kind == Kind::Machine && summary.state == State::Running);
    if let Some(rank) = one {
        lines.push(("hint", format!("`muster machine start task{rank}.{}` starts it anew", summary.name)));
    } else if let Some(hint) = summary.reason.as_ref().and_then(|reason| reason.hint(summary.attempt)) {
        lines.push(("hint", hint.to_owned()));
    }
    if let Some(code) = summary.exit_code {
        lines.push(("exit code", code.to_string()));
    }
    let moments = [
        ("submitted", Some(summary.submitted_at)),
        ("started", summary.started_at),
        ("ended", summary.ended_at),
    ];
    for (name, at) in moments {
        if let Some(at) = at {
            lines.push((name, format!("{at:.0} ({} ago)", age(at, now))));
        }
    }
    let run_time = state::run_time(summary, now);
    if !run_time.is_empty() {
        lines.push(("duration", run_time));
    }
    lines.push(("owner", summary.owner.clone()));
    lines
}

/// What was asked for; what nobody asked for is left out.
fn request(spec: &JobSpec) -> Lines {
    let mut lines = vec![("on", spec.on.to_string()), ("nodes", spec.nodes.to_string())];
    let mut add = |name, value: Option<String>| lines.extend(value.map(|value| (name, value)));
    let resources = &spec.resources;
    add("array", spec.array.as_ref().map(ToString::to_string));
    add("gpus", resources.gpus.as_ref().map(ToString::to_string));
    add("cpus", resources.cpus.map(|cpus| cpus.to_string()));
    add("memory", resources.memory.map(format_bytes));
    add("shm", resources.shm.map(format_bytes));
    add("kind", (spec.kind != Kind::Training).then(|| spec.kind.to_string()));
    add("exclusive", spec.exclusive.then(|| "whole nodes".into()));
    add("command", (!spec.command.is_nothing()).then(|| spec.command.to_string()));
    add("setup once", spec.setup_once.clone());
    add("setup", spec.setup.clone());
    add("workdir", spec.workdir.clone());
    add("in place", spec.in_place.then(|| "yes".into()));
    add("clean env", spec.clean_env.then(|| "yes".into()));
    let env: Vec<String> = spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    add("env", (!env.is_empty()).then(|| env.join("\n")));
    let secret = |it: &Secret| match (&it.env, &it.file) {
        (_, Some(file)) => format!("{} as the file {file}", it.name),
        (Some(env), None) if *env != it.name => format!("{} as {env}", it.name),
        _ => it.name.clone(),
    };
    let secrets: Vec<String> = spec.secrets.iter().map(secret).collect();
    add("secrets", (!secrets.is_empty()).then(|| secrets.join("\n")));
    let labels: Vec<String> = spec.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    add("labels", (!labels.is_empty()).then(|| labels.join("\n")));
    add("image", spec.image.clone());
    add("workspace", spec.workspace.clone());
    add("priority", (spec.priority != DEFAULT_PRIORITY).then(|| spec.priority.to_string()));
    add("preemptible", spec.preemptible.then(|| "yes".into()));
    let after: Vec<String> = spec.after.iter().map(ToString::to_string).collect();
    add("after", (!after.is_empty()).then(|| after.join("\n")));
    let labels: Vec<String> = spec.node_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    add("node labels", (!labels.is_empty()).then(|| labels.join("\n")));
    add("exclude", (!spec.exclude.is_empty()).then(|| spec.exclude.join("\n")));
    add("retries", (spec.retries.max > 0).then(|| spec.retries.max.to_string()));
    add("timeout", spec.timeout.map(format_duration));
    add("grace", (spec.grace != DEFAULT_GRACE).then(|| format_duration(spec.grace)));
    add("stop signal", (!spec.stop_signal.is_term()).then(|| spec.stop_signal.to_string()));
    add("on failure", (spec.on_failure == OnFailure::Continue).then(|| "continue".into()));
    add("outputs", (!spec.outputs.is_empty()).then(|| spec.outputs.join("\n")));
    let endpoints: Vec<String> =
        spec.endpoints.iter().map(|it| format!("{} on port {}", it.name, it.port)).collect();
    add("endpoints", (!endpoints.is_empty()).then(|| endpoints.join("\n")));
    let volume = |it: &Volume| {
        let only = if it.read_only { ", read only" } else { "" };
        format!("{} at {}{only}", it.name, it.path)
    };
    let volumes: Vec<String> = spec.volumes.iter().map(volume).collect();
    add("without volumes", spec.without_volumes.then(|| "yes".into()));
    add("volumes", (!volumes.is_empty()).then(|| volumes.join("\n")));
    add("k8s", kubernetes(spec));
    lines
}

/// What it wants of Kubernetes alone, a line for each field.
fn kubernetes(spec: &JobSpec) -> Option<String> {
    let Ok(Value::Object(fields)) = serde_json::to_value(spec.k8s.as_ref()?) else { return None };
    let field = |(name, value): (String, Value)| match value {
        Value::String(text) => format!("{name}={text}"),
        other => format!("{name}={other}"),
    };
    let mut lines: Vec<String> = fields.into_iter().map(field).collect();
    if !matches!(spec.on, Target::Kubernetes(_)) {
        lines.push(format!("(not looked at on {})", spec.on));
    }
    Some(lines.join("\n"))
}

/// How its tasks are started, unless that is the command as it stands.
fn started(spec: &JobSpec, launch: &LaunchView) -> Lines {
    let mut lines = Vec::new();
    if launch.framework != Framework::Plain {
        lines.push(("framework", launch.framework.to_string()));
        lines.push(("processes", processes(spec, launch)));
    }
    if launch.argv != spec.command.argv() {
        lines.push(("runs", launched(spec, launch)));
    }
    match launch.command_on {
        CommandOn::All => {}
        CommandOn::First => {
            lines.push(("command on", "task0; the others wait for what it starts on them".into()));
        }
        CommandOn::Processes => lines.push(("command on", "every process of every task".into())),
    }
    if spec.peers == Some(true) {
        lines.push(("peers", "its tasks reach each other by ssh, as worker-0, worker-1, …".into()));
    }
    let faces: Vec<&str> = spec.faces.iter().flatten().map(|face| face.word()).collect();
    if !faces.is_empty() {
        lines.push(("faces", faces.join(", ")));
    }
    lines
}

/// How many processes each task has, as far as the words of the command tell.
fn processes(spec: &JobSpec, launch: &LaunchView) -> String {
    let is_its_own = matches!(starts(&spec.command, &Nothing), Starts::Unclear(_));
    if launch.processes == 1 && spec.processes_per_task() > 1 && is_its_own {
        return "1 in each task, and those that the command starts".into();
    }
    format!("{} in each task", launch.processes)
}

/// `4f2a… on main, with changes: see --diff`.
fn commit(source: &Source) -> String {
    let mut text = source.commit.clone();
    if let Some(branch) = &source.branch {
        text.push_str(&format!(" on {branch}"));
    }
    match (source.dirty, &source.diff) {
        (true, Some(_)) => text.push_str(", with changes: see --diff"),
        (true, None) => text.push_str(", with changes"),
        (false, _) => {}
    }
    text
}

/// `4711 on n1, n2`.
fn allocation(allocation: &AllocationView) -> String {
    let id = allocation.id.as_deref().unwrap_or("not known yet");
    match allocation.hosts.as_slice() {
        [] => id.to_owned(),
        hosts => format!("{id} on {}", hosts.join(", ")),
    }
}

/// A gang that another scheduler placed is on its machines; what they are called here says nothing.
fn tasks(attempt: &AttemptView, hosts: &[String], now: Timestamp) -> Table {
    let mut table = Table::new(&["TASK", "NODE", "DEVICES", "ADDRESS", "STATE", "DURATION"]);
    for task in &attempt.tasks {
        let devices: Vec<String> = task.devices.iter().map(ToString::to_string).collect();
        let duration = task.started_at.map(|at| shown(between(at, task.ended_at.unwrap_or(now))));
        table.row(vec![
            format!("task{}", task.rank).into(),
            hosts.get(task.rank as usize).map_or(task.node.as_str(), String::as_str).into(),
            if devices.is_empty() { "-".into() } else { devices.join(",").into() },
            task.address.as_ref().map_or_else(|| "-".into(), |address| address.ip.to_string()).into(),
            task_state(task).into(),
            duration.unwrap_or_default().into(),
        ]);
    }
    table
}

fn task_state(task: &TaskView) -> String {
    match (task.phase, &task.message) {
        (TaskPhase::Ended, Some(message)) => message.clone(),
        (TaskPhase::Ended, None) => "succeeded".into(),
        (TaskPhase::Assigned, _) => "preparing".into(),
        (TaskPhase::Ready, _) => "ready".into(),
        (TaskPhase::Running, _) => "running".into(),
    }
}

fn attempts(attempts: &[AttemptView], now: Timestamp) -> Table {
    let mut table = Table::new(&["ATTEMPT", "STARTED", "DURATION", "ENDED"]);
    for attempt in attempts {
        let end = match (&attempt.reason, attempt.ended_at) {
            (Some(reason), _) => reason.message(),
            (None, Some(_)) => "succeeded".into(),
            (None, None) => "-".into(),
        };
        table.row(vec![
            attempt.number.to_string().into(),
            format!("{:.0}", attempt.started_at).into(),
            shown(between(attempt.started_at, attempt.ended_at.unwrap_or(now))).into(),
            end.into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn job() -> JobDetail {
        let task = |rank: u32, failure: Value, message: &str| {
            json!({"rank": rank, "node": "node_local", "devices": [rank], "phase": "ended", "address": null,
                "failure": failure, "message": message, "started_at": "1970-01-01T00:00:01Z",
                "ended_at": "1970-01-01T00:00:06Z"})
        };
        let attempt = |number: u32| {
            json!({"number": number, "started_at": "1970-01-01T00:00:00Z", "ended_at": "1970-01-01T00:00:06Z",
                "reason": {"code": "exit_code", "exit_code": 3}, "tasks": [
                    task(0, json!({"code": "signal", "signal": 15}), "killed by SIGTERM (15)"),
                    task(1, json!({"code": "exit_code", "exit_code": 3}), "exited with code 3")]})
        };
        let spec = JobSpec::from_value(json!({
            "nodes": 2, "resources": {"gpus": "H100:1", "memory": "16GB"}, "command": ["python", "train.py"],
            "setup": "pip install -r requirements.txt\nmake", "env": {"A": "1"}, "retries": 1, "workdir": "/work",
            "k8s": {"queue": "team-a", "user": 1000}, "volumes": [{"name": "data", "path": "/data", "read_only": true}],
        }))
        .unwrap();
        serde_json::from_value(json!({
            "id": "job_0123456789", "name": "train", "state": "failed",
            "reason": {"code": "exit_code", "exit_code": 3}, "message": "exited with code 3", "nodes": 2,
            "gpus": "H100:1", "command": "python train.py", "on": "local", "owner": "me", "attempt": 2,
            "exit_code": 3, "submitted_at": "1970-01-01T00:00:00Z", "started_at": "1970-01-01T00:00:01Z",
            "ended_at": "1970-01-01T00:00:06Z", "spec": spec, "bundle": null, "failed_rank": 1,
            "source": {"commit": "4f2a81c0", "branch": "main", "dirty": true, "diff": format!("chunk_{}", "0".repeat(64))},
            "attempts": [attempt(1), attempt(2)],
        }))
        .unwrap()
    }

    #[test]
    fn everything_that_was_said_and_what_came_of_it() {
        let text = text(&job(), Timestamp::UNIX_EPOCH + Duration::from_secs(66), false);
        insta::assert_snapshot!(text, @r"
        job:        job_0123456789
        name:       train
        state:      failed: exited with code 3 (task1)
        exit code:  3
        submitted:  1970-01-01T00:00:00Z (1m ago)
        started:    1970-01-01T00:00:01Z (1m ago)
        ended:      1970-01-01T00:00:06Z (1m ago)
        duration:   5.0s
        owner:      me
        on:         local
        nodes:      2
        gpus:       H100:1
        memory:     16 GB
        command:    python train.py
        setup:      pip install -r requirements.txt
                    make
        workdir:    /work
        env:        A=1
        retries:    1
        volumes:    data at /data, read only
        k8s:        queue=team-a
                    user=1000
                    (not looked at on local)
        commit:     4f2a81c0 on main, with changes: see --diff

        TASK    NODE         DEVICES   ADDRESS   STATE                    DURATION
        task0   node_local   0         -         killed by SIGTERM (15)   5.0s
        task1   node_local   1         -         exited with code 3       5.0s

        ATTEMPT   STARTED                DURATION   ENDED
        1         1970-01-01T00:00:00Z   6.0s       exited with code 3
        2         1970-01-01T00:00:00Z   6.0s       exited with code 3
        ");
    }
}
