"""Machines of a pool of SSH hosts: putting muster there, a command on all of them beside `pdsh`, and sending them a
folder beside `rsync`. The hosts are namespaces of this machine with a real sshd each, so they share its cores."""

import http.client
import json
import shutil
import socket
import subprocess
import threading
import time
from contextlib import contextmanager

from answering import Answering
from figure import Row, Unavailable
from measure import Failed, Sample, run_ms, wait_for
from slurm import tool
from tree import Tree

UPLINK = "200mbit"
POOL = "bench"
OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=no",
    "UserKnownHostsFile=/dev/null",
    "LogLevel=ERROR",
    "IdentitiesOnly=yes",
)

NOTES = (
    "Hosts: network, process and mount namespaces with a real sshd each, all on this machine and its cores. `pdsh` "
    "logs in anew for every command, as it does; muster's commands go through sessions that are open.",
    f"Sending to hosts: what the launcher sends to all of them together is bounded to {UPLINK} (`tbf`); between each "
    "other the hosts are not bounded. `rsync -a` goes to one after the other.",
)


class Hosts(Answering):
    """`with Hosts(program, count) as hosts:`; nothing is left of them at the end."""

    makes, tells = "the hosts", "hosts"

    def take(self, said):
        self.key, self.hosts = said["key"], said["hosts"]

    @property
    def sent_mb(self):
        """What the launcher has sent to all of them."""
        return self.tell("traffic")["launcher"]["sent"] / 1e6

    @property
    def destinations(self):
        return [host["root"] for host in self.hosts]

    @property
    def ssh(self):
        """The words of an ssh that gets in."""
        return ["-F", "none", "-i", self.key, *(word for option in OPTIONS for word in ("-o", option))]


@contextmanager
def pool(bench, hosts):
    """The hosts as a pool, for the time of the block; gives how long it took until each could be used."""
    muster = bench.muster
    began = time.monotonic()
    muster.command("pool", "add", POOL, "--key", hosts.key, *hosts.destinations)
    try:
        yield time.monotonic() - began
    finally:
        muster.command("pool", "rm", "--force", POOL)


@contextmanager
def machines(bench, count):
    """The id of a job that holds so many hosts of the pool, and how long it took to have them."""
    muster = bench.muster
    began = time.monotonic()
    rows = json.loads(muster.command("machine", "create", "bench", "-N", count, "--on", f"ssh/{POOL}", "--json"))
    took = time.monotonic() - began
    try:
        yield rows[0]["job"], took
    finally:
        muster.command("machine", "kill", "bench")


def deploy(bench):
    absent, there = [], []
    for _ in range(max(2, bench.uploads)):
        with Hosts(bench.hosts, 2) as hosts:
            began = time.monotonic()
            with pool(bench, hosts):
                with machines(bench, 2):
                    absent.append(time.monotonic() - began)
                for _ in range(3):
                    with machines(bench, 2) as (_, took):
                        there.append(took)
    first, next_ones = Sample(absent), Sample(there)
    goal = "≤ 5 s"
    yield Row("two hosts without an agent → machines that run, p50", f"{first.p50:.2f} s", goal, first.p50 <= 5)
    goal = "≤ 1 s"
    yield Row("the same with agents there, p50", f"{next_ones.p50:.3f} s", goal, next_ones.p50 <= 1)


class Session:
    """The main session of one task, over a connection of its own."""

    def __init__(self, home, job, task):
        self.path, self.task = f"/api/v1/jobs/{job}/sessions/main", task
        self.connection = http.client.HTTPConnection("muster")
        self.connection.sock = socket.socket(socket.AF_UNIX)
        self.connection.sock.connect(str(home / "server.sock"))

    def ask(self, method, path, body=None):
        headers = {"Content-Type": "application/json"}
        self.connection.request(method, path, body and json.dumps(body), headers)
        reply = self.connection.getresponse()
        text = reply.read()
        if reply.status >= 300:
            raise Failed(f"{method} {path}: {reply.status} {text[:300]}")
        return json.loads(text)

    def open(self):
        self.ask("PUT", f"{self.path}?task={self.task}", {"fresh": False})

    def run(self, command):
        done = self.ask("POST", f"{self.path}/commands?task={self.task}&wait=30", {"command": command})
        if done.get("exit_status") != 0:
            raise Failed(f"the command on task {self.task} ended with {done}")


def on_all_ms(sessions, command):
    """A command on all of them at once, until the last has ended."""
    failures = []

    def one(session):
        try:
            session.run(command)
        except (Failed, OSError, http.client.HTTPException) as error:
            failures.append(str(error))

    threads = [threading.Thread(target=one, args=(session,)) for session in sessions]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = (time.monotonic() - began) * 1000
    if failures:
        raise Failed(failures[0])
    return took


def are_open(sessions):
    """Opens them and gives each a first command, which is not what is measured."""
    try:
        for session in sessions:
            session.open()
        return on_all_ms(sessions, "true")
    except Failed as error:
        # A host is there before the second of its two connections is.
        if "503" not in str(error):
            raise
        return None


def command(bench):
    count, theirs, cells = 16, [], {}
    with Hosts(bench.hosts, count) as hosts, pool(bench, hosts) as added, machines(bench, count) as (job, _):
        sessions = [Session(bench.muster.home, job, task) for task in range(count)]
        wait_for("every session to be open", lambda: are_open(sessions), 60, 0.1)
        mine = Sample([on_all_ms(sessions, "true") for _ in range(bench.few)])

        def beside_pdsh(_):
            if not tool("pdsh"):
                raise Unavailable("not installed: pdsh")
            targets = ",".join(host["address"] for host in hosts.hosts)
            words = [tool("pdsh"), "-R", "ssh", "-f", str(count), "-l", "root", "-w", targets, "true"]
            environment = bench.muster.environment | {"PDSH_SSH_ARGS_APPEND": " ".join(hosts.ssh)}
            theirs.append(Sample([run_ms(words, environment) for _ in range(max(3, bench.few // 2))]))
            cells["plain tools"] = f"pdsh {theirs[0].p50:,.0f} ms"

        bench.beside("plain tools", cells, beside_pdsh)
    yield Row(f"{count} hosts without an agent, all added", f"{added:.2f} s")
    within = mine.p50 <= 150 and (not theirs or 5 * mine.p50 <= theirs[0].p50)
    figure = f"`true` in a session on {count} hosts, until the last has ended, p50"
    yield Row(figure, f"{mine.p50:,.1f} ms", "≤ 150 ms, ≥ 5 × pdsh", within, cells)


def rsync_s(hosts, source):
    """A loop over the hosts, as people write it."""
    began = time.monotonic()
    for destination in hosts.destinations:
        remote = " ".join(["ssh", *hosts.ssh])
        done = subprocess.run(["rsync", "-a", "-e", remote, f"{source}/", f"{destination}:by-rsync/"])
        if done.returncode != 0:
            raise Failed(f"rsync to {destination} ended with {done.returncode}")
    return time.monotonic() - began


def sending(hosts, do):
    """How long something takes, and how much the launcher sends for it."""
    before, began = hosts.sent_mb, time.monotonic()
    do()
    return time.monotonic() - began, hosts.sent_mb - before


def send(bench):
    files, total = (500, 20_000_000) if bench.quick else (5000, 500_000_000)
    tree = Tree(bench.folder / "by-muster", files, total).make()
    count, cells, again_cells = 4, {}, {}
    with Hosts(bench.hosts, count) as hosts, pool(bench, hosts), machines(bench, count) as (job, _):
        hosts.tell("slow-launcher", UPLINK)

        def mine():
            bench.muster.command("cp", "--all", tree.folder, f"{job}:")

        first, first_mb = sending(hosts, mine)
        tree.change_one_line()
        again, again_mb = sending(hosts, mine)
        for number in range(count):
            seen = hosts.tell("run", number, "find /root/by-muster -type f | wc -l")["stdout"].strip()
            if seen != str(files):
                raise Failed(f"host {number} has {seen} of {files} files")

        def beside_rsync(_):
            if not tool("rsync"):
                raise Unavailable("not installed: rsync")
            took, sent = sending(hosts, lambda: rsync_s(hosts, tree.folder))
            cells["plain tools"] = f"rsync -a, one after the other {took:.1f} s, {sent:,.0f} MB"
            tree.change_one_line()
            took, sent = sending(hosts, lambda: rsync_s(hosts, tree.folder))
            again_cells["plain tools"] = f"rsync -a, one after the other {took:.2f} s, {sent:,.2f} MB"

        bench.beside("plain tools", cells, beside_rsync)
    shutil.rmtree(tree.folder)
    name = f"{tree.total / 1e6:,.0f} MB in {files:,} files to {count} hosts, {UPLINK} up"
    yield Row(name, f"{first:.1f} s, {first_mb:,.0f} MB sent", "", None, cells)
    yield Row("the same after one line changed", f"{again:.3f} s, {again_mb:,.2f} MB sent", "", None, again_cells)


FIGURES = {"deploy onto hosts": deploy, "a command on 16 hosts": command, "a folder to 4 hosts": send}
