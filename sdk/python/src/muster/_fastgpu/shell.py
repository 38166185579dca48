"""Commands of a task: `run` and what belongs to it, in sessions that take the place of tmux windows."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import threading
import time
from collections.abc import Generator, Sequence
from datetime import datetime
from typing import Any

import httpx

from .. import Command, CommandLost, Session, SessionOver
from .._error import Error, Timeout
from .._job import Task as MusterTask
from .._printable import inline
from .._session import lost
from .._transport import Transport

ONE_YEAR = 365 * 24 * 3600
RULER = "*" * 80
#: How often somebody who waits for a command is told that it still runs.
REMINDER_SECONDS = 60.0
#: As much of a command's output as a question of it may have, in bytes.
PROMPT_BYTES = 400


@contextlib.contextmanager
def told(name: str, transport: Transport, job: str, task: int | None = None) -> Generator[None, None, None]:
    """What goes wrong in it is told with the name of who it happened to; as a loss of machines, if it is that."""
    try:
        yield
    except Error as error:
        reason = None
        with contextlib.suppress(Error):
            reason = lost(transport, job, task)
        if reason is not None:
            raise reason.named(name) from error
        raise error.named(name) from error.__cause__


class Shell:
    """The part of a task that runs commands. State (directory, variables, functions) is that of the window."""

    #: What `run` does where `return_output` is not given.
    _returns_output = False

    def __init__(self, name: str, remote: MusterTask) -> None:
        self.name = name
        self.run_counter = 0
        #: Of the last command that was waited for; -1 before any.
        self.last_status = -1
        self.tmux_session = name.replace(".", "=")
        self.tmux_window_id = 0
        self.tmux_available_window_ids = [0]
        self._remote = remote
        self._directories: dict[int, str] = {}
        self._last: Command | None = None
        self._aside: Session | None = None
        self._aside_lock = threading.Lock()
        self._out_fn = ""
        self._status_fn = ""

    def _forget_shells(self) -> None:
        """What ran in them has ended with the machine."""
        self.tmux_window_id, self.tmux_available_window_ids = 0, [0]
        self._directories.clear()
        self._last = self._aside = None

    def log(self, message: str, *args: object) -> None:
        """Prints a line with the time and the task's name."""
        text = message % args if args else message
        # In one piece: the other tasks' threads print, too.
        sys.stdout.write(f"{datetime.now():%Y-%m-%d %H:%M:%S.%f} {self.name}: {text}\n")
        sys.stdout.flush()

    def run(
        self,
        cmd: str | Sequence[str],
        sudo: bool = False,
        non_blocking: bool = False,
        ignore_errors: bool = False,
        max_wait_sec: float = ONE_YEAR,
        check_interval: float = 0.2,
        stream_output: bool = False,
        sanitized: bool = False,
        return_output: bool | None = None,
        show_realtime: bool = False,
        **_ignored: Any,
    ) -> str | None:
        """Runs a command in the task's shell, behind those that it has, and waits for its end unless `non_blocking`.

        A list is joined with `&&`. Another status than 0 is a RuntimeError unless `ignore_errors`. Returns
        `'nonblocking'`, the output if `return_output`, which `fastgpu` takes for granted, else None.
        """
        text = prepare(cmd, sudo)
        if not text:
            return ""
        self.log("tmux> %s", f"{text[:20]}****" if sanitized else text)
        is_shown = stream_output or show_realtime
        began = time.monotonic()
        # One request, which waits, for the usual command: a fan-out over many machines is as quick as one of them.
        patience = min(max_wait_sec, REMINDER_SECONDS)
        with self._told():
            command = self._start(text, wait=None if non_blocking or is_shown else patience)
        if non_blocking:
            return "nonblocking"
        if is_shown:
            with self._told():
                for piece in command.follow(timeout=max_wait_sec):
                    sys.stdout.write(piece)
                    sys.stdout.flush()
        self._finish(command, "****" if sanitized else text, ignore_errors, max_wait_sec, began)
        is_returned = self._returns_output if return_output is None else return_output
        return command.output if is_returned else None

    def run_with_output(self, cmd: str, non_blocking: bool = False, ignore_errors: bool = False) -> tuple[str, str]:
        """Runs a command in the task's shell; what it wrote, as (stdout, stderr)."""
        assert not non_blocking, "run_with_output has to wait for the output"
        assert "\n" not in cmd.strip(), "run_with_output takes one line"
        # After an `exit` in the command nothing of it would be left, so it is the shell's own file names that are used.
        at = f"{self.remote_scratch}/{self.run_counter + 1}"
        out, err = shlex.quote(f"{at}.stdout"), shlex.quote(f"{at}.stderr")
        self.run(f"{{ {cmd.strip()}\n}} > {out} 2> {err}", ignore_errors=True, return_output=False)
        stdout, stderr = self._look(f"cat {out}"), self._look(f"cat {err}")
        if self.last_status > 0 and not ignore_errors:
            self._show(stdout + stderr)
            raise RuntimeError(f"Command {cmd} returned status {self.last_status}")
        return stdout, stderr

    def join(self, ignore_errors: bool = False) -> int:
        """Waits for the last command, which may have been started with `non_blocking`; its status."""
        assert self._last is not None, "there is no command to wait for"
        self._finish(self._last, self._last.text, ignore_errors, ONE_YEAR, time.monotonic())
        return self.last_status

    @property
    def output(self) -> str:
        """What the last command has written."""
        return "" if self._last is None else self._last.output

    def switch_window(self, window_id: int) -> None:
        """Commands go to this window from now on; each has a shell of its own."""
        while window_id not in self.tmux_available_window_ids:
            self._open_window(self.tmux_available_window_ids[-1] + 1, fresh=True)
        self.tmux_window_id = window_id

    def propagate_env(self, env_vars: Sequence[str], sanitized: bool = True) -> None:
        """Exports these variables of the launcher, those that it has, in the task's shell."""
        for name in env_vars:
            if name in os.environ:
                line = f"export {name}={shlex.quote(os.environ[name])}"
                self.run(line, sanitized=sanitized, return_output=False)

    def _run_raw(self, cmd: str, ignore_errors: bool = False, sanitized: bool = False) -> tuple[str, str]:
        """Runs a command beside the task's shell, whose state it neither has nor changes: (stdout, stderr)."""
        done = self._remote.exec(cmd, check=False)
        if done.exit_code != 0 and not ignore_errors:
            self._show(done.stdout + done.stderr)
            raise AssertionError(f"_run_raw: {'****' if sanitized else cmd} returned status {done.exit_code}")
        return done.stdout, done.stderr

    # What is below is ours.

    @property
    def remote_scratch(self) -> str:
        raise NotImplementedError

    def _open_window(self, window_id: int, *, fresh: bool) -> None:
        session = self._window(window_id)
        with self._told():
            self._directories[window_id] = session.open(fresh=fresh)["directory"]
        if window_id not in self.tmux_available_window_ids:
            self.tmux_available_window_ids.append(window_id)

    def _window(self, window_id: int) -> Session:
        name = "main" if window_id == 0 else f"window{window_id}"
        return Session(self._remote._transport, self._remote.job, self._remote.rank, name)

    def _start(self, text: str, wait: float | None) -> Command:
        command = self._window(self.tmux_window_id).start(text, wait=wait)
        self.run_counter += 1
        self._last = command
        at = f"{self._directories[self.tmux_window_id]}/{command.number}"
        self._out_fn, self._status_fn = f"{at}.out", f"{at}.status"
        return command

    def _finish(self, command: Command, shown: str, ignore_errors: bool, max_wait_sec: float, began: float) -> None:
        try:
            with self._told():
                self._wait(command, shown, max_wait_sec, began)
        except CommandLost as gone:
            # The shell is gone, and so is everything it knew; this is never ignored.
            self._show(command.output)
            message = f"{self.name}: Command {shown} is lost: {gone.reason}; make the job again for a new shell"
            raise RuntimeError(message) from gone
        self.last_status = command.exit_status or 0
        if self.last_status != 0 and not ignore_errors:
            self._show(command.output)
            raise RuntimeError(f"Command {shown} returned status {self.last_status}")

    def _wait(self, command: Command, shown: str, max_wait_sec: float, began: float) -> None:
        """Waits for the command's end, and says every minute that it still runs."""
        reminder = began + REMINDER_SECONDS
        while True:
            now = time.monotonic()
            left = began + max_wait_sec - now
            try:
                command.wait(check=False, timeout=max(min(left, reminder - now), 0))
                return
            except Timeout:
                if reminder - now >= left:
                    raise Timeout(f"`{shown}`", max_wait_sec) from None
            seconds = time.monotonic() - began
            prompt = _prompt(command)
            question = f"; it shows: {prompt}" if prompt else ""
            self.log("still waiting for %s (%d s)%s", shown, seconds, question)
            reminder = time.monotonic() + REMINDER_SECONDS

    def _told(self) -> contextlib.AbstractContextManager[None]:
        return told(self.name, self._remote._transport, self._remote.job, self._remote.rank)

    def _show(self, output: str) -> None:
        self.log("output:\n%s\n%s\n%s", RULER, output.rstrip("\n"), RULER)

    def _look(self, text: str, *, check: bool = True) -> str:
        """Runs something small that is nobody's business, from the home directory, beside the task's shell."""
        with self._aside_lock, self._told():
            if self._aside is None:
                aside = Session(self._remote._transport, self._remote.job, self._remote.rank, "aside")
                aside.open(fresh=True)
                self._aside = aside
            try:
                return self._aside.run(f"( {text}\n)", check=check).output
            except (CommandLost, SessionOver):
                self._aside = None
                raise

    def _test(self, text: str) -> bool:
        return self._look(f"if {text}; then echo yes; fi").strip() == "yes"

    def _settle(self) -> None:
        """Waits for all commands of all windows."""
        for window_id in self.tmux_available_window_ids:
            session = self._window(window_id)
            seen = session.show()
            waiting = seen["queued"] + (seen.get("running") is not None)
            if not waiting:
                continue
            last = session.command(seen["last"])
            how = "1 command" if waiting == 1 else f"{waiting} commands"
            self.log("waiting for %s before it stops: %s (kill() does not wait)", how, last.text)
            try:
                last.wait(check=False)
            except CommandLost as lost:
                self.log("%s", lost.message)


def _prompt(command: Command) -> str:
    """The line that a command has begun and not ended: it may be a question that waits for an answer."""
    try:
        written = command.refresh()._seen["output_bytes"]
        tail = command.output_bytes(max(written - PROMPT_BYTES, 0)).decode(errors="replace")
    except (Error, httpx.TransportError):
        # Whatever is wrong is told by those who wait for the command.
        return ""
    # A bar of progress begins its line anew each time.
    return inline(tail.rpartition("\n")[2].rstrip("\r").rpartition("\r")[2].strip())


def prepare(cmd: str | Sequence[str], sudo: bool = False) -> str:
    """What the shell is given: '' for nothing but comments."""
    if not isinstance(cmd, str):
        # On a line of its own a comment at an item's end takes nothing else with it.
        cmd = " && ".join(f"{{ {one.strip()}\n}}" for one in cmd)
    text = cmd.strip()
    if all(not line.strip() or line.strip().startswith("#") for line in text.splitlines()):
        return ""
    assert " & " not in text and not (text.endswith("&") and not text.endswith("&&")), (
        f"command {text!r} puts something in the background; use run(..., non_blocking=True), in a window of its own"
    )
    return f"sudo bash -c {shlex.quote(text)}" if sudo else text
