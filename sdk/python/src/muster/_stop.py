"""Whether this task was asked to end, for loops that would rather finish a step and save."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from ._error import Error

_asked = threading.Event()
_is_watching = False
_watching = threading.Lock()


@dataclass(frozen=True)
class StopNotice:
    """That this task is to end."""

    reason: str
    """The code of the reason: `preempted`, `timeout`, `stopped_by_user`, …"""
    at: datetime
    """When it was told."""
    kill_at: datetime
    """When it is killed, unless it has ended by then."""


def should_stop() -> bool:
    """True once this task was told to stop: from then on it has its grace period to save its work and end.

    The first call takes over SIGTERM, so it belongs before the training loop begins, in the main thread; before that
    call SIGTERM ends the process, as always. A handler that was there is still called.

    >>> for step in range(steps):
    ...     train(step)
    ...     if muster.should_stop():
    ...         save()
    ...         muster.saved()
    ...         break
    """
    if not _is_watching:
        _watch()
    return _asked.is_set() or _notice_file().exists()


def stop_notice() -> StopNotice | None:
    """Why this task is to end, and until when; none while nobody has told it to."""
    try:
        told: dict[str, Any] = json.loads(_notice_file().read_text())
    except FileNotFoundError:
        return None
    return StopNotice(told["reason"], _moment(told["at"]), _moment(told["kill_at"]))


def saved() -> None:
    """Says that the work of this task is safe, as it is now. Outside of a task it does nothing."""
    path = os.environ.get("MUSTER_SAVED_FILE")
    if path:
        Path(path).write_text("")


def _notice_file() -> Path:
    # Outside of a task nobody gives notice, but for the signal.
    return Path(os.environ.get("MUSTER_STOP_FILE", "/nonexistent"))


def _moment(text: str) -> datetime:
    # Python before 3.11 reads neither the letter for UTC nor more than six digits of a second.
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}+00:00")


def _watch() -> None:
    global _is_watching
    with _watching:
        if _is_watching:
            return
        before = signal.getsignal(signal.SIGTERM)

        def on_term(number: int, frame: FrameType | None) -> None:
            _asked.set()
            if callable(before):
                before(number, frame)

        try:
            signal.signal(signal.SIGTERM, on_term)
        except ValueError as error:
            message = "the first should_stop() has to be in the main thread, where Python takes signals"
            raise Error(message, code="not_main_thread", hint="call it once before starting threads") from error
        _is_watching = True
