//! `muster server run`: the server process.

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use anyhow::{Context, ensure};
use muster_api::client::build;
use muster_api::doctor::Check;
use muster_cli::{NotRestored, Restored, ServerOptions};
use muster_engine::local::{self, Local};
use muster_engine::slurm::Slurm;
use muster_engine::ssh::{self, Ssh};
use muster_engine::{AgentBinary, Engine};
use muster_engine_kube::Kubernetes;
use muster_link::tls::Fingerprint;
use muster_link::unix;
use muster_server::{Certificate, Engines, Listen, Options, RestoreError};

use crate::config::Config;
use crate::k8s;

/// The variable with the key that secrets are sealed with.
const SECRETS_KEY: &str = "MUSTER_SECRETS_KEY";
/// Enough for a laptop and for a team's server: the work is in the core's own thread, the disk and the kernel.
const WORKERS: usize = 2;
/// The core's, and one that waits for the disk.
const OTHER_THREADS: usize = 2;

pub fn run(options: ServerOptions) -> ExitCode {
    if options.daemon {
        detach();
    }
    let key = take_secrets_key();
    crate::log::start();
    crate::raise_open_files();
    muster_server::share_heap();
    match serve(options, key) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // For a user or a script that waits for the server to start. Not `eprintln!`, which panics where the
            // log is on a full disk.
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::from(125)
        }
    }
}

fn serve(options: ServerOptions, key: Option<String>) -> anyhow::Result<()> {
    let (config, text) = Config::load_with_text(&options.home)?;
    let home = std::path::absolute(&options.home).context("the data directory")?;
    let idle_exit =
        if options.daemon && options.listen.is_none() { config.server.idle_exit()? } else { None };
    let certificate = certificate(&home, &options, &config)?;
    // One of the server's own never changes, so that agents can be told to take no other.
    let pinned = certificate.as_ref().filter(|(_, is_own)| *is_own).map(|(shown, _)| shown.fingerprint());
    let is_plain_chosen = options.listen_plain_http || config.server.is_plain();
    check_listen(options.listen.as_deref(), certificate.is_some(), is_plain_chosen)?;
    check_threads(WORKERS + OTHER_THREADS)
        .context("cannot make the server's threads; `ulimit -u`, or pids.max of its cgroup, is reached")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let options = Options {
        listen: options.listen.clone().map_or(Listen::Socket, Listen::Tcp),
        token: options.token_file.as_deref().map(given_token).transpose()?.flatten(),
        secrets_key: secrets_key(options.secrets_key_file.as_deref(), key)?,
        accounts: options.auth.then(|| config.server.entrance()).transpose()?,
        certificate: certificate.map(|(shown, _)| shown),
        idle_exit,
        engines: engines(&home, &config, pinned, options.auth)?,
        build: build::of_current_exe()?,
        version: crate::version(),
        owner: owner(),
        keep: config.keep.read()?,
        limits: config.limits.read()?,
        pools: config.pools()?,
        volumes: config.volumes()?,
        policy: config.scheduler.clone(),
        read_again: crate::reload::reader(home.clone(), &text)?,
        home,
    };
    runtime.block_on(muster_server::run(options, |_| announce()))?;
    notify("STOPPING=1");
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    Ok(())
}

/// Whether so many threads can be made. Tokio panics where its own cannot.
fn check_threads(count: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    std::thread::scope(|scope| {
        // All of them are there at once.
        let _closed = gate.lock();
        (0..count).try_for_each(|_| {
            let wait = || drop(gate.lock());
            std::thread::Builder::new().spawn_scoped(scope, wait).map(drop)
        })
    })
}

/// Refuses plain HTTP on an address that other machines reach, unless the operator chose it: passwords, tokens and the output of
/// jobs would cross the network in cleartext. With TLS a server may have accounts or one token.
fn check_listen(listen: Option<&str>, is_tls: bool, is_plain_chosen: bool) -> anyhow::Result<()> {
    let Some(address) = listen.filter(|address| !is_tls && !is_loopback(address)) else { return Ok(()) };
    ensure!(
        is_plain_chosen,
        "--listen {address}: plain HTTP would send passwords and tokens in cleartext\n\
         hint: add --tls; behind a proxy that speaks TLS, add --listen-plain-http or set server.tls to false in config.toml"
    );
    tracing::warn!(address, "serving plain HTTP to other machines; a proxy has to speak TLS");
    Ok(())
}

/// Whether only this machine reaches an address: HOST:PORT.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// What is shown where TLS is spoken, and whether the server has made it: as the flags say, and as the configuration does where
/// they say nothing.
fn certificate(
    home: &Path,
    options: &ServerOptions,
    config: &Config,
) -> anyhow::Result<Option<(Arc<Certificate>, bool)>> {
    let Some(listen) = options.listen.as_deref() else { return Ok(None) };
    if options.listen_plain_http || !(options.tls || config.server.is_tls()) {
        return Ok(None);
    }
    let files = match options.certificate.clone() {
        None => config.server.certificate()?,
        files => files,
    };
    if let Some((certificate, key)) = files {
        return Ok(Some((Certificate::of_files(certificate, key).context("TLS")?, false)));
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let address = listen.rsplit_once(':').map_or(listen, |(address, _)| address);
    let address = address.trim_start_matches('[').trim_end_matches(']');
    let names = [&host, address, "localhost", "127.0.0.1", "::1"];
    Ok(Some((Certificate::own(home, &names).context("TLS")?, true)))
}

/// `muster server restore`.
pub fn restore(backup: &mut dyn io::Read, home: &Path) -> Result<Restored, NotRestored> {
    match muster_server::restore(backup, home) {
        Ok(restored) => Ok(Restored {
            taken_at: restored.taken_at,
            version: restored.version,
            files: restored.files,
            bytes: restored.bytes,
            held_jobs: restored.held,
            unsettled_tasks: restored.unsettled,
        }),
        Err(RestoreError::Io { source, .. }) => Err(NotRestored::Failed(source)),
        Err(error @ (RestoreError::Running(_) | RestoreError::NotEmpty { .. })) => {
            Err(NotRestored::NotEmpty(error.to_string()))
        }
        Err(error) => Err(NotRestored::Unusable(format!("{:#}", anyhow::Error::from(error)))),
    }
}

/// `muster server check`: what the server keeps, and what the node of this machine does.
pub fn check(home: &Path, progress: &mut dyn FnMut(u64, u64)) -> Vec<Check> {
    let mut checks = muster_server::check(home, progress);
    let remedy =
        "the tasks run on or have ended, and their jobs cannot be told: stop those jobs; check the disk";
    checks.push(match muster_agent::check_records(&crate::agent::dir(home)) {
        Ok((whole, damaged)) if damaged.is_empty() => Check::ok("node records", format!("{whole} are whole")),
        Ok((_, damaged)) => {
            let named = damaged.join(", ");
            Check::broken("node records", format!("{} are damaged: {named}", damaged.len()), remedy)
        }
        Err(error) => Check::broken("node records", format!("cannot be read: {error}"), "check the disk"),
    });
    checks
}

/// The token that an operator chose. A Secret that nobody made is mounted as nothing: the server then has a token of its own.
fn given_token(path: &Path) -> anyhow::Result<Option<String>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.with_context(|| format!("the token in {} cannot be read", path.display()))?,
    };
    let token = text.trim();
    let is_one_word = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    ensure!(is_one_word, "the token in {} must be one line of plain characters", path.display());
    Ok(Some(token.to_owned()))
}

/// The key of secrets, where somebody has chosen one. A file that is named and is not there is a mistake: with another key no
/// secret could be opened.
fn secrets_key(file: Option<&Path>, given: Option<String>) -> anyhow::Result<Option<String>> {
    let Some(path) = file else { return Ok(given) };
    let text = std::fs::read_to_string(path);
    text.map(Some).with_context(|| format!("the key of the secrets in {} cannot be read", path.display()))
}

/// Takes the key of secrets out of the environment, so that no program that the server ever starts inherits it.
fn take_secrets_key() -> Option<String> {
    let key = std::env::var(SECRETS_KEY).ok().filter(|key| !key.is_empty());
    // SAFETY: called before the process has a second thread, so nobody reads the environment meanwhile.
    #[expect(unsafe_code, reason = "the environment of children is this process's own")]
    unsafe {
        std::env::remove_var(SECRETS_KEY);
    }
    key
}

/// Every engine there is; a new one is one more line.
fn engines(home: &Path, config: &Config, pinned: Option<Fingerprint>, auth: bool) -> anyhow::Result<Engines> {
    let local: Arc<dyn Engine> = Arc::new(Local::new(local::Options {
        dir: crate::agent::dir(home),
        exe: "/proc/self/exe".into(),
        arguments: vec!["agent".into(), "--home".into(), home.to_string_lossy().into_owned()],
        binary,
    }));
    let ssh = ssh_options(home)?;
    let files_seconds = config.keep.read()?.node.files_seconds;
    let kept = (files_seconds < u64::MAX).then(|| std::time::Duration::from_secs(files_seconds));
    let options = config.slurm.options(home, gate_socket(home)?, &ssh, kept, auth);
    let slurm: Arc<dyn Engine> = Arc::new(Slurm::new(options));
    let ssh: Arc<dyn Engine> = Arc::new(Ssh::new(ssh));
    let mut engines = vec![ssh, slurm];
    // Where people share a server, its own account is nobody's to run as, unless somebody says so. Root becomes whom it runs.
    if config.local.is_enabled(!auth || rustix::process::geteuid().is_root()) {
        engines.push(local);
    }
    if config.k8s.is_some() || k8s::is_any() {
        let here = k8s::Here {
            dir: home.join("k8s"),
            socket: gate_socket(home)?,
            exe: "/proc/self/exe".into(),
            fingerprint: pinned,
        };
        let section = config.k8s.clone().unwrap_or_default();
        engines.push(Arc::new(Kubernetes::new(section.settings(here)?)));
    }
    Ok(Engines::new(engines))
}

/// Machines get the binary that runs here, whatever has become of its file; those of another kind one that lies beside it.
fn ssh_options(home: &Path) -> anyhow::Result<ssh::Options> {
    let exe = std::env::current_exe()?;
    let beside = exe.parent().unwrap_or(home).to_owned();
    Ok(ssh::Options::new(home.join("ssh"), gate_socket(home)?, "/proc/self/exe".into(), beside))
}

/// What comes from other machines comes in here, where nobody is trusted without a token.
fn gate_socket(home: &Path) -> anyhow::Result<PathBuf> {
    short(&home.join("gate.sock"))
}

fn short(path: &Path) -> anyhow::Result<PathBuf> {
    let socket = unix::socket_path(path).context("the data directory")?;
    let short = socket.as_path().to_owned();
    // A long path is reached through an open directory, which must stay open for as long as the server runs.
    std::mem::forget(socket);
    Ok(short)
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

/// Tells the service manager that started this process, if one did. systemd names a datagram socket for it, by a path or, with `@`, in
/// the abstract namespace.
fn notify(word: &str) {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let told = || {
        let address = match name.as_bytes() {
            [b'@', abstract_name @ ..] => SocketAddr::from_abstract_name(abstract_name)?,
            _ => SocketAddr::from_pathname(&name)?,
        };
        UnixDatagram::unbound()?.send_to_addr(word.as_bytes(), &address)
    };
    if let Err(error) = told() {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}

/// Tells the waiting client, then lets go of its pipe.
fn announce() {
    notify("READY=1");
    let mut stdout = io::stdout();
    // A client that stopped waiting is no reason not to serve.
    let _ = stdout.write_all(b"ready\n").and_then(|()| stdout.flush());
    let _ = rustix::stdio::dup2_stdout(io::stderr());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_loopback_unless_the_operator_chose_it() {
        for here in ["127.0.0.1:7717", "[::1]:0", "localhost:7717", "127.9.8.7:1"] {
            check_listen(Some(here), false, false).unwrap();
        }
        for elsewhere in ["0.0.0.0:7717", "[::]:7717", "10.0.0.5:7717", "head.lab:7717", ":7717"] {
            let refused = check_listen(Some(elsewhere), false, false).unwrap_err().to_string();
            assert!(refused.contains(elsewhere) && refused.contains("--tls"), "{refused}");
            assert!(refused.contains("--listen-plain-http"), "{refused}");
            check_listen(Some(elsewhere), true, false).unwrap();
            check_listen(Some(elsewhere), false, true).unwrap();
        }
        check_listen(None, false, false).unwrap();
    }
}
