//! `muster ssh-config`: what plain `ssh`, and whatever is built on it, needs to reach tasks.

mod file;

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use serde_json::json;

use crate::error::{Code, Error};
use crate::home::Home;
use crate::identity::Identity;
use crate::place::{By, Named, Place};
use crate::{quote, terminal};

/// Make plain ssh, scp, rsync and editors reach tasks
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster ssh-config                look at it
  muster ssh-config --install      put it where ssh finds it
  ssh task0.bert
  scp task0.bert:out/model.pt .
  rsync -av data/ task1.last:data/
  code --remote ssh-remote+task0.bert /path
  muster ssh-config --uninstall

A task is a host by the name taskN.JOB, where JOB is an id, the beginning of one, a name without dots, or `last`; \
a machine that has a name of its own is NAME.muster as well. \
--install writes a file of muster's own and one line at the top of ~/.ssh/config that includes it; \
--uninstall takes both away. \
A server's token is never written down: it is that of the context (`muster context`), or ssh must find MUSTER_TOKEN in its environment.")]
pub(crate) struct Args {
    /// Put it where ssh finds it
    #[arg(long, conflicts_with = "uninstall")]
    install: bool,
    /// Take it away again
    #[arg(long)]
    uninstall: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let home = Home::from_environment()?;
    let own = home.folder().join("ssh/config");
    let users = file::of_user()?;
    if args.uninstall {
        let was = file::uninstall(&users, &own)?;
        return report(args, &users, &own, "", if was { "taken away" } else { "not there" });
    }
    let text = block(&home)?;
    if !args.install {
        if args.json {
            return report(args, &users, &own, &text, "");
        }
        terminal::document(text.as_bytes())?;
        if terminal::stdout_is_terminal() {
            terminal::hint("--install puts it where ssh finds it");
        }
        return Ok(ExitCode::SUCCESS);
    }
    file::install(&users, &own, &text)?;
    report(args, &users, &own, &text, "installed")
}

fn report(args: &Args, users: &Path, own: &Path, text: &str, done: &str) -> Result<ExitCode, Error> {
    if args.json {
        terminal::say_json(&json!({
            "config": text,
            "file": own,
            "ssh_config": users,
            "installed": file::is_installed(users, own),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    match done {
        "installed" => {
            terminal::say(&format!("{} includes {} now", users.display(), own.display()))?;
            terminal::remark("  ssh task0.JOB, scp, rsync and editors reach every task that runs");
        }
        "taken away" => terminal::say(&format!("{} is as it was", users.display()))?,
        _ => terminal::say(&format!("{} has nothing of muster's", users.display()))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What goes into ssh's configuration.
fn block(home: &Home) -> Result<String, Error> {
    let program = program().map_err(|error| Error::io(Code::SystemFailed, "find this program", &error))?;
    let server = match Place::from_environment()? {
        Place::Named(named) => Some(named),
        Place::Private(_) => None,
    };
    let identity = Identity::of_user()?;
    let means = Means {
        program: &program,
        home: is_elsewhere(home).then(|| home.folder()),
        server: server.as_ref(),
        key: identity.file(),
    };
    means.block()
}

/// Where this program is. One that was replaced while it runs is where it was, in a newer version.
fn program() -> io::Result<PathBuf> {
    let path = env::current_exe()?;
    let name = path.to_str().and_then(|text| text.strip_suffix(" (deleted)")).map(PathBuf::from);
    Ok(name.unwrap_or(path))
}

/// Whether muster's folder is where only a variable says.
fn is_elsewhere(home: &Home) -> bool {
    let usual = env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share/muster"));
    usual.is_none_or(|usual| usual != home.folder())
}

/// What the way to a task is made of.
struct Means<'a> {
    program: &'a Path,
    home: Option<&'a Path>,
    server: Option<&'a Named>,
    key: &'a Path,
}

impl Means<'_> {
    fn block(&self) -> Result<String, Error> {
        let key = quoted(self.key)?;
        let proxy = self.proxy()?;
        let token = match self.server {
            Some(Named { by: By::Flag | By::Variable, .. }) => {
                "# The server's token is not written down here: MUSTER_TOKEN must be in the environment of ssh.\n"
            }
            Some(Named { by: By::Context(_), .. }) | None => "",
        };
        Ok(format!(
            "\
# Tasks of muster's jobs as hosts: task0.JOB. Made by `muster ssh-config`.
# A name with two dots is somebody else's machine.
{token}Host task?.* task??.* task???.* task????.* *.muster !*.*.*
  ProxyCommand {proxy} ssh-proxy %n
  User muster
  IdentityFile {key}
  IdentitiesOnly yes
  # Whoever comes this way was let in by the server and brought to the task by it: the host's key, another one for every
  # task, would prove nothing more.
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"
        ))
    }

    /// A command of the user's shell, which reads the line after ssh has.
    fn proxy(&self) -> Result<String, Error> {
        let mut words = Vec::new();
        if let Some(home) = self.home {
            words.push(format!("MUSTER_HOME={}", text(home)?));
        }
        match self.server {
            Some(Named { by: By::Context(name), .. }) => words.push(format!("MUSTER_CONTEXT={name}")),
            Some(Named { endpoint, .. }) => {
                words.push(format!("MUSTER_SERVER={endpoint}"));
                words.extend(endpoint.fingerprint().map(|pinned| format!("MUSTER_FINGERPRINT={pinned}")));
            }
            None => {}
        }
        if !words.is_empty() {
            words.insert(0, "env".to_owned());
        }
        words.push(text(self.program)?.to_owned());
        let line = quote::line(words.iter().map(String::as_bytes));
        Ok(String::from_utf8_lossy(&line).replace('%', "%%"))
    }
}

/// A path as one word of ssh's configuration.
fn quoted(path: &Path) -> Result<String, Error> {
    let text = text(path)?.replace('\\', r"\\").replace('"', "\\\"").replace('%', "%%");
    Ok(format!("\"{text}\""))
}

fn text(path: &Path) -> Result<&str, Error> {
    path.to_str().filter(|text| !text.contains('\n')).ok_or_else(|| {
        Error::new(Code::SshConfigUnusable, format!("ssh's configuration cannot name {}", path.display()))
            .hint("move it to a path that is one line of UTF-8; MUSTER_HOME names muster's folder")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_names_the_program_the_key_and_where_the_server_is() {
        let endpoint = "http://10.0.0.1:7000".parse().unwrap();
        let named = Named { endpoint, by: By::Variable };
        let means = Means {
            program: Path::new("/opt/my tools/100%/muster"),
            home: Some(Path::new("/data/it's mine")),
            server: Some(&named),
            key: Path::new("/data/it's mine/ssh/id"),
        };
        insta::assert_snapshot!(means.block().unwrap(), @r#"
        # Tasks of muster's jobs as hosts: task0.JOB. Made by `muster ssh-config`.
        # A name with two dots is somebody else's machine.
        # The server's token is not written down here: MUSTER_TOKEN must be in the environment of ssh.
        Host task?.* task??.* task???.* task????.* *.muster !*.*.*
          ProxyCommand env 'MUSTER_HOME=/data/it'"'"'s mine' 'MUSTER_SERVER=http://10.0.0.1:7000' '/opt/my tools/100%%/muster' ssh-proxy %n
          User muster
          IdentityFile "/data/it's mine/ssh/id"
          IdentitiesOnly yes
          # Whoever comes this way was let in by the server and brought to the task by it: the host's key, another one for every
          # task, would prove nothing more.
          StrictHostKeyChecking no
          UserKnownHostsFile /dev/null
          LogLevel ERROR
        "#);
        let lab = Named { endpoint: named.endpoint.clone(), by: By::Context("lab".into()) };
        let block = Means { server: Some(&lab), home: None, ..means }.block().unwrap();
        assert!(block.contains("ProxyCommand env 'MUSTER_CONTEXT=lab' '/opt"), "{block}");
        assert!(!block.contains("MUSTER_TOKEN"), "{block}");
        let plain = Means { home: None, server: None, program: Path::new("/usr/bin/muster"), ..means };
        let block = plain.block().unwrap();
        assert!(block.contains("ProxyCommand /usr/bin/muster ssh-proxy %n\n"), "{block}");
        assert!(!block.contains("MUSTER_TOKEN"), "{block}");
    }
}
