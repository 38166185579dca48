"""The volume that the machines of a group share, where scripts look for it."""

from __future__ import annotations

from .. import _binary
from .._job import Job as MusterJob
from .._printable import inline
from .generation import Generation
from .settings import SETTINGS


def shared_directory(job: MusterJob) -> str | None:
    """The directory that all hosts of the group's pool have in common, if it was said."""
    on = job.spec.get("on", "local")
    return next((pool.get("shared") for pool in SETTINGS.client().pools() if pool["on"] == on), None)


def mount(job: MusterJob, generation: Generation) -> None:
    """Makes the pool's shared directory appear as `/ncluster` or `/fastgpu`, unless the script does without. Machines
    that cannot have it are machines all the same."""
    if SETTINGS.disable_nas or job.spec.get("on", "local") == "local" or shared_directory(job) is None:
        return
    words = [generation.program, "mount", f"{{{job.name}}}"]
    done = _binary.run(words, environment=job._transport.environment)
    if done.returncode != 0:
        said = "; ".join((done.stderr + done.stdout).decode(errors="replace").splitlines())
        print(f"{generation.name}: {generation.shared} is not mounted: {inline(said)}", flush=True)
