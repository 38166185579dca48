"""FastGPU's runtime under its second name; `ncluster` is the same."""

from __future__ import annotations

from typing import Any

from muster import __version__
from muster._fastgpu.generation import FASTGPU as _GENERATION
from muster._fastgpu.job import Job, Run
from muster._fastgpu.make import Maker, join
from muster._fastgpu.settings import SETTINGS, get_region, get_zone, set_backend
from muster._fastgpu.task import Task

from . import fastgpu_globals, util

_GENERATION.greet(__version__)
_MAKER = Maker(_GENERATION)

make_job = _MAKER.make_job
make_task = _MAKER.make_task
make_run = _MAKER.make_run
set_logdir_root = fastgpu_globals.set_logdir_root

__all__ = [
    "Job",
    "Run",
    "Task",
    "__version__",
    "add_authorized_keys",
    "fastgpu_globals",
    "get_backend",
    "get_backend_module",
    "get_logdir_root",
    "get_region",
    "get_zone",
    "join",
    "make_job",
    "make_run",
    "make_task",
    "running_locally",
    "running_on_aws",
    "set_backend",
    "set_logdir_root",
    "use_aws",
    "use_local",
    "util",
]


def use_aws() -> None:
    set_backend("aws")


def use_local() -> None:
    set_backend("local")


def get_logdir_root() -> str:
    """Where run directories are, if they can be there."""
    return SETTINGS.logdir_root or _GENERATION.runs


def get_backend() -> str:
    return SETTINGS.backend


def get_backend_module() -> Any:
    """Where this generation's `Task` and `Job` are."""
    from . import backend

    return backend


def running_locally() -> bool:
    return get_backend() == "local"


def running_on_aws() -> bool:
    """Never: machines are hosts that muster has."""
    return False


def add_authorized_keys(keys: list[str]) -> None:
    """Nothing: machines are reached through muster, which needs no keys on them."""
