//! The variables that somebody has who logs in to this machine: where their Python is, their modules, their proxies.
//!
//! Tasks have them where the machine is not the submitter's own. They are asked of the account's shell, since only that
//! knows which files it reads. A shell that takes too long, or fails, leaves tasks with what every machine has.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use crate::environment::{DEFAULT_PATH, account};

/// Start-up files that take longer hang.
const DEADLINE: Duration = Duration::from_secs(10);
/// Tasks that start together ask once; whoever has changed a file does not wait long for it to count.
const FRESH: Duration = Duration::from_secs(5);
/// More than any environment.
const MOST: u64 = 4 << 20;

/// Asks the account's shell, and remembers for a moment what it said.
#[derive(Debug, Default)]
pub(crate) struct Login {
    known: Mutex<Option<(Instant, BTreeMap<String, String>)>>,
}

impl Login {
    /// Asks now, so that whoever needs the answer soon does not wait for the shell.
    pub(crate) fn ask_ahead(self: &Arc<Self>) {
        let this = Arc::clone(self);
        // Without a thread, it is asked when it is needed.
        let _ = std::thread::Builder::new().name("login-ahead".into()).spawn(move || drop(this.variables()));
    }

    /// Its variables. Waits for the shell.
    pub(crate) fn variables(&self) -> BTreeMap<String, String> {
        // Whoever comes meanwhile waits here and has the same answer.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, variables)) = known.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return variables.clone();
        }
        let shell = env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
        let variables = ask(&shell).unwrap_or_else(|error| {
            tracing::warn!(shell = %Path::new(&shell).display(), error = %error, "tasks do without what a login sets");
            BTreeMap::new()
        });
        *known = Some((Instant::now(), variables.clone()));
        variables
    }
}

fn ask(shell: &OsString) -> io::Result<BTreeMap<String, String>> {
    let account = account();
    let mut name = OsString::from("-");
    name.push(Path::new(shell).file_name().unwrap_or_default());
    // A name that begins with a dash makes every shell one of a login.
    let mut command = Command::new(shell);
    command.arg0(name).args(["-c", "echo; env -0"]).env_clear().current_dir("/");
    command.env("HOME", &account.home).env("USER", &account.name).env("LOGNAME", &account.name);
    command.env("SHELL", shell).env("PATH", DEFAULT_PATH);
    command.envs(env::vars_os().filter(|(name, _)| name == "LANG" || name == "TZ"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn()?;
    let said = listen(&mut child);
    // It may have been reaped with the supervisors already.
    let _ = child.kill();
    let _ = child.wait();
    read(&said?)
}

/// What it says until it is done, or takes too long.
fn listen(child: &mut Child) -> io::Result<Vec<u8>> {
    let stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let (done, all) = mpsc::channel();
    std::thread::Builder::new().name("login".into()).spawn(move || {
        let mut said = Vec::new();
        let result = stdout.take(MOST).read_to_end(&mut said).map(|_| said);
        // Nobody waits any more for one that took too long.
        let _ = done.send(result);
    })?;
    all.recv_timeout(DEADLINE).map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

fn read(said: &[u8]) -> io::Result<BTreeMap<String, String>> {
    let mut entries = said.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    // Before the first one is whatever the start-up files have said.
    let first = entries.next().and_then(|text| text.rsplit_once('\n').map(|(_, entry)| entry.to_owned()));
    let entries = first.into_iter().chain(entries.map(String::from));
    let variables: BTreeMap<_, _> = entries
        .filter_map(|entry| entry.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())))
        .filter(|(name, _)| is_wanted(name))
        .collect();
    match variables.contains_key("PATH") {
        true => Ok(variables),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "it did not say its variables")),
    }
}

/// Not what belongs to that shell alone, or is muster's to say.
fn is_wanted(name: &str) -> bool {
    !matches!(name, "" | "_" | "SHLVL" | "PWD" | "OLDPWD" | "TERM" | "MAIL") && !name.starts_with("MUSTER_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variables_of_a_login_are_those_of_its_shell() {
        let home = tempfile::tempdir().unwrap();
        let shell = home.path().join("shell");
        let script = "#!/bin/sh\necho welcome; printf unfinished\nPATH=/opt/conda/bin:$PATH; TWO='a\nb'; export PATH TWO\n\
                      MUSTER_X=1; export MUSTER_X\ntest \"$1\" = -c && exec sh -c \"$2\"\n";
        std::fs::write(&shell, script).unwrap();
        std::fs::set_permissions(&shell, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let variables = ask(&shell.into()).unwrap();
        assert!(variables["PATH"].starts_with("/opt/conda/bin:/usr/local/sbin"), "{variables:?}");
        assert_eq!(variables["TWO"], "a\nb");
        assert!(!variables.contains_key("MUSTER_X") && !variables.contains_key("PWD"), "{variables:?}");
    }

    #[test]
    fn a_shell_that_says_nothing_is_no_shell() {
        assert!(ask(&"/bin/true".into()).is_err());
        assert!(ask(&"/no/shell".into()).is_err());
    }
}
