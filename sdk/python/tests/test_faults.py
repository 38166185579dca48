"""Scripts whose hosts and server have troubles while they run: they go on, or are told which task, and never hang."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest
from pools import Hosts, a_pool, until

#: Far above what any of these takes; a script that hangs is ended by it.
DEADLINE = 120
#: 3 MB over a cable of 8 Mbit are three seconds, in which something can happen.
PAYLOAD, RATE = 3_000_000, "8mbit"


@pytest.fixture(scope="module")
def slim(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The binary without what only a debugger reads: it is sent to every host."""
    path = tmp_path_factory.mktemp("slim") / "muster"
    subprocess.run(["strip", "-o", str(path), str(binary.resolve())], check=True)
    return path


@pytest.fixture(scope="module")
def hosts(binary: Path) -> Iterator[Hosts]:
    hosts = Hosts(binary, 2)
    yield hosts
    hosts.close()


@pytest.fixture(scope="module")
def pool(slim: Path, hosts: Hosts) -> Iterator[dict[str, str]]:
    with a_pool(slim, hosts) as environment:
        yield environment


#: What a script does at once: a command in the background, one behind it, and a copy. Each says how it ended.
SCRIPT = """
import sys, threading, ncluster
job = ncluster.make_job(name=sys.argv[1], num_tasks=2)

def tell(what, do):
    try:
        do()
        print("did", what, flush=True)
    except Exception as error:
        print("told", what, type(error).__name__, str(error).replace(chr(10), " / "), flush=True)

job.run("touch /var/tmp/begun; sleep 3; echo background >> /var/tmp/said", non_blocking=True)
doing = [
    threading.Thread(target=tell, args=("run", lambda: job.run("sleep 2; echo foreground >> /var/tmp/said"))),
    threading.Thread(target=tell, args=("upload", lambda: job.upload("payload", "/var/tmp/payload"))),
]
for one in doing:
    one.start()
for one in doing:
    one.join()
tell("again", lambda: job.run("echo again >> /var/tmp/said"))
job.kill()
"""


class Script:
    """A script that runs, and what it has said so far."""

    def __init__(self, text: str, name: str, folder: Path, environment: dict[str, str]) -> None:
        (folder / "script.py").write_text(text)
        (folder / "payload").write_bytes(os.urandom(PAYLOAD))
        self._log = folder / "said"
        with self._log.open("w") as log:
            words = [sys.executable, "script.py", name]
            self._process = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log)

    def said(self) -> str:
        return self._log.read_text()

    def finish(self) -> str:
        """Everything it said, when it has ended by itself and well."""
        try:
            assert self._process.wait(timeout=DEADLINE) == 0, self.said()
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"it hangs:\n{self.said()}") from None
        return self.said()


def begin(hosts: Hosts, pool: dict[str, str], folder: Path, name: str, text: str = SCRIPT) -> Script:
    """A script whose commands run on both hosts."""
    for host in range(2):
        hosts.run(host, "rm -rf /var/tmp/begun /var/tmp/said /var/tmp/payload")
        hosts.do("slow", host, RATE)
    script = Script(text, name, folder, pool)
    until(lambda: all(hosts.do("run", host, "test -e /var/tmp/begun")["code"] == 0 for host in range(2)))
    return script


def cut_and_join(hosts: Hosts, pool: dict[str, str], binary: Path, folder: Path) -> None:
    hosts.do("cut", 1)
    # Less than what a host has until it is given up.
    time.sleep(4)
    hosts.do("join", 1)


def kill_server(hosts: Hosts, pool: dict[str, str], binary: Path, folder: Path) -> None:
    said = subprocess.run([binary, "server", "status", "--json"], env=pool, check=True, capture_output=True)
    os.kill(json.loads(said.stdout)["pid"], signal.SIGKILL)


def upgrade(hosts: Hosts, pool: dict[str, str], binary: Path, folder: Path) -> None:
    """Another build is put in the binary's place, and takes over."""
    other = binary.with_name("muster-of-tomorrow")
    shutil.copy(binary, other)
    with other.open("ab") as file:
        file.write(b"x")
    other.replace(binary)
    started = subprocess.run([binary, "server", "start"], env=pool, capture_output=True, text=True)
    assert started.returncode == 0, started.stderr


@pytest.mark.parametrize("fault", [cut_and_join, kill_server, upgrade])
def test_a_script_goes_on_through(
    fault: Callable[[Hosts, dict[str, str], Path, Path], None],
    hosts: Hosts,
    pool: dict[str, str],
    slim: Path,
    tmp_path: Path,
) -> None:
    script = begin(hosts, pool, tmp_path, fault.__name__.replace("_", "-"))
    fault(hosts, pool, slim, tmp_path)
    for host in range(2):
        hosts.do("slow", host, "off")
    said = script.finish()
    assert [f"did {what}" in said for what in ("run", "upload", "again")] == [True] * 3, said
    for host in range(2):
        assert hosts.run(host, "cat /var/tmp/said") == "background\nforeground\nagain\n", "each once, in order"
        assert hosts.run(host, "wc -c < /var/tmp/payload").strip() == str(PAYLOAD)


def test_a_host_that_reboots_is_told_by_its_name_and_the_script_ends(
    hosts: Hosts, pool: dict[str, str], tmp_path: Path
) -> None:
    script = begin(hosts, pool, tmp_path, "reboot")
    began = time.monotonic()
    hosts.do("reboot", 1)
    hosts.do("slow", 0, "off")
    said = script.finish()
    assert time.monotonic() - began < 60, said
    lost = {line.split()[1]: line for line in said.splitlines() if line.startswith("told ")}
    assert {"run", "again"} <= set(lost), said
    for what in ("run", "again"):
        assert "task1.reboot: " in lost[what] and "lost node_gpu" in lost[what], lost
    # A copy may meet the closed door of a host that nobody has missed yet.
    if "upload" in lost:
        assert any(words in lost["upload"] for words in ("lost node_gpu", "task1: it cannot be reached")), lost


FULL = """
import pathlib, sys, time, ncluster
job = ncluster.make_job(name=sys.argv[1], num_tasks=2)
task = job.tasks[1]

def tell(what, do):
    try:
        do()
        print("did", what, flush=True)
    except Exception as error:
        print("told", what, type(error).__name__, str(error).replace(chr(10), " / "), flush=True)

task.run("cd /var/tmp; KEPT=yes")
job.run("touch /var/tmp/begun; until [ -e /dev/shm/full ]; do sleep 0.1; done", non_blocking=True)
tell("write", lambda: task.run("head -c 5G /dev/zero > /var/tmp/zeros"))
tell("upload", lambda: job.upload("payload", "/var/tmp/payload"))
print("ready", flush=True)
while not pathlib.Path("freed").exists():
    time.sleep(0.05)
tell("after", lambda: task.run("[ $KEPT$PWD = yes/var/tmp ] && echo after >> /var/tmp/said"))
tell("upload again", lambda: job.upload("payload", "/var/tmp/payload"))
job.kill()
"""


def test_a_full_disk_is_told_and_its_shell_goes_on_when_there_is_space(
    hosts: Hosts, pool: dict[str, str], tmp_path: Path
) -> None:
    script = begin(hosts, pool, tmp_path, "full", FULL)
    hosts.do("slow", 1, "off")
    hosts.do("fill-disk", 1)
    try:
        for host in range(2):
            hosts.run(host, "touch /dev/shm/full")
        until(lambda: "ready\n" in script.said(), 60)
    finally:
        hosts.do("free-disk", 1)
        for host in range(2):
            hosts.do("slow", host, "off")
            hosts.run(host, "rm -f /dev/shm/full /var/tmp/zeros")
    (tmp_path / "freed").touch()
    said = script.finish()
    for what in ("write", "upload"):
        assert f"told {what} " in said, said
    assert re.search("told upload .*task1.*no space left on device", said, re.IGNORECASE), said
    assert "did after\n" in said and "did upload again\n" in said, said
