//! The product as its users see it: the built binary, driven from outside, on a data directory of each test's own.
//!
//! Tasks find in `$SHARED` a directory that the test sees too: through files in it, tests and tasks wait for each other.

mod accounts;
mod array;
mod attach;
mod backup;
mod bad_input;
mod chaos;
mod config;
mod conformance;
mod context;
mod cp;
mod crash;
mod damage;
mod deploy;
mod detect;
mod disk;
mod docs;
mod doctor;
mod engines;
mod exec;
mod failure;
mod fastgpu;
mod files;
mod frameworks;
mod gang;
mod gate;
mod init;
mod kube;
mod kube_engine;
mod limits;
mod logs;
mod machine;
mod many;
mod metrics;
mod names;
mod node_disk;
mod peers;
mod pool;
mod port_forward;
mod printing;
mod queue;
mod quota;
mod reload;
mod retry;
mod run;
mod sbatch;
mod secret;
mod selector;
mod server;
mod service;
mod session;
mod slurm;
mod slurm_engine;
mod snapshot;
mod ssh;
mod ssh_config;
mod ssh_engine;
mod ssh_files;
mod stop;
mod submit;
mod team;
mod tls;
mod top;
mod tree;

use std::process::Command;
use std::sync::OnceLock;

use muster_testkit::Home;

/// A muster of the test's own.
fn home() -> Home {
    Home::new(env!("CARGO_BIN_EXE_muster"))
}

/// The same, configured.
fn home_with(config: &str) -> Home {
    let home = home();
    home.configure(config);
    home
}

/// The Python interpreter itself: the `python3` in PATH may be a script that takes longer to find it than to run it.
fn python() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| {
        let found = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
        let found = found.expect("python3, of Debian's package of that name, starts");
        String::from_utf8_lossy(&found.stdout).trim().to_owned()
    })
}

/// A shell line that waits for a file in the shared directory.
fn until(name: &str) -> String {
    format!("while [ ! -e \"$SHARED/{name}\" ]; do sleep 0.02; done")
}

/// A job's attempts as `show --json` gives them.
fn attempts(job: &serde_json::Value) -> &Vec<serde_json::Value> {
    job["attempts"].as_array().expect("a job has a list of attempts")
}

/// The gang of a job's last attempt.
fn tasks(job: &serde_json::Value) -> &Vec<serde_json::Value> {
    attempts(job).last().expect("an attempt")["tasks"].as_array().expect("a list of tasks")
}
