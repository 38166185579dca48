//! What the options of a script ask for, taken together.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_model::slurm::option::Given;
use muster_model::slurm::quantity::Gpus;
use muster_model::slurm::{quantity, spread};
use muster_model::spec::{Array, FieldCode, Notice};
use serde_json::{Map, Value, json};

use super::dependency::{self, Dependency};
use super::known::{Field, Meaning};
use super::{Around, Problem, Script};

/// Everything that was asked for; of an option that is there twice the last counts.
#[derive(Debug, Default)]
pub(super) struct Ask {
    nodes: Option<(u32, u32)>,
    array: Option<Array>,
    ntasks: Option<u32>,
    ntasks_per_node: Option<u32>,
    ntasks_per_gpu: Option<u32>,
    cpus_per_task: Option<u32>,
    cpus_per_gpu: Option<u32>,
    /// In bytes; all of a node where there is no number.
    memory: Option<Memory>,
    gpus: Option<Gpus>,
    gpus_per_node: Option<Gpus>,
    gpus_per_task: Option<Gpus>,
    time: Option<Duration>,
    exclusive: bool,
    hold: bool,
    dependency: Dependency,
    export: Option<String>,
    chdir: Option<String>,
    /// What goes into the field `batch` as it is.
    batch: BTreeMap<&'static str, Value>,
    /// For a real Slurm.
    options: Vec<String>,
    nothing: Vec<String>,
    notes: Vec<String>,
}

#[derive(Debug)]
enum Memory {
    All,
    Node(u64),
    Cpu(u64),
    Gpu(u64),
}

impl Ask {
    /// Takes note of an option.
    pub fn take(&mut self, line: usize, given: &Given<Meaning>) -> Result<(), Problem> {
        let problem = |code, message| Problem { line, option: given.written.clone(), code, message };
        match given.meaning {
            Meaning::Set(field) => {
                let value = given.value.clone().unwrap_or_default();
                return self.set(field, value).map_err(|message| problem(FieldCode::InvalidValue, message));
            }
            Meaning::Slurm => self.options.push(match &given.value {
                Some(value) => format!("--{}={value}", given.long),
                None => format!("--{}", given.long),
            }),
            Meaning::Nothing => self.nothing.push(format!("--{}", given.long)),
            Meaning::Silent => {}
            Meaning::Later => {
                return Err(problem(FieldCode::NotSupported, "comes later".to_owned()));
            }
            Meaning::Refused(instead) => return Err(problem(FieldCode::NotSupported, instead.to_owned())),
        }
        Ok(())
    }

    fn set(&mut self, field: Field, value: String) -> Result<(), String> {
        match field {
            Field::Nodes => self.nodes = Some(quantity::nodes(&value)?),
            Field::Ntasks => self.ntasks = Some(quantity::count(&value)?),
            Field::NtasksPerNode => self.ntasks_per_node = Some(quantity::count(&value)?),
            Field::NtasksPerGpu => self.ntasks_per_gpu = Some(quantity::count(&value)?),
            Field::CpusPerTask => self.cpus_per_task = Some(quantity::count(&value)?),
            Field::CpusPerGpu => self.cpus_per_gpu = Some(quantity::count(&value)?),
            Field::Mem => self.memory = Some(quantity::memory(&value)?.map_or(Memory::All, Memory::Node)),
            Field::MemPerCpu => {
                self.memory = Some(quantity::memory(&value)?.map_or(Memory::All, Memory::Cpu))
            }
            Field::MemPerGpu => {
                self.memory = Some(quantity::memory(&value)?.map_or(Memory::All, Memory::Gpu))
            }
            Field::Gpus => self.gpus = Some(Gpus::read(&value)?),
            Field::GpusPerNode => self.gpus_per_node = Some(Gpus::read(&value)?),
            Field::GpusPerTask => self.gpus_per_task = Some(Gpus::read(&value)?),
            Field::Gres => self.gres(&value)?,
            Field::Time => self.time = quantity::time(&value)?,
            Field::Exclusive => self.exclusive = true,
            Field::Hold => self.hold = true,
            Field::Dependency => self.dependency = dependency::read(&value)?,
            Field::Export => self.export = Some(value),
            Field::Chdir => self.chdir = Some(value),
            Field::OpenMode => match value.chars().next() {
                Some('a') => _ = self.batch.insert("append", json!(true)),
                Some('t') => _ = self.batch.remove("append"),
                _ => return Err(format!("must be append or truncate, not `{value}`")),
            },
            Field::Signal => {
                Notice::read(&value).ok_or_else(|| {
                    format!("`{value}` is not a signal and the seconds before the end, such as B:USR1@60")
                })?;
                self.batch.insert("signal", json!(value));
            }
            Field::Array => self.array = Some(value.parse::<Array>()?),
            Field::JobName => self.keep("job_name", value),
            Field::Partition => self.keep("partition", value),
            Field::Account => self.keep("account", value),
            Field::Output => self.keep("output", value),
            Field::Error => self.keep("error", value),
        }
        Ok(())
    }

    fn keep(&mut self, name: &'static str, value: String) {
        self.batch.insert(name, json!(value));
    }

    fn gres(&mut self, value: &str) -> Result<(), String> {
        let (gpus, others) = Gpus::of_gres(value)?;
        if gpus.is_some() {
            self.gpus_per_node = gpus;
        }
        if !others.is_empty() {
            self.options.push(format!("--gres={}", others.join(",")));
        }
        Ok(())
    }

    /// The fields of the script's job.
    pub fn script(mut self, text: &str, around: &Around) -> Script {
        let (nodes, tasks) = self.layout(around);
        let per_node = self.ntasks_per_node.unwrap_or_else(|| spread(tasks, nodes)[0]);
        let resources = self.resources(nodes, per_node, around);
        let mut fields = Map::new();
        fields.insert("nodes".into(), json!(nodes));
        if let Some(array) = &self.array {
            fields.insert("array".into(), json!(array));
        }
        if !resources.is_empty() {
            fields.insert("resources".into(), Value::Object(resources));
        }
        if let Some(time) = self.time {
            fields.insert("timeout".into(), json!(format!("{}s", time.as_secs())));
        }
        if self.exclusive {
            fields.insert("exclusive".into(), json!(true));
        }
        if self.hold {
            fields.insert("hold".into(), json!(true));
        }
        if !self.dependency.after.is_empty() {
            fields.insert("after".into(), json!(self.dependency.after));
        }
        if !self.dependency.slurm.is_empty() {
            self.options.push(format!("--dependency={}", self.dependency.slurm.join(",")));
        }
        if let Some(chdir) = &self.chdir {
            fields.insert("workdir".into(), json!(chdir));
        }
        self.exported(&mut fields, around);
        for (name, number) in [
            ("ntasks", self.ntasks),
            ("ntasks_per_node", self.ntasks_per_node),
            ("cpus_per_task", self.cpus_per_task),
            ("gpus_per_task", self.gpus_per_task.as_ref().map(|gpus| gpus.count)),
        ] {
            self.batch.extend(number.map(|number| (name, json!(number))));
        }
        self.noted(around);
        if !self.options.is_empty() {
            self.batch.insert("options", json!(self.options));
        }
        self.batch.insert("script", json!(text));
        let batch = self.batch.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        fields.insert("batch".into(), Value::Object(batch));
        Script { fields, notes: self.notes }
    }

    /// The nodes and how many tasks there are on them, as `sbatch` makes one of the other.
    fn layout(&mut self, around: &Around) -> (u32, u32) {
        if let (None, Some(per_gpu), Some(gpus)) = (self.ntasks, self.ntasks_per_gpu, &self.gpus) {
            self.ntasks = Some(per_gpu.saturating_mul(gpus.count));
        }
        if let (None, Some(per_gpu), Some(gpus)) =
            (self.ntasks_per_node, self.ntasks_per_gpu, &self.gpus_per_node)
        {
            self.ntasks_per_node = Some(per_gpu.saturating_mul(gpus.count));
        }
        let needed = match (self.ntasks, self.ntasks_per_node) {
            (Some(tasks), Some(per_node)) => tasks.div_ceil(per_node),
            _ => 1,
        };
        let (least, most) = self.nodes.unwrap_or((needed, needed));
        if most > least && around.nodes.is_none() {
            self.notes
                .push(format!("--nodes={least}-{most}: it gets {least}; `--nodes {most}` asks for more"));
        }
        let mut nodes = around.nodes.unwrap_or(least);
        if let Some(tasks) = self.ntasks.filter(|tasks| *tasks < nodes) {
            self.notes.push(format!(
                "--ntasks={tasks} cannot run on {nodes} nodes: it gets {tasks}, as from sbatch"
            ));
            nodes = tasks;
        }
        let tasks = self.ntasks.unwrap_or_else(|| nodes.saturating_mul(self.ntasks_per_node.unwrap_or(1)));
        (nodes, tasks)
    }

    /// What each node is to give. Elsewhere than on Slurm, CPUs are claimed only by who speaks of CPUs: a task is a process, and
    /// whoever tries out a script for a cluster on a laptop has fewer CPUs than processes.
    fn resources(&self, nodes: u32, per_node: u32, around: &Around) -> Map<String, Value> {
        let mut resources = Map::new();
        let gpus = self.gpus(nodes, per_node);
        let gpu_count = gpus.as_ref().map_or(0, |gpus| gpus.count);
        let says_tasks = around.on_slurm && self.ntasks.or(self.ntasks_per_node).is_some();
        let says_cpus = says_tasks || self.cpus_per_task.is_some();
        let cpus = match self.cpus_per_gpu {
            Some(per_gpu) if gpu_count > 0 => Some(per_gpu.saturating_mul(gpu_count)),
            _ => says_cpus.then(|| per_node.saturating_mul(self.cpus_per_task.unwrap_or(1))),
        };
        if let Some(cpus) = cpus {
            resources.insert("cpus".into(), json!(cpus));
        }
        let memory = match self.memory {
            None | Some(Memory::All) => None,
            Some(Memory::Node(bytes)) => Some(bytes),
            Some(Memory::Cpu(bytes)) => bytes.checked_mul(u64::from(cpus.unwrap_or(per_node))),
            Some(Memory::Gpu(bytes)) => bytes.checked_mul(u64::from(gpu_count.max(1))),
        };
        if let Some(memory) = memory {
            resources.insert("memory".into(), json!(memory));
        }
        if let Some(Gpus { kind, count }) = gpus.filter(|gpus| gpus.count > 0) {
            let kind = kind.map(|kind| format!("{kind}:")).unwrap_or_default();
            resources.insert("gpus".into(), json!(format!("{kind}{count}")));
        }
        resources
    }

    fn gpus(&self, nodes: u32, per_node: u32) -> Option<Gpus> {
        let times = |gpus: &Gpus, by: u32| Gpus { count: gpus.count.saturating_mul(by), ..gpus.clone() };
        let total = |gpus: &Gpus| Gpus { count: gpus.count.div_ceil(nodes), ..gpus.clone() };
        self.gpus_per_node
            .clone()
            .or_else(|| self.gpus_per_task.as_ref().map(|gpus| times(gpus, per_node)))
            .or_else(|| self.gpus.as_ref().map(total))
    }

    /// The variables that it gets: those of the shell, unless it says otherwise.
    fn exported(&mut self, fields: &mut Map<String, Value>, around: &Around) {
        let Some(export) = &self.export else { return };
        let mut env = Map::new();
        let mut all = false;
        for item in export.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            match item.split_once('=') {
                Some((name, value)) => _ = env.insert(name.to_owned(), json!(value)),
                None if item.eq_ignore_ascii_case("all") => all = true,
                None if item.eq_ignore_ascii_case("none") || item.eq_ignore_ascii_case("nil") => {}
                None => match (around.variable)(item) {
                    Some(value) => _ = env.insert(item.to_owned(), json!(value)),
                    None => self.notes.push(format!("--export: {item} is not set here")),
                },
            }
        }
        if !all {
            fields.insert("clean_env".into(), json!(true));
        }
        if !env.is_empty() {
            fields.insert("env".into(), Value::Object(env));
        }
    }

    fn noted(&mut self, around: &Around) {
        let listed = |options: &[String]| {
            let mut options = options.to_vec();
            options.dedup();
            options.join(", ")
        };
        if !self.nothing.is_empty() {
            self.notes.push(format!("without effect here: {}", listed(&self.nothing)));
        }
        if around.on_slurm {
            return;
        }
        let mut slurms = self.options.clone();
        for name in ["partition", "account"] {
            if let Some(Value::String(value)) = self.batch.get(name) {
                slurms.push(format!("--{name}={value}"));
            }
        }
        if !slurms.is_empty() {
            self.notes.push(format!("for Slurm alone (`--on slurm/PARTITION`): {}", listed(&slurms)));
        }
    }
}
