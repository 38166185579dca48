"""Jobs: groups of machines, on all of which the same is done at once."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Callable, TypeVar

from .. import _binary
from .._job import Job as MusterJob
from .fanout import fan_out
from .generation import Generation
from .rundir import logdir
from .shell import told
from .task import Task

R = TypeVar("R")
#: How many arguments of `Task.run` are before `return_output`, without the command.
RETURN_OUTPUT = 7


class Job:
    """A group of machines. It has the methods of its tasks; each does the same on every one, and tells all failures."""

    def __init__(
        self, name: str, run_name: str, remote: MusterJob, tasks: list[Task], generation: Generation, **kwargs: Any
    ) -> None:
        self.name, self.run_name = name, run_name
        self.tasks = tasks
        self.kwargs = kwargs
        self.generation = generation
        self._remote = remote
        self._has_logdir: set[str] = set()
        for task in tasks:
            task.job = self

    @property
    def logdir(self) -> str:
        """The run's directory, made when it is asked for first; `/tmp` without a run name."""
        return logdir(self)

    @property
    def num_tasks(self) -> int:
        return len(self.tasks)

    def run(self, cmd: str | Sequence[str], *args: Any, **kwargs: Any) -> list[str | None] | None:
        """Runs a command on every machine; see `Task.run`. With `return_output`, what each wrote."""
        if len(args) <= RETURN_OUTPUT:
            kwargs.setdefault("return_output", False)
        results = self._fan_out(lambda task: task.run(cmd, *args, **kwargs))
        return results if kwargs.get("return_output") else None

    def run_with_output(self, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
        return self._fan_out(lambda task: task.run_with_output(*args, **kwargs))

    def join(self, ignore_errors: bool = False) -> list[int]:
        """Waits for the last command of every machine."""
        return self._fan_out(lambda task: task.join(ignore_errors))

    def upload(self, local_fn: str, remote_fn: str = "", dont_overwrite: bool = False) -> None:
        """Copies files to every machine; see `Task.upload`. What all of them get leaves here once."""
        plans = self._fan_out(lambda task: task._copies(local_fn, remote_fn, dont_overwrite))
        if len(self.tasks) > 1 and len(self.tasks) == self._remote.nodes and all(plan == plans[0] for plan in plans):
            for copy in plans[0]:
                words = ["cp", "--json", "--all", *copy.sources, f"{self._remote.id}:{copy.target}"]
                with told(self.name, self._remote._transport, self._remote.id):
                    _binary.call(words, environment=self._remote._transport.environment)
            return
        self._fan_out(lambda task: task._send(plans[self.tasks.index(task)]))

    def download(self, remote_fn: str, local_fn: str = "") -> None:
        """Copies files from every machine, into a folder with its name for each of several."""
        if len(self.tasks) == 1:
            self.tasks[0].download(remote_fn, local_fn)
            return
        self._fan_out(lambda task: task.download(remote_fn, f"{local_fn or '.'}/{task.name}/"))

    def rsync(self, *args: Any, **kwargs: Any) -> None:
        self._fan_out(lambda task: task.rsync(*args, **kwargs))

    def read(self, fn: str) -> list[str]:
        return self._fan_out(lambda task: task.read(fn))

    def write(self, *args: Any, **kwargs: Any) -> None:
        self._fan_out(lambda task: task.write(*args, **kwargs))

    def exists(self, fn: str) -> bool:
        """On every machine."""
        return all(self._fan_out(lambda task: task.exists(fn)))

    def isdir(self, fn: str) -> bool:
        """On every machine."""
        return all(self._fan_out(lambda task: task.isdir(fn)))

    file_read, file_write, file_exists = read, write, exists

    def wait_for_file(self, *args: Any, **kwargs: Any) -> bool:
        return all(self._fan_out(lambda task: task.wait_for_file(*args, **kwargs)))

    def switch_window(self, window_id: int) -> None:
        self._fan_out(lambda task: task.switch_window(window_id))

    def propagate_env(self, *args: Any, **kwargs: Any) -> None:
        self._fan_out(lambda task: task.propagate_env(*args, **kwargs))

    def _run_raw(self, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
        return self._fan_out(lambda task: task._run_raw(*args, **kwargs))

    def stop(self) -> None:
        """Stops the machines, once every command that they were given is over; they are kept by their name."""
        if self._remote.state == "running":
            running = self._running()
            fan_out(running, lambda task: task._settle())
            fan_out(running, lambda task: task._tidy())
            self._remote.suspend()
        self._remote._wait_for(frozenset({"suspended", "succeeded", "failed", "stopped"}), None)
        print(f"{self.name} is stopped; `{self.generation.program} start {{{self.name}}}` starts it", flush=True)

    def kill(self) -> None:
        """Releases the machines at once, whatever they are doing."""
        if not self._remote.is_over:
            if self._remote.state == "running":
                # Whatever cannot be reached any more keeps its scratch: nobody waits for it.
                with contextlib.suppress(RuntimeError):
                    fan_out(self._running(), lambda task: task._tidy())
            self._remote.stop()
            self._remote.wait(check=False)
        print(f"{self.name} is released", flush=True)

    def _running(self) -> list[Task]:
        """Those that were not stopped one by one."""
        running = {task.rank for task in self._remote.tasks if task.phase == "running"}
        return [task for task in self.tasks if task.rank in running]

    def _fan_out(self, do: Callable[[Task], R]) -> list[R]:
        return fan_out(self.tasks, do)

    def __repr__(self) -> str:
        return f"Job({self.name!r}, {len(self.tasks)} tasks)"


class Run:
    """Jobs that belong together: their machines are named after it, and they share its directory."""

    def __init__(self, name: str, make_job: Callable[..., Job]) -> None:
        self.name = name
        self.jobs: list[Job] = []
        self.placement_group = ""
        self._make_job = make_job

    def make_job(self, name: str = "", **kwargs: Any) -> Job:
        job = self._make_job(name=f"{name}.{self.name}" if name else "", run_name=self.name, **kwargs)
        self.jobs.append(job)
        return job

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Runs a command on every machine of every job; see `Task.run`."""
        self._fan_out(lambda job: job.run(*args, **kwargs))

    def run_with_output(self, *args: Any, **kwargs: Any) -> list[list[tuple[str, str]]]:
        return self._fan_out(lambda job: job.run_with_output(*args, **kwargs))

    def upload(self, *args: Any, **kwargs: Any) -> None:
        """Copies files to every machine of every job; see `Task.upload`."""
        self._fan_out(lambda job: job.upload(*args, **kwargs))

    def join(self, ignore_errors: bool = False) -> None:
        """Waits for the last command of every machine."""
        self._fan_out(lambda job: job.join(ignore_errors))

    def stop(self) -> None:
        """Stops the machines of every job, once every command that they were given is over."""
        self._fan_out(lambda job: job.stop())

    def kill(self) -> None:
        """Releases the machines of every job at once."""
        self._fan_out(lambda job: job.kill())

    def _run_raw(self, *args: Any, **kwargs: Any) -> list[list[tuple[str, str]]]:
        return self._fan_out(lambda job: job._run_raw(*args, **kwargs))

    def _fan_out(self, do: Callable[[Job], R]) -> list[R]:
        return fan_out(self.jobs, do)

    @property
    def logdir(self) -> str:
        assert self.jobs, f"run {self.name} has no job yet, and so no machine to have a directory"
        return self.jobs[0].logdir
