"""The `muster` program: it starts the private server, packs code and copies files; everything else is HTTP."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ._error import Error, Failed

#: Starting a server takes milliseconds; on a machine that swaps, much more.
START_SECONDS = 60


def find() -> str:
    """Where the program is: `MUSTER_BINARY`, else on `PATH`, else beside this Python."""
    if named := os.environ.get("MUSTER_BINARY"):
        return named
    beside = Path(sys.executable).with_name("muster")
    found = shutil.which("muster") or (str(beside) if os.access(beside, os.X_OK) else None)
    if found is None:
        hint = "put it on PATH, or name it in MUSTER_BINARY; `make install` in muster's checkout builds it"
        raise Error("the program `muster` is not installed here", code="no_binary", hint=hint)
    return found


def call(
    words: Sequence[str],
    *,
    environment: Mapping[str, str],
    text: str | None = None,
    cwd: str | None = None,
    timeout: float | None = None,
) -> str:
    """Runs `muster WORDS` and returns what it wrote; what it says went wrong is raised."""
    done = run(
        words, environment=environment, data=text.encode() if text is not None else None, cwd=cwd, timeout=timeout
    )
    if done.returncode != 0:
        raise _error_of(words, done)
    return done.stdout.decode(errors="replace")


def run(
    words: Sequence[str],
    *,
    environment: Mapping[str, str],
    data: bytes | None = None,
    cwd: str | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Runs `muster WORDS`, however it ends."""
    variables = {**os.environ, **environment}
    # Nobody's standard input is taken from them: what is not given is empty.
    return subprocess.run(
        [find(), *words], input=data or b"", capture_output=True, env=variables, cwd=cwd, timeout=timeout
    )


def _error_of(words: Sequence[str], done: subprocess.CompletedProcess[bytes]) -> Failed:
    said = done.stderr.decode(errors="replace").strip()
    for line in reversed(said.splitlines()):
        found = _document(line)
        if found is not None:
            errors: list[dict[str, Any]] = found.get("errors") or []
            details: list[str] = found.get("details") or []
            # One alone is in the message already.
            wrong = [f"{one.get('field')}: {one.get('message')}" for one in errors] if len(errors) > 1 else []
            message = "; ".join([str(found["message"]), *wrong, *details])
            return Failed(message, code=str(found.get("code", "failed")), hint=found.get("hint"))
    return Failed(said or f"`muster {words[0]}` ended with status {done.returncode}", code="failed")


def _document(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) and "message" in found else None
