"""Kubernetes as an engine: what muster adds to a plain Job of the same program on the same cluster, and what many gangs
at once cost on one of a thousand nodes. The clusters are the testkit's: a real control plane, all on this machine."""

import http.client
import json
import os
import queue
import shutil
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from answering import Answering
from figure import Row
from measure import Failed, Sample, resident_mb, run_ms, spawn, status_field, wait, wait_for
from muster import Muster

IMAGE = "localhost/busybox:1"
OWN_IMAGE = "localhost/debian:1"
NODES, GANGS, PODS = 1000, 200, 8
NOTES = (
    "On Kubernetes: two real nodes; turn by turn `kubectl create -f` of a Job of one pod, and `muster run --on k8s`, "
    "which keeps the job, sends its code, and has what brings the agent, and the agent, in the pod first. Both from "
    "the spawn of the command to the program's first instruction, with images that the node has.",
    "On Kubernetes of many nodes: these have no kubelets, and this program says of their pods that they run as soon as "
    "they have a node. No agent can run there: what is measured is the engine and the control plane, until all pods "
    "run, not the jobs. `kubectl` creates all Jobs by one command; muster has a command for each, eight at a time.",
)


class Cluster(Answering):
    """A Kubernetes of the testkit's."""

    makes, tells = "a cluster", "kubeconfig"

    def take(self, said):
        self.kubeconfig, self.launcher = Path(said["kubeconfig"]), said["launcher"]
        self.kubectl, self.shared = Path(said["programs"]) / "kubectl", Path(said["shared"])
        self.environment = os.environ | {"KUBECONFIG": str(self.kubeconfig)}

    def pods(self):
        return json.loads(self.tell("kubectl get pods -A -o json")["stdout"])["items"]

    def calls(self, agent):
        """How often the API server was asked something by whoever calls himself so."""
        return sum(self.tell("calls", agent).values())


class Api:
    """A connection to the API server, as its administrator."""

    def __init__(self, cluster):
        keys = cluster.kubeconfig.parent
        context = ssl.create_default_context(cafile=keys / "ca.crt")
        context.load_cert_chain(keys / "admin.crt", keys / "admin.key")
        context.check_hostname = False
        server = json.loads(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        host, port = server.removeprefix("https://").split(":")
        self.connection = http.client.HTTPSConnection(host, int(port), context=context)

    def ask(self, method, path, body=None, kind="application/json"):
        headers = {"Content-Type": kind, "User-Agent": "bench"}
        self.connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise Failed(f"{method} {path}: {answer.status} {content[:200]}")
        return json.loads(content)


@contextmanager
def muster_on(bench, cluster, **settings):
    """A muster of its own that knows the cluster. Tasks see the cluster's shared directory."""
    before = Path.cwd()
    bench.starts += 1
    volume = {"name": "shared", "hostPath": {"path": str(cluster.shared)}}
    mount = {"name": "shared", "mountPath": str(cluster.shared)}
    pod = {"volumes": [volume], "containers": [{"name": "task", "volumeMounts": [mount]}]}
    known = {"kubeconfig": str(cluster.kubeconfig), "agent_image": "localhost/muster:dev", "image": OWN_IMAGE}
    try:
        with Muster(bench.muster.binary, bench.folder / f"s{bench.starts}") as muster:
            muster.command("server", "stop")
            lines = [f"{name} = {json.dumps(value)}\n" for name, value in (known | settings).items()]
            (muster.home / "config.toml").write_text(f"[k8s]\n{''.join(lines)}pod = {toml(pod)}\n")
            muster.command("server", "start")
            yield muster
    finally:
        os.chdir(before)


def toml(value):
    """A value on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {toml(it)}" for name, it in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def plain_job(name, pods, command, shared=None, image=IMAGE, **container):
    """A Job as somebody writes it who has read the manual."""
    spec = {"restartPolicy": "Never", "containers": [{"name": "task", "image": image, "command": command, **container}]}
    if shared:
        spec["volumes"] = [{"name": "shared", "hostPath": {"path": str(shared)}}]
        spec["containers"][0]["volumeMounts"] = [{"name": "shared", "mountPath": str(shared)}]
    job = {"completions": pods, "parallelism": pods, "completionMode": "Indexed", "backoffLimit": 0}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job | {"template": {"spec": spec}}}


def first_instruction_ms(cluster, command, environment, number):
    """From just before a command is spawned until the program runs in a pod."""
    folder = cluster.shared / f"stamps{number}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    words = [str(cluster.shared / "stamp"), str(folder), "exit"]
    (cluster.shared / "job.json").write_text(json.dumps(plain_job(f"plain-{number}", 1, words, cluster.shared)))
    began, pid = spawn([str(part).replace("FOLDER", str(folder)) for part in command], environment)
    if status := wait(pid):
        raise Failed(f"'{Path(command[0]).name}' ended with {status}")
    stamp = folder / "0"
    wait_for("the program to run", lambda: stamp.exists() and stamp.read_text().strip())
    cluster.tell("kubectl delete jobs --all --wait=false")
    wait_for("the cluster to be empty", lambda: not cluster.pods(), 60, 0.05)
    return (int(stamp.read_text().split()[0]) - began) / 1e6


def overhead(bench):
    with Cluster(bench.kube) as cluster, muster_on(bench, cluster) as muster:
        for image in ("busybox", "debian"):
            cluster.tell("bring", image)
        cluster.tell("bring-muster", muster.binary)
        shutil.copy(muster.stamp, cluster.shared / "stamp")
        own = [muster.binary, "run", "--on", "k8s", "--", cluster.shared / "stamp", "FOLDER", "exit"]
        plain = [cluster.kubectl, "create", "-f", cluster.shared / "job.json"]
        run_ms([*map(str, own[:-3]), "true"], muster.environment)
        wait_for("the cluster to be empty", lambda: not cluster.pods(), 60, 0.05)
        ours, theirs = [], []
        for number in range(3 if bench.quick else 20):
            ours.append(first_instruction_ms(cluster, own, muster.environment, f"m{number}"))
            theirs.append(first_instruction_ms(cluster, plain, cluster.environment, f"p{number}"))
    ours, theirs = Sample(ours), Sample(theirs)
    added = ours.p50 - theirs.p50
    name = "on Kubernetes: submit → first instruction"
    beside = {"plain tools": f"{theirs.p50:.0f} ms (`kubectl create`)"}
    yield Row(f"{name}, over a plain Job, p50", f"+{added:.0f} ms", "≤ 300 ms", added <= 300, beside)
    beside = {"plain tools": f"{theirs.p99:.0f} ms"}
    yield Row(f"{name}, p50 and p99", f"{ours.p50:.0f} ms, {ours.p99:.0f} ms", beside=beside)


def fake_node(number):
    sizes = {"cpu": "128", "memory": "2Ti", "pods": "256", "nvidia.com/gpu": "8"}
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "reason": "Fake", "lastHeartbeatTime": now, "lastTransitionTime": now}
    labels = {"kubernetes.io/hostname": f"fake-{number:05d}", "fake": "true"}
    metadata = {"name": f"fake-{number:05d}", "labels": labels}
    status = {"capacity": sizes, "allocatable": sizes, "conditions": [ready]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}


def in_parallel(cluster, items, act, workers=8):
    """Has each item acted on with a connection; the first failure is everybody's."""
    waiting, errors = queue.SimpleQueue(), []
    for item in items:
        waiting.put(item)

    def work():
        api = Api(cluster)
        while not errors:
            try:
                act(api, waiting.get_nowait())
            except queue.Empty:
                return
            except (Failed, OSError, http.client.HTTPException) as error:
                errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise Failed(str(errors[0]))


def set_running(api, pod):
    """What a kubelet would say of a pod whose containers have started."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    def container(it, state):
        common = {"image": "x", "imageID": "", "restartCount": 0}
        return {"name": it["name"], "ready": True, "started": True, "state": state, **common}

    over = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}}
    before, main = pod["spec"].get("initContainers", []), pod["spec"]["containers"]
    status = {
        "phase": "Running",
        "startTime": now,
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": now} for kind in ("Ready", "Initialized")
        ],
        "initContainerStatuses": [container(it, over) for it in before],
        "containerStatuses": [container(it, {"running": {"startedAt": now}}) for it in main],
    }
    path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/status"
    api.ask("PATCH", path, {"status": status}, "application/strategic-merge-patch+json")


def until_all_run(cluster, began, count, seconds=300):
    """Plays the kubelets until this many pods run; how long that took, and when the last one had a node."""
    api, running, bound_s = Api(cluster), set(), None
    while len(running) < count:
        if time.monotonic() - began > seconds:
            raise Failed(f"{len(running)} of {count} pods run after {seconds} s")
        pods = api.ask("GET", "/api/v1/namespaces/default/pods?resourceVersion=0")["items"]
        bound = [pod for pod in pods if pod["spec"].get("nodeName")]
        if len(bound) == count and bound_s is None:
            bound_s = time.monotonic() - began
        new = [pod for pod in bound if pod["metadata"]["uid"] not in running]
        in_parallel(cluster, new, set_running, 4)
        running |= {pod["metadata"]["uid"] for pod in new}
        if not new:
            time.sleep(0.1)
    return time.monotonic() - began, bound_s


def clear(cluster):
    cluster.tell("kubectl delete jobs --all --wait=false --cascade=background")
    api = Api(cluster)

    def is_empty():
        pods = api.ask("GET", "/api/v1/namespaces/default/pods?resourceVersion=0")["items"]
        # Nobody is there to end them in an orderly way.
        in_parallel(cluster, pods, lambda own, pod: own.ask("DELETE", f"{address(pod)}?gracePeriodSeconds=0"), 4)
        return not pods

    def address(pod):
        return f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"

    wait_for("the pods to be gone", is_empty, 120, 0.5)


def submit_all(muster, gangs, words):
    """One command for each, eight at a time."""
    waiting, errors = iter(range(gangs)), []
    lock = threading.Lock()

    def work():
        while not errors:
            with lock:
                if next(waiting, None) is None:
                    return
            try:
                muster.command("run", "--detach", "--on", "k8s", *words, "--", "true")
            except Failed as error:
                errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    return threads, errors


def scale(bench):
    nodes, gangs = (50, 10) if bench.quick else (NODES, GANGS)
    pods = gangs * PODS
    # Nobody renews the leases of these nodes.
    settings = ["nodes=1", "gpus=0", "manager=--node-monitor-grace-period=24h"]
    with Cluster(bench.kube, *settings) as cluster:
        cluster.tell("kubectl cordon node1")
        in_parallel(cluster, range(nodes), lambda api, number: api.ask("POST", "/api/v1/nodes", fake_node(number)))
        resources = {"resources": {"limits": {"nvidia.com/gpu": "4", "cpu": "8", "memory": "64Gi"}}}
        jobs = [plain_job(f"plain-{number}", PODS, ["true"], **resources) for number in range(gangs)]
        path = cluster.shared / "all.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": jobs}))
        began = time.monotonic()
        kubectl = subprocess.Popen(
            [cluster.kubectl, "create", "-f", path], env=cluster.environment, stdout=subprocess.DEVNULL
        )
        theirs, _ = until_all_run(cluster, began, pods)
        if kubectl.wait():
            raise Failed("kubectl could not create the Jobs")
        their_calls = cluster.calls("kubectl") / gangs
        clear(cluster)
        with muster_on(bench, cluster, address=f"http://{cluster.launcher}:1", namespace="default") as muster:
            words = ["-N", str(PODS), "--gpus", "4", "--cpus", "8", "--memory", "64GiB"]
            pid = muster.status()["pid"]
            idle = resident_mb(pid)
            began = time.monotonic()
            threads, errors = submit_all(muster, gangs, words)
            ours, _ = until_all_run(cluster, began, pods)
            for thread in threads:
                thread.join()
            if errors:
                raise Failed(str(errors[0]))
            own_calls = cluster.calls("muster") / gangs
            peak = status_field(f"/proc/{pid}/status", "VmHWM") / 1e6
    name = f"on Kubernetes of {nodes:,} nodes, {gangs} gangs of {PODS} at once"
    beside = {"plain tools": f"{theirs:.1f} s (`kubectl create`, no gangs)"}
    yield Row(f"{name}: until all pods run", f"{ours:.1f} s", beside=beside)
    yield Row(f"{name}: calls of the API per job", f"{own_calls:.1f}", beside={"plain tools": f"{their_calls:.1f}"})
    yield Row(f"{name}: server, most resident (idle: {idle:.0f} MB)", f"{peak:.0f} MB")


FIGURES = {"on Kubernetes: submit → first instruction": overhead, "on Kubernetes: many gangs": scale}
