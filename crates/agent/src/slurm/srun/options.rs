//! The options of `srun`, as far as they mean something in a task. Those that say where a job is to run say nothing here: it
//! runs already.

use muster_model::slurm::option::{self, Known, Takes};
use muster_model::slurm::quantity::{self, Gpus};
use std::time::Duration;

use super::super::wire::Input;

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Options {
    pub ntasks: Option<u32>,
    pub nodes: Option<u32>,
    pub ntasks_per_node: Option<u32>,
    pub cpus_per_task: Option<u32>,
    /// For each task, for each node, for all of the step.
    pub gpus_per_task: Option<u32>,
    pub gpus_per_node: Option<u32>,
    pub gpus: Option<u32>,
    pub label: bool,
    pub output: Option<String>,
    pub error: Option<String>,
    pub append: bool,
    pub input: Source,
    pub export: Option<String>,
    pub chdir: Option<String>,
    pub kill_on_bad_exit: bool,
    /// After the first task's end, the others have so long.
    pub wait: Option<Duration>,
    pub time: Option<Duration>,
    /// Whether its CPUs are its own, so that it waits for them.
    pub exclusive: bool,
    /// Whether it takes what others have.
    pub overlap: bool,
    pub nodelist: Option<String>,
    pub exclude: Option<String>,
    pub relative: usize,
    pub cyclic: bool,
    pub no_kill: bool,
    pub quiet: bool,
    /// The option that only the `srun` of a real Slurm can honour, with what to do where there is none.
    pub needs_real: Option<(String, &'static str)>,
    pub command: Vec<String>,
}

/// Where the tasks' input comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Stdin(Input),
    File(String),
}

/// What an option does.
#[derive(Debug, Clone, Copy)]
enum Does {
    Set(fn(&mut Options, &str) -> Result<(), String>),
    Nothing,
    /// Only a real Slurm can do it; what to do elsewhere.
    Real(&'static str),
    Refuse(&'static str),
}

/// The options of Pyxis, a plugin of Slurm's that many sites have.
const PYXIS: &str = "it is for a Slurm with Pyxis; elsewhere, `--image` of a job chooses its container";

const fn long(long: &'static str, takes: Takes, meaning: Does) -> Known<Does> {
    Known { long, short: None, takes, meaning }
}

const fn both(long: &'static str, short: char, takes: Takes, meaning: Does) -> Known<Does> {
    Known { long, short: Some(short), takes, meaning }
}

use Does::{Nothing, Real, Refuse, Set};
use Takes::{Maybe, Nothing as No, Value};

const KNOWN: &[Known<Does>] = &[
    both("account", 'A', Value, Nothing),
    long("accel-bind", Value, Nothing),
    long("acctg-freq", Value, Nothing),
    both("batch", 'b', No, Refuse("it is for jobs; leave it out")),
    long(
        "bcast",
        Maybe,
        Refuse("files are copied with `sbcast` by Slurm alone; the job's directory is on every node"),
    ),
    both("chdir", 'D', Value, Set(|it, value| text(&mut it.chdir, value))),
    long("comment", Value, Nothing),
    both("constraint", 'C', Value, Nothing),
    long("container-entrypoint", No, Real(PYXIS)),
    long("container-entrypoint-log", No, Real(PYXIS)),
    long("container-env", Value, Real(PYXIS)),
    long("container-image", Value, Real(PYXIS)),
    long("container-mount-home", No, Real(PYXIS)),
    long("container-mounts", Value, Real(PYXIS)),
    long("container-name", Value, Real(PYXIS)),
    long("container-readonly", No, Real(PYXIS)),
    long("container-remap-root", No, Real(PYXIS)),
    long("container-save", Value, Real(PYXIS)),
    long("container-workdir", Value, Real(PYXIS)),
    long("container-writable", No, Real(PYXIS)),
    long("core-spec", Value, Nothing),
    long("cores-per-socket", Value, Nothing),
    long("cpu-bind", Value, Nothing),
    long("cpu_bind", Value, Nothing),
    long("cpu-freq", Value, Nothing),
    long("cpus-per-gpu", Value, Nothing),
    both("cpus-per-task", 'c', Value, Set(|it, value| count(&mut it.cpus_per_task, value))),
    both("dependency", 'd', Value, Refuse("it is for jobs; leave it out")),
    both("disable-status", 'X', No, Nothing),
    both("distribution", 'm', Value, Set(distribution)),
    long("epilog", Value, Refuse("run it in the script, after srun")),
    both("error", 'e', Value, Set(|it, value| text(&mut it.error, value))),
    long("exact", No, Set(|it, _| yes(&mut it.exclusive))),
    both("exclude", 'x', Value, Set(|it, value| text(&mut it.exclude, value))),
    long("exclusive", Maybe, Set(|it, _| yes(&mut it.exclusive))),
    long("export", Value, Set(|it, value| text(&mut it.export, value))),
    both("extra-node-info", 'B', Value, Nothing),
    long("gpu-bind", Value, Nothing),
    long("gpu-freq", Value, Nothing),
    both("gpus", 'G', Value, Set(|it, value| gpus(&mut it.gpus, value))),
    long("gpus-per-node", Value, Set(|it, value| gpus(&mut it.gpus_per_node, value))),
    long("gpus-per-socket", Value, Refuse("write --gpus-per-node")),
    long("gpus-per-task", Value, Set(|it, value| gpus(&mut it.gpus_per_task, value))),
    long("gres", Value, Set(gres)),
    long("gres-flags", Value, Nothing),
    long("het-group", Value, Refuse("jobs of several parts cannot be run")),
    long("hint", Value, Nothing),
    both("immediate", 'I', Maybe, Nothing),
    both("input", 'i', Value, Set(input)),
    both("job-name", 'J', Value, Nothing),
    long("jobid", Value, Nothing),
    both(
        "kill-on-bad-exit",
        'K',
        Maybe,
        Set(|it, value| {
            it.kill_on_bad_exit = value != "0";
            Ok(())
        }),
    ),
    both("label", 'l', No, Set(|it, _| yes(&mut it.label))),
    both("licenses", 'L', Value, Nothing),
    long("mem", Value, Nothing),
    long("mem-bind", Value, Nothing),
    long("mem-per-cpu", Value, Nothing),
    long("mem-per-gpu", Value, Nothing),
    long("mpi", Value, Set(mpi)),
    long("multi-prog", No, Refuse("start each program with an srun of its own: `srun … & srun … & wait`")),
    long("network", Value, Nothing),
    long("nice", Maybe, Nothing),
    long("no-container-entrypoint", No, Real(PYXIS)),
    long("no-container-mount-home", No, Real(PYXIS)),
    long("no-container-remap-root", No, Real(PYXIS)),
    both("no-kill", 'k', Maybe, Set(|it, _| yes(&mut it.no_kill))),
    both("nodelist", 'w', Value, Set(|it, value| text(&mut it.nodelist, value))),
    both(
        "nodes",
        'N',
        Value,
        Set(|it, value| {
            it.nodes = Some(quantity::nodes(value)?.0);
            Ok(())
        }),
    ),
    both("ntasks", 'n', Value, Set(|it, value| count(&mut it.ntasks, value))),
    long("ntasks-per-core", Value, Nothing),
    long("ntasks-per-gpu", Value, Nothing),
    long("ntasks-per-node", Value, Set(|it, value| count(&mut it.ntasks_per_node, value))),
    long("ntasks-per-socket", Value, Nothing),
    long(
        "open-mode",
        Value,
        Set(|it, value| {
            it.append = value.starts_with('a');
            Ok(())
        }),
    ),
    both("output", 'o', Value, Set(|it, value| text(&mut it.output, value))),
    both("overcommit", 'O', No, Nothing),
    long("overlap", No, Set(|it, _| yes(&mut it.overlap))),
    both("oversubscribe", 's', No, Nothing),
    both("partition", 'p', Value, Nothing),
    long("profile", Value, Nothing),
    long("prolog", Value, Refuse("run it in the script, before srun")),
    long("propagate", Maybe, Nothing),
    long(
        "pty",
        Maybe,
        Refuse("a job has no terminal; `muster exec -it JOB -- COMMAND` and `muster ssh JOB` have one"),
    ),
    both("qos", 'q', Value, Nothing),
    both("quiet", 'Q', No, Set(|it, _| yes(&mut it.quiet))),
    long("quit-on-interrupt", No, Nothing),
    both(
        "relative",
        'r',
        Value,
        Set(|it, value| {
            it.relative = value.parse().map_err(|_| format!("`{value}` is not the number of a node"))?;
            Ok(())
        }),
    ),
    long("reservation", Value, Nothing),
    long("resv-ports", Maybe, Nothing),
    long("send-libs", Maybe, Nothing),
    long("slurmd-debug", Value, Nothing),
    long("sockets-per-node", Value, Nothing),
    long("spread-job", No, Nothing),
    long("task-epilog", Value, Refuse("run it in the command: sh -c 'program; epilog'")),
    long("task-prolog", Value, Refuse("run it in the command: sh -c 'prolog; program'")),
    both("threads", 'T', Value, Nothing),
    long("threads-per-core", Value, Nothing),
    both(
        "time",
        't',
        Value,
        Set(|it, value| {
            it.time = quantity::time(value)?;
            Ok(())
        }),
    ),
    long("tmp", Value, Nothing),
    long("tres-per-task", Value, Refuse("write --cpus-per-task and --gpus-per-task")),
    both("unbuffered", 'u', No, Nothing),
    long("use-min-nodes", No, Nothing),
    both("verbose", 'v', No, Nothing),
    both(
        "wait",
        'W',
        Value,
        Set(|it, value| {
            let seconds = value.parse().map_err(|_| format!("`{value}` is not a number of seconds"))?;
            it.wait = Some(seconds).filter(|seconds| *seconds > 0).map(Duration::from_secs);
            Ok(())
        }),
    ),
    long("wckey", Value, Nothing),
    long("x11", Maybe, Refuse("a job has no display")),
];

fn yes(field: &mut bool) -> Result<(), String> {
    *field = true;
    Ok(())
}

fn text(field: &mut Option<String>, value: &str) -> Result<(), String> {
    *field = Some(value.to_owned());
    Ok(())
}

fn count(field: &mut Option<u32>, value: &str) -> Result<(), String> {
    *field = Some(quantity::count(value)?);
    Ok(())
}

fn gpus(field: &mut Option<u32>, value: &str) -> Result<(), String> {
    *field = Some(Gpus::read(value)?.count);
    Ok(())
}

fn gres(it: &mut Options, value: &str) -> Result<(), String> {
    let (gpus, _) = Gpus::of_gres(value)?;
    it.gpus_per_node = gpus.map(|gpus| gpus.count).or(it.gpus_per_node);
    Ok(())
}

fn distribution(it: &mut Options, value: &str) -> Result<(), String> {
    let first = value.split([':', ',']).next().unwrap_or_default();
    match first {
        "block" | "*" | "" => it.cyclic = false,
        "cyclic" => it.cyclic = true,
        other => return Err(format!("`{other}` is not known here; write block or cyclic")),
    }
    Ok(())
}

fn input(it: &mut Options, value: &str) -> Result<(), String> {
    it.input = match (value, value.parse()) {
        ("all", _) => Source::Stdin(Input::All),
        ("none", _) => Source::Stdin(Input::Nobody),
        (_, Ok(rank)) => Source::Stdin(Input::One(rank)),
        (file, Err(_)) => Source::File(file.to_owned()),
    };
    Ok(())
}

/// What MPI's processes know of each other they have from Slurm's own libraries. Without these each would be alone, and
/// compute what the others do as well: better not to begin.
fn mpi(it: &mut Options, value: &str) -> Result<(), String> {
    if value != "none" {
        it.needs_real = Some((format!("--mpi={value}"), ALONE));
    }
    Ok(())
}

const ALONE: &str = "processes started by this srun do not find each other; start them with mpirun, which finds the job's nodes by \
                     itself";

impl Options {
    fn new(variable: &dyn Fn(&str) -> Option<String>) -> Options {
        let is_yes = |name: &str| variable(name).is_some_and(|value| value != "0");
        Options {
            ntasks: None,
            nodes: None,
            ntasks_per_node: None,
            cpus_per_task: None,
            gpus_per_task: variable("SLURM_GPUS_PER_TASK")
                .and_then(|text| Gpus::read(&text).ok())
                .map(|it| it.count),
            gpus_per_node: None,
            gpus: None,
            label: is_yes("SLURM_LABELIO"),
            output: variable("SLURM_STDOUTMODE"),
            error: variable("SLURM_STDERRMODE"),
            append: false,
            input: Source::Stdin(Input::All),
            export: None,
            chdir: None,
            kill_on_bad_exit: is_yes("SLURM_KILL_BAD_EXIT"),
            wait: variable("SLURM_WAIT")
                .and_then(|text| text.parse().ok())
                .filter(|it| *it > 0)
                .map(Duration::from_secs),
            time: None,
            exclusive: false,
            overlap: is_yes("SLURM_OVERLAP"),
            nodelist: None,
            exclude: None,
            relative: 0,
            // Not from SLURM_DISTRIBUTION: on a real Slurm it tells how its agents were spread, and not what is wanted here.
            cyclic: false,
            no_kill: false,
            quiet: false,
            needs_real: None,
            command: Vec::new(),
        }
    }

    /// Reads a command line; variables say what it does not.
    pub fn read(words: &[String], variable: &dyn Fn(&str) -> Option<String>) -> Result<Options, String> {
        let mut options = Options::new(variable);
        let (given, at) =
            option::read(words, KNOWN).map_err(|wrong| format!("{}: {}", wrong.written, wrong.message))?;
        for one in given {
            let named = |message: String| format!("{}: {message}", one.written);
            match one.meaning {
                Set(set) => set(&mut options, one.value.as_deref().unwrap_or_default()).map_err(named)?,
                Nothing => {}
                Real(instead) => options.needs_real = Some((one.written, instead)),
                Refuse(instead) => return Err(named(instead.to_owned())),
            }
        }
        options.command = words[at..].to_vec();
        if options.command.is_empty() {
            return Err("no command given to execute".to_owned());
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Options::read(&words, &|name| (name == "SLURM_GPUS_PER_TASK").then(|| "2".to_owned()))
    }

    #[test]
    fn options_are_read_up_to_the_command() {
        let it = read(
            "-n4 -N 2 --ntasks-per-node=2 -l -K --gres=gpu:2 -o out-%t --exclusive python -u train.py -n 3",
        )
        .unwrap();
        assert_eq!(
            (it.ntasks, it.nodes, it.ntasks_per_node, it.gpus_per_node),
            (Some(4), Some(2), Some(2), Some(2))
        );
        assert_eq!(
            (it.label, it.kill_on_bad_exit, it.exclusive, it.gpus_per_task),
            (true, true, true, Some(2))
        );
        assert_eq!(it.command.join(" "), "python -u train.py -n 3");
        let it = read(
            "--cpu-bind=none --mpi=none --kill-on-bad-exit=0 -i 0 -W 5 --unbuffered -m cyclic:block true",
        )
        .unwrap();
        assert_eq!(
            (it.input, it.wait, it.cyclic),
            (Source::Stdin(Input::One(0)), Some(Duration::from_secs(5)), true)
        );
        assert!(!it.kill_on_bad_exit);
    }

    #[test]
    fn what_would_not_do_what_it_says_is_refused() {
        for (line, part) in [
            ("--multi-prog x", "an srun of its own"),
            ("--het-group=1 x", "several parts"),
            ("--ntask=2 x", "may be --ntasks"),
            ("--ntsks=2 x", "did you mean --ntasks?"),
            ("-n x true", "`x` is not a whole number"),
            ("-n 2", "no command"),
            ("--pty bash", "no terminal"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn what_only_slurm_can_do_is_left_to_its_own_srun() {
        let needs = |line: &str| read(line).unwrap().needs_real.map(|(option, _)| option);
        assert_eq!(needs("--mpi=pmix true").as_deref(), Some("--mpi=pmix"));
        assert_eq!(
            needs("--container-image=a.sqsh --no-container-mount-home true").as_deref(),
            Some("--no-container-mount-home")
        );
        assert_eq!(needs("--mpi=none true"), None);
        assert_eq!(needs("python --mpi=pmix"), None, "that is the program's");
    }

    #[test]
    fn options_stand_once() {
        let mut names: Vec<&str> = KNOWN.iter().map(|option| option.long).collect();
        let mut letters: Vec<char> = KNOWN.iter().filter_map(|option| option.short).collect();
        names.sort_unstable();
        letters.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(letters.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
