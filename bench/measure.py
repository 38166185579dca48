"""How things are measured: processes by the clock around their spawn, memory and idleness by what the kernel says."""

import atexit
import os
import platform
import select
import tempfile
import time
from pathlib import Path

# What the last measured command said besides its output, for when it fails.
ERRORS = Path(tempfile.gettempdir()) / f"muster-bench-{os.getpid()}.err"
atexit.register(ERRORS.unlink, missing_ok=True)
OUTPUT = [
    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
    (os.POSIX_SPAWN_OPEN, 2, str(ERRORS), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
]


def spawn(command, environment):
    """Starts a command, its output thrown away; the time just before, in nanoseconds since the epoch, and its id."""
    began = time.time_ns()
    return began, os.posix_spawn(command[0], command, environment, file_actions=OUTPUT)


def wait(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_ms(command, environment, expected=0):
    """Wall time of a whole command, in milliseconds."""
    began, pid = spawn(command, environment)
    status = wait(pid)
    took = (time.time_ns() - began) / 1e6
    if status != expected:
        raise Failed(f"'{' '.join(command)}' ended with {status}, not {expected}: {last_words()}")
    return took


def last_words():
    return ERRORS.read_text(errors="replace").strip()[-300:]


class Failed(Exception):
    """A figure that could not be measured; the text says why."""


class Sample:
    """Values of one figure, in milliseconds."""

    def __init__(self, values):
        self.values = sorted(values)

    def percentile(self, percent):
        """The smallest value that is not exceeded by `percent` of the values."""
        return self.values[max(0, -(-len(self.values) * percent // 100) - 1)]

    @property
    def least(self):
        return self.values[0]

    @property
    def p50(self):
        return self.percentile(50)

    @property
    def p99(self):
        return self.percentile(99)

    @property
    def most(self):
        return self.values[-1]


def wait_for(what, condition, seconds=30.0, every=0.001):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {seconds:.0f} s")
        time.sleep(every)
    return value


def wait_until_gone(pids, seconds=30.0):
    """Waits until every process has ended; the time when the last one had, in nanoseconds since the epoch."""
    poll = select.poll()
    waiting = set()
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poll.register(descriptor, select.POLLIN)
        waiting.add(descriptor)
    deadline = time.monotonic() + seconds
    while waiting:
        ready = poll.poll(max(0, (deadline - time.monotonic()) * 1000))
        if not ready:
            raise Failed(f"{len(waiting)} processes are still there after {seconds:.0f} s")
        for descriptor, _ in ready:
            poll.unregister(descriptor)
            os.close(descriptor)
            waiting.discard(descriptor)
    return time.time_ns()


def resident_mb(pid):
    return status_field(f"/proc/{pid}/status", "VmRSS") / 1e6


def private_mb(pid):
    """Memory that this process shares with no other."""
    rollup = f"/proc/{pid}/smaps_rollup"
    return (status_field(rollup, "Private_Clean") + status_field(rollup, "Private_Dirty")) / 1e6


def status_field(path, name):
    """One field of a kernel table, in bytes; the kernel counts in KiB and writes kB."""
    for line in Path(path).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise Failed(f"{path} has no {name}")


def processes_of(variable, value):
    """Ids of the processes that have this variable in their environment."""
    wanted = f"{variable}={value}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue  # It ended meanwhile, or is another user's.
    return [pid for pid in found if pid != os.getpid()]


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def supervisors_of(home):
    """Ids of the supervisors of a home. They have no environment; the folder of their task is on their command line."""
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    lines = ((pid, command_line(pid)) for pid in pids)
    return [pid for pid, line in lines if line[1:2] == ["supervise"] and line[2].startswith(f"{home}/")]


def busy_share(seconds=1.0):
    """The part of all cores' time that was spent on something during the next second."""

    def ticks():
        values = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(values), values[3] + values[4]

    total, idle = ticks()
    time.sleep(seconds)
    total_after, idle_after = ticks()
    return 1 - (idle_after - idle) / max(1, total_after - total)


def machine():
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = ".".join(platform.release().split(".")[:2])
    return f"{os.cpu_count()} cores, {memory:.0f} GiB of memory, Linux {kernel}, {platform.machine()}"
