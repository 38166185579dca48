"""Words for `mpirun`, as the scripts of the demo collection put them together."""

from __future__ import annotations

from pathlib import Path

#: Interfaces that no other machine reaches.
LOCAL_INTERFACES = "lo,docker0"
PASSED_ON = ("PATH", "XLA_FLAGS", "PYTHONPATH", "LD_LIBRARY_PATH")


def get_mpi_prefix(np: int | str, npernode: int | str, host: str) -> str:
    """`mpirun` with its options, ready for the program to follow: `np` processes, `npernode` on each machine of
    `host`, which is `IP:SLOTS,IP:SLOTS`."""
    words = [
        f"mpirun --allow-run-as-root -np {np} --npernode {npernode} --host {host}",
        "--bind-to none -map-by slot",
        f"-x NCCL_SOCKET_IFNAME=^{LOCAL_INTERFACES} -mca btl_tcp_if_exclude {LOCAL_INTERFACES}",
        *(f"-x {name}" for name in PASSED_ON),
    ]
    return " ".join(words) + " "


def gen_command_file(command: str, file: str = "command.sh") -> str:
    """Writes a script here that runs a command and shows the output of rank 0 only; `mpirun bash FILE` runs it on every
    rank. Returns the file's name."""
    text = f"""run() {{
{command}
}}
if [ "${{OMPI_COMM_WORLD_RANK:-0}}" -eq 0 ]; then run; else run > /dev/null 2>&1; fi
"""
    Path(file).write_text(text)
    return file
