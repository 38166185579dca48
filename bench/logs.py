"""Output: how fast what a task prints comes back to whoever started it."""

from figure import Row
from measure import Sample, run_ms

NOTES = (
    "Output is thrown away by whoever receives it; by then muster has it on disk twice (node, server), Slurm nowhere.",
)


def measure(bench):
    muster, megabytes = bench.muster, bench.log_mb
    # Lines of 80 characters, as fast as a pipe takes them.
    line = "0123456789" * 7 + "012345678"
    printing = ["sh", "-c", f"yes {line} | head -c {megabytes}M"]
    times = max(1, bench.few // 5)
    mine = Sample(run_ms([muster.binary, "run", "--", *printing], muster.environment) for _ in range(times))
    cells = {}

    def beside_slurm(slurm):
        command = [slurm.srun, "--quiet", "-n1", *printing]
        theirs = Sample(run_ms(command, slurm.environment) for _ in range(times))
        cells["Slurm"] = f"{megabytes / theirs.p50 * 1000:,.0f} MB/s"

    bench.beside("Slurm", cells, beside_slurm)
    yield Row(
        f"a task prints {megabytes} MB, until all is here", f"{megabytes / mine.p50 * 1000:,.0f} MB/s", beside=cells
    )


FIGURES = {"output": measure}
