//! `muster server run`: the server process.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use muster_api::client::build;
use muster_cli::ServerOptions;
use muster_engine::local::{self, Local};
use muster_engine::ssh::{self, Ssh};
use muster_engine::{AgentBinary, Engine};
use muster_link::unix;
use muster_server::{Engines, Listen, Options};

use crate::config::Config;

/// Enough for a laptop and for a team's server: the work is in the core's own thread, the disk and the kernel.
const WORKERS: usize = 2;

pub fn run(options: ServerOptions) -> ExitCode {
    if options.daemon {
        detach();
    }
    crate::log_to_stderr();
    crate::raise_open_files();
    muster_server::share_heap();
    match serve(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // For whoever waits for the server to come up, on a terminal or by its log.
            eprintln!("error: {error:#}");
            ExitCode::from(125)
        }
    }
}

fn serve(options: ServerOptions) -> anyhow::Result<()> {
    let config = Config::load(&options.home)?;
    let home = std::path::absolute(&options.home).context("the data directory")?;
    let idle_exit =
        if options.daemon && options.listen.is_none() { config.server.idle_exit()? } else { None };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let options = Options {
        listen: options.listen.clone().map_or(Listen::Socket, Listen::Tcp),
        idle_exit,
        engines: engines(&home)?,
        build: build::of_current_exe()?,
        version: crate::version(),
        owner: owner(),
        keep: config.keep.read()?,
        pools: config.pools()?,
        home,
    };
    runtime.block_on(muster_server::run(options, |_| announce()))?;
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    Ok(())
}

/// Every engine there is; a new one is one more line.
fn engines(home: &Path) -> anyhow::Result<Engines> {
    let local: Arc<dyn Engine> = Arc::new(Local::new(local::Options {
        dir: crate::agent::dir(home),
        exe: "/proc/self/exe".into(),
        arguments: vec!["agent".into(), "--home".into(), home.to_string_lossy().into_owned()],
        binary,
    }));
    let ssh: Arc<dyn Engine> = Arc::new(Ssh::new(ssh_options(home)?));
    Ok(Engines::new(vec![local, ssh]))
}

/// Machines get the binary that runs here, whatever has become of its file; those of another kind one that lies beside it.
fn ssh_options(home: &Path) -> anyhow::Result<ssh::Options> {
    let exe = std::env::current_exe()?;
    let beside = exe.parent().unwrap_or(home).to_owned();
    let socket = unix::socket_path(&home.join("server.sock")).context("the data directory")?;
    let short = socket.as_path().to_owned();
    // A long path is reached through an open directory, which must stay open for as long as the server runs.
    std::mem::forget(socket);
    Ok(ssh::Options::new(home.join("ssh"), short, "/proc/self/exe".into(), beside))
}

/// The file of this binary, as long as it is the one that runs.
fn binary() -> Option<AgentBinary> {
    let (path, build) = (std::env::current_exe().ok()?, build::of_current_exe().ok()?);
    let is_ours = build::of(&path).ok()? == build;
    is_ours.then(|| AgentBinary { path: path.to_string_lossy().into_owned(), build })
}

/// Whose server this is.
fn owner() -> String {
    std::env::var("USER")
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| rustix::process::getuid().as_raw().to_string())
}

/// Leaves the session and the open files of whoever started it.
fn detach() {
    // It fails only if this process leads a session already.
    let _ = rustix::process::setsid();
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let inherited = |fd: &i32| *fd > 2;
    let open: Vec<i32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(inherited)
        .collect();
    // The listing itself was one of them, and is closed by now.
    let is_open = |fd: &i32| std::fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok();
    for fd in open.into_iter().filter(is_open) {
        // SAFETY: this is the first thing the process does; nothing in it owns a descriptor above 2 yet.
        #[expect(unsafe_code, reason = "descriptors inherited from the caller belong to no Rust value")]
        unsafe {
            rustix::io::close(fd);
        }
    }
}

/// Tells the waiting client, then lets go of its pipe.
fn announce() {
    let mut stdout = io::stdout();
    // A client that stopped waiting is no reason not to serve.
    let _ = stdout.write_all(b"ready\n").and_then(|()| stdout.flush());
    let _ = rustix::stdio::dup2_stdout(io::stderr());
}
