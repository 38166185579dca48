//! The account that the server logs in as on a machine.
//!
//! An agent says itself which account it runs under, and could say anything. The name that the server logs in with is checked
//! by the machine's sshd, so it bounds what the agent may claim. That name is in the destination or in the user's SSH
//! configuration; `ssh -G` evaluates both and connects to nothing. What runs in the login is of no use for this: it is the
//! account's own program, and may lie as the agent may.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

/// How long the client may take to read its configuration, which may run commands (`Match exec`).
const RESOLVE: Duration = Duration::from_secs(10);

/// The name that this client logs in with; why it is not known otherwise.
pub(crate) async fn login_user(ssh: &Command) -> Result<String, String> {
    let mut command = Command::from(resolver(ssh.as_std()));
    command.kill_on_drop(true);
    let output = timeout(RESOLVE, command.output()).await;
    let output = output.map_err(|_| "`ssh -G` did not end".to_owned())?;
    let output = output.map_err(|error| format!("`ssh -G` failed: {error}"))?;
    read(&output)
}

/// Like [`login_user`], for code that runs before there is a runtime.
pub(crate) fn login_user_blocking(ssh: &Command) -> Result<String, String> {
    let output = resolver(ssh.as_std()).output().map_err(|error| format!("`ssh -G` failed: {error}"))?;
    read(&output)
}

/// The same client with the same options, which prints what they come to instead of connecting.
fn resolver(ssh: &std::process::Command) -> std::process::Command {
    let mut command = std::process::Command::new(ssh.get_program());
    command.arg("-G").args(ssh.get_args());
    crate::environment::keep_for_ssh(&mut command);
    command.stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn read(output: &std::process::Output) -> Result<String, String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let user = text.lines().find_map(|line| line.strip_prefix("user "));
    match user.map(str::trim).filter(|user| !user.is_empty() && output.status.success()) {
        Some(user) => Ok(user.to_owned()),
        None => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said: String = said.trim().chars().take(200).collect();
            Err(format!("`ssh -G` names no user ({}) {said}", output.status).trim_end().to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::path::Path;
    use std::process::{ExitStatus, Output};

    use super::super::Options;
    use super::super::command::{Patience, ssh};
    use super::*;
    use crate::Machine;

    fn client(destination: &str, dir: &Path) -> Command {
        let options = Options::new(dir.into(), "/s".into(), "/e".into(), "/o".into());
        let machine = Machine {
            node: "node_gpu.h1".parse().unwrap(),
            destination: destination.into(),
            port: None,
            key: None,
            address: None,
        };
        ssh(&options, &machine, Patience { reach: RESOLVE, is_bulk: false }, "exec sh -c 'true'")
    }

    #[test]
    fn the_login_is_the_one_that_ssh_would_use() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(login_user_blocking(&client("ada@h1", dir.path())).as_deref(), Ok("ada"));
        assert_eq!(
            login_user_blocking(&client("ada@corp.example@h1", dir.path())).as_deref(),
            Ok("ada@corp.example")
        );
        assert!(login_user_blocking(&client("h1", dir.path())).is_ok(), "the configuration has a default");
    }

    #[test]
    fn what_names_no_user_is_not_taken_for_one() {
        let said = |status, text: &str| {
            read(&Output { status: ExitStatus::from_raw(status), stdout: text.into(), stderr: b"no".into() })
        };
        assert_eq!(said(0, "host h1\nuser ada\nport 22\n"), Ok("ada".into()));
        for (status, text) in [(0, ""), (0, "user \n"), (0, "hostname user x\n"), (256, "user root\n")] {
            assert!(said(status, text).is_err(), "{text}");
        }
    }
}
