//! A Slurm for whoever is not a test in Rust: people and benchmarks. `slurm` starts one, says on one line of JSON where it is,
//! and then does what each line of its standard input says, with one line of JSON for an answer. When the input ends, or
//! it is killed, nothing is left. Arguments are settings of `slurm.conf`, as in `MinJobAge=5`; `--accounting` before them starts one
//! with a database, which also limits memory.

use std::io::{BufRead, Write};
use std::process::ExitCode;

use muster_testkit::Slurm;
use serde_json::{Value, json};

const USAGE: &str = "usage: slurm [--accounting] [SETTING=VALUE…], then on standard input: kill-controller | start-controller | \
    pause-controller | resume-controller | kill-slurmd N | start-slurmd N | kill-node N | end-in JOB SECONDS | states | rpcs | \
    run SHELL-LINE (as the account) | run-as-root SHELL-LINE";

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let has_accounting = words.first().is_some_and(|word| word == "--accounting");
    words.drain(..usize::from(has_accounting));
    let Some(settings) = words.iter().map(|word| word.split_once('=')).collect::<Option<Vec<_>>>() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let slurm =
        if has_accounting { Slurm::start_with_accounting(&settings) } else { Slurm::start_with(&settings) };
    say(&json!({ "conf": slurm.conf(), "account": Slurm::ACCOUNT, "home": slurm.home() }));
    for line in std::io::stdin().lock().lines().map_while(Result::ok).filter(|line| !line.trim().is_empty()) {
        say(&obey(&slurm, line.trim()).unwrap_or_else(|| json!({ "error": USAGE })));
    }
    ExitCode::SUCCESS
}

fn say(what: &Value) {
    // Whoever started this may have gone; then the input has ended too.
    let _ = writeln!(std::io::stdout(), "{what}");
}

/// Does what a line says; None for one that says nothing known.
fn obey(slurm: &Slurm, line: &str) -> Option<Value> {
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    let node = || rest.parse().ok().filter(|number| (1..=4).contains(number));
    match verb {
        "kill-controller" => slurm.kill_controller(),
        "start-controller" => slurm.start_controller(),
        "pause-controller" => slurm.pause_controller(),
        "resume-controller" => slurm.resume_controller(),
        "kill-slurmd" => slurm.kill_slurmd(node()?),
        "start-slurmd" => slurm.start_slurmd(node()?),
        "kill-node" => slurm.kill_node(node()?),
        "end-in" => {
            let (job, seconds) = rest.split_once(' ')?;
            slurm.end_in(job, seconds.parse().ok()?);
        }
        "states" => return Some(json!(slurm.states())),
        "rpcs" => return Some(json!(slurm.rpcs())),
        "run" => return Some(run(slurm.command_as_user("sh"), rest)),
        "run-as-root" => return Some(run(slurm.command("sh"), rest)),
        _ => return None,
    }
    Some(json!({}))
}

fn run(mut shell: std::process::Command, line: &str) -> Value {
    let done = shell.args(["-c", line]).output().expect("a shell starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    json!({ "code": done.status.code(), "stdout": text(&done.stdout), "stderr": text(&done.stderr) })
}
