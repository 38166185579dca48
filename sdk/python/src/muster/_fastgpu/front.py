"""What `ncluster` and `fastgpu` have alike, under the names that scripts use. What a package adds is made of its
generation: `make_job` and its siblings, and where its run directories are."""

from __future__ import annotations

from .. import __version__
from .globals import set_logdir_root
from .job import Job, Run
from .make import join
from .mpi import gen_command_file, get_mpi_prefix
from .settings import SETTINGS, set_backend
from .source import get_region, get_zone
from .task import Task

__all__ = [
    "Job",
    "Run",
    "Task",
    "__version__",
    "add_authorized_keys",
    "gen_command_file",
    "get_backend",
    "get_mpi_prefix",
    "get_region",
    "get_zone",
    "join",
    "running_locally",
    "running_on_aws",
    "set_backend",
    "set_logdir_root",
    "use_aliyun",
    "use_aws",
    "use_local",
]


def use_aliyun() -> None:
    set_backend("aliyun")


def use_aws() -> None:
    set_backend("aws")


def use_local() -> None:
    set_backend("local")


def get_backend() -> str:
    return SETTINGS.backend


def running_locally() -> bool:
    return get_backend() == "local"


def running_on_aws() -> bool:
    """Never: machines are hosts that muster has."""
    return False


def add_authorized_keys(keys: list[str]) -> None:
    """Nothing: machines are reached through muster, which needs no keys on them."""
