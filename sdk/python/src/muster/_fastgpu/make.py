"""Making jobs, tasks and runs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from typing import Any, Callable

from .._job import Job as MusterJob
from . import names, source, volume
from .fanout import fan_out
from .generation import Generation
from .job import Job, Run
from .settings import SETTINGS
from .task import Task

_MEMBER = re.compile(r"task(\d+)\.(.+)")


class Maker:
    """`make_job` and its siblings, of one generation."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation

    def make_job(
        self,
        name: str = "",
        run_name: str = "",
        num_tasks: int = 1,
        install_script: str = "",
        instance_type: str = "",
        image_name: str = "",
        create_resources: bool = True,
        skip_setup: bool = False,
        is_chief: bool = True,
        image_type: str = "",
        disable_nas: bool = False,
        spot: bool = False,
        **kwargs: Any,
    ) -> Job:
        """Makes `num_tasks` machines named `task{i}.{name}`, or takes those that are there, and waits for all.

        Machines of the name that are of another type or image, or fewer than asked for, are an AssertionError.
        """
        assert num_tasks > 0, f"num_tasks is {num_tasks}; a job has at least one"
        instance_type = instance_type or os.environ.get("NCLUSTER_INSTANCE", "")
        image_name = image_name or os.environ.get("NCLUSTER_IMAGE", "")
        names.check_run(run_name)
        name = name or names.made_up("job", instance_type, image_name, num_tasks)
        names.check_job(name)
        if disable_nas:
            SETTINGS.disable_nas = True
        said = {"instance_type": instance_type, "image_name": image_name, "image_type": image_type, "spot": spot}
        labels = {key: str(value) for key, value in {**kwargs, **said}.items() if key in source.KEPT and value}
        remote, reused = self._machines(name, num_tasks, labels, skip_setup)
        known: dict[str, str] = remote.spec.get("labels") or {}
        made = {
            "install_script": install_script,
            "instance_type": known.get("instance_type", ""),
            "image_name": known.get("image_name", ""),
            "generation": self.generation,
            "extra": kwargs,
        }
        tasks = [
            Task(f"task{one.rank}.{name}", one, None, instance_reuse=reused, **made) for one in remote.tasks[:num_tasks]
        ]
        if not skip_setup:
            volume.mount(remote, self.generation)
        self._begin(tasks, skip_setup)
        if not skip_setup:
            source.tell_of_home(remote, tasks[0].homedir, tasks[0].ssh_username, self.generation)
        return Job(name, run_name, remote, tasks, self.generation, num_tasks=num_tasks, **said, **kwargs)

    def make_task(self, name: str = "", run_name: str = "", **kwargs: Any) -> Task:
        """One machine: `name`, or one of a group that is there if it is called `task{i}.{group}`."""
        name = name or names.made_up("task", kwargs.get("instance_type", ""), kwargs.get("image_name", ""))
        names.check_task(name)
        kwargs.pop("num_tasks", None)
        member = _MEMBER.fullmatch(name)
        if member and (group := source.find(member[2])) is not None:
            rank = int(member[1])
            assert rank < group.nodes, f"{group.name} has {group.nodes} machines, so there is no {name}"
            source.wake(group, rank)
            task = Task(name, group.tasks[rank], None, instance_reuse=True, generation=self.generation, **kwargs)
            self._begin([task], kwargs.get("skip_setup", False))
            Job(group.name, run_name, group, [task], self.generation)
            return task
        task = self.make_job(name=name, run_name=run_name, num_tasks=1, **kwargs).tasks[0]
        task.name = name
        return task

    def make_run(self, name: str) -> Run:
        assert name, "a run has a name"
        names.check_run(name)
        return Run(name, self.make_job)

    def get_logdir_root(self) -> str:
        """Where run directories are, if they can be there."""
        return SETTINGS.logdir_root or self.generation.runs

    def _machines(self, name: str, num_tasks: int, labels: dict[str, str], skip_setup: bool) -> tuple[MusterJob, bool]:
        assert not skip_setup or source.find(name) is not None, (
            f"skip_setup is for machines that were set up before, and there are none called {name}"
        )
        began = time.monotonic()
        remote, reused = source.make(name, num_tasks, labels, self.generation)
        SETTINGS.task_launched = True
        which = "taken" if reused else "made"
        count = "1 machine" if num_tasks == 1 else f"{num_tasks} machines"
        print(f"{self.generation.name}: {name}: {count} {which} in {time.monotonic() - began:.1f} s", flush=True)
        return remote, reused

    def _begin(self, tasks: list[Task], skip_setup: bool) -> None:
        def begin(task: Task) -> None:
            task._begin(fresh=not skip_setup)
            if not skip_setup:
                task._set_up(f"_{self.generation.name}_install_script")

        fan_out(tasks, begin)


def join(things: Any) -> None:
    """Waits for the last command of a task, a job, or several of them."""
    if isinstance(things, Iterable):
        for thing in things:  # pyright: ignore[reportUnknownVariableType]
            join(thing)
        return
    wait: Callable[[], object] = things.join
    wait()
