"""A program of the testkit that makes something for as long as its input is open: it says on one line of JSON what that
is, and does what each further line of its input says, with one line of JSON for an answer."""

import json
import os
import subprocess
from pathlib import Path

from measure import Failed


class Answering:
    """`with Answering(program) as said:`; nothing is left of what it made at the end. Only root may make it."""

    # What it makes, and what its first line must tell.
    makes, tells = "", ""

    def __init__(self, program, *words):
        self.program, self.words = Path(program), [str(word) for word in words]

    def __enter__(self):
        if os.getuid() != 0:
            raise Failed(f"{self.makes} can be made by root alone")
        if not self.program.is_file():
            raise Failed(f"{self.program} does not exist: cargo build -p muster-testkit --bin {self.program.name}")
        command = [str(self.program), *self.words]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        said = json.loads(self.process.stdout.readline() or "{}")
        if self.tells not in said:
            raise Failed(f"{self.makes} did not start")
        self.take(said)
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def take(self, said):
        """What the first line says."""
        raise NotImplementedError

    def tell(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        said = json.loads(self.process.stdout.readline())
        if "error" in said or said.get("code"):
            raise Failed(f"'{' '.join(map(str, words))}' of {self.makes}: {said.get('error') or said['stderr']}")
        return said
