//! Staying with a job: its output, its queue, its end, and the user's Ctrl-C.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use muster_api::client::{self, LogItem};
use muster_api::model::{State, Timestamp};
use muster_api::view::{JobDetail, LogChunk, LogsQuery, NodeView, StreamEnd, Why};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::{array, exit_code, headline, summary};
use crate::command::logs::ranks;
use crate::command::nodes::place;
use crate::command::state::end_of_attempt;
use crate::command::stop;
use crate::display::{Display, Mode};
use crate::error::Error;
use crate::follow::LogFollow;
use crate::interrupt::{self, Interrupts, Received, Wish};
use crate::progress::Spinner;
use crate::session::Session;
use crate::terminal;

/// What is over sooner was not waited for; and how often a progress bar is looked at.
const TICK: Duration = Duration::from_secs(1);
/// A remark that takes longer is not worth its time.
const REMARK_DEADLINE: Duration = Duration::from_secs(2);
/// What a client exits with that does not wait for the end of what it stops.
const STOPPED: i32 = 130;

/// How a job is looked at.
pub(in crate::command) struct View<'a> {
    /// Lines about it that come first.
    pub lines: &'a [String],
    /// Which part of its log.
    pub log: LogsQuery,
    pub json: bool,
    pub unattended: Unattended,
    /// Its owner is another person: only text and colours of its output reach a terminal.
    pub is_of_another: bool,
}

impl<'a> View<'a> {
    /// That of whoever has made the job.
    pub fn of_new(lines: &'a [String], json: bool) -> Self {
        // From the first attempt on, also when that is over before anyone looks.
        let log = LogsQuery { follow: true, cursor: Some("1@".into()), ..LogsQuery::default() };
        Self { lines, log, json, unattended: Unattended::Stop, is_of_another: false }
    }
}

/// What becomes of the job when we are ended and there is nobody to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::command) enum Unattended {
    /// It was ours.
    Stop,
    /// We only came to look.
    Detach,
}

/// Shows a job until it is over and returns its exit code.
pub(in crate::command) async fn watch(
    session: &Arc<Session>,
    job: &JobDetail,
    view: View<'_>,
    mut interrupts: Interrupts,
) -> Result<ExitCode, Error> {
    let json = view.json;
    terminal::remark(&headline(job));
    view.lines.iter().for_each(|line| terminal::remark(line));
    let mut watch = Watch::new(session, job, &view);
    if job.spec.array.is_some() {
        return array::watch(watch, interrupts, json).await;
    }
    let mut log = LogFollow::start(session, watch.id(), view.log);
    let mut ticks = interval_at(Instant::now() + TICK, TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            item = log.next() => match item.map_err(|error| watch.abandoned(error))? {
                LogItem::Chunk(chunk) => watch.on_chunk(&chunk).await?,
                LogItem::End(end) => return watch.on_end(&end, json).await,
            },
            received = interrupts.next() => {
                if let Some(code) = watch.on_signal(&mut interrupts, received).await? {
                    return Ok(code);
                }
            }
            _ = ticks.tick() => watch.on_tick().await?,
        }
    }
}

pub(super) struct Watch<'a> {
    session: &'a Arc<Session>,
    job: &'a JobDetail,
    display: Display,
    spinner: Spinner,
    /// It has left the queue; nothing is asked any more.
    has_started: bool,
    /// The code of the last reason for waiting that was told.
    told: Option<String>,
    /// How often the user has asked for its end.
    stops: u32,
    unattended: Unattended,
    is_of_another: bool,
    /// Devices that it was not given were mentioned, or there are none.
    has_remarked: bool,
}

impl<'a> Watch<'a> {
    fn new(session: &'a Arc<Session>, job: &'a JobDetail, view: &View) -> Self {
        let mode = if job.summary.nodes > 1 { Mode::Labelled(job.summary.nodes) } else { Mode::Raw };
        let display = Display::new(mode).with_ranks(ranks(job));
        let display = if view.json { display.on_stderr() } else { display };
        let display = if view.is_of_another { display.of_another() } else { display };
        Self {
            session,
            job,
            display,
            spinner: Spinner::default(),
            has_started: false,
            told: None,
            stops: 0,
            unattended: view.unattended,
            is_of_another: view.is_of_another,
            has_remarked: false,
        }
    }

    pub(super) fn id(&self) -> &'a str {
        self.job.summary.id.as_str()
    }

    /// Shows something. Whoever read our output may go; the job and its exit code do not depend on it.
    fn shown(&mut self, show: impl FnOnce(&mut Display) -> Result<(), Error>) -> Result<(), Error> {
        match show(&mut self.display) {
            Err(error) if error.is_output_closed() => Ok(()),
            other => other,
        }
    }

    async fn on_chunk(&mut self, chunk: &LogChunk) -> Result<(), Error> {
        self.on_start();
        if self.display.begins_attempt(chunk) {
            let reason = end_of_attempt(self.session, self.id(), chunk.attempt - 1).await;
            self.shown(|display| display.on_attempt(chunk.attempt, reason.as_deref()))?;
        }
        self.shown(|display| display.chunk(chunk))
    }

    /// We give up, and the job does not.
    fn abandoned(&self, error: Error) -> Error {
        error.detail(format!(
            "{} goes on without this command; `muster logs -f {}` watches it",
            self.id(),
            self.id()
        ))
    }

    pub(super) fn session(&self) -> &'a Arc<Session> {
        self.session
    }

    fn on_start(&mut self) {
        self.has_started = true;
        self.spinner.clear();
    }

    async fn on_tick(&mut self) -> Result<(), Error> {
        self.shown(|display| display.tick(Timestamp::now()))?;
        self.remark_on_hidden_devices().await;
        if self.has_started {
            return Ok(());
        }
        match timeout(REMARK_DEADLINE, self.waits_for()).await {
            Ok(Ok(Some(why))) => self.tell(&why),
            Ok(Ok(None)) => self.on_start(),
            // The log stream will say whether the server is gone.
            Ok(Err(_)) | Err(_) => {}
        }
        Ok(())
    }

    /// Why it does not run; none when it does.
    async fn waits_for(&self) -> Result<Option<Why>, client::Error> {
        let client = self.session.client();
        match client.job(self.id()).await?.summary.state {
            State::Queued | State::Starting => client.why(self.id()).await.map(Some),
            State::Running
            | State::Stopping
            | State::Succeeded
            | State::Failed
            | State::Stopped
            | State::Suspended => Ok(None),
        }
    }

    /// Says it in place on a terminal; elsewhere as a note, and only when it is something new.
    fn tell(&mut self, why: &Why) {
        if terminal::stderr_can_move() {
            self.spinner.show(&why.summary);
        } else if self.told.as_ref() != Some(&why.code) {
            terminal::note(&why.summary);
            self.told = Some(why.code.clone());
        }
    }

    /// An exit code when there is nothing more to wait for.
    pub(super) async fn on_signal(
        &mut self,
        interrupts: &mut Interrupts,
        received: Received,
    ) -> Result<Option<ExitCode>, Error> {
        self.spinner.clear();
        if self.unattended == Unattended::Detach && !interrupt::can_ask() {
            return Ok(Some(exit_code(Some(received.exit_code()))));
        }
        // Whoever has asked for the end once is not asked again.
        let wish = if self.stops > 0 { Wish::Stop } else { interrupts.wish(received, self.id()).await };
        match wish {
            Wish::Continue => Ok(None),
            Wish::Detach => {
                terminal::remark(&format!(
                    "{} goes on; `muster logs -f {}` watches it",
                    self.id(),
                    self.id()
                ));
                Ok(Some(ExitCode::SUCCESS))
            }
            Wish::Stop => self.stop().await,
        }
    }

    /// First with its grace period, then at once, then without waiting for the end.
    async fn stop(&mut self) -> Result<Option<ExitCode>, Error> {
        self.stops += 1;
        let (grace, remark) = match self.stops {
            1 => (None, "stopping; once more kills at once"),
            2 => (Some(Duration::ZERO), "killing; once more leaves it to the server"),
            _ => return Ok(Some(exit_code(Some(STOPPED)))),
        };
        terminal::remark(&format!("{}: {remark}", self.id()));
        stop::stop(self.session, self.id(), grace).await.map_err(|error| self.abandoned(error))?;
        Ok(None)
    }

    pub(super) async fn on_end(&mut self, end: &StreamEnd, json: bool) -> Result<ExitCode, Error> {
        self.spinner.clear();
        self.shown(Display::finish)?;
        if !self.display.is_at_line_start() && terminal::stderr_is_terminal() {
            terminal::remark("");
        }
        self.remark_on_hidden_devices().await;
        let detail = if json || end.job.state == State::Failed {
            Some(self.session.call(async |client| client.job(self.id()).await).await?)
        } else {
            None
        };
        summary::show(self.session, end, detail.as_ref(), self.is_of_another).await;
        if let Some(detail) = detail.filter(|_| json) {
            terminal::say_json(&detail)?;
        }
        Ok(exit_code(end.job.exit_code))
    }

    /// A job that asks for no devices is given none, and a framework on the CPU is slow without saying why. Asked for
    /// only once the job is under way: its start is worth more than this remark.
    async fn remark_on_hidden_devices(&mut self) {
        if std::mem::replace(&mut self.has_remarked, true) || self.job.spec.resources.device_count() > 0 {
            return;
        }
        let Ok(Ok(nodes)) = timeout(REMARK_DEADLINE, self.session.client().nodes()).await else { return };
        if let Some(text) = hidden_devices(&nodes.items, &self.job.spec.on.to_string()) {
            terminal::note(&text);
        }
    }
}

fn hidden_devices(nodes: &[NodeView], on: &str) -> Option<String> {
    let devices: Vec<_> =
        nodes.iter().filter(|node| place(node) == on).flat_map(|node| &node.devices).collect();
    let first = devices.first()?;
    let count = devices.len();
    let simulated = if devices.iter().all(|view| view.device.simulated) { "simulated " } else { "" };
    let model = &first.device.model;
    let what =
        if devices.iter().all(|view| view.device.model == *model) { model.as_str() } else { "devices" };
    Some(format!(
        "there are {count} {simulated}{what} here, hidden from this job because it did not ask: --gpus N"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(engine: &str, models: &[&str]) -> NodeView {
        let device = |model: &&str| {
            json!({"index": 0, "vendor": "nvidia", "model": model, "uuid": "", "memory_bytes": 0, "simulated": false,
                "job": null})
        };
        serde_json::from_value(json!({
            "id": "node_local", "engine": engine, "host": "h", "connected": true, "agent_pid": null,
            "agent_version": null, "cpu_millis": 0, "cpu_millis_used": 0, "memory_bytes": 0, "memory_bytes_used": 0,
            "slots": 0, "slots_used": 0, "devices": models.iter().map(device).collect::<Vec<_>>(),
        }))
        .unwrap()
    }

    #[test]
    fn hidden_devices_are_mentioned_where_there_are_some() {
        assert_eq!(hidden_devices(&[node("local", &[])], "local"), None);
        assert_eq!(hidden_devices(&[node("ssh", &["H100"])], "local"), None);
        let text = hidden_devices(&[node("local", &["H100", "H100"])], "local").unwrap();
        assert!(text.starts_with("there are 2 H100 here"), "{text}");
        let text = hidden_devices(&[node("local", &["H100", "A100"])], "local").unwrap();
        assert!(text.starts_with("there are 2 devices here"), "{text}");
    }
}
