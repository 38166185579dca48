//! The files of a task through which its peers come in and it goes out.
//!
//! | file | for | says |
//! | --- | --- | --- |
//! | `secret` | the server | what the gang's keys are made of |
//! | `config` | `ssh` | every member by its names, and which key to show |
//! | `id` | `ssh` | that key |
//! | `members` | the task itself | where each member is reached, by rank |
//! | `known_hosts` | `ssh` | the key of every member, so that nobody is asked to trust it |
//! | `bin/ssh`, `bin/scp`, … | the task's `PATH` | the same program as ever, with that `config` |
//! | `bin/muster-ssh` | MPI launchers | `bin/ssh` under a name that nothing else on a `PATH` has |
//! | `bin/orted`, `bin/prted` | the same | the daemon of an MPI launcher, with the task's `tmp` for its files |

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use muster_model::launch::{NEXT_ON_PATH, Peers};
use russh::keys::ssh_key::LineEnding;

use crate::keys;

const SECRET: &str = "secret";
const MEMBERS_FILE: &str = "members";
/// The name by which a member reaches the door of another one, wherever that is there.
pub const DOOR: &str = "muster:door";
/// Programs that ask for a configuration with `-F`, and use it to reach hosts.
const PROGRAMS: [&str; 3] = ["ssh", "scp", "sftp"];
/// `ssh` for launchers that pass on the name of the one they use to their daemons on other members, where a path of this
/// task leads nowhere. It is looked for on the `PATH`, on which a conda environment may have put an `ssh` of its own first.
pub const AGENT: &str = "muster-ssh";
/// Daemons that MPI launchers start on members, and the variable that says where they keep their files. Below `/tmp` those of
/// one machine share a directory, which they make at the same moment, and then some of them give up: tasks that share a
/// machine need a place for each.
const DAEMONS: [(&str, &str); 2] =
    [("orted", "OMPI_MCA_orte_tmpdir_base"), ("prted", "PRTE_MCA_prte_tmpdir_base")];

/// How members are reached, whoever they are. A peer may be a moment later than the command that calls it: hence the
/// attempts, a second apart. What the user's own configuration has for all hosts (a way through another host, a shared
/// connection, a command) is not for these, and the first word on a matter counts.
const MEMBERS: &str = "  StrictHostKeyChecking yes
  CheckHostIP no
  BatchMode yes
  PasswordAuthentication no
  PreferredAuthentications publickey
  ConnectionAttempts 60
  ConnectTimeout 15
  LogLevel ERROR
  CanonicalizeHostname no
  ControlMaster no
  ControlPath none
  ProxyJump none
  ProxyCommand none
  RemoteCommand none
  RequestTTY auto
";

/// Why they cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key could not be made.
    #[error(transparent)]
    Key(#[from] keys::Error),
    /// A file could not be written or read.
    #[error("the files of its ssh")]
    Io(#[from] io::Error),
}

impl From<russh::keys::ssh_key::Error> for Error {
    fn from(error: russh::keys::ssh_key::Error) -> Self {
        Self::Key(error.into())
    }
}

/// A member's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gang {
    dir: PathBuf,
    /// Whose the files are, by number, where that is not who writes them. The directories stay with who does.
    owner: Option<(u32, u32)>,
}

impl Gang {
    /// Makes the files in `dir`. Made again, they are the same.
    pub fn make(dir: &Path, peers: &Peers, user: &str, owner: Option<(u32, u32)>) -> Result<Gang, Error> {
        let gang = Gang { dir: dir.to_owned(), owner };
        gang.make_dir("bin")?;
        gang.write(SECRET, &peers.secret, 0o600)?;
        gang.write("id", &keys::client(&peers.secret)?.to_openssh(LineEnding::LF)?, 0o600)?;
        gang.write("known_hosts", &known_hosts(peers)?, 0o600)?;
        gang.write_members(peers, user)?;
        for program in PROGRAMS {
            gang.write(&format!("bin/{program}"), &gang.wrapper(program), 0o700)?;
        }
        gang.write(&format!("bin/{AGENT}"), &gang.wrapper("ssh"), 0o700)?;
        gang.make_dir("tmp")?;
        if let Some((uid, gid)) = owner {
            std::os::unix::fs::chown(dir.join("tmp"), Some(uid), Some(gid))?;
        }
        for (program, variable) in DAEMONS {
            gang.write(&format!("bin/{program}"), &gang.daemon(program, variable), 0o700)?;
        }
        Ok(gang)
    }

    /// Writes down who is there now, for a member whose files are in `dir`; one that has none needs none.
    pub fn renew(dir: &Path, peers: &Peers, user: &str, owner: Option<(u32, u32)>) -> Result<(), Error> {
        let gang = Gang { dir: dir.to_owned(), owner };
        if gang.config_file().exists() {
            gang.write_members(peers, user)?;
        }
        Ok(())
    }

    fn write_members(&self, peers: &Peers, user: &str) -> io::Result<()> {
        self.write("config", &self.config(peers, user), 0o600)?;
        let members =
            peers.members.iter().map(|peer| format!("{}\n", SocketAddr::from((peer.ip, peer.port))));
        self.write(MEMBERS_FILE, &members.collect::<String>(), 0o600)
    }

    /// The secret of the gang whose files are in `dir`.
    pub fn secret(dir: &Path) -> io::Result<String> {
        fs::read_to_string(dir.join(SECRET))
    }

    /// Where the members of the gang whose files are in `dir` are reached, by rank. Who is at no address is not there.
    pub fn members(dir: &Path) -> io::Result<Vec<SocketAddr>> {
        let text = fs::read_to_string(dir.join(MEMBERS_FILE))?;
        text.lines().map(|line| line.parse().map_err(io::Error::other)).collect()
    }

    /// The directory that comes first on the task's `PATH`.
    pub fn bin(&self) -> PathBuf {
        self.dir.join("bin")
    }

    /// What `ssh -F` takes.
    pub fn config_file(&self) -> PathBuf {
        self.dir.join("config")
    }

    fn config(&self, peers: &Peers, user: &str) -> String {
        let quoted = |name: &str| format!("\"{}\"", self.dir.join(name).display());
        let mut config = String::from("# Made by muster for this job, and gone with it.\n");
        let mut members = String::new();
        for peer in peers.members.iter().filter(|peer| !peer.ip.is_unspecified()) {
            // The address is a name too: hostfiles and MPI's own messages have it.
            let names = [peer.names.join(" "), peer.ip.to_string()].join(" ");
            config += &format!("Host {names}\n  HostName {}\n  Port {}\n", peer.ip, peer.port);
            members = members + " " + &names;
        }
        config += &format!("Host{members}\n  User {user}\n  HostKeyAlias muster\n");
        config += &format!("  IdentityFile {}\n  IdentitiesOnly yes\n", quoted("id"));
        config +=
            &format!("  UserKnownHostsFile {}\n  GlobalKnownHostsFile /dev/null\n", quoted("known_hosts"));
        config += MEMBERS;
        // Other hosts are reached as ever.
        config + "Match all\nInclude ~/.ssh/config\nInclude /etc/ssh/ssh_config\n"
    }

    /// The real program is whatever comes after us on the `PATH`. One without a configuration of its own gets ours.
    fn wrapper(&self, program: &str) -> String {
        let config = shell_word(&self.config_file());
        format!(
            r#"#!/bin/sh
# Made by muster: {program}, with the members of this job in its configuration.
{NEXT_ON_PATH}
real=$(next {program}) || {{
  echo "{program}: not found on this machine; install an OpenSSH client (Debian: apt-get install openssh-client)" >&2
  exit 127
}}
exec "$real" -F {config} "$@"
"#
        )
    }

    /// Likewise, with a place of the task's own for what it writes.
    fn daemon(&self, program: &str, variable: &str) -> String {
        let tmp = shell_word(&self.dir.join("tmp"));
        format!(
            r#"#!/bin/sh
# Made by muster: {program}, with a directory of this task's own for its files.
{NEXT_ON_PATH}
real=$(next {program}) || {{
  echo "{program}: not found on this machine; install the MPI of the task that starts it (Debian: apt-get install openmpi-bin)" >&2
  exit 127
}}
{variable}={tmp} exec "$real" "$@"
"#
        )
    }

    /// Somebody else, whose the files are, goes through it and changes nothing in it.
    fn make_dir(&self, name: &str) -> io::Result<()> {
        let mode = if self.owner.is_some() { 0o711 } else { 0o700 };
        let path = self.dir.join(name);
        fs::DirBuilder::new().recursive(true).mode(mode).create(&path)?;
        // Whatever this process makes directories with otherwise.
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    }

    fn write(&self, name: &str, text: &str, mode: u32) -> io::Result<()> {
        let (path, new) = (self.dir.join(name), self.dir.join(format!("{name}.new")));
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&new)?;
        file.write_all(text.as_bytes())?;
        if let Some((uid, gid)) = self.owner {
            std::os::unix::fs::fchown(&file, Some(uid), Some(gid))?;
        }
        fs::rename(new, path)
    }
}

fn known_hosts(peers: &Peers) -> Result<String, Error> {
    Ok(format!("muster {}\n", keys::host(&peers.secret)?.public_key().to_openssh()?))
}

fn shell_word(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn who_is_not_there_is_not_called_and_comes_back_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let peer = |rank: u32, ip: [u8; 4]| muster_model::launch::Peer {
            names: vec![format!("task{rank}.m")],
            ip: ip.into(),
            port: 2200,
        };
        let peers =
            |ip| Peers { secret: "secret".into(), members: vec![peer(0, [127, 64, 0, 1]), peer(1, ip)] };
        Gang::renew(folder.path(), &peers([127, 64, 0, 2]), "me", None).unwrap();
        assert!(!folder.path().join("config").exists(), "one without files needs none");
        Gang::make(folder.path(), &peers([127, 64, 0, 2]), "me", None).unwrap();
        let config = || fs::read_to_string(folder.path().join("config")).unwrap();
        assert!(config().contains("Host task1.m 127.64.0.2\n"));
        Gang::renew(folder.path(), &peers([0, 0, 0, 0]), "me", None).unwrap();
        assert!(config().contains("task0.m") && !config().contains("task1.m"), "{}", config());
        assert_eq!(Gang::members(folder.path()).unwrap()[1].ip().to_string(), "0.0.0.0");
        Gang::renew(folder.path(), &peers([127, 64, 0, 9]), "me", None).unwrap();
        assert!(config().contains("HostName 127.64.0.9\n"));
        assert_eq!(Gang::secret(folder.path()).unwrap(), "secret");
    }

    #[test]
    fn a_daemon_of_mpi_keeps_its_files_in_its_own_task() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, real) = (folder.path().join("it's ssh"), folder.path().join("real"));
        fs::create_dir(&real).unwrap();
        let peers = Peers { secret: "secret".into(), members: Vec::new() };
        let gang = Gang::make(&dir, &peers, "somebody", None).unwrap();
        for (program, variable) in DAEMONS {
            let text = format!("#!/bin/sh\necho \"${variable} $1\"\n");
            let mut options = fs::OpenOptions::new();
            let file = options.write(true).create(true).truncate(true).mode(0o700).open(real.join(program));
            file.unwrap().write_all(text.as_bytes()).unwrap();
            let search = format!("{}:{}:/usr/bin:/bin", gang.bin().display(), real.display());
            let done =
                Command::new(gang.bin().join(program)).arg("-mca").env("PATH", search).output().unwrap();
            let said = String::from_utf8_lossy(&done.stdout);
            assert_eq!(said.trim(), format!("{} -mca", dir.join("tmp").display()), "{program}");
        }
    }
}
