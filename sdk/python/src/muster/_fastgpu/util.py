"""Small things that scripts borrow from `ncluster.util`."""

from __future__ import annotations

import sys
import time
from pathlib import Path


def now_micros(absolute: bool = False) -> int:
    """Microseconds since the module was imported, or since 1970."""
    now = int(time.time() * 1e6)
    return now if absolute else now - _BEGAN


_BEGAN = now_micros(absolute=True)


def assert_script_in_current_directory() -> None:
    """Refuses to go on where the script's own folder is not the current one: its uploads are named from there."""
    script = Path(sys.argv[0])
    assert script.parent.resolve() == Path.cwd(), f"change into the directory of {script} and run it again"
