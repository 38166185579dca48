"""The façade of older versions: the package itself."""

from . import (
    add_authorized_keys,
    get_backend,
    get_backend_module,
    get_logdir_root,
    get_region,
    get_zone,
    join,
    make_job,
    make_run,
    make_task,
    running_locally,
    set_backend,
    set_logdir_root,
    use_aws,
    use_local,
)

__all__ = [
    "add_authorized_keys",
    "get_backend",
    "get_backend_module",
    "get_logdir_root",
    "get_region",
    "get_zone",
    "join",
    "make_job",
    "make_run",
    "make_task",
    "running_locally",
    "set_backend",
    "set_logdir_root",
    "use_aws",
    "use_local",
]
