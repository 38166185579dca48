//! Programs of muster's own that a task finds first on its `PATH`: links to this binary, which knows by its name what it is
//! called as.
//!
//! Scripts for clusters often begin with `#!/bin/bash -l`, and then `/etc/profile` sets the `PATH` anew. A shell that reads a script
//! reads the file that `BASH_ENV` names after that: there the programs come first again.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::account::Owner;
use crate::disk;
use crate::record::TaskDir;
use crate::slurm::TASK_DIR;

/// Makes the links.
pub(crate) fn make(dir: &TaskDir, names: &[String], exe: &Path) -> io::Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let bin = bin(dir);
    disk::make_dir(&bin)?;
    let exe = binary(exe, &bin)?;
    // A name is a name: one with a path in it would be written elsewhere.
    for name in names.iter().filter(|name| !name.is_empty() && !name.contains('/') && *name != "..") {
        let link = bin.join(name);
        // The agent that made it before may have been another binary.
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => symlink(&exe, link)?,
        }
    }
    Ok(())
}

/// Tells the task where they are.
pub(crate) fn tell(dir: &TaskDir, env: &mut BTreeMap<String, String>, owner: Option<Owner>) {
    let own = dir.path().display().to_string();
    let path = env.get("PATH").map_or_else(String::new, |path| format!(":{path}"));
    let path = format!("{}{path}", bin(dir).display());
    let front: Vec<&str> = path.split(':').filter(|folder| folder.starts_with(&own)).collect();
    let again = restore(&front.join(":"), env.get("BASH_ENV").map_or("", String::as_str));
    let file = dir.path().join("bash_env");
    // Without it, only login shells lose something.
    if write(&file, again.as_bytes(), owner).is_ok() {
        env.insert("BASH_ENV".into(), file.display().to_string());
    }
    env.insert("PATH".into(), path);
    env.insert(TASK_DIR.into(), own);
}

fn write(file: &Path, text: &[u8], owner: Option<Owner>) -> io::Result<()> {
    disk::write(file, text)?;
    owner.map_or(Ok(()), |owner| owner.give_alone(file))
}

/// Lines for a shell, which put these folders first unless they are there. What the user wanted read is read.
fn restore(front: &str, users: &str) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    let read = if users.is_empty() { String::new() } else { format!("[ -r {0} ] && . {0}\n", quoted(users)) };
    let front = quoted(front);
    format!("{read}case \":$PATH:\" in *:{front}:*) ;; *) PATH={front}:$PATH ;; esac\n")
}

/// Where the binary is, by a path that means the same to everybody: the agent's own is that of whatever process looks. One
/// that was replaced since the agent was started is as good; one that is gone is kept.
fn binary(exe: &Path, bin: &Path) -> io::Result<PathBuf> {
    let Ok(target) = fs::read_link(exe) else { return Ok(exe.to_owned()) };
    let name = target.to_string_lossy();
    let path = Path::new(name.strip_suffix(" (deleted)").unwrap_or(&name)).to_owned();
    if path.is_file() {
        return Ok(path);
    }
    let kept = bin.join("muster");
    fs::copy(exe, &kept)?;
    Ok(kept)
}

/// Where they are.
pub(crate) fn bin(dir: &TaskDir) -> PathBuf {
    dir.path().join("bin")
}
