"""examples/fastgpu, twice: machines are made, then found again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import muster


def test_the_example_trains_on_two_machines_and_again_on_the_same(
    place: Path, work: Path, client: muster.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples/fastgpu", work, dirs_exist_ok=True)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(path) for path in sys.path if path))
    outputs: list[str] = []
    for _ in range(2):
        script = [sys.executable, "train_news_classifier.py", "--machines", "2"]
        done = subprocess.run(script, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        outputs.append(done.stdout)
    ends = [re.findall(r"rank (\d) of 2: accuracy (\S+), parameters (\S+)", text) for text in outputs]
    assert sorted(rank for rank, _, _ in ends[0]) == ["0", "1"], outputs[0]
    assert len({parameters for end in ends for _, _, parameters in end}) == 1, "the same models, bit for bit"
    assert all(float(accuracy) > 0.9 for end in ends for _, accuracy, _ in end)
    assert "2 machines made" in outputs[0] and "2 machines taken" in outputs[1]
    assert re.search(r"Logging to .*/fastgpu/runs/news-classifier-2\.01\n", outputs[1])
    client.job("news-classifier").stop()
