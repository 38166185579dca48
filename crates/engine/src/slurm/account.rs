//! Accounts of this machine that a server of root's becomes, to speak with Slurm as they.
//!
//! What runs as such an account gets nothing of the server's own: neither its credentials nor the terminal that it was started
//! from, which any other process of that account could reach through it.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::Options;
use super::gate::programs::Programs;
use super::refusal;
use crate::environment::{keep_for_account, keep_for_slurm};
use crate::{Class, Error};

/// Where accounts are in a directory of another machine, it may be away.
const LOOKUP: Duration = Duration::from_secs(10);
/// The controller may be busy.
const QUESTION: Duration = Duration::from_secs(60);
/// The uid and gid of `nobody`.
const NOBODY: &str = "65534";

/// An account, as far as is needed to become it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LocalAccount {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
    shell: String,
}

/// Looks an account up, which must be one that jobs may run as.
pub(super) async fn find(name: &str) -> Result<LocalAccount, Error> {
    let mut getent = Command::new("getent");
    keep_for_slurm(getent.as_std_mut());
    getent.args(["passwd", "--", name]).stdin(Stdio::null()).kill_on_drop(true);
    let failed = |source| Error::retryable(format!("look up the account `{name}`"), source);
    let late = |_| failed(std::io::ErrorKind::TimedOut.into());
    let found = tokio::time::timeout(LOOKUP, getent.output()).await.map_err(late)?.map_err(failed)?;
    match found.status.code() {
        Some(0) => read_passwd(&String::from_utf8_lossy(&found.stdout), name),
        // What `getent` ends with where there is no such key.
        Some(2) => Err(missing(name)),
        _ => {
            let said = String::from_utf8_lossy(&found.stderr).trim().to_owned();
            Err(failed(std::io::Error::other(said)))
        }
    }
}

fn missing(name: &str) -> Error {
    let what = format!(
        "this machine has no account `{name}`, which the job is to run as; make one, or have an admin say which is right: \
         `muster user set NAME --account ACCOUNT`, or slurm.user in config.toml"
    );
    Error { what, class: Class::NotFound, source: None }
}

/// A line of `getent passwd`.
fn read_passwd(line: &str, wanted: &str) -> Result<LocalAccount, Error> {
    let fields: Vec<&str> = line.trim().split(':').collect();
    let [name, _, uid, gid, _, home, shell, ..] = fields.as_slice() else { return Err(missing(wanted)) };
    let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse()) else { return Err(missing(wanted)) };
    // A number is looked up as well, and one account would be two.
    if *name != wanted {
        return Err(Error::terminal(format!("the account `{wanted}` is called `{name}`; name it so")));
    }
    if uid == 0 {
        let what = format!("jobs never run as root, which `{name}` is here; name another account");
        return Err(Error::terminal(what));
    }
    let text = |field: &str| field.to_owned();
    Ok(LocalAccount { name: text(name), uid, gid, home: text(home), shell: text(shell) })
}

/// A shell of an account. What the operator's own account gets, those of owners do not: credentials of the server's.
pub(super) fn shell(account: &LocalAccount, is_operators: bool) -> Result<Command, Error> {
    let LocalAccount { name, uid, gid, home, shell } = account;
    // It is in no group of processes of its own before, so `setsid` executes the program in place and does not fork.
    let mut command = Command::new(own_program("setsid")?);
    command.arg(own_program("setpriv")?).args([
        "--reuid",
        &uid.to_string(),
        "--regid",
        &gid.to_string(),
        "--init-groups",
        "sh",
    ]);
    command.env("HOME", home).env("USER", name).env("LOGNAME", name).env("SHELL", shell);
    match is_operators {
        true => keep_for_slurm(command.as_std_mut()),
        false => keep_for_account(command.as_std_mut()),
    }
    Ok(command)
}

/// A program that root runs, by the server's own path. `slurm.programs` is searched only by what is not root any more.
fn own_program(name: &str) -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    find_program(&path, name).ok_or_else(|| {
        let what = format!("`{name}` is not on the server's path; install util-linux");
        Error { what, class: Class::Retryable, source: None }
    })
}

/// The first program of this name in directories with absolute paths.
fn find_program(path: &OsStr, name: &str) -> Option<PathBuf> {
    let is_program = |file: &PathBuf| {
        let found = file.metadata();
        file.is_absolute() && found.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(path).map(|dir| dir.join(name)).find(is_program)
}

/// Runs one of Slurm's programs that asks about the cluster, with the rights that everybody has.
pub(super) async fn run_as_nobody(options: &Options, argv: Vec<String>) -> Result<String, Error> {
    run_as_nobody_within(options, argv, QUESTION).await
}

async fn run_as_nobody_within(
    options: &Options,
    argv: Vec<String>,
    limit: Duration,
) -> Result<String, Error> {
    let [dir, conf] = [&options.programs, &options.conf].map(|path| path.as_ref().map(Into::into));
    let program = argv.first().cloned().unwrap_or_default();
    let root_programs = [own_program("setsid")?, own_program("setpriv")?];
    let become_nobody = ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"].map(String::from);
    // Each becomes the next in the same process, so a timeout kills the program itself.
    let words: Vec<String> = root_programs
        .iter()
        .map(|program| program.to_string_lossy().into_owned())
        .chain(become_nobody)
        .chain(argv)
        .collect();
    let ran = Programs::new(dir, conf).for_another_account().run(&words, Stdio::null(), limit).await;
    match ran.code {
        Some(0) => Ok(ran.stdout),
        _ => Err(refusal::retryable(&program, &ran.stderr)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_nobodys_account_by_any_name() {
        let found = read_passwd("ada.l:x:1001:100:Ada:/home/ada.l:/bin/bash\n", "ada.l").unwrap();
        assert_eq!((found.uid, found.gid, found.home.as_str()), (1001, 100, "/home/ada.l"));
        for (line, wanted, says) in [
            ("root:x:0:0:root:/root:/bin/bash", "root", "never run as root"),
            ("toor:x:0:0::/root:/bin/sh", "toor", "never run as root"),
            ("root:x:00:0:root:/root:/bin/bash", "root", "never run as root"),
            ("ada.l:x:1001:100:Ada:/home/ada.l:/bin/bash", "1001", "is called `ada.l`"),
            ("ada.l:x:-1:100:Ada:/home/ada.l:/bin/bash", "ada.l", "has no account"),
            ("", "ada.l", "has no account"),
        ] {
            let error = read_passwd(line, wanted).unwrap_err();
            assert!(error.what.contains(says), "{line}: {error}");
        }
    }

    #[tokio::test]
    async fn an_account_that_is_not_there_is_not_found() {
        let error = find("no-such-account-here").await.unwrap_err();
        assert_eq!(error.class, Class::NotFound, "{error}");
        let error = find("--help").await.unwrap_err();
        assert_ne!(error.class, Class::Retryable, "{error}");
        assert_eq!(find("root").await.unwrap_err().class, Class::Terminal);
    }

    #[test]
    fn an_owners_account_gets_no_credentials_of_the_server() {
        let ada = read_passwd("ada.l:x:1001:100:Ada:/home/ada.l:/bin/bash", "ada.l").unwrap();
        let command = shell(&ada, false).unwrap();
        assert!(command.as_std().get_program().as_encoded_bytes().starts_with(b"/"));
        let names: Vec<_> = command.as_std().get_envs().map(|(name, _)| name.to_owned()).collect();
        for secret in ["SLURM_JWT", "KRB5CCNAME", "XDG_RUNTIME_DIR", "TMPDIR"] {
            assert!(!names.iter().any(|name| name == secret), "{names:?}");
        }
        let home = command.as_std().get_envs().find(|(name, _)| *name == "HOME");
        assert_eq!(home.and_then(|(_, value)| value), Some("/home/ada.l".as_ref()));
    }

    /// A directory that everybody may use, with programs in it.
    fn programs(scripts: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let open = |path: &std::path::Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        open(dir.path(), 0o777);
        for (name, script) in scripts {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            open(&path, 0o755);
        }
        dir
    }

    fn options(programs: &std::path::Path) -> Options {
        let programs = Some(programs.to_str().unwrap().to_owned());
        Options { programs, ..super::super::tests::options(None, None) }
    }

    #[test]
    fn programs_of_root_are_found_by_absolute_paths_alone() {
        let dir = programs(&[("here", "")]);
        std::fs::write(dir.path().join("data"), "").unwrap();
        let path = std::env::join_paths([PathBuf::from("."), PathBuf::new(), dir.path().into()]).unwrap();
        assert_eq!(find_program(&path, "here"), Some(dir.path().join("here")));
        assert_eq!(find_program(&path, "data"), None, "it cannot be run");
        assert_eq!(find_program(OsStr::new(".:src:"), "lib.rs"), None);
    }

    #[tokio::test]
    async fn slurms_programs_are_run_as_nobody_and_root_runs_nothing_of_their_directory() {
        if !rustix::process::getuid().is_root() {
            return;
        }
        let dir = programs(&[
            ("setsid", "echo wrong; exit 1"),
            ("setpriv", "echo wrong; exit 1"),
            ("sinfo", "id -u; cut -d' ' -f6 /proc/self/stat; echo $$"),
        ]);
        let said = run_as_nobody(&options(dir.path()), vec!["sinfo".into()]).await.unwrap();
        let lines: Vec<&str> = said.lines().collect();
        let [uid, session, pid] = lines.as_slice() else { panic!("{said}") };
        assert_eq!((*uid, session), (NOBODY, pid), "it is in a session of its own");
    }

    #[tokio::test]
    async fn a_program_of_slurms_that_takes_too_long_is_killed() {
        if !rustix::process::getuid().is_root() {
            return;
        }
        let dir = programs(&[("sinfo", "echo $$ > $(dirname $0)/pid; exec sleep 600")]);
        let (pid, argv) = (dir.path().join("pid"), vec!["sinfo".to_owned()]);
        let error = run_as_nobody_within(&options(dir.path()), argv, Duration::from_secs(3)).await;
        assert!(error.unwrap_err().what.contains("no end after"));
        let pid = std::fs::read_to_string(pid).unwrap();
        let is_alive = || {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            state.is_ok_and(|state| !state.contains(") Z "))
        };
        for _ in 0..100 {
            if !is_alive() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("process {pid} still runs");
    }
}
