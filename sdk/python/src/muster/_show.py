"""How things look in a terminal and in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from ._printable import inline

_COLOURS = {
    "succeeded": "#1a7f37",
    "running": "#0969da",
    "failed": "#cf222e",
    "lost": "#cf222e",
    "stopped": "#6e7781",
    "suspended": "#9a6700",
}


def table(head: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> str:
    """An HTML table; everything in it is text."""
    cells = "".join(f"<th style='text-align:left'>{html.escape(word)}</th>" for word in head)
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    above = f"<caption style='text-align:left'>{html.escape(title)}</caption>" if title else ""
    return f"<table>{above}<thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    colour = f";color:{_COLOURS[text]}" if text in _COLOURS else ""
    return f"<td style='text-align:left{colour}'>{html.escape(text)}</td>"


def columns(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The same for a terminal."""
    lines = [
        [word.upper() for word in head],
        *[["-" if value is None else inline(str(value)) for value in row] for row in rows],
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join("   ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip() for line in lines)


def ago(moment: str | None) -> str:
    """How long ago a moment of the API was: `42s`, `5m`, `3h`, `2d`."""
    if not moment:
        return ""
    # Before 3.11 Python reads neither `Z` nor more than six digits of a second.
    whole = moment.rstrip("Z").partition(".")[0]
    seconds = (datetime.now(timezone.utc) - datetime.fromisoformat(whole + "+00:00")).total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(int(seconds), 0)}s"
