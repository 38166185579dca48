"""From a command to the first instruction of one task."""

from figure import Row
from measure import Sample, run_ms
from muster import FOLDER

# HyperQueue's client notices the end of a job once a second, so each of its runs takes that long.
HYPERQUEUE_RUNS = 60
NOTES = (
    "All start the same program. Muster keeps the job, its code and its environment on disk before it starts, and its "
    "client is a new process each time, as `srun` is.",
    "HyperQueue's PyPI package has no `hq` program, so its Python interface is used: a client that is connected "
    "already, server and worker in its own process. Ray's task is called by a driver that is connected already, in a "
    "worker that is warm; `ray job submit` is its command for a program.",
)


def measure(bench):
    muster = bench.muster
    sample = Sample(muster.start_ms(muster.run_stamp()) for _ in range(bench.runs))
    whole = Sample(run_ms([muster.binary, "run", "--", "true"], muster.environment) for _ in range(bench.runs))
    p50, p99, until_end, ratio = {}, {}, {}, []

    def beside_slurm(slurm):
        srun = [slurm.srun, "--quiet", "-n1"]
        for _ in range(3):
            run_ms([*srun, "true"], slurm.environment)
        command = [*srun, muster.stamp, FOLDER, "exit"]
        theirs = Sample(muster.start_ms(command, slurm.environment) for _ in range(bench.runs))
        end = Sample(run_ms([*srun, "true"], slurm.environment) for _ in range(bench.runs))
        p50["Slurm"], p99["Slurm"] = f"{theirs.p50:.1f} ms", f"{theirs.p99:.1f} ms"
        until_end["Slurm"] = f"{end.p50:.1f} ms"
        ratio.append(end.p50 / sample.p50)

    def beside_hyperqueue(hyperqueue):
        theirs = Sample(hyperqueue.ask("start", runs=min(bench.runs, HYPERQUEUE_RUNS))["start_ms"])
        p50["HyperQueue"], p99["HyperQueue"] = f"{theirs.p50:.1f} ms", f"{theirs.p99:.1f} ms"

    def beside_ray(ray):
        answer = ray.ask("start", runs=bench.runs, jobs=bench.few // 4 + 1)
        task, job = Sample(answer["task_ms"]), Sample(answer["job_ms"])
        p50["Ray"] = f"task {task.p50:.1f} ms, job {job.p50:,.0f} ms"
        p99["Ray"] = f"task {task.p99:.1f} ms"

    bench.beside("Slurm", p50, beside_slurm)
    bench.beside("HyperQueue", p50, beside_hyperqueue)
    bench.beside("Ray", p50, beside_ray)
    name = "submit → first instruction"
    yield Row(f"{name}, p50", f"{sample.p50:.1f} ms", "≤ 12 ms", sample.p50 <= 12, p50)
    yield Row(f"{name}, p99", f"{sample.p99:.1f} ms", "≤ 50 ms", sample.p99 <= 50, p99)
    yield Row("`run -- true`, until it returns, p50", f"{whole.p50:.1f} ms", beside=until_end)
    for times in ratio:
        yield Row("submit → first instruction, against `srun true`", f"{times:.1f}× faster", "≥ 4×", times >= 4)


FIGURES = {"submit → first instruction": measure}
