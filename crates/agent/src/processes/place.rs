//! A directory for each process that wants one of its own, in which it finds what is in the task's.
//!
//! Frameworks that write into their working directory under fixed names (MindSpore's graphs, Ascend's logs) need one for
//! each process, while scripts and data lie in the task's own. Links make both true, at no cost of space.

use std::collections::HashSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use muster_model::launch::Process;

/// Make the directories that these processes want, below `work`.
pub(super) fn make(work: &Path, processes: &[Process]) -> io::Result<()> {
    let dirs: Vec<PathBuf> = processes
        .iter()
        .filter_map(|process| process.dir.as_deref())
        .map(below)
        .collect::<io::Result<_>>()?;
    if dirs.is_empty() {
        return Ok(());
    }
    // A process has no use for its neighbours' directories, nor for its own within itself.
    let own: HashSet<_> = dirs.iter().filter_map(|dir| dir.iter().next()).collect();
    let mut names = Vec::new();
    for entry in fs::read_dir(work)? {
        names.push(entry?.file_name());
    }
    names.retain(|name| !own.contains(name.as_os_str()));
    for dir in &dirs {
        fs::create_dir_all(work.join(dir))?;
        let up: PathBuf = dir.iter().map(|_| "..").collect();
        for name in &names {
            match symlink(up.join(name), work.join(dir).join(name)) {
                // What is there is from an earlier attempt in the same place, or the user's own.
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// The directory, which must not lead out of the task's.
fn below(dir: &str) -> io::Result<PathBuf> {
    let path = Path::new(dir);
    let is_below = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let clean: PathBuf = path.components().filter(|part| *part != Component::CurDir).collect();
    if !is_below || clean.as_os_str().is_empty() {
        let message = format!("a process's directory `{dir}` is not below the working directory");
        return Err(io::Error::new(ErrorKind::InvalidInput, message));
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes(dirs: &[&str]) -> Vec<Process> {
        dirs.iter().map(|dir| Process { dir: Some((*dir).into()), ..Process::new(Vec::new()) }).collect()
    }

    #[test]
    fn each_has_what_the_task_has_and_not_what_its_neighbours_have() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("train.py"), "code").unwrap();
        fs::create_dir_all(home.path().join("data")).unwrap();
        for _ in 0..2 {
            make(home.path(), &processes(&["device0", "device1", "deep/er"])).unwrap();
        }
        for dir in ["device0", "./device1", "deep/er"] {
            let dir = home.path().join(dir);
            let mut names: Vec<_> =
                fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            assert_eq!(names, ["data", "train.py"]);
            assert_eq!(fs::read_to_string(dir.join("train.py")).unwrap(), "code");
            fs::write(dir.join("data/seen"), "").unwrap();
        }
        assert!(home.path().join("data/seen").exists());
    }

    #[test]
    fn what_is_there_stays_and_nothing_leads_out() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("a"), "outer").unwrap();
        fs::create_dir(home.path().join("own")).unwrap();
        fs::write(home.path().join("own/a"), "inner").unwrap();
        make(home.path(), &processes(&["own"])).unwrap();
        assert_eq!(fs::read_to_string(home.path().join("own/a")).unwrap(), "inner");
        for dir in ["..", "a/../..", "/tmp", "", "."] {
            let error = make(home.path(), &processes(&[dir])).unwrap_err();
            assert!(error.to_string().contains("working directory"), "{dir}: {error}");
        }
    }
}
