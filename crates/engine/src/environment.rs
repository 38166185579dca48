//! The environment of programs that the server starts.
//!
//! The server's own environment may hold its secrets: the key of the vault, tokens, credentials of clouds. A program that is
//! started gets nothing of it but the variables named here, so a variable that somebody adds to the server's unit file
//! reaches no account of a cluster and no task.

use std::process::Command;

/// What every program needs.
const ALWAYS: &[&str] = &["HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"];
const LOCALE: &str = "LC_";

/// What programs of Slurm need. The jobs that they submit inherit all of it (`--export=ALL`).
const SLURM: &[&str] = &["KRB5CCNAME", "LD_LIBRARY_PATH", "SLURM_CONF", "SLURM_JWT", "XDG_RUNTIME_DIR"];
/// What of it lets the server's own account in elsewhere, or is a directory of that account's.
pub(crate) const CREDENTIALS: &[&str] = &["KRB5CCNAME", "SLURM_JWT", "TMPDIR", "XDG_RUNTIME_DIR"];
/// Defaults that an operator sets for `sbatch`.
const SBATCH: &str = "SBATCH_";

/// What an agent on this machine needs. Its tasks get the environment of their job, and none of this.
const AGENT: &[&str] =
    &["DBUS_SESSION_BUS_ADDRESS", "LD_LIBRARY_PATH", "MUSTER_LOG", "RUST_BACKTRACE", "XDG_RUNTIME_DIR"];

/// What the OpenSSH client needs, and the commands that its configuration may name (`ProxyCommand`, `Match exec`). It runs as
/// the server's own account and hands nothing on to tasks.
const SSH: &[&str] = &[
    "ALL_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "KRB5CCNAME",
    "KRB5_CONFIG",
    "LD_LIBRARY_PATH",
    "NO_PROXY",
    "SSH_AGENT_PID",
    "SSH_AUTH_SOCK",
    "XDG_RUNTIME_DIR",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];
/// Command-line clients of clouds that reach machines without a public address.
const CLOUDS: &[&str] = &["ALIBABA_CLOUD_", "AWS_", "AZURE_", "CLOUDSDK_", "GOOGLE_"];

/// For a shell that runs programs of Slurm.
pub(crate) fn keep_for_slurm(command: &mut Command) {
    keep(command, |name| SLURM.contains(&name) || name.starts_with(SBATCH));
}

/// The same for a shell of an account that is not the operator's.
pub(crate) fn keep_for_account(command: &mut Command) {
    keep_for_slurm(command);
    for name in CREDENTIALS {
        command.env_remove(name);
    }
}

/// For an agent of muster's own.
pub fn keep_for_agent(command: &mut Command) {
    keep(command, |name| AGENT.contains(&name));
}

/// For the OpenSSH client.
pub(crate) fn keep_for_ssh(command: &mut Command) {
    keep(command, |name| SSH.contains(&name) || CLOUDS.iter().any(|prefix| name.starts_with(prefix)));
}

/// Variables that were set for this command before are kept.
fn keep(command: &mut Command, is_kept: impl Fn(&str) -> bool) {
    let own: Vec<_> =
        command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
    command.env_clear();
    let is_wanted = |name: &str| ALWAYS.contains(&name) || name.starts_with(LOCALE) || is_kept(name);
    command.envs(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_wanted)));
    command.envs(own);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_are_not_named_are_not_handed_on() {
        // Every test runs with variables of cargo's.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        for keep in [keep_for_slurm as fn(&mut Command), keep_for_ssh, keep_for_agent] {
            let mut command = Command::new("env");
            keep(&mut command);
            let output = command.output().unwrap();
            assert!(!String::from_utf8_lossy(&output.stdout).contains("CARGO_"));
        }
    }

    #[test]
    fn variables_of_the_command_itself_are_kept() {
        let mut command = Command::new("env");
        command.env("HOME", "/home/ada").env("SSH_ASKPASS", "/bin/false");
        keep_for_slurm(&mut command);
        let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(
            output.contains("HOME=/home/ada\n") && output.contains("SSH_ASKPASS=/bin/false\n"),
            "{output}"
        );
    }
}
