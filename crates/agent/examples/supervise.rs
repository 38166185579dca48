//! A stand-in for the `muster` binary in this crate's tests: it knows `supervise DIR` and `processes FILE`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args_os().skip(1).collect::<Vec<_>>().as_slice() {
        [command, dir] if command == "supervise" => muster_agent::supervisor::run(Path::new(dir)),
        [command, file] if command == "processes" => muster_agent::processes::run(Path::new(file)),
        _ => ExitCode::from(2),
    }
}
