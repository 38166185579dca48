"""FastGPU's runtime under its first name: groups of machines by name, and commands and files on all of them."""

from __future__ import annotations

from typing import Any

from muster._fastgpu import front
from muster._fastgpu.front import *  # noqa: F403
from muster._fastgpu.generation import NCLUSTER
from muster._fastgpu.make import Maker

from . import aws_backend, aws_util, backend, ncluster_globals, util

_MAKER = Maker(NCLUSTER)
_MAKER.generation.greet(front.__version__)

make_job = _MAKER.make_job
make_task = _MAKER.make_task
make_run = _MAKER.make_run
get_logdir_root = _MAKER.get_logdir_root


def get_backend_module() -> Any:
    """Where this generation's `Task` and `Job` are."""
    return backend


__all__ = [
    "aws_backend",
    "aws_util",
    "backend",
    "get_backend_module",
    "get_logdir_root",
    "make_job",
    "make_run",
    "make_task",
    "ncluster_globals",
    "util",
]
__all__ += front.__all__
