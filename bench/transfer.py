"""`muster cp` beside `scp` to a local sshd: one large file each way, and many small ones. Whole commands."""

import os
import shutil
from contextlib import contextmanager

from figure import Row
from measure import Sample, run_ms, wait_for
from sshd import Sshd
from tree import Tree

SMALL_FILES, SMALL_BYTES = 1000, 2_000_000
BLOCK = 1 << 20

NOTES = (
    "Copies: everything is in the page cache. `scp` is the machine's own with its default cipher and a connection of "
    "its own each time; `muster cp` goes through the server and the agent into a task that runs. Nothing of an earlier "
    "copy is there when one begins.",
)


@contextmanager
def waiting_task(muster):
    """The id of a job that runs until the block ends."""
    job = muster.command("run", "--detach", "--", "sleep", "3600").split()[-1]
    wait_for("the task to run", lambda: "running" in muster.command("show", job, "--json"))
    try:
        # The first caller starts who answers in the task; it is not what is measured.
        muster.command("cp", muster.project / ".gitignore", f"{job}:{muster.folder}/first")
        yield job
    finally:
        muster.command("stop", job)


def times(count, target, command):
    """Seconds of a command, each time with its target gone."""
    taken = []
    for _ in range(count):
        if target.is_dir():
            shutil.rmtree(target)
        target.unlink(missing_ok=True)
        # What was written and removed before is not part of the next one.
        os.sync()
        taken.append(command() / 1000)
    return Sample(taken)


def compare(bench, source, target):
    """`cp` to a task and from it, and `scp` to a server."""
    muster, count, theirs, cells = bench.muster, max(3, bench.uploads), [], {}

    def mine(*words):
        return run_ms([muster.binary, "cp", *map(str, words)], muster.environment)

    with waiting_task(muster) as job:
        up = times(count, target, lambda: mine(source, f"{job}:{target}"))
        down = times(count, target, lambda: mine(f"{job}:{source}", target))

    def beside_scp(_):
        with Sshd(bench.folder / "sshd") as sshd:
            theirs.append(times(count, target, lambda: run_ms(sshd.scp(source, target), muster.environment)))

    bench.beside("plain tools", cells, beside_scp)
    return up, down, theirs[0] if theirs else None, cells


def large(bench):
    source, target = bench.folder / "large", bench.folder / "large-copy"
    with source.open("wb") as file:
        noise = Tree(bench.folder, 1, 1).random.randbytes(BLOCK)
        for _ in range(bench.big_bytes // BLOCK):
            file.write(noise)
    megabytes = source.stat().st_size / 1e6
    up, down, theirs, cells = compare(bench, source, target)
    if theirs:
        cells["plain tools"] = f"scp {megabytes / theirs.p50:,.0f} MB/s"
    for name, sample in (
        (f"`cp` of a file of {megabytes:,.0f} MB to a task, p50", up),
        ("the same from it, p50", down),
    ):
        within = theirs and sample.p50 * 0.8 <= theirs.p50
        yield Row(name, f"{megabytes / sample.p50:,.0f} MB/s", "≥ 0.8 × scp", within, cells)
    source.unlink()
    target.unlink()


def small(bench):
    tree = Tree(bench.folder / "small", SMALL_FILES, SMALL_BYTES).make()
    target = bench.folder / "small-copy"
    up, down, theirs, cells = compare(bench, tree.folder, target)
    if theirs:
        cells["plain tools"] = f"scp -r {theirs.p50 * 1000:,.0f} ms"
    for name, sample in ((f"`cp` of {tree.files:,} small files to a task, p50", up), ("the same from it, p50", down)):
        within = theirs and sample.p50 * 3 <= theirs.p50
        yield Row(name, f"{sample.p50 * 1000:,.0f} ms", "≥ 3 × faster than scp -r", within, cells)
    shutil.rmtree(tree.folder)
    shutil.rmtree(target)


def round_trip(bench):
    """A command in a task, as a whole process, beside `ssh` to a local server."""
    muster, count, cells = bench.muster, bench.runs // 2, {}
    with waiting_task(muster) as job:
        command = [muster.binary, "exec", job, "--", "true"]
        mine = Sample([run_ms(command, muster.environment) for _ in range(count)])

    def beside_ssh(_):
        with Sshd(bench.folder / "sshd") as sshd:
            theirs = Sample([run_ms(sshd.ssh("true"), muster.environment) for _ in range(bench.few)])
            cells["plain tools"] = f"ssh {theirs.p50:,.1f} ms"

    bench.beside("plain tools", cells, beside_ssh)
    yield Row("`exec JOB -- true`, until it returns, p50", f"{mine.p50:,.1f} ms", "≤ 15 ms", mine.p50 <= 15, cells)


FIGURES = {"a command in a task": round_trip, "`cp` of a large file": large, "`cp` of small files": small}
