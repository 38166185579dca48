"""A task: one machine, and everything that is done on it."""

from __future__ import annotations

import atexit
import contextlib
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._error import Error
from .._job import Task as MusterTask
from .._printable import inline
from . import source
from .files import Files
from .generation import NCLUSTER, Generation
from .instances import GPUS
from .names import random_letters
from .source import get_zone

if TYPE_CHECKING:
    from .job import Job

#: Set in every task's shell, from the launcher.
PROPAGATED = ("NCLUSTER_AUTHORIZED_KEYS", "WANDB_API_KEY")


class Instance:
    """The machine below a task, as a provider's object."""

    def __init__(self, name: str, remote: MusterTask, instance_type: str, image_name: str) -> None:
        self._name, self._remote = name, remote
        self.instance_type, self.image_name = instance_type, image_name
        self.id = remote.node
        self.private_ip_address = self.public_ip_address = remote.ip or ""

    def instance_name(self) -> str:
        return self._name

    def instance_id(self) -> str:
        return self._remote.node

    def __repr__(self) -> str:
        return f"Instance({self._name!r} on {self._remote.node})"


class Task(Files):
    """One machine. What `run` changes in its shell (directory, variables, an activated environment) stays."""

    def __init__(self, name: str, remote: MusterTask, job: Job | None, **kwargs: Any) -> None:
        super().__init__(name, remote)
        self.job = job
        self.rank = remote.rank
        self.ip = self.public_ip = remote.ip or ""
        self.install_script: str = kwargs.get("install_script", "")
        self.instance_reuse: bool = kwargs.get("instance_reuse", False)
        self.instance_type: str = kwargs.get("instance_type", "")
        self.instance = Instance(name, remote, self.instance_type, kwargs.get("image_name", ""))
        generation: Generation = kwargs.get("generation", NCLUSTER)
        self._returns_output = generation.returns_output
        self.connect_instructions = f"{generation.program} tmux {name}"
        self.extra_kwargs: dict[str, Any] = kwargs.get("extra", {})
        self.homedir = self.ssh_username = ""
        #: There is no SSH connection: commands and files go through muster.
        self.ssh_client = self.sftp = None
        self._scratch = f"/tmp/ncluster/{name}-{random_letters()}"
        self._has_scratch = False

    @property
    def remote_scratch(self) -> str:
        """A directory of the task's, for what comes and goes; made when it is asked for first."""
        if not self._has_scratch:
            self._look(f"mkdir -p {shlex.quote(self._scratch)}")
            self._has_scratch = True
        return self._scratch

    @property
    def local_scratch(self) -> str:
        """The same here."""
        folder = Path(tempfile.gettempdir()) / self._scratch[len("/tmp/") :]
        folder.mkdir(parents=True, exist_ok=True)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return str(folder)

    @property
    def logdir(self) -> str:
        """The run's directory, made when it is asked for first."""
        return self.job.logdir if self.job is not None else "/tmp"

    def setup_logdir(self) -> None:
        """Makes the run's directory."""
        assert self.logdir

    @property
    def zone(self) -> str:
        return get_zone()

    @property
    def num_gpus(self) -> int:
        return len(self._remote.devices) or GPUS.get(self.instance_type, 0)

    def stop(self) -> None:
        """Stops this machine, once every command that it was given is over; the others of its group go on."""
        job = self._group()
        if job._remote.nodes == 1:
            job.stop()
            return
        if (now := self._now()).phase == "running" and now.parting is None:
            self._settle()
            self._tidy()
            self._remote.suspend()
        self._remote.wait_for("ended")
        print(f"{self.name} is stopped; `{job.generation.program} start {self.name}` starts it", flush=True)

    def start(self) -> None:
        """Starts this machine again after `stop`, with new shells; files are where they were if its host was free."""
        job = self._group()
        if job._remote.nodes == 1:
            source.wake(job._remote)
        elif self._now().phase == "ended":
            self._remote.resume()
        self._remote = self._remote.wait_for("running", "ended")
        assert self._remote.phase == "running", inline(f"{self.name} did not start: {self._remote.message}")
        self.ip = self.public_ip = self._remote.ip or ""
        self.instance = Instance(self.name, self._remote, self.instance_type, self.instance.image_name)
        self._forget_shells()
        self._begin(fresh=True)
        self.propagate_env(PROPAGATED)

    def kill(self) -> None:
        """Releases this machine at once, whatever it is doing; the others of its group go on."""
        job = self._group()
        if job._remote.nodes == 1:
            job.kill()
            return
        now = self._now()
        if now.parting != "stop" and not job._remote.is_over:
            if now.phase == "running":
                # What cannot be reached any more keeps its scratch: nobody waits for it.
                with contextlib.suppress(RuntimeError, Error):
                    self._tidy()
            self._remote.stop()
        self._remote.wait_for("ended")
        print(f"{self.name} is released", flush=True)

    def _group(self) -> Job:
        assert self.job is not None, f"{self.name} is not part of a job"
        return self.job

    def _now(self) -> MusterTask:
        return self._group()._remote.tasks[self.rank]

    def _tidy(self) -> None:
        """Takes away what was made for what comes and goes."""
        if self._has_scratch:
            self._look(f"rm -rf {shlex.quote(self._scratch)}")
            self._has_scratch = False

    def _begin(self, *, fresh: bool) -> None:
        """Opens its shell: a new one, unless it is to be as it was left."""
        self._open_window(0, fresh=fresh)
        setup = "export PYTHONUNBUFFERED=1; pwd; id -un"
        # Its own numbers count from the first command of the script.
        started = self._window(0).run(setup if fresh else "pwd; id -un")
        self.homedir, self.ssh_username = started.output.splitlines()[-2:]

    def _set_up(self, marker: str) -> None:
        """Whatever is done once for a machine, and the variables that every shell has."""
        if self.install_script and not self.exists(marker):
            lines = [line for line in self.install_script.splitlines() if line.strip()]
            script = "\n".join(f"echo {shlex.quote('* ' + line)}\n{line}" for line in lines)
            self.write("install.sh", f"{script}\necho ok > {shlex.quote(marker)}\n")
            self.log("running install script")
            self.run("bash -e install.sh", return_output=False)
        self.propagate_env(PROPAGATED)

    def __repr__(self) -> str:
        return f"Task({self.name!r}, ip={self.ip!r})"
