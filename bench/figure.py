"""One line of the table: a figure of muster, what was promised, and what others take for the same."""

from dataclasses import dataclass, field

PEERS = ("Slurm", "HyperQueue", "Ray", "plain tools")


class Unavailable(Exception):
    """A peer that cannot be had here; the text says why."""


@dataclass
class Row:
    """`within` is None where nothing was promised. `beside` has a text for each peer that does the same."""

    figure: str
    muster: str
    goal: str = ""
    within: bool | None = None
    beside: dict = field(default_factory=dict)

    @property
    def verdict(self):
        return {None: "", True: "ok", False: "miss"}[self.within]

    @property
    def cells(self):
        return [self.figure, self.goal, self.muster, self.verdict, *(self.beside.get(peer, "") for peer in PEERS)]


HEAD = ["figure", "goal", "muster", "", *PEERS]


def markdown(rows):
    lines = [HEAD, ["---"] * len(HEAD), *(row.cells for row in rows)]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def padded(rows):
    """The same for a terminal."""
    lines = [HEAD, *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
