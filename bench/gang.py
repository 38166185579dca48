"""Gangs: sixteen tasks that start together and end together."""

from figure import Row
from measure import Failed, Sample, spawn, wait, wait_for, wait_until_gone
from muster import FOLDER

GANG = 16
NOTES = (
    "HyperQueue and Ray have no gang of processes on one machine. Slurm's is `srun -n16 --overcommit`, "
    "for its end with `--kill-on-bad-exit`.",
)


def measure(bench):
    muster = bench.muster
    mine = [muster.binary, "run", "--nodes", str(GANG), "--"]
    starts = Sample(muster.start_ms([*mine, muster.stamp, FOLDER, "exit"], ranks=GANG) for _ in range(bench.few))
    ends = Sample(one_rank_dies(muster, mine, muster.environment) for _ in range(bench.few))
    start_cells, end_cells = {}, {}

    def beside_slurm(slurm):
        srun = [slurm.srun, "--quiet", f"-n{GANG}", "--overcommit"]
        command = [*srun, muster.stamp, FOLDER, "exit"]
        theirs = Sample(muster.start_ms(command, slurm.environment, GANG) for _ in range(bench.few))
        start_cells["Slurm"] = spread(theirs)
        command = [*srun, "--kill-on-bad-exit=1"]
        theirs = Sample(one_rank_dies(muster, command, slurm.environment) for _ in range(bench.few))
        end_cells["Slurm"] = spread(theirs)

    bench.beside("Slurm", start_cells, beside_slurm)
    yield Row(f"gang of {GANG} → all running", spread(starts), "≤ 250 ms", starts.most <= 250, start_cells)
    yield Row(f"one rank of {GANG} dies → gang gone", spread(ends), "≤ 300 ms", ends.most <= 300, end_cells)


def spread(sample):
    return f"p50 {sample.p50:.1f} ms, worst {sample.most:.1f} ms"


def one_rank_dies(muster, command, environment):
    """From the last moment of a rank until every other one is gone, in milliseconds."""
    folder = muster.new_folder()
    _, client = spawn([str(part) for part in [*command, muster.stamp, folder, "victim"]], environment)
    ranks = [str(rank) for rank in range(GANG)]
    wait_for("the gang runs", lambda: all(muster.stamp_of(folder, rank) for rank in ranks))
    others = [muster.stamp_of(folder, rank)[1] for rank in ranks if rank != "3"]
    (folder / "go").touch()
    gone = wait_until_gone(others)
    died, _ = wait_for("the rank's last word", lambda: muster.stamp_of(folder, "died"))
    if (status := wait(client)) == 0:
        raise Failed(f"the client ended with {status}; the rank had ended with 1")
    return (gone - died) / 1e6


FIGURES = {"gangs": measure}
