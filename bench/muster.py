"""A muster of its own: a binary, a home below a temporary folder, a small project, and the program that is measured."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from measure import Failed, last_words, processes_of, run_ms, spawn, supervisors_of, wait

HERE = Path(__file__).resolve().parent
COMMAND_S = 600
# Stands for the folder of one run in a command that is run many times.
FOLDER = object()


class Muster:
    """`with Muster(binary, folder) as muster:`; what is left running at the end is killed."""

    def __init__(self, binary, folder):
        self.binary, self.folder = str(binary), Path(folder)
        self.home, self.project = self.folder / "home", self.folder / "project"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")}
        self.environment = kept | {"MUSTER_HOME": str(self.home)}
        self.stamp = self.folder / "stamp"
        self.stamps = 0

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.home.mkdir()
        subprocess.run(["cc", "-O2", "-static", "-o", self.stamp, HERE / "stamp.c"], check=True)
        # A small project: what the client walks and compares at every submit.
        (self.project / "package").mkdir(parents=True)
        for index in range(10):
            (self.project / "package" / f"module{index}.py").write_text(f"VALUE = {index}\n" * 100)
        (self.project / ".gitignore").write_text("*.pyc\n")
        os.chdir(self.project)
        self.command("server", "start")
        for _ in range(3):
            run_ms([self.binary, "run", "--", "true"], self.environment)
        return self

    def __exit__(self, *_):
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
        os.chdir("/")
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, *arguments):
        command = [self.binary, *map(str, arguments)]
        try:
            done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            reason = "or something it started holds its output open"
            raise Failed(f"'muster {arguments[0]}' runs for over {COMMAND_S} s, {reason}") from None
        if done.returncode != 0:
            words = " ".join(map(str, arguments))
            raise Failed(f"'muster {words}' ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return done.stdout

    @property
    def version(self):
        return self.command("version").split()[-1]

    def status(self):
        return json.loads(self.command("server", "status", "--json"))

    def jobs(self):
        """All jobs that the server knows."""
        listing = json.loads(self.command("ps", "--json", "--all"))
        return listing if isinstance(listing, list) else listing["items"]

    def new_folder(self):
        self.stamps += 1
        folder = self.folder / "stamps" / str(self.stamps)
        folder.mkdir(parents=True)
        return folder

    def stamp_of(self, folder, name):
        """When the program ran and under which id; None while it has not."""
        try:
            text = (folder / name).read_text().split()
        except FileNotFoundError:
            return None
        return (int(text[0]), int(text[1])) if text else None

    def start_ms(self, command, environment=None, ranks=1):
        """From just before the command is spawned until the last of its ranks runs its first line."""
        folder = self.new_folder()
        command = [str(folder if part is FOLDER else part) for part in command]
        began, pid = spawn(command, environment or self.environment)
        status = wait(pid)
        stamps = [self.stamp_of(folder, str(rank)) for rank in range(ranks)]
        if status != 0 or None in stamps:
            name = Path(command[0]).name
            raise Failed(
                f"'{name}' ended with {status}; {stamps.count(None)} of {ranks} ranks never ran: {last_words()}"
            )
        return (max(when for when, _ in stamps) - began) / 1e6

    def run_stamp(self, *flags):
        """A command line whose task writes its first moment."""
        return [self.binary, "run", *flags, "--", self.stamp, FOLDER, "exit"]
