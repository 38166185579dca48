//! What an account's own start-up files set: where their Python is, their modules, their proxies, and their umask.
//!
//! Only the account's shell knows which files it reads, so it is asked. Everything it says is the account's own word, of its own
//! variables: nothing that root enforces comes from here.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::machine::Machine;
use super::throwaway::{Program, Throwaway, nonce};
use super::{is_wanted, plain_environment};
use crate::account::Person;
use crate::environment::account;
use crate::tree::Preference;

const DEFAULT_SHELL: &str = "/bin/sh";

/// What a shell says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) variables: BTreeMap<String, String>,
    pub(super) umask: Option<u32>,
}

/// A shell that is to be asked.
pub(super) struct Shell {
    file: PathBuf,
    pub(super) env: BTreeMap<String, String>,
    umask: Option<u32>,
    person: Option<(Person, Vec<super::Limit>)>,
}

impl Shell {
    /// The agent's own.
    pub(super) fn own() -> Shell {
        let shell = env::var("SHELL").unwrap_or_else(|_| DEFAULT_SHELL.into());
        Shell::of_own(shell)
    }

    fn of_own(shell: String) -> Shell {
        let account = account();
        let mut env = plain_environment();
        introduce(&mut env, &account.name, &account.home, &shell);
        Shell { file: shell.into(), env, umask: None, person: None }
    }

    /// That of an account, with what the machine gives it before.
    pub(super) fn of(person: &Person, machine: &Machine) -> Shell {
        let shell = if person.shell.is_empty() { DEFAULT_SHELL } else { &person.shell };
        let mut env = machine.variables.clone();
        introduce(&mut env, &person.account.name, &person.account.home, shell);
        let limits = machine.limits.clone();
        Shell { file: shell.into(), env, umask: Some(machine.umask), person: Some((person.clone(), limits)) }
    }

    /// What it says, and what is left of it, which ends when it is dropped.
    pub(super) fn ask(self, tree: Preference, patience: Duration) -> (io::Result<Said>, Option<Throwaway>) {
        let nonce = match nonce() {
            Ok(nonce) => nonce,
            Err(error) => return (Err(error), None),
        };
        match Throwaway::start(self.program(&nonce), &nonce, tree, patience) {
            Ok(mut asked) => {
                let heard = asked.hear(|said| answer(said, &nonce).is_some());
                let heard = heard.map_err(|error| explain(&error, &asked.last_words()));
                let said = heard.and_then(|()| read(answer(&asked.said, &nonce).unwrap_or_default()));
                (said, Some(asked))
            }
            Err(error) => (Err(error), None),
        }
    }

    fn program(self, nonce: &str) -> Program {
        // A name that begins with a dash makes every shell one of a login.
        let mut name = OsString::from("-");
        name.push(Path::new(&self.file).file_name().unwrap_or_default());
        // Words that mean the same to all shells. What the start-up files say is before, and what they have started may go on
        // saying things after.
        let script = format!("echo; echo {nonce}; umask; env -0; echo {nonce}");
        Program {
            file: self.file,
            words: vec![name, "-c".into(), script.into()],
            env: self.env,
            umask: self.umask,
            person: self.person,
            is_of_machine: false,
        }
    }
}

/// Why it has not answered, with what it said instead.
fn explain(error: &io::Error, words: &str) -> io::Error {
    let kind = error.kind();
    io::Error::new(kind, if words.is_empty() { kind.to_string() } else { format!("{kind} after `{words}`") })
}

/// What every login has said of itself.
fn introduce(env: &mut BTreeMap<String, String>, name: &str, home: &str, shell: &str) {
    for (variable, value) in [("USER", name), ("LOGNAME", name), ("HOME", home), ("SHELL", shell)] {
        env.insert(variable.to_owned(), value.to_owned());
    }
}

/// What is between the marks, once the second one is there.
fn answer<'a>(said: &'a [u8], nonce: &str) -> Option<&'a [u8]> {
    let find = |text: &[u8], mark: &str| text.windows(mark.len()).position(|it| it == mark.as_bytes());
    let begin = format!("\n{nonce}\n");
    let after = &said[find(said, &begin)? + begin.len()..];
    Some(&after[..find(after, &format!("{nonce}\n"))?])
}

fn read(answer: &[u8]) -> io::Result<Said> {
    let answer = String::from_utf8_lossy(answer);
    let (first, entries) = answer.split_once('\n').unwrap_or_default();
    let variables: BTreeMap<_, _> = entries
        .split('\0')
        .filter_map(|entry| entry.split_once('='))
        .filter(|(name, _)| is_wanted(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    if !variables.contains_key("PATH") {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it did not say its variables"));
    }
    Ok(Said { variables, umask: umask(first) })
}

fn umask(line: &str) -> Option<u32> {
    u32::from_str_radix(line.trim(), 8).ok().filter(|umask| *umask <= 0o777)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::time::Instant;

    use muster_model::node::Account;
    use tempfile::TempDir;

    use super::*;
    use crate::login::Limit;
    use crate::login::machine::limits;
    use crate::login::tests::{DEADLINE, is_gone, left};

    /// Somebody whom no machine knows, with a home.
    struct Somebody {
        home: TempDir,
        person: Person,
    }

    impl Somebody {
        fn new(profile: &str) -> Somebody {
            let home = tempfile::tempdir().unwrap();
            fs::write(home.path().join(".profile"), profile).unwrap();
            chown(home.path(), Some(54_321), Some(54_322)).unwrap();
            let path = home.path().display().to_string();
            let account = Account { name: "somebody".into(), uid: 54_321, gid: 54_322, home: path };
            let person = Person { account, groups: vec![54_322, 54_323], shell: "/bin/sh".into() };
            Somebody { home, person }
        }

        fn shell(&self) -> Shell {
            let mut limits = limits(&fs::read_to_string("/proc/self/limits").unwrap()).unwrap();
            limits[7] = Limit { soft: Some(77), hard: Some(99) };
            let variables = [("PATH", "/usr/bin:/bin"), ("OF_MACHINE", "yes")];
            let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            Shell::of(&self.person, &Machine { variables, umask: 0o27, limits })
        }

        fn ask(&self) -> io::Result<Said> {
            self.shell().ask(Preference::Auto, DEADLINE).0
        }

        fn left(&self) -> i32 {
            left(&self.home.path().join("left"))
        }
    }

    #[test]
    fn a_login_is_theirs_in_everything() {
        let profile = "echo welcome; printf unfinished; TWO='a\nb'; WHO=\"$(id -u) $(id -G) $(ulimit -Sn) $(ulimit -Hn)\"\n\
                       HERE=$PWD; MUSTER_X=1; LIKE=$0; export TWO WHO HERE MUSTER_X LIKE\n";
        let somebody = Somebody::new(profile);
        let said = somebody.ask().unwrap();
        let variables = said.variables;
        assert_eq!(variables["WHO"], "54321 54322 54323 77 99");
        assert_eq!(variables["TWO"], "a\nb");
        assert_eq!(variables["HERE"], somebody.person.account.home);
        assert_eq!(variables["HOME"], somebody.person.account.home);
        assert_eq!((variables["USER"].as_str(), variables["SHELL"].as_str()), ("somebody", "/bin/sh"));
        assert_eq!((variables["OF_MACHINE"].as_str(), variables["LIKE"].as_str()), ("yes", "-sh"));
        assert!(!variables.keys().any(|name| name.starts_with("MUSTER_") || name == "PWD"), "{variables:?}");
        assert_eq!(said.umask, Some(0o27));
        assert_eq!(Somebody::new("umask 007").ask().unwrap().umask, Some(0o7));
    }

    #[test]
    fn whatever_start_up_files_leave_is_ended_and_nobody_waits_for_it() {
        for tree in [Preference::Auto, Preference::Walk] {
            for profile in [
                // Keeps the output open.
                "sleep 1000 & echo $! > $HOME/left\n",
                "setsid sleep 1000 < /dev/null > /dev/null 2>&1 & echo $! > $HOME/left\n",
                // Its parent is gone as well.
                "(setsid sh -c 'echo $$ > $HOME/left; exec sleep 1000' &)\nwhile ! test -s $HOME/left; do :; done\n",
            ] {
                let somebody = Somebody::new(profile);
                let begun = Instant::now();
                let (said, rest) = somebody.shell().ask(tree, DEADLINE);
                said.unwrap();
                assert!(begun.elapsed() < DEADLINE, "{profile}");
                assert!(!is_gone(somebody.left()));
                drop(rest);
                assert!(is_gone(somebody.left()), "{tree:?}: {profile}");
            }
        }
    }

    #[test]
    fn a_shell_that_hangs_is_ended_when_its_time_is_over() {
        for tree in [Preference::Auto, Preference::Walk] {
            let somebody = Somebody::new("echo $$ > $HOME/left\nexec sleep 1000\n");
            let (said, rest) = somebody.shell().ask(tree, Duration::from_millis(500));
            assert_eq!(said.unwrap_err().kind(), io::ErrorKind::TimedOut);
            drop(rest);
            assert!(is_gone(somebody.left()));
        }
    }

    #[test]
    fn a_shell_that_ends_is_not_waited_for_though_its_output_is_kept_open() {
        let somebody = Somebody::new("sleep 1000 & echo $! > $HOME/left; exit 0\n");
        let begun = Instant::now();
        assert_eq!(somebody.ask().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(begun.elapsed() < DEADLINE && is_gone(somebody.left()));
    }

    #[test]
    fn a_shell_that_writes_without_end_is_heard_no_further() {
        let error = Somebody::new("exec yes\n").ask().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_shell_that_says_nothing_is_no_shell() {
        for shell in ["/bin/true", "/usr/sbin/nologin", "/no/shell", "/etc"] {
            let mut somebody = Somebody::new("");
            somebody.person.shell = shell.into();
            assert!(somebody.ask().is_err(), "{shell}");
        }
    }

    #[test]
    fn the_agents_own_shell_is_asked_like_any_other() {
        let home = tempfile::tempdir().unwrap();
        let shell = home.path().join("shell");
        let script =
            "#!/bin/sh\nPATH=/opt/conda/bin:$PATH; export PATH\ntest \"$1\" = -c && exec sh -c \"$2\"\n";
        fs::write(&shell, script).unwrap();
        fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
        let shell = Shell::of_own(shell.display().to_string());
        let said = shell.ask(Preference::Auto, DEADLINE).0.unwrap();
        assert!(said.variables["PATH"].starts_with("/opt/conda/bin:/usr/local/sbin"), "{said:?}");
    }

    #[test]
    fn an_answer_is_what_is_between_the_marks() {
        let said = b"welcome\n\nmark\n0022\nPATH=/bin\0A=1\n2\0mark\nmore";
        let said = read(answer(said, "mark").unwrap()).unwrap();
        assert_eq!((said.umask, said.variables["A"].as_str()), (Some(0o22), "1\n2"));
        assert_eq!(answer(b"\nmark\n0022\nPATH=/bin\0", "mark"), None);
        assert!(read(b"0022\nA=1\0").is_err() && read(b"").is_err());
        for (line, wanted) in [("22", Some(0o22)), ("1777", None), ("-1", None), ("u=rwx", None), ("", None)]
        {
            assert_eq!(umask(line), wanted, "{line}");
        }
    }
}
