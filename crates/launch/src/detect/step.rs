//! What a simple command starts, behind everything that only stands before it.

use super::Launcher;
use super::word::{HOLE, assignment, is_hole};

/// What a command does, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// It is a framework's launcher, called by this name; the words behind it.
    Launch(Launcher, String, Vec<String>),
    /// It goes to other tasks by ssh, with this program.
    Visit(String),
    /// Python code in the command itself.
    Code(String),
    /// `python -m`.
    Module(String),
    /// A file is run, by an interpreter or by itself, with these arguments if they are known.
    File(String, Option<Vec<String>>),
    /// A script for the shell in the command itself, with its arguments if they are known.
    Script(String, Option<Vec<String>>),
    /// `cd`.
    Enter(String),
    /// Anything else.
    Other,
}

/// A program that runs the one named after its options: its name, the options that have a value of their own, and how
/// many words stand before the program.
struct Wrapper {
    name: &'static str,
    /// The word that must come first: `conda run`.
    verb: Option<&'static str>,
    valued: &'static [&'static str],
    words: usize,
}

const fn wrapper(name: &'static str, valued: &'static [&'static str]) -> Wrapper {
    Wrapper { name, verb: None, valued, words: 0 }
}

const fn runner(name: &'static str, verb: &'static str, valued: &'static [&'static str]) -> Wrapper {
    Wrapper { name, verb: Some(verb), valued, words: 0 }
}

const CONDA: &[&str] = &["-n", "--name", "-p", "--prefix", "--cwd"];
const ENV: &[&str] = &["-u", "--unset", "-C", "--chdir"];
const UV: &[&str] = &[
    "--with",
    "--with-requirements",
    "--with-editable",
    "-p",
    "--python",
    "--project",
    "--directory",
    "--env-file",
    "--extra",
    "--group",
    "--package",
    "--index",
    "--index-url",
    "--default-index",
    "--extra-index-url",
    "-f",
    "--find-links",
    "--cache-dir",
    "--config-file",
    "--from",
];

const WRAPPERS: &[Wrapper] = &[
    wrapper("exec", &["-a"]),
    wrapper("command", &[]),
    wrapper("builtin", &[]),
    wrapper("nohup", &[]),
    wrapper("setsid", &[]),
    wrapper("time", &["-f", "--format", "-o", "--output"]),
    wrapper("nice", &["-n", "--adjustment"]),
    wrapper("ionice", &["-c", "--class", "-n", "--classdata"]),
    wrapper("env", ENV),
    wrapper("stdbuf", &["-i", "--input", "-o", "--output", "-e", "--error"]),
    wrapper("unbuffer", &[]),
    wrapper(
        "sudo",
        &["-u", "--user", "-g", "--group", "-h", "--host", "-p", "--prompt", "-C", "-D", "-R", "-T"],
    ),
    Wrapper { name: "timeout", verb: None, valued: &["-s", "--signal", "-k", "--kill-after"], words: 1 },
    Wrapper { name: "chrt", verb: None, valued: &["-T", "-P", "-D"], words: 1 },
    // Either a mask of its own, or `-c LIST`.
    Wrapper { name: "taskset", verb: None, valued: &[], words: 1 },
    wrapper(
        "numactl",
        &[
            "-N",
            "--cpunodebind",
            "-C",
            "--physcpubind",
            "-m",
            "--membind",
            "-i",
            "--interleave",
            "-p",
            "--preferred",
        ],
    ),
    wrapper("catchsegv", &[]),
    wrapper("strace", &["-o", "-e", "-p", "-s"]),
    wrapper("xvfb-run", &["-s", "-n", "-e", "-f"]),
    wrapper("uvx", UV),
    runner("uv", "run", UV),
    runner("conda", "run", CONDA),
    runner("mamba", "run", CONDA),
    runner("micromamba", "run", CONDA),
    runner("poetry", "run", &["-C", "--directory", "-P", "--project"]),
    runner("pipenv", "run", &[]),
    runner("pdm", "run", &["-p", "--project"]),
    runner("hatch", "run", &[]),
    runner("rye", "run", &[]),
    runner("pixi", "run", &["-e", "--environment", "--manifest-path"]),
    runner("coverage", "run", &["--source", "--omit", "--include", "--rcfile"]),
    runner(
        "nsys",
        "profile",
        &["-o", "--output", "-t", "--trace", "-d", "--duration", "-y", "--delay", "-w", "-f", "-s", "-c"],
    ),
    runner("py-spy", "record", &["-o", "--output", "-d", "--duration", "-r", "--rate", "-f", "--format"]),
];

pub(super) const SHELLS: [&str; 5] = ["sh", "bash", "zsh", "dash", "ksh"];
/// A program that is a launcher when one of these words follows.
struct LauncherWithVerbs {
    name: &'static str,
    verbs: &'static [&'static str],
    launcher: Launcher,
}

const LAUNCHERS_WITH_VERBS: &[LauncherWithVerbs] = &[
    LauncherWithVerbs { name: "accelerate", verbs: &["launch"], launcher: Launcher::Accelerate },
    LauncherWithVerbs { name: "axolotl", verbs: &["train"], launcher: Launcher::Accelerate },
    LauncherWithVerbs {
        name: "trl",
        verbs: &["sft", "dpo", "grpo", "kto", "reward", "rloo"],
        launcher: Launcher::Accelerate,
    },
    LauncherWithVerbs { name: "llamafactory-cli", verbs: &["train"], launcher: Launcher::Torchrun },
    LauncherWithVerbs { name: "fabric", verbs: &["run"], launcher: Launcher::Fabric },
    LauncherWithVerbs { name: "tune", verbs: &["run"], launcher: Launcher::Tune },
];

/// Options of Python that have a value.
const PYTHON_VALUED: [&str; 4] = ["-W", "-X", "--check-hash-based-pycs", "-Q"];

/// Wrappers in front of each other; nobody needs more.
const MAX_WRAPPERS: usize = 16;

/// What stands behind the programs that only run another one, and the variables that are set for it.
pub(super) enum Behind {
    /// A program, which begins at this word.
    Program(usize),
    /// Something that has no word of its own.
    Known(Step),
}

/// What a command's words start.
pub(super) fn step(words: &[String]) -> Step {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match behind_wrappers(&words) {
        Behind::Program(at) => program(&words[at..]),
        Behind::Known(step) => step,
    }
}

/// Looks past the wrappers in front of a program.
pub(super) fn behind_wrappers(all: &[&str]) -> Behind {
    let mut at = 0;
    for _ in 0..MAX_WRAPPERS {
        at += all[at..].iter().take_while(|word| assignment(word).is_some()).count();
        let words = &all[at..];
        let Some(first) = words.first() else { return Behind::Known(Step::Other) };
        let name = base(first);
        if let Some(script) = env_script(name, words) {
            return Behind::Known(Step::Script(script, None));
        }
        if let Some(from) = behind_run_train(words) {
            at += from;
            continue;
        }
        match inner(name, words) {
            Some(Inner::Words(from)) => at += from,
            Some(Inner::Module(name)) => return Behind::Known(module(&name, &[])),
            None => return Behind::Program(at),
        }
    }
    Behind::Known(Step::Other)
}

/// What starts a command of ModelArts' on its machines: `bash /home/work/run_train.sh python /home/work/user-job-dir/run.sh`.
pub(super) const RUN_TRAIN: &str = "/home/work/run_train.sh";

/// Where the command begins that ModelArts' script runs, if it is called with one.
fn behind_run_train(words: &[&str]) -> Option<usize> {
    let at = usize::from(SHELLS.contains(&base(words[0])));
    (words.get(at) == Some(&RUN_TRAIN) && words.len() > at + 1).then_some(at + 1)
}

/// The last part of a path.
pub(super) fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

enum Inner {
    /// The program that is run begins at this word.
    Words(usize),
    /// It is a module of Python: `uv run -m x`.
    Module(String),
}

/// Where the program is that a wrapper runs.
fn inner(name: &str, words: &[&str]) -> Option<Inner> {
    let wrapper = WRAPPERS.iter().find(|wrapper| wrapper.name == name)?;
    let mut at = 1;
    if let Some(verb) = wrapper.verb {
        at += options(&words[at..], wrapper.valued);
        if words.get(at) != Some(&verb) {
            return None;
        }
        at += 1;
    }
    let behind = options(&words[at..], wrapper.valued);
    let takes_module = matches!(name, "uv" | "coverage");
    let asks = |word: &&str| takes_module && matches!(*word, "-m" | "--module");
    if let Some(option) = words[at..at + behind].iter().position(asks) {
        return Some(Inner::Module((*words.get(at + option + 1)?).to_owned()));
    }
    at += behind;
    // `env - A=1 x` is `env -i A=1 x`.
    at += usize::from(name == "env" && words.get(at) == Some(&"-"));
    at += wrapper.words;
    // `taskset -c 0-3 x` has its list where a mask would be; a wrapper with nothing behind it runs nothing.
    (at < words.len()).then_some(Inner::Words(at))
}

/// How many of the words are options, with their values.
fn options(words: &[&str], valued: &[&str]) -> usize {
    let mut at = 0;
    while let Some(word) = words.get(at).filter(|word| word.starts_with('-') && word.len() > 1) {
        at += 1;
        if *word == "--" {
            break;
        }
        at += usize::from(valued.contains(word));
    }
    at.min(words.len())
}

/// The options of `env`, of the words behind it, without the values that some have.
pub(super) fn env_options<'a>(words: &[&'a str]) -> impl Iterator<Item = &'a str> {
    let mut rest = words.iter().copied();
    std::iter::from_fn(move || {
        let option = rest.next().filter(|word| word.starts_with('-'))?;
        if ENV.contains(&option) {
            rest.next();
        }
        Some(option)
    })
}

/// `env -S 'A=b program'`.
fn env_script(name: &str, words: &[&str]) -> Option<String> {
    if name != "env" {
        return None;
    }
    let splits = |word: &str| matches!(word, "-S" | "--split-string");
    let at = words.iter().position(|word| splits(word))?;
    env_options(&words[1..]).any(splits).then(|| words[at + 1..].join(" "))
}

/// What a program is, given its words.
pub(super) fn program(words: &[&str]) -> Step {
    let Some((first, rest)) = words.split_first() else { return Step::Other };
    let name = base(first);
    let launch = |launcher| {
        Step::Launch(launcher, name.to_owned(), rest.iter().map(|word| (*word).to_owned()).collect())
    };
    if let Some(with_verbs) = LAUNCHERS_WITH_VERBS.iter().find(|it| it.name == name) {
        return match rest.split_first() {
            Some((verb, rest)) if with_verbs.verbs.contains(verb) => {
                Step::Launch(with_verbs.launcher, format!("{name} {verb}"), owned(rest))
            }
            _ => Step::Other,
        };
    }
    // There is another program of this name, which installs packages of PHP.
    if name == "composer" {
        let is_launcher =
            rest.iter().any(|word| word.ends_with(".py") || matches!(*word, "-m" | "-c" | "-n"));
        return if is_launcher { launch(Launcher::Composer) } else { Step::Other };
    }
    if let Some(launcher) = launcher_named(name) {
        return launch(launcher);
    }
    if visits(name, rest) {
        return Step::Visit(name.to_owned());
    }
    // `$PYTHON -m x`, `$PYTHON x.py`: nothing else is called like that.
    let is_called_like_python =
        is_hole(first) && rest.first().is_some_and(|it| *it == "-m" || it.ends_with(".py"));
    if is_python(name) || is_called_like_python {
        return python(rest);
    }
    if SHELLS.contains(&name) {
        return shell(rest);
    }
    match (name, rest) {
        ("eval", rest) => Step::Script(rest.join(" "), None),
        ("cd" | "pushd", [folder, ..]) => Step::Enter((*folder).to_owned()),
        // Without arguments of its own it has those of the script that it is read by.
        ("." | "source", [file]) => Step::File((*file).to_owned(), None),
        ("." | "source", [file, rest @ ..]) => Step::File((*file).to_owned(), Some(owned(rest))),
        _ if first.contains('/') || is_script(first) => Step::File((*first).to_owned(), Some(owned(rest))),
        _ => Step::Other,
    }
}

/// Whether a program goes to members of the gang by ssh: `pdsh` has no other use, `ssh` names one of them.
fn visits(name: &str, rest: &[&str]) -> bool {
    match name {
        "pdsh" | "pdcp" | "rpdcp" => true,
        "ssh" | "scp" | "sftp" | "rsync" | "sshfs" => rest.iter().any(|word| is_member(word)),
        _ => false,
    }
}

/// Whether a word is, or begins with, what members call each other: `worker-1`, `root@worker-$i:/tmp`, `task0.bert`.
fn is_member(word: &str) -> bool {
    let host = word.split(':').next().unwrap_or(word);
    let host = host.rsplit('@').next().unwrap_or(host);
    let number = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit() || c == HOLE);
    let by_number =
        ["worker-", "ib-worker-", "ps-"].iter().filter_map(|kind| host.strip_prefix(kind)).any(number);
    by_number || host.strip_prefix("task").is_some_and(|rest| number(rest) && rest.contains('.'))
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

pub(super) fn is_script(name: &str) -> bool {
    [".py", ".sh", ".bash"].iter().any(|ending| name.ends_with(ending))
}

fn launcher_named(name: &str) -> Option<Launcher> {
    Some(match name {
        "torchrun" => Launcher::Torchrun,
        "accelerate-launch" => Launcher::Accelerate,
        "deepspeed" | "deepspeed.pt" => Launcher::Deepspeed,
        "horovodrun" => Launcher::Horovodrun,
        "mpirun" | "mpiexec" | "orterun" | "prterun" | "mpirun_rsh" => Launcher::Mpirun,
        name if name.starts_with("mpirun.") || name.starts_with("mpiexec.") => Launcher::Mpirun,
        "msrun" => Launcher::Msrun,
        "fleetrun" => Launcher::Paddle,
        _ => return None,
    })
}

fn launcher_of_module(module: &str) -> Option<Launcher> {
    Some(match module {
        "torch.distributed.run" | "torch.distributed.launch" => Launcher::Torchrun,
        "accelerate.commands.launch" => Launcher::Accelerate,
        "deepspeed" | "deepspeed.launcher.runner" => Launcher::Deepspeed,
        "horovod.runner" | "horovod.runner.launch" | "horovod.run" | "horovod.run.run" => {
            Launcher::Horovodrun
        }
        "mindspore.parallel.cluster.run" => Launcher::Msrun,
        "paddle.distributed.launch" | "paddle.distributed.fleet.launch" | "paddle.distributed.run" => {
            Launcher::Paddle
        }
        _ => return None,
    })
}

/// `python`, `python3`, `python3.11`, `pypy3`.
fn is_python(name: &str) -> bool {
    ["python", "pypy"].iter().any(|kind| {
        name.strip_prefix(kind)
            .is_some_and(|version| version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
    })
}

fn python(arguments: &[&str]) -> Step {
    let mut at = 0;
    while let Some(word) = arguments.get(at) {
        at += 1;
        let next = || arguments.get(at).copied();
        match *word {
            "-m" => {
                return next()
                    .map_or(Step::Other, |name| module(name, arguments.get(at + 1..).unwrap_or_default()));
            }
            "-c" => return next().map_or(Step::Other, |code| Step::Code(code.to_owned())),
            "-" => return Step::Other,
            word if PYTHON_VALUED.contains(&word) => at += 1,
            // `-um module`, `-Im`.
            word if word.starts_with('-') && !word.starts_with("--") && word.ends_with('m') => {
                return next()
                    .map_or(Step::Other, |name| module(name, arguments.get(at + 1..).unwrap_or_default()));
            }
            word if word.starts_with('-') => {}
            // A variable that may be empty, or options.
            word if is_hole(word) => {}
            file => return python_file(file, &arguments[at..]),
        }
    }
    Step::Other
}

/// A launcher may be started by its file, wherever it is installed.
fn python_file(file: &str, rest: &[&str]) -> Step {
    let module = file.trim_end_matches(".py").replace('/', ".");
    let launcher = ["torch.distributed.launch", "torch.distributed.run", "paddle.distributed.launch"]
        .into_iter()
        .find(|launcher| module.ends_with(&format!(".{launcher}")));
    match launcher.and_then(|name| Some((name, launcher_of_module(name)?))) {
        Some((name, launcher)) => Step::Launch(launcher, name.to_owned(), owned(rest)),
        None => match launcher_named(base(file)) {
            // `python $(which deepspeed) train.py`, `python /opt/bin/torchrun train.py`.
            Some(launcher) => Step::Launch(launcher, base(file).to_owned(), owned(rest)),
            None => Step::File(file.to_owned(), Some(owned(rest))),
        },
    }
}

fn module(name: &str, rest: &[&str]) -> Step {
    match launcher_of_module(name) {
        Some(launcher) => Step::Launch(launcher, format!("python -m {name}"), owned(rest)),
        None => Step::Module(name.to_owned()),
    }
}

fn shell(arguments: &[&str]) -> Step {
    let mut at = 0;
    while let Some(word) = arguments.get(at) {
        at += 1;
        match *word {
            "-o" | "+o" | "-O" | "--rcfile" | "--init-file" => at += 1,
            word if word.starts_with('-') && !word.starts_with("--") && word.contains('c') => {
                // Further options may stand before the script.
                let at = at + options(&arguments[at..], &[]);
                let Some(script) = arguments.get(at) else { return Step::Other };
                // The first word behind the script is `$0`.
                let rest = arguments.get(at + 2..).unwrap_or_default();
                return Step::Script((*script).to_owned(), Some(owned(rest)));
            }
            // `-euo pipefail`.
            word if word.starts_with(['-', '+']) && !word.starts_with("--") && word.ends_with('o') => at += 1,
            word if word.starts_with(['-', '+']) => {}
            file => return Step::File(file.to_owned(), Some(owned(&arguments[at..]))),
        }
    }
    Step::Other
}
