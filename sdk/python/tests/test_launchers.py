"""One launcher for each form of public scripts, run unchanged on this machine and on hosts with an sshd each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pools import Hosts, a_pool
from test_machines import HERE, SCRIPTS

import muster

LAUNCHERS = SCRIPTS / "launchers"
MACHINES = 2


@pytest.fixture(scope="module", params=["local", "hosts"])
def environment(request: pytest.FixtureRequest, binary: Path, place: Path) -> Iterator[dict[str, str]]:
    """The environment of a user whose machines are on this one, and of another, whose machines are on hosts."""
    if request.param == "local":
        yield {**os.environ, "PYTHONPATH": HERE, "ALIYUN_DEFAULT_REGION": "cn-beijing"}
        return
    hosts = Hosts(binary, MACHINES)
    try:
        with a_pool(binary, hosts) as environment:
            yield environment
    finally:
        hosts.close()


def launch(name: str, folder: Path, environment: dict[str, str]) -> str:
    """What a launcher prints that stands beside a folder of code, as people have it."""
    shutil.copy(LAUNCHERS / name, folder)
    (folder / "classify").mkdir()
    (folder / "classify/train.py").write_text("print('accuracy 0.9')\n")
    words = [sys.executable, name, "--machines", str(MACHINES)]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def state(job: str, environment: dict[str, str]) -> str:
    with muster.Client(home=environment["MUSTER_HOME"]) as client:
        return client.jobs(name=job)[0].state


def test_the_region_is_asked_for_before_the_backend(environment: dict[str, str], tmp_path: Path) -> None:
    printed = launch("region_first.py", tmp_path, environment)
    assert re.search(
        r"^region cn-beijing, logdir \S*/fastgpu/runs/region-first-image-classification-2$", printed, re.MULTILINE
    ), printed
    assert re.search(r"^command: mpirun -np 16 --host [\d.]+:8,[\d.]+:8$", printed, re.MULTILINE), printed
    assert state("region-first", environment) == "suspended"


def test_spot_machines_without_nas_are_stopped_and_then_killed(environment: dict[str, str], tmp_path: Path) -> None:
    printed = launch("spot_without_nas.py", tmp_path, environment)
    assert "trained: accuracy 0.9\nsent: True\n" in printed
    assert state("spot-without-nas", environment) == "stopped"


def test_outputs_are_returned_shown_and_in_the_file_of_the_last_command(
    environment: dict[str, str], tmp_path: Path
) -> None:
    printed = launch("outputs_of_commands.py", tmp_path, environment)
    assert "instance: task1.outputs-of-commands True\n" in printed
    assert "epoch 1\n" in printed and "loss 0.5\n" in printed, "shown as it runs"
    assert "returned: 'epoch 1\\nloss 0.5\\n'\nfile: 'epoch 1\\nloss 0.5\\n'\n" in printed, printed
    assert re.search(r"^refused: Command .*exit 3.* returned status 3$", printed, re.MULTILINE), printed
    assert state("outputs-of-commands", environment) == "stopped"


def test_the_folder_of_the_launcher_is_sent_and_machines_reach_each_other(
    environment: dict[str, str], tmp_path: Path
) -> None:
    printed = launch("whole_folder.py", tmp_path, environment)
    assert re.findall(r"^reached: (.*)$", printed, re.MULTILINE) == ["rank 0", "rank 1"], printed
    assert "state: 7 classify\n" in printed


def test_paths_of_root_are_each_machines_own(environment: dict[str, str], tmp_path: Path) -> None:
    printed = launch("paths_of_root.py", tmp_path, environment)
    kept = [[str(rank), "print('accuracy", "0.9')"] for rank in range(MACHINES)]
    for line in (
        "home: {'/root'}",
        "results: ['accuracy 0.9', 'accuracy 0.9']",
        "ranks: ['0', '1']",
        f"kept: {kept}",
        "by ssh: 1",
        "left: [False, False]",
    ):
        assert line in printed.splitlines(), printed
    assert not Path("/root/muster-paths").exists(), "this computer's own home"
