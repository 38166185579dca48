"""Sessions: shells in a task that keep directory, variables and functions from one command to the next."""

from __future__ import annotations

import codecs
import contextlib
import shlex
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Callable, Union
from urllib.parse import quote

import httpx

from ._error import CommandFailed, CommandLost, JobLost, Timeout
from ._show import table
from ._transport import SILENCE

if TYPE_CHECKING:
    from . import _wire
    from ._transport import Transport

#: The longest that the server makes a request wait.
WAIT = 50
Words = Union[str, Sequence[str]]


class Session:
    """A named shell in a task. Commands given while one runs wait for their turn."""

    def __init__(self, transport: Transport, job: str, task: int, name: str = "main") -> None:
        self.job, self.task, self.name = job, task, name
        self._transport = transport
        self._path = f"/jobs/{quote(job, safe='')}/sessions/{quote(name, safe='')}"

    def open(self, *, fresh: bool = False) -> _wire.Session:
        """Opens it, unless it is open; `fresh` ends the shell that it has and begins with a new one."""
        return self._transport.call("PUT", self._path, params={"task": self.task}, body={"fresh": fresh})

    def show(self) -> _wire.Session:
        """How it is: what runs, how many wait, and why it is over if it is."""
        return self._transport.get(self._path, {"task": self.task})

    def start(self, command: Words, *, wait: float | None = None) -> Command:
        """Gives it a command and returns at once; with `wait`, when it is over or so many seconds have passed."""
        text = command if isinstance(command, str) else shlex.join(command)
        how = {"task": self.task, "wait": None if wait is None else min(WAIT, int(wait))}
        body = {"command": text}
        given = self._transport.call("POST", f"{self._path}/commands", params=how, body=body, unless=self._lost)
        return Command(self, self._transport, given)

    def run(
        self,
        command: Words,
        *,
        check: bool = True,
        timeout: float | None = None,
        on_output: Callable[[str], object] | None = None,
    ) -> Command:
        """Gives it a command and waits for its end; `on_output` gets what it writes, as it is written."""
        deadline = None if timeout is None else time.monotonic() + timeout
        patience = WAIT if timeout is None else timeout
        started = self.start(command, wait=patience if on_output is None else None)
        if on_output is not None:
            for text in started.follow(timeout=timeout):
                on_output(text)
        left = None if deadline is None else max(deadline - time.monotonic(), 0)
        return started.wait(check=check, timeout=left)

    def commands(self) -> list[Command]:
        """The last hundred of them."""
        found = self._transport.get(f"{self._path}/commands", {"task": self.task})
        return [Command(self, self._transport, one) for one in found["items"]]

    def command(self, number: int) -> Command:
        """One of them."""
        found = self._transport.get(f"{self._path}/commands/{number}", {"task": self.task})
        return Command(self, self._transport, found)

    def signal(self, name: str = "INT") -> None:
        """Sends a signal to what runs."""
        self._transport.call("POST", f"{self._path}/signal", params={"task": self.task}, body={"signal": name})

    def close(self) -> None:
        """Ends its shell, and what runs in it."""
        self._transport.call("DELETE", self._path, params={"task": self.task})

    def _lost(self) -> JobLost | None:
        """A node that cannot be reached is waited for until it is given up, and the job with it."""
        return lost(self._transport, self.job, self.task)

    def __repr__(self) -> str:
        return f"Session({self.name!r} of {self.job}/{self.task})"


def lost(transport: Transport, job: str, task: int | None = None) -> JobLost | None:
    """What became of a job under whoever works in it, or of one of its machines; none if it runs."""
    seen: _wire.JobDetail = transport.get(f"/jobs/{quote(job, safe='')}")
    if seen["state"] not in ("stopping", "succeeded", "failed", "stopped", "suspended"):
        return _lost_task(seen, task)
    reason = seen.get("reason")
    message = f"{job} {seen['state']} meanwhile: {seen.get('message') or 'it does not run'}"
    return JobLost(message, code=reason["code"] if reason else seen["state"])


def _lost_task(seen: _wire.JobDetail, task: int | None) -> JobLost | None:
    """The machine of this rank, or the first that failed, if it is over while others of its group go on."""
    tasks = seen["attempts"][-1]["tasks"] if seen["attempts"] else []
    for one in tasks:
        reason = one.get("failure")
        is_meant = one["rank"] == task if task is not None else reason is not None and one.get("parting") is None
        if one["phase"] == "ended" and is_meant:
            message = f"task{one['rank']} of {seen['id']} is over: {one.get('message') or 'it has ended'}"
            return JobLost(message, code=reason["code"] if reason else "invalid_state")
    return None


class Command:
    """A command of a session: its number, how it ended, what it wrote."""

    def __init__(self, session: Session, transport: Transport, seen: _wire.SessionCommand) -> None:
        self.session = session
        self.number = seen["number"]
        self.text = seen["text"]
        self._transport = transport
        self._seen = seen
        self._path = f"{session._path}/commands/{self.number}"

    @property
    def state(self) -> _wire.CommandState:
        """`queued`, `running`, `done` or `lost`, as it was seen last; `refresh` looks again."""
        return self._seen["state"]

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "lost")

    @property
    def exit_status(self) -> int | None:
        """Once it is done."""
        return self._seen.get("exit_status")

    @property
    def output(self) -> str:
        """What it has written so far, both of its outputs together."""
        return self.output_bytes().decode(errors="replace")

    def output_bytes(self, offset: int = 0) -> bytes:
        return b"".join(self._transport.bytes_of(f"{self._path}/output", {"task": self.session.task, "offset": offset}))

    def refresh(self, wait: int | None = None) -> Command:
        """Looks again: at once, or when it is over or `wait` seconds have passed."""
        how = {"task": self.session.task, "wait": wait}
        self._seen = self._transport.get(self._path, how, unless=self.session._lost)
        return self

    def wait(self, *, check: bool = True, timeout: float | None = None) -> Command:
        """Until it is over. Another status than 0 is `CommandFailed` unless `check` is false; a shell that ended under
        it is `CommandLost` always."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_over:
            left = WAIT if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise Timeout(f"`{self.text}`", timeout or 0)
            # The server waits for whole seconds; the last, broken one is waited for here.
            self.refresh(wait=min(WAIT, int(left)))
            if left < 1 and not self.is_over:
                time.sleep(min(0.05, max(left, 0)))
        if self.state == "lost":
            raise CommandLost(self.text, self._seen.get("reason") or "its shell is gone")
        if check and self.exit_status != 0:
            raise CommandFailed(self.text, self.exit_status or 0, self.output)
        return self

    def follow(self, *, timeout: float | None = None) -> Iterator[str]:
        """What it writes, from the beginning to its end, as it is written; `Timeout` if it goes on for longer."""
        deadline = None if timeout is None else time.monotonic() + timeout
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        offset = 0
        while True:
            params = {"task": self.session.task, "offset": offset, "follow": True}
            silence = SILENCE if deadline is None else max(min(deadline - time.monotonic(), SILENCE), 0.01)
            # A silence, or a server that restarts: on from where we were.
            with contextlib.suppress(httpx.TransportError):
                for piece in self._transport.bytes_of(f"{self._path}/output", params, silence):
                    offset += len(piece)
                    if text := decoder.decode(piece):
                        yield text
                    if deadline is not None and time.monotonic() >= deadline:
                        break
            if self.refresh().is_over and offset >= self._seen["output_bytes"]:
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise Timeout(f"`{self.text}`", timeout or 0)
        if text := decoder.decode(b"", final=True):
            yield text

    def __repr__(self) -> str:
        how = self.state if self.exit_status is None else f"{self.state}, status {self.exit_status}"
        return f"Command({self.number}, {self.text!r}: {how})"

    def _repr_html_(self) -> str:
        return table(["number", "command", "state", "status"], [[self.number, self.text, self.state, self.exit_status]])
