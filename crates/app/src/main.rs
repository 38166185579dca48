//! The muster binary: puts server, agent, supervisor and command line together. It contains no logic of its own.

mod agent;
mod config;
mod gang;
mod inside;
mod k8s;
mod keep;
mod limits;
mod log;
mod pod;
mod pool;
mod reload;
mod server;
mod settings;
mod slurm;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use muster_agent::slurm::Program;
use muster_cli::Hooks;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let called = words.next().and_then(|name| Program::called(&name));
    if let Some(program) = called {
        return program.run(words.map(|word| word.to_string_lossy().into_owned()).collect());
    }
    // There is a supervisor for every task, and perhaps a starter: they must branch off before anything costs memory.
    match words.next() {
        Some(word) if word == "supervise" => match words.next() {
            Some(dir) => muster_agent::supervisor::run(Path::new(&dir)),
            None => ExitCode::from(2),
        },
        Some(word) if word == "processes" => match words.next() {
            Some(file) => muster_agent::processes::run(Path::new(&file)),
            None => ExitCode::from(2),
        },
        Some(word) if word == "pour" => {
            match (words.next(), words.next().and_then(|number| number.into_string().ok())) {
                (Some(dir), Some(number)) => muster_inside::pour(Path::new(&dir), &number),
                _ => ExitCode::from(2),
            }
        }
        Some(word) if word == "carry" => muster_engine::ssh::carry::run(&words.collect::<Vec<_>>()),
        Some(word) if word == "gate" => muster_engine::slurm::gate::run(&words.collect::<Vec<_>>()),
        Some(word) if word == "inside" => inside::run(&words.collect::<Vec<_>>()),
        _ => {
            let hooks = Hooks {
                openapi: muster_server::openapi,
                server_run: server::run,
                server_restore: server::restore,
                server_check: server::check,
                agent_run: agent::run,
                settings: settings::SETTINGS,
                check_config: config::check,
                devices: || muster_agent::device::discover(&[]),
                trees: agent::trees,
                can_mount: muster_agent::stage::can_mount,
            };
            muster_cli::main(std::env::args_os(), &hooks)
        }
    }
}

/// Every task costs the agent, and every connection the server, a few open files; the usual limit of 1,024 is less than
/// a large machine runs tasks. It is raised only so far that the programs which inherit it, and count through all
/// possible files before they start another, do not notice.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    const ENOUGH: u64 = 16_384;
    let mut limit = getrlimit(Resource::Nofile);
    let raised = limit.maximum.map_or(ENOUGH, |hard| hard.min(ENOUGH));
    if limit.current.is_some_and(|soft| soft < raised) {
        limit.current = Some(raised);
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "the limit of open files stays as it is");
        }
    }
}

/// The value of `--name VALUE` among words that only this binary writes.
fn option(words: &[OsString], name: &str) -> Option<OsString> {
    words.iter().position(|word| word == name).and_then(|at| words.get(at + 1)).cloned()
}

/// What people see as the version.
fn version() -> String {
    env!("CARGO_PKG_VERSION").into()
}
