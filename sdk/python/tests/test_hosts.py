"""The published scripts on machines that share nothing: two hosts with an sshd each, and a pool of them."""

from __future__ import annotations

import base64
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from pools import Hosts, a_pool, until
from test_machines import PRELUDE, SCRIPTS, STAND_INS, logdir_in

import muster


@pytest.fixture(scope="module")
def hosts(binary: Path) -> Iterator[Hosts]:
    hosts = Hosts(binary, 2)
    for name, text in STAND_INS.items():
        content = base64.b64encode(f"#!/bin/sh\n{text}\n".encode()).decode()
        for host in range(2):
            hosts.run(host, f"echo {content} | base64 -d > /usr/local/bin/{name} && chmod 755 /usr/local/bin/{name}")
    yield hosts
    hosts.close()


@pytest.fixture(scope="module")
def pool(binary: Path, hosts: Hosts) -> Iterator[dict[str, str]]:
    """The environment of a user whose server has the hosts as a pool, its only one."""
    with a_pool(binary, hosts) as environment:
        yield environment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "perseus-bert").mkdir()
    (tmp_path / "perseus-bert/run_classifier.py").write_text("print('classified')\n")
    return tmp_path


def launch(script: str, folder: Path, environment: dict[str, str], *, refused: str | None = None) -> str:
    """What a script prints that goes well, or ends with this error."""
    done = subprocess.run(
        [sys.executable, script, "--machines", "2"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode == 0) == (refused is None), done.stdout + done.stderr
    assert refused is None or refused in done.stderr, done.stderr
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


SHARED = """
import ncluster
try:
    job = ncluster.make_job(name="shared", run_name="shared", num_tasks=2)
    job.tasks[0].upload("scripts", "/ncluster/scripts")
    job.tasks[0].run(f"echo seen > {job.logdir}/note")
    note = job.tasks[1].read(f"{job.logdir}/note").strip()
    print("Logging to", job.logdir, note, job.tasks[1].read("/ncluster/scripts/train.py"))
finally:
    job.kill()
"""
APART = "import ncluster; ncluster.ncluster_globals.set_should_disable_nas(True)"


def test_runs_are_on_the_volume_that_the_hosts_share(
    binary: Path, hosts: Hosts, pool: dict[str, str], folder: Path
) -> None:
    shared = "/shared"
    for host in range(2):
        hosts.run(host, "rm -rf /ncluster /fastgpu")
    destination = hosts.said["hosts"][0]["root"]
    words = ["pool", "add", "gpu", destination, "--key", hosts.said["key"], "--shared", shared]
    subprocess.run([str(binary), *words], env=pool, check=True, capture_output=True)
    (folder / "scripts").mkdir()
    (folder / "scripts/train.py").write_text("train")
    (folder / "shared.py").write_text(SHARED)
    printed = launch("shared.py", folder, pool)
    assert "Logging to /ncluster/runs/shared seen train\n" in printed
    assert hosts.run(1, "readlink -f /ncluster/runs/shared").strip() == f"{shared}/runs/shared"
    assert "not mounted" not in printed
    # What is there and is something else stays, and runs are where the hosts share them all the same.
    for host in range(2):
        hosts.run(host, "rm /ncluster; touch /ncluster")
    printed = launch("shared.py", folder, pool, refused="remote directory /ncluster does not exist")
    assert re.search("ncluster: /ncluster is not mounted: .*/ncluster is there already, and is not /shared", printed)
    for host in range(2):
        hosts.run(host, "rm -f /ncluster")
    (folder / "apart.py").write_text(SHARED.replace("import ncluster", APART))
    launch("apart.py", folder, pool, refused="remote directory /ncluster does not exist")
    hosts.run(0, "! test -e /ncluster")


WAITS = """
import ncluster
holder = ncluster.make_job(name="holder", num_tasks=2)
print("ready", flush=True)
try:
    ncluster.make_job(name="waits", num_tasks=2)
finally:
    holder.kill()
"""


def test_ctrl_c_while_machines_are_waited_for_withdraws_the_request(
    hosts: Hosts, pool: dict[str, str], folder: Path
) -> None:
    (folder / "waits.py").write_text(WAITS)
    process = subprocess.Popen(
        [sys.executable, "waits.py"], cwd=folder, env=pool, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("waiting for waits: "):
            process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) != 0
    assert "waits: the request for 2 machines is withdrawn\n" in said, said
    assert "KeyboardInterrupt\n" in said, said
    with muster.Client(home=pool["MUSTER_HOME"]) as client:
        assert client.jobs(name="waits")[0].wait(check=False, timeout=60).state == "stopped"


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
    job.run("touch $HOME/gone-begun; until [ -e $HOME/gone-on ]; do sleep 0.1; done")
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
            # The other machine is its own affair, and goes on until it is done.
            hosts.do("run", 0, "touch /root/gone-on")
            began = time.monotonic()
    assert process.wait(timeout=60) == 0, "".join(said)
    # 15 s until the host is given up.
    assert time.monotonic() - began < 45
    assert "lost node_gpu" in "".join(said)
    hosts.do("power-on", 1)
