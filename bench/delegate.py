"""Slurm as an engine: what muster adds to a plain `sbatch` of the same program on the same cluster, and what jobs that
wait cost its controller. The cluster is the testkit's: one controller and four nodes, all on this machine."""

import os
import re
import shutil
import time
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from answering import Answering
from figure import Row
from measure import Failed, Sample, last_words, run_ms, spawn, wait, wait_for
from muster import Muster

ALL_NODES = "nodename=n[1-4]"
# How often the server looks at what it has handed over.
PERIOD_S = 10
QUEUED = 500
NOTES = (
    "On Slurm: jobs of an ordinary account, turn by turn `sbatch` of a script that starts the program, and `muster run "
    "--on slurm/main` of the program, which keeps the job, sends its code and has an agent started first. Slurm's "
    "controller looks at batch jobs once a second, whoever submits them: the time that it lets a job wait, by its own "
    "log, is left out of both.",
)
MOMENT = re.compile(r"\[(\S+)\] .*(?P<what>_slurm_rpc_submit_batch_job: JobId=|Allocate JobId=|Started JobId=)")


class Cluster(Answering):
    """`with Cluster(program) as cluster:`; nothing is left of it at the end."""

    makes, tells = "the cluster", "conf"

    def take(self, said):
        self.conf, self.account, self.home = said["conf"], said["account"], Path(said["home"])
        self.log = Path(self.conf).with_name("slurmctld.log")

    def idle(self):
        return not self.tell("run squeue -h")["stdout"].strip()

    def moments(self, offset):
        """When the controller had taken the job that its log first tells of after an offset, and when it started it."""
        found = [MOMENT.match(line) for line in self.log.read_text()[offset:].splitlines()]
        times = [datetime.fromisoformat(match[1]).timestamp() for match in found if match]
        if len(times) != 2:
            raise Failed(f"the controller's log tells of {len(times)} moments of a job, not of two")
        return times

    def questions(self):
        """How often the controller was asked something, whoever did. What nodes report is not a question."""
        return sum(count for name, count in self.tell("rpcs").items() if "_INFO" in name)

    def sbatch(self, script):
        """The words that submit a script as the account does."""
        account = [f"--reuid={self.account}", f"--regid={self.account}", "--init-groups"]
        return [shutil.which("setpriv"), *account, shutil.which("sbatch"), "--output=/dev/null", str(script)]


@contextmanager
def muster_on(bench, cluster):
    """A muster of its own that knows the cluster."""
    before = Path.cwd()
    bench.starts += 1
    try:
        with Muster(bench.muster.binary, bench.folder / f"s{bench.starts}") as muster:
            muster.command("server", "stop")
            settings = {"user": cluster.account, "conf": cluster.conf, "directory": f"{cluster.home}/muster"}
            lines = [f'{name} = "{value}"\n' for name, value in settings.items()]
            (muster.home / "config.toml").write_text("[slurm]\n" + "".join(lines))
            muster.command("server", "start")
            yield muster
    finally:
        os.chdir(before)


def first_instruction_ms(cluster, command, environment, number):
    """From just before a command is spawned until the program runs on the cluster: how much of it Slurm let the job
    wait, and the rest."""
    folder = cluster.home / f"stamps{number}"
    folder.mkdir()
    shutil.chown(folder, cluster.account)
    (cluster.home / "script").write_text(f"#!/bin/sh\nexec {cluster.home}/stamp {folder} exit\n")
    seen = cluster.log.stat().st_size
    began, pid = spawn([str(part).replace("FOLDER", str(folder)) for part in command], environment)
    if status := wait(pid):
        raise Failed(f"'{Path(command[0]).name}' ended with {status}: {last_words()}")
    stamp = folder / "0"
    wait_for("the program to run", lambda: stamp.exists() and stamp.read_text().strip())
    wait_for("the cluster to be idle", cluster.idle, every=0.02)
    took = (int(stamp.read_text().split()[0]) - began) / 1e6
    submitted, started = cluster.moments(seen)
    return (started - submitted) * 1e3, took - (started - submitted) * 1e3


def overhead(bench):
    with Cluster(bench.slurm) as cluster, muster_on(bench, cluster) as muster:
        shutil.copy(muster.stamp, cluster.home / "stamp")
        environment = os.environ | {"SLURM_CONF": cluster.conf}
        own = [muster.binary, "run", "--on", "slurm/main", "--", cluster.home / "stamp", "FOLDER", "exit"]
        plain = cluster.sbatch(cluster.home / "script")
        run_ms([*map(str, own[:-3]), "true"], muster.environment)
        ours, theirs = [], []
        for number in range(max(6, bench.runs // 4)):
            ours.append(first_instruction_ms(cluster, own, muster.environment, f"m{number}"))
            theirs.append(first_instruction_ms(cluster, plain, environment, f"s{number}"))
    waits = Sample(waited for waited, _ in [*ours, *theirs])
    ours, theirs = (Sample(rest for _, rest in runs) for runs in (ours, theirs))
    added = ours.p50 - theirs.p50
    name = "on Slurm: submit → first instruction"
    beside = {"Slurm": f"{theirs.p50:.0f} ms (`sbatch`; waiting: {waits.p50:.0f} ms)"}
    yield Row(f"{name}, over `sbatch`, p50", f"+{added:.0f} ms", "≤ 150 ms", added <= 150, beside)
    beside = {"Slurm": f"{theirs.p99:.0f} ms"}
    yield Row(f"{name}, p50 and p99", f"{ours.p50:.1f} ms, {ours.p99:.0f} ms", beside=beside)


def cost(bench):
    queued, rounds = (50, 2) if bench.quick else (QUEUED, 6)
    with Cluster(bench.slurm) as cluster, muster_on(bench, cluster) as muster:
        cluster.tell("run-as-root scontrol update", ALL_NODES, "state=drain reason=bench")
        for _ in range(queued):
            muster.command("run", "--detach", "--on", "slurm/main", "--", "true")
        count = "run squeue -h -t PD -o %i | wc -l"
        wait_for("Slurm to have them all", lambda: int(cluster.tell(count)["stdout"]) == queued, 300, 0.5)
        before = cluster.questions()
        time.sleep(rounds * PERIOD_S)
        asked = (cluster.questions() - before) / rounds
    yield Row(f"on Slurm: requests per look, with {queued} jobs queued", f"{asked:.1f}", "≤ 2", asked <= 2)


FIGURES = {"on Slurm: submit → first instruction": overhead, "on Slurm: requests per look": cost}
