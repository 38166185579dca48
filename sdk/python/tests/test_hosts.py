"""The published scripts on machines that share nothing: two hosts with an sshd each, and a pool of them."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest
from conftest import ROOT
from test_machines import HERE, PRELUDE, SCRIPTS, STAND_INS, logdir_in

import muster


class Hosts:
    """Hosts of `muster_testkit`; they are gone when its program is."""

    def __init__(self, program: Path, count: int) -> None:
        self._process = subprocess.Popen(
            [str(program), str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.said: dict[str, Any] = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the program of the hosts has ended"
        return json.loads(line)

    def do(self, *words: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(*words, file=self._process.stdin, flush=True)
        return self._answer()

    def run(self, host: int, line: str) -> str:
        done = self.do("run", host, line)
        assert done["code"] == 0, done
        return done["stdout"]

    @property
    def addresses(self) -> list[str]:
        return [host["address"] for host in self.said["hosts"]]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def hosts(binary: Path) -> Iterator[Hosts]:
    program = binary.resolve().with_name("hosts")
    assert program.exists(), f"{program} is not there: cargo build -p muster-testkit"
    assert os.geteuid() == 0, "hosts are made of namespaces and a bridge, which only root can make: run this as root"
    hosts = Hosts(program, 2)
    for name, text in STAND_INS.items():
        content = base64.b64encode(f"#!/bin/sh\n{text}\n".encode()).decode()
        for host in range(2):
            hosts.run(host, f"echo {content} | base64 -d > /usr/local/bin/{name} && chmod 755 /usr/local/bin/{name}")
    yield hosts
    hosts.close()


@pytest.fixture(scope="module")
def pool(binary: Path, hosts: Hosts) -> Iterator[dict[str, str]]:
    """The environment of a user whose server has the hosts as a pool, its only one."""
    with tempfile.TemporaryDirectory(prefix="pool-", dir="/tmp") as folder:
        place = Path(folder)
        (place / "home").mkdir()
        environment = {
            **os.environ,
            "HOME": str(place / "home"),
            "MUSTER_HOME": str(place / "data"),
            "MUSTER_BINARY": str(binary),
            "ALIYUN_DEFAULT_REGION": "cn-beijing",
            "NCLUSTER_DISABLE_PDB_HANDLER": "1",
            "PYTHONPATH": HERE,
        }
        for name in ("MUSTER_SERVER", "MUSTER_TOKEN", "MUSTER_MACHINES"):
            environment.pop(name, None)
        destinations = [host["root"] for host in hosts.said["hosts"]]
        key = ["--key", hosts.said["key"]]
        added = subprocess.run(
            [str(binary), "pool", "add", "gpu", *destinations, *key], env=environment, capture_output=True, text=True
        )
        assert added.returncode == 0, added.stdout + added.stderr
        yield environment
        with muster.Client(home=place / "data") as client:
            for job in client.jobs(state="queued,starting,running,stopping,suspended"):
                job.stop()
                job.wait(check=False, timeout=60)
        subprocess.run([str(binary), "pool", "rm", "gpu"], env=environment, check=True, capture_output=True)
        subprocess.run([str(binary), "server", "stop"], env=environment, check=True, capture_output=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "perseus-bert").mkdir()
    (tmp_path / "perseus-bert/run_classifier.py").write_text("print('classified')\n")
    return tmp_path


def launch(script: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, script, "--machines", "2"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_published_training_script_runs_on_two_hosts(hosts: Hosts, pool: dict[str, str], folder: Path) -> None:
    printed = launch(str(SCRIPTS / "train_news_classifier.py"), folder, pool)
    assert "backend 'aliyun': machines are on the hosts of ssh/gpu" in printed
    assert "\nLogging to /ncluster/runs/perseus-bert-2\n" in printed
    assert "\ntraining deploy time is: " in printed
    command = hosts.run(0, "cat /ncluster/runs/perseus-bert-2/task-cmd")
    assert f"--host {hosts.addresses[0]}:8,{hosts.addresses[1]}:8 " in command
    with muster.Client(home=pool["MUSTER_HOME"]) as client:
        machines = client.job("perseus-bert")
        shell = muster.Session(client._transport, machines.id, 0)
        assert shell.commands()[-1].wait(timeout=60).exit_status == 0, "the training goes on without the script"
        assert "run_classifier.py" in hosts.run(0, "cat /root/perseus-bert/trained")
        hosts.run(1, "test -f /root/perseus-bert/run_classifier.py && test -d /root/toutiao_data")
        machines.stop()
        machines.wait(check=False, timeout=60)


def test_the_published_snippets_run_on_two_hosts(hosts: Hosts, pool: dict[str, str], folder: Path) -> None:
    parts = [path.read_text() for path in sorted((SCRIPTS / "snippets").iterdir())]
    (folder / "spot.py").write_text("\n".join([PRELUDE, *parts]))
    printed = launch("spot.py", folder, pool)
    assert str(logdir_in(printed)) == "/fastgpu/runs/fastgpu-perseus-bert-2"
    assert "run_classifier.py" in hosts.run(0, "cat /fastgpu/runs/fastgpu-perseus-bert-2/task-cmd")
    with muster.Client(home=pool["MUSTER_HOME"]) as client:
        assert client.job("fastgpu-perseus-bert").state == "suspended"


def test_the_example_trains_over_two_hosts_with_the_real_mpirun(
    hosts: Hosts, pool: dict[str, str], tmp_path: Path
) -> None:
    for host in range(2):
        hosts.run(host, "mv /usr/local/bin/mpirun /usr/local/bin/mpirun.stand-in")
    shutil.copytree(ROOT / "examples/fastgpu", tmp_path, dirs_exist_ok=True)
    printed = launch("train_news_classifier.py", tmp_path, pool)
    ends = re.findall(r"rank (\d) of 2: accuracy (\S+), parameters (\S+)", printed)
    assert sorted(rank for rank, _, _ in ends) == ["0", "1"], printed
    assert len({parameters for _, _, parameters in ends}) == 1, "the same models, bit for bit"


def test_runs_are_on_the_volume_that_the_hosts_share(
    binary: Path, hosts: Hosts, pool: dict[str, str], folder: Path
) -> None:
    shared = "/shared"
    hosts.run(0, "rm -rf /ncluster")
    destination = hosts.said["hosts"][0]["root"]
    words = ["pool", "add", "gpu", destination, "--key", hosts.said["key"], "--shared", shared]
    subprocess.run([str(binary), *words], env=pool, check=True, capture_output=True)
    (folder / "shared.py").write_text(
        "import ncluster\n"
        "job = ncluster.make_job(name='shared', run_name='shared', num_tasks=2)\n"
        "job.tasks[0].run(f'echo seen > {job.logdir}/note')\n"
        "print('Logging to', job.logdir, job.tasks[1].read(f'{job.logdir}/note'))\n"
        "job.kill()\n"
    )
    assert f"Logging to {shared}/ncluster/runs/shared seen\n" in launch("shared.py", folder, pool)


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


CUT = """
import sys, time, ncluster
job = ncluster.make_job(name="cut", num_tasks=2)
print("ready", flush=True)
job.run("touch $HOME/cut-begun; sleep 4; echo ended >> $HOME/cut-ended")
print("done", flush=True)
job.kill()
"""


def test_a_link_that_is_cut_for_a_moment_harms_no_command(hosts: Hosts, pool: dict[str, str], folder: Path) -> None:
    (folder / "cut.py").write_text(CUT)
    process = subprocess.Popen(
        [sys.executable, "cut.py"], cwd=folder, env=pool, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("ready"):
            until(lambda: hosts.do("run", 1, "test -e /root/cut-begun")["code"] == 0)
            hosts.do("cut", 1)
            # Less than what a host has until it is given up, and more than what is noticed.
            time.sleep(5)
            hosts.do("join", 1)
    assert process.wait(timeout=120) == 0, "".join(said)
    assert "done\n" in said
    for host in range(2):
        assert hosts.run(host, "cat /root/cut-ended") == "ended\n", "once"


GONE = """
import ncluster
job = ncluster.make_job(name="gone", num_tasks=2)
print("ready", flush=True)
try:
    job.run("touch $HOME/gone-begun; sleep 600")
except RuntimeError as error:
    print("told:", error, flush=True)
"""


def test_a_host_that_vanishes_under_a_command_is_told_and_never_waited_for(
    hosts: Hosts, pool: dict[str, str], folder: Path
) -> None:
    (folder / "gone.py").write_text(GONE)
    process = subprocess.Popen(
        [sys.executable, "gone.py"], cwd=folder, env=pool, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said: list[str] = []
    began = time.monotonic()
    for line in process.stdout:
        said.append(line)
        if line.startswith("ready"):
            until(lambda: hosts.do("run", 1, "test -e /root/gone-begun")["code"] == 0)
            hosts.do("power-off", 1)
            began = time.monotonic()
    assert process.wait(timeout=60) == 0, "".join(said)
    # 15 s until the host is given up, and its peer's grace to end.
    assert time.monotonic() - began < 45
    assert "lost node_gpu" in "".join(said)
    hosts.do("power-on", 1)
