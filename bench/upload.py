"""Sending code: the first time, after one line has changed, and when nothing has."""

import os
import shutil
import subprocess
import time
from pathlib import Path

from figure import Row
from measure import Failed, Sample, last_words, spawn, wait
from sshd import Sshd
from tree import Tree

# How many times its own size a tree may take while it is measured.
SPACE = 16

NOTES = (
    "Uploads: everything is in the page cache for all of them. `cp -r` makes one copy on the same disk; muster reads, "
    "names by content, compresses and keeps what it got, and the task then gets its own copy.",
    "`rsync -a` to a local sshd ends when the copy is there, and starts nothing; muster's time is until the first "
    "instruction of the task.",
)


def timed(command, **options):
    began = time.monotonic()
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise Failed(f"'{Path(command[0]).name}' ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return time.monotonic() - began


def need_space(folder, total):
    """A tree, its copies, the server's chunks and a task's folder for every run lie on one disk."""
    need, free = SPACE * total, shutil.disk_usage(folder).free
    if free < need:
        raise Failed(
            f"needs {need / 1e9:.0f} GB free below {folder.parent}, there are {free / 1e9:.0f}; TMPDIR moves it"
        )


def start_s(muster, folder):
    """From the command in this folder until its task runs."""
    os.chdir(folder)
    try:
        return muster.start_ms(muster.run_stamp()) / 1000
    finally:
        os.chdir(muster.project)
        # Its files have served, and are large.
        muster.command("rm", "last")


def first_s(muster, folder):
    """The first time: until the job is accepted, with all its code, and until its task runs."""
    at = muster.new_folder()
    command = [muster.binary, "run", "--detach", "--", muster.stamp, at, "exit"]
    os.chdir(folder)
    try:
        began, pid = spawn([str(part) for part in command], muster.environment)
        status = wait(pid)
        accepted = (time.time_ns() - began) / 1e9
    finally:
        os.chdir(muster.project)
    if status != 0:
        raise Failed(f"'muster run --detach' in a folder of {folder.name} ended with {status}: {last_words()}")
    muster.command("wait", "last")
    muster.command("rm", "last")
    return accepted, (muster.stamp_of(at, "0")[0] - began) / 1e9


def big(bench):
    need_space(bench.folder, bench.big_bytes)
    tree = Tree(bench.folder / "big", bench.big_files, bench.big_bytes).make()
    megabytes = tree.total / 1e6
    name = f"{megabytes:,.0f} MB, {tree.files:,} files"
    copy = bench.folder / "copy"
    copied = min(copy_s(tree.folder, copy) for _ in range(2))
    accepted, started = first_s(bench.muster, tree.folder)
    beside = {"plain tools": f"cp -r {copied:.2f} s ({megabytes / copied:,.0f} MB/s)"}
    mine = f"{accepted:.2f} s ({megabytes / accepted:,.0f} MB/s)"
    yield Row(f"first upload of {name}", mine, "≥ ½ of `cp -r`", accepted <= 2 * copied, beside)
    yield Row("the same, until the task's first instruction", f"{started:.2f} s")
    second, theirs, cells = [], [], {}
    for _ in range(bench.uploads):
        tree.change_one_line()
        second.append(start_s(bench.muster, tree.folder))

    def beside_rsync(_):
        with Sshd(bench.folder / "sshd") as sshd:
            sshd.rsync(tree.folder, bench.folder / "mirror")
            for _ in range(bench.uploads):
                tree.change_one_line()
                theirs.append(sshd.rsync(tree.folder, bench.folder / "mirror"))
        cells["plain tools"] = f"rsync {Sample(theirs).p50:.2f} s"

    bench.beside("plain tools", cells, beside_rsync)
    mine = Sample(second)
    goal, within = "≤ 1 s, and ≤ rsync", mine.p50 <= 1 and (not theirs or mine.p50 <= Sample(theirs).p50)
    yield Row(
        "one line changed → first instruction, p50", f"{mine.p50:.3f} s, worst {mine.most:.3f} s", goal, within, cells
    )
    for folder in (tree.folder, copy, bench.folder / "mirror"):
        shutil.rmtree(folder, ignore_errors=True)


def copy_s(source, target):
    shutil.rmtree(target, ignore_errors=True)
    return timed(["cp", "-r", source, target])


def wide(bench):
    tree = Tree(bench.folder / "wide", bench.wide_files, bench.wide_files * 1000).make()
    _, started = first_s(bench.muster, tree.folder)
    again = Sample([start_s(bench.muster, tree.folder) for _ in range(bench.uploads)])
    cells = {}

    def beside_rsync(_):
        with Sshd(bench.folder / "sshd") as sshd:
            sshd.rsync(tree.folder, bench.folder / "mirror")
            theirs = Sample([sshd.rsync(tree.folder, bench.folder / "mirror") for _ in range(bench.uploads)])
        cells["plain tools"] = f"rsync {theirs.p50:.2f} s"

    bench.beside("plain tools", cells, beside_rsync)
    name = f"{tree.files:,} files"
    yield Row(f"first upload of {name}, until the first instruction", f"{started:.2f} s")
    mine = f"{again.p50:.3f} s, worst {again.most:.3f} s"
    yield Row(f"{name} unchanged → first instruction, p50", mine, "≤ 1 s", again.p50 <= 1, cells)
    for folder in (tree.folder, bench.folder / "mirror"):
        shutil.rmtree(folder, ignore_errors=True)


FIGURES = {"upload of a big tree": big, "upload of a wide tree": wide}
