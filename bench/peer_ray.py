"""Ray, asked by python_peer.py: a head of its own on this machine, without what it reports home."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import ray
from measure import processes_of, resident_mb
from slurm import free_ports


def start_program(stamp, folder):
    subprocess.run([stamp, folder, "exit"], check=True)


def start(request, dashboard):
    """Milliseconds until the program's first instruction: from the call of a task that starts it, and from
    `ray job submit`."""
    task = ray.remote(start_program).options(num_cpus=0.1)

    def measured(run, submit):
        folder = Path(request["folder"]) / "stamps" / run
        folder.mkdir(parents=True)
        began = time.time_ns()
        submit(str(folder))
        return (int((folder / "0").read_text().split()[0]) - began) / 1e6

    def submit_task(folder):
        ray.get(task.remote(request["stamp"], folder))

    def submit_job(folder):
        program = Path(sys.executable).parent / "ray"
        command = [program, "job", "submit", "--address", f"http://127.0.0.1:{dashboard}", "--"]
        subprocess.run([*command, request["stamp"], folder, "exit"], check=True, capture_output=True)

    for run in range(3):
        measured(f"warm{run}", submit_task)
    tasks = [measured(f"task{run}", submit_task) for run in range(request["runs"])]
    return {"task_ms": tasks, "job_ms": [measured(f"job{run}", submit_job) for run in range(request["jobs"])]}


def many(request, _dashboard):
    task = ray.remote(lambda: subprocess.run(["true"], check=True).returncode)
    # Its workers are started by the first tasks.
    ray.get([task.remote() for _ in range(50)])
    began = time.monotonic()
    ray.get([task.remote() for _ in range(request["count"])])
    return {"tasks_s": time.monotonic() - began}


def memory(request, _dashboard):
    time.sleep(3)
    others = processes_of("BENCH_PEER", request["folder"])
    return {"resident_mb": sum(resident_mb(pid) for pid in [os.getpid(), *others])}


def main():
    request = json.loads(sys.argv[1])
    if request["what"] == "version":
        print(json.dumps({"version": ray.__version__}))
        return
    (dashboard,) = free_ports(1)
    ray.init(
        num_cpus=os.cpu_count(),
        include_dashboard=True,
        dashboard_host="127.0.0.1",
        dashboard_port=dashboard,
        object_store_memory=100 << 20,
        _temp_dir=f"{request['folder']}/ray",
        log_to_driver=False,
    )
    answer = {"start": start, "many": many, "memory": memory}[request["what"]](request, dashboard)
    ray.shutdown()
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
