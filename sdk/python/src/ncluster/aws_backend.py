"""The names that scripts take from here; there is nothing of AWS behind them."""

from muster._fastgpu.instances import GENERIC_SMALL_IMAGE, GENERIC_SMALL_INSTANCE, INSTANCE_INFO

from .backend import Instance, Job, Run, Task

__all__ = [
    "GENERIC_SMALL_IMAGE",
    "GENERIC_SMALL_INSTANCE",
    "INSTANCE_INFO",
    "Instance",
    "Job",
    "Run",
    "Task",
]
