//! The agent as a process: its lock, its runtime, its end.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::Options;
use crate::identity::{self, Agent};
use crate::service::{End, Service};

/// Another agent holds the directory. Not a failure: whoever started this one has an agent.
pub const EXIT_ALREADY_RUNNING: u8 = 75;
/// As of a process that was ended by SIGTERM: whoever lent the place counts what ends well as done.
const EXIT_TAKEN: u8 = 143;

/// Threads that wait for the disk. They come when needed and go soon, since an idle agent should be small.
const DISK_THREADS: usize = 16;
const DISK_THREAD_IDLE: Duration = Duration::from_secs(2);
/// How long work on the disk may take to finish when the agent ends; what does not is made again by the next agent.
const LAST_WORK: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Identity(#[from] identity::Error),
    #[error("its records in {dir}")]
    Records {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("a part of it broke; its log says more")]
    Broken,
    #[error("its runtime")]
    Runtime(#[source] io::Error),
}

/// Serves a node until it is told to end. Called from `main`: it makes its own runtime.
pub fn run(mut options: Options) -> ExitCode {
    // Tasks are told where their files are, and they run elsewhere.
    options.dir = std::path::absolute(&options.dir).unwrap_or(options.dir);
    match serve(&options) {
        Ok(code) => code,
        Err(Error::Identity(identity::Error::AlreadyRunning)) => {
            tracing::info!(dir = %options.dir.display(), "another agent serves from this directory");
            ExitCode::from(EXIT_ALREADY_RUNNING)
        }
        Err(error) => {
            let source =
                std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
            eprintln!("the agent cannot serve: {error}{source}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &Options) -> Result<ExitCode, Error> {
    muster_link::memory::share_heap();
    let mut agent = identity::take(&options.dir)?;
    loop {
        match serve_once(options, &agent)? {
            End::Done => return Ok(ExitCode::SUCCESS),
            End::Taken => return Ok(ExitCode::from(EXIT_TAKEN)),
            End::Broken => return Err(Error::Broken),
            End::Upgrade(path) => {
                let error = replace(&path);
                // The tasks have noticed nothing, and everything is on disk: begin again as we are.
                tracing::error!(path = %path.display(), error = %error, "the new agent cannot be started");
                agent.is_new_boot = false;
            }
        }
    }
}

fn serve_once(options: &Options, agent: &Agent) -> Result<End, Error> {
    let runtime = runtime().map_err(Error::Runtime)?;
    let end = runtime.block_on(async {
        let service = Service::open(options, agent);
        let service = service.map_err(|source| Error::Records { dir: options.dir.clone(), source })?;
        Ok(service.run().await)
    });
    runtime.shutdown_timeout(LAST_WORK);
    end
}

fn runtime() -> io::Result<Runtime> {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(DISK_THREADS).thread_keep_alive(DISK_THREAD_IDLE);
    builder.thread_name("disk").build()
}

/// Become another binary, with the same arguments. Returns only if that did not work.
fn replace(path: &Path) -> io::Error {
    Command::new(path).args(std::env::args_os().skip(1)).exec()
}
