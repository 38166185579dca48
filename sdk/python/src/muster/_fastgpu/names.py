"""Names: which are allowed, and those that are made up for whoever gives none."""

from __future__ import annotations

import hashlib
import random
import re
import string
import sys
from pathlib import Path

from .settings import SETTINGS

_RUN = re.compile(r"[-_a-z0-9]+")
_TASK = re.compile(r"[-a-zA-Z0-9+=._:/@]*")
_LETTERS = string.ascii_lowercase + string.digits
#: Of a run or a machine; a run directory has a suffix beside it, and a file name 255 bytes.
LONGEST = 127


def check_run(name: str) -> None:
    # 30 was the bound of the first generation; the demos of the second have longer names.
    assert len(name) <= LONGEST, f"run name {name!r} has {len(name)} characters; at most {LONGEST} are allowed"
    assert not name or _RUN.fullmatch(name), f"run name {name!r} must be of lowercase letters, digits, - and _"


def check_job(name: str) -> None:
    assert name.count(".") <= 1, f"job name {name!r} has more than one dot"
    check_task(name)


def check_task(name: str) -> None:
    assert len(name) <= LONGEST, f"name {name!r} has {len(name)} characters; at most {LONGEST} are allowed"
    assert _TASK.fullmatch(name), f"name {name!r} must be of ASCII letters, digits and + - = . _ : / @"


def made_up(kind: str, *words: object) -> str:
    """The same for the same script each time it runs, so that it finds its machines again."""
    with SETTINGS.lock:
        number = SETTINGS.unnamed.get(kind, 0)
        SETTINGS.unnamed[kind] = number + 1
    script = str(Path(sys.argv[0]).resolve()) if sys.argv and sys.argv[0] else ""
    digest = hashlib.sha256(repr((script, *words)).encode()).digest()
    return f"unnamed{kind}-{number}-{''.join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:5])}"


def random_letters() -> str:
    return "".join(random.choices(_LETTERS, k=5))
