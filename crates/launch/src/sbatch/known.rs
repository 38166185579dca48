//! The options that `sbatch` has, and what becomes of each.

use muster_model::slurm::option::{Known, Takes};

/// What becomes of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// It is a field of the job, or says something about one.
    Set(Field),
    /// A real Slurm is given it; elsewhere it has no effect.
    Slurm,
    /// It has no effect here, and it is said.
    Nothing,
    /// It has no effect on the job at all.
    Silent,
    /// It is to come.
    Later,
    /// It would change what the script means; what to do instead.
    Refused(&'static str),
}

/// What an option sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Account,
    Array,
    Chdir,
    CpusPerGpu,
    CpusPerTask,
    Dependency,
    Error,
    Exclusive,
    Export,
    Gpus,
    GpusPerNode,
    GpusPerTask,
    Gres,
    Hold,
    JobName,
    Mem,
    MemPerCpu,
    MemPerGpu,
    Nodes,
    Ntasks,
    NtasksPerGpu,
    NtasksPerNode,
    OpenMode,
    Output,
    Partition,
    Signal,
    Time,
}

const fn known(long: &'static str, takes: Takes, meaning: Meaning) -> Known<Meaning> {
    Known { long, short: None, takes, meaning }
}

const fn lettered(long: &'static str, short: char, takes: Takes, meaning: Meaning) -> Known<Meaning> {
    Known { long, short: Some(short), takes, meaning }
}

use Field as F;
use Meaning::{Later, Nothing, Refused, Set, Silent, Slurm};
use Takes::{Maybe, Nothing as No, Value};

/// Those of Slurm 22.05, and what later ones have added.
pub(super) const KNOWN: &[Known<Meaning>] = &[
    lettered("account", 'A', Value, Set(F::Account)),
    known("acctg-freq", Value, Slurm),
    lettered("array", 'a', Value, Set(F::Array)),
    known("batch", Value, Slurm),
    known("bb", Value, Slurm),
    known("bbf", Value, Slurm),
    lettered("begin", 'b', Value, Later),
    lettered("chdir", 'D', Value, Set(F::Chdir)),
    known("cluster-constraint", Value, Slurm),
    lettered("clusters", 'M', Value, Slurm),
    known("comment", Value, Nothing),
    lettered("constraint", 'C', Value, Slurm),
    known("container", Value, Refused("container images are muster's `--image`, on engines that have them")),
    // Those of Pyxis, a plugin that many sites have.
    known("container-entrypoint", No, Slurm),
    known("container-entrypoint-log", No, Slurm),
    known("container-env", Value, Slurm),
    known("container-image", Value, Slurm),
    known("container-mount-home", No, Slurm),
    known("container-mounts", Value, Slurm),
    known("container-name", Value, Slurm),
    known("container-readonly", No, Slurm),
    known("container-remap-root", No, Slurm),
    known("container-save", Value, Slurm),
    known("container-workdir", Value, Slurm),
    known("container-writable", No, Slurm),
    known("contiguous", No, Slurm),
    lettered("core-spec", 'S', Value, Slurm),
    known("cores-per-socket", Value, Slurm),
    known("cpu-freq", Value, Slurm),
    known("cpus-per-gpu", Value, Set(F::CpusPerGpu)),
    lettered("cpus-per-task", 'c', Value, Set(F::CpusPerTask)),
    known("deadline", Value, Slurm),
    known("delay-boot", Value, Slurm),
    lettered("dependency", 'd', Value, Set(F::Dependency)),
    lettered("distribution", 'm', Value, Nothing),
    lettered("error", 'e', Value, Set(F::Error)),
    lettered("exclude", 'x', Value, Slurm),
    known("exclusive", Maybe, Set(F::Exclusive)),
    known("export", Value, Set(F::Export)),
    known(
        "export-file",
        Value,
        Refused("write the variables into the script, or give them with `muster submit --env`"),
    ),
    known("extra", Value, Nothing),
    lettered("extra-node-info", 'B', Value, Slurm),
    known("get-user-env", Maybe, Nothing),
    known("gid", Value, Refused("a job runs as whoever submits it")),
    known("gpu-bind", Value, Nothing),
    known("gpu-freq", Value, Slurm),
    lettered("gpus", 'G', Value, Set(F::Gpus)),
    known("gpus-per-node", Value, Set(F::GpusPerNode)),
    known("gpus-per-socket", Value, Refused("sockets are not counted here; write --gpus-per-node")),
    known("gpus-per-task", Value, Set(F::GpusPerTask)),
    known("gres", Value, Set(F::Gres)),
    known("gres-flags", Value, Slurm),
    known("hint", Value, Nothing),
    lettered("hold", 'H', No, Set(F::Hold)),
    known("ignore-pbs", No, Silent),
    lettered("input", 'i', Value, Refused("read the file in the script: `srun … < FILE`")),
    lettered("job-name", 'J', Value, Set(F::JobName)),
    known("kill-on-invalid-dep", Value, Silent),
    lettered("licenses", 'L', Value, Slurm),
    known("mail-type", Value, Nothing),
    known("mail-user", Value, Nothing),
    known("mcs-label", Value, Slurm),
    known("mem", Value, Set(F::Mem)),
    known("mem-bind", Value, Nothing),
    known("mem-per-cpu", Value, Set(F::MemPerCpu)),
    known("mem-per-gpu", Value, Set(F::MemPerGpu)),
    known("mincpus", Value, Slurm),
    known("network", Value, Slurm),
    known("nice", Maybe, Slurm),
    known("no-container-entrypoint", No, Slurm),
    known("no-container-mount-home", No, Slurm),
    known("no-container-remap-root", No, Slurm),
    lettered("no-kill", 'k', Maybe, Nothing),
    known("no-requeue", No, Silent),
    lettered("nodefile", 'F', Value, Slurm),
    lettered("nodelist", 'w', Value, Slurm),
    lettered("nodes", 'N', Value, Set(F::Nodes)),
    lettered("ntasks", 'n', Value, Set(F::Ntasks)),
    known("ntasks-per-core", Value, Nothing),
    known("ntasks-per-gpu", Value, Set(F::NtasksPerGpu)),
    known("ntasks-per-node", Value, Set(F::NtasksPerNode)),
    known("ntasks-per-socket", Value, Nothing),
    known("open-mode", Value, Set(F::OpenMode)),
    lettered("output", 'o', Value, Set(F::Output)),
    lettered("overcommit", 'O', No, Nothing),
    lettered("oversubscribe", 's', No, Nothing),
    known("parsable", No, Silent),
    lettered("partition", 'p', Value, Set(F::Partition)),
    known("power", Value, Slurm),
    known("prefer", Value, Slurm),
    known("priority", Value, Slurm),
    known("profile", Value, Slurm),
    known("propagate", Maybe, Nothing),
    lettered("qos", 'q', Value, Slurm),
    lettered("quiet", 'Q', No, Silent),
    known("reboot", No, Slurm),
    known("requeue", No, Nothing),
    known("reservation", Value, Slurm),
    known("signal", Value, Set(F::Signal)),
    known("sockets-per-node", Value, Slurm),
    known("spread-job", No, Slurm),
    known("stepmgr", No, Silent),
    known("switches", Value, Slurm),
    known("test-only", No, Refused("`muster submit --dry-run` checks a script")),
    known("thread-spec", Value, Slurm),
    known("threads-per-core", Value, Slurm),
    lettered("time", 't', Value, Set(F::Time)),
    known("time-min", Value, Slurm),
    known("tmp", Value, Slurm),
    known("tres-bind", Value, Nothing),
    known("tres-per-task", Value, Refused("write --cpus-per-task and --gpus-per-task")),
    known("uid", Value, Refused("a job runs as whoever submits it")),
    known("use-min-nodes", No, Silent),
    lettered("verbose", 'v', No, Silent),
    lettered(
        "wait",
        'W',
        No,
        Refused("`muster run --file SCRIPT` stays with the job, and `muster wait JOB` waits for one"),
    ),
    known("wait-all-nodes", Value, Silent),
    known("wckey", Value, Slurm),
    known(
        "wrap",
        Value,
        Refused("a script has its commands in it; `muster run -- COMMAND` runs one without"),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stand_once_and_in_order() {
        assert!(KNOWN.is_sorted_by(|one, other| one.long < other.long));
        let mut letters: Vec<char> = KNOWN.iter().filter_map(|option| option.short).collect();
        letters.sort_unstable();
        let count = letters.len();
        letters.dedup();
        assert_eq!(letters.len(), count);
    }
}
