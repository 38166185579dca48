//! Accounts of this machine that a server of root's becomes, to speak with Slurm as they.
//!
//! What runs as such an account gets nothing of the server's own: neither its credentials nor the terminal that it was started
//! from, which any other process of that account could reach through it.

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
/// The number that belongs to nobody on any machine.
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
pub(super) fn shell(account: &LocalAccount, is_operators: bool) -> Command {
    let LocalAccount { name, uid, gid, home, shell } = account;
    // It is in no group of processes of its own before, so `setsid` becomes it and waits for nobody.
    let mut command = Command::new("setsid");
    command.args([
        "setpriv",
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
    command
}

/// Runs one of Slurm's programs that asks about the cluster, with the rights that everybody has.
pub(super) async fn run_as_nobody(options: &Options, argv: Vec<String>) -> Result<String, Error> {
    let [dir, conf] = [&options.programs, &options.conf].map(|path| path.as_ref().map(Into::into));
    let program = argv.first().cloned().unwrap_or_default();
    let become_nobody =
        ["setsid", "--wait", "setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]
            .map(String::from);
    let words: Vec<String> = become_nobody.into_iter().chain(argv).collect();
    let ran = Programs::new(dir, conf).without_credentials().run(&words, Stdio::null(), QUESTION).await;
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
        let command = shell(&ada, false);
        let names: Vec<_> = command.as_std().get_envs().map(|(name, _)| name.to_owned()).collect();
        for secret in ["SLURM_JWT", "KRB5CCNAME", "XDG_RUNTIME_DIR", "TMPDIR"] {
            assert!(!names.iter().any(|name| name == secret), "{names:?}");
        }
        let home = command.as_std().get_envs().find(|(name, _)| *name == "HOME");
        assert_eq!(home.and_then(|(_, value)| value), Some("/home/ada.l".as_ref()));
    }
}
