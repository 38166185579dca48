//! What the machine itself gives to whoever becomes an account: limits, variables and a umask.
//!
//! Nothing of it is the account's own word, since root enforces it: the machine's way to become somebody (`runuser`, or `su`)
//! runs a program that root has chosen, with no shell and no start-up file, and root looks at that program from outside. So it
//! is also known of accounts that nobody logs in to. Where it cannot be had, nothing stands in for it: root's own limits are
//! not an account's.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, open, openat, statat};

use super::throwaway::{Program, Throwaway, nonce};
use super::{Limit, is_wanted, plain_environment};
use crate::account::Person;
use crate::environment::DEFAULT_PATH;
use crate::tree::Preference;

/// What is run: it does nothing but wait, and says when it does.
const CAT: &str = "/bin/cat";
/// As many limits as every kernel has.
const LIMITS: usize = 16;
/// As most machines have it, and what `/proc` does not say before Linux 4.7.
pub(super) const UMASK: u32 = 0o022;
/// Names a session that is over when the answer is there.
const OF_THE_SESSION: [&str; 3] = ["XDG_SESSION_ID", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"];

/// Why it is not known what an account may use. In words for the user.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "the limits of the account `{account}` cannot be had from this machine, and without them nothing is started under it: \
     {why}; an admin of the machine sees the same with `{line}`"
)]
pub(crate) struct Error {
    account: String,
    why: String,
    line: String,
}

/// What an account is given here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) variables: BTreeMap<String, String>,
    pub(super) umask: u32,
    /// In the order of the kernel's own numbers.
    pub(super) limits: Vec<Limit>,
}

/// A program that becomes somebody, and its words for an account.
type Way = (&'static str, fn(&str) -> Vec<String>);

/// A machine has the one or the other, and both ask those who set limits. The first opens no session with the service manager.
const WAYS: [Way; 2] = [
    ("runuser", |name| ["runuser", "-u", name, "--", CAT].map(str::to_owned).to_vec()),
    ("su", |name| ["su", "-s", CAT, "--", name].map(str::to_owned).to_vec()),
];

pub(super) fn ask(person: &Person, tree: Preference, patience: Duration) -> Result<Machine, Error> {
    let name = &person.account.name;
    let found = WAYS.iter().find_map(|(program, words)| Some((find(program)?, words(name))));
    let refused = |why: String, words: &[String]| Error { account: name.clone(), why, line: words.join(" ") };
    let Some((file, words)) = found else {
        let why = "it has neither `runuser` nor `su`".to_owned();
        return Err(refused(why, &WAYS[0].1(name)));
    };
    ask_with(person, file, &words, tree, patience).map_err(|why| refused(why, &words))
}

fn find(program: &str) -> Option<PathBuf> {
    let files = DEFAULT_PATH.split(':').map(|directory| Path::new(directory).join(program));
    files.into_iter().find(|file| file.is_file())
}

fn ask_with(
    person: &Person,
    file: PathBuf,
    words: &[String],
    tree: Preference,
    patience: Duration,
) -> Result<Machine, String> {
    let failed = |error: io::Error| error.to_string();
    let nonce = nonce().map_err(failed)?;
    let program = Program {
        file,
        words: words.iter().map(Into::into).collect(),
        env: plain_environment(),
        umask: Some(UMASK),
        person: None,
        is_of_machine: true,
    };
    let mut asked = Throwaway::start(program, &nonce, tree, patience).map_err(failed)?;
    // What is told comes back from the program that was chosen, and so it runs.
    let runs = asked
        .tell(&format!("{nonce}\n"))
        .and_then(|()| asked.hear(|said| said.windows(nonce.len()).any(|window| window == nonce.as_bytes())));
    if let Err(error) = runs {
        // One that has ended cannot be told anything, and may have said why.
        let _ = asked.hear(|_| false);
        return Err(why(&asked.last_words(), &error, patience));
    }
    let machine = look(asked.pid(), person).map_err(failed);
    // Its end is that of the session, which the machine tidies up after.
    asked.input = None;
    let _ = asked.hear(|_| false);
    machine
}

/// What it has said, or else what is known of it.
fn why(words: &str, error: &io::Error, patience: Duration) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => format!("it took longer than {} s", patience.as_secs()),
        _ if words.is_empty() => "it ended without a word".to_owned(),
        _ => format!("it said `{words}`"),
    }
}

/// Look at the program from outside.
fn look(parent: i32, person: &Person) -> io::Result<Machine> {
    let listed = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    // Not every kernel has the list.
    let children: Vec<i32> = match &listed {
        Ok(text) => text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect(),
        Err(_) => fs::read_dir("/proc")?
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect(),
    };
    // Some become the program, where most start it.
    let found = children.into_iter().chain([parent]).find_map(|pid| Seen::of(pid, parent, person));
    let seen = found.ok_or_else(|| io::Error::other("the program that it should run cannot be found"))?;
    let limits =
        limits(&seen.read("limits")?).ok_or_else(|| io::Error::other("its limits cannot be read"))?;
    // Not for root everywhere: a container may have taken that from it.
    let environ = seen.read("environ").unwrap_or_default();
    let variables = environ.split('\0').filter_map(|entry| entry.split_once('='));
    let variables = variables.filter(|(name, _)| is_wanted(name) && !OF_THE_SESSION.contains(name));
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let umask = field(&seen.status, "Umask").and_then(|text| u32::from_str_radix(text, 8).ok());
    Ok(Machine { variables, umask: umask.filter(|umask| *umask <= 0o777).unwrap_or(UMASK), limits })
}

/// A process, held so that its number cannot become another's.
struct Seen {
    directory: OwnedFd,
    status: String,
}

impl Seen {
    /// If it is the program, run by that process as this person.
    fn of(pid: i32, parent: i32, person: &Person) -> Option<Seen> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(format!("/proc/{pid}"), flags, Mode::empty()).ok()?;
        let mut seen = Seen { directory, status: String::new() };
        seen.status = seen.read("status").ok()?;
        let is_below = pid == parent || field(&seen.status, "PPid")?.parse() == Ok(parent);
        let mut users = field(&seen.status, "Uid")?.split_ascii_whitespace();
        let is_theirs = users.all(|user| user.parse() == Ok(person.account.uid));
        (is_below && is_theirs && seen.is_cat()).then_some(seen)
    }

    fn is_cat(&self) -> bool {
        let Ok(wanted) = fs::metadata(CAT) else { return false };
        match statat(&self.directory, "exe", AtFlags::empty()) {
            Ok(found) => (found.st_dev, found.st_ino) == (wanted.dev(), wanted.ino()),
            // As with its variables. It is not root any more, which is what counts.
            Err(error) => error == rustix::io::Errno::ACCESS,
        }
    }

    fn read(&self, name: &str) -> io::Result<String> {
        let file = openat(&self.directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut bytes = Vec::new();
        File::from(file).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// What a line `name: value` of a process's status says.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// All that `/proc/PID/limits` says, or nothing.
pub(super) fn limits(text: &str) -> Option<Vec<Limit>> {
    let limits = text.lines().skip(1).map(limit).collect::<Option<Vec<_>>>()?;
    (limits.len() >= LIMITS).then_some(limits)
}

fn limit(line: &str) -> Option<Limit> {
    let amount = |word: &str| match word {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    };
    let mut words = line.get(25..)?.split_ascii_whitespace();
    Some(Limit { soft: amount(words.next()?)?, hard: amount(words.next()?)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::login::tests::{DEADLINE, is_gone, left};

    fn nobody() -> Person {
        crate::account::of(Some("nobody")).unwrap().unwrap()
    }

    #[test]
    fn limits_are_those_of_a_program_that_root_has_chosen() {
        for (program, words) in WAYS {
            for tree in [Preference::Auto, Preference::Walk] {
                let (file, words) = (find(program).unwrap(), words("nobody"));
                let machine = ask_with(&nobody(), file, &words, tree, DEADLINE).unwrap();
                assert_eq!(machine.limits.len(), LIMITS, "{program}: {machine:?}");
                assert!(machine.limits[7].soft.is_some_and(|files| files > 0), "of open files: {machine:?}");
                assert!(machine.variables.contains_key("PATH"), "{machine:?}");
                assert!(!machine.variables.contains_key("MUSTER_TASK_ID"), "{machine:?}");
                assert_eq!(machine.umask, UMASK);
            }
        }
    }

    #[test]
    fn what_the_machine_says_against_it_is_told() {
        let gone = Person {
            account: muster_model::node::Account { name: "no-such".into(), ..nobody().account },
            ..nobody()
        };
        let error = ask(&gone, Preference::Auto, DEADLINE).unwrap_err().to_string();
        for word in ["account `no-such`", "user no-such does not exist", "`runuser -u no-such -- /bin/cat`"] {
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn another_program_than_the_chosen_one_is_not_believed() {
        // It answers, as `cat` does; and it is root's, and the machine's shell.
        let words = ["sh", "-c", "exec 3<&0; (read it; echo $it; read more) <&3"].map(str::to_owned);
        let error = ask_with(&nobody(), "/bin/sh".into(), &words, Preference::Auto, DEADLINE).unwrap_err();
        assert!(error.contains("cannot be found"), "{error}");
    }

    #[test]
    fn a_way_that_hangs_is_ended_with_what_it_has_started() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("left");
        let line = format!("setsid sleep 1000 & echo $! > {}; sleep 1000", file.display());
        let words = ["sh", "-c", &line].map(str::to_owned);
        let patience = Duration::from_millis(500);
        let error = ask_with(&nobody(), "/bin/sh".into(), &words, Preference::Auto, patience).unwrap_err();
        assert!(error.contains("longer than"), "{error}");
        assert!(is_gone(left(&file)));
    }

    #[test]
    fn limits_are_read_as_the_kernel_writes_them_or_not_at_all() {
        let head = "Limit                     Soft Limit           Hard Limit           Units     \n";
        let line = "Max file size             10                   unlimited            bytes     \n";
        let text = format!("{head}{}", line.repeat(LIMITS));
        assert_eq!(limits(&text).unwrap()[0], Limit { soft: Some(10), hard: None });
        assert_eq!(limits(&format!("{text}Max of something new      many\n")), None);
        assert_eq!(limits(&format!("{head}{line}")), None);
        assert_eq!(limits(""), None);
    }
}
