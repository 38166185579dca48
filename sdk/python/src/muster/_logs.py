"""A job's log, line by line."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

if TYPE_CHECKING:
    from ._transport import Transport


class Line(str):
    """One line of a task's output, without its end of line."""

    task: int
    stream: str
    at: str
    rank: int | None
    """The rank of the process, where the task starts several and it is known."""

    def __new__(cls, text: str, task: int, stream: str, at: str, rank: int | None = None) -> Line:
        line = super().__new__(cls, text)
        line.task, line.stream, line.at, line.rank = task, stream, at, rank
        return line


def lines(transport: Transport, job: str, params: dict[str, Any]) -> Iterator[Line]:
    """Lines as they come, task by task in order. A connection that breaks is taken up where it was."""
    pieces = _Pieces()
    while True:
        asked = {**params, "cursor": pieces.cursor()} if pieces.next else params
        try:
            for name, said in transport.events(f"/jobs/{quote(job, safe='')}/logs", asked):
                if name == "log":
                    yield from pieces.add(said)
                elif name == "end":
                    break
            yield from pieces.rest()
            return
        except httpx.TransportError:
            continue


class _Pieces:
    """What has come, and lines that have not ended."""

    def __init__(self) -> None:
        self.attempt = 0
        self.next: dict[int, str] = {}
        self._open: dict[tuple[int, int | None, str], tuple[bytes, str]] = {}

    def cursor(self) -> str:
        return f"{self.attempt}@" + ",".join(f"{rank}:{place}" for rank, place in sorted(self.next.items()))

    def add(self, said: dict[str, Any]) -> Iterator[Line]:
        task, rank, stream, at = said["rank"], said.get("process_rank"), said["stream"], said["at"]
        self.attempt = said["attempt"]
        skipped: list[int] = said.get("skip") or []
        skip = "".join(f".{count}" for count in skipped)
        self.next[task] = f"{said['next']}{skip}"
        text = said.get("text")
        content = text.encode() if text is not None else base64.b64decode(said.get("base64") or "")
        before, began = self._open.pop((task, rank, stream), (b"", at))
        *whole, rest = (before + content).split(b"\n")
        for line in whole:
            yield Line(line.decode(errors="replace"), task, stream, began, rank)
            began = at
        if rest:
            self._open[task, rank, stream] = (rest, began)

    def rest(self) -> Iterator[Line]:
        for (task, rank, stream), (text, at) in self._open.items():
            yield Line(text.decode(errors="replace"), task, stream, at, rank)
        self._open.clear()
