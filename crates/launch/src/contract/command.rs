//! The user's words: what kind of program they start, and where a launcher's own flags go.
//!
//! Only a list of words is ever changed. A line for the shell is the user's whole, and stays as it is.

use muster_model::spec::Command;

use crate::detect::{Launcher, program_at};

/// A command line of Python's, in its parts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Python<'a> {
    /// The interpreter, as the user wrote it.
    pub interpreter: &'a str,
    /// Its own flags, such as `-u`.
    pub flags: &'a [String],
    /// `-m` or `-c`, where it is not a script that is run.
    pub how: Option<&'a str>,
    /// The script, module or text, and its arguments.
    pub program: &'a [String],
}

/// Takes a command apart that starts Python.
pub(super) fn python(argv: &[String]) -> Option<Python<'_>> {
    let interpreter = argv.first().filter(|word| is_python(word))?;
    let mut at = 1;
    while let Some(word) = argv.get(at) {
        match word.as_str() {
            "-m" | "-c" => {
                let program = argv.get(at + 1..).filter(|rest| !rest.is_empty())?;
                return Some(Python { interpreter, flags: &argv[1..at], how: Some(word), program });
            }
            "-X" | "-W" => at += 2,
            flag if flag.starts_with('-') && flag.len() > 1 => at += 1,
            _ => return Some(Python { interpreter, flags: &argv[1..at], how: None, program: &argv[at..] }),
        }
    }
    None
}

/// Who reads a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// The shell.
    Bash,
    /// Python; what it is called, only the machine knows.
    Python,
}

/// What Python is called unless somebody knows better: so does a virtual environment call its own.
const PYTHON: &str = "python";

/// Who reads what a command names alone, `train.py` or `run.sh`. What is named by its directory, `./train.py`, may be a
/// program of its own.
pub fn reader(word: &str) -> Option<Reader> {
    if word.starts_with(['.', '/']) {
        return None;
    }
    match word.rsplit_once('.')?.1 {
        "py" => Some(Reader::Python),
        "sh" => Some(Reader::Bash),
        _ => None,
    }
}

/// Puts whoever reads it in front of a script that is named alone.
pub(super) fn read(argv: &[String]) -> Vec<String> {
    let reader = argv.first().and_then(|word| reader(word)).map(|reader| match reader {
        Reader::Bash => "bash",
        Reader::Python => PYTHON,
    });
    reader.map(str::to_owned).into_iter().chain(argv.iter().cloned()).collect()
}

/// As [`read`], under a framework, which starts Python also for what is named by its directory.
pub(super) fn interpreted(argv: &[String]) -> Vec<String> {
    let bare = argv.first().is_some_and(|word| word.ends_with(".py"));
    bare.then(|| PYTHON.to_owned()).into_iter().chain(argv.iter().cloned()).collect()
}

/// The words as they were typed, also those in a line for a shell: good enough to see which flags are there.
pub(super) fn typed(command: &Command) -> Vec<String> {
    let argv = match command {
        Command::Argv(argv) => argv.as_slice(),
        Command::Shell(line) => std::slice::from_ref(line),
    };
    argv.iter().flat_map(|word| word.split_whitespace()).map(str::to_owned).collect()
}

/// Flags of launchers that have no value: what follows may be the program.
const SWITCHES: &[&str] = &[
    "allow_run_as_root",
    "bind_cores_to_rank",
    "cpu",
    "debug",
    "elastic_training",
    "force_multi",
    "module",
    "multi_gpu",
    "no_local_rank",
    "no_python",
    "no_ssh",
    "no_ssh_check",
    "oversubscribe",
    "q",
    "quiet",
    "run_path",
    "same_network",
    "save_pid",
    "standalone",
    "tag_output",
    "tpu",
    "use_deepspeed",
    "use_fsdp",
    "use_megatron_lm",
    "use_mps_device",
    "use_xpu",
    "v",
    "verbose",
];

/// A launcher's command line. One that is hidden in a script for a shell is left as it is.
#[derive(Debug)]
pub(super) struct Launch<'a> {
    argv: &'a [String],
    /// Where its own flags begin; behind the last word if it is not among them.
    begin: usize,
    /// Where they end at the latest: at the program that it starts.
    end: usize,
    more: Vec<String>,
}

impl<'a> Launch<'a> {
    /// Finds the launcher among the words.
    pub fn of(argv: &'a [String], launcher: Launcher) -> Self {
        let begin = begin(argv, launcher).unwrap_or(argv.len());
        let mut launch = Self { argv, begin, end: begin, more: Vec::new() };
        launch.end = launch.program_from(begin);
        launch
    }

    /// The words behind a launcher, of which all before its program are its own.
    pub fn of_arguments(arguments: &'a [String]) -> Self {
        let mut launch = Self { argv: arguments, begin: 0, end: 0, more: Vec::new() };
        launch.end = launch.program_from(0);
        launch
    }

    /// Where the program begins, from a word on: at what can only be one, or what can be no flag's value.
    fn program_from(&self, begin: usize) -> usize {
        let words = &self.argv[begin..];
        let is_program = |(at, word): (usize, &String)| {
            let before = at.checked_sub(1).map(|before| words[before].as_str());
            let may_be_value = before
                .is_some_and(|word| word.starts_with('-') && !word.contains('=') && !is_flag(word, SWITCHES));
            word.ends_with(".py")
                || is_python(word)
                || matches!(word.as_str(), "--" | "-m" | "--module")
                || !word.starts_with('-') && !may_be_value
        };
        words.iter().enumerate().position(is_program).map_or(self.argv.len(), |end| begin + end)
    }

    /// Whether the launcher is among the words.
    pub fn is_found(&self) -> bool {
        self.begin < self.argv.len()
    }

    /// The value of the first of these flags that the user gave: `4` of `--nnodes=4` and of `--nnodes 4`.
    pub fn value(&self, flags: &[&str]) -> Option<&'a str> {
        let words = &self.argv[self.begin..self.end];
        let at = words.iter().position(|word| is_flag(word, flags))?;
        match words[at].split_once('=') {
            Some((_, value)) => Some(value),
            None => words.get(at + 1).map(String::as_str),
        }
    }

    /// Whether the user gave one of these flags, in whatever spelling: `--num-nodes=2`, `--num_nodes 2`.
    pub fn gives(&self, flags: &[&str]) -> bool {
        self.argv[self.begin..self.end].iter().any(|word| is_flag(word, flags))
    }

    /// Adds a flag unless the user gave it, under this name or one of the others.
    pub fn add(&mut self, flag: &str, others: &[&str], value: impl ToString) -> &mut Self {
        let plain = flag.trim_start_matches('-').replace('-', "_");
        if !self.gives(&[plain.as_str()]) && !self.gives(others) {
            self.more.extend([flag.to_owned(), value.to_string()]);
        }
        self
    }

    /// Adds a flag that has no value.
    pub fn switch(&mut self, flag: &str) -> &mut Self {
        self.more.push(flag.to_owned());
        self
    }

    /// The words with the flags that were added.
    pub fn words(&self) -> Vec<String> {
        if self.begin == self.argv.len() {
            return self.argv.to_vec();
        }
        let (before, after) = self.argv.split_at(self.begin);
        before.iter().chain(&self.more).chain(after).cloned().collect()
    }

    /// The words from the program on that it starts.
    pub fn program(&self) -> &'a [String] {
        &self.argv[self.end..]
    }
}

/// Whether a word is one of these flags, in whatever spelling: `--num-nodes=2`, `--num_nodes`.
fn is_flag(word: &str, flags: &[&str]) -> bool {
    let plain = word.split('=').next().unwrap_or(word).trim_start_matches('-').replace('-', "_");
    word.starts_with('-') && flags.contains(&plain.as_str())
}

fn begin(argv: &[String], launcher: Launcher) -> Option<usize> {
    let (programs, modules): (&[&str], &[&str]) = match launcher {
        Launcher::Torchrun => (&["torchrun"], &["torch.distributed.run", "torch.distributed.launch"]),
        Launcher::Accelerate => {
            (&["accelerate", "accelerate-launch"], &["accelerate.commands.launch", "accelerate"])
        }
        Launcher::Fabric => (&["fabric"], &[]),
        Launcher::Tune => (&["tune"], &[]),
        Launcher::Composer => (&["composer"], &["composer.cli.launcher"]),
        Launcher::Deepspeed => (&["deepspeed", "deepspeed.py"], &["deepspeed", "deepspeed.launcher.runner"]),
        Launcher::Horovodrun => (&["horovodrun"], &["horovod.runner.launch", "horovod.runner"]),
        Launcher::Mpirun => (&["mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"], &[]),
        Launcher::Msrun => (&["msrun"], &["mindspore.parallel.cluster.run"]),
        Launcher::Paddle => (
            &["fleetrun"],
            &["paddle.distributed.launch", "paddle.distributed.fleet.launch", "paddle.distributed.run"],
        ),
    };
    // What stands before the program may have its name: `conda run -n deepspeed deepspeed`.
    let from = program_at(argv).unwrap_or_default();
    let is_launcher = |(at, word): (usize, &String)| {
        programs.contains(&name(word)) || (at > 0 && argv[at - 1] == "-m" && modules.contains(&word.as_str()))
    };
    let at = from + argv.iter().enumerate().skip(from).position(is_launcher)?;
    let verb = matches!(name(&argv[at]), "accelerate" | "fabric" | "tune");
    let verb = verb && argv.get(at + 1).is_some_and(|word| word == "launch" || word == "run");
    Some(at + 1 + usize::from(verb))
}

fn name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

fn is_python(word: &str) -> bool {
    let version = name(word).strip_prefix("python");
    version.is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn python_is_taken_apart_wherever_its_program_is() {
        for (line, flags, how, program) in [
            ("python x.py -m", 0, None, "x.py -m"),
            ("/usr/bin/python3.11 -u -X dev x.py a", 3, None, "x.py a"),
            ("python3 -m pkg.train a", 0, Some("-m"), "pkg.train a"),
            ("python -c pass", 0, Some("-c"), "pass"),
        ] {
            let argv = words(line);
            let python = python(&argv).unwrap();
            assert_eq!(
                (python.flags.len(), python.how, python.program.join(" ").as_str()),
                (flags, how, program)
            );
        }
        for line in ["python", "python -u", "pythonic x.py", "./train x.py", "python -m"] {
            assert_eq!(python(&words(line)), None, "{line}");
        }
    }

    #[test]
    fn a_launcher_in_a_script_for_a_shell_is_left_as_it_is() {
        for launcher in [Launcher::Horovodrun, Launcher::Mpirun, Launcher::Accelerate] {
            let argv =
                ["sh", "-c", "cd ~ && horovodrun -p 22 x; mpirun x; accelerate launch x"].map(str::to_owned);
            let mut launch = Launch::of(&argv, launcher);
            launch.add("-np", &[], 2).switch("--multi_gpu");
            assert_eq!(launch.words(), argv);
            assert!(launch.program().is_empty());
            assert!(Launch::of(&typed(&Command::Argv(argv.to_vec())), Launcher::Horovodrun).gives(&["p"]));
        }
    }

    #[test]
    fn a_launchers_flags_are_its_own_and_not_its_programs() {
        let argv = words("deepspeed --num-nodes=2 train.py --master_port 1");
        let mut launch = Launch::of(&argv, Launcher::Deepspeed);
        launch.add("--num_nodes", &[], 3).add("--master_port", &[], 5);
        assert_eq!(
            launch.words().join(" "),
            "deepspeed --master_port 5 --num-nodes=2 train.py --master_port 1"
        );
        assert_eq!(launch.program().join(" "), "train.py --master_port 1");
        let argv = words("conda run -n deepspeed deepspeed train.py");
        let mut launch = Launch::of(&argv, Launcher::Deepspeed);
        launch.add("--num_nodes", &[], 3);
        assert_eq!(launch.words().join(" "), "conda run -n deepspeed deepspeed --num_nodes 3 train.py");
        let argv = words("accelerate-launch train.py");
        let mut launch = Launch::of(&argv, Launcher::Accelerate);
        launch.add("--machine_rank", &[], 1);
        assert_eq!(launch.words().join(" "), "accelerate-launch --machine_rank 1 train.py");
        let argv = words("/opt/bin/accelerate launch --num_machines 2 -m pkg");
        let mut launch = Launch::of(&argv, Launcher::Accelerate);
        launch.add("--machine_rank", &[], 1);
        assert_eq!(
            launch.words().join(" "),
            "/opt/bin/accelerate launch --machine_rank 1 --num_machines 2 -m pkg"
        );
    }
}
