//! What must hold after a run, whatever was killed: the promises of docs/concepts/crashes.md, looked at from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use muster_testkit::{Home, wait_for};
use serde_json::Value;

use super::damage;
use super::plan::{PlannedJob, Role, Step, Work};
use super::run::{ChaosRun, EndedCommand};
use crate::attempts;

/// Of elements, every so many has its log compared: each takes a command.
const ELEMENTS_TO_READ: u64 = 4;

/// A run that has come to its end.
struct SettledRun<'a> {
    run: &'a ChaosRun,
    commands: Vec<EndedCommand>,
    /// The jobs that the server has, by name.
    jobs: BTreeMap<String, Value>,
    traces: Vec<Trace>,
}

/// A line that a process of a job wrote outside of muster, at its start or at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Trace {
    is_end: bool,
    name: String,
    process: ProcessKey,
}

/// A process of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ProcessKey {
    attempt: u64,
    rank: u64,
    /// The index of an element, 0 elsewhere.
    index: u64,
}

/// Waits for the end of everything, kills the server once more, and compares all that is left with what is promised.
pub(super) fn check(run: &mut ChaosRun) {
    let commands = settle(run);
    let killed = run.home.kill("server");
    assert_eq!(killed, 1, "one server runs");
    run.home.wait_for_node();
    let jobs = jobs(&run.home).into_iter().map(|(name, id)| (name, run.home.job(&id))).collect();
    let traces = traces(&run.home.shared().join("traces"));
    let settled = SettledRun { run, commands, jobs, traces };
    settled.check_commands();
    for job in &run.plan.jobs {
        settled.check_job(job);
    }
    settled.check_lost_attempts();
    settled.check_nothing_is_left();
    damage::check_last(&run.home, run.plan.seed, run.plan.last_damage);
}

/// Ends what does not end by itself, and waits for all of it.
fn settle(run: &mut ChaosRun) -> Vec<EndedCommand> {
    run.home.ok(["server", "start"]);
    run.wait_for_changes();
    let jobs = jobs(&run.home);
    for job in &run.plan.jobs {
        match (jobs.get(job.name), job.work) {
            (Some(id), Work::Endless) => drop(run.home.ok(["stop", id])),
            (Some(id), Work::Waits) => resume(&run.home, id),
            _ => {}
        }
    }
    run.home.touch("go");
    for (name, id) in &jobs {
        wait_for_end(&run.home, name, id);
    }
    run.end_commands()
}

/// The id of each job by its name. A name belongs to one job.
fn jobs(home: &Home) -> BTreeMap<String, String> {
    let listed = home.json(["ps", "--all", "--json"]);
    let listed = listed.as_array().expect("a list of jobs");
    let text = |job: &Value, field: &str| job[field].as_str().expect("a text").to_owned();
    let jobs: BTreeMap<_, _> = listed.iter().map(|job| (text(job, "name"), text(job, "id"))).collect();
    assert_eq!(jobs.len(), listed.len(), "a job was made twice: {listed:?}");
    jobs
}

fn shown(home: &Home, id: &str) -> Value {
    home.get(&format!("/api/v1/jobs/{id}")).json()
}

fn resume(home: &Home, id: &str) {
    wait_for("the suspended job to be resumed", || match shown(home, id)["state"].as_str() {
        Some("suspended") => {
            home.ok(["resume", id]);
            true
        }
        Some("stopping") => false,
        _ => true,
    });
}

fn wait_for_end(home: &Home, name: &str, id: &str) {
    wait_for(&format!("the end of {name}"), || {
        let job = shown(home, id);
        ["succeeded", "failed", "stopped"].iter().any(|end| job["state"] == *end)
    });
}

fn traces(path: &Path) -> Vec<Trace> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse().expect("a number");
            Trace {
                is_end: words[0] == "ended",
                name: words[1].to_owned(),
                process: ProcessKey { attempt: number(2), rank: number(3), index: number(4) },
            }
        })
        .collect()
}

/// What a process writes to one of its outputs, the first `lines` lines of it.
fn written(stream: &str, name: &str, process: ProcessKey, lines: u64) -> String {
    let ProcessKey { attempt, rank, index } = process;
    (0..lines).fold(String::new(), |mut text, line| {
        let padding = "x".repeat((line * 37 % 100) as usize);
        let _ = writeln!(text, "{stream} {name} {attempt} {rank} {index} {line} {padding}");
        text
    })
}

/// Where a text leaves what was expected, in words: logs are too long to be printed.
fn difference(expected: &str, found: &str) -> String {
    let at = expected.lines().zip(found.lines()).take_while(|(expected, found)| expected == found).count();
    format!(
        "{} lines expected, {} found; line {}: expected {:?}, found {:?}",
        expected.lines().count(),
        found.lines().count(),
        at + 1,
        expected.lines().nth(at),
        found.lines().nth(at)
    )
}

impl SettledRun<'_> {
    fn began(&self, name: &str) -> impl Iterator<Item = ProcessKey> {
        self.traces.iter().filter(move |trace| trace.name == name && !trace.is_end).map(|trace| trace.process)
    }

    fn has_ended(&self, name: &str, process: ProcessKey) -> bool {
        self.traces.iter().any(|trace| trace.name == name && trace.is_end && trace.process == process)
    }

    /// Whether what a process left in its pipes may be lost: agent and supervisor were killed, and it ended before the next
    /// agent came.
    fn may_lack_its_end(&self, name: &str, process: ProcessKey, reason: &Value) -> bool {
        let faults = &self.run.faults;
        reason["code"] == "supervisor_lost"
            && self.has_ended(name, process)
            && faults.killed_of(Role::Agent) > 0
            && faults.killed_of(Role::Supervisor) > 0
    }

    /// Whether a command may have failed: it was killed, its server was as often as it started one, there was no room for what
    /// it wanted, or it names a job whose submission failed so.
    fn is_excused(&self, command: &EndedCommand) -> bool {
        let was_full = self.run.plan.steps.iter().any(|planned| matches!(planned.step, Step::FillDisk(_)));
        let err = command.finished.err();
        let has_failed = !command.finished.status.success();
        let is_full = err.contains("is full") || err.contains("No space left on device");
        let was_damaged =
            self.run.plan.steps.iter().any(|step| matches!(step.step, Step::DamageDatabase(..)));
        let is_damaged = was_damaged && damage::is_said_of_database(&err);
        let is_refused = has_failed && (was_full && is_full || is_damaged || err.contains("(SIGKILL)"));
        let is_missing = |job: usize| {
            let mut commands = self.commands.iter();
            commands.any(|other| other.step == Step::Submit(job) && self.is_excused(other))
        };
        command.is_killed
            || is_refused
            || has_failed && self.needed_job(&command.step).is_some_and(is_missing)
    }

    /// The job that must be there for a step.
    fn needed_job(&self, step: &Step) -> Option<usize> {
        let jobs = &self.run.plan.jobs;
        match *step {
            Step::Submit(job) => jobs.iter().position(|other| Some(other.name) == jobs[job].after),
            Step::Follow(job) | Step::Stop(job) | Step::Suspend(job) | Step::Resume(job) => Some(job),
            _ => None,
        }
    }

    fn check_commands(&self) {
        for command in &self.commands {
            let EndedCommand { step, finished, .. } = command;
            let is_suspension_undone = |job: usize| {
                let mut commands = self.commands.iter();
                commands.any(|other| other.step == Step::Suspend(job) && self.is_excused(other))
            };
            let expected = match step {
                _ if self.is_excused(command) => continue,
                Step::Resume(job) if is_suspension_undone(*job) => continue,
                Step::Submit(job) if self.run.plan.jobs[*job].is_attached => {
                    self.run.plan.jobs[*job].exit_code
                }
                _ => 0,
            };
            let (out, err) = (finished.out(), finished.err());
            assert_eq!(i64::from(finished.code()), expected, "{step:?}\n{out}\n{err}");
            if let Step::Submit(job) = step {
                let name = self.run.plan.jobs[*job].name;
                assert!(self.jobs.contains_key(name), "{name} was accepted and is gone");
            }
            match step {
                Step::Submit(job) if self.run.plan.jobs[*job].is_attached => {
                    self.check_client(*job, &out, &err)
                }
                Step::Follow(job) => self.check_client(*job, &out, &err),
                _ => {}
            }
        }
    }

    /// A client shows of each attempt the beginning of its output, and of the last one all.
    fn check_client(&self, job: usize, out: &str, err: &str) {
        let PlannedJob { name, lines, .. } = self.run.plan.jobs[job];
        let last = self.began(name).last();
        let begun = self.began(name).map(|process| {
            let label = format!("out {name} {} ", process.attempt);
            let shown = out.lines().filter(|line| line.starts_with(&label));
            (process, shown.fold(String::new(), |text, line| text + line + "\n"))
        });
        for (process, shown) in begun {
            let whole = written("out", name, process, lines);
            let (is_last, difference) = (Some(process) == last, difference(&whole, &shown));
            assert!(whole.starts_with(&shown), "{name}, {process:?}, as a client showed it: {difference}");
            assert!(!is_last || shown == whole, "{name}: a client lost lines: {difference}\n{err}");
        }
    }

    fn check_job(&self, job: &PlannedJob) {
        let name = job.name;
        let Some(shown) = self.jobs.get(name) else {
            assert_eq!(self.began(name).next(), None, "{name} is gone, and has run");
            return;
        };
        let (state, exit_code) = match (job.work, job.exit_code) {
            (Work::Endless, _) => ("stopped", 130),
            (Work::Array { failing: 1.., .. }, _) => ("failed", 1),
            (Work::Array { .. }, _) | (_, 0) => ("succeeded", 0),
            (_, code) => ("failed", code),
        };
        assert_eq!(
            (shown["state"].as_str(), shown["exit_code"].as_i64()),
            (Some(state), Some(exit_code)),
            "{shown:#}"
        );
        self.check_runs(job, shown);
        self.check_order(job);
        match job.work {
            Work::Array { elements, failing, .. } => self.check_elements(job, elements, failing),
            _ => self.check_attempts(job, shown),
        }
    }

    /// No process of an attempt is started twice, none beside one that it replaces, and all of the last attempt ended.
    fn check_runs(&self, job: &PlannedJob, shown: &Value) {
        let mut known = BTreeSet::new();
        let mut last: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for trace in self.traces.iter().filter(|trace| trace.name == job.name) {
            let ProcessKey { attempt, rank, index } = trace.process;
            assert!(known.insert((trace.is_end, trace.process)), "{} did it twice: {trace:?}", job.name);
            let place = if index == 0 { (rank, 0) } else { (0, index) };
            let newest = last.entry(place).or_default();
            // The attempts of lanes go on beside each other.
            let is_in_turn = if trace.is_end { attempt == *newest } else { index != 0 || attempt > *newest };
            assert!(is_in_turn, "{}: {trace:?} beside attempt {newest}", job.name);
            *newest = attempt;
        }
        let has_no_end = |place: &(u64, u64), attempt: &u64| {
            let is_it = |process: &ProcessKey| {
                process.attempt == *attempt
                    && if process.index == 0 { process.rank == place.0 } else { process.index == place.1 }
            };
            !self.began(job.name).filter(is_it).all(|process| self.has_ended(job.name, process))
        };
        let open: Vec<_> = last.iter().filter(|(place, attempt)| has_no_end(place, attempt)).collect();
        assert!(job.work == Work::Endless || open.is_empty(), "{}: did not end: {open:?}", job.name);
        let processes = match job.work {
            Work::Endless => last.len(),
            Work::Gang { nodes } => nodes as usize,
            Work::Array { elements, .. } => elements as usize,
            Work::Plain | Work::FailsFirst { .. } | Work::Waits => 1,
        };
        assert_eq!(last.len(), processes, "{}: not all of it ran: {last:?}\n{shown:#}", job.name);
    }

    /// A job that waits for another begins after the end of that.
    fn check_order(&self, job: &PlannedJob) {
        let Some(after) = job.after else { return };
        let other = self.traces.iter().rposition(|trace| trace.name == after);
        let own = self.traces.iter().position(|trace| trace.name == job.name);
        assert!(other < own, "{} began before {after} had ended", job.name);
    }

    fn check_attempts(&self, job: &PlannedJob, shown: &Value) {
        let all = attempts(shown);
        let begun: BTreeSet<u64> = self.began(job.name).map(|process| process.attempt).collect();
        let known: BTreeSet<u64> = all.iter().filter_map(|attempt| attempt["number"].as_u64()).collect();
        assert!(begun.is_subset(&known), "{}: attempts {begun:?} ran, of {known:?}", job.name);
        // A job that was stopped in the queue has none.
        for attempt in all.iter().rev().skip(1) {
            let is_expected = match attempt["reason"]["code"].as_str() {
                Some("supervisor_lost") => true,
                Some("record_damaged") => self.run.faults.by_kind.contains_key("damaged Record"),
                Some("exit_code") => matches!(job.work, Work::FailsFirst { .. }),
                Some("suspended") => job.work == Work::Waits,
                _ => false,
            };
            assert!(is_expected, "{}: an attempt ended otherwise than it should: {attempt:#}", job.name);
        }
        for process in self.began(job.name) {
            let attempt = all.iter().find(|attempt| attempt["number"] == process.attempt);
            self.check_log(job, process, &attempt.expect("it is known")["reason"]);
        }
    }

    /// A log is the beginning of what its process writes: all that it is known to have written, every line once.
    fn check_log(&self, job: &PlannedJob, process: ProcessKey, reason: &Value) {
        let ProcessKey { attempt, rank, index } = process;
        let name = job.name;
        let words = ["logs", name, "--attempt", &attempt.to_string(), "--task", &rank.to_string()];
        let log = self.run.home.run(words);
        assert_eq!(log.code(), 0, "{words:?}: {}", log.err());
        let counted = self.run.home.shared().join(format!("count.{name}.{attempt}.{rank}.{index}"));
        let counted = fs::metadata(&counted).map_or(0, |file| file.len());
        for (stream, text) in [("out", log.out()), ("err", log.err())] {
            let whole = written(stream, name, process, job.lines);
            let lines = text.lines().count() as u64;
            assert!(
                whole.starts_with(&text),
                "{words:?}: std{stream} is not what was written: {}",
                difference(&whole, &text)
            );
            assert!(
                lines >= counted || self.may_lack_its_end(name, process, reason),
                "{words:?}: std{stream} has {lines} of {counted} lines that were written; {reason}"
            );
        }
    }

    fn check_elements(&self, job: &PlannedJob, elements: u64, failing: u64) {
        let name = job.name;
        let shown = self.run.home.json(["elements", name, "--all", "--json"]);
        let shown = shown.as_array().expect("a list of elements");
        let indices: Vec<u64> = shown.iter().filter_map(|element| element["index"].as_u64()).collect();
        assert_eq!(indices, (1..=elements).collect::<Vec<_>>());
        for element in shown {
            let number = |field: &str| element[field].as_u64().expect("a number");
            let index = number("index");
            let (state, exit_code) =
                if index <= failing { ("failed", Some(job.exit_code)) } else { ("succeeded", None) };
            assert_eq!(element["state"], state, "{element:#}");
            assert_eq!(element["failure"]["exit_code"].as_i64(), exit_code, "{element:#}");
            let begun = self.began(name).filter(|process| process.index == index).count() as u64;
            assert!(begun <= number("tries"), "element {index} ran {begun} times: {element:#}");
            let is_lost = self.run.faults.killed_of(Role::Supervisor) > 0;
            assert!(is_lost || begun == 1, "element {index} ran again for no reason: {element:#}");
            // An element is alone in its gang, in whichever lane it runs.
            let process = ProcessKey { attempt: number("attempt"), rank: 0, index };
            assert!(self.has_ended(name, process), "element {index} did not end there: {element:#}");
            if index % ELEMENTS_TO_READ == self.run.plan.seed % ELEMENTS_TO_READ {
                let log = self.run.home.run(["logs", name, "--element", &index.to_string()]);
                for (stream, text) in [("out", log.out()), ("err", log.err())] {
                    let whole = written(stream, name, process, job.lines);
                    assert!(text == whole, "element {index}: std{stream}: {}", difference(&whole, &text));
                }
            }
        }
    }

    /// Only a killed supervisor costs an attempt, and no more than one.
    fn check_lost_attempts(&self) {
        let all = self.jobs.values().filter(|job| job["elements"].is_null()).flat_map(attempts);
        let lost: Vec<&Value> =
            all.filter(|attempt| attempt["reason"]["code"] == "supervisor_lost").collect();
        let killed = self.run.faults.killed_of(Role::Supervisor);
        assert!(lost.len() as u64 <= killed, "{killed} supervisors were killed, and lost were {lost:#?}");
        let all = self.jobs.values().filter(|job| job["elements"].is_null()).flat_map(attempts);
        let stopped = all.filter(|attempt| attempt["reason"]["code"] == "record_damaged").count() as u64;
        let damaged = self.run.faults.by_kind.get("damaged Record").copied().unwrap_or_default();
        assert!(stopped <= damaged, "{damaged} records were damaged, and {stopped} attempts stopped for it");
    }

    fn check_nothing_is_left(&self) {
        let home = &self.run.home;
        home.wait_for_no_tasks();
        wait_for("the node to be empty", || {
            let nodes = home.get("/api/v1/nodes").json();
            let node = &nodes["items"][0];
            node["connected"] == true && node["slots_used"] == 0
        });
        let ids: Vec<&str> = self.jobs.values().filter_map(|job| job["id"].as_str()).collect();
        let is_of_job = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            ids.iter().any(|id| name.contains(id))
        };
        wait_for("control groups to be gone", || {
            !directories(Path::new("/sys/fs/cgroup")).any(|path| is_of_job(&path))
        });
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts can be read");
        let path = home.path();
        // One that is to be full has a disk of its own there.
        let below = format!("{}/", path.display());
        let own: Vec<&str> = mounts.lines().filter(|line| line.contains(&below)).collect();
        assert!(own.is_empty(), "still mounted: {own:?}");
        // Of a task that is over, the files that it left are kept, and a note of how it ended.
        let kept = ["work", "upper", "output", "forgotten"];
        let is_forgotten = |task: &Path| {
            let mut entries = fs::read_dir(task).into_iter().flatten().flatten();
            entries.all(|entry| kept.iter().any(|name| entry.file_name() == *name))
        };
        for task in entries(&path.join("node/tasks")) {
            wait_for(&format!("{} to be forgotten", task.display()), || is_forgotten(&task));
        }
        let doctor = home.run(["doctor"]);
        assert_eq!(doctor.code(), 0, "{}{}", doctor.out(), doctor.err());
    }
}

fn entries(path: &Path) -> Vec<PathBuf> {
    fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// All directories below one.
fn directories(root: &Path) -> impl Iterator<Item = PathBuf> {
    let mut open = vec![root.to_owned()];
    std::iter::from_fn(move || {
        let next = open.pop()?;
        open.extend(entries(&next).into_iter().filter(|path| path.is_dir() && !path.is_symlink()));
        Some(next)
    })
}
