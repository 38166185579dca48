"""What the scheduler costs on a large cluster: passes, placements, memory for each job that waits, one answer to why.

The program is an example of the scheduler's crate, in the binary's profile: no server, no database, one thread.
"""

import json
import subprocess
from pathlib import Path

from figure import Row
from measure import Failed

NOTES = (
    "Scheduler: 10,000 nodes of 8 devices; 100,000 jobs of 50 workspaces, all with quotas of CPUs, memory and devices,"
    " and 1,000 users. Where all needs are different, no two jobs ask for the same CPUs and memory. Times are what its"
    " one thread had of a processor; the worst of all passes is held against the goal.",
)
# What a figure is called there, and here; its goal, and the most that meets it.
TIMES = {
    "a pass that fills the cluster, ms": ("pass that fills a cluster", 100),
    "a pass after a restart, ms": ("pass after a restart", 100),
    "a pass on a full cluster, one job has ended, ms": ("pass on a full cluster", 100),
    "why a job waits, ms": ("why a job waits", 200),
}
RATE = "simulated placements for each second"
MEMORY = "memory for each job that waits, bytes"


def measure(bench):
    program = Path(bench.muster.binary).parent / "examples/figures"
    if not program.is_file():
        raise Failed(f"{program} does not exist: `make bench` builds it")
    sizes = ["100", "2000"] if bench.quick else ["10000", "100000"]
    done = subprocess.run([program, *sizes], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{program} failed: {done.stderr.strip()}")
    for line in done.stdout.splitlines():
        told = json.loads(line)
        yield from row(told)


def row(told):
    median, worst = told["median"], told["worst"]
    title = f"scheduler, needs {told['needs']}"
    if told["figure"] in TIMES:
        name, most = TIMES[told["figure"]]
        text = f"p50 {median:.1f} ms, worst {worst:.1f} ms"
        yield Row(f"{title}: {name}", text, f"≤ {most} ms", worst <= most)
    elif told["figure"] == RATE:
        yield Row(f"{title}: simulator", f"{worst:,.0f} placements/s", "≥ 10,000/s", worst >= 10_000)
    elif told["figure"] == MEMORY:
        yield Row(f"{title}: each job that waits", f"{worst:,.0f} B", "≤ 2 KB", worst <= 2000)


FIGURES = {"scheduler": measure}
