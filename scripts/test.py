#!/usr/bin/env python3
"""Runs the Rust tests one binary at a time, and times every test.

  test.py run [--unit]      builds and runs the tests; --unit: those of libraries and binaries, and the architecture
  test.py summary TALLY     prints the slowest tests and the counts of a tally file

`cargo test` does not say how long a test took. The harness can, but only as an unstable option, which it accepts when
RUSTC_BOOTSTRAP is set; here that is set for the test binaries alone, never for the compiler.

With MUSTER_TALLY set, results are added to that file: one line of `passed|failed|ignored TAB seconds TAB name` each.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A hung test must not take CI's whole time with it.
BINARY_TIMEOUT_S = 20 * 60
# End-to-end tests start real servers and gangs; more at once than this and a small machine only measures its own load.
E2E_PACKAGE = "muster-app"
E2E_THREADS = os.environ.get("MUSTER_E2E_THREADS", "4")
# Unit tests on a real Kubernetes, which a quick loop does without. Kueue and Volcano take minutes more to build.
KUBE_PACKAGE = "muster-engine-kube"
KUBE_TESTS = ["--include-ignored", "--skip=why_others_wait"]
SLOWEST = 15


@dataclass
class Binary:
    """One test executable that cargo built."""

    package: str
    version: str
    folder: Path
    target: str
    kind: str
    path: str

    @property
    def label(self):
        return f"{self.package} {self.target}" if self.kind == "test" else f"{self.package} ({self.kind})"


@dataclass
class Tally:
    """What has been counted so far."""

    passed: int = 0
    failed: int = 0
    ignored: int = 0
    timed: list = field(default_factory=list)
    failures: list = field(default_factory=list)

    def add(self, result, seconds, name):
        setattr(self, result, getattr(self, result) + 1)
        self.timed.append((seconds, name))
        if result == "failed":
            self.failures.append(name)
        if path := os.environ.get("MUSTER_TALLY"):
            with Path(path).open("a") as file:
                file.write(f"{result}\t{seconds:.3f}\t{name}\n")

    def print_closing(self):
        print(f"\nthe {min(SLOWEST, len(self.timed))} slowest:")
        for seconds, name in sorted(self.timed, reverse=True)[:SLOWEST]:
            print(f"  {seconds:8.2f} s  {name}")
        if self.failures:
            print("\nfailed:")
            for name in self.failures:
                print(f"  {name}")
        skipped = f", {self.ignored} skipped" if self.ignored else ""
        print(f"\n{self.passed} passed, {self.failed} failed{skipped}", flush=True)


def cargo(*arguments):
    return [os.environ.get("CARGO", "cargo"), *arguments]


def build(selection):
    """Builds the selected tests and returns their binaries, or None when they do not compile."""
    command = cargo("test", "--locked", "--no-run", "--message-format=json-render-diagnostics", *selection)
    print(f"==> {' '.join(command)}", file=sys.stderr, flush=True)
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        return None
    binaries = []
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message["profile"]["test"]:
            continue
        if not message.get("executable"):
            continue
        # The id of a path package ends in `#name@version`, or in `#version` when the folder has the package's name.
        version = message["package_id"].rpartition("#")[2].rpartition("@")[2]
        folder = Path(message["manifest_path"]).parent
        target = message["target"]
        package = re.search(r'^name = "(.+)"$', (folder / "Cargo.toml").read_text(), re.MULTILINE)[1]
        binaries.append(Binary(package, version, folder, target["name"], target["kind"][0], message["executable"]))
    # Quick ones first: a broken invariant shows before the end-to-end tests have spent their minutes.
    order = {"lib": 0, "bin": 1, "test": 2}
    return sorted(binaries, key=lambda b: (b.package == E2E_PACKAGE, order.get(b.kind, 3), b.package, b.target))


def environment(binary):
    """What cargo would set for the binary, and what lets the harness report times."""
    return os.environ | {
        "CARGO": cargo()[0],
        "CARGO_MANIFEST_DIR": str(binary.folder),
        "CARGO_PKG_NAME": binary.package,
        "CARGO_PKG_VERSION": binary.version,
        "RUST_BACKTRACE": os.environ.get("RUST_BACKTRACE", "1"),
        "RUSTC_BOOTSTRAP": "1",
    }


def event_of(line):
    """The harness's event in a line of a test binary's output, and what stood before it on the line.

    A process that a test started may write to the same stream, also without an end of line.
    """
    at = line.find('{ "type":')
    if at < 0:
        return None, line
    try:
        return json.loads(line[at:]), line[:at]
    except ValueError:
        return None, line


class Run:
    """One test binary, while it runs: turns the harness's events into results."""

    def __init__(self, binary, tally, unit):
        self.binary, self.tally, self.unit = binary, tally, unit
        self.started = {}
        self.counts = {"passed": 0, "failed": 0, "ignored": 0}

    def record(self, result, seconds, name, output=""):
        self.counts[result] += 1
        self.tally.add(result, seconds, f"{self.binary.label}: {name}")
        if result == "failed":
            print(f"  FAIL  {self.binary.label}: {name} ({seconds:.2f} s)")
            print("".join(f"        {line}\n" for line in output.splitlines()), end="", flush=True)

    def on_event(self, event):
        if event.get("type") != "test":
            return
        name = event["name"]
        if event["event"] == "started":
            self.started[name] = time.monotonic()
        elif event["event"] in ("ok", "failed", "ignored"):
            began = self.started.pop(name, time.monotonic())
            result = {"ok": "passed"}.get(event["event"], event["event"])
            seconds = event.get("exec_time", time.monotonic() - began)
            self.record(result, seconds, name, event.get("stdout", "") + event.get("message", ""))

    def go(self):
        began = time.monotonic()
        with tempfile.NamedTemporaryFile(suffix=".json") as report:
            contain = [sys.executable, str(ROOT / "scripts/contain.py"), str(BINARY_TIMEOUT_S), report.name]
            harness = ["-Z", "unstable-options", "--report-time", "--format=json"]
            if self.binary.package == E2E_PACKAGE and self.binary.kind == "test":
                harness.append(f"--test-threads={E2E_THREADS}")
            if self.binary.package == KUBE_PACKAGE and not self.unit:
                harness.extend(KUBE_TESTS)
            process = subprocess.Popen(
                [*contain, self.binary.path, *harness],
                cwd=self.binary.folder,
                env=environment(self.binary),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            for line in process.stdout:
                event, rest = event_of(line)
                if rest.strip():
                    print(f"        {rest.rstrip()}", flush=True)
                if event:
                    self.on_event(event)
            status = process.wait()
            outcome = json.loads(Path(report.name).read_text() or "{}")
        self.judge(status, outcome, time.monotonic() - began)

    def judge(self, status, outcome, seconds):
        if outcome.get("timed_out"):
            minutes = BINARY_TIMEOUT_S // 60
            for name, began in self.started.items():
                self.record("failed", time.monotonic() - began, name, f"still running after {minutes} minutes; killed")
        elif status != 0 and self.counts["failed"] == 0:
            running = ", ".join(self.started) or "none"
            self.record(
                "failed",
                seconds,
                "the test binary",
                f"ended with status {status}; tests running then: {running}",
            )
        if left := outcome.get("left_behind"):
            lines = "\n".join(f"{process['pid']} {process['command']}" for process in left)
            self.record("failed", seconds, "leaves no process behind", f"ended with these still running:\n{lines}")
        counts = self.counts
        if sum(counts.values()):
            mark = "FAIL" if counts["failed"] else "ok"
            text = f"{counts['passed']} passed"
            text += "".join(f", {counts[key]} {key}" for key in ("failed", "ignored") if counts[key])
            print(f"  {mark:<5} {self.binary.label:<44} {seconds:6.1f} s  {text}", flush=True)


def crates_with_doc_tests():
    """Library crates with a Rust example in a doc comment; rustdoc is slow to start, and most crates have none."""
    opening = re.compile(r"^\s*//[/!] ```(?:rust|no_run|compile_fail|should_panic)?\s*$", re.MULTILINE)
    found = []
    for library in sorted(ROOT.glob("crates/*/src/lib.rs")):
        if any(opening.search(source.read_text()) for source in library.parent.rglob("*.rs")):
            manifest = (library.parent.parent / "Cargo.toml").read_text()
            found.append(re.search(r'^name = "(.+)"$', manifest, re.MULTILINE)[1])
    return found


def run_doc_tests(tally):
    for package in crates_with_doc_tests():
        began = time.monotonic()
        command = cargo("test", "--locked", "--quiet", "--doc", "-p", package)
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        seconds = time.monotonic() - began
        counts = re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", done.stdout, re.MULTILINE)
        passed, failed, ignored = (sum(int(count[i]) for count in counts) for i in range(3))
        if done.returncode != 0:
            print(done.stdout)
            failed = max(failed, 1)
        for result, count in (("passed", passed), ("failed", failed), ("ignored", ignored)):
            for _ in range(count):
                tally.add(result, seconds / max(passed + failed, 1), f"{package}: doc-test")
        if passed + failed:
            mark = "FAIL" if failed else "ok"
            print(f"  {mark:<5} {package + ' (doc)':<44} {seconds:6.1f} s  {passed} passed", flush=True)


def run(unit):
    tally = Tally()
    selections = [["--workspace"]]
    if unit:
        selections = [["--workspace", "--lib", "--bins"], ["-p", "muster-testkit", "--test", "architecture"]]
    for selection in selections:
        began = time.monotonic()
        binaries = build(selection)
        if binaries is None:
            tally.add("failed", time.monotonic() - began, f"the tests compile ({' '.join(selection)})")
            continue
        for binary in binaries:
            Run(binary, tally, unit).go()
    if not unit:
        run_doc_tests(tally)
    if not os.environ.get("MUSTER_TALLY"):
        tally.print_closing()
    return 1 if tally.failed else 0


def summary(path):
    lines = Path(path).read_text().splitlines()
    os.environ.pop("MUSTER_TALLY", None)
    tally = Tally()
    for line in lines:
        result, seconds, name = line.split("\t", 2)
        tally.add(result, float(seconds), name)
    tally.print_closing()
    return 1 if tally.failed or not tally.passed else 0


def main():
    parser = argparse.ArgumentParser(description="Run the Rust tests and time each of them.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run").add_argument("--unit", action="store_true")
    commands.add_parser("summary").add_argument("tally")
    arguments = parser.parse_args()
    return run(arguments.unit) if arguments.command == "run" else summary(arguments.tally)


if __name__ == "__main__":
    sys.exit(main())
