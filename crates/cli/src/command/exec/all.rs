//! A command in every task at once, or one whose output is wanted in one piece.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use muster_api::model::{State, Timestamp};
use muster_api::view::LogStream;
use muster_ssh::client::{Command, Event, Signal};
use serde_json::json;
use tokio::sync::{Semaphore, broadcast, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use crate::call::Caller;
use crate::command::state;
use crate::display::{Display, Mode};
use crate::error::{Code, Error};
use crate::machine;
use crate::remote::{Ours, Received, Signals, feed};
use crate::target::Target;
use crate::terminal;

/// Connections that are being made at once: more would only make each other slow.
const HANDSHAKES: usize = 32;
/// Pieces of output that wait to be shown.
const AHEAD: usize = 64;
/// How often a progress bar that stands still is looked at.
const TICK: Duration = Duration::from_secs(1);
/// What the commands get to end by themselves when nobody reads their output any more.
const CLOSING: Duration = Duration::from_secs(1);
/// Tasks that are named in one line of the summary.
const NAMED: usize = 16;

/// Where the command runs.
pub(crate) struct Whom {
    pub target: Target,
    pub all: bool,
    pub wait: bool,
    pub stdin: bool,
}

/// How it went in one task.
struct Done {
    /// The command's exit code, or what there is instead of one.
    result: Result<u8, Error>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Done {
    fn code(&self) -> u8 {
        self.result.as_ref().map_or_else(Error::exit_number, |code| *code)
    }
}

pub(crate) async fn run(
    caller: &Caller,
    whom: &Whom,
    command: &Command,
    json: bool,
) -> Result<ExitCode, Error> {
    // A name that is no job's may be a machine's own, which says which task it is.
    let target = match whom.target.task {
        None if !whom.all => {
            let (job, task) = machine::job_and_task(&caller.session, &whom.target.job, None).await?;
            Target { job: job.summary.id.to_string(), task }
        }
        _ => whom.target.clone(),
    };
    let whom = &Whom { target, ..*whom };
    let ranks = ranks(caller, whom).await?;
    let mode = if ranks.len() > 1 { Mode::Labelled(ranks.len() as u32) } else { Mode::Raw };
    let mut shown =
        if json { Shown::Kept(BTreeMap::new()) } else { Shown::Display(Box::new(Display::new(mode))) };
    let mut gang = Gang::start(caller, whom, command, &ranks);
    let mut done = match gang.follow(&mut shown).await? {
        Ok(done) => done,
        Err(left) => return Ok(ExitCode::from(left)),
    };
    let first = done.values().map(Done::code).find(|code| *code != 0).unwrap_or(0);
    if json {
        say_json(&done, whom.all)?;
    }
    match done.pop_first() {
        // Of one task there is one thing to say.
        Some((_, Done { result: Err(error), .. })) if !whom.all => return Err(error),
        Some((rank, one)) => done.insert(rank, one),
        None => None,
    };
    if done.len() > 1 || done.values().any(|done| done.result.is_err()) {
        summary(&done).iter().for_each(|line| terminal::remark(line));
    }
    Ok(ExitCode::from(first))
}

/// The tasks by their ranks.
async fn ranks(caller: &Caller, whom: &Whom) -> Result<Vec<u32>, Error> {
    if !whom.all {
        return Ok(vec![whom.target.task.unwrap_or(0)]);
    }
    if let Some(task) = whom.target.task {
        let message = format!("--all: {} names task {task} alone", whom.target);
        return Err(Error::new(Code::Usage, message));
    }
    let job = caller.session.call(async |client| client.job(&whom.target.job).await).await?;
    if !whom.wait && job.summary.state != State::Running {
        // That it does not run is one error, not one of each task.
        drop(caller.call(&Target { task: Some(0), ..whom.target.clone() }, false).await?);
    }
    Ok(machine::reachable(&job))
}

/// The commands that run.
struct Gang {
    tasks: FuturesUnordered<LocalBoxFuture<'static, (u32, Result<u8, Error>)>>,
    events: mpsc::Receiver<(u32, Event)>,
    signals: broadcast::Sender<Signal>,
}

impl Gang {
    fn start(caller: &Caller, whom: &Whom, command: &Command, ranks: &[u32]) -> Self {
        let (sender, events) = mpsc::channel(AHEAD);
        let (signals, _) = broadcast::channel(8);
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
        let task = |rank: &u32| {
            let one = One {
                caller: caller.clone(),
                target: Target { task: Some(*rank), ..whom.target.clone() },
                command: command.clone(),
                wait: whom.wait,
                stdin: whom.stdin,
                events: sender.clone(),
                signals: signals.subscribe(),
                handshakes: handshakes.clone(),
            };
            let rank = *rank;
            async move { (rank, one.run(rank).await) }.boxed_local()
        };
        Self { tasks: ranks.iter().map(task).collect(), events, signals }
    }

    /// Shows what comes until all have ended; or gives our own exit code, when the user does not wait for that.
    async fn follow(&mut self, shown: &mut Shown) -> Result<Result<BTreeMap<u32, Done>, u8>, Error> {
        let mut ours = Signals::listen(false)?;
        let mut done: BTreeMap<u32, Done> = BTreeMap::new();
        let mut ticks = interval_at(Instant::now() + TICK, TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = Timestamp::now();
            let showing = tokio::select! {
                // What a command wrote is shown before all are known to have ended.
                biased;
                Some((rank, event)) = self.events.recv() => shown.event(rank, event, now),
                received = ours.next() => {
                    let Received::Told(signal) = received else { continue };
                    if ours.is_enough() {
                        return Ok(Err(Signals::code(signal)));
                    }
                    // Nobody is left to hear it when all have just ended.
                    let _ = self.signals.send(signal);
                    Ok(())
                }
                ended = self.tasks.next() => match ended {
                    Some((rank, result)) => {
                        done.insert(rank, Done { result, stdout: Vec::new(), stderr: Vec::new() });
                        Ok(())
                    }
                    None => break,
                },
                _ = ticks.tick() => shown.tick(now),
            };
            if let Err(error) = showing {
                self.close().await;
                return Err(error);
            }
        }
        shown.finish()?;
        for (rank, done) in &mut done {
            (done.stdout, done.stderr) = shown.take(*rank);
        }
        Ok(Ok(done))
    }

    /// As a pipe does when its reader leaves: the commands are told, and have a moment to end.
    async fn close(&mut self) {
        let _ = self.signals.send(Signal::Pipe);
        let _ = self.signals.send(Signal::Hangup);
        self.events.close();
        while self.events.try_recv().is_ok() {}
        let ended = async { while self.tasks.next().await.is_some() {} };
        let _ = timeout(CLOSING, ended).await;
    }
}

/// The command in one task.
struct One {
    caller: Caller,
    target: Target,
    command: Command,
    wait: bool,
    stdin: bool,
    events: mpsc::Sender<(u32, Event)>,
    signals: broadcast::Receiver<Signal>,
    handshakes: Arc<Semaphore>,
}

impl One {
    async fn run(mut self, rank: u32) -> Result<u8, Error> {
        let permit = self.handshakes.clone().acquire_owned().await;
        let client = self.caller.call(&self.target, self.wait).await?;
        drop(permit);
        let (mut output, input) = match client.run(&self.command).await {
            Ok(started) => started,
            Err(error) => return Err(self.caller.broken(&self.target, error).await),
        };
        let mut feeding = std::pin::pin!(feed(&input, Ours { stdin: self.stdin, ..Default::default() }));
        loop {
            tokio::select! {
                event = output.next() => match event {
                    Ok(Event::Ended(code)) => return Ok(code),
                    // Nobody listens when our output is closed; the command is being told.
                    Ok(event) => drop(self.events.send((rank, event)).await),
                    Err(error) => return Err(self.caller.broken(&self.target, error).await),
                },
                Ok(signal) = self.signals.recv() => drop(input.signal(signal).await),
                _ = &mut feeding => {}
            }
        }
    }
}

/// Where the output goes.
enum Shown {
    Display(Box<Display>),
    /// It is printed at the end: both outputs of each task.
    Kept(BTreeMap<u32, (Vec<u8>, Vec<u8>)>),
}

impl Shown {
    fn event(&mut self, rank: u32, event: Event, now: Timestamp) -> Result<(), Error> {
        let (stream, bytes) = match event {
            Event::Stdout(bytes) => (LogStream::Stdout, bytes),
            Event::Stderr(bytes) => (LogStream::Stderr, bytes),
            Event::Ended(_) => return Ok(()),
        };
        match self {
            Self::Display(display) => display.piece(rank, stream, &bytes, now),
            Self::Kept(kept) => {
                let (stdout, stderr) = kept.entry(rank).or_default();
                let output = if stream == LogStream::Stdout { stdout } else { stderr };
                output.extend_from_slice(&bytes);
                Ok(())
            }
        }
    }

    /// What was kept of a task.
    fn take(&mut self, rank: u32) -> (Vec<u8>, Vec<u8>) {
        match self {
            Self::Display(_) => Default::default(),
            Self::Kept(kept) => kept.remove(&rank).unwrap_or_default(),
        }
    }

    fn tick(&mut self, now: Timestamp) -> Result<(), Error> {
        match self {
            Self::Display(display) => display.tick(now),
            Self::Kept(_) => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), Error> {
        match self {
            Self::Display(display) => display.finish(),
            Self::Kept(_) => Ok(()),
        }
    }
}

/// One object for one task, a list of them for all.
fn say_json(done: &BTreeMap<u32, Done>, all: bool) -> Result<(), Error> {
    let object = |(rank, done): (&u32, &Done)| {
        let mut object = json!({
            "task": rank,
            "exit_code": done.code(),
            "stdout": String::from_utf8_lossy(&done.stdout),
            "stderr": String::from_utf8_lossy(&done.stderr),
        });
        if let Err(error) = &done.result {
            object["error"] = error.in_words().0.into();
        }
        object
    };
    match done.first_key_value() {
        Some(one) if !all => terminal::say_json(&object(one)),
        _ => terminal::say_json(&done.iter().map(object).collect::<Vec<_>>()),
    }
}

/// Who failed, and how; nothing if nobody did.
fn summary(done: &BTreeMap<u32, Done>) -> Vec<String> {
    let mut groups: Vec<(String, Vec<u32>)> = Vec::new();
    for (rank, done) in done {
        let how = match &done.result {
            Ok(0) => continue,
            Ok(code) => format!("exit code {code}"),
            Err(error) => error.in_words().0,
        };
        match groups.iter_mut().find(|(known, _)| *known == how) {
            Some((_, ranks)) => ranks.push(*rank),
            None => groups.push((how, vec![*rank])),
        }
    }
    let failed: usize = groups.iter().map(|(_, ranks)| ranks.len()).sum();
    if failed == 0 {
        return Vec::new();
    }
    let mut lines = vec![format!("{failed} of {} failed", state::tasks(done.len() as u32))];
    for (how, ranks) in groups {
        let named: Vec<String> = ranks.iter().take(NAMED).map(|rank| format!("task{rank}")).collect();
        let more = ranks.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        lines.push(format!("  {}{more}: {how}", named.join(", ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(result: Result<u8, Error>) -> Done {
        Done { result, stdout: Vec::new(), stderr: Vec::new() }
    }

    #[test]
    fn the_summary_says_who_failed_and_how() {
        let lost = || Err(Error::new(Code::TaskLost, "the connection broke"));
        let results = [Ok(0), Ok(3), lost(), Ok(3)];
        let all: BTreeMap<u32, Done> = (0..).zip(results.map(done)).collect();
        insta::assert_snapshot!(summary(&all).join("\n"), @r"
        3 of 4 tasks failed
          task1, task3: exit code 3
          task2: the connection broke
        ");
        assert_eq!(all[&2].code(), 125);
        let well: BTreeMap<u32, Done> = (0..).zip([Ok(0), Ok(0)].map(done)).collect();
        assert!(summary(&well).is_empty());
        let many: BTreeMap<u32, Done> = (0..20).map(|rank| (rank, done(Ok(1)))).collect();
        assert!(summary(&many)[1].ends_with("task15 and 4 more: exit code 1"), "{:?}", summary(&many));
    }
}
