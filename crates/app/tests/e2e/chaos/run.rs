//! One run: a plan, carried out on a server of its own.
//!
//! Steps never wait for what they start, so that a command may be anywhere when its server is killed. Commands are looked at
//! when all steps are done: each that was not itself killed must have succeeded.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use muster_testkit::{
    DEADLINE, Finished, Home, Running, copy_program, freeze, is_alive, kill, thaw, wait_for,
};
use rustix::process::Signal;
use serde_json::json;

use super::damage::{DamagedDatabase, damage_task};
use super::plan::{Plan, PlannedJob, Role, Step, Victim, Work};
use crate::disk::SmallDisk;
use crate::home;

const TASK: &str = include_str!("task.pl");
/// Loaded into every command and into the server, which inherits it; the agent keeps the machine's clock.
const CLOCK: &str = include_str!("clock.c");
const FIRST_BUILD: &str = env!("CARGO_BIN_EXE_muster");
/// An agent is back within a second after one kill, and within seconds after several. Where there is no victim by then, none
/// is killed.
const VICTIM_PATIENCE: Duration = Duration::from_secs(2);
/// Of the server's data where it is to be full. `muster doctor` finds less than 100 MB too little.
const DISK_SIZE: &str = "256m";

/// A plan while it is carried out.
pub(super) struct ChaosRun {
    pub plan: Plan,
    pub home: Home,
    pub faults: FaultCounts,
    begun: Instant,
    commands: Vec<StartedCommand>,
    frozen: Vec<FrozenProcess>,
    is_first_build: bool,
    disk: Option<SmallDisk>,
    room_at: Option<Instant>,
    damaged_database: Option<DamagedDatabase>,
}

/// How often each kind of fault was met, and how many processes were killed.
#[derive(Debug, Default)]
pub(super) struct FaultCounts {
    pub by_kind: BTreeMap<String, u64>,
    pub killed: BTreeMap<Role, u64>,
}

/// A command that may still run.
struct StartedCommand {
    step: Step,
    running: Running,
    is_killed: bool,
}

/// A command that has ended.
pub(super) struct EndedCommand {
    pub step: Step,
    pub finished: Finished,
    /// It was killed, so that nothing is promised about it.
    pub is_killed: bool,
}

struct FrozenProcess {
    pid: u32,
    thawed_at: Instant,
}

impl FaultCounts {
    pub fn add(&mut self, other: &Self) {
        for (kind, count) in &other.by_kind {
            *self.by_kind.entry(kind.clone()).or_default() += count;
        }
        for (role, count) in &other.killed {
            *self.killed.entry(*role).or_default() += count;
        }
    }

    pub fn killed_of(&self, role: Role) -> u64 {
        self.killed.get(&role).copied().unwrap_or_default()
    }

    pub fn kills(&self) -> u64 {
        self.killed.values().sum()
    }

    fn count(&mut self, kind: String) {
        *self.by_kind.entry(kind).or_default() += 1;
    }
}

impl ChaosRun {
    /// A fresh server's directory with the files of all jobs.
    pub fn new(plan: Plan) -> Self {
        let mut home = home();
        let is_filled = plan.steps.iter().any(|planned| matches!(planned.step, Step::FillDisk(_)));
        let disk = is_filled.then(|| SmallDisk::under(&home, DISK_SIZE));
        home.write("task.pl", TASK);
        let folder = home.shared().parent().expect("a directory around it").to_owned();
        if plan.steps.iter().any(|planned| planned.step == Step::ChangeBuild) {
            copy_program(&other_build(), &folder.join("other-build"));
        }
        if plan.steps.iter().any(|planned| matches!(planned.step, Step::SetClock(_))) {
            home.set_variable("LD_PRELOAD", build_clock(&folder));
            home.set_variable("MUSTER_CHAOS_CLOCK", folder.join("clock"));
        }
        for job in &plan.jobs {
            let text = job_file(job).to_string();
            std::fs::write(home.shared().join(format!("{}.json", job.name)), text).expect("a job file");
        }
        Self {
            plan,
            home,
            faults: FaultCounts::default(),
            begun: Instant::now(),
            commands: Vec::new(),
            frozen: Vec::new(),
            is_first_build: true,
            disk,
            room_at: None,
            damaged_database: None,
        }
    }

    /// Takes every step of the plan, each at its moment or as soon after it as it can be taken.
    pub fn take_steps(&mut self) {
        self.begun = Instant::now();
        for planned in self.plan.steps.clone() {
            let at = self.begun + Duration::from_millis(planned.at_ms);
            self.wait_until(at, |_| false);
            self.take(planned.step);
        }
        let thaws = self.frozen.iter().map(|frozen| frozen.thawed_at);
        let repair_at = self.damaged_database.as_ref().map(|damaged| damaged.repaired_at);
        let at = thaws.chain(self.room_at).chain(repair_at).max();
        self.wait_until(at.unwrap_or_else(Instant::now), |_| false);
    }

    /// Waits for the end of every command, also of the attached and following ones, whose jobs end by themselves.
    pub fn end_commands(&mut self) -> Vec<EndedCommand> {
        let commands = std::mem::take(&mut self.commands);
        let end = |command: StartedCommand| EndedCommand {
            finished: command.running.finish_within(2 * DEADLINE),
            step: command.step,
            is_killed: command.is_killed,
        };
        commands.into_iter().map(end).collect()
    }

    /// Waits for the commands that change jobs, but for those that stay with one.
    pub fn wait_for_changes(&mut self) {
        let plan = &self.plan;
        let changes = self.commands.iter_mut().filter(|command| match command.step {
            Step::Submit(job) => !plan.jobs[job].is_attached,
            Step::Follow(_) => false,
            _ => true,
        });
        for StartedCommand { step, running, .. } in changes {
            wait_for(&format!("the end of {step:?}"), || running.is_over());
        }
    }

    fn take(&mut self, step: Step) {
        match &step {
            Step::Submit(job) => {
                let job = self.plan.jobs[*job].clone();
                if let Some(other) = self.plan.jobs.iter().position(|other| job.after == Some(other.name)) {
                    self.wait_for_command(&Step::Submit(other));
                }
                let file = self.home.shared().join(format!("{}.json", job.name));
                let file = file.to_str().expect("a plain path");
                match job.is_attached {
                    true => self.start(&step, &["run", "--file", file]),
                    false => self.start(&step, &["run", "--detach", "--json", "--file", file]),
                }
            }
            Step::Follow(job) => self.command_for(&step, *job, &["logs", "--follow"]),
            Step::Stop(job) => self.command_for(&step, *job, &["stop"]),
            Step::Suspend(job) => self.command_for(&step, *job, &["suspend"]),
            Step::Resume(job) => {
                self.wait_for_command(&Step::Suspend(*job));
                self.command_for(&step, *job, &["resume"]);
            }
            Step::StartServer => self.start(&step, &["server", "start"]),
            Step::StopServer => {
                self.faults.count("server stop".into());
                self.start(&step, &["server", "stop"]);
            }
            Step::Kill(victims) => self.kill(victims),
            Step::Freeze(victim, milliseconds) => self.freeze(*victim, Duration::from_millis(*milliseconds)),
            Step::ChangeBuild => {
                self.faults.count("change of build".into());
                self.is_first_build = !self.is_first_build;
                let other = self.beside("other-build");
                self.home.set_binary(if self.is_first_build { PathBuf::from(FIRST_BUILD) } else { other });
            }
            Step::FillDisk(milliseconds) => {
                self.wait_for_submissions();
                if self.damaged_database.is_none() {
                    self.faults.count("full disk".into());
                    self.disk.as_ref().expect("it was made for this step").fill();
                    self.room_at = Some(Instant::now() + Duration::from_millis(*milliseconds));
                }
            }
            Step::DamageDatabase(kind, milliseconds) => {
                // What is put back must fit.
                if self.room_at.is_none() && self.damaged_database.is_none() {
                    self.kill_all(Role::Server);
                    let repaired_at = Instant::now() + Duration::from_millis(*milliseconds);
                    self.damaged_database = DamagedDatabase::make(&self.home, *kind, repaired_at);
                    if self.damaged_database.is_some() {
                        self.faults.count(format!("damaged database {kind:?}"));
                    }
                }
            }
            Step::DamageTask(file, pick) => {
                if let Some(agent) = self.candidates(Role::Agent).first().copied() {
                    // It must not write there meanwhile.
                    freeze(agent);
                    if damage_task(&self.home, *file, *pick) {
                        self.faults.count(format!("damaged {file:?}"));
                    }
                    kill(agent);
                    wait_for("the agent to be gone", || !is_alive(agent));
                    *self.faults.killed.entry(Role::Agent).or_default() += 1;
                }
            }
            Step::SetClock(seconds) => {
                self.faults.count("clock jump".into());
                std::fs::write(self.beside("clock.new"), seconds.to_string()).expect("the clock's file");
                std::fs::rename(self.beside("clock.new"), self.beside("clock")).expect("the clock's file");
            }
        }
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.home.shared().with_file_name(name)
    }

    fn start(&mut self, step: &Step, words: &[&str]) {
        let running = self.home.start(words);
        self.commands.push(StartedCommand { step: step.clone(), running, is_killed: false });
    }

    /// Starts a command that names a job, once the job is there.
    fn command_for(&mut self, step: &Step, job: usize, words: &[&str]) {
        self.wait_for_command(&Step::Submit(job));
        let words: Vec<&str> = words.iter().copied().chain([self.plan.jobs[job].name]).collect();
        self.start(step, &words);
    }

    fn wait_for_command(&mut self, step: &Step) {
        let is_over = |run: &mut Self| {
            run.commands.iter_mut().all(|command| command.step != *step || command.running.is_over())
        };
        self.wait_until(Instant::now() + DEADLINE, is_over);
    }

    /// What later steps stand on must be there before the disk is full. An attached client may be refused.
    fn wait_for_submissions(&mut self) {
        let is_over = |run: &mut Self| {
            run.commands.iter_mut().all(|command| match command.step {
                Step::Submit(job) => run.plan.jobs[job].is_attached || command.running.is_over(),
                _ => true,
            })
        };
        self.wait_until(Instant::now() + DEADLINE, is_over);
    }

    /// Waits for a moment, or less if a condition holds before. What ends by itself meanwhile, such as a freeze, does.
    fn wait_until(&mut self, at: Instant, mut is_enough: impl FnMut(&mut Self) -> bool) {
        wait_for("the next step", || {
            let is_time = Instant::now() >= at;
            self.end_due();
            is_enough(self) || is_time
        });
    }

    fn end_due(&mut self) {
        let now = Instant::now();
        if self.room_at.take_if(|at| *at <= now).is_some() {
            self.disk.as_ref().expect("it is full").make_room();
        }
        if let Some(damaged) = self.damaged_database.take_if(|damaged| damaged.repaired_at <= now) {
            damaged.repair(&self.home);
            // The commands that were to start one may have come before.
            self.start(&Step::StartServer, &["server", "start"]);
        }
        self.frozen.retain(|frozen| {
            let is_due = frozen.thawed_at <= now;
            if is_due {
                thaw(frozen.pid);
            }
            !is_due
        });
    }

    /// All are found before the first is killed, so that they die together.
    fn kill(&mut self, victims: &[Victim]) {
        let mut found = Vec::new();
        for victim in victims {
            found.extend(self.find(*victim).map(|pid| (victim.role, pid)));
        }
        for (role, pid) in &found {
            match role {
                Role::Client => self.kill_client(*pid),
                Role::Agent | Role::Server | Role::Supervisor => kill(*pid),
            }
        }
        wait_for("the killed to be gone", || found.iter().all(|(_, pid)| !is_alive(*pid)));
        if !found.is_empty() {
            let roles: Vec<&str> = found.iter().map(|(role, _)| role.as_str()).collect();
            self.faults.count(format!("kill {}", roles.join("+")));
        }
        for (role, _) in found {
            *self.faults.killed.entry(role).or_default() += 1;
        }
    }

    /// Kills all of a role that run now.
    fn kill_all(&mut self, role: Role) {
        for pid in self.candidates(role) {
            kill(pid);
            wait_for("the killed to be gone", || !is_alive(pid));
            *self.faults.killed.entry(role).or_default() += 1;
        }
    }

    fn kill_client(&mut self, pid: u32) {
        for command in self.commands.iter_mut().filter(|command| command.running.pid() == pid) {
            command.is_killed = true;
            command.running.signal(Signal::KILL);
            let _ = command.running.is_over();
        }
    }

    fn freeze(&mut self, victim: Victim, span: Duration) {
        if let Some(pid) = self.find(victim) {
            freeze(pid);
            self.frozen.push(FrozenProcess { pid, thawed_at: Instant::now() + span });
            self.faults.count(format!("freeze {}", victim.role.as_str()));
        }
    }

    fn find(&mut self, victim: Victim) -> Option<u32> {
        let mut found = None;
        self.wait_until(Instant::now() + VICTIM_PATIENCE, |run| {
            let candidates = run.candidates(victim.role);
            found = candidates.get(victim.pick % candidates.len().max(1)).copied();
            // Clients come and go with the steps.
            found.is_some() || victim.role == Role::Client
        });
        found
    }

    fn candidates(&mut self, role: Role) -> Vec<u32> {
        let word = match role {
            Role::Agent => "agent",
            Role::Server => "server",
            Role::Supervisor => "supervise",
            Role::Client => return self.expendable_clients(),
        };
        let commands: Vec<u32> = self.commands.iter().map(|command| command.running.pid()).collect();
        // `muster server start` is a client.
        let processes = self.home.processes_as(word).into_iter();
        let all: Vec<u32> =
            processes.map(|process| process.pid).filter(|pid| !commands.contains(pid)).collect();
        // A process that has yet to become a task has the words of its supervisor.
        let is_child = |pid: u32| parent(pid).is_some_and(|parent| all.contains(&parent));
        all.iter().copied().filter(|pid| !is_child(*pid)).collect()
    }

    /// Commands that run, and that nothing later in the plan stands on.
    fn expendable_clients(&mut self) -> Vec<u32> {
        let plan = &self.plan;
        let is_expendable = |command: &&mut StartedCommand| match command.step {
            Step::Submit(job) => !plan.is_needed(job),
            _ => true,
        };
        let running = self.commands.iter_mut().filter(is_expendable);
        running.filter_map(|command| (!command.running.is_over()).then(|| command.running.pid())).collect()
    }
}

impl Drop for ChaosRun {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.home.keep();
            // What it holds is kept as well.
            std::mem::forget(self.disk.take());
            let seed = self.plan.seed;
            eprintln!(
                "violation of seed {seed}\nplan:\n{}met: {:?}\nhome: {}\nrepeat: make chaos SEED={seed} RUNS=1",
                self.plan,
                self.faults.by_kind,
                self.home.path().display()
            );
        }
    }
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// A copy of a binary is another build; one that is really of another version is better.
fn other_build() -> PathBuf {
    std::env::var_os("MUSTER_CHAOS_OTHER_BINARY").map_or_else(|| FIRST_BUILD.into(), PathBuf::from)
}

/// Makes the library that a process asks for the time once it is loaded.
fn build_clock(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
    std::fs::write(&source, CLOCK).expect("the clock's source");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).args([&library, &source]);
    assert!(compiler.status().expect("cc, with which muster is built, starts").success());
    library
}

fn job_file(job: &PlannedJob) -> serde_json::Value {
    let (work, failing) = match job.work {
        Work::Plain | Work::Gang { .. } => ("plain", 0),
        Work::FailsFirst { failures } => ("fails-first", failures),
        Work::Array { failing, .. } => ("array", failing),
        Work::Waits => ("waits", 0),
        Work::Endless => ("endless", 0),
    };
    let numbers =
        [job.lines, job.burst, job.exit_code.unsigned_abs(), failing].map(|number| number.to_string());
    let words = ["perl", "task.pl", job.name, work].map(str::to_owned).into_iter().chain(numbers);
    // A killed supervisor costs an attempt, and a damaged record does. No other fault does.
    let mut retried = vec!["supervisor_lost", "record_damaged"];
    retried.extend(matches!(job.work, Work::FailsFirst { .. }).then_some("exit_code"));
    let mut file = json!({
        "name": job.name,
        "command": words.collect::<Vec<_>>(),
        "retries": {"max": 100, "on": retried},
    });
    if let Work::Gang { nodes } = job.work {
        file["nodes"] = json!(nodes);
    }
    if let Work::Array { elements, at_once, .. } = job.work {
        file["array"] = json!(format!("1-{elements}%{at_once}"));
    }
    if let Some(after) = job.after {
        file["after"] = json!([format!("{after}:any")]);
    }
    file
}
