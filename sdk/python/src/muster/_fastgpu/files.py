"""Files of a task: copies both ways, and looking at what is there. Paths are meant from the task's home."""

from __future__ import annotations

import glob
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .. import Session, _binary
from .._error import Error
from .._job import here
from .shell import ONE_YEAR, Shell

EXCLUDED = (".ssh/", ".cache/", "__pycache__/", "wandb/run-*", ".eggs")
#: One look waits so long for a file, so that a script that waits for hours asks once a second and not fifty times.
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Copy:
    """Files here, and where they are to be in a task."""

    sources: tuple[str, ...]
    target: str


class Files(Shell):
    """The part of a task that has files."""

    def upload(self, local_fn: str, remote_fn: str = "", dont_overwrite: bool = False) -> None:
        """Copies a file or a directory to the task: into its home under its own name, or to `remote_fn`."""
        self._send(self._copies(local_fn, remote_fn, dont_overwrite))

    def _send(self, copies: list[Copy]) -> None:
        for copy in copies:
            _copy(self, [*copy.sources, f"{self._remote.name}:{copy.target}"])

    def _copies(self, local_fn: str, remote_fn: str, dont_overwrite: bool) -> list[Copy]:
        """What an upload comes to here: tasks of a job that are alike get the same, and then it is sent once."""
        if "*" in local_fn:
            found = sorted(glob.glob(local_fn))  # noqa: PTH207 - it may be absolute
            return [copy for one in found for copy in self._copies(one, remote_fn, dont_overwrite)]
        if "#" in local_fn:
            self.log("skipping %s: its name has a # in it", local_fn)
            return []
        source = Path(local_fn).expanduser()
        assert source.exists(), f"there is no file {local_fn} to upload"
        target = remote_fn or _name_there(source)
        if remote_fn:
            self._check_parent(remote_fn)
        if dont_overwrite and self.exists(self._inside(target, source)):
            self.log("remote file %s exists, skipping", target)
            return []
        self.log("uploading %s to %s", local_fn, target)
        return self._copy_of(source, target)

    def _copy_of(self, source: Path, target: str) -> list[Copy]:
        if not source.is_dir() or target.endswith("/") or not self.isdir(target):
            return [Copy((here(source),), target)]
        # Directories are merged, as they always were; `cp` alone would put one into the other.
        sources = tuple(here(one) for one in sorted(source.absolute().iterdir()))
        return [Copy(sources, f"{target}/")] if sources else []

    def _inside(self, target: str, source: Path) -> str:
        return f"{target.rstrip('/')}/{source.name}" if target.endswith("/") or self.isdir(target) else target

    def _check_parent(self, remote_fn: str) -> None:
        parent = remote_fn if remote_fn.endswith("/") else str(PurePosixPath(remote_fn).parent)
        assert parent in (".", "/") or self.isdir(parent), f"remote directory {parent} does not exist on {self.name}"

    def download(self, remote_fn: str, local_fn: str = "") -> None:
        """Copies a file or a directory from the task: here under its own name, or to `local_fn`."""
        target = local_fn or PurePosixPath(remote_fn).name
        self.log("downloading %s to %s", remote_fn, target)
        _copy(self, [f"{self._remote.name}:{remote_fn}", here(target)])

    def read(self, fn: str) -> str:
        """What is in a file of the task."""
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "file"
            _copy(self, [f"{self._remote.name}:{fn}", str(copy)])
            return copy.read_text(errors="replace")

    def write(self, fn: str, contents: str) -> None:
        """Makes a file of the task have these contents."""
        self._check_parent(fn)
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / PurePosixPath(fn).name
            copy.write_text(contents)
            # Whatever has the same size and time is another file all the same.
            _copy(self, ["--force", str(copy), f"{self._remote.name}:{fn}"])

    def exists(self, fn: str) -> bool:
        return self._test(f"[ -e {_quoted(fn)} ]")

    def isdir(self, fn: str) -> bool:
        return self._test(f"[ -d {_quoted(fn)} ]")

    file_read, file_write, file_exists = read, write, exists

    def wait_for_file(self, fn: str, max_wait_sec: float = ONE_YEAR, check_interval: float = 0.02) -> bool:
        """Waits until there is such a file; False if there is none after `max_wait_sec`."""
        deadline = time.monotonic() + max_wait_sec
        pause = max(check_interval, 0.02)
        while True:
            left = min(deadline - time.monotonic(), LOOK_SECONDS)
            turns = max(int(left / pause), 0)
            loop = f"while [ $i -le {turns} ]; do [ -e {_quoted(fn)} ] && exit 0; i=$((i+1)); sleep {pause}; done"
            if self._test(f"( i=0; {loop}; exit 1 )"):
                return True
            if time.monotonic() >= deadline:
                return False

    def rsync(self, local_fn: str, remote_fn: str = "", exclude_git: bool = False) -> None:
        """Makes a directory of the task like one here, without what caches and tools leave in it."""
        source = Path(local_fn).expanduser()
        target = remote_fn or _name_there(source)
        self.log("rsync %s to %s", local_fn, target)
        if shutil.which("rsync") is None or not self._test("command -v rsync >/dev/null"):
            self._send(self._copy_of(source, target))
            return
        excluded = [*EXCLUDED, *([".git/"] if exclude_git else [])]
        transport = self._remote._transport
        with tempfile.NamedTemporaryFile("w", suffix=".config") as config:
            config.write(_binary.call(["ssh-config"], environment=transport.environment))
            config.flush()
            slash = "/" if source.is_dir() else ""
            words = ["-a", *(f"--exclude={one}" for one in excluded), "-e", f"ssh -F {shlex.quote(config.name)}"]
            host = f"task{self._remote.rank}.{self._remote.job}"
            done = subprocess.run(
                ["rsync", *words, f"{source}{slash}", f"{host}:{target}"], capture_output=True, text=True
            )
        if done.returncode != 0:
            self.log("rsync ended with status %d: %s", done.returncode, done.stderr.strip())

    def tail_file(self, fn: str, line_prefix: str = "") -> Tail:
        """Prints what is written into a file of the task, from now on, until it is closed."""
        return Tail(self, fn, line_prefix)


class Tail:
    """A file that is being followed."""

    def __init__(self, task: Files, fn: str, prefix: str) -> None:
        remote = task._remote
        name = f"tail-{time.monotonic_ns()}"
        self._session = Session(remote._transport, remote.job, remote.rank, name)
        self._session.open()
        self._command = self._session.start(f"tail -n +1 -F {_quoted(fn)} 2>/dev/null")
        self._prefix = prefix
        threading.Thread(target=self._print, daemon=True).start()

    def _print(self) -> None:
        rest = ""
        try:
            for text in self._command.follow():
                *lines, rest = (rest + text).split("\n")
                for line in lines:
                    sys.stdout.write(f"{self._prefix}{line}\n")
                sys.stdout.flush()
        except Error:
            # It was closed, or the machine is gone.
            pass

    def close(self) -> None:
        # A shell that has nothing to do ends at once.
        self._session.signal("INT")
        self._session.close()


def _copy(task: Shell, words: list[str]) -> None:
    with task._told():
        _binary.call(["cp", "--json", *words], environment=task._remote._transport.environment)


def _name_there(source: Path) -> str:
    """What a copy is called in the home. The current directory has no name of its own: what is in it goes there."""
    return "." if source == Path() else source.resolve().name


def _quoted(fn: str) -> str:
    """A path as one word of the shell, in which a leading `~` still is the home."""
    if fn == "~" or fn.startswith("~/"):
        return f'"$HOME"{shlex.quote(fn[1:])}' if fn[1:] else '"$HOME"'
    return shlex.quote(fn)
