//! What somebody has who logs in to this machine: where their Python is, their modules, their proxies; and, where a task runs
//! under another account than the agent's, their umask and limits.
//!
//! It is asked of the account's shell, since only that knows which files it reads, and of the machine's own way to become
//! somebody (`runuser`, or `su`), since only that knows what else a login there is given. A shell that takes too long, or fails,
//! leaves tasks with what every machine has.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use crate::account::Person;
use crate::environment::{DEFAULT_PATH, account};

/// Start-up files that take longer hang.
const DEADLINE: Duration = Duration::from_secs(10);
/// Tasks that start together ask once; whoever has changed a file does not wait long for it to count.
const FRESH: Duration = Duration::from_secs(5);
/// More than any environment.
const MOST: u64 = 4 << 20;
/// A name that begins with a dash makes every shell one of a login. What it runs: words that mean the same to all shells.
const SCRIPT: &str = "echo; umask; cat /proc/self/limits; echo; env -0";

/// What a login is given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) umask: Option<u32>,
    /// In the order of the kernel's own numbers.
    pub(crate) limits: Vec<Limit>,
}

/// How much of something a process may have; none is without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    pub soft: Option<u64>,
    pub hard: Option<u64>,
}

/// Asks the accounts' shells, and remembers for a moment what they said.
#[derive(Debug, Default)]
pub(crate) struct Login {
    /// By account; none is the agent's own.
    known: Mutex<HashMap<Option<String>, (Instant, Given)>>,
}

impl Login {
    /// Asks now, so that whoever needs the answer soon does not wait for the shell.
    pub(crate) fn ask_ahead(self: &Arc<Self>) {
        let this = Arc::clone(self);
        // Without a thread, it is asked when it is needed.
        let _ = std::thread::Builder::new().name("login-ahead".into()).spawn(move || drop(this.given(None)));
    }

    /// What a login of this account is given; of the agent's own, if there is none. Waits for the shell.
    pub(crate) fn given(&self, person: Option<&Person>) -> Given {
        // Whoever comes meanwhile waits here and has the same answer.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (at, _)| at.elapsed() < FRESH);
        let key = person.map(|person| person.account.name.clone());
        if let Some((_, given)) = known.get(&key) {
            return given.clone();
        }
        let shell = env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
        let asked = match person {
            Some(person) => ask_of(person),
            None => ask(own_shell(&shell)),
        };
        let given = asked.unwrap_or_else(|error| {
            let whose = key.as_deref().unwrap_or("its own");
            tracing::warn!(account = whose, error = %error, "tasks do without what a login sets");
            Given::default()
        });
        known.insert(key, (Instant::now(), given.clone()));
        given
    }
}

fn own_shell(shell: &OsString) -> Command {
    let account = account();
    let mut name = OsString::from("-");
    name.push(Path::new(shell).file_name().unwrap_or_default());
    let mut command = Command::new(shell);
    command.arg0(name).args(["-c", SCRIPT]).env_clear();
    command.env("HOME", &account.home).env("USER", &account.name).env("LOGNAME", &account.name);
    command.env("SHELL", shell);
    command
}

/// A machine has the one or the other, and both ask those who set limits.
fn ask_of(person: &Person) -> io::Result<Given> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for program in ["runuser", "su"] {
        let mut command = Command::new(program);
        command.args(["-l", &person.account.name, "-c", SCRIPT]).env_clear();
        match ask(command) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => last = error,
            asked => return asked,
        }
    }
    Err(last)
}

fn ask(mut command: Command) -> io::Result<Given> {
    command.env("PATH", DEFAULT_PATH).current_dir("/");
    command.envs(env::vars_os().filter(|(name, _)| name == "LANG" || name == "TZ"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn()?;
    let said = listen(&mut child);
    // With whatever it has started. It may have been reaped with the supervisors already.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
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

fn read(said: &[u8]) -> io::Result<Given> {
    let mut entries = said.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    // Before the first one are the limits, and before these whatever the start-up files have said.
    let first = entries.next().unwrap_or_default().into_owned();
    let (before, first) = first.rsplit_once('\n').unwrap_or_default();
    let entries = std::iter::once(first.to_owned()).chain(entries.map(String::from));
    let variables: BTreeMap<_, _> = entries
        .filter_map(|entry| entry.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())))
        .filter(|(name, _)| is_wanted(name))
        .collect();
    if !variables.contains_key("PATH") {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it did not say its variables"));
    }
    let mut lines = before.lines().rev().skip_while(|line| line.is_empty());
    let mut limits: Vec<Limit> = lines.by_ref().map_while(limit).collect();
    limits.reverse();
    let umask = lines.next().and_then(|line| u32::from_str_radix(line.trim(), 8).ok());
    Ok(Given { variables, umask, limits })
}

/// A line of `/proc/self/limits`; none for the one above them.
fn limit(line: &str) -> Option<Limit> {
    let amount = |word: &str| match word {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    };
    let mut words = line.get(25..)?.split_whitespace();
    Some(Limit { soft: amount(words.next()?)?, hard: amount(words.next()?)? })
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
        let given = ask(own_shell(&shell.into())).unwrap();
        let variables = given.variables;
        assert!(variables["PATH"].starts_with("/opt/conda/bin:/usr/local/sbin"), "{variables:?}");
        assert_eq!(variables["TWO"], "a\nb");
        assert!(!variables.contains_key("MUSTER_X") && !variables.contains_key("PWD"), "{variables:?}");
    }

    #[test]
    fn a_shell_that_says_nothing_is_no_shell() {
        assert!(ask(own_shell(&"/bin/true".into())).is_err());
        assert!(ask(own_shell(&"/no/shell".into())).is_err());
    }

    #[test]
    fn a_login_of_another_account_says_its_limits() {
        let nobody =
            Person { shell: "/bin/sh".into(), ..crate::account::of(Some("nobody")).unwrap().unwrap() };
        // Nobody has no shell, so that the machine does not let them in; what it would say is what root is told.
        assert!(ask_of(&nobody).is_err());
        let root = Person { account: account(), ..nobody };
        let given = ask_of(&root).unwrap();
        assert_eq!(given.limits.len(), 16, "{given:?}");
        assert!(
            given.limits[7].soft.is_some_and(|files| files > 0),
            "the seventh is of open files: {given:?}"
        );
        assert!(given.umask.is_some() && given.variables["HOME"] == root.account.home, "{given:?}");
    }

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        let text = "welcome\n\n0027\nLimit                     Soft Limit           Hard Limit           Units     \n\
                    Max cpu time              unlimited            unlimited            seconds   \n\
                    Max file size             10                   unlimited            bytes     \n\nPATH=/bin\0";
        let given = read(text.as_bytes()).unwrap();
        assert_eq!(given.umask, Some(0o27));
        assert_eq!(given.limits.len(), 2);
        assert_eq!(given.limits[1], Limit { soft: Some(10), hard: None });
    }
}
