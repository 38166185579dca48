"""Whether this process was asked to end, for loops that would rather finish a step and save."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from ._error import Error

_asked = threading.Event()
_is_watching = False
_watching = threading.Lock()


def should_stop() -> bool:
    """True once this task was told to stop: from then on it has its grace period to save its work and end.

    The first call takes over SIGTERM, so it belongs before the training loop begins, in the main thread; before that
    call SIGTERM ends the process, as always. A handler that was there is still called.

    >>> for step in range(steps):
    ...     train(step)
    ...     if muster.should_stop():
    ...         save()
    ...         break
    """
    if not _is_watching:
        _watch()
    return _asked.is_set()


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
