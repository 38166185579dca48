"""What it costs to have it: memory while nothing happens, the size of the binary, the time of the smallest command."""

import time
from pathlib import Path

from figure import Row
from measure import Failed, Sample, private_mb, resident_mb, run_ms, supervisors_of, wait_for

NOTES = (
    "Memory of peers: all of their processes on this machine, resident, with nothing to do; HyperQueue's with Python.",
)


def measure(bench):
    muster = bench.muster
    sample = Sample(run_ms([muster.binary, "version"], muster.environment) for _ in range(bench.runs))
    yield Row("`muster version`, p50", f"{sample.p50:.2f} ms", "≤ 5 ms", sample.p50 <= 5)
    size = Path(muster.binary).stat().st_size / 1e6
    yield Row("release binary", f"{size:.1f} MB", "≤ 64 MB", size <= 64)
    cells = {}
    for name in ("Slurm", "HyperQueue", "Ray"):
        bench.beside(name, cells, lambda peer, name=name: cells.update({name: f"{peer.resident_mb():.0f} MB"}))
    yield from idle(bench, f"with {len(muster.jobs()):,} jobs", cells)
    yield from supervisor(muster)


def idle(bench, when, cells):
    # What the last command left to do (replies, log copies, closed connections) is done by then.
    time.sleep(2)
    status = bench.muster.status()
    server = resident_mb(status["pid"])
    yield Row(f"idle server, resident, {when}", f"{server:.1f} MB", "≤ 25 MB", server <= 25, cells)
    for node in status["nodes"]:
        agent = resident_mb(node["agent_pid"])
        yield Row(f"idle agent, resident, {when}", f"{agent:.1f} MB", "≤ 15 MB", agent <= 15)


def supervisor(muster):
    folder = muster.new_folder()
    muster.command("run", "--detach", "--", muster.stamp, folder, "hold")
    try:
        wait_for("the task runs", lambda: muster.stamp_of(folder, "0"))
        time.sleep(1)
        supervisors = supervisors_of(muster.home)
        if not supervisors:
            raise Failed("no supervisor found among the processes of this home")
        private = max(private_mb(pid) for pid in supervisors)
    finally:
        muster.command("stop", "last")
    yield Row("supervisor, private", f"{private:.2f} MB", "≤ 1 MB", private <= 1)


FIGURES = {"footprint": measure}
