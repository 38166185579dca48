"""A server, and what it has."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import _binary
from ._job import Job, Jobs, LocalPath
from ._session import Words
from ._transport import Transport

if TYPE_CHECKING:
    from . import _wire


class Client:
    """A muster server: the private one of this user, started if it does not run, or the one at `server`.

    `server` is `https://HOST:PORT`, `http://HOST:PORT` or `unix:/PATH`, and `fingerprint` the certificate that it must
    show; `context` is its name in `muster context ls`. Without them `MUSTER_SERVER`, `MUSTER_CONTEXT` or the context in
    use say, and without those it is the private one, whose data is in `home`, else in `MUSTER_HOME`. One client serves
    any number of threads.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        token: str | None = None,
        home: LocalPath | None = None,
        fingerprint: str | None = None,
        context: str | None = None,
    ) -> None:
        self._transport = Transport(server, token, None if home is None else str(home), fingerprint, context)

    def run(
        self,
        command: Words,
        *,
        name: str | None = None,
        display_name: str | None = None,
        nodes: int = 1,
        array: str | None = None,
        gpus: str | int | None = None,
        cpus: float | None = None,
        memory: str | int | None = None,
        shm: str | int | None = None,
        workdir: LocalPath | None = None,
        env: Mapping[str, str] | None = None,
        setup: str | None = None,
        setup_once: str | None = None,
        on: str | None = None,
        timeout: str | float | None = None,
        grace: str | float | None = None,
        retries: int | Mapping[str, Any] | None = None,
        framework: str | None = None,
        outputs: list[str] | None = None,
        labels: Mapping[str, str] | None = None,
        spec: Mapping[str, Any] | None = None,
    ) -> Job:
        """Submits a command as a job and returns at once; `.wait(show=True)` shows its output until it is over.

        A list of words is executed as it stands, a text is a line for the shell. The code is the folder `workdir`, the
        current one if absent. `display_name` is what people call the job, in any script. With `array`, such as
        `"1-1000%16"`, the command runs once for each index. `spec` has any other field of the job file.
        """
        resources = {"gpus": None if gpus is None else str(gpus), "cpus": cpus, "memory": memory, "shm": shm}
        fields: dict[str, Any] = {
            "command": command if isinstance(command, str) else list(command),
            "name": name,
            "display_name": display_name,
            "nodes": nodes,
            "array": array,
            "resources": _said(resources) or None,
            "workdir": os.path.abspath(workdir or "."),  # noqa: PTH100 - a link stays a link
            "env": dict(env) if env else None,
            "setup": setup,
            "setup_once": setup_once,
            "on": on,
            "timeout": _span(timeout),
            "grace": _span(grace),
            "retries": retries,
            "framework": framework,
            "outputs": outputs,
            "labels": dict(labels) if labels else None,
        }
        return self.submit({**_said(fields), **(spec or {})})

    def submit(self, spec: Mapping[str, Any]) -> Job:
        """Submits a job with the fields of the job file. `muster submit` packs and sends the code."""
        text = json.dumps(dict(spec))
        said = _binary.call(["submit", "-", "--json"], environment=self._transport.environment, text=text)
        seen = json.loads(said)
        return Job(self._transport, seen["id"], seen)

    def create(self, spec: Mapping[str, Any], *, environment: Mapping[str, str] | None = None) -> Job:
        """Makes a job that has no code of its own, such as a machine; `environment` is the submitter's."""
        body = {"spec": dict(spec), **({"environment": dict(environment)} if environment else {})}
        seen = self._transport.call("POST", "/jobs", body=body)
        return Job(self._transport, seen["id"], seen)

    def machine(
        self,
        name: str,
        *,
        nodes: int = 1,
        on: str = "local",
        labels: Mapping[str, str] | None = None,
        peers: bool | None = None,
        own_home: bool | None = None,
    ) -> Job:
        """Makes a machine, or a group of them: it runs nothing of its own, and is used through `exec`, `session` and
        `upload` until it is stopped. `suspend` and `resume` park it and bring it back. `peers` lets it reach itself by
        ssh; those of a group reach each other anyway. `own_home` gives each a home directory of its own at `/root`, on
        `local`."""
        fields = {"kind": "machine", "name": name, "nodes": nodes, "on": on, "labels": dict(labels or {})}
        spec = _said({**fields, "peers": peers, "own_home": own_home})
        # On this machine a task has the environment of whoever asked for it, as with every job; hosts have their own.
        return self.create(spec, environment=os.environ if on == "local" else None)

    def job(self, selector: str = "last") -> Job:
        """A job by its id, the beginning of it, its name or display name, or `last`."""
        return Job(self._transport, selector)

    def jobs(
        self,
        *,
        state: str | None = None,
        name: str | None = None,
        kind: str | None = None,
        label: str | None = None,
        limit: int = 100,
    ) -> Jobs:
        """Jobs, newest first; `state` takes several, separated by commas, `label` is `key=value`."""
        how: dict[str, Any] = {"state": state, "name": name, "kind": kind, "label": label}
        items: list[_wire.JobSummary] = []
        cursor: str | None = None
        while len(items) < limit:
            page = self._transport.get("/jobs", {**how, "limit": min(limit - len(items), 1000), "cursor": cursor})
            items += page["items"]
            cursor = page.get("next_cursor")
            if not cursor:
                break
        return Jobs(self._transport, items)

    def nodes(self) -> list[_wire.NodeView]:
        """The nodes, with what is free on each."""
        return self._transport.get("/nodes")["items"]

    def pools(self) -> list[_wire.PoolView]:
        """The pools of SSH hosts, with each host and what is free on it."""
        return self._transport.get("/pools")["items"]

    def server(self) -> _wire.ServerView:
        """The server itself."""
        return self._transport.get("/server")

    def doctor(self) -> _wire.Doctor:
        """Whatever is wrong with the server, its engines and its nodes, with the remedy."""
        return self._transport.get("/doctor")

    def close(self) -> None:
        """Closes its connections. Jobs and the server go on."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._transport.address})"


def _said(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _span(value: str | float | None) -> str | None:
    """A duration as the server reads it; a number is seconds."""
    return value if value is None or isinstance(value, str) else f"{int(value * 1000)}ms"
