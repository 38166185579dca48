#!/usr/bin/env python3
"""Sends a real server everything its OpenAPI document allows, and much that it does not: fuzz_api.py --muster BINARY

A server of its own (temporary home, TCP port 0) serves the document; schemathesis reads it there and makes requests to
every operation in it, with a fixed seed. No reply may be a 5xx, have a status, a content type or a header that the
document does not name, or a body that does not fit its schema; no operation may be open to a caller without the token.
Then the same is sent to a server that people share, by somebody of each role.

Nothing is left out in silence:
- `POST /api/v1/server/shutdown` would end the run, so it is sent once, last, and its reply checked like the others.
- `POST /api/v1/logout` would leave the rest of the run without a token; the tests of accounts send it.
- `GET /api/v1/events` is not followed: that stream ends only with the server.
- Following all events ends with the server only; that operation is asked for what is there (fuzz_hooks.py).
- The agents' link (a WebSocket) and the pages outside the document (`/metrics`, `/healthz`) are not operations of it.
  `/metrics` is read with Prometheus' own parser instead.

A job that does not end would hold a follower for ever, so a thread stops what is older than a second and starts
another: there is always a job that runs, and every stream ends.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

HERE = Path(__file__).resolve().parent
SEED = 20240607
START_S = 30
STOP_S = 20
SHUTDOWN = "/api/v1/server/shutdown"
LOGOUT = "/api/v1/logout"
# In this order: a lead may change what those before are, and an admin everybody.
ROLES = ("viewer", "member", "lead", "admin")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)
TURN_S = 1.0


class Server:
    """One server on a free port, with its token; with accounts, the token of its first admin."""

    def __init__(self, muster, folder, *flags):
        self.folder, self.home = folder, folder / "home"
        self.home.mkdir(mode=0o700)
        (folder / "work").mkdir()
        # Where people share it, jobs run here only if somebody says so.
        (self.home / "config.toml").write_text("[local]\nenabled = true\n")
        (folder / "work" / "train.py").write_text("print('hello')\n")
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")}
        self.environment = kept | {"MUSTER_HOME": str(self.home)}
        self.muster = muster
        self.log = folder / "server.out"
        with self.log.open("w") as output:
            command = [muster, "server", "run", "--home", self.home, "--listen", "127.0.0.1:0", *flags]
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=self.environment)
        self.url = f"http://{self.address()}"
        self.token = (self.home / "token").read_text().strip()
        if "--auth" in flags:
            login = {"user": "admin", "password": (self.home / "admin-password").read_text().strip()}
            self.token = json.loads(self.ask("POST", "/api/v1/login", login)[2])["secret"]

    def person(self, role):
        """The token of somebody who is this in the workspace of the jobs."""
        self.ask("POST", "/api/v1/users", {"name": f"the-{role}", "admin": role == "admin", "account": "nobody"})
        if role != "admin":
            self.ask("PUT", f"/api/v1/workspaces/default/members/the-{role}", {"role": role})
        made = self.ask("POST", f"/api/v1/users/the-{role}/tokens", {"name": "fuzz", "scope": "admin"})
        return json.loads(made[2])["secret"]

    def address(self):
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            plain = re.sub(r"\x1b\[[0-9;]*m", "", self.log.read_text())
            found = re.search(r"listening.*?address=(\S+)|address=(\S+).*?listening", plain)
            if found and "the server is ready" in plain:
                return found[1] or found[2]
            time.sleep(0.02)
        raise SystemExit(f"error: the server did not start:\n{self.log.read_text()}")

    def ask(self, method, path, body=None):
        """The status, the content type and the body of a reply."""
        request = urllib.request.Request(self.url + path, method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        if body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, reply.headers.get("content-type"), reply.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers.get("content-type"), error.read()

    def run(self, name, *command):
        """A job through the command line: with a bundle and an environment, as users make them."""
        line = [self.muster, "run", "--name", name, "--", *command]
        subprocess.run(line, cwd=self.folder / "work", env=self.environment, capture_output=True, timeout=60)

    def submit(self, name, *command):
        self.ask("POST", "/api/v1/jobs", {"spec": {"name": name, "command": list(command)}})

    def unfinished(self):
        _, _, text = self.ask("GET", "/api/v1/jobs?state=queued,starting,running,stopping&limit=1000")
        return [job["id"] for job in json.loads(text)["items"]]


class Tide(threading.Thread):
    """Keeps one job running, and lets none run for long."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.over, self.error = server, threading.Event(), None

    def run(self):
        try:
            old = []
            while not self.over.wait(TURN_S):
                for job in old:
                    self.server.ask("POST", f"/api/v1/jobs/{job}/stop", {"grace_ms": 0})
                self.server.submit("running", "sleep", "60")
                old = self.server.unfinished()
        except Exception as error:
            self.error = error


def fuzz(server, token, phases, examples, seconds):
    environment = server.environment | {"SCHEMATHESIS_HOOKS": "fuzz_hooks", "PYTHONPATH": str(HERE)}
    command = [
        *(Path(sys.executable).parent / "schemathesis", "run", f"{server.url}/api/v1/openapi.json"),
        *("--header", f"Authorization: Bearer {token}"),
        *("--exclude-path", SHUTDOWN, "--exclude-path", LOGOUT),
        *("--checks", ",".join(CHECKS), "--seed", str(SEED), "--max-examples", str(examples)),
        *("--phases", phases, "--generation-database", "none", "--continue-on-failure"),
        *("--request-timeout", "30", "--no-color", "--warnings", "off", "--output-sanitize", "false"),
    ]
    try:
        done = subprocess.run([str(part) for part in command], cwd=server.folder, env=environment, timeout=seconds)
    except subprocess.TimeoutExpired:
        return [f"schemathesis runs for over {seconds} s: fewer --examples, or find the request that hangs"]
    return [] if done.returncode == 0 else [f"schemathesis ended with {done.returncode}"]


def shut_down(server):
    """The one operation that ends the server: its reply is documented, and the process goes."""
    documented = json.loads(server.ask("GET", "/api/v1/openapi.json")[2])["paths"][SHUTDOWN]["post"]["responses"]
    for job in server.unfinished():
        server.ask("POST", f"/api/v1/jobs/{job}/stop", {"grace_ms": 0})
    deadline = time.monotonic() + STOP_S
    while server.unfinished() and time.monotonic() < deadline:
        time.sleep(0.05)
    problems = [f"these jobs do not end: {', '.join(left)}"] if (left := server.unfinished()) else []
    status, _, body = server.ask("POST", SHUTDOWN)
    if str(status) not in documented or status >= 400 or body:
        problems.append(f"POST {SHUTDOWN} answered {status} {body!r}; documented: {', '.join(documented)}")
    try:
        code = server.process.wait(STOP_S)
        problems += [f"the server ended with {code}"] if code else []
    except subprocess.TimeoutExpired:
        problems.append(f"the server still runs {STOP_S} s after it was told to stop")
        server.process.kill()
    return problems


def scrape(server):
    """Prometheus' own parser reads the page: every series once, with a help text and a kind."""
    status, kind, body = server.ask("GET", "/metrics")
    if status != 200 or not (kind or "").startswith("text/plain; version=0.0.4"):
        return [f"GET /metrics answered {status} {kind}"]
    try:
        families = list(text_string_to_metric_families(body.decode()))
    except ValueError as error:
        return [f"Prometheus cannot read /metrics: {error}"]
    series = [(it.name, *sorted(it.labels.items())) for family in families for it in family.samples]
    problems = [f"/metrics has {name} twice" for name in sorted({it for it in series if series.count(it) > 1})]
    bare = [family.name for family in families if family.type == "unknown" or not family.documentation]
    problems += [f"/metrics does not say what {name} is" for name in bare]
    wanted = {"muster_jobs", "muster_node_cpus_used", "muster_commit_seconds", "muster_server_uptime_seconds"}
    missing = wanted - {family.name for family in families}
    return problems + [f"/metrics lacks {name}" for name in sorted(missing)]


def panics(server):
    """A panic that a request survived is a failure all the same."""
    lines = server.log.read_text(errors="replace").splitlines()
    return [f"the server panicked: {line}" for line in lines if "panicked at" in line]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--muster", type=Path, required=True, help="the binary to test")
    parser.add_argument("--examples", type=int, default=100, help="random requests for each operation (default: 100)")
    parser.add_argument("--seconds", type=int, default=180, help="the longest it may take (default: 180)")
    arguments = parser.parse_args()
    problems = attempt(arguments)
    problems += attempt(arguments, *ROLES)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def attempt(arguments, *roles):
    """All of it, on one server: its owner's own, or one that people of these roles share."""
    with tempfile.TemporaryDirectory(prefix="muster-fuzz-", ignore_cleanup_errors=True) as folder:
        server = Server(arguments.muster.resolve(), Path(folder), *(["--auth"] if roles else []))
        server.run("done", "true")
        server.run("failed", "sh", "-c", "echo a line; exit 3")
        server.submit("stopped", "sleep", "60")
        server.ask("POST", "/api/v1/jobs/stopped/stop", {"grace_ms": 0})
        tide = Tide(server)
        tide.start()
        problems = []
        if not roles:
            problems += fuzz(server, server.token, "examples,coverage,fuzzing", arguments.examples, arguments.seconds)
        tokens = {role: server.person(role) for role in roles}
        for role, token in tokens.items():
            print(f"-- as {role}", flush=True)
            found = fuzz(server, token, "examples,fuzzing", max(1, arguments.examples // 10), arguments.seconds)
            problems += [f"{problem}, as {role}" for problem in found]
        tide.over.set()
        tide.join()
        if tide.error:
            problems.append(f"the thread that keeps a job running failed: {tide.error!r}")
        problems += scrape(server)
        problems += panics(server)
        if server.process.poll() is None:
            problems += shut_down(server)
        else:
            problems.append(
                f"the server ended by itself with {server.process.returncode}:\n{server.log.read_text()[-3000:]}"
            )
    return problems


if __name__ == "__main__":
    sys.exit(main())
