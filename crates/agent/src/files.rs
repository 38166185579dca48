//! Where a task's files can be read, whatever its working directory is made of and whether it lives.

pub(crate) mod collect;
pub(crate) mod serve;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_model::TaskId;
use rustix::fs::{Mode, OFlags, fstatfs};

use crate::account::{self, Person};
use crate::bundle::Cache;
use crate::overlay;
use crate::prepare::directory;
use crate::record::TaskDir;
use crate::supervisor::{STARTED, Started, read};
use crate::tree::Process;

/// What the kernel calls an overlay.
const OVERLAY: i64 = 0x794c_7630;

/// A task's directories, to be read from. What is in them was made by the task: names may be links to anywhere.
#[derive(Debug)]
pub(crate) struct Files {
    /// Where it runs; a directory of the node itself if it runs in place.
    pub(crate) work: Directory,
    /// Where it leaves results.
    pub(crate) output: Directory,
    /// With whose rights they are read; the agent's own, if absent.
    reader: Option<Person>,
}

impl Files {
    /// Read them. What is in them is whatever the task has made.
    pub(crate) fn read<T>(&self, read: impl FnOnce() -> T) -> io::Result<T> {
        account::act_as(self.reader.as_ref(), read)
    }
}

/// A directory that is open.
#[derive(Debug)]
pub(crate) struct Directory {
    descriptor: OwnedFd,
    /// What it is part of goes with this.
    _mount: Option<OwnedFd>,
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Where the files of this node's tasks are read.
#[derive(Debug)]
pub(crate) struct Reader {
    tasks: PathBuf,
    cache: Arc<Cache>,
}

impl Reader {
    pub(crate) fn new(tasks: PathBuf, cache: Arc<Cache>) -> Reader {
        Reader { tasks, cache }
    }

    /// Where everything of a task is.
    pub(crate) fn dir(&self, task: &TaskId) -> TaskDir {
        TaskDir::new(&self.tasks, task)
    }

    /// A task's directories; none if nothing of it is here.
    pub(crate) fn open(&self, task: &TaskId) -> io::Result<Option<Files>> {
        match open(&self.dir(task), &self.cache) {
            Ok(files) => Ok(Some(files)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Opens the directories of a task that runs or is over, also one that was forgotten.
fn open(dir: &TaskDir, cache: &Cache) -> io::Result<Files> {
    let record = dir.contents()?.record;
    let reader = record.as_ref().and_then(|record| record.account()).map(Person::of_known).transpose()?;
    let in_place = record.as_ref().and_then(|record| record.prepare.in_place.as_ref());
    let in_place = in_place.map(|path| PathBuf::from(directory(path, reader.as_ref())));
    let bundle = record.and_then(|record| record.bundle()).filter(|_| dir.upper().is_dir());
    let work = match (in_place, bundle) {
        // It may be anybody's directory, so whoever may not go there does not get there by us.
        (Some(path), _) => account::act_as(reader.as_ref(), || plain(&path))??,
        (None, Some(bundle)) => match live(dir) {
            Some(directory) => directory,
            None => {
                let mount = overlay::view(&dir.upper(), &cache.path(&bundle))?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let descriptor = rustix::fs::openat(&mount, ".", flags, Mode::empty())?;
                Directory { descriptor, _mount: Some(mount) }
            }
        },
        (None, None) => plain(&dir.work())?,
    };
    Ok(Files { work, output: plain(&dir.output())?, reader })
}

fn plain(path: &Path) -> io::Result<Directory> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(Directory { descriptor: rustix::fs::open(path, flags, Mode::empty())?, _mount: None })
}

/// The working directory as the task's own processes see it.
fn live(dir: &TaskDir) -> Option<Directory> {
    let started = read::<Started>(dir.path(), STARTED).ok()??;
    [started.supervisor, started.task].into_iter().find_map(|process| seen_by(&process, &dir.work()))
}

fn seen_by(process: &Process, path: &Path) -> Option<Directory> {
    let path = path.strip_prefix("/").ok()?;
    let directory = plain(&PathBuf::from(format!("/proc/{}/root", process.pid)).join(path)).ok()?;
    // Looked at afterwards: the number may have become another process's, and that sees an empty directory here.
    let is_overlay = fstatfs(&directory).is_ok_and(|stat| stat.f_type == OVERLAY);
    (is_overlay && process.is_alive()).then_some(directory)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::io::Read;
    use std::process::{Child, Command, Stdio};

    use jiff::Timestamp;
    use muster_link::message::Prepare;
    use muster_model::BundleId;
    use muster_model::task::TaskEnd;
    use rustix::process::Pid;
    use tempfile::TempDir;

    use super::*;
    use crate::bundle::Key;
    use crate::disk;
    use crate::record::{Ended, Record};
    use crate::supervisor::write;
    use crate::tree::boot_id;

    struct Node {
        _home: TempDir,
        cache: Cache,
        dir: TaskDir,
        bundle: Key,
    }

    /// A node with a bundle of three files and a task that may show it.
    fn node() -> Node {
        let home = tempfile::tempdir().unwrap();
        let cache = Cache::open(home.path().join("cache: a,b\\c"), "boot").unwrap();
        let bundle = Key { id: BundleId::from_digest(&"1".repeat(64)).unwrap(), owner: None };
        let tree = cache.path(&bundle);
        fs::create_dir_all(tree.join("code")).unwrap();
        for name in ["stays", "goes", "code/module"] {
            fs::write(tree.join(name), "old").unwrap();
        }
        let task = "task0.job_0123456789.1".parse().unwrap();
        let dir = TaskDir::new(home.path(), &task);
        let prepare = Prepare {
            task,
            bundle: Some(bundle.id.clone()),
            previous: None,
            outputs: vec![],
            in_place: None,
            goes_on: false,
            ports: 0,
            shared_port: None,
            devices: vec![],
            memory_bytes: None,
            account: None,
            volumes: vec![],
            disk: Default::default(),
        };
        for made in [dir.path().to_owned(), dir.work(), dir.output()] {
            disk::make_dir(&made).unwrap();
        }
        dir.write(&Record::new(prepare, None)).unwrap();
        Node { _home: home, cache, dir, bundle }
    }

    fn listed(directory: &Directory) -> BTreeMap<String, String> {
        let path =
            PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&directory.as_fd())));
        let mut found = BTreeMap::new();
        let mut waiting = vec![path.clone()];
        while let Some(at) = waiting.pop() {
            for entry in fs::read_dir(&at).unwrap() {
                let entry = entry.unwrap().path();
                if entry.is_dir() {
                    waiting.push(entry);
                } else {
                    let name = entry.strip_prefix(&path).unwrap().to_str().unwrap().to_owned();
                    found.insert(name, fs::read_to_string(&entry).unwrap());
                }
            }
        }
        found
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_directory_of_its_own_is_read_as_it_is() {
        let node = node();
        fs::write(node.dir.work().join("file"), "mine").unwrap();
        fs::write(node.dir.output().join("result"), "7").unwrap();
        let files = open(&node.dir, &node.cache).unwrap();
        assert_eq!(listed(&files.work), map(&[("file", "mine")]));
        assert_eq!(listed(&files.output), map(&[("result", "7")]));
    }

    #[test]
    fn an_overlay_is_read_as_its_task_saw_it_while_it_runs_and_when_it_is_over() {
        let node = node();
        assert!(overlay::is_possible(node.dir.path()), "this test mounts an overlay: run it as root");
        for made in [node.dir.upper(), node.dir.scratch()] {
            disk::make_dir(&made).unwrap();
        }
        let overlay = overlay::Overlay {
            lower: node.cache.path(&node.bundle),
            upper: node.dir.upper(),
            scratch: node.dir.scratch(),
        };
        let mut child = entered(&overlay, &node.dir.work());
        let changed = map(&[("added", "new\n"), ("renamed/module", "old\n"), ("stays", "old")]);
        let process = Process::of(Pid::from_child(&child)).unwrap();
        let started = Started {
            format: 1,
            boot_id: boot_id().unwrap(),
            supervisor: process,
            task: process,
            step: 0,
            started_at: Timestamp::now(),
            pipes: [0, 0],
        };
        write(node.dir.path(), STARTED, &started).unwrap();
        assert!(fs::read_dir(node.dir.work()).unwrap().next().is_none(), "nobody else sees it");
        let files = open(&node.dir, &node.cache).unwrap();
        assert!(files.work._mount.is_none(), "it is the task's own");
        assert_eq!(listed(&files.work), changed);
        drop(files);
        child.kill().unwrap();
        child.wait().unwrap();
        let files = open(&node.dir, &node.cache).unwrap();
        assert_eq!(listed(&files.work), changed);
        let end = TaskEnd::new(None, Some(0));
        node.dir.write_ended(&Ended { end, at: Timestamp::now(), started_at: None, outputs: None }).unwrap();
        node.dir.forget().unwrap();
        assert_eq!(listed(&open(&node.dir, &node.cache).unwrap().work), changed);
        assert_eq!(fs::read_to_string(node.cache.path(&node.bundle).join("goes")).unwrap(), "old");
    }

    /// A process that sees the overlay there, has changed it, and waits to be killed.
    #[expect(unsafe_code, reason = "a process of another namespace can only be made between fork and exec")]
    fn entered(overlay: &overlay::Overlay, target: &Path) -> Child {
        use std::os::unix::process::CommandExt;
        let (overlay, target) = (overlay.clone(), target.to_owned());
        let script =
            "echo new > added; rm goes; echo >> code/module; mv code renamed; echo ready; exec sleep 1000";
        let mut command = Command::new("sh");
        command.args(["-ec", &format!("cd {}; {script}", target.display())]).stdout(Stdio::piped());
        // SAFETY: it allocates, which a child of a process with threads must not rely on; the allocator of this system
        // survives a fork, and this is a test.
        unsafe { command.pre_exec(move || overlay.enter(&target)) };
        let mut child = command.spawn().unwrap();
        let mut ready = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        child
    }
}
