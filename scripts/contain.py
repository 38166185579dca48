#!/usr/bin/env python3
"""Runs one command as the init of everything it starts: contain.py SECONDS REPORT COMMAND...

Test binaries start servers, agents and supervisors that leave their process group and their session, as daemons do.
This process adopts what they leave behind (it is their subreaper), reaps it at once, as init would, so that a test
which asks "is that process gone?" gets the true answer, and ends what is still there when the command is done.

REPORT is a JSON file: whether the command ran out of its SECONDS, and the processes it left behind. The exit status is
the command's own (128 + n for a signal, 124 for running out of time).
"""

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
# A daemon that was told to stop may still be writing its last state when the test that told it is already done.
LINGER_S = 5.0


def descendants(root):
    """Every process below `root`, parents first."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # It ended meanwhile.
        # The command name is in parentheses and may itself contain any character; the last one closes it.
        state, parent = text.rpartition(")")[2].split()[:2]
        if state != "Z":
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def reap():
    """Collects every child that has ended; the exit statuses by process id."""
    ended = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def end_everything():
    """Kills what is left. Children of a killed process come to us, so one pass may not reach all of them."""
    deadline = time.monotonic() + LINGER_S
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)
        reap()


def main():
    seconds, report, command = float(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Blocked, so that sigtimedwait below sees every one of them, even those that come between two calls.
    signals = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    # Whoever runs the tests out of sight (nohup, a CI system) may ignore hang-ups; a test's own terminals must not.
    child = os.posix_spawnp(command[0], command, os.environ, setsigmask=[], setsigdef=[signal.SIGHUP])
    deadline = time.monotonic() + seconds
    status, timed_out, interrupted = None, False, False
    while status is None and not timed_out and not interrupted:
        remaining = deadline - time.monotonic()
        got = signal.sigtimedwait(signals, max(remaining, 0))
        status = reap().get(child)
        timed_out = status is None and got is None
        interrupted = got is not None and got.si_signo != signal.SIGCHLD
    left = []
    if status is not None:
        until = time.monotonic() + LINGER_S
        while (left := descendants(os.getpid())) and time.monotonic() < until:
            signal.sigtimedwait(signals, 0.05)
            reap()
        left = [{"pid": pid, "command": command_line(pid)} for pid in left]
    end_everything()
    report.write_text(json.dumps({"timed_out": timed_out, "left_behind": left}))
    if timed_out:
        return 124
    if status is None:
        return 130
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


if __name__ == "__main__":
    sys.exit(main())
