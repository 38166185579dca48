"""What a script sets for all its machines."""

from muster._fastgpu.globals import (
    is_task_launched,
    set_logdir_root,
    set_should_disable_nas,
    should_disable_nas,
)

__all__ = [
    "is_task_launched",
    "set_logdir_root",
    "set_should_disable_nas",
    "should_disable_nas",
]
