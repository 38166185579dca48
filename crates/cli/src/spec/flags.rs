//! The flags that describe a job, of every command that makes one.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use muster_api::client;
use muster_api::model::spec::{FieldCode, FieldError};
use serde_json::{Map, Value, json};

use super::Here;
use crate::error::{Code, Error};

/// The server says how programs send code.
const LOST_CODE: &str = "its code is no longer on the server: submit it again with the code as it is now (`muster clone --fresh`)";

/// What to run, where, with what. Values are texts: what they mean, the model says for files and flags alike.
#[derive(Debug, Default, Args)]
pub(crate) struct Flags {
    /// How many tasks start together (1 if absent)
    #[arg(short = 'N', long, value_name = "N", help_heading = "Resources")]
    pub nodes: Option<String>,
    /// Run the command once for each index: 1-1000, 0-20:5, 1-1000%16 for 16 at once
    #[arg(long, value_name = "INDICES[%N]", help_heading = "Resources")]
    pub array: Option<String>,
    /// Accelerators of each task: 8, H100:8, ascend:8
    #[arg(long, value_name = "[KIND:]N", help_heading = "Resources")]
    pub gpus: Option<String>,
    /// CPUs of each task: 4, 0.5
    #[arg(long, value_name = "N", help_heading = "Resources")]
    pub cpus: Option<String>,
    /// Memory of each task: 512MB, 16GB
    #[arg(long, value_name = "SIZE", help_heading = "Resources")]
    pub memory: Option<String>,
    /// Shared memory of each task, where the engine limits it
    #[arg(long, value_name = "SIZE", help_heading = "Resources")]
    pub shm: Option<String>,
    /// A name for the job (made from the command if absent); in another script, it is the display name
    #[arg(long)]
    pub name: Option<String>,
    /// What people call the job, in any script
    #[arg(long, value_name = "TEXT")]
    pub display_name: Option<String>,
    /// Set a variable in every task; without =VALUE, pass on the one that is set here
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", help_heading = "Environment")]
    pub env: Vec<OsString>,
    /// Give every task a secret of the workspace (`muster secret`), as a variable of its name, or as what is said
    #[arg(long = "secret", value_name = "NAME[=env:VARIABLE|=file:FILE]", help_heading = "Environment")]
    pub secrets: Vec<String>,
    /// Do not give the tasks the environment of this shell
    #[arg(long, help_heading = "Environment")]
    pub clean_env: bool,
    /// The code directory, copied to every task (the current directory if absent)
    #[arg(long, value_name = "DIR", help_heading = "Environment")]
    pub workdir: Option<PathBuf>,
    /// Run in the code directory itself, not in a copy (on local only)
    #[arg(long, help_heading = "Environment")]
    pub in_place: bool,
    /// A shell script to run in every task before the command
    #[arg(long, value_name = "SCRIPT", help_heading = "Environment")]
    pub setup: Option<String>,
    /// A shell script to run once on each node, before --setup
    #[arg(long, value_name = "SCRIPT", help_heading = "Environment")]
    pub setup_once: Option<String>,
    /// The container image, on engines that have images
    #[arg(long, help_heading = "Environment")]
    pub image: Option<String>,
    /// The launch contract (found from the command and the code if absent): plain, pytorch, deepspeed, horovod, mpi,
    /// jax, tensorflow, paddle, mindspore
    #[arg(long, value_name = "NAME", help_heading = "Launch")]
    pub framework: Option<String>,
    /// Platforms whose variables and files the tasks find (found like the framework if absent): dlws, dlc, modelarts,
    /// slurm, or none
    #[arg(long, value_name = "NAME,...", help_heading = "Launch")]
    pub faces: Option<String>,
    /// Processes of each task under a framework (as many as it has accelerators, or one, if absent)
    #[arg(long, value_name = "N", help_heading = "Launch")]
    pub processes: Option<String>,
    /// Where the command runs: all (tasks), first (which starts processes on the others itself) or processes (found from
    /// the command and the code if absent)
    #[arg(long, value_name = "PLACEMENT", help_heading = "Launch")]
    pub command_on: Option<String>,
    /// Let the tasks reach each other by ssh, as worker-0, worker-1 (found from the command and the code if absent)
    #[arg(long, help_heading = "Launch")]
    pub peers: bool,
    /// Of machines alone, which have a command of their own
    #[arg(skip)]
    pub own_home: bool,
    /// Where to run: local, ssh/POOL, slurm[/PARTITION], k8s[/CONTEXT]
    #[arg(long, value_name = "PLACE", help_heading = "Scheduling")]
    pub on: Option<String>,
    /// A whole node for each task, with all its devices
    #[arg(long, help_heading = "Scheduling")]
    pub exclusive: bool,
    /// Do without the storage of your own and of your workspace that the server gives every task
    #[arg(long, help_heading = "Scheduling")]
    pub without_volumes: bool,
    /// From 0 to 1000; higher goes first (500 if absent)
    #[arg(long, value_name = "N", help_heading = "Scheduling")]
    pub priority: Option<String>,
    /// May be sent back to the queue for a more important job
    #[arg(long, help_heading = "Scheduling")]
    pub preemptible: bool,
    /// A job that must end first: JOB to succeed, JOB:any, JOB:failed; may be given several times
    #[arg(long, value_name = "JOB[:ok|any|failed]", help_heading = "Scheduling")]
    pub after: Vec<String>,
    /// A label that its nodes must have (`muster nodes label`); may be given several times
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Scheduling")]
    pub node_label: Vec<String>,
    /// A node that it is not to have: its id, or its host's name; may be given several times
    #[arg(long, value_name = "NODE", help_heading = "Scheduling")]
    pub exclude: Vec<String>,
    /// Keep it in the queue until `muster release`
    #[arg(long, help_heading = "Scheduling")]
    pub hold: bool,
    /// The group of people it counts for
    #[arg(long, value_name = "NAME", help_heading = "Scheduling")]
    pub workspace: Option<String>,
    /// The longest it may run: 90s, 15m, 2h, 1d12h
    #[arg(long, value_name = "TIME", help_heading = "Life")]
    pub timeout: Option<String>,
    /// How long a task may take to end once it was told to (10s if absent)
    #[arg(long, value_name = "TIME", help_heading = "Life")]
    pub grace: Option<String>,
    /// The signal that tells its tasks to end (TERM if absent)
    #[arg(long, value_name = "NAME", help_heading = "Life")]
    pub stop_signal: Option<String>,
    /// How many more attempts a failed job gets (0 if absent)
    #[arg(long, value_name = "N", help_heading = "Life")]
    pub retries: Option<String>,
    /// What one failing task means for the others: stop (default) or continue (default of arrays)
    #[arg(long, value_name = "stop|continue", help_heading = "Life")]
    pub on_failure: Option<String>,
    /// What to run in every task; one word with spaces in it is a line for the shell
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

impl Flags {
    /// The flags that set one field to a text or a yes, with the field.
    fn plain(&self) -> [(&'static str, &'static [&'static str], Option<Value>); 30] {
        let text = |value: &Option<String>| value.clone().map(Value::String);
        let yes = |value: bool| value.then_some(Value::Bool(true));
        [
            ("--nodes", &["nodes"], text(&self.nodes)),
            ("--array", &["array"], text(&self.array)),
            ("--gpus", &["resources", "gpus"], text(&self.gpus)),
            ("--cpus", &["resources", "cpus"], text(&self.cpus)),
            ("--memory", &["resources", "memory"], text(&self.memory)),
            ("--shm", &["resources", "shm"], text(&self.shm)),
            ("--name", &["name"], text(&self.name)),
            ("--display-name", &["display_name"], text(&self.display_name)),
            ("--clean-env", &["clean_env"], yes(self.clean_env)),
            ("--in-place", &["in_place"], yes(self.in_place)),
            ("--setup", &["setup"], text(&self.setup)),
            ("--setup-once", &["setup_once"], text(&self.setup_once)),
            ("--image", &["image"], text(&self.image)),
            ("--framework", &["framework"], text(&self.framework)),
            ("--faces", &["faces"], text(&self.faces)),
            ("--processes", &["processes"], text(&self.processes)),
            ("--command-on", &["command_on"], text(&self.command_on)),
            ("--peers", &["peers"], yes(self.peers)),
            ("--on", &["on"], text(&self.on)),
            ("--exclusive", &["exclusive"], yes(self.exclusive)),
            ("--without-volumes", &["without_volumes"], yes(self.without_volumes)),
            ("--priority", &["priority"], text(&self.priority)),
            ("--preemptible", &["preemptible"], yes(self.preemptible)),
            ("--hold", &["hold"], yes(self.hold)),
            ("--workspace", &["workspace"], text(&self.workspace)),
            ("--timeout", &["timeout"], text(&self.timeout)),
            ("--grace", &["grace"], text(&self.grace)),
            ("--stop-signal", &["stop_signal"], text(&self.stop_signal)),
            ("--retries", &["retries", "max"], text(&self.retries)),
            ("--on-failure", &["on_failure"], text(&self.on_failure)),
        ]
    }

    /// Sets every field that the flags name, and gives what is wrong with them already.
    pub(super) fn apply(
        &self,
        fields: &mut Map<String, Value>,
        here: &Here,
    ) -> Result<Vec<FieldError>, Error> {
        let mut errors = Vec::new();
        self.replace_display_name(fields);
        for (_, path, value) in self.plain() {
            if let Some(value) = value {
                super::set(fields, path, value);
            }
        }
        let env = self.env_fields(here, &mut errors);
        if !env.is_empty() {
            super::set(fields, &["env"], Value::Object(env));
        }
        self.add_node_labels(fields, &mut errors);
        let lists = [("secrets", &self.secrets), ("after", &self.after), ("exclude", &self.exclude)];
        for (name, more) in lists {
            let texts = more.iter().cloned().map(Value::String);
            match fields.get_mut(name) {
                _ if more.is_empty() => {}
                Some(Value::Array(all)) => all.extend(texts),
                _ => super::set(fields, &[name], Value::Array(texts.collect())),
            }
        }
        if fields.contains_key("batch") && !self.command.is_empty() {
            let words = self.words()?;
            super::script::set_arguments(fields, &words);
        } else if let Some(command) = self.command_field(here)? {
            super::set(fields, &["command"], command);
        }
        Ok(errors)
    }

    /// A name of another script is a display name: that of a file goes, whichever field it is in, when a flag gives one.
    fn replace_display_name(&self, fields: &mut Map<String, Value>) {
        let is_shown = |name: &str| !name.is_ascii();
        match (&self.name, &self.display_name) {
            (Some(name), None) if is_shown(name) => _ = fields.remove("display_name"),
            (None, Some(_)) if fields.get("name").and_then(Value::as_str).is_some_and(is_shown) => {
                fields.remove("name");
            }
            _ => {}
        }
    }

    /// Labels of nodes that a file names stay, as far as the flags do not name them.
    fn add_node_labels(&self, fields: &mut Map<String, Value>, errors: &mut Vec<FieldError>) {
        for given in &self.node_label {
            match given.split_once('=') {
                Some((key, value)) => super::set(fields, &["node_labels", key], value.into()),
                None => {
                    let message = format!("`{given}` has no value; write KEY=VALUE");
                    errors.push(FieldError::new("--node-label", FieldCode::InvalidValue, message));
                }
            }
        }
    }

    fn env_fields(&self, here: &Here, errors: &mut Vec<FieldError>) -> Map<String, Value> {
        let mut env = Map::new();
        for given in &self.env {
            let shown = given.to_string_lossy();
            let mut wrong = |code, message: String| errors.push(FieldError::new("--env", code, message));
            let Some(text) = given.to_str() else {
                wrong(FieldCode::NotUtf8, format!("`{shown}` is not valid UTF-8"));
                continue;
            };
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => match here.environment.get(given.as_os_str()).map(|value| value.to_str()) {
                    Some(Some(value)) => (text, value.to_owned()),
                    Some(None) => {
                        wrong(
                            FieldCode::NotUtf8,
                            format!("`{text}` is set here to something that is not valid UTF-8"),
                        );
                        continue;
                    }
                    None => {
                        wrong(
                            FieldCode::VariableNotSet,
                            format!("`{text}` is not set here; write {text}=VALUE"),
                        );
                        continue;
                    }
                },
            };
            env.insert(name.to_owned(), Value::String(value));
        }
        env
    }

    /// The words of the command, as texts.
    fn words(&self) -> Result<Vec<&str>, Error> {
        let text = |(i, word): (usize, &OsString)| match word.to_str() {
            Some(_) => Ok(self.command[i].to_str().unwrap_or_default()),
            None => {
                let shown = word.to_string_lossy();
                let message = format!("word {} of the command, `{shown}`, is not valid UTF-8", i + 1);
                Err(Error::new(Code::CommandNotUtf8, message))
            }
        };
        self.command.iter().enumerate().map(text).collect()
    }

    /// The words as they are; a single word with spaces in it is what people mean for the shell, unless there is such
    /// a program.
    fn command_field(&self, here: &Here) -> Result<Option<Value>, Error> {
        let words = self.words()?;
        Ok(match words.as_slice() {
            [] => None,
            [line] if line.contains(char::is_whitespace) && !here.directory.join(line).is_file() => {
                Some(json!(line))
            }
            words => Some(json!(words)),
        })
    }

    /// The server's complaints about fields, with the flags that set them.
    pub fn in_users_words(&self, error: client::Error) -> client::Error {
        match error {
            client::Error::Problem(mut problem) => {
                if problem.code == muster_api::Code::BundleIncomplete {
                    problem.hint = Some(LOST_CODE.into());
                }
                problem.errors = problem.errors.into_iter().map(|error| self.named(error)).collect();
                client::Error::Problem(problem)
            }
            other => other,
        }
    }

    /// An error in the words of whoever made it: one in a field that a flag set names the flag.
    pub(super) fn named(&self, error: FieldError) -> FieldError {
        let is_field = |path: &[&str]| {
            path.join(".") == error.field || (path == ["retries", "max"] && error.field == "retries")
        };
        let flag = self.plain().into_iter().find(|(_, path, value)| value.is_some() && is_field(path));
        let name = match flag {
            Some((flag, _, _)) => flag,
            None if error.field == "env" && !self.env.is_empty() => "--env",
            None if error.field.starts_with("secrets[") && !self.secrets.is_empty() => "--secret",
            None => return error,
        };
        FieldError::new(name, error.code, error.message)
    }
}
