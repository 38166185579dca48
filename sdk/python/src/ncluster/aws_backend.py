"""The classes, for scripts that import them from here; there is nothing of AWS behind them."""

from .backend import Instance, Job, Run, Task

__all__ = ["Instance", "Job", "Run", "Task"]
