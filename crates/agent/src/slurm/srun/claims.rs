//! What the steps of a job have taken for themselves, so that several at once do not get the same GPUs, and one that wants
//! CPUs of its own waits for them.
//!
//! Each step has a file in the task's directory, `steps/NUMBER`, that says what it has, and a lock on it for as long as it
//! lives: however it ends, the lock goes with it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, getpid};
use serde::{Deserialize, Serialize};

use super::super::TASK_DIR;

/// Nothing tells of the end of another step but its lock.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What one step has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    pid: i32,
    nodes: BTreeMap<usize, Share>,
}

/// What it has of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Share {
    pub cpus: u32,
    /// The GPUs, counted from the task's first.
    pub gpus: Vec<u32>,
}

/// What a step wants of each of its nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    pub cpus: u32,
    pub gpus: u32,
}

/// A step's number, and what it was given. What it was given is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    pub number: u32,
    /// Its nodes, each with what it has of it.
    pub nodes: Vec<(usize, Share)>,
    _lock: File,
    path: PathBuf,
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// What there is to be had.
#[derive(Debug, Clone)]
pub(super) struct House<'a> {
    pub cpus: &'a [u32],
    pub gpus: u32,
}

/// Takes a number and as many nodes as wanted out of these, with the wish on each. Waits for other steps if it must.
pub(super) fn take(
    dir: &Path,
    house: &House,
    among: &[usize],
    count: usize,
    wish: &dyn Fn(usize) -> Wish,
    on_wait: &mut dyn FnMut(),
) -> Result<Held, String> {
    let steps = dir.join("steps");
    let io = |error: io::Error| format!("{}: {error}", steps.display());
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&steps).map_err(io)?;
    // Whether it could be with nobody else there.
    choose(&BTreeMap::new(), house, among, count, wish)
        .ok_or("More processors or GPUs requested than permitted")?;
    let mut is_told = false;
    loop {
        let guard = open(&steps.join("lock")).map_err(io)?;
        flock(&guard, FlockOperation::LockExclusive).map_err(|error| io(error.into()))?;
        let taken = taken(&steps).map_err(io)?;
        if let Some(nodes) = choose(&taken, house, among, count, wish) {
            return hold(&steps, &guard, nodes).map_err(io);
        }
        drop(guard);
        if !std::mem::replace(&mut is_told, true) {
            on_wait();
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// The same beside all others, whatever they have; and it keeps nothing from them.
pub(super) fn overlap(
    dir: &Path,
    house: &House,
    among: &[usize],
    count: usize,
    wish: &dyn Fn(usize) -> Wish,
) -> Result<Held, String> {
    let shared = choose(&BTreeMap::new(), house, among, count, wish)
        .ok_or("More processors or GPUs requested than permitted")?;
    let nothing = |_| Wish { cpus: 0, gpus: 0 };
    let mut held = take(dir, house, among, count, &nothing, &mut || ())?;
    held.nodes = shared;
    Ok(held)
}

/// The `srun`s that run in this task.
pub(crate) fn running() -> Vec<Pid> {
    let Some(dir) = std::env::var_os(TASK_DIR) else { return Vec::new() };
    let claims = claims(&Path::new(&dir).join("steps")).unwrap_or_default();
    claims.into_iter().filter_map(|claim| Pid::from_raw(claim.pid)).collect()
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn hold(steps: &Path, mut guard: &File, nodes: Vec<(usize, Share)>) -> io::Result<Held> {
    // The number of the next one is in the file that guards all of them.
    let mut text = String::new();
    guard.read_to_string(&mut text)?;
    let number = text.trim().parse().unwrap_or(0);
    rustix::fs::ftruncate(guard, 0)?;
    rustix::fs::seek(guard, rustix::fs::SeekFrom::Start(0))?;
    guard.write_all(format!("{}\n", number + 1).as_bytes())?;
    let path = steps.join(number.to_string());
    let mut file = open(&path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let claim = Claim { pid: getpid().as_raw_nonzero().get(), nodes: nodes.iter().cloned().collect() };
    file.write_all(&serde_json::to_vec(&claim)?)?;
    Ok(Held { number, nodes, _lock: file, path })
}

/// What is taken of each node. Files of steps that are gone go too.
fn taken(steps: &Path) -> io::Result<BTreeMap<usize, Share>> {
    let mut taken: BTreeMap<usize, Share> = BTreeMap::new();
    for claim in claims(steps)? {
        for (node, share) in claim.nodes {
            let all = taken.entry(node).or_default();
            all.cpus = all.cpus.saturating_add(share.cpus);
            all.gpus.extend(share.gpus);
        }
    }
    Ok(taken)
}

fn claims(steps: &Path) -> io::Result<Vec<Claim>> {
    let mut claims = Vec::new();
    for entry in fs::read_dir(steps)? {
        let path = entry?.path();
        let is_number = path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()).is_some();
        let Some(mut file) = is_number.then(|| File::open(&path).ok()).flatten() else { continue };
        if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
            let _ = fs::remove_file(&path);
            continue;
        }
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        claims.extend(serde_json::from_str::<Claim>(&text));
    }
    Ok(claims)
}

/// The first nodes that have room.
fn choose(
    taken: &BTreeMap<usize, Share>,
    house: &House,
    among: &[usize],
    count: usize,
    wish: &dyn Fn(usize) -> Wish,
) -> Option<Vec<(usize, Share)>> {
    let mut chosen = Vec::new();
    for node in among {
        let Wish { cpus, gpus } = wish(chosen.len());
        let used = taken.get(node).cloned().unwrap_or_default();
        let free: Vec<u32> =
            (0..house.gpus).filter(|gpu| !used.gpus.contains(gpu)).take(gpus as usize).collect();
        let has_cpus =
            cpus == 0 || used.cpus.saturating_add(cpus) <= house.cpus.get(*node).copied().unwrap_or(1);
        if has_cpus && free.len() == gpus as usize {
            chosen.push((*node, Share { cpus, gpus: free }));
            if chosen.len() == count {
                return Some(chosen);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn give(dir: &Path, count: usize, cpus: u32, gpus: u32) -> Result<Held, String> {
        let house = House { cpus: &[2, 2], gpus: 4 };
        take(dir, &house, &[0, 1], count, &|_| Wish { cpus, gpus }, &mut || panic!("it should not wait"))
    }

    #[test]
    fn steps_at_once_have_gpus_of_their_own_on_the_first_nodes_with_room() {
        let dir = tempfile::tempdir().unwrap();
        let held: Vec<Held> = (0..3).map(|_| give(dir.path(), 1, 1, 2).unwrap()).collect();
        let nodes: Vec<_> = held.iter().map(|held| (held.nodes[0].0, held.nodes[0].1.gpus.clone())).collect();
        assert_eq!(nodes, [(0, vec![0, 1]), (0, vec![2, 3]), (1, vec![0, 1])]);
        assert_eq!(held.iter().map(|held| held.number).collect::<Vec<_>>(), [0, 1, 2]);
        drop(held);
        let next = give(dir.path(), 2, 2, 4).unwrap();
        assert_eq!((next.number, next.nodes.len()), (3, 2));
    }

    #[test]
    fn more_than_there_is_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        assert!(
            give(dir.path(), 1, 3, 0).is_err()
                && give(dir.path(), 1, 0, 5).is_err()
                && give(dir.path(), 3, 0, 0).is_err()
        );
    }

    #[test]
    fn who_finds_no_room_waits_for_the_one_who_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = give(dir.path(), 2, 2, 0).unwrap();
        let (house, mut held) = (House { cpus: &[2, 2], gpus: 4 }, Some(first));
        let wish = |_| Wish { cpus: 1, gpus: 0 };
        let second = take(dir.path(), &house, &[0, 1], 1, &wish, &mut || drop(held.take())).unwrap();
        assert_eq!(second.number, 1);
        assert!(held.is_none());
    }
}
