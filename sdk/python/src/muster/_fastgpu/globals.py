"""What `ncluster_globals` and `fastgpu_globals` have: switches for all machines of a script."""

from __future__ import annotations

from .settings import SETTINGS


def set_should_disable_nas(value: bool) -> None:
    """Whether machines do without a shared volume."""
    SETTINGS.disable_nas = value


def should_disable_nas() -> bool:
    return SETTINGS.disable_nas


def set_logdir_root(path: str) -> None:
    """Where run directories are, instead of the generation's own place."""
    SETTINGS.logdir_root = path.rstrip("/")


def is_task_launched() -> bool:
    return SETTINGS.task_launched
