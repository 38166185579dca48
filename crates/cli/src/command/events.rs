//! `muster events`: what happened, to one job or to all, and what happens.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use muster_api::client::{self, Client, EventItem, Events};
use muster_api::model::printable;
use muster_api::model::quantity::format_bytes;
use muster_api::model::task::Outputs;
use muster_api::model::{Ending, Reason, State};
use muster_api::view::{AllEventsQuery, EventView, EventsQuery};
use serde_json::Value;
use tokio::time::sleep;

use super::{selector, state};
use crate::error::Error;
use crate::session::{Patience, Session};
use crate::terminal::{self, Colour};

/// The longest kind of event, `outputs_removed`, and a gap.
const KIND_WIDTH: usize = 17;
/// How often it is looked whether anybody still reads: whoever pressed Ctrl-C on a pipeline does not wait for more.
const LOOK: Duration = Duration::from_millis(500);
/// How many nodes are named in a line.
const NAMED: usize = 4;

/// Show what happened to a job, or lately to all
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster events last
  muster events big -f                    go on until the job is over
  muster events                           of all jobs, lately
  muster events -f --json | jq .kind      whatever happens, as it happens

With --json, one document a line. \
With -f and a job it ends when the job is over; without one it goes on until Ctrl-C.")]
pub(crate) struct Args {
    /// Its id, the beginning of it, its name, or `last`; all jobs if absent
    #[arg(value_name = "JOB", value_parser = selector)]
    job: Option<String>,
    /// Go on with what happens from now on
    #[arg(short, long)]
    follow: bool,
    /// Of all jobs: begin about so many events ago (100 if absent)
    #[arg(long, value_name = "N", conflicts_with = "job")]
    tail: Option<u32>,
    /// Print JSON, one document a line
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let with_job = args.job.is_none();
    if !args.json {
        terminal::say(&heading(with_job))?;
    }
    let (mut after, mut patience) = (None, Patience::default());
    loop {
        let mut stream = session.call(async |client| open(client, args, after).await).await?;
        let lost = loop {
            let item = tokio::select! {
                item = stream.next() => item,
                // Nothing may ever happen again, and then nothing would be written that could fail.
                () = sleep(LOOK) => match terminal::stdout_is_closed() {
                    true => return Err(Error::output(&io::ErrorKind::BrokenPipe.into())),
                    false => continue,
                },
            };
            match item {
                Ok(Some(EventItem::Event(event))) => {
                    patience.restore();
                    after = Some(event.seq);
                    show(&event, with_job, args.json)?;
                }
                Ok(Some(EventItem::End(_))) => return Ok(ExitCode::SUCCESS),
                Ok(None) if !args.follow => return Ok(ExitCode::SUCCESS),
                // A followed stream without its end was cut off.
                Ok(None) => break client::Error::Lost { source: None },
                Err(error) if error.is_transient() => break error,
                Err(error) => return Err(error.into()),
            }
        };
        session.recover(&mut patience, lost).await?;
    }
}

async fn open(client: &Client, args: &Args, after: Option<u64>) -> Result<Events, client::Error> {
    match &args.job {
        Some(job) => client.events(job, &EventsQuery { after, follow: args.follow }).await,
        None => client.all_events(&AllEventsQuery { after, tail: args.tail, follow: args.follow }).await,
    }
}

fn show(event: &EventView, with_job: bool, json: bool) -> Result<(), Error> {
    if json {
        return terminal::say(&terminal::json_line(event)?);
    }
    terminal::say(&line(event, with_job, terminal::stdout_has_colours()))
}

/// Columns of one width each: rows come one by one, and nobody knows the next.
fn heading(with_job: bool) -> String {
    let job = if with_job { format!("{:<17}", "JOB") } else { String::new() };
    format!("{:<27}{job}{:<10}{:<KIND_WIDTH$}DETAILS", "TIME", "ATTEMPT", "EVENT")
}

fn line(event: &EventView, with_job: bool, colours: bool) -> String {
    let job = event.job.as_ref().map_or("-", |job| job.as_str());
    let job = if with_job { format!("{job:<17}") } else { String::new() };
    let attempt = event.attempt.filter(|number| *number > 0).map_or("-".into(), |number| number.to_string());
    let kind = format!("{:<KIND_WIDTH$}", printable::inline(&event.kind));
    let kind = match event.kind.parse().ok().and_then(state::colour) {
        Some(colour) => terminal::paint(&kind, colour, colours),
        None if event.kind == "task_ended" && is_failure(&event.body["failure"]) => {
            terminal::paint(&kind, Colour::Red, colours)
        }
        None => kind,
    };
    let text = format!("{:<27}{job}{attempt:<10}{kind}{}", format!("{:.3}", event.at), words(event));
    text.trim_end().to_owned()
}

/// What somebody asked for is none.
fn is_failure(failure: &Value) -> bool {
    !failure.is_null() && !matches!(failure["code"].as_str(), Some("suspended" | "stopped_by_user"))
}

/// What an event says to people.
fn words(event: &EventView) -> String {
    let body = &event.body;
    let text = match (event.kind.as_str(), event.kind.parse()) {
        ("submitted", _) => body["name"].as_str().map(|name| format!("as {name}")),
        ("renamed", _) => body["to"].as_str().map(|name| format!("to {name}")),
        ("reprioritised", _) => Some(format!("from {} to {}", body["from"], body["to"])),
        ("evicted", _) => body["node"].as_str().map(|node| format!("{node} was drained")),
        ("handed_over", _) => body["on"].as_str().map(|on| format!("to {on}")),
        ("preempted", _) => preempted(body),
        ("accepted", _) => Some(body["id"].as_str().map_or_else(String::new, |id| format!("as {id}"))),
        ("task_ended", _) => Some(task_ended(body)),
        ("task_starting", _) => {
            Some(format!("task{} alone, on {}", body["rank"], body["node"].as_str().unwrap_or("?")))
        }
        ("task_stopping" | "task_running", _) => Some(format!("task{}", body["rank"])),
        ("outputs", _) => outputs(body),
        ("held", _) if body["because"] == "restored" => {
            Some("the server was restored from a backup; `muster resume JOB` lets it run".into())
        }
        ("held", _) => Some(String::new()),
        ("released", _) => Some(String::new()),
        ("logs_removed" | "outputs_removed", _) => {
            body["bytes"].as_u64().map(|bytes| format!("{}, to make room", format_bytes(bytes)))
        }
        (_, Ok(State::Starting)) => body["tasks"].as_array().map(|tasks| places(tasks)),
        (_, Ok(State::Running)) => Some("every task runs".into()),
        (_, Ok(State::Stopping)) => serde_json::from_value(body["ending"].clone()).ok().map(|it| ending(&it)),
        (_, Ok(State::Queued)) => {
            Some(reason(body).map_or_else(String::new, |it| format!("once more: {it}")))
        }
        (_, Ok(_)) => Some(over(body)),
        (_, Err(_)) => None,
    };
    // What a newer server says in words we do not know is shown as it is.
    let text = text.unwrap_or_else(|| if body.is_null() { String::new() } else { body.to_string() });
    printable::one_line(&text)
}

fn reason(body: &Value) -> Option<String> {
    serde_json::from_value::<Reason>(body["reason"].clone()).ok().map(|reason| reason.message())
}

fn over(body: &Value) -> String {
    let text = reason(body).unwrap_or_default();
    match body["failed_rank"].as_u64() {
        Some(rank) if !text.is_empty() => format!("task{rank} {text}"),
        _ => text,
    }
}

fn outputs(body: &Value) -> Option<String> {
    let outputs: Outputs = serde_json::from_value(body["outputs"].clone()).ok()?;
    Some(format!("of task{}: {}", body["rank"].as_u64()?, outputs.message()))
}

fn preempted(body: &Value) -> Option<String> {
    let by = body["by"].as_str()?;
    let why = match body["cause"].as_str()? {
        "reclaim" => ", whose workspace takes its own back",
        _ => ", of higher priority",
    };
    let lost = body["lost_device_seconds"].as_f64().unwrap_or_default();
    Some(format!("for {by}{why}; {lost} device-seconds since it started or saved"))
}

fn task_ended(body: &Value) -> String {
    let failure = serde_json::from_value::<Reason>(body["failure"].clone()).ok();
    let outcome = failure.map_or_else(|| "succeeded".to_owned(), |reason| reason.message());
    let node = body["node"].as_str().map(|node| format!(" on {node}")).unwrap_or_default();
    format!("task{}{node}: {outcome}", body["rank"])
}

/// `2 tasks: node_a (devices 0,1), node_b`; a long list is cut.
fn places(tasks: &[Value]) -> String {
    let place = |task: &Value| {
        let devices: Vec<String> =
            task["devices"].as_array().into_iter().flatten().map(ToString::to_string).collect();
        let node = task["node"].as_str().unwrap_or("?");
        if devices.is_empty() { node.to_owned() } else { format!("{node} (devices {})", devices.join(",")) }
    };
    let mut named: Vec<String> = tasks.iter().take(NAMED).map(place).collect();
    if tasks.len() > NAMED {
        named.push(format!("and {} more", tasks.len() - NAMED));
    }
    let count = state::tasks(u32::try_from(tasks.len()).unwrap_or(u32::MAX));
    format!("{count} on {}", named.join(", "))
}

fn ending(ending: &Ending) -> String {
    match ending {
        Ending::Fail { reason, .. } => format!("because a task failed: {}", reason.message()),
        Ending::Requeue { reason } => format!("to go back to the queue: {}", reason.message()),
        Ending::Succeed => "because task 0 is done, and the others only waited for it".into(),
        Ending::Stop => "because somebody asked for it".into(),
        Ending::Suspend => "to be paused".into(),
    }
}

#[cfg(test)]
mod tests {
    use muster_api::model::Timestamp;
    use serde_json::json;

    use super::*;

    fn event(kind: &str, attempt: u32, body: Value) -> EventView {
        EventView {
            seq: 1,
            job: Some("job_0123456789".parse().unwrap()),
            at: Timestamp::UNIX_EPOCH,
            attempt: Some(attempt),
            kind: kind.into(),
            body,
        }
    }

    #[test]
    fn every_kind_of_event_is_said_in_words() {
        let failure = json!({"code": "exit_code", "exit_code": 3});
        let tasks = json!({"tasks": [{"node": "node_local", "devices": [0, 1]}, {"node": "node_local", "devices": []}]});
        let gang: Vec<Value> = (0..6).map(|_| json!({"node": "node_a", "devices": []})).collect();
        let events = [
            event("submitted", 0, json!({"name": "train"})),
            event("starting", 1, tasks),
            event("starting", 1, json!({"tasks": gang})),
            event("running", 1, json!({"from": "starting", "reason": null, "failed_rank": null})),
            event("task_ended", 1, json!({"rank": 1, "node": "node_local", "failure": failure})),
            event("task_ended", 1, json!({"rank": 0, "node": "node_local", "failure": null})),
            event("stopping", 1, json!({"ending": {"to": "fail", "reason": failure, "retry": true}})),
            event("stopping", 1, json!({"ending": {"to": "stop"}})),
            event("queued", 1, json!({"from": "stopping", "reason": failure, "failed_rank": null})),
            event("failed", 2, json!({"from": "stopping", "reason": failure, "failed_rank": 1})),
            event("succeeded", 2, json!({"from": "running", "reason": null, "failed_rank": null})),
            event("task_stopping", 2, json!({"rank": 1, "node": "node_a"})),
            event("task_starting", 3, json!({"rank": 1, "node": "node_a"})),
            event("task_running", 3, json!({"rank": 1, "node": "node_a"})),
            event("teleported", 2, json!({"to": "the\nmoon"})),
        ];
        let lines: Vec<String> = events.iter().map(|event| line(event, false, false)).collect();
        insta::assert_snapshot!(format!("{}\n{}", heading(false), lines.join("\n")), @r#"
        TIME                       ATTEMPT   EVENT            DETAILS
        1970-01-01T00:00:00.000Z   -         submitted        as train
        1970-01-01T00:00:00.000Z   1         starting         2 tasks on node_local (devices 0,1), node_local
        1970-01-01T00:00:00.000Z   1         starting         6 tasks on node_a, node_a, node_a, node_a, and 2 more
        1970-01-01T00:00:00.000Z   1         running          every task runs
        1970-01-01T00:00:00.000Z   1         task_ended       task1 on node_local: exited with code 3
        1970-01-01T00:00:00.000Z   1         task_ended       task0 on node_local: succeeded
        1970-01-01T00:00:00.000Z   1         stopping         because a task failed: exited with code 3
        1970-01-01T00:00:00.000Z   1         stopping         because somebody asked for it
        1970-01-01T00:00:00.000Z   1         queued           once more: exited with code 3
        1970-01-01T00:00:00.000Z   2         failed           task1 exited with code 3
        1970-01-01T00:00:00.000Z   2         succeeded
        1970-01-01T00:00:00.000Z   2         task_stopping    task1
        1970-01-01T00:00:00.000Z   3         task_starting    task1 alone, on node_a
        1970-01-01T00:00:00.000Z   3         task_running     task1
        1970-01-01T00:00:00.000Z   2         teleported       {"to":"the\nmoon"}
        "#);
    }

    #[test]
    fn of_all_jobs_the_job_is_named_and_colours_do_not_move_columns() {
        let event = event("failed", 1, json!({"reason": null}));
        assert!(line(&event, true, false).contains("Z   job_0123456789   1         failed"));
        assert!(line(&event, true, true).contains(&terminal::paint("failed           ", Colour::Red, true)));
        assert!(heading(true).starts_with("TIME                       JOB "));
    }
}
