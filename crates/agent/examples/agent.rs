//! A stand-in for the `muster` binary in this crate's tests, with the commands of a node: `agent DIR SOCKET [OPTION]...`
//! `processes FILE` and `supervise DIR`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use muster_agent::device::Lent;
use muster_agent::{Fence, Options, Overlays, Tenure, processes, run, supervisor};
use muster_link::dial::Server;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["processes", file] => processes::run(Path::new(file)),
        ["supervise", dir] => supervisor::run(Path::new(dir)),
        ["agent", dir, socket, options @ ..] => agent(dir, socket, options),
        _ => ExitCode::from(2),
    }
}

fn agent(dir: &str, socket: &str, words: &[&str]) -> ExitCode {
    if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_default_env() {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    let Ok(exe) = std::env::current_exe() else { return ExitCode::FAILURE };
    let node = "node_test".parse().expect("this is a node's name");
    let token_file = Path::new(socket).with_extension("token");
    let server = Server::Unix(PathBuf::from(socket));
    let mut options = Options::new(PathBuf::from(dir), node, server, token_file, exe);
    options.build = "build".into();
    options.version = "0.0.0".into();
    for word in words {
        match word.split_once('=') {
            Some(("orphan_ms", text)) => options.orphan_exit = text.parse().ok().map(Duration::from_millis),
            Some(("device", text)) => options.devices.extend(text.parse()),
            Some(("network", text)) => options.network = text.parse().expect("this is a network"),
            Some(("overlays", "always")) => options.overlays = Overlays::Always,
            Some(("overlays", "never")) => options.overlays = Overlays::Never,
            Some(("lent", text)) => options.tenure = Some(lent(text)),
            Some(("fence", text)) => {
                let (after, scheduler) = text.split_once(',').expect("this is a time and an address");
                let after = Duration::from_millis(after.parse().expect("this is a number"));
                let fence = Fence { after, scheduler: vec![scheduler.to_owned()], hand: None };
                options.tenure.as_mut().expect("a place that is lent").fence = Some(fence);
            }
            Some(("tree", text)) => options.tree = text.parse().expect("this is a way"),
            _ => return ExitCode::from(2),
        }
    }
    run(options)
}

/// A place of somebody else's: one that is there, that was, or whose files go with it.
fn lent(kind: &str) -> Tenure {
    let variables = [("SLURM_JOB_ID", "17"), ("SLURM_NODEID", "0")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let (grace, host) = (Duration::from_secs(10), Some("n7".to_owned()));
    let devices = Lent::of_variables(&variables, None);
    let (is_salvage, hold) = (kind == "salvage", (kind == "pod").then_some(Duration::from_secs(3600)));
    Tenure { is_salvage, grace, patience: None, closed: None, host, devices, variables, fence: None, hold }
}
