//! The cluster's machines, as `sinfo` lists them. Pure.

use std::collections::BTreeMap;

use super::excerpt::{SENTENCE, excerpt};
use super::job::SEPARATOR;
use crate::{Amounts, Offer};

const FIELDS: [&str; 9] = [
    "NodeList",
    "Partition",
    "StateComplete",
    "CPUsState",
    "Memory",
    "AllocMem",
    "Gres",
    "GresUsed",
    "Reason",
];
const MIB: u64 = 1 << 20;
/// Pairs of a node and a partition. The largest sites have ten thousand nodes.
const MOST_LINES: usize = 100_000;
/// The same for the nodes of one job, which the gate of its owner lists.
const MOST_OF_A_JOB: usize = 10_000;
/// Kinds of Slurm's generic resources that are devices here; `shard` and `mps` are parts of them.
const DEVICES: [&str; 2] = ["gpu", "npu"];
/// Words in a node's state that mean that it takes nothing new.
const UNUSABLE: [&str; 7] = ["down", "drain", "fail", "maint", "reboot", "power", "unknown"];

/// One line for each node and partition: two calls of the controller.
pub(super) fn sinfo() -> Vec<String> {
    let fields: Vec<_> = FIELDS.iter().map(|name| format!("{name}:{SEPARATOR}")).collect();
    let words = ["sinfo", "--local", "--all", "--noheader", "--Node", "--Format", &fields.join(",")];
    words.map(String::from).to_vec()
}

/// The same of these machines alone.
pub(super) fn sinfo_of(hosts: &[String]) -> Vec<String> {
    let mut words = sinfo();
    words.push(format!("--nodes={}", hosts.join(",")));
    words
}

/// The machine that is out of order, if it is one of several: the first that Slurm has as down. If all are, they may have been
/// taken down together, and none is to blame.
pub(super) fn failed(output: &str) -> Option<String> {
    let machines = read_lines(output.lines().take(MOST_OF_A_JOB));
    let is_down = |offer: &Offer| {
        offer.state.ends_with('*') || ["down", "fail"].iter().any(|word| offer.state.contains(word))
    };
    let (down, up): (Vec<Offer>, Vec<Offer>) = machines.into_iter().partition(is_down);
    (!up.is_empty() || down.len() == 1).then_some(())?;
    down.into_iter().next().map(|offer| offer.name)
}

/// The machines, in Slurm's order.
pub(super) fn read(output: &str) -> Vec<Offer> {
    read_lines(output.lines().take(MOST_LINES))
}

fn read_lines<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<Offer> {
    let (mut offers, mut indexes) = (Vec::<Offer>::new(), BTreeMap::new());
    for line in lines {
        let fields: Vec<&str> = line.split(SEPARATOR).map(str::trim).collect();
        let [name, partition, rest @ ..] = fields.as_slice() else { continue };
        let place = excerpt(partition.trim_end_matches('*'), SENTENCE);
        let is_default = partition.ends_with('*');
        if let Some(known) = indexes.get(name).and_then(|index: &usize| offers.get_mut(*index)) {
            let at = if is_default { 0 } else { known.places.len() };
            known.places.insert(at, place);
        } else if let Some(offer) = offer(name, place, rest) {
            indexes.insert(*name, offers.len());
            offers.push(offer);
        }
    }
    offers
}

fn offer(name: &str, place: String, fields: &[&str]) -> Option<Offer> {
    let [state, cpus, memory, used_memory, gres, used_gres, reason, ..] = fields else { return None };
    // Allocated, idle, other, and all.
    let cpus: Vec<u64> = cpus.split('/').filter_map(|count| count.parse().ok()).collect();
    let (idle, all) = (cpus.get(1).copied().unwrap_or(0), cpus.get(3).copied().unwrap_or(0));
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    let (memory, used_memory) = (number(memory), number(used_memory));
    let total = Amounts {
        cpu_millis: all.saturating_mul(1000),
        memory_bytes: memory.saturating_mul(MIB),
        devices: devices(gres),
    };
    let state = excerpt(state, SENTENCE).to_ascii_lowercase();
    // A machine that does not answer has a star.
    let is_usable = !state.ends_with('*') && !UNUSABLE.iter().any(|word| state.contains(word));
    let mut free = Amounts::default();
    if is_usable {
        free.cpu_millis = idle.saturating_mul(1000);
        free.memory_bytes = memory.saturating_sub(used_memory).saturating_mul(MIB);
        let used = devices(used_gres);
        let left = |(name, count): (&String, &u32)| {
            (name.clone(), count.saturating_sub(used.get(name).copied().unwrap_or(0)))
        };
        free.devices = total.devices.iter().map(left).collect();
    }
    let note = Some(*reason).filter(|reason| !matches!(*reason, "" | "none" | "(null)"));
    let note = note.map(|reason| excerpt(reason, SENTENCE));
    Some(Offer {
        name: excerpt(name, SENTENCE),
        node: None,
        places: vec![place],
        state,
        total,
        free,
        note,
        hidden: None,
    })
}

/// `gpu:h100:8(S:0-1),npu:2` by type.
fn devices(gres: &str) -> BTreeMap<String, u32> {
    let mut devices = BTreeMap::new();
    for entry in split(gres) {
        let entry = entry.split('(').next().unwrap_or_default();
        let mut words = entry.split(':');
        let Some(kind) = words.next().filter(|kind| DEVICES.contains(kind)) else { continue };
        let rest: Vec<&str> = words.collect();
        let (name, count) = match rest.as_slice() {
            [] => (kind, 1),
            [count] => match count.parse() {
                Ok(count) => (kind, count),
                Err(_) => (*count, 1),
            },
            [model, count, ..] => (*model, count.parse().unwrap_or(0)),
        };
        let sum: &mut u32 = devices.entry(name.to_owned()).or_insert(0);
        *sum = sum.saturating_add(count);
    }
    devices
}

/// At commas outside of parentheses: `gpu:2(IDX:0,3)`.
fn split(gres: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0_u32, 0);
    for (at, letter) in gres.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&gres[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&gres[from..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(pairs: &[(&str, u32)]) -> BTreeMap<String, u32> {
        pairs.iter().map(|(name, count)| (name.to_string(), *count)).collect()
    }

    #[test]
    fn a_real_cluster_is_read_and_what_cannot_be_had_is_not_free() {
        let said = include_str!("golden/sinfo.txt").replace('|', &SEPARATOR.to_string());
        let offers = read(&said);
        let names: Vec<_> = offers.iter().map(|offer| offer.name.as_str()).collect();
        assert_eq!(names, ["n1", "n2", "n3", "n4"]);
        let [mixed, full, drained, idle] = offers.as_slice() else { panic!("there are four") };
        assert_eq!(mixed.places, ["main", "short", "low"]);
        assert_eq!(
            (mixed.state.as_str(), mixed.free.cpu_millis, mixed.total.cpu_millis),
            ("mixed", 7000, 8000)
        );
        assert_eq!(mixed.free.memory_bytes, 3000 * MIB);
        assert_eq!(mixed.free.devices, counted(&[("gpu", 5)]));
        assert_eq!((full.free.cpu_millis, full.free.devices.clone()), (0, counted(&[("gpu", 0)])));
        assert_eq!(drained.note.as_deref(), Some("bad fan, ask Jo"));
        assert_eq!(drained.free, Amounts::default());
        assert_eq!((idle.free.clone(), idle.note.clone()), (idle.total.clone(), None));
    }

    #[test]
    fn devices_are_counted_by_type() {
        let cases: &[(&str, &[(&str, u32)])] = &[
            ("", &[]),
            ("(null)", &[]),
            ("gpu:8", &[("gpu", 8)]),
            ("gpu", &[("gpu", 1)]),
            ("gpu:h100:8(S:0-1)", &[("h100", 8)]),
            ("gpu:a100:2(IDX:0,3),gpu:v100:1(IDX:4),shard:8", &[("a100", 2), ("v100", 1)]),
            ("gpu:4294967295,gpu:1", &[("gpu", u32::MAX)]),
            ("npu:ascend910b:8,gpu:0", &[("ascend910b", 8), ("gpu", 0)]),
        ];
        for (text, expected) in cases {
            assert_eq!(devices(text), counted(expected), "{text}");
        }
    }

    #[test]
    fn the_machine_that_failed_is_the_one_that_is_down() {
        let line = |name: &str, state: &str| {
            let fields = [name, "main*", state, "0/8/0/8", "1", "0", "", "", "none", ""];
            fields.join(&SEPARATOR.to_string())
        };
        let of = |states: &[(&str, &str)]| {
            let lines: Vec<String> = states.iter().map(|(name, state)| line(name, state)).collect();
            failed(&lines.join("\n"))
        };
        assert_eq!(of(&[("n1", "idle"), ("n2", "down*")]).as_deref(), Some("n2"));
        assert_eq!(of(&[("n1", "mixed"), ("n2", "allocated*")]).as_deref(), Some("n2"), "it does not answer");
        assert_eq!(of(&[("n1", "idle+drain"), ("n2", "idle")]), None);
        assert_eq!(of(&[("n1", "down")]).as_deref(), Some("n1"));
        assert_eq!(of(&[("n1", "down*"), ("n2", "down*")]), None);
        assert_eq!(of(&[]), None);
        let many = vec![("n1", "idle"); MOST_OF_A_JOB];
        assert_eq!(of(&[many.as_slice(), &[("n2", "down")]].concat()), None, "no job has so many");
    }

    #[test]
    fn the_default_partition_comes_first() {
        let line = |partition: &str| {
            ["n1", partition, "down*", "0/0/8/8", "1", "0", "", "", "Not responding", ""]
                .join(&SEPARATOR.to_string())
        };
        let offers = read(&[line("b"), line("c"), line("a*")].join("\n"));
        assert_eq!(offers[0].places, ["a", "b", "c"]);
        assert_eq!((offers[0].free.cpu_millis, offers[0].note.as_deref()), (0, Some("Not responding")));
    }
}
