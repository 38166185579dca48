//! What a seed stands for: the jobs of a run, and the moment of each step.
//!
//! Pure, so that a seed names the same plan for ever. What a plan leads to also depends on the machine, so a seed that failed
//! once may have to be run several times to fail again.

use std::fmt;

use crate::crash::Random;

/// The time in which the steps of a run are planned.
const SPAN_MS: u64 = 3000;
/// Jobs are submitted in the first part of it, so that most faults meet all of them.
const SUBMISSION_MS: u64 = 1200;
/// How long a killed or stopped server may be away before a command starts it again.
const LONGEST_ABSENCE_MS: u64 = 400;
/// Clients give up a server that is silent for 30 s; this is far below.
const LONGEST_FREEZE_MS: u64 = 1500;
const LONGEST_FULL_MS: u64 = 1200;
/// Where clocks are set to. Ahead by less than the 30 s in which a node may be away before its tasks are lost.
const CLOCKS_S: [i64; 6] = [-86_400, -3600, -30, -2, 2, 20];

/// A run: its jobs, and its steps in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub seed: u64,
    pub jobs: Vec<PlannedJob>,
    pub steps: Vec<PlannedStep>,
    /// What is damaged once all has ended.
    pub last_damage: LastDamage,
}

/// A job, and what must become of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlannedJob {
    pub name: &'static str,
    pub work: Work,
    /// Numbered lines that each of its processes writes to stdout, and as many to stderr.
    pub lines: u64,
    /// After so many lines it pauses for a millisecond.
    pub burst: u64,
    /// What its program ends with in the end.
    pub exit_code: i64,
    /// The name of the job that must end first.
    pub after: Option<&'static str>,
    /// The client stays and shows its output.
    pub is_attached: bool,
}

/// What a job does besides writing lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Plain,
    /// Its first attempts end with code 9.
    FailsFirst {
        failures: u64,
    },
    Gang {
        nodes: u64,
    },
    /// The elements up to `failing` end with code 3.
    Array {
        elements: u64,
        at_once: u64,
        failing: u64,
    },
    /// Runs until the run is about to end.
    Waits,
    /// Runs until it is stopped.
    Endless,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlannedStep {
    pub at_ms: u64,
    pub step: Step,
}

/// What is done at a moment. Jobs are named by their place in the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Submit(usize),
    Follow(usize),
    Stop(usize),
    Suspend(usize),
    Resume(usize),
    StartServer,
    StopServer,
    /// `kill -9` for all of these at once.
    Kill(Vec<Victim>),
    /// SIGSTOP, and SIGCONT later.
    Freeze(Victim, u64),
    /// Later commands are of another build, or again of the first one; the first of them replaces the server.
    ChangeBuild,
    /// The clock of server and clients is so many seconds ahead of the machine's.
    SetClock(i64),
    /// The disk of the server's data is full for so many milliseconds.
    FillDisk(u64),
    /// The server is killed, and its database is damaged for so many milliseconds.
    DamageDatabase(DatabaseDamage, u64),
    /// The agent is killed, and a file of a task on its node is damaged.
    DamageTask(TaskFile, usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DatabaseDamage {
    Missing,
    Empty,
    /// Its log, with changes that were acknowledged, is cut in half.
    CutLog,
}

/// A file that agent and supervisor keep of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskFile {
    /// Its task is stopped, which costs the job an attempt.
    Record,
    /// What the task was launched with, which costs nothing.
    Launch,
    /// That the task has started, which costs nothing.
    Started,
}

/// Damage to what the server keeps of a job, each said when somebody wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastDamage {
    /// A byte of a log is another.
    FlippedLog,
    /// A log is cut in half.
    CutLog,
    MissingLog,
    /// Chunks of a job's code.
    Code,
}

/// A process, found when its moment has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Victim {
    pub role: Role,
    /// Which of several processes of that role.
    pub pick: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Agent,
    Client,
    Server,
    Supervisor,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Client => "client",
            Self::Server => "server",
            Self::Supervisor => "supervisor",
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for job in &self.jobs {
            writeln!(f, "  {job:?}")?;
        }
        for PlannedStep { at_ms, step } in &self.steps {
            writeln!(f, "  {at_ms:>5} ms  {step:?}")?;
        }
        writeln!(f, "    at last  {:?}", self.last_damage)
    }
}

impl Plan {
    /// The plan of a seed.
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Random(seed);
        let jobs = plan_jobs(&mut random);
        let mut steps = plan_commands(&mut random, &jobs);
        for _ in 0..8 + random.below(7) {
            plan_fault(&mut random, &mut steps);
        }
        // From numbers of their own, so that they leave the rest of the plan as it is.
        plan_upheavals(&mut Random(!seed), &mut steps);
        let mut random = Random(seed.rotate_left(32));
        plan_damage(&mut random, &mut steps);
        let kinds = [LastDamage::FlippedLog, LastDamage::CutLog, LastDamage::MissingLog, LastDamage::Code];
        let last_damage = kinds[random.below(kinds.len() as u64) as usize];
        // Stable: what is planned for one moment is done in the order in which it was planned.
        steps.sort_by_key(|step| step.at_ms);
        Self { seed, jobs, steps, last_damage }
    }

    /// Whether a later step needs the job, so that its submission must not be killed.
    pub fn is_needed(&self, job: usize) -> bool {
        let is_named = |step: &PlannedStep| match step.step {
            Step::Follow(other) | Step::Stop(other) | Step::Suspend(other) | Step::Resume(other) => {
                other == job
            }
            Step::Submit(_)
            | Step::StartServer
            | Step::StopServer
            | Step::Kill(_)
            | Step::Freeze(..)
            | Step::ChangeBuild
            | Step::SetClock(_)
            | Step::FillDisk(_)
            | Step::DamageDatabase(..)
            | Step::DamageTask(..) => false,
        };
        self.steps.iter().any(is_named)
            || self.jobs.iter().any(|other| other.after == Some(self.jobs[job].name))
    }
}

fn plan_jobs(random: &mut Random) -> Vec<PlannedJob> {
    let mut between = |low: u64, high: u64| low + random.below(high - low + 1);
    let exit_codes = [0, 0, 1, 7, 41];
    let exit_code = |random: u64| exit_codes[random as usize % exit_codes.len()];
    let job = |name, work, lines, burst| PlannedJob {
        name,
        work,
        lines,
        burst,
        exit_code: 0,
        after: None,
        is_attached: false,
    };
    let plain = PlannedJob {
        exit_code: exit_code(between(0, 99)),
        is_attached: between(0, 1) == 0,
        ..job("plain", Work::Plain, between(200, 1200), 1)
    };
    let flood = PlannedJob {
        is_attached: between(0, 1) == 0,
        ..job("flood", Work::Plain, between(2000, 9000), between(20, 400))
    };
    let elements = between(20, 50);
    let work = Work::Array { elements, at_once: between(1, 4), failing: between(0, 2) };
    let sweep = PlannedJob { exit_code: 3, ..job("sweep", work, between(5, 40), 1) };
    let again = job("again", Work::FailsFirst { failures: between(1, 3) }, between(20, 200), 1);
    let later = PlannedJob {
        exit_code: exit_code(between(0, 99)),
        after: Some("again"),
        ..job("later", Work::Plain, between(1, 50), 1)
    };
    let gang = job("gang", Work::Gang { nodes: 2 }, between(100, 800), 1);
    let parked =
        PlannedJob { exit_code: exit_code(between(0, 99)), ..job("parked", Work::Waits, between(1, 300), 1) };
    let endless = job("endless", Work::Endless, between(1, 300), 1);
    vec![plain, flood, sweep, again, later, gang, parked, endless]
}

/// Commands of users: every job is submitted, some are followed, one is stopped, one is suspended and resumed.
fn plan_commands(random: &mut Random, jobs: &[PlannedJob]) -> Vec<PlannedStep> {
    let mut steps = Vec::new();
    for (job, planned) in jobs.iter().enumerate() {
        let at_ms = match planned.after {
            // The job that it waits for must be there.
            Some(_) => SUBMISSION_MS + random.below(200),
            None => random.below(SUBMISSION_MS),
        };
        let mut add = |at_ms, step| steps.push(PlannedStep { at_ms, step });
        add(at_ms, Step::Submit(job));
        match planned.work {
            Work::FailsFirst { .. } | Work::Plain if !planned.is_attached && random.below(2) == 0 => {
                add(at_ms + random.below(600), Step::Follow(job));
            }
            Work::Waits => {
                let suspended_ms = at_ms + random.below(SPAN_MS - at_ms);
                add(suspended_ms, Step::Suspend(job));
                add(suspended_ms + random.below(1000), Step::Resume(job));
            }
            Work::Endless => add(at_ms + random.below(SPAN_MS - at_ms), Step::Stop(job)),
            Work::Plain | Work::FailsFirst { .. } | Work::Gang { .. } | Work::Array { .. } => {}
        }
    }
    steps
}

fn plan_fault(random: &mut Random, steps: &mut Vec<PlannedStep>) {
    let at_ms = 100 + random.below(SPAN_MS);
    let kill: &[Role] = match random.below(16) {
        0..3 => &[Role::Server],
        3..6 => &[Role::Agent],
        6..8 => &[Role::Supervisor],
        8 => &[Role::Client],
        9 => &[Role::Server, Role::Agent],
        10 => &[Role::Agent, Role::Supervisor],
        11 => &[Role::Server, Role::Supervisor],
        12 => &[Role::Server, Role::Client],
        13 => &[Role::Supervisor, Role::Supervisor],
        14 => {
            let role = [Role::Server, Role::Agent, Role::Supervisor, Role::Client][random.below(4) as usize];
            let step = Step::Freeze(victim(random, role), 50 + random.below(LONGEST_FREEZE_MS - 50));
            return steps.push(PlannedStep { at_ms, step });
        }
        _ => &[],
    };
    let step = match kill {
        [] => Step::StopServer,
        roles => Step::Kill(roles.iter().map(|role| victim(random, *role)).collect()),
    };
    steps.push(PlannedStep { at_ms, step });
    if kill.is_empty() || kill.contains(&Role::Server) {
        let at_ms = at_ms + random.below(LONGEST_ABSENCE_MS);
        steps.push(PlannedStep { at_ms, step: Step::StartServer });
    }
}

/// What happens to a machine seldom: an upgrade, a clock that is set, a disk that is full.
fn plan_upheavals(random: &mut Random, steps: &mut Vec<PlannedStep>) {
    let mut add =
        |step, random: &mut Random| steps.push(PlannedStep { at_ms: 200 + random.below(SPAN_MS), step });
    if random.below(3) == 0 {
        for _ in 0..1 + random.below(2) {
            add(Step::ChangeBuild, random);
        }
    }
    if random.below(3) == 0 {
        for _ in 0..1 + random.below(3) {
            let clock = CLOCKS_S[random.below(CLOCKS_S.len() as u64) as usize];
            add(Step::SetClock(clock), random);
        }
    }
    if random.below(4) == 0 {
        let full_ms = 50 + random.below(LONGEST_FULL_MS);
        add(Step::FillDisk(full_ms), random);
    }
}

/// Files that a disk has changed or lost.
fn plan_damage(random: &mut Random, steps: &mut Vec<PlannedStep>) {
    let mut add = |at_ms, step| steps.push(PlannedStep { at_ms, step });
    if random.below(3) == 0 {
        let kinds = [DatabaseDamage::Missing, DatabaseDamage::Empty, DatabaseDamage::CutLog];
        let kind = kinds[random.below(3) as usize];
        let at_ms = 200 + random.below(SPAN_MS);
        let damaged_ms = 50 + random.below(LONGEST_ABSENCE_MS);
        add(at_ms, Step::DamageDatabase(kind, damaged_ms));
        // Meets the damage, or starts the server after it.
        add(at_ms + random.below(2 * damaged_ms), Step::StartServer);
    }
    if random.below(3) == 0 {
        let file = [TaskFile::Record, TaskFile::Launch, TaskFile::Started][random.below(3) as usize];
        let pick = random.below(1 << 16) as usize;
        add(400 + random.below(SPAN_MS - 400), Step::DamageTask(file, pick));
    }
}

fn victim(random: &mut Random, role: Role) -> Victim {
    Victim { role, pick: random.below(1 << 16) as usize }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_has_one_plan_and_another_seed_another() {
        assert_eq!(Plan::of_seed(7), Plan::of_seed(7));
        assert_ne!(Plan::of_seed(7).steps, Plan::of_seed(8).steps);
    }

    #[test]
    fn a_job_is_submitted_once_and_before_any_other_step_names_it() {
        for seed in 0..300 {
            let plan = Plan::of_seed(seed);
            let mut submitted = BTreeSet::new();
            for PlannedStep { step, .. } in &plan.steps {
                match *step {
                    Step::Submit(job) => {
                        assert!(submitted.insert(job), "{plan}");
                        let after = plan.jobs[job].after;
                        assert!(
                            after.is_none_or(|name| submitted.iter().any(|job| plan.jobs[*job].name == name))
                        );
                    }
                    Step::Follow(job) | Step::Stop(job) | Step::Suspend(job) | Step::Resume(job) => {
                        assert!(submitted.contains(&job) && plan.is_needed(job), "{plan}");
                    }
                    _ => {}
                }
            }
            assert_eq!(submitted.len(), plan.jobs.len(), "{plan}");
            assert!(plan.steps.is_sorted_by_key(|step| step.at_ms), "{plan}");
        }
    }

    #[test]
    fn all_plans_together_have_every_kind_of_fault() {
        let steps = (0..300).flat_map(|seed| Plan::of_seed(seed).steps);
        let kinds: BTreeSet<String> = steps
            .filter_map(|planned| match planned.step {
                Step::Kill(victims) => {
                    let roles: Vec<&str> = victims.iter().map(|victim| victim.role.as_str()).collect();
                    Some(format!("kill {}", roles.join("+")))
                }
                Step::Freeze(victim, _) => Some(format!("freeze {}", victim.role.as_str())),
                Step::StopServer => Some("stop server".into()),
                Step::ChangeBuild => Some("change build".into()),
                Step::SetClock(seconds) => Some(format!("clock {seconds}")),
                Step::FillDisk(_) => Some("full disk".into()),
                Step::DamageDatabase(kind, _) => Some(format!("damaged database {kind:?}")),
                Step::DamageTask(file, _) => Some(format!("damaged {file:?}")),
                _ => None,
            })
            .collect();
        // Four roles alone, five pairs, four roles frozen, a server that is stopped as it should be, another build, a full disk,
        // a database that is damaged in three ways, three files of tasks.
        assert_eq!(kinds.len(), 22 + CLOCKS_S.len(), "{kinds:?}");
        for kind in [LastDamage::FlippedLog, LastDamage::CutLog, LastDamage::MissingLog, LastDamage::Code] {
            assert!((0..300).any(|seed| Plan::of_seed(seed).last_damage == kind), "{kind:?}");
        }
    }
}
