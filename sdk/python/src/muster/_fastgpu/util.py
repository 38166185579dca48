"""Small things that scripts borrow from `ncluster.util`."""

from __future__ import annotations

import time


def now_micros(absolute: bool = False) -> int:
    """Microseconds since the module was imported, or since 1970."""
    now = int(time.time() * 1e6)
    return now if absolute else now - _BEGAN


_BEGAN = now_micros(absolute=True)
