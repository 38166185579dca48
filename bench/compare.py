#!/usr/bin/env python3
"""Compares two builds of muster by the figures of `make bench`, without the peers.

Both builds run every scenario in turn, round by round, so that other load on the machine affects both alike; the order
changes with every round. The table has the median of each build's rounds and the difference; a figure that is worse by
more than --limit percent is marked. Figures of a single moment ("worst", p99) are left out: they describe the machine's
state, not the build.
"""

import argparse
import os
import re
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from figure import PEERS
from measure import Failed
from muster import Muster
from run import SCENARIOS, Bench, measure, wait_until_idle

HERE = Path(__file__).resolve().parent
# The scheduler's figures come from a program of its own, not from the binary.
COMPARED = [name for name in SCENARIOS if name != "scheduler"]
NUMBER = re.compile(r"(?P<number>\d[\d,]*(?:\.\d+)?)(?P<unit> ?[A-Za-z×/]*)")


def sized(muster, folder, testkit):
    """A bench with fewer repetitions and smaller sizes than the whole one: the rounds repeat all of it."""
    bench = Bench(muster, folder, Path("/nonexistent"), testkit, quick=True)
    bench.runs, bench.few, bench.uploads, bench.jobs = 60, 8, 3, 500
    bench.big_files, bench.big_bytes, bench.wide_files, bench.log_mb = 2_000, 100_000_000, 10_000, 256
    bench.absent = dict.fromkeys(PEERS, "not compared here")
    return bench


def value(text):
    """The first number of a cell and whether less of it is better; None where there is none."""
    found = NUMBER.search(text)
    if not found or text.startswith("not measured"):
        return None
    rate = found["unit"].endswith("/s") or "×" in found["unit"]
    return float(found["number"].replace(",", "")), not rate


def one_round(binary, only, testkit):
    """A number for each figure of one build."""
    folder = Path(tempfile.mkdtemp(prefix="mc-"))
    try:
        with Muster(binary, folder / "m") as muster:
            figures = {}
            for row in measure(sized(muster, folder, testkit), only):
                if row.muster.startswith("not measured"):
                    print(f"  {row.figure}: {row.muster}", file=sys.stderr)
                # The count of jobs is part of some names, and differs where a build retries.
                elif "p99" not in row.figure.removesuffix("p50 and p99") and (number := value(row.muster)):
                    figures[re.sub(r"[\d,]+ jobs", "N jobs", row.figure)] = number
            return figures
    finally:
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)


def line(name, old, new, less_is_better, limit):
    """One row of the table, and whether the new build is worse by more than the limit."""
    before, after = statistics.median(old), statistics.median(new)
    change = (after - before) / before * 100 if before else 0.0
    worse = (change if less_is_better else -change) > limit
    spread = f"{min(old):g} to {max(old):g} / {min(new):g} to {max(new):g}"
    return f"| {name} | {before:g} | {after:g} | {change:+.1f} % | {spread} | {'worse' if worse else ''} |", worse


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, required=True, help="the build to compare with")
    parser.add_argument("--muster", type=Path, required=True, help="the build that is compared")
    testkit = HERE.parent / "target/debug"
    parser.add_argument("--testkit", type=Path, default=testkit, help="where the testkit's programs are")
    parser.add_argument("--only", default="", help=f"only these, with commas: {', '.join(COMPARED)}")
    parser.add_argument("--rounds", type=int, default=5, help="how often each build runs everything")
    parser.add_argument("--limit", type=float, default=5.0, help="percent by which a figure may be worse")
    arguments = parser.parse_args()
    only = [name for name in arguments.only.split(",") if name] or COMPARED
    if unknown := [name for name in only if name not in COMPARED]:
        parser.error(f"there is no scenario {', '.join(unknown)}; there are: {', '.join(COMPARED)}")
    builds = [arguments.base.resolve(), arguments.muster.resolve()]
    for build in builds:
        if not build.is_file():
            parser.error(f"{build} does not exist")
    if warning := wait_until_idle(60):
        print(f"warning: {warning}", file=sys.stderr)
    testkit = arguments.testkit.resolve()
    results = {build: {} for build in builds}
    directions = {}
    for number in range(arguments.rounds):
        for build in builds if number % 2 == 0 else builds[::-1]:
            print(f"round {number + 1} of {arguments.rounds}: {build.name}", file=sys.stderr, flush=True)
            try:
                for figure, (measured, less_is_better) in one_round(build, only, testkit).items():
                    results[build].setdefault(figure, []).append(measured)
                    directions[figure] = less_is_better
            except Failed as error:
                print(f"  failed: {error}", file=sys.stderr)
    print(f"| figure | {builds[0].name} | {builds[1].name} | change | least to most of both | |")
    print("| --- | --- | --- | --- | --- | --- |")
    worse = 0
    for figure, less_is_better in directions.items():
        old, new = (results[build].get(figure) for build in builds)
        if old and new:
            text, is_worse = line(figure, old, new, less_is_better, arguments.limit)
            worse += is_worse
            print(text)
    print(f"{worse} of {len(directions)} figures are worse by more than {arguments.limit:g} %")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
