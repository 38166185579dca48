//! Which shell, and what it finds around it.
//!
//! A command has the task's variables and directory, because this process does. The shell is never a login shell: `/etc/profile`
//! would set `PATH` anew, and the task's own programs would be gone from it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{Access, access};
use rustix::process::getuid;
use tokio::process::Command;

use super::pty::Terminal;

/// Variables that a peer may set for its command; more is not an environment but an attack.
const MAX_VARIABLES: usize = 256;
const MAX_VARIABLE_BYTES: usize = 128 << 10;
const ANY: &str = "/bin/sh";

/// What a peer sets for its command.
#[derive(Default)]
pub(super) struct Variables {
    all: BTreeMap<String, String>,
    bytes: usize,
}

impl Variables {
    /// Whether it is set.
    pub fn set(&mut self, name: &str, value: &str) -> bool {
        let bytes = self.bytes + name.len() + value.len();
        let is_variable = !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
        let fits = self.all.len() < MAX_VARIABLES && bytes <= MAX_VARIABLE_BYTES;
        if is_variable && fits {
            self.bytes = bytes;
            self.all.insert(name.to_owned(), value.to_owned());
        }
        is_variable && fits
    }
}

/// The shell with this line, or one that reads its commands.
pub(super) fn command(
    line: Option<&[u8]>,
    variables: &Variables,
    way: Option<Way>,
    terminal: Option<&Terminal>,
) -> Command {
    let shell = shell();
    let mut command = Command::new(&shell);
    if let Some(line) = line {
        command.arg("-c").arg(OsStr::from_bytes(line));
    }
    command.envs(&variables.all).env("SHELL", shell);
    // No SSH_CLIENT: Debian's bash reads ~/.bashrc for every command where that is set.
    command.env("SSH_CONNECTION", way.map_or_else(|| "UNKNOWN 65535 UNKNOWN 65535".into(), Way::text));
    if let Some(terminal) = terminal {
        command.env("SSH_TTY", OsStr::from_bytes(terminal.path.as_bytes()));
        if let Some(term) = &terminal.term {
            command.env("TERM", term);
        }
    }
    command
}

/// Where a peer comes from, and where it got to; a call through the door has no such thing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub from: SocketAddr,
    pub to: SocketAddr,
}

impl Way {
    fn text(self) -> String {
        let Way { from, to } = self;
        format!("{} {} {} {}", from.ip(), from.port(), to.ip(), to.port())
    }
}

/// The task's, the account's, or the one that is everywhere.
fn shell() -> OsString {
    let named = [std::env::var_os("SHELL"), of_account()];
    named.into_iter().flatten().find(|shell| is_usable(Path::new(shell))).unwrap_or_else(|| ANY.into())
}

/// Accounts of services are given programs that refuse everything, which says who may log in at the machine's console.
fn is_usable(shell: &Path) -> bool {
    let refuses = shell.file_name().is_some_and(|name| name == "nologin" || name == "false");
    shell.is_absolute() && !refuses && access(shell, Access::EXEC_OK).is_ok()
}

fn of_account() -> Option<OsString> {
    shell_of(&fs::read("/etc/passwd").ok()?, getuid().as_raw())
}

fn shell_of(passwd: &[u8], user: u32) -> Option<OsString> {
    let user = user.to_string();
    passwd.split(|byte| *byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        match fields[..] {
            [_, _, id, _, _, _, shell] if id == user.as_bytes() => Some(OsString::from_vec(shell.to_vec())),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accounts_shell_is_found_by_number() {
        let passwd = b"root:x:0:0:root:/root:/bin/bash\n# a comment\n\nsomeone:x:1000:100::/home:/bin/zsh\n";
        assert_eq!(shell_of(passwd, 1000).as_deref(), Some(OsStr::new("/bin/zsh")));
        assert_eq!(shell_of(passwd, 0).as_deref(), Some(OsStr::new("/bin/bash")));
        assert_eq!(shell_of(passwd, 7), None);
    }

    #[test]
    fn what_is_no_shell_is_not_used_as_one() {
        assert!(is_usable(Path::new("/bin/sh")));
        for path in ["", "sh", "/nowhere/zsh", "/usr/sbin/nologin", "/bin/false"] {
            assert!(!is_usable(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn variables_are_few_and_have_names() {
        let mut variables = Variables::default();
        assert!(variables.set("LANG", "de_DE.UTF-8"));
        assert!(!variables.set("", "x") && !variables.set("A=B", "x") && !variables.set("A", "\0"));
        assert!(!variables.set("LONG", &"x".repeat(MAX_VARIABLE_BYTES)));
        let set = (0..1000).filter(|i| variables.set(&format!("V{i}"), "x")).count();
        assert_eq!(set, MAX_VARIABLES - 1);
    }
}
