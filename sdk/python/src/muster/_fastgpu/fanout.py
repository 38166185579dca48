"""The same on many tasks at once; whatever fails anywhere is told."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Callable, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Failures(RuntimeError):
    """Several tasks failed: `failures` has each with its exception."""

    def __init__(self, failures: Sequence[tuple[Any, BaseException]], total: int) -> None:
        self.failures = list(failures)
        lines = [f"  {_said_by(getattr(task, 'name', task), error)}" for task, error in failures]
        super().__init__("\n".join([f"{len(failures)} of {total} tasks failed:", *lines]))


def _said_by(name: object, error: BaseException) -> str:
    """An error with its task's name, which it may have already."""
    text = str(error)
    return text if text.startswith(f"{name}: ") else f"{name}: {text}"


class FailedAssertions(Failures, AssertionError):
    """The same where every one is an AssertionError, for those who catch that."""


def fan_out(things: Sequence[T], do: Callable[[T], R]) -> list[R]:
    """Does it for each at once, and waits for all. One failure is raised as it is, several are `Failures`."""
    results: dict[int, R] = {}
    failures: dict[int, BaseException] = {}

    def one(index: int, thing: T) -> None:
        try:
            results[index] = do(thing)
        except BaseException as error:
            failures[index] = error

    if len(things) == 1:
        return [do(things[0])]
    # Daemons: whoever interrupts the script does not wait for what its machines are doing.
    threads = [threading.Thread(target=one, args=pair, daemon=True) for pair in enumerate(things)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(failures) == 1:
        raise next(iter(failures.values()))
    if failures:
        pairs = [(things[index], failures[index]) for index in sorted(failures)]
        is_assertion = all(isinstance(error, AssertionError) for _, error in pairs)
        raise (FailedAssertions if is_assertion else Failures)(pairs, len(things))
    return [results[index] for index in range(len(things))]
