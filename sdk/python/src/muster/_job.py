"""Jobs and their tasks."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, overload
from urllib.parse import quote

import httpx

from . import _binary
from ._error import CommandFailed, JobFailed, Timeout
from ._logs import Line, lines
from ._printable import inline, output
from ._session import Session, Words
from ._show import ago, columns, table

if TYPE_CHECKING:
    from . import _wire
    from ._transport import Transport

OVER = frozenset({"succeeded", "failed", "stopped"})
LocalPath = Union[str, Path]


@dataclass(frozen=True)
class Completed:
    """A command that was run in a task."""

    command: str
    exit_code: int
    stdout: str
    stderr: str


class Task:
    """One member of a job's gang."""

    def __init__(self, transport: Transport, job: str, seen: _wire.TaskView) -> None:
        self.job = job
        self.rank = seen["rank"]
        self.node = seen["node"]
        self.phase = seen["phase"]
        #: Which try it was started in.
        self.attempt = seen.get("attempt", 1)
        #: Of a machine that is given back, or is to be: `suspend` for now, `stop` for good.
        self.parting = seen.get("parting")
        self.devices = seen["devices"]
        address = seen.get("address")
        #: Where its peers reach it; none before it is ready.
        self.ip = address["ip"] if address else None
        #: Why it failed, in words.
        self.message = seen.get("message")
        #: That it was told to end while it ran: why, when, and whether it had to be killed.
        self.notice = seen.get("notice")
        #: When it last said that it had saved its work.
        self.saved_at = seen.get("saved_at")
        self._transport = transport

    @property
    def name(self) -> str:
        return f"{self.job}/{self.rank}"

    def session(self, name: str = "main", *, fresh: bool = False) -> Session:
        """A shell in it that keeps directory and variables between commands, opened if it is not."""
        session = Session(self._transport, self.job, self.rank, name)
        session.open(fresh=fresh)
        return session

    def exec(self, command: Words, *, check: bool = True, stdin: str | bytes | None = None) -> Completed:
        """Runs one command in it, with its variables, directory, files and devices. A text is a line for the shell."""
        words = ["sh", "-c", command] if isinstance(command, str) else list(command)
        data = stdin.encode() if isinstance(stdin, str) else stdin
        flags = [] if data is None else ["-i"]
        done = _binary.run(
            ["exec", *flags, self.name, "--", *words], environment=self._transport.environment, data=data
        )
        text = command if isinstance(command, str) else shlex.join(command)
        stdout, stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if check and done.returncode != 0:
            raise CommandFailed(text, done.returncode, stdout + stderr)
        return Completed(text, done.returncode, stdout, stderr)

    def upload(self, *local: LocalPath, to: str = "", force: bool = False) -> None:
        """Copies files and directories to it; what is there with the same size and time is not copied again."""
        flags = ["--force"] if force else []
        words = ["cp", "--json", *flags, *map(here, local), f"{self.name}:{to}"]
        _binary.call(words, environment=self._transport.environment)

    def download(self, *remote: str, to: LocalPath = ".") -> None:
        """Copies files and directories from it."""
        words = ["cp", "--json", *(f"{self.name}:{path}" for path in remote), here(to)]
        _binary.call(words, environment=self._transport.environment)

    def logs(self, **how: Any) -> Iterator[Line]:
        """Its lines; see `Job.logs`."""
        return Job(self._transport, self.job).logs(task=self.rank, **how)

    def suspend(self) -> None:
        """Of a machine: what runs there ends, and it holds nothing; the others of its group go on."""
        self._transport.call("POST", f"/jobs/{self.job}/tasks/{self.rank}/suspend")

    def resume(self) -> None:
        """Of a machine that is over: starts it anew beside the others, or `Conflict` if there is no room now."""
        self._transport.call("POST", f"/jobs/{self.job}/tasks/{self.rank}/resume")

    def stop(self) -> None:
        """Of a machine: gives it back for good; the others of its group go on."""
        self._transport.call("POST", f"/jobs/{self.job}/tasks/{self.rank}/stop")

    def wait_for(self, *phases: str, timeout: float | None = None) -> Task:
        """As it is once it is in one of these phases (`ready`, `running`, `ended`), or its job is over."""
        deadline = None if timeout is None else time.monotonic() + timeout
        job, pause = Job(self._transport, self.job), 0.02
        while (now := job.tasks[self.rank]).phase not in phases and not job.is_over:
            if deadline is not None and time.monotonic() >= deadline:
                raise Timeout(self.name, timeout or 0)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)
        return now

    def __repr__(self) -> str:
        return inline(f"Task({self.name}, {self.phase} on {self.node})")


class Job:
    """A job: looked up when something is asked of it, so that what it says is true now."""

    def __init__(self, transport: Transport, selector: str, seen: _wire.JobDetail | None = None) -> None:
        self._transport = transport
        self._detail: _wire.JobDetail = seen or transport.get(f"/jobs/{quote(selector, safe='')}")
        self.id = self._detail["id"]
        self._path = f"/jobs/{self.id}"

    @property
    def name(self) -> str:
        return self._detail["name"]

    @property
    def display_name(self) -> str | None:
        """What people call it, in any script."""
        return self._detail.get("display_name")

    @property
    def nodes(self) -> int:
        return self._detail["nodes"]

    @property
    def command(self) -> str:
        return self._detail["command"]

    @property
    def spec(self) -> _wire.JobSpec:
        """Everything it was asked to be, defaults filled in."""
        return self._detail["spec"]

    @property
    def state(self) -> _wire.State:
        """`queued`, `starting`, `running`, `stopping`, `suspended`; at the end `succeeded`, `failed`, `stopped`."""
        return self._look()["state"]

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def reason(self) -> str | None:
        """The code of why it is where it is, where that is not plain: `exit_code`, `node_lost`, …"""
        reason = self._look().get("reason")
        return reason["code"] if reason else None

    @property
    def message(self) -> str | None:
        """The same in words."""
        return self._look().get("message")

    @property
    def exit_code(self) -> int | None:
        """What `muster run` exits with, once it is over."""
        return self._look().get("exit_code")

    @property
    def tasks(self) -> list[Task]:
        """Of its last attempt, by rank."""
        attempts = self._look()["attempts"]
        return [Task(self._transport, self.id, task) for task in attempts[-1]["tasks"]] if attempts else []

    def refresh(self) -> Job:
        self._detail = self._transport.get(self._path)
        return self

    def detail(self) -> _wire.JobDetail:
        """All that the server says of it."""
        return self.refresh()._detail

    def why(self) -> _wire.Why:
        """Why it waits, or why it ended, and what would help."""
        return self._transport.get(f"{self._path}/why")

    def wait(self, *, check: bool = True, timeout: float | None = None, show: bool = False) -> Job:
        """Until it is over. Unless `check` is false, `JobFailed` if it did not succeed. `show` prints its output."""
        if show:
            self.follow()
        self._wait_for(OVER, timeout)
        if check and self._detail["state"] != "succeeded":
            raise JobFailed(self)
        return self

    def wait_until_running(self, *, timeout: float | None = None) -> Job:
        """Until its gang runs whole; `JobFailed` if it is over before."""
        if self._wait_for(OVER | {"running"}, timeout) != "running":
            raise JobFailed(self)
        return self

    def _wait_for(self, states: frozenset[str], timeout: float | None) -> str:
        deadline = None if timeout is None else time.monotonic() + timeout
        after = 0
        while self.refresh()._detail["state"] not in states:
            with contextlib.suppress(httpx.TransportError):
                after = self._wait_for_event(states, after, deadline)
            if deadline is not None and time.monotonic() >= deadline:
                raise Timeout(self.id, timeout or 0)
        return self._detail["state"]

    def _wait_for_event(self, states: frozenset[str], after: int, deadline: float | None) -> int:
        """Until it comes into one of these states; the number of the event that says so. It may have left it since."""
        silence = 60.0 if deadline is None else max(min(deadline - time.monotonic(), 60.0), 0.01)
        how = {"follow": True, "after": after or None}
        for name, said in self._transport.events(f"{self._path}/events", how, silence):
            if name == "event":
                after = said["seq"]
            if name == "end" or (name == "event" and said["kind"] in states):
                break
            if deadline is not None and time.monotonic() >= deadline:
                break
        return after

    def logs(
        self,
        *,
        follow: bool = False,
        task: int | None = None,
        rank: int | None = None,
        attempt: int | None = None,
        tail: int | None = None,
        since: str | None = None,
        until: str | None = None,
        grep: str | None = None,
    ) -> Iterator[Line]:
        """Its output as lines, each a text with `task`, `rank`, `stream` and `at`. `follow` goes on until it is over.

        `rank` is that of a process, where tasks start several.
        """
        how = {"task": task, "attempt": attempt, "tail": tail, "since": since, "until": until, "grep": grep}
        return lines(self._transport, self.id, {**how, "process_rank": rank, "follow": follow})

    def output(self, *, task: int | None = None) -> str:
        """Its whole output so far; one task's byte for byte, a gang's with its task or process before each line."""
        if task is None and self.nodes == 1:
            task = 0
        return self._transport.send("GET", f"{self._path}/logs/download", params={"task": task}).text

    def follow(self) -> None:
        """Prints its output until it is over, with the task's name before each line of a gang.

        Lines of several processes have their ranks instead.

        On a terminal, of another person's job only text and colours are passed.
        """
        is_filtered = (sys.stdout.isatty() or sys.stderr.isatty()) and self._is_of_another()
        for line in self.logs(follow=True):
            label = f"task{line.task} | " if self.nodes > 1 else ""
            label = label if line.rank is None else f"rank{line.rank} | "
            stream = sys.stderr if line.stream == "stderr" else sys.stdout
            text = output(line) if is_filtered and stream.isatty() else line
            print(f"{label}{text}", file=stream, flush=True)

    def _is_of_another(self) -> bool:
        me: _wire.WhoAmI = self._transport.get("/whoami")
        return me["accounts"] and me["user"] != self._look()["owner"]

    def exec(self, command: Words, *, task: int = 0, check: bool = True, stdin: str | bytes | None = None) -> Completed:
        """Runs a command in one of its tasks; see `Task.exec`."""
        return self.task(task).exec(command, check=check, stdin=stdin)

    def session(self, name: str = "main", *, task: int = 0, fresh: bool = False) -> Session:
        """A shell in one of its tasks; see `Task.session`."""
        return self.task(task).session(name, fresh=fresh)

    def upload(self, *local: LocalPath, to: str = "", task: int | None = None, force: bool = False) -> None:
        """Copies files and directories to every task, or to one."""
        self._reach()
        target = [f"{self.id}:{to}"] if task is None else [f"{self.id}/{task}:{to}"]
        flags = [*(["--all"] if task is None else []), *(["--force"] if force else [])]
        words = ["cp", "--json", *flags, *map(here, local), *target]
        _binary.call(words, environment=self._transport.environment)

    def download(self, *remote: str, to: LocalPath = ".", task: int = 0) -> None:
        """Copies files and directories from one of its tasks while it runs."""
        self.task(task).download(*remote, to=to)

    def files(self, path: str = "", *, task: int = 0, recursive: bool = False) -> list[_wire.FileEntry]:
        """What is in a task's working directory, also after its end; `@output` is its output directory."""
        how = {"path": path, "task": task, "recursive": recursive}
        return self._transport.get(f"{self._path}/files", how)["items"]

    def task(self, rank: int) -> Task:
        """One of its tasks. A job that waits or starts is waited for: whoever has just submitted it means to use it."""
        if not 0 <= rank < self.nodes:
            raise IndexError(f"{self.id} has {self.nodes} tasks, so there is no task {rank}")
        self._reach()
        return self.tasks[rank]

    def _reach(self) -> None:
        if self.state in ("queued", "starting"):
            self.wait_until_running()

    def metrics(self) -> _wire.JobMetrics:
        """What it uses, has used, and used at each moment of the last hour."""
        return self._transport.get(f"{self._path}/metrics")

    def events(self, *, follow: bool = False) -> Iterator[_wire.EventView]:
        """What has happened to it."""
        for name, said in self._transport.events(f"{self._path}/events", {"follow": follow}):
            if name == "event":
                yield said

    def stop(self) -> None:
        """Asks it to end: SIGTERM, then SIGKILL after its grace period. `wait(check=False)` waits until it has."""
        self._transport.call("POST", f"{self._path}/stop")

    def suspend(self) -> None:
        """Ends its tasks and keeps its place by name; `resume` starts it again."""
        self._transport.call("POST", f"{self._path}/suspend")

    def resume(self) -> None:
        """Starts it again after `suspend`, where it was if it can."""
        self._transport.call("POST", f"{self._path}/resume")

    def rename(self, name: str) -> None:
        self._transport.call("POST", f"{self._path}/rename", body={"name": name})
        self.refresh()

    def remove(self) -> None:
        """Removes it, with its log and files, once it is over."""
        self._transport.call("DELETE", self._path)

    def _look(self) -> _wire.JobDetail:
        if self._detail["state"] not in OVER:
            self.refresh()
        return self._detail

    def __repr__(self) -> str:
        size = f", {self.nodes} tasks" if self.nodes > 1 else ""
        said = self._look()
        why = f": {message}" if (message := said.get("message")) else ""
        return inline(f"Job({self.id}, {self.name!r}{size}, {said['state']}{why})")

    def _repr_html_(self) -> str:
        said = self._look()
        head = ["job", "name", "state", "tasks", "on", "age", "command"]
        row = [self.id, self.name, said["state"], self.nodes, said["on"], ago(said["submitted_at"]), self.command]
        return table(head, [row], title=said.get("message") or "")


class Jobs(Sequence[Job]):
    """Jobs, newest first."""

    def __init__(self, transport: Transport, items: Sequence[_wire.JobSummary]) -> None:
        self._transport, self._items = transport, items

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Job: ...
    @overload
    def __getitem__(self, index: slice) -> Jobs: ...
    def __getitem__(self, index: int | slice) -> Job | Jobs:
        if isinstance(index, slice):
            return Jobs(self._transport, self._items[index])
        return Job(self._transport, self._items[index]["id"])

    def _rows(self) -> list[list[object]]:
        return [[i["id"], i["name"], i["state"], i["nodes"], ago(i["submitted_at"]), i["command"]] for i in self._items]

    def __repr__(self) -> str:
        return columns(HEAD, self._rows()) if self._items else "no jobs"

    def _repr_html_(self) -> str:
        return table(HEAD, self._rows())


HEAD = ["id", "name", "state", "tasks", "age", "command"]


def here(path: LocalPath) -> str:
    """A path of this machine as `muster cp` reads it: one with a colon is not meant to name a task."""
    text = str(path)
    is_plain = ":" not in text or text.startswith(("/", "./", "../"))
    return text if is_plain else f"./{text}"
