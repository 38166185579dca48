"""A real server for the tests: the built binary, with data, home and socket of its own."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import muster

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def binary() -> Path:
    """The built binary: `MUSTER_BINARY`, else that of the checkout."""
    named = os.environ.get("MUSTER_BINARY")
    path = Path(named) if named else ROOT / "target/debug/muster"
    assert path.exists(), f"{path} is not there: cargo build -p muster-app, or set MUSTER_BINARY"
    return path


@pytest.fixture(scope="session")
def place(binary: Path) -> Iterator[Path]:
    """A folder with a home, so that nobody's shell is set up as its user likes it, and the server's data."""
    # The path of a socket has to be short, and pytest's own folders are not.
    with tempfile.TemporaryDirectory(prefix="sdk-", dir="/tmp") as folder:
        place = Path(folder)
        (place / "home").mkdir()
        (place / "bin").mkdir()
        (place / "bin/muster").symlink_to(binary)
        before = dict(os.environ)
        os.environ.update(
            HOME=str(place / "home"),
            MUSTER_HOME=str(place / "data"),
            MUSTER_BINARY=str(binary),
            PATH=f"{place / 'bin'}:{os.environ['PATH']}",
            # What a test starts is Python without whatever the tests themselves run under.
            NCLUSTER_DISABLE_PDB_HANDLER="1",
        )
        for name in (
            "MUSTER_SERVER",
            "MUSTER_TOKEN",
            "MUSTER_CONTEXT",
            "MUSTER_FINGERPRINT",
            "MUSTER_MACHINES",
            "XDG_DATA_HOME",
        ):
            os.environ.pop(name, None)
        try:
            yield place
        finally:
            end(binary)
            os.environ.clear()
            os.environ.update(before)


def end(binary: Path) -> None:
    """Ends every job, then the server."""
    with muster.Client() as client:
        for job in client.jobs(limit=1000):
            if not job.is_over:
                job.stop()
                job.wait(check=False, timeout=60)
    subprocess.run([binary, "server", "stop"], check=True, capture_output=True)


@pytest.fixture
def client(place: Path) -> Iterator[muster.Client]:
    with muster.Client() as client:
        yield client


@pytest.fixture
def work(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to submit from, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
