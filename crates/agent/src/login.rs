//! What somebody has who logs in to this machine: where their Python is, their modules, their proxies; and, where a task runs
//! under another account than the agent's, their umask and limits.
//!
//! Limits are the machine's to set, and root enforces them, so they are had where the account has no say; where they cannot be
//! had, nothing is started under it. Variables and the umask are the account's own, and are asked of its shell. A shell that
//! takes too long, or fails, leaves tasks with what the machine gives. Nothing that was started to ask is left behind.

mod cell;
mod machine;
mod shell;
mod throwaway;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::account::Person;
use crate::environment::DEFAULT_PATH;
use crate::tree::Preference;
use cell::Cells;
pub(crate) use machine::Error;
use machine::Machine;
use shell::Shell;

/// Start-up files that take longer hang.
const DEADLINE: Duration = Duration::from_secs(10);
/// Tasks that start together ask once; whoever has changed a file does not wait long for it to count.
const FRESH: Duration = Duration::from_secs(5);
/// What the machine gives changes when an admin says so.
const MACHINE_FRESH: Duration = Duration::from_secs(60);

/// What a login is given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) variables: BTreeMap<String, String>,
    /// None where it is the agent's own account, as which tasks have what the agent has.
    pub(crate) umask: Option<u32>,
    /// In the order of the kernel's own numbers; none where it is the agent's own account.
    pub(crate) limits: Vec<Limit>,
}

/// How much of something a process may have; none is without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    pub soft: Option<u64>,
    pub hard: Option<u64>,
}

impl Limit {
    /// As the kernel takes it.
    pub(crate) fn raw(self) -> libc::rlimit {
        let amount = |amount: Option<u64>| amount.unwrap_or(libc::RLIM_INFINITY);
        libc::rlimit { rlim_cur: amount(self.soft), rlim_max: amount(self.hard) }
    }
}

/// An account by name and number: a name may be given to another.
type Key = (String, u32);

/// Asks the machine and the accounts' shells, and remembers for a moment what they said.
#[derive(Debug)]
pub(crate) struct Login {
    tree: Preference,
    /// Whether tasks of the agent's own account have the variables of a login.
    has_own: bool,
    machine: Cells<Key, Result<Arc<Machine>, Error>>,
    /// None is the agent's own account.
    given: Cells<Option<Key>, Result<Given, Error>>,
}

impl Login {
    /// What is started to ask is held, and ended, in this way. Without `has_own`, tasks of the agent's own account have no more
    /// than what the agent has.
    pub(crate) fn new(tree: Preference, has_own: bool) -> Login {
        // A refusal counts no longer than what is given as a whole, by which whoever waited has it too.
        let machine = |answer: &Result<_, _>| if answer.is_ok() { MACHINE_FRESH } else { Duration::ZERO };
        Login { tree, has_own, machine: Cells::new(machine), given: Cells::new(|_| FRESH) }
    }

    /// Asks now, so that whoever needs the answer soon does not wait for it.
    pub(crate) fn ask_ahead(self: &Arc<Self>, person: Option<&Person>) {
        let is_asked = person.is_some() || self.has_own;
        if !is_asked || !self.given.is_wanted(key(person)) {
            return;
        }
        let (this, person) = (Arc::clone(self), person.cloned());
        // Without a thread, it is asked when it is needed.
        let thread = std::thread::Builder::new().name("login-ahead".into());
        let _ = thread.spawn(move || drop(this.given(person.as_ref())));
    }

    /// What a login of this account is given; of the agent's own, if there is none. Waits for the machine and the shell.
    pub(crate) fn given(&self, person: Option<&Person>) -> Result<Given, Error> {
        if person.is_none() && !self.has_own {
            return Ok(Given::default());
        }
        self.given.get(key(person), || {
            let machine = person.map(|person| self.machine(person)).transpose();
            let machine = match machine {
                Ok(machine) => machine,
                Err(error) => return (Err(error), None),
            };
            let shell = match (person, &machine) {
                (Some(person), Some(machine)) => Shell::of(person, machine),
                _ => Shell::own(),
            };
            // What the account has without its shell.
            let mut variables = if person.is_some() { shell.env.clone() } else { BTreeMap::new() };
            let mut umask = machine.as_ref().map(|machine| machine.umask);
            let (said, rest) = shell.ask(self.tree, DEADLINE);
            match said {
                Ok(said) => {
                    variables = said.variables;
                    umask = umask.map(|before| said.umask.unwrap_or(before));
                }
                Err(error) => {
                    let account = person.map_or("its own", |person| &person.account.name);
                    tracing::warn!(account, %error, "tasks do without what a login shell sets");
                }
            }
            let limits = machine.map(|machine| machine.limits.clone()).unwrap_or_default();
            (Ok(Given { variables, umask, limits }), rest)
        })
    }

    fn machine(&self, person: &Person) -> Result<Arc<Machine>, Error> {
        let key = (person.account.name.clone(), person.account.uid);
        self.machine.get(key, || (machine::ask(person, self.tree, DEADLINE).map(Arc::new), ()))
    }
}

fn key(person: Option<&Person>) -> Option<Key> {
    person.map(|person| (person.account.name.clone(), person.account.uid))
}

/// What whoever is asked has to begin with.
fn plain_environment() -> BTreeMap<String, String> {
    let own =
        ["LANG", "TZ"].into_iter().filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)));
    own.chain([("PATH".to_owned(), DEFAULT_PATH.to_owned())]).collect()
}

/// Not what belongs to whoever is asked alone, or is muster's to say, or is no name.
fn is_wanted(name: &str) -> bool {
    let is_own = matches!(name, "" | "_" | "SHLVL" | "PWD" | "OLDPWD" | "TERM" | "MAIL");
    !is_own && !name.starts_with("MUSTER_") && !name.contains('\n')
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Longer than anything takes here that ends.
    pub(super) const DEADLINE: Duration = Duration::from_secs(60);

    /// A process number that a program has left here.
    pub(super) fn left(file: &Path) -> i32 {
        fs::read_to_string(file).unwrap().trim().parse().unwrap()
    }

    /// Whether there is no such process, or only what nobody has asked about since it ended.
    pub(super) fn is_gone(pid: i32) -> bool {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        !crate::tree::Process::of(pid).is_ok_and(|process| process.is_alive())
    }

    #[test]
    fn an_account_that_nobody_logs_in_to_has_what_the_machine_gives() {
        let nobody = crate::account::of(Some("nobody")).unwrap().unwrap();
        let login = Arc::new(Login::new(Preference::Auto, false));
        login.ask_ahead(Some(&nobody));
        let given = login.given(Some(&nobody)).unwrap();
        assert_eq!(given.umask, Some(0o22));
        assert_eq!(given.limits.len(), 16);
        let variables = &given.variables;
        assert_eq!((variables["USER"].as_str(), &variables["HOME"]), ("nobody", &nobody.account.home));
        assert_eq!((&variables["SHELL"], variables["PATH"].as_str()), (&nobody.shell, DEFAULT_PATH));
        assert!(!login.given.is_wanted(key(Some(&nobody))), "it was asked ahead, and is known");
    }

    #[test]
    fn an_account_that_the_machine_refuses_is_given_nothing() {
        let nobody = crate::account::of(Some("nobody")).unwrap().unwrap();
        let mut gone = nobody;
        gone.account.name = "no-such".into();
        let login = Login::new(Preference::Auto, false);
        assert!(login.given(Some(&gone)).is_err());
    }

    #[test]
    fn the_agents_own_account_has_variables_alone() {
        let given = Login::new(Preference::Auto, true).given(None).unwrap();
        assert!(given.variables.contains_key("PATH"), "{given:?}");
        assert!(given.umask.is_none() && given.limits.is_empty());
        assert_eq!(Login::new(Preference::Auto, false).given(None).unwrap(), Given::default());
    }
}
