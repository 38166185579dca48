"""FastGPU's runtime under its second name; `ncluster` is the same."""

from __future__ import annotations

from typing import Any

from muster._fastgpu import front
from muster._fastgpu.front import *  # noqa: F403
from muster._fastgpu.generation import FASTGPU
from muster._fastgpu.make import Maker

from . import backend, fastgpu_globals, util

_MAKER = Maker(FASTGPU)
_MAKER.generation.greet(front.__version__)

make_job = _MAKER.make_job
make_task = _MAKER.make_task
make_run = _MAKER.make_run
get_logdir_root = _MAKER.get_logdir_root


def get_backend_module() -> Any:
    """Where this generation's `Task` and `Job` are."""
    return backend


__all__ = [
    "fastgpu_globals",
    "get_backend_module",
    "get_logdir_root",
    "make_job",
    "make_run",
    "make_task",
    "util",
]
__all__ += front.__all__
