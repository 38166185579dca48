"""Starts the daemons of a cluster and ends with them.

It adopts whatever they leave behind, as daemons and the steps of jobs leave their parents, so that when its standard
input ends, also because the test was killed, it can end all of it. A line of input is a program to start: a JSON list
of the file for its output, variables, and words; the answer is its process id. Or it is a JSON object: of a `lock`, a
name that only one process of a network may hold, with `true` for an answer if this is the one; or of what is to be
removed `after` everything has ended: `links` of the network, trees of control `groups`, `directories`.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def below(root):
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # It ended meanwhile.
        if state != "Z":
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found, queue = [], [root]
    while queue:
        more = children.get(queue.pop(), [])
        found += more
        queue += more
    return found


def lock(name):
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind("\0" + name)
    except OSError:
        return False
    locks.append(held)
    return True


def remove(links, groups, directories):
    for link in links:
        subprocess.run(["ip", "link", "del", link], stderr=subprocess.DEVNULL, check=False)
    for group in map(Path, groups):
        for path, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                Path(path).rmdir()
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


locks = []
after = {}
signal.signal(signal.SIGCHLD, reap)
# Whoever ends a test's whole group of processes ends the test, which closes the pipe. Handlers, because what is ignored
# would be so for daemons and jobs, too.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda *_: None)
for line in iter(sys.stdin.readline, ""):
    asked = json.loads(line)
    if isinstance(asked, dict):
        after = asked.get("after", after)
        print(json.dumps(lock(asked["lock"]) if "lock" in asked else True), flush=True)
        continue
    path, variables, words = asked
    with Path(path).open("ab") as output:
        started = subprocess.Popen(
            words,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    print(started.pid, flush=True)
    # Nobody asks for it again: the handler above has its status.
    started.returncode = 0
while left := below(os.getpid()):
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    reap()
    time.sleep(0.005)
# What was reaped is in nobody's way any more: nothing but this waits for a child from here on.
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
if after:
    remove(**after)
