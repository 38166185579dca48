"""Many short jobs, from the first submit until the last has ended."""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from figure import Row
from measure import Sample, run_ms, wait_for

SUBMITTERS = 8
DEADLINE_S = 600
NOTES = (
    "Short jobs: muster and `sbatch` get one command for each job, from 8 at a time, and keep each on disk before they "
    "answer. HyperQueue's are submitted by one connected client, to a server without a journal, and their end is seen "
    "to the second; Ray's are tasks of one driver, in memory. `xargs -P` keeps nothing at all: no queue, no log.",
)


def submit_all(command, environment, count):
    with ThreadPoolExecutor(SUBMITTERS) as pool:
        list(pool.map(lambda _: run_ms(command, environment), range(count)))


def speed(seconds, count):
    return f"{seconds:.2f} s ({count / seconds:,.0f}/s)"


def measure(bench):
    muster, count = bench.muster, bench.jobs
    before = [job["state"] for job in muster.jobs()].count("succeeded")
    began = time.monotonic()
    submit_all([muster.binary, "run", "--detach", "--", "true"], muster.environment, count)
    accepted = time.monotonic() - began
    what = f"{count} jobs ran"
    wait_for(what, lambda: muster.status()["unfinished_jobs"] == 0, seconds=DEADLINE_S, every=0.05)
    ended = time.monotonic() - began
    jobs = muster.jobs()
    succeeded = [job["state"] for job in jobs].count("succeeded") - before
    figure = f"{count:,} `true` jobs, until all ended"
    beside = others(bench, count)
    yield Row(figure, speed(ended, count), f"{count:,} succeed", succeeded == count, beside)
    yield Row("of this, until all were accepted", f"{accepted:.2f} s")
    times = 50 if bench.runs >= 50 else bench.runs
    listing = Sample(run_ms([muster.binary, "ps"], muster.environment) for _ in range(times))
    everything = Sample(run_ms([muster.binary, "ps", "--all"], muster.environment) for _ in range(times))
    yield Row(f"`ps` with {len(jobs):,} jobs, p50", f"{listing.p50:.2f} ms", "≤ 20 ms", listing.p50 <= 20)
    yield Row(f"`ps --all` with {len(jobs):,} jobs, p50", f"{everything.p50:.1f} ms")


def others(bench, count):
    cells = {}

    def beside_slurm(slurm):
        cells["Slurm"] = f"sbatch {speed(slurm_s(slurm, count), count)}"

    def beside_hyperqueue(hyperqueue):
        answer = hyperqueue.ask("many", count=count)
        cells["HyperQueue"] = f"{speed(answer['jobs_s'], count)}; as one job {speed(answer['tasks_s'], count)}"

    def beside_ray(ray):
        cells["Ray"] = speed(ray.ask("many", count=count)["tasks_s"], count)

    def beside_xargs(_):
        numbers = "\n".join(map(str, range(count)))
        began = time.monotonic()
        subprocess.run(["xargs", "-P", str(SUBMITTERS), "-I{}", "true"], input=numbers, text=True, check=True)
        cells["plain tools"] = f"xargs -P {SUBMITTERS} {speed(time.monotonic() - began, count)}"

    bench.beside("Slurm", cells, beside_slurm)
    bench.beside("HyperQueue", cells, beside_hyperqueue)
    bench.beside("Ray", cells, beside_ray)
    bench.beside("plain tools", cells, beside_xargs)
    return cells


def slurm_s(slurm, count):
    began = time.monotonic()
    command = [slurm.tool("sbatch"), "--quiet", "-n1", "--output=/dev/null", "--wrap", "true"]
    submit_all(command, slurm.environment, count)
    wait_for("Slurm's queue is empty", lambda: slurm.queued() == 0, seconds=DEADLINE_S, every=0.1)
    return time.monotonic() - began


FIGURES = {"many short jobs": measure}
