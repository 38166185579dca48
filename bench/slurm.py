"""A Slurm of its own on this machine, up in a second or two, for the time of a `with` block.

One controller and one node daemon on free ports, with their own munge key, spool and state below one folder, as the
user who runs this. Nothing of an installed Slurm is read or changed. Configured for quick starts: no accounting, no
container of processes, no launch plug-ins.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from figure import Unavailable
from measure import resident_mb

COMMANDS = ("munged", "munge", "slurmctld", "slurmd", "srun", "sbatch", "squeue", "sinfo")
START_DEADLINE_S = 30
STOP_DEADLINE_S = 10

CONFIGURATION = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmctldPort={controller_port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=1000,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=bench Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def tool(name):
    # The daemons are in folders that an ordinary user's PATH leaves out.
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Slurm:
    """`with Slurm(folder) as slurm:`, then run `slurm.srun` with `slurm.environment`."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.daemons = []
        configuration = self.folder / "slurm.conf"
        self.environment = os.environ | {"SLURM_CONF": str(configuration)}

    def __enter__(self):
        missing = [name for name in COMMANDS if not tool(name)]
        if missing:
            raise Unavailable(f"not installed: {', '.join(missing)} (Debian: slurm-wlm, munge)")
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.daemons = []

    @property
    def version(self):
        return self._ask("sinfo", "--version").split()[-1]

    @property
    def srun(self):
        return tool("srun")

    def tool(self, name):
        return tool(name)

    def queued(self):
        """How many jobs are not over."""
        return len(self._ask("squeue", "-h", "-o", "%i", "-t", "PD,R,CG,CF").split())

    def resident_mb(self):
        return sum(resident_mb(daemon.pid) for daemon in self.daemons)

    def _start(self):
        # munge refuses a socket or a key that others could reach.
        self.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        ports = free_ports(2)
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=socket.gethostname().partition(".")[0],
                user=getpass.getuser(),
                folder=self.folder,
                controller_port=ports[0],
                node_port=ports[1],
                cpus=os.cpu_count(),
            )
        )
        munge = {name: f"{self.folder}/munge.{name}" for name in ("pid", "log", "seed")}
        self._daemon(
            *("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.sock"),
            *(f"--pid-file={munge['pid']}", f"--log-file={munge['log']}", f"--seed-file={munge['seed']}"),
        )
        self._wait("munged", lambda: (self.folder / "munge.sock").exists())
        self._daemon("slurmctld", "-D", "-f", str(self.folder / "slurm.conf"))
        self._daemon("slurmd", "-D", "-f", str(self.folder / "slurm.conf"))
        self._wait("the node", lambda: self._ask("sinfo", "-h", "-o", "%T").strip() == "idle")

    def _daemon(self, name, *arguments):
        with (self.folder / f"{name}.out").open("w") as output:
            self.daemons.append(
                subprocess.Popen(
                    [tool(name), *arguments],
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _ask(self, name, *arguments):
        done = subprocess.run([tool(name), *arguments], env=self.environment, capture_output=True, text=True)
        return done.stdout

    def _wait(self, what, ready):
        deadline = time.monotonic() + START_DEADLINE_S
        while not ready():
            dead = next((daemon for daemon in self.daemons if daemon.poll() is not None), None)
            if dead is not None or time.monotonic() > deadline:
                reason = f"{Path(dead.args[0]).name} ended" if dead else f"{what} is not ready"
                raise Unavailable(f"{reason}: {self._last_words()}")
            time.sleep(0.05)

    def _last_words(self):
        lines = []
        for log in (*self.folder.glob("*.log"), *self.folder.glob("*.out")):
            lines += [f"{log.name}: {line}" for line in log.read_text(errors="replace").splitlines()[-2:]]
        return "; ".join(lines) or "no message"


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
