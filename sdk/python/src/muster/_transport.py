"""The way to a server: one shared connection pool, patience with servers that restart, problems as exceptions."""

from __future__ import annotations

import json
import os
import ssl
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

import httpx

from . import _binary, _place
from ._error import Error, Problem, Unavailable, Unreachable

#: How long a server that is away is waited for: it may be starting anew, with another version.
PATIENCE = 30.0
#: The same for one that is there and says that a node is not: links come back, or the node is given up.
UNAVAILABLE_PATIENCE = 30.0
FIRST_PAUSE, LAST_PAUSE = 0.02, 1.0
#: A reply may wait for something for 50 s, and a silent stream says every 10 s that it is alive.
SILENCE = 60.0
PREFIX = "/api/v1"

Params = Mapping[str, Any]
_Answer = TypeVar("_Answer")
#: Why nobody should wait any longer, if there is a reason.
Unless = Callable[[], Optional[Exception]]


class Transport:
    """One server, for any number of threads."""

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        home: str | None = None,
        fingerprint: str | None = None,
        context: str | None = None,
    ) -> None:
        self.home = _home(home)
        place = _place.find(self.home, server, token, fingerprint, context)
        self._place = place
        self.is_private = place is None
        if self.is_private:
            _check_home(self.home)
        self._starting = threading.Lock()
        headers = {"Authorization": f"Bearer {place.token}"} if place and place.token else {}
        base, socket = _address(place.server if place else f"unix:{self.home / 'server.sock'}")
        self.address = place.server if place else f"unix:{socket}"
        # Unbounded: a fan-out over many tasks has a request in flight for each of them.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=30)
        # Without TLS nobody's certificates have to be read.
        trust = _trust(place.fingerprint if place else None) if base.startswith("https:") else False
        transport = httpx.HTTPTransport(uds=socket, limits=limits, verify=trust)
        self._http = httpx.Client(
            transport=transport, base_url=base, headers=headers, timeout=httpx.Timeout(SILENCE, connect=10)
        )
        #: What `muster` needs to find the same server.
        self.environment: dict[str, str] = {"MUSTER_HOME": str(self.home), **_place.environment(place)}

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, params: Params | None = None, unless: Unless | None = None) -> Any:
        return self.call("GET", path, params=params, unless=unless)

    def call(
        self, method: str, path: str, *, params: Params | None = None, body: Any = None, unless: Unless | None = None
    ) -> Any:
        """The JSON that the server answers, none if it answers nothing."""
        response = self.send(method, path, params=params, body=body, unless=unless)
        return response.json() if response.content else None

    def send(
        self, method: str, path: str, *, params: Params | None = None, body: Any = None, unless: Unless | None = None
    ) -> httpx.Response:
        """Sends a request until it is answered. All of the API's requests can be repeated: those that make something
        carry a key by which the server knows a second one. `unless` says why there is nothing to wait for any more."""
        headers = {"Idempotency-Key": str(uuid.uuid4())} if method == "POST" else {}

        def once() -> httpx.Response:
            response = self._http.request(method, PREFIX + path, params=_plain(params), json=body, headers=headers)
            _check(response)
            return response

        return self._patiently(once, unless)

    def bytes_of(self, path: str, params: Params | None = None, silence: float = SILENCE) -> Iterator[bytes]:
        """A body as it comes. A connection that breaks is the caller's affair: it knows how far it is."""
        with self._open(path, params, silence) as response:
            yield from response.iter_bytes()

    def events(self, path: str, params: Params | None = None, silence: float = SILENCE) -> Iterator[tuple[str, Any]]:
        """Server-sent events as (name, JSON). A keep-alive is the event `""`."""
        with self._open(path, params, silence) as response:
            name = ""
            data: list[str] = []
            for line in response.iter_lines():
                field, _, value = line.partition(":")
                value = value[1:] if value.startswith(" ") else value
                if line == "" and data:
                    said = json.loads("\n".join(data))
                    if name == "error":
                        raise Problem.of(int(said.get("status", 500)), said)
                    yield name, said
                    name, data = "", []
                elif field == "event":
                    name = value
                elif field == "data":
                    data.append(value)
                elif line.startswith(":"):
                    yield "", None

    def _open(self, path: str, params: Params | None, silence: float = SILENCE) -> _Stream:
        def once() -> _Stream:
            request = self._http.build_request(
                "GET", PREFIX + path, params=_plain(params), timeout=httpx.Timeout(silence, connect=10)
            )
            response = self._http.send(request, stream=True)
            if response.is_error:
                response.read()
            _check(response)
            return _Stream(response)

        return self._patiently(once)

    def _patiently(self, once: Callable[[], _Answer], unless: Unless | None = None) -> _Answer:
        began, pause, tries = time.monotonic(), FIRST_PAUSE, 0
        while True:
            tries += 1
            try:
                return once()
            except Unavailable as error:
                if unless is not None and pause >= LAST_PAUSE and (reason := unless()) is not None:
                    raise reason from error
                if time.monotonic() - began > UNAVAILABLE_PATIENCE:
                    raise
            except httpx.TransportError as error:
                if isinstance(refused := _cause(error), ssl.SSLCertVerificationError):
                    raise _place.untrusted(self.address, str(refused), self._seen()) from error
                waited = time.monotonic() - began
                if self.is_private and isinstance(error, httpx.ConnectError):
                    # Nobody listens: the program starts a server, and says what is wrong when it cannot.
                    self._start()
                    if tries <= 3:
                        continue
                if waited > PATIENCE or isinstance(error, httpx.ReadTimeout):
                    raise self._unreachable(error) from error
            time.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE)

    def _start(self) -> None:
        with self._starting:
            _binary.call(["server", "start", "--json"], environment=self.environment, timeout=_binary.START_SECONDS)

    def _seen(self) -> str | None:
        """The certificate that the server shows, believed or not."""
        url = httpx.URL(self.address)
        try:
            return _place.fingerprint_at(url.host, url.port or 443)
        except OSError:
            return None

    def _unreachable(self, error: Exception) -> Unreachable:
        hint = f"see {self.home / 'server.log'}" if self.is_private else "MUSTER_SERVER or a context names the server"
        return Unreachable(f"cannot reach the server at {self.address}: {error}", code="unreachable", hint=hint)


class _Stream:
    """A reply that is being read; its connection goes back when it is left."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    def __enter__(self) -> httpx.Response:
        return self._response

    def __exit__(self, *_: object) -> None:
        self._response.close()


def _check(response: httpx.Response) -> None:
    if not response.is_error:
        return
    try:
        body = response.json()
    except ValueError:
        body = {"detail": f"HTTP status {response.status_code}: {response.text[:200]}"}
    raise Problem.of(response.status_code, body)


def _trust(fingerprint: str | None) -> ssl.SSLContext:
    """One certificate alone, or whom this machine believes."""
    return _place.Pinned(fingerprint) if fingerprint else ssl.create_default_context()


def _cause(error: BaseException) -> BaseException:
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return error


def _plain(params: Params | None) -> dict[str, str]:
    """Query parameters as the server reads them, without those that say nothing."""
    said = ((name, value) for name, value in (params or {}).items() if value is not None and value is not False)
    return {name: "true" if value is True else str(value) for name, value in said}


def _home(home: str | None) -> Path:
    """Where the private server keeps its data; as the program finds it."""
    if named := home or os.environ.get("MUSTER_HOME"):
        return Path(named).absolute()
    data = os.environ.get("XDG_DATA_HOME", "")
    # The standard says that a relative one is to be ignored.
    return (Path(data) if Path(data).is_absolute() else Path.home() / ".local/share") / "muster"


def _check_home(home: Path) -> None:
    """Refuses a directory that another account owns, or that every account may write to: its socket may be theirs."""
    try:
        found = home.stat()
    except FileNotFoundError:
        return
    own = os.geteuid()
    if found.st_uid not in (own, 0):
        reason = f"{home} belongs to the account with the uid {found.st_uid}, not to {own}"
    elif found.st_mode & 0o002:
        reason = f"{home} may be written to by every account"
    else:
        return
    hint = "set MUSTER_HOME to a directory of your own"
    raise Error(f"MUSTER_HOME: {reason}", code="home_unusable", hint=hint)


def _address(server: str) -> tuple[str, str | None]:
    """The base of URLs, and the socket where there is one."""
    if server.startswith("unix:/"):
        return "http://localhost", server[len("unix:") :]
    if server.startswith(("http://", "https://")):
        return server.rstrip("/"), None
    message = f"`{server}` is not the address of a server"
    raise Error(message, code="invalid_server", hint="write https://HOST:PORT, http://HOST:PORT or unix:/PATH")
