"""The classes, for those who look for them here."""

from muster._fastgpu.job import Job, Run
from muster._fastgpu.task import Instance, Task

__all__ = ["Instance", "Job", "Run", "Task"]
