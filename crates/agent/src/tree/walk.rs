//! The third way, for everyone without cgroups: find the tree in `/proc`, stop it so that it cannot grow, end it.
//!
//! A process belongs to the tree if it descends from the root, or if it was started with the task's id in its
//! environment, or if it descends from such a one. The supervisor adopts orphans, so while it lives nothing leaves the
//! tree; after its death the environment is what finds them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid};

use super::process::{Doomed, Process, Stat};
use super::{Killed, Root};

/// How often a process that is becoming another program is looked at, a millisecond apart: the kernel has to read that
/// program first, from a disk that may be slow.
const BECOMING_LOOKS: usize = 50;
/// How often one that has words and no environment is looked at: it may become the next program meanwhile.
const SETTLED_LOOKS: usize = 3;

pub(super) fn kill(task: &str, root: Root, deadline: Instant) -> Killed {
    kill_all(|| children(root), || members(task, root), deadline)
}

/// All that descends from the calling process, but not from these children of its.
pub(super) fn kill_but(kept: &[Process], deadline: Instant) -> Killed {
    let is_kept = |stat: &Stat| kept.contains(&stat.process);
    let found = || {
        // A task without a name is nobody's, so only descent counts.
        let mut all = members("", Root::Children);
        let mut spared: HashSet<i32> =
            all.iter().filter(|stat| is_kept(stat)).map(|stat| stat.process.pid).collect();
        // Parents may come after their children, so it is asked until nobody is added.
        loop {
            let before = spared.len();
            let theirs = all.iter().filter(|stat| spared.contains(&stat.parent)).map(|stat| stat.process.pid);
            let theirs: Vec<i32> = theirs.collect();
            spared.extend(theirs);
            if spared.len() == before {
                break;
            }
        }
        all.retain(|stat| !spared.contains(&stat.process.pid));
        all
    };
    let near = || children(Root::Children).into_iter().filter(|stat| !is_kept(stat)).collect();
    kill_all(near, found, deadline)
}

fn kill_all(near: impl Fn() -> Vec<Stat>, all: impl Fn() -> Vec<Stat>, deadline: Instant) -> Killed {
    loop {
        let doomed = stop(&near, &all, deadline);
        if doomed.is_empty() {
            return Killed::default();
        }
        doomed.signal_all(Signal::KILL);
        let survivors = doomed.wait(deadline);
        if !survivors.is_empty() || Instant::now() >= deadline {
            return Killed { survivors };
        }
    }
}

/// Stop everything, again and again until nothing new has appeared. What forks and ends faster than `/proc` is read may
/// still be missed: the supervisor knows by its children that it was, and kills again.
fn stop(near: impl Fn() -> Vec<Stat>, all: impl Fn() -> Vec<Stat>, deadline: Instant) -> Doomed {
    let mut doomed = Doomed::default();
    loop {
        let is_new = |stat: &Stat| !stat.is_dead && !doomed.contains(stat.process);
        let mut new: Vec<Process> = near().into_iter().filter(is_new).map(|stat| stat.process).collect();
        if new.is_empty() {
            new = all().into_iter().filter(is_new).map(|stat| stat.process).collect();
        }
        if new.is_empty() || Instant::now() >= deadline {
            return doomed;
        }
        for process in new {
            doomed.add(process);
            doomed.signal(process, Signal::STOP);
        }
    }
}

/// The calling process's children, if they are of the tree. One short read, so that it comes before the end of a process
/// that lives only to start the next one.
pub(super) fn children(root: Root) -> Vec<Stat> {
    let listed = match root {
        // Not every kernel has the list; the walk does without.
        Root::Children => fs::read_to_string("/proc/thread-self/children").unwrap_or_default(),
        Root::Orphans(_) => String::new(),
    };
    listed.split_ascii_whitespace().filter_map(|pid| Stat::of(pid.parse().ok()?)).collect()
}

/// The living processes of the tree.
pub(super) fn members(task: &str, root: Root) -> Vec<Stat> {
    let own = getpid().as_raw_nonzero().get();
    let all = processes();
    let mut children: HashMap<i32, Vec<Stat>> = HashMap::new();
    for stat in &all {
        children.entry(stat.parent).or_default().push(*stat);
    }
    let marker = format!("MUSTER_TASK_ID={task}");
    let is_root = |stat: &Stat| match root {
        Root::Children => stat.parent == own,
        Root::Orphans(main) => main == Some(stat.process),
    };
    let mut pending: Vec<Stat> = all
        .into_iter()
        .filter(|stat| is_root(stat) || has_in_environment(stat.process.pid, &marker))
        .collect();
    let mut seen = HashSet::from([own]);
    let mut found = Vec::new();
    while let Some(stat) = pending.pop() {
        if seen.insert(stat.process.pid) {
            pending.extend(children.get(&stat.process.pid).into_iter().flatten());
            found.push(stat);
        }
    }
    found.retain(|stat| !stat.is_dead);
    found
}

fn processes() -> Vec<Stat> {
    // Without `/proc` there is nothing to be found; the supervisor would not have started there.
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Stat::of(entry.file_name().to_str()?.parse().ok()?)).collect()
}

fn has_in_environment(pid: i32, marker: &str) -> bool {
    // That of other users' processes cannot be read, and they are not ours.
    environment(pid).split(|byte| *byte == 0).any(|entry| entry == marker.as_bytes())
}

/// A process that is just becoming another program shows neither words nor environment for a moment, as if it were
/// nobody's; so it is looked at again. One that has words may have come to them after its environment was read, which is
/// therefore read more than once. What the kernel has for itself shows nothing either, and no program.
fn environment(pid: i32) -> Vec<u8> {
    let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let mut settled = 0;
    for _ in 0..BECOMING_LOOKS {
        let environment = read("environ");
        if !environment.is_empty() || settled == SETTLED_LOOKS {
            return environment;
        }
        if !read("cmdline").is_empty() {
            settled += 1;
        } else if fs::read_link(format!("/proc/{pid}/exe")).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        } else {
            break;
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_that_becomes_another_again_and_again_is_always_found() {
        let again = "exec /bin/sh -c \"$0\" \"$0\"";
        let mut child = Command::new("/bin/sh")
            .args(["-c", again, again])
            .env_clear()
            .env("MUSTER_TASK_ID", "walk-becoming")
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let marker = "MUSTER_TASK_ID=walk-becoming";
        let missed = (0..20_000).filter(|_| !has_in_environment(pid, marker)).count();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(missed, 0);
    }
}
