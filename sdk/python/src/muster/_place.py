"""Which server is meant, and whom to take for it: as the program `muster` finds it (crates/cli/src/place.rs)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._error import Error, Unreachable

#: What the private server is called among contexts.
LOCAL = "local"
PREFIX = "sha256:"


class Distrust(Unreachable):
    """The server was reached, and is not the one that is meant, or nobody knows whether it is."""


@dataclass(frozen=True)
class Place:
    """A server that is not the private one."""

    server: str
    token: str | None = None
    fingerprint: str | None = None


def find(
    home: Path, server: str | None, token: str | None, fingerprint: str | None, context: str | None
) -> Place | None:
    """What was asked for, else what variables say, else the context in use; none for the private server."""
    variable = os.environ.get
    address = server or (None if context else variable("MUSTER_SERVER"))
    # A token in the environment is for the server that the environment names, and for no other.
    meant = variable("MUSTER_SERVER") or variable("MUSTER_CONTEXT")
    if address:
        given = variable("MUSTER_TOKEN") if meant in (None, "", address) else None
        return _place(address, token or given, fingerprint or variable("MUSTER_FINGERPRINT"))
    known = _contexts(home)
    name = context or variable("MUSTER_CONTEXT") or known.get("current") or LOCAL
    if name == LOCAL:
        return None
    one = known.get("contexts", {}).get(name)
    if one is None:
        raise Error(f"there is no context `{name}`", code="no_such_context", hint="`muster context ls` lists them")
    given = variable("MUSTER_TOKEN") if name == variable("MUSTER_CONTEXT") else None
    is_tls = one["url"].startswith("https://")
    pinned = fingerprint or one.get("fingerprint") or (variable("MUSTER_FINGERPRINT") if is_tls else None)
    return _place(one["url"], token or one.get("token") or given, pinned)


def environment(place: Place | None) -> dict[str, str]:
    """What makes `muster` find the same one. What is empty is not set, to it."""
    if place is None:
        return {"MUSTER_SERVER": "", "MUSTER_CONTEXT": LOCAL}
    return {
        "MUSTER_SERVER": place.server,
        "MUSTER_TOKEN": place.token or "",
        "MUSTER_FINGERPRINT": place.fingerprint or "",
    }


def fingerprint_at(host: str, port: int) -> str:
    """The certificate that is shown there, whoever shows it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    stream = socket.create_connection((host, port), timeout=10)
    with context.wrap_socket(stream, server_hostname=host) as secured:
        return _of(secured)


def untrusted(address: str, why: str, seen: str | None) -> Distrust:
    pin = f"if `muster server status` says that on the server's machine, pin it: MUSTER_FINGERPRINT={seen}"
    message = f"the certificate of {address}{f', {seen},' if seen else ''} is not trusted: {why}"
    return Distrust(message, code="certificate_unknown", hint=pin if seen else None)


class Pinned(ssl.SSLContext):
    """Believes the certificate of one fingerprint, whoever has signed it and whatever names it has."""

    pinned: str

    def __new__(cls, fingerprint: str) -> Pinned:
        self = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        self.check_hostname = False
        self.verify_mode = ssl.CERT_NONE
        self.minimum_version = ssl.TLSVersion.TLSv1_2
        self.pinned = fingerprint
        return self

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        secured = super().wrap_socket(*args, **kwargs)
        found = _of(secured)
        if found != self.pinned:
            secured.close()
            raise Distrust(
                f"THE CERTIFICATE OF THE SERVER HAS CHANGED: it is {found}, and {self.pinned} is pinned",
                code="certificate_changed",
                hint="ask whoever runs the server; if it was replaced, pin the new one",
            )
        return secured


def _of(secured: ssl.SSLSocket) -> str:
    return PREFIX + hashlib.sha256(secured.getpeercert(binary_form=True) or b"").hexdigest()


def _place(server: str, token: str | None, fingerprint: str | None) -> Place:
    if fingerprint is None or fingerprint == "":
        return Place(server, token or None)
    digits = fingerprint.strip().lower().removeprefix(PREFIX).replace(":", "")
    if not re.fullmatch("[0-9a-f]{64}", digits):
        raise Error(
            f"`{fingerprint}` is not the fingerprint of a certificate",
            code="fingerprint_invalid",
            hint="it is sha256: and 64 hexadecimal digits",
        )
    if not server.startswith("https://"):
        message = f"`{server}` has no certificate to compare with a fingerprint"
        raise Error(message, code="fingerprint_invalid", hint="write https://HOST:PORT")
    return Place(server, token or None, PREFIX + digits)


def _contexts(home: Path) -> Mapping[str, Any]:
    path = home / "contexts.json"
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Error(f"{path} cannot be read: {error}", code="contexts_unusable") from error
