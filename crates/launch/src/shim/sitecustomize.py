"""Lets code that was written for other platforms and versions run unchanged. It is first on a task's PYTHONPATH.

It mends six things, each only where it is certain to be wrong otherwise:

- `RANK_ID` that a launch script set to the number of the device on its own node, where the rank table has another;
- arguments of `python -m paddle.distributed.launch` that Paddle 2.0 has taken away;
- `jax.distributed.initialize()` without arguments, which by itself reads only the coordinator's address;
- `accelerate launch` in a script, which takes the number of its machine and the size of the gang by flags alone;
- `--local_rank`, which DeepSpeed's launcher gives every program: muster gives it where it starts one itself;
- lines of processes that share their launcher's stdout: each writes to streams of its own, where lines stay whole.

Whatever goes wrong in here, the user's program starts. Works with Python 3.6 and later, hence the old-fashioned parts.
"""

import os
import re
import stat
import sys

PADDLE_LAUNCH = ("paddle.distributed.launch", "paddle.distributed.fleet.launch")


def say(text):
    sys.stderr.write("muster: %s\n" % text)


def number(name):
    """A variable that is a whole number, or None."""
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else None


def servers_of(table):
    """The servers of a rank table, in order: for each a map from device to rank. Forms with ranks in them: A and C."""
    servers = {}
    for group in table.get("group_list", []):
        for instance in group.get("instance_list", []):
            for device in instance.get("devices", []):
                if "rank_id" in instance:
                    servers.setdefault(instance["server_id"], {})[device["device_id"]] = instance["rank_id"]
    for server in table.get("server_list", []):
        for device in server.get("device", []):
            servers.setdefault(server["server_id"], {})[device["device_id"]] = device["rank_id"]
    return list(servers.values())


def rank_in_table(node, device):
    """What the rank table says about a device of a node, or None without a table that says."""
    for name in ("RANK_TABLE_FILE", "MINDSPORE_HCCL_CONFIG_PATH"):
        path = os.environ.get(name, "")
        if os.path.isfile(path):
            import json

            with open(path) as file:
                servers = servers_of(json.load(file))
            if node < len(servers) and str(device) in servers[node]:
                return int(servers[node][str(device)])
    return None


def mend_rank():
    """Scripts for one server of 8 devices, used on two, count their ranks from 0 on both."""
    rank, device, size, nodes = (number(name) for name in ("RANK_ID", "DEVICE_ID", "RANK_SIZE", "MUSTER_NODES"))
    task = re.match(r"task(\d+)\.", os.environ.get("MUSTER_TASK_ID", ""))
    if None in (rank, device, size, nodes) or task is None or rank != device or size <= 1:
        return
    node = int(task.group(1))
    meant = rank_in_table(node, device)
    if meant is None:
        # A node has its share of the ranks; a rank beyond the first share is not a number within a node.
        share, left = divmod(size, nodes)
        meant = rank if left or rank >= share else rank + node * share
    if meant != rank:
        say("RANK_ID is %d instead of %d: device %d of node %d" % (meant, rank, device, node))
        os.environ["RANK_ID"] = str(meant)


def module_started():
    """What was given to `python -m`, if that is how this process was started."""
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read().decode(errors="replace").split("\0")[1:-1]
    while words and words[0].startswith("-") and words[0] != "-m":
        takes_a_word = words.pop(0) in ("-W", "-X")
        del words[: 1 if takes_a_word else 0]
    return words[1] if len(words) > 1 and words[0] == "-m" else None


def paddle_version():
    folder = os.path.dirname(sys.modules["paddle"].__file__)
    for name in ("version.py", os.path.join("version", "__init__.py")):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            with open(path) as file:
                found = re.search(r"full_version\s*=\s*['\"](\d+)\.(\d+)", file.read())
            if found:
                return int(found.group(1)), int(found.group(2))
    return None


def address_of(host):
    """The address of `host` or `host:port`; the name itself where it cannot be resolved."""
    import socket

    name = host.strip().partition(":")[0]
    try:
        return socket.gethostbyname(name)
    except OSError:
        return name


def devices_there(wanted):
    """Of the devices that the command names, as many as the task has; none on a machine without."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", os.environ.get("ASCEND_RT_VISIBLE_DEVICES"))
    if visible is None:
        return wanted if os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/davinci_manager") else []
    return wanted[: len([device for device in visible.split(",") if device and device != "-1"])]


def modern(arguments, version):
    """The arguments of Paddle 1.x's launcher, before the script, as this version has them."""
    takes_value = ("--cluster_node_ips", "--node_ip", "--started_port", "--selected_gpus")
    flags = ("--use_paddlecloud", "--print_config")
    old, rest, words = {}, [], list(arguments)
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).partition("=")
        if name in takes_value:
            old[name] = value if equals else words.pop(0)
        elif name not in flags:
            rest.append(name + equals + value)
            # An option that is followed by its value as a word of its own; the script is what ends in .py.
            if not equals and words and not words[0].startswith("-") and not words[0].endswith(".py"):
                rest.append(words.pop(0))
    new = []
    port = old.get("--started_port")
    if "--cluster_node_ips" in old:
        hosts = old["--cluster_node_ips"].split(",")
        new.append("--ips=" + ",".join(address_of(host) for host in hosts))
        # All nodes must say the same port, and the first host's is what they agree about.
        port = hosts[0].partition(":")[2] or port
    if version >= (2, 3):
        if "--node_ip" in old:
            new.append("--host=" + address_of(old["--node_ip"]))
        if port:
            new.append("--start_port=" + port)
    elif port:
        os.environ["FLAGS_START_PORT"] = port
    if "--selected_gpus" in old:
        devices = devices_there(old["--selected_gpus"].split(","))
        if devices:
            new.append(("--devices=" if version >= (2, 3) else "--gpus=") + ",".join(devices))
        else:
            new.append("--nproc_per_node=" + os.environ.get("PADDLE_NPROC_PER_NODE", "1"))
    return new + rest + words


def mend_paddle_arguments():
    version = paddle_version()
    arguments = sys.argv[1:]
    if version is None or version < (2, 0) or module_started() not in PADDLE_LAUNCH:
        return
    mended = modern(arguments, version)
    if mended != arguments:
        say("python -m paddle.distributed.launch " + " ".join(mended))
        sys.argv[1:] = mended


def flag_name(word):
    """`num_machines` of `--num-machines=2`, and nothing of a word that is no flag."""
    return word.partition("=")[0].lstrip("-").replace("-", "_") if word.startswith("-") else ""


def flags_of(words):
    """The names of the flags before the program that a launcher starts: what is behind that is the program's."""
    names = []
    for word in words:
        if word.endswith(".py") or word == "--" or re.match(r"python[\d.]*$", os.path.basename(word)):
            break
        names.append(flag_name(word))
    return names


def with_gang(words):
    """The arguments of `accelerate launch` with what muster says of the gang, as far as they say nothing themselves."""
    flags, own = os.environ.get("MUSTER_ACCELERATE_FLAGS", "").split(), flags_of(words)
    # Any other kind of training, or a configuration file, says how many devices there are in another way.
    kinds = ("cpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "config_file")
    if any(kind in own for kind in kinds):
        flags = [flag for flag in flags if flag != "--multi_gpu"]
    return [flag for flag in flags if flag_name(flag) not in own] + words


def with_local_rank(words):
    """The arguments of a program with the one that DeepSpeed's launcher puts in front of them."""
    own = [flag_name(word) for word in words]
    rank = os.environ.get("LOCAL_RANK")
    return words if rank is None or "local_rank" in own else ["--local_rank=" + rank, *words]


def mend_arguments():
    """Has parsers of arguments find them as the launcher of the program would have given them.

    A parser that does not know an argument never gets it: so nothing fails that did not ask for it.
    """
    import argparse

    parse = argparse.ArgumentParser.parse_known_args
    if getattr(parse, "by_muster", False):
        return

    def parse_known_args(self, args=None, namespace=None):
        known = self._option_string_actions
        if "--machine_rank" in known and "--num_machines" in known:
            args = with_gang(sys.argv[1:] if args is None else list(args))
        elif "--local_rank" in known and args is None and "deepspeed" in sys.modules:
            args = with_local_rank(sys.argv[1:])
        return parse(self, args, namespace)

    parse_known_args.by_muster = True
    argparse.ArgumentParser.parse_known_args = parse_known_args


def mend_jax_detection():
    if not all(os.environ.get(name) for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")):
        return
    from jax._src.clusters.cluster import ClusterEnv

    class Muster(ClusterEnv):
        """JAX asks every subclass; the ones that it has itself come first."""

        name = "muster"
        is_env_present = classmethod(lambda cls: True)
        get_coordinator_address = classmethod(lambda cls, *_, **__: os.environ["JAX_COORDINATOR_ADDRESS"])
        get_process_count = classmethod(lambda cls: int(os.environ["JAX_NUM_PROCESSES"]))
        get_process_id = classmethod(lambda cls: int(os.environ["JAX_PROCESS_ID"]))
        # Devices are given through variables that hide the others.
        get_local_process_id = classmethod(lambda cls: None)


# Programs of Open MPI, MPICH and Intel MPI whose children are the processes of a job.
MPI_PARENTS = ("mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "mpiexec.hydra", "hydra_pmi_proxy")
# Descriptors that are only held are beyond those that programs choose.
FIRST_HELD = 200


def is_mpi_process():
    """Whether mpirun started this process, and its output is the task's."""
    if os.environ.get("MUSTER_MPI_OUTPUT") != "task":
        return False
    with open("/proc/%d/comm" % os.getppid()) as file:
        return file.read().strip() in MPI_PARENTS


def own_number(is_mpi):
    """The number of this process among those that a launcher started in the task, or None."""
    if is_mpi:
        local = number("OMPI_COMM_WORLD_LOCAL_RANK")
        return number("MPI_LOCALRANKID") if local is None else local
    # The task itself has these variables, too, and is one process.
    several = any((number(name) or 0) > 1 for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"))
    return number("LOCAL_RANK") if several else None


def move_to_own_streams():
    """Puts streams of this process's own in place of the task's. What goes to a file or a program stays there."""
    folder, *inodes = os.environ.get("MUSTER_STREAMS", "").rsplit(":", 2)
    if len(inodes) != 2:
        return
    is_mpi = is_mpi_process()
    process = own_number(is_mpi)
    names = {inodes[0]: "out", inodes[1]: "err"}
    for descriptor in (1, 2):
        output = os.fstat(descriptor)
        name = names.get(str(output.st_ino)) if stat.S_ISFIFO(output.st_mode) else None
        if is_mpi and name is None and (stat.S_ISFIFO(output.st_mode) or os.isatty(descriptor)):
            # A pipe or a terminal of mpirun's.
            name = ("out", "err")[descriptor - 1]
        path = "%s/%s.%s" % (folder, name, process)
        if None not in (name, process) and os.path.exists(path):
            move_to_stream(descriptor, path)


def move_to_stream(descriptor, path):
    """Has a descriptor be a named pipe, which this process also holds for reading: it outlives its reader."""
    import fcntl

    held = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    stream = os.open(path, os.O_WRONLY)
    os.dup2(stream, descriptor)
    os.close(stream)
    try:
        fcntl.fcntl(held, fcntl.F_DUPFD_CLOEXEC, FIRST_HELD)
        os.close(held)
    except OSError:
        # Fewer files are allowed.
        pass


class Watcher:
    """Sees modules being looked for, and finds none: so nothing is imported here that the program does not import."""

    # `jax._src.distributed` is looked for after the clusters' modules can be imported, and before they are asked.
    mends = {
        PADDLE_LAUNCH[0]: mend_paddle_arguments,
        PADDLE_LAUNCH[1]: mend_paddle_arguments,
        "accelerate.commands.launch": mend_arguments,
        "deepspeed": mend_arguments,
        "jax._src.distributed": mend_jax_detection,
    }

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        mend = cls.mends.pop(name, None)
        if mend is not None:
            guarded(mend)


def guarded(mend):
    """This is not the program, and must not end it."""
    try:
        mend()
    except Exception as error:
        say("%s: %s: %s" % (mend.__name__, type(error).__name__, error))


def next_sitecustomize():
    """There may be another one, of the installation or of the user, which this one hides."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    own = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path) != own])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


guarded(mend_rank)
guarded(move_to_own_streams)
sys.meta_path.insert(0, Watcher)
next_sitecustomize()
