//! Whether several of a command may be started side by side.
//!
//! They may where it is one program, behind programs that only run another one (`env`, `nice`, `uv run`) and within scripts that
//! do nothing else: set variables, change the folder, print. A script with more in it may do once for each process what is to
//! be done once, and what `make` starts is not known from here. Neither is started several times unless the user asks for it.

use muster_model::spec::Command;

use super::follow::{candidates, is_for_shell, joined};
use super::step::{Behind, RUN_TRAIN, SHELLS, Step, base, behind_wrappers, env_options, is_script, program};
use super::word::{HOLE, ScriptGrowth, assignment, is_hole, script_commands};
use super::{Code, Launcher};

/// What a command starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Starts {
    /// One program, of which several may be started side by side.
    Program,
    /// A launcher, which starts the processes of its node or of all nodes.
    Launcher(Launcher),
    /// Something that is started once in a task: why, as in "run.sh starts pip and python".
    Unclear(String),
}

/// Scripts that run scripts, as deep as they are followed for what they import.
const MAX_DEPTH: usize = 4;
/// Commands that are looked at; a longer script is not one program.
const MAX_COMMANDS: usize = 1000;
/// Programs that are named of a script that starts several.
const MAX_NAMED: usize = 4;

/// Commands that change nothing outside of their shell, or the same thing however often they run.
const HARMLESS: &[&str] = &[
    ".",
    ":",
    "[",
    "[[",
    "alias",
    "awk",
    "basename",
    "break",
    "cat",
    "cd",
    "conda",
    "continue",
    "cut",
    "date",
    "declare",
    "dirname",
    "echo",
    "env",
    "exit",
    "export",
    "expr",
    "false",
    "fi",
    "grep",
    "hash",
    "head",
    "hostname",
    "id",
    "jq",
    "local",
    "ls",
    "mamba",
    "micromamba",
    "mkdir",
    "ml",
    "module",
    "nproc",
    "npu-smi",
    "nvidia-smi",
    "popd",
    "printenv",
    "printf",
    "pushd",
    "pwd",
    "read",
    "readlink",
    "readonly",
    "realpath",
    "return",
    "sed",
    "seq",
    "set",
    "shift",
    "shopt",
    "sleep",
    "sort",
    "tail",
    "test",
    "tr",
    "trap",
    "true",
    "type",
    "typeset",
    "ulimit",
    "umask",
    "unalias",
    "uname",
    "uniq",
    "unset",
    "wait",
    "wc",
    "which",
    "whoami",
];

/// Words of a shell that make something run several times, or one of several things.
const COMPOUND: &[&str] = &["for", "done", "case", "esac", "select", "function"];

/// Programs that start others, which are not known from their words.
const OPAQUE: &[&str] = &[
    "make", "gmake", "cmake", "ninja", "just", "rake", "npm", "yarn", "xargs", "parallel", "find", "ssh",
    "su", "runuser", "chroot", "docker", "podman", "nerdctl", "tmux", "screen", "srun", "sbatch", "salloc",
    "fish", "csh", "tcsh",
];

/// Looks at a command, and at the scripts in the code that it runs.
pub fn starts(command: &Command, code: &dyn Code) -> Starts {
    let growth = ScriptGrowth::default();
    let mut seen = Seen { code, commands: 0, growth, programs: Vec::new(), launcher: None, unclear: None };
    let place = Place { name: "the command".into(), folder: String::new(), depth: 0 };
    match command {
        Command::Argv(words) => seen.words(words, &mut place.clone()),
        Command::Shell(script) => seen.script(script, Some(&[]), &place),
    }
    match (seen.launcher, seen.unclear, seen.programs.as_slice()) {
        (Some(launcher), ..) => Starts::Launcher(launcher),
        (None, Some(why), _) => Starts::Unclear(why),
        (None, None, [] | [_]) => Starts::Program,
        (None, None, [(place, _), ..]) => {
            let names: Vec<String> = seen.programs.iter().map(|(_, name)| name.clone()).collect();
            Starts::Unclear(format!("{place} starts {}", listed(&names)))
        }
    }
}

/// The word of a command at which the program begins that it runs, behind programs that only run another one.
pub fn program_at(argv: &[String]) -> Option<usize> {
    let words: Vec<&str> = argv.iter().map(String::as_str).collect();
    match behind_wrappers(&words) {
        Behind::Program(at) => Some(at),
        Behind::Known(_) => None,
    }
}

/// `a, b and c`.
fn listed(names: &[String]) -> String {
    let more = format!("{} more", names.len().saturating_sub(MAX_NAMED));
    let mut named: Vec<&str> = names.iter().take(MAX_NAMED).map(String::as_str).collect();
    if names.len() > MAX_NAMED {
        named.push(&more);
    }
    match named.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => named.concat(),
    }
}

/// Where commands stand: what that is called, and the folder that they run in.
#[derive(Clone)]
struct Place {
    name: String,
    folder: String,
    depth: usize,
}

struct Seen<'a> {
    code: &'a dyn Code,
    commands: usize,
    growth: ScriptGrowth,
    /// The programs, each with the place that starts it.
    programs: Vec<(String, String)>,
    launcher: Option<Launcher>,
    /// Why it cannot be known what is started.
    unclear: Option<String>,
}

impl Seen<'_> {
    fn unclear(&mut self, why: String) {
        self.unclear.get_or_insert(why);
    }

    fn program(&mut self, name: &str, place: &Place) {
        let name = if name.contains(HOLE) { "what a variable names" } else { name };
        self.programs.push((place.name.clone(), name.to_owned()));
    }

    fn script(&mut self, script: &str, arguments: Option<&[String]>, place: &Place) {
        if place.depth >= MAX_DEPTH {
            return self.unclear(format!("{} runs scripts that run scripts", place.name));
        }
        let mut inside = Place { depth: place.depth + 1, ..place.clone() };
        let found = script_commands(script, arguments, &mut self.growth);
        if found.writes_file {
            self.unclear(format!(
                "{} writes what is printed into a file, which each process would make anew",
                place.name
            ));
        }
        for command in found.commands {
            self.commands += 1;
            if self.commands > MAX_COMMANDS {
                return self.unclear(format!("{} is long", place.name));
            }
            self.words(&command.words, &mut inside);
        }
    }

    fn words(&mut self, all: &[String], place: &mut Place) {
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let at = match behind_wrappers(&all) {
            Behind::Program(at) => at,
            Behind::Known(Step::Launch(launcher, ..)) => return self.launched(launcher),
            Behind::Known(Step::Script(script, arguments)) => {
                return self.script(&script, arguments.as_deref(), place);
            }
            Behind::Known(Step::Module(module)) => return self.program(&module, place),
            Behind::Known(_) => {
                // Variables for the shell alone; or a wrapper that wraps nothing.
                if !all.iter().all(|word| assignment(word).is_some()) {
                    self.program(base(all[0]), place);
                }
                return;
            }
        };
        if all[..at].contains(&RUN_TRAIN) {
            self.unclear(format!("{} starts {RUN_TRAIN}", place.name));
        }
        if let Some(wrapper) = hides_variables(&all[..at]) {
            self.unclear(format!("`{wrapper}` hides the variables of the task, and so its rank"));
        }
        let words = &all[at..];
        let name = base(words[0]);
        if COMPOUND.contains(&name) {
            return self.unclear(format!("{} has a loop, a function or a choice in it", place.name));
        }
        if matches!(name, "conda" | "mamba" | "micromamba" | "mkdir" | "sed") && !is_repeatable(words) {
            return self.program(name, place);
        }
        match program(words) {
            Step::Launch(launcher, ..) => self.launched(launcher),
            // It may be a launcher.
            _ if is_hole(words[0]) => self.unclear(format!("{} starts what a variable names", place.name)),
            Step::Visit(program) => self.unclear(format!("{} starts {program}", place.name)),
            Step::Script(script, arguments) => self.script(&script, arguments.as_deref(), place),
            Step::Enter(folder) => place.folder = joined(&place.folder, &folder),
            Step::File(file, arguments) => self.file(&file, arguments.as_deref(), name, place),
            Step::Other if HARMLESS.contains(&name) => {}
            Step::Other if OPAQUE.contains(&name) || SHELLS.contains(&name) => {
                self.unclear(format!("{} starts {name}", place.name));
            }
            Step::Code(_) | Step::Module(_) | Step::Other => self.program(name, place),
        }
    }

    fn launched(&mut self, launcher: Launcher) {
        self.launcher.get_or_insert(launcher);
    }

    /// A file that is run by `reader`, or by itself.
    fn file(&mut self, file: &str, arguments: Option<&[String]>, reader: &str, place: &Place) {
        let is_sourced = matches!(reader, "." | "source");
        if is_sourced && base(file) == "activate" {
            return;
        }
        let text = candidates(file, &place.folder, &place.name).into_iter().find_map(|path| {
            let text = self.code.read(&path)?;
            Some((path, text))
        });
        let is_shell = is_sourced || SHELLS.contains(&reader);
        match text {
            Some((path, text)) if is_shell || !path.ends_with(".py") && is_for_shell(&path, &text) => {
                self.script(&text, arguments, &Place { name: path, ..place.clone() });
            }
            // What a shell is set up with outside of the code, as in `. /etc/profile`.
            None if is_sourced => {}
            None if is_shell || is_script(file) && !file.ends_with(".py") => {
                self.unclear(format!("{} starts {file}, which is not in the code", place.name));
            }
            _ => self.program(base(file), place),
        }
    }
}

/// Words in front of a program that are examined.
const MAX_WRAPPERS: usize = 200;

/// The wrapper that starts its program without the task's variables, if one does.
fn hides_variables<'a>(wrappers: &[&'a str]) -> Option<&'a str> {
    let wrappers = &wrappers[..wrappers.len().min(MAX_WRAPPERS)];
    wrappers.iter().enumerate().find_map(|(at, word)| {
        let behind = &wrappers[at + 1..];
        let hides = match base(word) {
            "sudo" => !behind.iter().any(|word| keeps_variables(word)),
            "env" => env_options(behind).any(|option| matches!(option, "-" | "-i" | "--ignore-environment")),
            _ => false,
        };
        hides.then_some(*word)
    })
}

/// `-E`, `-nE`, `--preserve-env`; a list of names keeps too little.
fn keeps_variables(option: &str) -> bool {
    let is_short = option.starts_with('-') && option[1..].bytes().all(|byte| byte.is_ascii_alphabetic());
    option == "--preserve-env" || is_short && option.contains('E')
}

/// `mkdir -p x`, `conda activate x`, `sed` that changes no file.
fn is_repeatable(words: &[&str]) -> bool {
    match (base(words[0]), words.get(1)) {
        ("mkdir", Some(word)) => word.starts_with('-') && word.contains('p'),
        ("sed", _) => !words.iter().any(|word| word.starts_with("-i") || word.starts_with("--in-place")),
        (_, Some(word)) => matches!(*word, "activate" | "deactivate" | "info"),
        (_, None) => false,
    }
}
