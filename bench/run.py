#!/usr/bin/env python3
"""Measures the figures that the project promises, and prints them beside their targets.

Everything runs in a MUSTER_HOME of its own below a temporary folder and is ended afterwards. Nothing here needs more
than Python's standard library and a C compiler; the comparison with Slurm needs its Debian packages, and is left out
with a word when they are missing. `make bench` builds the binary first.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import slurm
from measure import (
    Failed,
    Sample,
    busy_share,
    machine,
    private_mb,
    processes_of,
    resident_mb,
    run_ms,
    spawn,
    supervisors_of,
    wait,
    wait_for,
    wait_until_gone,
)

HERE = Path(__file__).resolve().parent
GANG = 16
JOBS = 1000
SUBMITTERS = 8
# Above this share of busy cores the figures say more about the machine's other work than about muster.
IDLE_BELOW = 0.1
IDLE_DEADLINE_S = 60
COMMAND_S = 60


@dataclass
class Row:
    """One line of the table. `within` is None where there is nothing to hold it against."""

    figure: str
    measured: str
    target: str = ""
    within: bool | None = None

    @property
    def verdict(self):
        return {None: "", True: "ok", False: "over"}[self.within]


class Bench:
    """One muster with its own home, and what is measured on it."""

    def __init__(self, muster, folder, runs):
        self.muster, self.folder, self.runs = str(muster), Path(folder), runs
        self.home = self.folder / "home"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")}
        self.environment = kept | {"MUSTER_HOME": str(self.home)}
        self.stamp = self.folder / "stamp"
        self.start_p50 = None
        self.folders = 0

    def prepare(self):
        self.home.mkdir()
        subprocess.run(["cc", "-O2", "-static", "-o", self.stamp, HERE / "stamp.c"], check=True)
        # A small project: what the client walks, hashes and compares at every submit.
        project = self.folder / "project"
        (project / "package").mkdir(parents=True)
        for index in range(10):
            (project / "package" / f"module{index}.py").write_text(f"VALUE = {index}\n" * 100)
        (project / ".gitignore").write_text("*.pyc\n")
        os.chdir(project)
        self.command("server", "start")
        for _ in range(3):
            run_ms([self.muster, "run", "--", "true"], self.environment)

    def command(self, *arguments):
        command = [self.muster, *arguments]
        try:
            done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            reason = "or something it started holds its output open"
            raise Failed(f"'muster {' '.join(arguments)}' runs for over {COMMAND_S} s, {reason}") from None
        if done.returncode != 0:
            raise Failed(f"'muster {' '.join(arguments)}' ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def status(self):
        return json.loads(self.command("server", "status", "--json"))

    def jobs(self):
        """All jobs that the server knows."""
        listing = json.loads(self.command("ps", "--json", "--all"))
        return listing if isinstance(listing, list) else listing["items"]

    def new_folder(self):
        self.folders += 1
        folder = self.folder / "stamps" / str(self.folders)
        folder.mkdir(parents=True)
        return folder

    def stamp_of(self, folder, name):
        """When the program ran and under which id; None while it has not."""
        try:
            text = (folder / name).read_text().split()
        except FileNotFoundError:
            return None
        return (int(text[0]), int(text[1])) if text else None

    def start_ms(self, command, environment, ranks=1):
        """From just before the command is spawned until the last of its ranks runs its first line."""
        folder = self.new_folder()
        command = [folder if part is FOLDER else part for part in command]
        began, pid = spawn([str(part) for part in command], environment)
        status = wait(pid)
        stamps = [self.stamp_of(folder, str(rank)) for rank in range(ranks)]
        if status != 0 or None in stamps:
            raise Failed(f"'{command[0]}' ended with {status}; {stamps.count(None)} of {ranks} ranks never ran")
        return (max(when for when, _ in stamps) - began) / 1e6

    # The figures, in the order of the table. Each returns its rows.

    def version(self):
        sample = Sample(run_ms([self.muster, "version"], self.environment) for _ in range(self.runs))
        measured = f"p50 {sample.p50:.1f} ms, min {sample.least:.1f} ms"
        return [Row("`muster version`", measured, "≤ 5 ms", sample.p50 <= 5)]

    def submit_to_start(self):
        command = [self.muster, "run", "--", self.stamp, FOLDER, "exit"]
        sample = Sample(self.start_ms(command, self.environment) for _ in range(self.runs))
        self.start_p50 = sample.p50
        name = "submit → user code's first instruction"
        return [
            Row(f"{name}, p50", f"{sample.p50:.1f} ms", "≤ 12 ms", sample.p50 <= 12),
            Row(f"{name}, p99", f"{sample.p99:.1f} ms", "≤ 50 ms", sample.p99 <= 50),
        ]

    def beside_slurm(self):
        whole = Sample(run_ms([self.muster, "run", "--", "true"], self.environment) for _ in range(self.runs))
        rows = [Row("`muster run -- true`, until it returns", f"p50 {whole.p50:.1f} ms")]
        try:
            with slurm.Slurm(self.folder / "slurm") as cluster:
                version = cluster.version
                srun = [cluster.srun, "--quiet", "-n1"]
                for _ in range(3):
                    run_ms([*srun, "true"], cluster.environment)
                command = [*srun, self.stamp, FOLDER, "exit"]
                start = Sample(self.start_ms(command, cluster.environment) for _ in range(self.runs))
                whole = Sample(run_ms([*srun, "true"], cluster.environment) for _ in range(self.runs))
        except slurm.Unavailable as reason:
            return [*rows, Row("the same with Slurm's `srun`", f"not measured: {reason}")]
        rows.append(Row(f"`srun true` (Slurm {version}), until it returns", f"p50 {whole.p50:.1f} ms"))
        rows.append(Row("`srun` → user code's first instruction", f"p50 {start.p50:.1f} ms, p99 {start.p99:.1f} ms"))
        if self.start_p50:
            ratio = whole.p50 / self.start_p50
            rows.append(
                Row(
                    "submit → first instruction, against `srun true`",
                    f"{ratio:.1f}× faster",
                    "≥ 4×",
                    ratio >= 4,
                )
            )
            ratio = start.p50 / self.start_p50
            rows.append(Row("the same, against `srun`'s own first instruction", f"{ratio:.1f}× faster"))
        return rows

    def gang_start(self):
        command = [self.muster, "run", "--nodes", GANG, "--", self.stamp, FOLDER, "exit"]
        sample = Sample(self.start_ms(command, self.environment, GANG) for _ in range(self.few))
        measured = f"p50 {sample.p50:.0f} ms, worst {sample.most:.0f} ms"
        return [Row(f"gang of {GANG} → all running", measured, "≤ 250 ms", sample.most <= 250)]

    def gang_end(self):
        sample = Sample(self.one_rank_dies() for _ in range(self.few))
        measured = f"p50 {sample.p50:.0f} ms, worst {sample.most:.0f} ms"
        return [Row(f"one rank of {GANG} dies → gang gone", measured, "≤ 300 ms", sample.most <= 300)]

    def one_rank_dies(self):
        folder = self.new_folder()
        command = [self.muster, "run", "--nodes", str(GANG), "--", str(self.stamp), str(folder), "victim"]
        _, client = spawn(command, self.environment)
        ranks = [str(rank) for rank in range(GANG)]
        wait_for("the gang runs", lambda: all(self.stamp_of(folder, rank) for rank in ranks))
        others = [self.stamp_of(folder, rank)[1] for rank in ranks if rank != "3"]
        (folder / "go").touch()
        gone = wait_until_gone(others)
        died, _ = wait_for("the rank's last word", lambda: self.stamp_of(folder, "died"))
        status = wait(client)
        if status != 1:
            raise Failed(f"the client ended with {status}; the rank had ended with 1")
        return (gone - died) / 1e6

    def many_jobs(self):
        before = [job["state"] for job in self.jobs()]
        began = time.monotonic()
        submit = [self.muster, "run", "--detach", "--", "true"]
        with ThreadPoolExecutor(SUBMITTERS) as pool:
            list(pool.map(lambda _: run_ms(submit, self.environment), range(JOBS)))
        submitted = time.monotonic() - began
        wait_for(
            f"{JOBS} jobs ran",
            lambda: self.status()["unfinished_jobs"] == 0,
            seconds=300,
            every=0.1,
        )
        ended = time.monotonic() - began
        jobs = self.jobs()
        succeeded = sum(job["state"] == "succeeded" for job in jobs) - before.count("succeeded")
        listing = Sample(run_ms([self.muster, "ps"], self.environment) for _ in range(50))
        everything = Sample(run_ms([self.muster, "ps", "--all"], self.environment) for _ in range(50))
        return [
            Row(
                f"{JOBS:,} `true` jobs from {SUBMITTERS} clients",
                f"all ended in {ended:.1f} s ({JOBS / ended:.0f}/s), accepted in {submitted:.1f} s, "
                f"{succeeded:,} succeeded",
                "all run",
                succeeded == JOBS,
            ),
            Row(
                f"`muster ps` with {len(jobs):,} jobs",
                f"p50 {listing.p50:.1f} ms",
                "≤ 20 ms",
                listing.p50 <= 20,
            ),
            Row(f"`muster ps --all` with {len(jobs):,} jobs", f"p50 {everything.p50:.1f} ms"),
        ]

    def idle_memory(self, when):
        # What the last command left to do (replies, log copies, closed connections) is done by then.
        time.sleep(2)
        status = self.status()
        server = resident_mb(status["pid"])
        rows = [Row(f"idle server, resident, {when}", f"{server:.1f} MB", "≤ 25 MB", server <= 25)]
        for node in status["nodes"]:
            agent = resident_mb(node["agent_pid"])
            rows.append(Row(f"idle agent, resident, {when}", f"{agent:.1f} MB", "≤ 15 MB", agent <= 15))
        return rows

    def supervisor_memory(self):
        folder = self.new_folder()
        self.command("run", "--detach", "--", str(self.stamp), str(folder), "hold")
        try:
            wait_for("the task runs", lambda: self.stamp_of(folder, "0"))
            time.sleep(1)
            supervisors = supervisors_of(self.home)
            if not supervisors:
                raise Failed("no supervisor found among the processes of this home")
            private = max(private_mb(pid) for pid in supervisors)
        finally:
            self.command("stop", "last")
        return [Row("supervisor, private", f"{private:.2f} MB", "≤ 1 MB", private <= 1)]

    def binary_size(self):
        size = Path(self.muster).stat().st_size / 1e6
        return [Row("release binary", f"{size:.1f} MB", "≤ 30 MB", size <= 30)]

    @property
    def few(self):
        return max(3, self.runs // 10)

    def finish(self):
        try:
            self.command("server", "stop")
        except Failed as error:
            print(f"warning: {error}", file=sys.stderr)
        # Whatever a failed figure left running has this home in its environment, and nobody else's has.
        for pid in [*processes_of("MUSTER_HOME", self.home), *supervisors_of(self.home)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


# Stands for the folder of one run in a command that is run many times.
FOLDER = object()


def measure(bench, with_slurm):
    """Every row; a figure that could not be measured is a row that says why."""
    figures = [
        ("`muster version`", bench.version),
        ("idle memory", lambda: bench.idle_memory("after start")),
        ("submit → user code's first instruction", bench.submit_to_start),
        ("beside Slurm", bench.beside_slurm),
        (f"gang of {GANG} → all running", bench.gang_start),
        (f"one rank of {GANG} dies → gang gone", bench.gang_end),
        ("supervisor, private", bench.supervisor_memory),
        (f"{JOBS:,} jobs", bench.many_jobs),
        ("idle memory after them", lambda: bench.idle_memory(f"after {JOBS:,} jobs")),
        ("release binary", bench.binary_size),
    ]
    for name, figure in figures:
        if figure == bench.beside_slurm and not with_slurm:
            continue
        print(f"  {name} ...", file=sys.stderr, flush=True)
        try:
            yield from figure()
        except (Failed, OSError, KeyError, ValueError) as error:
            yield Row(name, f"not measured: {type(error).__name__}: {error}", "", False)


def table(rows):
    lines = ["| figure | measured | target | |", "| --- | --- | --- | --- |"]
    return lines + [f"| {row.figure} | {row.measured} | {row.target} | {row.verdict} |" for row in rows]


def padded(rows):
    """The same for a terminal."""
    cells = [("figure", "measured", "target", "")] + [(r.figure, r.measured, r.target, r.verdict) for r in rows]
    widths = [max(len(cell[column]) for cell in cells) for column in range(3)]
    return [
        "  ".join([*(cell[column].ljust(widths[column]) for column in range(3)), cell[3]]).rstrip() for cell in cells
    ]


def wait_until_idle():
    """A word of warning, or nothing: the build before this may still be settling."""
    deadline = time.monotonic() + IDLE_DEADLINE_S
    while (busy := busy_share()) >= IDLE_BELOW:
        if time.monotonic() > deadline:
            return f"the machine was not idle ({busy:.0%} busy before the start): read the times as upper bounds"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--muster", type=Path, required=True, help="the release binary")
    parser.add_argument("--runs", type=int, default=200, help="how often a quick command is run (default: 200)")
    parser.add_argument("--no-slurm", action="store_true", help="leave the comparison out")
    parser.add_argument("--results", type=Path, default=HERE / "RESULTS.md", help="where the table is kept")
    arguments = parser.parse_args()
    muster = arguments.muster.resolve()
    if not muster.is_file():
        parser.error(f"{arguments.muster} does not exist: run 'make build'")
    warning = wait_until_idle()
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="muster-bench-"))
    bench = Bench(muster, folder, arguments.runs)
    try:
        bench.prepare()
        rows = list(measure(bench, not arguments.no_slurm))
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        bench.finish()
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(padded(rows)))
    write_results(arguments.results, rows, warning, arguments.runs)
    return 1 if any(row.measured.startswith("not measured: ") and row.within is False for row in rows) else 0


def write_results(path, rows, warning, runs):
    lines = [
        "# Figures",
        "",
        "Written by `make bench`; do not edit. How each figure is measured: [run.py](run.py).",
        "",
        f"Machine: {machine()}; {runs} runs of quick commands, {max(3, runs // 10)} of gangs.",
        "",
        *([f"**Warning**: {warning}.", ""] if warning else []),
        *table(rows),
    ]
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
