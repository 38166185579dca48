"""What a script sets for all its machines, and what is remembered between calls."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from .. import Client

BACKENDS = ("aliyun", "aws", "local", "ssh")


@dataclass
class Settings:
    """Of this process."""

    backend: str = "aliyun"
    disable_nas: bool = False
    logdir_root: str | None = None
    task_launched: bool = False
    #: The directory of each run, once it was made: one for each run and process.
    logdirs: dict[str, str] = field(default_factory=dict[str, str])
    #: How often a name was made up, of jobs and of tasks.
    unnamed: dict[str, int] = field(default_factory=dict[str, int])
    #: What was said and need not be said again.
    said: set[str] = field(default_factory=set[str])
    lock: threading.RLock = field(default_factory=threading.RLock)
    _client: Client | None = None

    def client(self) -> Client:
        with self.lock:
            if self._client is None:
                self._client = Client()
            return self._client

    def say_once(self, text: str) -> None:
        with self.lock:
            if text not in self.said:
                self.said.add(text)
                print(text, flush=True)


SETTINGS = Settings()


def set_backend(name: str) -> None:
    """Says where machines come from: `local` is this machine; the others are the source that is configured here."""
    assert name in BACKENDS, f"unknown backend {name!r}: it is one of {', '.join(BACKENDS)}"
    is_another = name != SETTINGS.backend
    assert not (is_another and SETTINGS.task_launched), "the backend cannot change after machines were made"
    SETTINGS.backend = name
