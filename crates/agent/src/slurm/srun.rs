//! `srun`: starts the processes of a step on the nodes of its job, and stays with them to their end.
//!
//! It behaves as Slurm's does where scripts can tell: which tasks on which nodes, variables, output, exit codes, signals. It
//! differs where Slurm's makes people wait for nothing: steps share a node's CPUs unless they ask for their own.

pub(super) mod claims;
mod layout;
mod life;
mod link;
mod options;
mod output;

use std::collections::BTreeMap;
use std::env;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use std::time::Duration;

use muster_model::{hostlist, slurm};

use super::job::Job;
use super::pattern::Place;
use super::real;
use super::wire::{Begin, Input, Rank};
use crate::supervisor::{self, LAUNCH};
use claims::{Held, House, Share, Wish};
use layout::{Layout, Names, Usual, Wanted};
use life::Life;
use link::Links;
use options::{Options, Source};
use output::Outputs;

const NAME: &str = "srun";
const HELP: &str = "\
Usage: srun [OPTIONS] COMMAND...

Starts COMMAND on the nodes of this job, once for each task, and waits for all of them.
-N nodes, -n tasks, --ntasks-per-node, -c CPUs of a task, --gpus-per-task, -w nodes by name, -l labels,
-o/-e files (%t task, %N node, %j job), -K end all when one fails, --exclusive wait for CPUs of its own.
It is muster's; docs/guides/slurm-scripts.md says what it has of Slurm's.
";
/// Variables that are the shell's own affair.
const SHELLS_OWN: [&str; 2] = ["_", "SHLVL"];

/// So that all know whose message it is.
fn say(what: &str) {
    super::say(NAME, what);
}

pub(super) fn run(words: &[String]) -> ExitCode {
    match words.first().map(String::as_str) {
        Some("--help" | "-h" | "--usage") => return print(HELP),
        Some("--version" | "-V") => {
            return print(concat!("slurm (muster ", env!("CARGO_PKG_VERSION"), ")\n"));
        }
        _ => {}
    }
    match with_real(words).unwrap_or_else(|| Step::plan(words).and_then(Step::start)) {
        Ok(code) => code,
        Err(message) => {
            say(&format!("error: {message}"));
            ExitCode::FAILURE
        }
    }
}

/// A step that needs the `srun` of a real Slurm becomes that, where there is one.
fn with_real(words: &[String]) -> Option<Result<ExitCode, String>> {
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let (option, instead) = Options::read(words, &variable).ok()?.needs_real?;
    let real = Job::here().ok().filter(|job| job.is_real).and_then(|_| real::srun());
    Some(Err(match real {
        Some(mut real) => real.args(words).exec().to_string(),
        None => format!("{option}: {instead}"),
    }))
}

fn print(text: &str) -> ExitCode {
    if io::stdout().write_all(text.as_bytes()).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A step that is about to begin.
struct Step {
    job: Job,
    options: Options,
    layout: Layout,
    held: Held,
    /// What the task was started with, and how long it has to end.
    base: Option<(BTreeMap<String, String>, Duration)>,
}

impl Step {
    fn plan(words: &[String]) -> Result<Step, String> {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let options = Options::read(words, &variable)?;
        let job = Job::here()?;
        let number = |name: &str| variable(name).and_then(|text| text.parse().ok());
        let usual = Usual { tasks: number("SLURM_NTASKS"), tasks_per_node: number("SLURM_NTASKS_PER_NODE") };
        let addresses = job.members.iter().map(|member| member.ip().to_string()).collect();
        let wanted = layout::wanted(&options, &Names { names: &job.nodes, addresses }, usual)?;
        if let Some(note) = wanted.note.as_ref().filter(|_| !options.quiet) {
            say(note);
        }
        let held = hold(&job, &options, &wanted, number("SLURM_CPUS_PER_TASK"))?;
        let nodes: Vec<usize> = held.nodes.iter().map(|(node, _)| *node).collect();
        let layout = Layout::of(wanted.tasks, &nodes, options.cyclic);
        let launch = supervisor::read::<supervisor::Launch>(&job.dir, LAUNCH).ok().flatten();
        let base = launch.map(|launch| (launch.env, Duration::from_millis(launch.grace_ms)));
        Ok(Step { job, options, layout, held, base })
    }

    fn start(self) -> Result<ExitCode, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let code = runtime.block_on(async {
            let nodes: Vec<usize> = self.layout.nodes.iter().map(|(node, _)| *node).collect();
            let links = Links::open(&self.job, &nodes)?;
            for (at, begin) in self.begins()?.into_iter().enumerate() {
                links.say(at, super::wire::Frame::Begin(Box::new(begin)));
            }
            let outputs = Outputs::new(&self.options, self.places());
            let grace = self.base.as_ref().map_or(Duration::from_secs(30), |(_, grace)| *grace);
            Life::new(&self.job, &self.options, &self.layout, self.held.number, links, outputs, grace)
                .run()
                .await
        })?;
        // Whoever still reads the input is not waited for.
        runtime.shutdown_background();
        Ok(ExitCode::from(code))
    }

    fn places(&self) -> BTreeMap<u32, Place> {
        let mut places = BTreeMap::new();
        for (number, (node, ranks)) in self.layout.nodes.iter().enumerate() {
            for rank in ranks {
                let place = Place {
                    job: self.job.id.clone(),
                    step: Some(self.held.number),
                    task: *rank,
                    node: self.job.nodes[*node].clone(),
                    node_number: number,
                };
                places.insert(*rank, place);
            }
        }
        places
    }

    /// What each node is told.
    fn begins(&self) -> Result<Vec<Begin>, String> {
        let cwd = match &self.options.chdir {
            Some(dir) => env::current_dir().unwrap_or_default().join(dir),
            None => env::current_dir().map_err(|error| format!("the current directory: {error}"))?,
        };
        let (set, unset) = self.changes();
        let common = self.variables();
        let begin = |number: usize, node: usize, ranks: &[u32], share: &Share| {
            let mut step = common.clone();
            let ids: Vec<String> = ranks.iter().map(u32::to_string).collect();
            step.insert("SLURM_NODEID".into(), number.to_string());
            step.insert("SLURM_GTIDS".into(), ids.join(","));
            step.insert("SLURMD_NODENAME".into(), self.job.nodes[node].clone());
            Begin {
                argv: self.options.command.clone(),
                cwd: cwd.display().to_string(),
                from: self.job.dir.display().to_string(),
                set: set.clone(),
                unset: unset.clone(),
                step,
                ranks: self.ranks(ranks, share),
                input: match &self.options.input {
                    Source::Stdin(input) => *input,
                    Source::File(_) => Input::All,
                },
            }
        };
        let nodes = self.layout.nodes.iter().zip(&self.held.nodes).enumerate();
        Ok(nodes.map(|(number, ((node, ranks), (_, share)))| begin(number, *node, ranks, share)).collect())
    }

    fn ranks(&self, ranks: &[u32], share: &Share) -> Vec<Rank> {
        let devices = |local: u32| match self.options.gpus_per_task {
            Some(each) => {
                let first = (local * each) as usize;
                share.gpus.get(first..first + each as usize).map(<[u32]>::to_vec)
            }
            None => Some(share.gpus.clone()).filter(|gpus| !gpus.is_empty()),
        };
        let one = |(local, rank): (u32, &u32)| Rank { rank: *rank, local, devices: devices(local) };
        (0..).zip(ranks).map(one).collect()
    }

    /// What the script has made of the variables that its task began with. The nodes have their own of the same names, which
    /// differ from node to node where they must.
    fn changes(&self) -> (BTreeMap<String, String>, Vec<String>) {
        let now: BTreeMap<String, String> = env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| !SHELLS_OWN.contains(&name.as_str()))
            .collect();
        let named: Vec<&str> = match &self.options.export {
            Some(list) => list.split(',').filter(|item| !item.is_empty()).collect(),
            None => vec!["ALL"],
        };
        let (mut set, mut unset) = (BTreeMap::new(), Vec::new());
        for item in named {
            match item.split_once('=') {
                Some((name, value)) => _ = set.insert(name.to_owned(), value.to_owned()),
                None if item.eq_ignore_ascii_case("all") => {
                    let Some((base, _)) = &self.base else { continue };
                    set.extend(
                        now.iter()
                            .filter(|(name, value)| base.get(*name) != Some(*value))
                            .map(|(name, value)| (name.clone(), value.clone())),
                    );
                    unset.extend(base.keys().filter(|name| !now.contains_key(*name)).cloned());
                }
                None if item.eq_ignore_ascii_case("none") => {}
                None => set.extend(now.get(item).map(|value| (item.to_owned(), value.clone()))),
            }
        }
        (set, unset)
    }

    /// What Slurm tells every process of a step.
    fn variables(&self) -> BTreeMap<String, String> {
        let names: Vec<String> =
            self.layout.nodes.iter().map(|(node, _)| self.job.reachable(*node)).collect();
        let counts = slurm::counts(&self.layout.counts());
        let (nodes, tasks) = (names.len().to_string(), self.layout.tasks.to_string());
        let number = self.held.number.to_string();
        let mut all = BTreeMap::new();
        let mut set = |names: &[&str], value: &str| {
            all.extend(names.iter().map(|name| ((*name).to_owned(), value.to_owned())));
        };
        set(&["SLURM_STEP_ID", "SLURM_STEPID"], &number);
        set(&["SLURM_STEP_NUM_NODES", "SLURM_NNODES"], &nodes);
        set(&["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"], &tasks);
        set(&["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"], &counts);
        set(&["SLURM_STEP_NODELIST"], &hostlist::print(&names));
        set(&["SLURM_DISTRIBUTION"], if self.options.cyclic { "cyclic" } else { "block" });
        if let Some(cpus) = self.options.cpus_per_task {
            set(&["SLURM_CPUS_PER_TASK"], &cpus.to_string());
        }
        let address =
            self.job.address(self.job.own).map_or_else(|| "127.0.0.1".to_owned(), |ip| ip.to_string());
        set(&["SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST"], &address);
        all
    }
}

/// Gives the step its number, its nodes, and what it wants of them for itself.
fn hold(job: &Job, options: &Options, wanted: &Wanted, usual_cpus: Option<u32>) -> Result<Held, String> {
    let counts = slurm::spread(wanted.tasks, wanted.nodes);
    let of_task = options.cpus_per_task.or(usual_cpus).unwrap_or(1);
    let gpus = |tasks: u32| match (options.gpus_per_node, options.gpus, options.gpus_per_task) {
        (Some(gpus), _, None) => gpus,
        (_, Some(gpus), None) => gpus.div_ceil(wanted.nodes),
        (_, _, Some(each)) => each.saturating_mul(tasks),
        (None, None, None) => 0,
    };
    let wish = |at: usize| {
        let tasks = counts.get(at).copied().unwrap_or(0);
        let cpus = if options.exclusive { tasks.saturating_mul(of_task) } else { 0 };
        Wish { cpus, gpus: gpus(tasks) }
    };
    let house = House { cpus: &job.cpus, gpus: job.gpus };
    let count = wanted.nodes as usize;
    let refused = |message: String| format!("Unable to create step for job {}: {message}", job.id);
    let mut on_wait = || {
        if !options.quiet {
            say(&format!(
                "Job {} step creation temporarily disabled, retrying (Requested nodes are busy)",
                job.id
            ));
        }
    };
    if options.overlap {
        return claims::overlap(&job.dir, &house, &wanted.among, count, &wish).map_err(refused);
    }
    claims::take(&job.dir, &house, &wanted.among, count, &wish, &mut on_wait).map_err(refused)
}
