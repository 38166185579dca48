"""The two generations: the same library under two names, and what each does when it is imported."""

from __future__ import annotations

import os
import pdb
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from types import FrameType, TracebackType

#: With any of these set, and not to 0, nobody's signals and hooks are touched.
_QUIET = ("DISABLE_PDB_HANDLER", "RUNNING_UNDER_CIRCLECI")


@dataclass(frozen=True)
class Generation:
    """What a generation calls things."""

    #: The package's name, which is also that of its shared directory.
    name: str
    #: Its command line.
    program: str
    #: Whether `task.run` returns what the command wrote without being asked to.
    returns_output: bool = False

    @property
    def shared(self) -> str:
        """Where its machines have the volume that they share."""
        return f"/{self.name}"

    @property
    def runs(self) -> str:
        """Where run directories are, on its shared volume."""
        return f"{self.shared}/runs"

    def greet(self, version: str) -> None:
        """What importing it does: one line, and a debugger for whoever asks for it."""
        print(f"{self.name} version {version}")
        if not any(_is_set(f"{prefix}_{name}") for prefix in ("NCLUSTER", "FASTGPU") for name in _QUIET):
            install_debugger()


NCLUSTER = Generation("ncluster", "ecluster")
FASTGPU = Generation("fastgpu", "fastgpu", returns_output=True)


def _is_set(name: str) -> bool:
    return os.environ.get(name, "0") != "0"


def install_debugger() -> None:
    r"""Ctrl-\ opens pdb where the program is, and an exception that nobody catches opens it where it was raised, on a
    terminal."""
    if threading.current_thread() is not threading.main_thread():
        return
    signal.signal(signal.SIGQUIT, _on_quit)
    sys.excepthook = _on_exception


def _on_quit(_number: int, frame: FrameType | None) -> None:
    pdb.Pdb().set_trace(frame)


def _on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    is_asked_for = hasattr(sys, "ps1") or not (sys.stderr.isatty() and sys.stdin.isatty())
    if is_asked_for or not issubclass(kind, Exception):
        sys.__excepthook__(kind, error, trace)
        return
    traceback.print_exception(kind, error, trace)
    print()
    pdb.post_mortem(trace)
