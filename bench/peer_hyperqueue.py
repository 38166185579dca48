"""HyperQueue, asked by python_peer.py. Its PyPI package is the Python interface, without the `hq` program: server and
worker are threads of this process, and the client is connected before the clock starts."""

import json
import sys
import time
from pathlib import Path

import hyperqueue
from hyperqueue.cluster import WorkerConfig
from measure import resident_mb


def job_of(arguments, tasks=1):
    job = hyperqueue.Job()
    for _ in range(tasks):
        job.program([str(argument) for argument in arguments], stdout=None, stderr=None)
    return job


def start(client, request):
    """Milliseconds from the call that submits until the program's first instruction."""
    values = []
    for run in range(-3, request["runs"]):
        folder = Path(request["folder"]) / "stamps" / str(run)
        folder.mkdir(parents=True)
        began = time.time_ns()
        client.wait_for_jobs([client.submit(job_of([request["stamp"], folder, "exit"]))])
        if run >= 0:
            values.append((int((folder / "0").read_text().split()[0]) - began) / 1e6)
    return {"start_ms": values}


def many(client, request):
    count = request["count"]
    began = time.monotonic()
    client.wait_for_jobs([client.submit(job_of(["true"])) for _ in range(count)])
    jobs = time.monotonic() - began
    began = time.monotonic()
    client.wait_for_jobs([client.submit(job_of(["true"], count))])
    return {"jobs_s": jobs, "tasks_s": time.monotonic() - began}


def array(client, request):
    began = time.monotonic()
    client.wait_for_jobs([client.submit(job_of(["true"], request["count"]))])
    return {"tasks_s": time.monotonic() - began}


def memory(_client, _request):
    time.sleep(1)
    return {"resident_mb": resident_mb("self")}


def main():
    request = json.loads(sys.argv[1])
    if request["what"] == "version":
        print(json.dumps({"version": hyperqueue.get_version()}))
        return
    server = Path(request["folder"]) / f"server-{request['what']}"
    with hyperqueue.LocalCluster(server_dir=str(server), worker_config=WorkerConfig()) as cluster:
        client = cluster.client()
        answer = {"start": start, "many": many, "array": array, "memory": memory}[request["what"]](client, request)
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
