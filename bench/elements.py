"""An array of short elements as one job, until the last has ended."""

import os
import subprocess
import time

from figure import Row
from many import speed
from measure import Failed

ELEMENTS = 10_000
FEW = 500
NOTES = (
    "Arrays: one process is started for each element, one at a time on each core for all three. Muster has the job on "
    "disk before it starts, and of each element its log, its exit code and when it ran. HyperQueue's is one job of as "
    "many tasks, submitted by a client that is connected already, to a server without a journal, without output; its "
    "end is seen to the second. `xargs -P` keeps nothing.",
)


def muster_s(muster, count):
    began = time.monotonic()
    muster.command("run", "--array", f"1-{count}", "--cpus", "1", "--", "true")
    return time.monotonic() - began


def measure(bench):
    count = FEW if bench.quick else ELEMENTS
    muster, cores = bench.muster, os.cpu_count()
    times = sorted(muster_s(muster, count) for _ in range(3))
    seconds = times[1]
    newest = muster.jobs()[0]
    if newest["elements"]["succeeded"] != count:
        raise Failed(f"not all of them succeeded: {newest['elements']}")
    cells, found = {}, {}

    def beside_hyperqueue(hyperqueue):
        found["HyperQueue"] = hyperqueue.ask("array", count=count)["tasks_s"]
        cells["HyperQueue"] = speed(found["HyperQueue"], count)

    def beside_xargs(_):
        numbers = "\n".join(map(str, range(1, count + 1)))
        began = time.monotonic()
        subprocess.run(["xargs", "-P", str(cores), "-n1", "true"], input=numbers, text=True, check=True)
        found["xargs"] = time.monotonic() - began
        cells["plain tools"] = f"xargs -P {cores} {speed(found['xargs'], count)}"

    bench.beside("HyperQueue", cells, beside_hyperqueue)
    bench.beside("plain tools", cells, beside_xargs)
    is_fast = "HyperQueue" not in found or seconds <= found["HyperQueue"]
    yield Row(f"{count:,} `true` as one array, until it ended", speed(seconds, count), "≤ HyperQueue", is_fast, cells)
    if "HyperQueue" in found:
        ratio = found["HyperQueue"] / seconds
        yield Row("the same, against HyperQueue", f"{ratio:.1f}× as fast", "≥ 2×", ratio >= 2)


FIGURES = {"an array of short elements": measure}
