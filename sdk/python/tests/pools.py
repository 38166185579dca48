"""Hosts that share nothing, and a user's server that has them as a pool."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Callable

from test_machines import HERE

import muster


class Hosts:
    """Hosts of `muster_testkit`; they are gone when its program is."""

    def __init__(self, binary: Path, count: int) -> None:
        program = binary.resolve().with_name("hosts")
        assert program.exists(), f"{program} is not there: cargo build -p muster-testkit"
        assert os.geteuid() == 0, "hosts are made of namespaces, which only root can make: run this as root"
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


@contextlib.contextmanager
def a_pool(binary: Path, hosts: Hosts) -> Generator[dict[str, str], None, None]:
    """The environment of a user whose server has the hosts as its only pool."""
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


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
