"""Run training code as distributed jobs.

>>> import muster
>>> job = muster.run("python train.py", nodes=2)
>>> job.wait(show=True)

Without a server of your own a private one is started on this machine; see `Client`.
"""

from __future__ import annotations

import threading
from typing import Any

from ._client import Client
from ._error import (
    CommandFailed,
    CommandLost,
    Conflict,
    Error,
    Failed,
    Invalid,
    JobFailed,
    JobLost,
    NotFound,
    Problem,
    ServerFailed,
    SessionOver,
    Timeout,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from ._job import Completed, Job, Jobs, Task
from ._logs import Line
from ._session import Command, Session
from ._stop import StopNotice, saved, should_stop, stop_notice

__version__ = "0.1.0"

__all__ = [
    "Client",
    "Command",
    "CommandFailed",
    "CommandLost",
    "Completed",
    "Conflict",
    "Error",
    "Failed",
    "Invalid",
    "Job",
    "JobFailed",
    "JobLost",
    "Jobs",
    "Line",
    "NotFound",
    "Problem",
    "ServerFailed",
    "Session",
    "SessionOver",
    "StopNotice",
    "Task",
    "Timeout",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "client",
    "job",
    "jobs",
    "run",
    "saved",
    "should_stop",
    "stop_notice",
]

_default: Client | None = None
_making = threading.Lock()


def client() -> Client:
    """The client that the functions of this module use: of `MUSTER_SERVER`, else of the private server."""
    global _default
    with _making:
        if _default is None:
            _default = Client()
        return _default


def run(command: str | list[str], **how: Any) -> Job:
    """Submits a command as a job and returns at once; see `Client.run` for everything it takes."""
    return client().run(command, **how)


def job(selector: str = "last") -> Job:
    """A job by its id, the beginning of it, its name, or `last`."""
    return client().job(selector)


def jobs(**how: Any) -> Jobs:
    """Jobs, newest first; see `Client.jobs`."""
    return client().jobs(**how)
