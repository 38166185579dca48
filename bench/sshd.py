"""An SSH server of its own on this machine's loopback, for the time of a `with` block: what `rsync` and `scp` talk to.

Its key, its list of users' keys and its configuration are below one folder; nothing of an installed server is read.
"""

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from figure import Unavailable
from measure import Failed
from slurm import free_ports, tool

START_DEADLINE_S = 15

CONFIGURATION = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
"""


class Sshd:
    """`with Sshd(folder) as sshd: sshd.rsync(source, target)`."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.process = None

    def __enter__(self):
        missing = [name for name in ("sshd", "ssh", "ssh-keygen", "rsync") if not tool(name)]
        if missing:
            raise Unavailable(f"not installed: {', '.join(missing)} (Debian: openssh-server, rsync)")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name], check=True)
        (self.port,) = free_ports(1)
        configuration = self.folder / "config"
        configuration.write_text(CONFIGURATION.format(port=self.port, folder=self.folder))
        if os.getuid() == 0:
            # Where a server that runs as root confines its children; Debian's start script makes it.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with (self.folder / "log").open("w") as log:
            # It insists on its whole name, because it executes itself again for every connection.
            command = [tool("sshd"), "-D", "-e", "-f", configuration]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self._wait()
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.terminate()
            self.process.wait()

    def _wait(self):
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.02)
        self.__exit__()
        raise Unavailable(f"sshd does not listen: {(self.folder / 'log').read_text().strip()[-300:]}")

    def ssh(self, *command):
        """The words of a command that runs another one on this host."""
        return [tool("ssh"), "-F", "none", "-p", str(self.port), *self._options(), "127.0.0.1", *command]

    def scp(self, source, target):
        """The command that copies a file or a directory there."""
        place = f"{getpass.getuser()}@127.0.0.1:{target}"
        return [tool("scp"), "-q", "-r", "-F", "none", "-P", str(self.port), *self._options(), str(source), place]

    def _options(self):
        options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "IdentitiesOnly=yes")
        return ["-i", f"{self.folder}/user", *(word for option in options for word in ("-o", option))]

    def rsync(self, source, target):
        """Brings `target` to the state of `source` over SSH; how long it took, in seconds."""
        remote = " ".join(["ssh", "-F", "none", "-p", str(self.port), *self._options()])
        place = f"{getpass.getuser()}@127.0.0.1:{target}/"
        began = time.monotonic()
        done = subprocess.run(
            ["rsync", "-a", "--delete", "-e", remote, f"{source}/", place], capture_output=True, text=True
        )
        if done.returncode != 0:
            raise Failed(f"rsync ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return time.monotonic() - began
