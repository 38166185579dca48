"""A server that speaks TLS, as the package reaches it: by its certificate, and by its name among contexts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import muster
from muster import _binary


@dataclass
class Served:
    url: str
    token: str
    fingerprint: str


@pytest.fixture(scope="module")
def served(binary: Path, place: Path) -> Iterator[Served]:
    """A server of its own with TLS."""
    home = place / "tls"
    words = [str(binary), "server", "run", "--home", str(home), "--listen", "127.0.0.1:0", "--tls"]
    with (place / "tls.log").open("wb") as log:
        server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        status = muster.Client(f"unix:{home / 'server.sock'}")._transport.get("/server")
        address = (home / "server.address").read_text()
        yield Served(f"https://{address}", (home / "token").read_text(), status["fingerprint"])
    finally:
        server.terminate()
        server.wait()


def test_everything_goes_over_tls(served: Served, tmp_path: Path) -> None:
    with muster.Client(served.url, token=served.token, fingerprint=served.fingerprint) as client:
        # The code is packed and sent by the program, which gets the same server and certificate.
        job = client.run("echo from TLS", workdir=tmp_path)
        assert job.wait().state == "succeeded"
        assert list(job.logs()) == ["from TLS"]


def test_a_certificate_that_is_not_known_is_refused_with_its_fingerprint(served: Served) -> None:
    with pytest.raises(muster.Error) as unknown:
        muster.Client(served.url, token=served.token).jobs()
    assert unknown.value.code == "certificate_unknown"
    assert served.fingerprint in str(unknown.value)
    other = "sha256:" + "0f" * 32
    with pytest.raises(muster.Error) as changed:
        muster.Client(served.url, token=served.token, fingerprint=other).jobs()
    assert changed.value.code == "certificate_changed"
    assert served.fingerprint in str(changed.value)
    for wrong in ({"fingerprint": "12"}, {"server": "http://127.0.0.1:1", "fingerprint": other}):
        with pytest.raises(muster.Error) as refused:
            muster.Client(**{"server": served.url, **wrong})
        assert refused.value.code == "fingerprint_invalid"


def test_a_context_is_the_server_that_the_program_would_take(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    monkeypatch.setenv("MUSTER_TOKEN", served.token)
    _binary.call(
        ["context", "add", "lab", served.url, "--fingerprint", served.fingerprint], environment=dict(os.environ)
    )
    # A token that may be another server's is not shown to it, unless the environment names it, too.
    with pytest.raises(muster.Error) as unknown:
        muster.Client(context="lab").nodes()
    assert unknown.value.code == "unauthorized"
    with monkeypatch.context() as together:
        together.setenv("MUSTER_CONTEXT", "lab")
        assert muster.Client().nodes()
        with pytest.raises(muster.Error) as elsewhere:
            muster.Client(served.url, fingerprint=served.fingerprint).nodes()
        assert elsewhere.value.code == "unauthorized"
    monkeypatch.delenv("MUSTER_TOKEN")
    _binary.call(
        ["context", "add", "lab", served.url, "--token-stdin"], environment=dict(os.environ), text=served.token
    )
    assert muster.Client(context="lab").nodes()
    _binary.call(["context", "use", "lab"], environment=dict(os.environ))
    client = muster.Client()
    assert client.nodes()
    assert not client._transport.is_private
    assert muster.Client(context="local")._transport.is_private
    with pytest.raises(muster.Error) as missing:
        muster.Client(context="nowhere")
    assert missing.value.code == "no_such_context"
