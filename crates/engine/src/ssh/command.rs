//! What is run: the OpenSSH client with its options, and the line that it runs on the machine.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::Options;
use super::carry::{MARK, Words};
use crate::{Error, Machine};

/// What our word on the line means when it is not the binary that speaks.
pub(crate) const ABSENT: &str = "absent";
pub(crate) const OTHER: &str = "other";
pub(crate) const SENT: &str = "sent";
pub(crate) const UNSENT: &str = "unsent";

/// For how long the client waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Until the machine is reached.
    pub(crate) reach: Duration,
    /// Many bytes go over the login. On a slow way they are before the sign of life that the client asks for, so it is
    /// given longer; a machine that vanished is noticed by the other login.
    pub(crate) is_bulk: bool,
}

/// The client, ready to be started. It asks nobody anything and does nothing but what it is here for, whatever the user's
/// configuration has for people who log in.
pub(crate) fn ssh(options: &Options, machine: &Machine, patience: Patience, line: &str) -> Command {
    let mut command = Command::new(&options.program);
    let own = options.dir.join("known_hosts");
    let known_hosts = format!("UserKnownHostsFile={} ~/.ssh/known_hosts ~/.ssh/known_hosts2", quoted(&own));
    let connect = format!("ConnectTimeout={}", patience.reach.as_secs());
    let (interval, count) = if patience.is_bulk { (5, 4) } else { (2, 2) };
    let (interval, count) =
        (format!("ServerAliveInterval={interval}"), format!("ServerAliveCountMax={count}"));
    command.arg("-T").args(["-e", "none"]);
    for option in [
        "BatchMode=yes",
        "StrictHostKeyChecking=accept-new",
        "UpdateHostKeys=no",
        "ControlMaster=no",
        "ControlPath=none",
        "ClearAllForwardings=yes",
        "ForwardAgent=no",
        "ForwardX11=no",
        "PermitLocalCommand=no",
        "RemoteCommand=none",
        "RequestTTY=no",
        "LogLevel=INFO",
        &connect,
        &interval,
        &count,
        &known_hosts,
    ] {
        command.args(["-o", option]);
    }
    if let Some(port) = machine.port {
        command.args(["-p", &port.to_string()]);
    }
    if let Some(key) = &machine.key {
        command.args([OsString::from("-i"), expanded(key)]).args(["-o", "IdentitiesOnly=yes"]);
    }
    command.arg("--").arg(&machine.destination).arg(line);
    crate::environment::keep_for_ssh(command.as_std_mut());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    // A jump host's client does not know that nobody is there to answer.
    command.env("SSH_ASKPASS", "/bin/false").env("SSH_ASKPASS_REQUIRE", "force");
    // The terminal's interrupts are for the server, which knows how to end.
    command.process_group(0);
    command
}

/// What the client would only mutter about.
pub(crate) fn check(machine: &Machine) -> Result<(), Error> {
    let Some(key) = &machine.key else { return Ok(()) };
    match std::fs::File::open(expanded(key)) {
        Ok(_) => Ok(()),
        Err(error) => {
            let (key, destination) = (key.display(), &machine.destination);
            Err(Error::terminal(format!(
                "{destination}: its key {key} cannot be read where the server runs ({error})"
            )))
        }
    }
}

/// A file's name within an option: its words are separated by spaces, and `%` begins what is put in.
fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.to_string_lossy().replace('%', "%%"))
}

/// The client looks for a key in the directory where it was started, unless told.
fn expanded(key: &Path) -> OsString {
    let below_home = key.strip_prefix("~").ok();
    let home = std::env::var_os("HOME");
    match (below_home, home) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest).into_os_string(),
        _ => key.as_os_str().to_owned(),
    }
}

/// A shell function that enters a directory, if it is this account's own and nobody else may write to it. The shell then stays in
/// the directory that it has checked, whatever its path leads to later.
const ENTER_OWN: &str = "own() { test -h \"$1\" && return 1; cd \"$1\" 2>/dev/null || return 1; test -O . || return 1; \
     case \"$(ls -ld .)\" in d????-??-?*) return 0;; esac; return 1; }";

/// The directories that hold an account's binaries and agents, the better one first. The second is for homes that cannot be
/// written to: `spare_base` of `carry.rs` in words of the shell.
pub(crate) const OWN_PLACES: &str = "u=$(id -u); v=/var/tmp/muster-$u; test \"$u\" -eq 0 && v=/var/lib/muster-agent; \
     for d in \"$HOME/.muster\" \"$v\"";

/// Runs the binary of this name on the machine; where it is not, says so, and whether another one has started this
/// server's agent there. Any login shell must be able to read it, and `sh`
/// alone must be enough: so it is one line, and has no quotes, backslashes or exclamation marks within.
pub(crate) fn carry(hash: &str, words: &Words) -> String {
    let (name, words) = (words.dir_name(), words.to_line());
    let look = format!("test -S \"{name}/control.sock\" && o={OTHER}");
    let run = format!("test -x ./muster-{hash} && exec ./muster-{hash} carry \"$d\" {words}");
    let places = in_own_bin(OWN_PLACES, &look, &run);
    format!(
        "exec sh -c '{ENTER_OWN}; o=; {places}; echo; echo \"{MARK}{ABSENT} $(uname -s) $(uname -m) $o\"'"
    )
}

/// Like [`carry`], by any binary that is there.
pub(crate) fn carry_by_any(words: &Words) -> String {
    let words = words.to_line();
    let any = format!("for b in ./muster-*; do test -x \"$b\" && exec \"$b\" carry \"$d\" {words}; done");
    let places = in_own_bin(OWN_PLACES, ":", &any);
    format!("exec sh -c '{ENTER_OWN}; {places}; echo; echo \"{MARK}{ABSENT} $(uname -s) $(uname -m)\"'")
}

/// Runs the binary of this name as the gate of a cluster, from the first of these places that has it.
pub(crate) fn gate(places: &str, hash: &str, words: &str) -> String {
    let run = format!("test -x ./muster-{hash} && exec ./muster-{hash} gate \"$d\" {words}");
    let places = in_own_bin(places, ":", &run);
    format!("exec sh -c '{ENTER_OWN}; {places}; echo; echo \"{MARK}{ABSENT} $(uname -s) $(uname -m)\"'")
}

/// Does one thing in each of these places, and another in its `bin`; neither where others may write.
fn in_own_bin(places: &str, in_place: &str, in_bin: &str) -> String {
    format!("{places}; do own \"$d\" || continue; {in_place}; own ./bin || continue; {in_bin}; done")
}

/// Takes the binary from the input: reads its length on a line, writes what comes then to a new file, and gives it its name only when it is whole, so that neither a broken connection nor
/// two who send at once leave half of one. A place where files cannot be executed is none. Tasks of other accounts run it too, for whom an agent
/// of root's shows it; to all others its directory is closed.
pub(crate) fn receive(places: &str, hash: &str) -> String {
    let find = format!(
        "read -r n || exit 1; {places}; do w=\"$d\"; mkdir -m 700 \"$d\" 2>/dev/null; own \"$d\" || continue; \
         mkdir -m 700 bin 2>/dev/null; own ./bin || continue; t=./.new-$$; touch \"$t\" 2>/dev/null || continue; \
         chmod 755 \"$t\"; test -x \"$t\" || {{ rm -f \"$t\"; continue; }}"
    );
    let write = format!(
        "cat > \"$t\"; if test \"$(wc -c < \"$t\")\" -eq \"$n\"; then mv -f \"$t\" ./muster-{hash} && \
         echo \"{MARK}{SENT}\" && exit 0; fi; rm -f \"$t\"; echo \"{MARK}{UNSENT} $d\"; exit 1"
    );
    format!("exec sh -c '{ENTER_OWN}; w=; {find}; {write}; done; echo \"{MARK}{UNSENT} $w\"; exit 1'")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn words() -> Words {
        let node = "node_gpu.h1".parse().unwrap();
        Words { node, server: "0123456789abcdef".into(), job: super::super::carry::Job::Bulk, address: None }
    }

    #[test]
    fn any_shell_can_read_the_line() {
        for line in [carry("abc", &words()), receive(OWN_PLACES, "abc"), carry_by_any(&words())] {
            let inner = line.strip_prefix("exec sh -c '").unwrap().strip_suffix('\'').unwrap();
            assert!(!inner.contains(['\'', '\\', '!', '\n', '`']), "{inner}");
        }
    }

    #[test]
    fn a_binary_that_is_not_there_is_taken_whole_or_not_at_all() {
        let home = tempfile::tempdir().unwrap();
        let run = |line: String, input: &[u8]| {
            let mut command = std::process::Command::new("sh");
            command.arg("-c").arg(line).env("HOME", home.path());
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            std::io::Write::write_all(&mut child.stdin.take().unwrap(), input).unwrap();
            String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
        };
        let absent = run(carry("abc", &words()), b"");
        assert!(absent.contains("muster-carry: absent Linux"), "{absent}");
        let cut = run(receive(OWN_PLACES, "abc"), b"29\n#!/bin/sh");
        assert!(cut.contains("muster-carry: unsent"), "{cut}");
        let bin = home.path().join(".muster/bin");
        assert_eq!(std::fs::read_dir(&bin).unwrap().count(), 0);
        let whole = run(receive(OWN_PLACES, "abc"), b"29\n#!/bin/sh\necho \"$@\" # script\n");
        assert!(whole.contains("muster-carry: sent"), "{whole}");
        let ran = run(carry("abc", &words()), b"");
        assert!(ran.starts_with("carry ") && ran.contains("--node node_gpu.h1"), "{ran}");
    }

    /// What a hostile user may have done to a directory of programs: gives it, after it is made with a program in it.
    fn spoilt(folder: &Path, spoil: impl Fn(&Path)) -> std::path::PathBuf {
        let home = folder.join(".muster");
        std::fs::create_dir_all(home.join("bin")).unwrap();
        for path in [home.join("bin"), home.clone()] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)).unwrap();
        }
        std::fs::write(home.join("bin/muster-abc"), "#!/bin/sh\necho executed\n").unwrap();
        std::fs::set_permissions(home.join("bin/muster-abc"), PermissionsExt::from_mode(0o755)).unwrap();
        spoil(&home);
        home
    }

    fn run_below(home: &Path, line: &str) -> String {
        let mut command = std::process::Command::new("sh");
        command.arg("-c").arg(line).env("HOME", home).stdin(Stdio::null());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }

    #[test]
    fn no_program_is_run_or_put_where_others_may_write() {
        let link = |path: &Path| {
            let real = path.with_extension("real");
            std::fs::rename(path, &real).unwrap();
            symlink(&real, path).unwrap();
        };
        let open =
            |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        let spoils: [&dyn Fn(&Path); 6] = [
            &|home| link(home),
            &|home| link(&home.join("bin")),
            &|home| open(home, 0o770),
            &|home| open(home, 0o703),
            &|home| open(&home.join("bin"), 0o720),
            &|home| chown(home, Some(54_321), None).unwrap(),
        ];
        let is_root = rustix::process::geteuid().is_root();
        let lines =
            [carry("abc", &words()), carry_by_any(&words()), gate("for d in \"$HOME/.muster\"", "abc", "")];
        for (number, spoil) in spoils.iter().enumerate().take(if is_root { 6 } else { 5 }) {
            let folder = tempfile::tempdir().unwrap();
            let home = spoilt(folder.path(), spoil);
            for line in &lines {
                let said = run_below(folder.path(), line);
                assert!(!said.contains("executed") && said.contains(ABSENT), "{number}: {said}");
            }
            std::fs::remove_file(home.join("bin/muster-abc")).unwrap();
            let mut sent = std::process::Command::new("sh");
            sent.arg("-c").arg(receive("for d in \"$HOME/.muster\"", "abc")).env("HOME", folder.path());
            let mut sent = sent.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
            let _ = std::io::Write::write_all(&mut sent.stdin.take().unwrap(), b"2\nab");
            assert!(!sent.wait().unwrap().success() && !home.join("bin/muster-abc").exists(), "{number}");
        }
        let folder = tempfile::tempdir().unwrap();
        spoilt(folder.path(), |_| {});
        assert!(lines.iter().all(|line| run_below(folder.path(), line).contains("executed")));
    }

    #[test]
    fn keys_below_the_home_are_found_from_anywhere() {
        assert_eq!(expanded(Path::new("/k")), "/k");
        let home = std::env::var("HOME").unwrap();
        assert_eq!(expanded(Path::new("~/.ssh/k")), format!("{home}/.ssh/k").as_str());
        assert_eq!(quoted(Path::new("/a b/%")), "\"/a b/%%\"");
    }
}
