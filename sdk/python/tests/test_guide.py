"""The guide: what it shows is done, and must go as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

GUIDE = ROOT / "docs/guides/python.md"
PYTHON = re.compile(r"`([\w.]+\.py)`[^`\n]*:\n\n```python\n(.*?)```", re.DOTALL)
CONSOLE = re.compile(r"```console\n\$ python (\S+)\n(.*?)```", re.DOTALL)
SHOWN = CONSOLE.findall(GUIDE.read_text())


@pytest.mark.parametrize("name", [name for name, _ in SHOWN])
def test_a_script_of_the_guide_prints_what_the_guide_shows(place: Path, tmp_path: Path, name: str) -> None:
    files: list[tuple[str, str]] = PYTHON.findall(GUIDE.read_text())
    assert name in [file for file, _ in files], f"{name} is not on the page"
    for file, text in files:
        (tmp_path / file).write_text(text)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run(["python", name], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout == dict(SHOWN)[name]
