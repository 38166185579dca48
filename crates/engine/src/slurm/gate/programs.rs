//! Running Slurm's programs, with little around them: what they inherit, jobs inherit.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use super::wire::Ran;
use crate::environment::CREDENTIALS;

/// A list of a hundred thousand jobs is smaller.
const MOST: u64 = 64 << 20;
/// What Slurm itself needs to know, besides an account's own variables.
const WANTED: [&str; 14] = [
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "PATH",
    "LD_LIBRARY_PATH",
    "SLURM_CONF",
    "SLURM_JWT",
    "KRB5CCNAME",
    "XDG_RUNTIME_DIR",
    "TMPDIR",
    "TZ",
];
/// What people set for their own `sbatch`, and what of it would make another kind of job of ours.
const DEFAULTS: &str = "SBATCH_";
const UNWANTED: [&str; 4] = ["SBATCH_ARRAY_INX", "SBATCH_WAIT", "SBATCH_IGNORE_PBS", "SBATCH_OPEN_MODE"];

/// How Slurm's programs are found and run.
#[derive(Debug, Clone)]
pub(in super::super) struct Programs {
    environment: Vec<(OsString, OsString)>,
    /// The command line begins with a program that leaves the server's session, and can only if it leads no group.
    leaves_session: bool,
}

impl Programs {
    /// They may be in a directory that is on nobody's path.
    pub(in super::super) fn new(dir: Option<PathBuf>, conf: Option<PathBuf>) -> Self {
        let is_wanted =
            |name: &str| WANTED.contains(&name) || name.starts_with(DEFAULTS) && !UNWANTED.contains(&name);
        let mut environment: Vec<_> =
            std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_wanted)).collect();
        if let Some(dir) = dir {
            let before = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
            let mut path = dir.into_os_string();
            path.push(":");
            path.push(before);
            environment.retain(|(name, _)| name != "PATH");
            environment.push(("PATH".into(), path));
        }
        if let Some(conf) = conf {
            environment.retain(|(name, _)| name != "SLURM_CONF");
            environment.push(("SLURM_CONF".into(), conf.into_os_string()));
        }
        Self { environment, leaves_session: false }
    }

    /// The same for a command line that begins with `setsid` and becomes another account: without what lets the server's own
    /// account in elsewhere.
    pub(in super::super) fn for_another_account(mut self) -> Self {
        self.leaves_session = true;
        self.environment.retain(|(name, _)| !CREDENTIALS.iter().any(|credential| name == credential));
        self
    }

    /// Runs one to its end. One that takes too long is killed.
    pub(in super::super) async fn run(&self, argv: &[String], stdin: Stdio, limit: Duration) -> Ran {
        let failed = |error: &io::Error| {
            let program = argv.first().map_or("", String::as_str);
            let message = match error.kind() {
                io::ErrorKind::NotFound => format!(
                    "`{program}` is not on the path there; set slurm.programs to the directory that has it"
                ),
                _ => format!("{program}: {error}"),
            };
            Ran { code: None, stdout: String::new(), stderr: message }
        };
        match tokio::time::timeout(limit, self.finish(argv, stdin)).await {
            Ok(Ok(ran)) => ran,
            Ok(Err(error)) => failed(&error),
            Err(_) => failed(&io::Error::new(io::ErrorKind::TimedOut, format!("no end after {limit:?}"))),
        }
    }

    async fn finish(&self, argv: &[String], stdin: Stdio) -> io::Result<Ran> {
        let (program, arguments) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(self.environment.iter().cloned()).current_dir("/");
        if program != "sbatch" {
            // Times in lists are to mean the same everywhere. What `sbatch` has, the job has.
            command.env("TZ", "UTC");
        }
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        // Interrupts are for whoever is at a terminal.
        if !self.leaves_session {
            command.process_group(0);
        }
        let mut child = command.spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (stdout, stderr, status) = tokio::join!(all(stdout), all(stderr), child.wait());
        Ok(Ran { code: status?.code(), stdout: stdout?, stderr: stderr? })
    }
}

async fn all(stream: Option<impl AsyncRead + Unpin>) -> io::Result<String> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        stream.take(MOST).read_to_end(&mut bytes).await?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
