"""Where machines come from, and how a group of them is found again by its name, or made."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping

from .. import _binary
from .._error import Conflict, Error
from .._job import Job as MusterJob
from .._printable import inline
from .generation import Generation
from .settings import SETTINGS

#: What of the arguments is kept with a group, as labels: it is what it is compared by when it is found again.
COMPARED = ("instance_type", "image_name")
KEPT = (*COMPARED, "image_type", "spot", "zone_id", "system_disk_size", "data_disk_size", "vpc_name")
#: Where each machine on this computer has its home directory, if that can be shown.
OWN_HOME = "/root"
REMEDY = "run it as root with the right to mount, or as another account with user namespaces"
#: The states of a group that has not been released.
ALIVE = "queued,starting,running,stopping,suspended"
#: Whoever waits longer wants to know for what.
QUIET_SECONDS = 5.0


def place(generation: Generation) -> str:
    """The target that machines are made on, and says so once: `local`, or `ssh/POOL`."""
    backend = SETTINGS.backend
    found = "local" if backend == "local" else configured()
    words = "this machine" if found == "local" else f"the hosts of {found}"
    SETTINGS.say_once(f"{generation.name}: backend {backend!r}: machines are on {words}")
    return found


def configured() -> str:
    """`MUSTER_MACHINES`, else what the configuration says, else the only pool there is, else this machine."""
    if named := os.environ.get("MUSTER_MACHINES"):
        return named
    client = SETTINGS.client()
    if (set_here := _setting("fastgpu.machines")) is not None:
        return set_here
    pools = [pool["name"] for pool in client.pools()]
    if len(pools) > 1:
        message = f"there are several pools of hosts: {', '.join(pools)}"
        raise Error(message, code="several_pools", hint=f"say which: export MUSTER_MACHINES=ssh/{pools[0]}")
    return f"ssh/{pools[0]}" if pools else "local"


def _setting(key: str) -> str | None:
    """A setting of the private server's configuration, if somebody has made it."""
    transport = SETTINGS.client()._transport
    if not transport.is_private or not (transport.home / "config.toml").exists():
        return None
    for one in json.loads(_binary.call(["config", "--json"], environment=transport.environment)):
        if one["key"] == key and one["source"] != "default":
            return str(one["value"])
    return None


def get_region() -> str:
    """What the environment names, as scripts ask for it before anything else; else where machines are made, as the
    command line prints it."""
    if SETTINGS.backend == "local":
        return "local"
    if named := os.environ.get("ALIYUN_DEFAULT_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        return named
    try:
        return configured()
    except Error:
        return "local"


def get_zone() -> str:
    if SETTINGS.backend == "local":
        return "local"
    named = os.environ.get("ALIYUN_DEFAULT_ZONE") or os.environ.get("NCLUSTER_ZONE")
    return named or get_region()


def tell_of_home(job: MusterJob, directory: str, account: str, generation: Generation) -> None:
    """Says what is not as on a machine of one's own, where machines are on this computer."""
    if job.spec.get("on", "local") != "local":
        return
    if directory != OWN_HOME:
        words = f"paths below {OWN_HOME} are this computer's, since muster may not mount here: {REMEDY}"
    elif account != "root":
        words = f"{OWN_HOME} is each machine's own, and sudo has no effect there: muster does not run as root"
    else:
        return
    print(f"{generation.name}: {job.name}: {words}", file=sys.stderr, flush=True)


def find(name: str) -> MusterJob | None:
    """The group of this name that is not over."""
    found = SETTINGS.client().jobs(kind="machine", name=name, state=ALIVE)
    return found[0] if found else None


def compare(job: MusterJob, num_tasks: int, wanted: Mapping[str, str], generation: Generation) -> None:
    """Refuses a group that is there under the name and is another than was asked for."""
    remedy = f"terminate it with `{generation.program} kill {{{job.name}}}`, or use another name"
    assert job.nodes >= num_tasks, (
        f"{num_tasks} machines were asked for as {job.name}, and of these only {job.nodes} exist; {remedy}"
    )
    for task in job.tasks[:num_tasks]:
        assert task.phase != "ended" or task.parting != "stop", (
            f"task{task.rank}.{job.name} was killed, and the rest of {job.name} exists; {remedy}"
        )
    labels: dict[str, str] = job.spec.get("labels") or {}
    for key in COMPARED:
        have, want = labels.get(key, ""), wanted.get(key, "")
        assert not want or have == want, (
            f"{job.name} exists with {key} {have or 'unknown'!r}, and {want!r} was asked for; {remedy}"
        )


def make(name: str, num_tasks: int, labels: Mapping[str, str], generation: Generation) -> tuple[MusterJob, bool]:
    """The group of this name, running, and whether it was there before."""
    while True:
        found = find(name)
        if found is not None:
            compare(found, num_tasks, labels, generation)
            wake(found)
            return found, True
        try:
            return _create(name, num_tasks, labels, place(generation)), False
        except Conflict as error:
            # Somebody else has made it in this moment.
            if error.code != "name_taken" or find(name) is None:
                raise


def _create(name: str, num_tasks: int, labels: Mapping[str, str], on: str) -> MusterJob:
    # Scripts have paths of root's home, which on hosts is there.
    own_home = True if on == "local" else None
    # They go from one machine to the others by ssh, and to themselves.
    job = SETTINGS.client().machine(name, nodes=num_tasks, on=on, labels=labels, peers=True, own_home=own_home)
    try:
        wait(job)
    except KeyboardInterrupt:
        job.stop()
        print(f"{name}: the request for {num_tasks} machines is withdrawn", flush=True)
        raise
    return job


def wake(job: MusterJob, rank: int | None = None) -> None:
    """Starts a group that was stopped, and those of its machines that do not run while others do, or one of them."""
    while (state := job.state) in ("stopping", "suspended"):
        if state == "suspended":
            print(f"{job.name} is stopped: starting it", flush=True)
            job.resume()
            break
        time.sleep(0.1)
    wait(job)
    tasks = [task for task in job.tasks if rank is None or task.rank == rank]
    stopped = [task.wait_for("ended") if task.parting else task for task in tasks]
    stopped = [task for task in stopped if task.phase == "ended" and task.parting != "stop"]
    for task in stopped:
        print(f"task{task.rank}.{job.name} is stopped: starting it", flush=True)
        task.resume()
    for task in stopped:
        now = task.wait_for("running", "ended")
        if now.phase != "running":
            raise RuntimeError(inline(f"task{task.rank}.{job.name} did not start: {now.message}"))


def wait(job: MusterJob) -> None:
    """Until it runs; after some seconds it is said what for."""
    try:
        job.wait_until_running(timeout=QUIET_SECONDS)
    except TimeoutError:
        why = job.why()
        print(inline(f"waiting for {job.name}: {why['summary']}"), flush=True)
        job.wait_until_running()
