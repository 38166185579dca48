"""Peers that are Python libraries: each runs in a process of its own, in the environment with the pinned packages.

The process gets one request as JSON on its command line and prints one answer as JSON on its last line.
"""

import json
import os
import signal
import subprocess

from figure import Unavailable
from measure import processes_of

ASK_S = 900


class PythonPeer:
    """`with PythonPeer(script, python, folder, stamp) as peer: peer.ask("start", runs=10)`."""

    def __init__(self, script, python, folder, stamp):
        self.script, self.python, self.folder, self.stamp = script, python, folder, stamp

    def __enter__(self):
        if not os.access(self.python, os.X_OK):
            raise Unavailable(f"{self.python} is not there: its packages could not be installed")
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_):
        # What it started has this folder in its environment, and nobody else's has.
        for pid in processes_of("BENCH_PEER", self.folder):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def ask(self, what, **options):
        request = {"what": what, "folder": str(self.folder), "stamp": str(self.stamp), **options}
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("MUSTER_", "RAY_", "HQ_"))}
        environment |= {"BENCH_PEER": str(self.folder), "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
        try:
            done = subprocess.run(
                [self.python, self.script, json.dumps(request)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=ASK_S,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{self.script.name} did not answer within {ASK_S} s") from None
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise Unavailable(f"{self.script.name} ended with {done.returncode}: {last[:300]}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    @property
    def version(self):
        return self.ask("version")["version"]

    def resident_mb(self):
        return self.ask("memory")["resident_mb"]
