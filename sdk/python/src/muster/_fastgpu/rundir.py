"""Run directories: one for each run and process, never one that was there before."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from .settings import SETTINGS
from .volume import shared_directory

if TYPE_CHECKING:
    from .job import Job

# The shared volume where it is mounted; else where the pool has its own; else on the machine itself, below `/` where
# that is allowed on a host, and with muster's data where it is not. `mkdir` of the last directory is what decides
# between two who come at once.
MAKE = r"""
pick() {{ mkdir -p "$1" 2>/dev/null && [ -w "$1" ]; }}
runs={runs}; shared={shared}; own={own}
if [ -d "${{runs%/*}}" ] && pick "$runs"; then :
elif [ -n "$shared" ] && pick "$shared"; then runs=$shared
elif [ -n {may_make} ] && pick "$runs"; then chmod 777 "${{runs%/*}}" "$runs" 2>/dev/null
else case $own in "~"*) own=$HOME${{own#"~"}} ;; esac; runs=$own; pick "$runs"
fi
at=$runs/{name}; i=0
until mkdir "$at" 2>/dev/null; do
  [ -e "$at" ] || {{ mkdir "$at"; exit 1; }}
  i=$((i+1)); at=$runs/{name}.$(printf %02d $i)
done
chmod 777 "$at" 2>/dev/null
printf '%s\n' "$at"
"""


def logdir(job: Job) -> str:
    """The directory of the job's run, on every one of its machines; `/tmp` for a run without a name."""
    if not job.run_name:
        return "/tmp"
    with SETTINGS.lock:
        if job.run_name not in SETTINGS.logdirs:
            SETTINGS.logdirs[job.run_name] = _make(job)
        at = SETTINGS.logdirs[job.run_name]
    if at not in job._has_logdir:
        job._has_logdir.add(at)
        # Where nothing is shared, each machine has a directory of this name.
        job._fan_out(lambda task: task._look(f"mkdir -p {shlex.quote(at)}"))
    return at


def _make(job: Job) -> str:
    on = str(job._remote.spec.get("on", "local"))
    is_local = on == "local"
    name = job.generation.name
    transport = job._remote._transport
    script = MAKE.format(
        runs=shlex.quote(SETTINGS.logdir_root or job.generation.runs),
        shared=shlex.quote("" if is_local or SETTINGS.disable_nas else _shared(job)),
        own=shlex.quote(str(transport.home / name / "runs") if is_local else f"~/.muster/{name}/runs"),
        # On a host that scripts have to themselves a directory below `/` is theirs to make; not on one's own machine.
        may_make=shlex.quote("yes" if not is_local or SETTINGS.logdir_root else ""),
        name=shlex.quote(job.run_name),
    )
    return job.tasks[0]._look(script).splitlines()[-1]


def _shared(job: Job) -> str:
    """Below what the hosts of the pool share, for machines on which it cannot be where scripts look for it."""
    shared = shared_directory(job._remote)
    return f"{shared.rstrip('/')}/{job.generation.name}/runs" if shared else ""
