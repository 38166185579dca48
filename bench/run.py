#!/usr/bin/env python3
"""Measures the figures that the project promises, beside those of others on the same machine.

Everything runs in folders of its own below a temporary one, on loopback, and is ended afterwards. A peer that cannot be
had is named with the reason, in its cell and below the table; it is never left out in silence. `make bench` builds the
binary, and fetches the peers, first.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from pathlib import Path

import delegate
import elements
import footprint
import gang
import hosts
import kube
import logs
import many
import scheduler
import start
import transfer
import upload
from figure import Row, Unavailable, markdown, padded
from measure import Failed, busy_share, machine
from muster import Muster
from python_peer import PythonPeer
from slurm import Slurm

HERE = Path(__file__).resolve().parent
SCENARIOS = {
    "start": start,
    "many": many,
    "array": elements,
    "upload": upload,
    "gang": gang,
    "logs": logs,
    "copy": transfer,
    "hosts": hosts,
    "slurm": delegate,
    "kube": kube,
    "scheduler": scheduler,
    "footprint": footprint,
}
# Above this share of busy cores the figures say more about the machine's other work than about muster.
IDLE_BELOW = 0.1
IDLE_DEADLINE_S = 60


class Bench:
    """What the scenarios share: muster, the peers, and how much to do."""

    def __init__(self, muster, folder, peers, testkit, quick):
        self.muster, self.folder, self.peers = muster, Path(folder), peers
        self.hosts, self.slurm, self.kube = testkit / "hosts", testkit / "slurm", testkit / "kube"
        self.quick = quick
        self.runs, self.few, self.jobs, self.uploads = (10, 3, 50, 2) if quick else (200, 20, 1000, 5)
        self.big_files, self.big_bytes, self.wide_files = (
            (500, 20_000_000, 2000) if quick else (10_000, 1_000_000_000, 100_000)
        )
        self.log_mb = 16 if quick else 512
        self.absent, self.versions, self.starts = {}, {}, 0

    def beside(self, name, cells, measured):
        """Calls `measured` with a peer, for the peer's cells. One that cannot be had has a cell that says so."""
        if name in self.absent:
            cells[name] = "not had"
            return
        try:
            with self._open(name) as peer:
                if peer and name not in self.versions:
                    self.versions[name] = peer.version
                measured(peer)
        except (Unavailable, Failed, OSError, subprocess.SubprocessError) as reason:
            cells[name] = "not had"
            self.absent[name] = str(reason)

    @contextmanager
    def _open(self, name):
        self.starts += 1
        # Short: sockets of peers lie below it, and their names may have 107 bytes in all.
        folder = self.folder / f"p{self.starts}"
        python = self.peers / "bin/python"
        peers = {
            "Slurm": lambda: Slurm(folder),
            "HyperQueue": lambda: PythonPeer(HERE / "peer_hyperqueue.py", python, folder, self.muster.stamp),
            "Ray": lambda: PythonPeer(HERE / "peer_ray.py", python, folder, self.muster.stamp),
            "plain tools": nullcontext,
        }
        with peers[name]() as peer:
            yield peer


def measure(bench, names):
    """Every row; a figure that could not be measured is a row that says why."""
    figures = [figure for name in names for figure in SCENARIOS[name].FIGURES.items()]
    for name, figure in figures:
        print(f"  {name} ...", file=sys.stderr, flush=True)
        try:
            yield from figure(bench)
        except (Failed, OSError, KeyError, ValueError, subprocess.SubprocessError) as error:
            yield Row(name, f"not measured: {type(error).__name__}: {error}".replace("\n", " "), "", False)


def wait_until_idle(seconds):
    """A word of warning, or nothing: the build before this may still be settling."""
    deadline = time.monotonic() + seconds
    while (busy := busy_share()) >= IDLE_BELOW:
        if time.monotonic() > deadline:
            return f"the machine was not idle ({busy:.0%} busy before the start): read the times as upper bounds"
    return None


def first_line(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return "not installed"
    return ((done.stdout or done.stderr).splitlines() or ["?"])[0]


def versions(bench):
    rsync = re.sub(r" *protocol.*", "", first_line("rsync", "--version"))
    tools = [rsync, first_line("ssh", "-V"), first_line("xargs", "--version"), first_line("cp", "--version")]
    peers = [f"{name} {version}" for name, version in sorted(bench.versions.items())]
    return ", ".join([f"muster {bench.muster.version}", *peers, *tools, f"Python {platform.python_version()}"])


def report(bench, rows, names, warning, quick):
    """The lines of RESULTS.md."""
    notes = [note for name in names for note in SCENARIOS[name].NOTES]
    absent = [f"{name} was not had: {reason}" for name, reason in bench.absent.items()]
    size = "a quick run with small sizes, not the figures that are promised" if quick else "the whole run"
    return [
        "# Figures",
        "",
        "Written by `make bench`; do not edit. How each figure is measured: the file of its name beside this one.",
        "",
        f"- Date: {datetime.now(timezone.utc):%Y-%m-%d}; {size}"
        f" ({bench.runs} runs of quick commands, {bench.few} of gangs, {bench.uploads} of uploads).",
        f"- Machine: {machine()}.",
        f"- Versions: {versions(bench)}.",
        *([f"- **Warning**: {warning}."] if warning else []),
        "",
        *markdown(rows),
        "",
        "An empty cell: that peer has nothing of the kind, or it is not compared there.",
        "",
        *(f"- {note}" for note in [*notes, *absent]),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--muster", type=Path, required=True, help="the binary; the figures are the release binary's")
    parser.add_argument("--peers", type=Path, default=Path("/nonexistent"), help="the Python environment of the peers")
    parser.add_argument(
        "--testkit", type=Path, default=HERE.parent / "target/debug", help="where the testkit's programs are"
    )
    parser.add_argument("--only", default="", help=f"only these, with commas: {', '.join(SCENARIOS)}")
    parser.add_argument("--quick", action="store_true", help="small sizes and few runs: does it all work?")
    parser.add_argument("--results", type=Path, help="where the table is kept (default: RESULTS.md, for a whole run)")
    arguments = parser.parse_args()
    names = [name for name in arguments.only.split(",") if name] or list(SCENARIOS)
    if unknown := [name for name in names if name not in SCENARIOS]:
        parser.error(f"there is no scenario {', '.join(unknown)}; there are: {', '.join(SCENARIOS)}")
    muster = arguments.muster.resolve()
    if not muster.is_file():
        parser.error(f"{arguments.muster} does not exist: run 'make build'")
    warning = wait_until_idle(0 if arguments.quick else IDLE_DEADLINE_S)
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="mb-"))
    try:
        with Muster(muster, folder / "m") as own:
            bench = Bench(own, folder, arguments.peers.absolute(), arguments.testkit.absolute(), arguments.quick)
            rows = list(measure(bench, names))
            lines = report(bench, rows, names, warning, arguments.quick)
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(padded(rows)))
    for name, reason in bench.absent.items():
        print(f"{name} was not had: {reason}")
    # A part of the figures, or small ones, must not take the place of the whole.
    results = arguments.results or (None if arguments.quick or arguments.only else HERE / "RESULTS.md")
    if results:
        results.write_text("\n".join(lines) + "\n")
        print(f"written to {results}")
    return 1 if any(row.muster.startswith("not measured: ") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
