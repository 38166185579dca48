//! What a task finds around it: the files and directories that its launch contract has, at the paths the contract says.
//!
//! They lie below a directory of the task's. Where its supervisor may mount, they are seen at their real paths, by the task's
//! own processes and by nobody else (see `mount`): the host's directories stay as they are, and everything goes with the
//! last process. Where it may not, variables and the words of the command are made to name the places where they lie.
//! Each path is decided for itself: one that cannot be shown does not hide the others.

mod cover;
mod home;
mod mount;

pub(crate) use cover::cover;
pub use home::OwnHome;
pub(crate) use mount::remove_points;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use muster_link::message::{self, GivenVolume};
use muster_model::launch::{Host, LaunchFile, Surroundings, Work};
use muster_model::node::Account;
use serde::{Deserialize, Serialize};

use crate::account::{Owner, Person};
use crate::supervisor::Launch;
use crate::{disk, environment, volume};

const HOSTS: &str = "/etc/hosts";
/// Variables that a shell has of its own.
const SHELLS: [&str; 6] = ["HOME", "PATH", "PWD", "OLDPWD", "SHLVL", "LS_COLORS"];

/// What a task finds around it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Below this, everything lies at its path.
    root: PathBuf,
    files: Vec<String>,
    directories: Vec<String>,
    /// Where the working directory is found as well.
    workdir: Vec<String>,
    /// Variables that name one of these paths.
    paths: BTreeMap<String, String>,
    /// Directories that come first in these variables.
    front: BTreeMap<String, Vec<String>>,
    /// Files with all of the task's variables.
    environment: Vec<String>,
    hosts: Vec<Host>,
    /// Directories of the node that are seen elsewhere, by the paths where they are. The task does not start without.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    volumes: BTreeMap<String, PathBuf>,
    /// Whose home directory is not to be hidden.
    account: Account,
    /// Whom the task runs as, where that is not the supervisor's own account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    person: Option<Person>,
}

/// Whether files can be shown at their real paths here: by trying, in a thread whose mounts are its own.
pub fn can_mount() -> bool {
    std::thread::spawn(|| mount::probe().is_ok()).join().unwrap_or(false)
}

impl Stage {
    /// Put everything in its place below `root`; none if there is nothing.
    pub(crate) fn make(
        root: &Path,
        launch: &message::Launch,
        volumes: &[GivenVolume],
        person: Option<&Person>,
    ) -> io::Result<Option<Stage>> {
        let around = &launch.surroundings;
        let volumes: BTreeMap<_, _> = volumes
            .iter()
            .map(|volume| (volume.path.clone(), volume::directory(volume)))
            .filter(|(path, directory)| Path::new(path) != directory)
            .collect();
        let has_nothing = launch.files.is_empty() && launch.paths.is_empty() && volumes.is_empty();
        // A home is beside everything else.
        let others = Surroundings { home: None, ..around.clone() };
        if has_nothing && others == Surroundings::default() {
            return Ok(None);
        }
        // Paths that lead elsewhere would be written elsewhere.
        let all = launch.files.iter().map(|file| &file.path);
        let all = all.chain(&around.directories).chain(&around.workdir).chain(&around.environment);
        let all = all.chain(volumes.keys());
        all.into_iter().try_for_each(|path| check(path))?;
        disk::make_dir(root)?;
        for LaunchFile { path, content, executable } in &launch.files {
            write(&below(root, path), content.as_bytes(), if *executable { 0o700 } else { 0o600 })?;
        }
        // The last two are mounted on.
        for path in around.directories.iter().chain(&around.workdir).chain(volumes.keys()) {
            fs::create_dir_all(below(root, path))?;
        }
        for path in &around.environment {
            write(&below(root, path), b"", 0o600)?;
        }
        if let Some(person) = person {
            let own = launch.files.iter().map(|file| &file.path);
            let own = own.chain(&around.environment).chain(&around.directories);
            give(root, own, person.owner())?;
        }
        let files = launch.files.iter().map(|file| file.path.clone());
        Ok(Some(Stage {
            root: root.to_owned(),
            files: files.chain(around.environment.iter().cloned()).collect(),
            directories: around.directories.clone(),
            workdir: around.workdir.clone(),
            paths: launch.paths.clone(),
            front: around.front.clone(),
            environment: around.environment.clone(),
            hosts: around.hosts.clone(),
            volumes,
            // Only who has files around it asks whose home they may be in.
            account: person.map_or_else(environment::account, |person| person.account.clone()),
            person: person.cloned(),
        }))
    }

    /// Show all of it to this process and those it starts, and tell the task where it is. The process has one thread,
    /// and with `isolated` its mounts are its own already.
    pub(crate) fn enter(&self, launch: &mut Launch, isolated: bool) -> io::Result<()> {
        let shown = match self.hosts() {
            Ok(()) => mount::show(self, &launch.cwd, isolated),
            Err(error) => Err(error),
        };
        let shown = match shown {
            Err(error) if self.volumes.is_empty() => {
                crate::supervisor::complain("cannot mount, so files lie below the task's directory", &error);
                BTreeSet::new()
            }
            shown => shown?,
        };
        if let Some(path) = self.volumes.keys().find(|path| !shown.contains(*path)) {
            return Err(io::Error::other(format!("{path} cannot be mounted, as supervisor.log tells")));
        }
        for path in self.workdir.iter().filter(|path| !shown.contains(*path)) {
            let place = below(&self.root, path);
            let _ = fs::remove_dir(&place);
            make_parent(&place)?;
            match symlink(&launch.cwd, &place) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        self.tell(&Seen { stage: self, shown }, launch)
    }

    /// The host's own table of names, and what the task knows beside it.
    fn hosts(&self) -> io::Result<()> {
        if self.hosts.is_empty() {
            return Ok(());
        }
        let names: BTreeSet<&str> =
            self.hosts.iter().flat_map(|host| &host.names).map(String::as_str).collect();
        let mut table = without(&fs::read_to_string(HOSTS).unwrap_or_default(), &names);
        for Host { ip, names } in &self.hosts {
            table.push_str(&format!("{ip}\t{}\n", names.join(" ")));
        }
        write(&below(&self.root, HOSTS), table.as_bytes(), 0o644)
    }

    fn tell(&self, seen: &Seen<'_>, launch: &mut Launch) -> io::Result<()> {
        for (name, path) in &self.paths {
            launch.env.insert(name.clone(), seen.text(path));
        }
        for (name, front) in &self.front {
            let rest = launch.env.get(name).filter(|rest| !rest.is_empty()).cloned();
            let all: Vec<_> = front.iter().map(|path| seen.text(path)).chain(rest).collect();
            launch.env.insert(name.clone(), all.join(":"));
        }
        let words = launch.steps.iter_mut().map(|step| &mut step.argv);
        let own = launch.work.iter_mut().flat_map(|work| match work {
            Work::Run(processes) => processes.iter_mut().map(|process| &mut process.argv).collect(),
            Work::Wait => Vec::new(),
        });
        let moved = seen.moved();
        for word in words.chain(own).flatten() {
            for (path, place) in &moved {
                *word = replace(word, path, place);
            }
        }
        for path in &self.environment {
            // Into the file that is there, since it may be mounted.
            fs::write(below(&self.root, path), exports(&launch.env))?;
        }
        Ok(())
    }
}

/// Which paths are seen where the contract says.
struct Seen<'a> {
    stage: &'a Stage,
    shown: BTreeSet<String>,
}

impl Seen<'_> {
    /// Where something is that the contract has at this path. What holds or lies in something shown is shown.
    fn text(&self, path: &str) -> String {
        let is_shown = self
            .shown
            .iter()
            .any(|shown| Path::new(shown).starts_with(path) || Path::new(path).starts_with(shown));
        if is_shown { path.to_owned() } else { below(&self.stage.root, path).display().to_string() }
    }

    /// What is elsewhere, and where, the longest path first: it may begin with another one.
    fn moved(&self) -> Vec<(String, String)> {
        let all = self.stage.files.iter().chain(&self.stage.directories).chain(&self.stage.workdir);
        let mut moved: Vec<_> = all
            .filter(|path| !self.shown.contains(*path))
            .map(|path| (path.clone(), below(&self.stage.root, path).display().to_string()))
            .collect();
        moved.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        moved
    }
}

/// Replace a path in a word, or in a line of a shell, where it is a whole one or the beginning of a longer one.
fn replace(word: &str, path: &str, place: &str) -> String {
    let is_name = |letter: char| letter.is_alphanumeric() || "._-".contains(letter);
    let mut result = String::with_capacity(word.len());
    let mut rest = word;
    while let Some(at) = rest.find(path) {
        let (before, after) = (&rest[..at], &rest[at + path.len()..]);
        let last = before.chars().last().or_else(|| result.chars().last());
        let is_whole =
            !last.is_some_and(|letter| is_name(letter) || letter == '/') && !after.starts_with(is_name);
        result.push_str(before);
        result.push_str(if is_whole { place } else { path });
        rest = after;
    }
    result + rest
}

/// Lines by which a shell gets these variables.
fn exports(env: &BTreeMap<String, String>) -> String {
    let is_name = |name: &str| {
        name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
            && !name.starts_with(|letter: char| letter.is_ascii_digit())
    };
    env.iter()
        .filter(|(name, _)| {
            is_name(name) && !SHELLS.contains(&name.as_str()) && !name.starts_with("INTERACTIVE")
        })
        .map(|(name, value)| format!("export {name}='{}'\n", value.replace('\'', r"'\''")))
        .collect()
}

/// A table of hosts without these names: what the task is told of them is all that is true there. Distributions let a host's
/// own name mean an address that nobody else can reach.
fn without(table: &str, names: &BTreeSet<&str>) -> String {
    let mut left = String::with_capacity(table.len());
    for line in table.lines() {
        let said = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = said.split_whitespace().collect();
        match words.split_first() {
            Some((address, own)) if own.iter().any(|name| names.contains(name)) => {
                let others: Vec<&str> = own.iter().copied().filter(|name| !names.contains(name)).collect();
                if !others.is_empty() {
                    left.push_str(&format!("{address}\t{}\n", others.join(" ")));
                }
            }
            _ => left.push_str(&format!("{line}\n")),
        }
    }
    left
}

fn check(path: &str) -> io::Result<()> {
    let parts = Path::new(path).components();
    let is_plain = path.starts_with('/')
        && path.len() > 1
        && parts.skip(1).all(|part| matches!(part, Component::Normal(_)));
    if is_plain {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("`{path}` is not an absolute path of a file")))
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Give somebody what is theirs of what lies below `root`. The directories on the way to it come to stand for the machine's own,
/// the root among them: everybody enters them, and nobody but root may add a name there or take one away.
fn give<'a>(root: &Path, own: impl Iterator<Item = &'a String>, owner: Owner) -> io::Result<()> {
    open_up(root)?;
    for path in own {
        let path = below(root, path);
        if path.is_dir() { owner.give(&path)? } else { owner.give_alone(&path)? }
    }
    Ok(())
}

fn open_up(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_up(&entry.path())?;
        }
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    make_parent(path)?;
    disk::write(path, bytes)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_replaced_where_it_is_one() {
        let moved = |word: &str| replace(word, "/job/hostfile", "/t/job/hostfile");
        assert_eq!(moved("/job/hostfile"), "/t/job/hostfile");
        assert_eq!(moved("--hostfile=/job/hostfile"), "--hostfile=/t/job/hostfile");
        assert_eq!(
            moved("cat /job/hostfile; ls '/job/hostfile'"),
            "cat /t/job/hostfile; ls '/t/job/hostfile'"
        );
        for other in ["/job/hostfile2", "/my/job/hostfile", "/job/hostfile.bak", "job"] {
            assert_eq!(moved(other), other);
        }
        assert_eq!(replace("/home/work/code/run.sh", "/home/work/code", "/t"), "/t/run.sh");
    }

    #[test]
    fn a_shell_gets_every_value_as_it_is() {
        let env = [("A", "it's $HOME\n\"x\""), ("HOME", "/h"), ("BASH_FUNC_x%%", "() {}"), ("PATH", "/p")];
        let env = env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        assert_eq!(exports(&env), "export A='it'\\''s $HOME\n\"x\"'\n");
    }

    #[test]
    fn a_name_means_one_address_in_a_table() {
        let table = "127.0.0.1 localhost\n127.0.1.1\tvm.site vm # own\n10.0.0.1 n1\n\n# n1";
        let names = BTreeSet::from(["vm", "n1"]);
        assert_eq!(without(table, &names), "127.0.0.1 localhost\n127.0.1.1\tvm.site\n\n# n1\n");
        assert_eq!(without(table, &BTreeSet::new()), format!("{table}\n"));
    }

    #[test]
    fn a_path_that_leads_elsewhere_is_refused() {
        for path in ["job/hostfile", "/", "/job/../etc/passwd", ""] {
            assert!(check(path).is_err(), "{path}");
        }
        assert!(check("/pod.env").is_ok());
    }
}
