"""Does with paramiko what people's scripts do with it: paramiko_client.py PORT|PROXY_COMMAND KEY DIRECTORY BYTES"""

import hashlib
import stat
import sys
import time
from pathlib import Path

import paramiko

BLOCK = 1 << 20


def digest(path):
    """The sum of a file, a block at a time."""
    total = hashlib.blake2b()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            total.update(block)
    return total.digest()


def fill(path, size):
    """A file in which every block differs."""
    block = hashlib.shake_256(b"block").digest(BLOCK)
    with path.open("wb") as file:
        for number in range(size // BLOCK):
            file.write(number.to_bytes(8, "big"))
            file.write(block[8:])


def timed(what, size, work):
    """Runs it and says how fast it was."""
    begun = time.monotonic()
    work()
    seconds = time.monotonic() - begun
    print(f"{what}: {size / seconds / 1e6:.0f} MB/s")


def look_around(sftp, far):
    """Everything but copying."""
    sftp.mkdir(str(far), 0o750)
    sftp.chdir(str(far))
    assert sftp.getcwd() == str(far.resolve())
    with sftp.open("file", "w") as file:
        file.write("one\ntwo\n")
    with sftp.open("file", "a") as file:
        file.write("three\n")
    with sftp.open("file") as file:
        file.seek(4)
        assert file.read().decode() == "two\nthree\n"
    attributes = {entry.filename: entry for entry in sftp.listdir_attr()}
    assert list(attributes) == ["file"] and attributes["file"].st_size == 14
    assert "file" in str(attributes["file"])
    sftp.chmod("file", 0o600)
    sftp.utime("file", (1_500_000_000, 1_600_000_000))
    found = sftp.stat("file")
    assert (stat.S_IMODE(found.st_mode), found.st_mtime) == (0o600, 1_600_000_000)
    sftp.truncate("file", 3)
    assert sftp.stat("file").st_size == 3
    sftp.symlink("file", "link")
    assert sftp.readlink("link") == "file" and stat.S_ISLNK(sftp.lstat("link").st_mode)
    sftp.rename("file", "renamed")
    sftp.open("other", "w").close()
    for wrong, error in [
        (lambda: sftp.stat("file"), FileNotFoundError),
        (lambda: sftp.rename("renamed", "other"), OSError),
        (lambda: sftp.rmdir(str(far)), OSError),
        (lambda: sftp.remove("/proc/version"), PermissionError),
    ]:
        try:
            wrong()
        except error:
            continue
        raise AssertionError("it should have failed")
    sftp.posix_rename("renamed", "other")
    for name in sftp.listdir():
        sftp.remove(name)
    sftp.rmdir(str(far))


def main():
    way, key, directory, size = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    port, proxy = (int(way), None) if way.isdigit() else (22, paramiko.ProxyCommand(way))
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    own = {"key_filename": key, "allow_agent": False, "look_for_keys": False}
    client.connect("127.0.0.1", port, "anyone", sock=proxy, **own)
    _, out, _ = client.exec_command("echo hello")
    assert out.read() == b"hello\n" and out.channel.recv_exit_status() == 0
    sftp = client.open_sftp()
    look_around(sftp, directory / "far")
    near, far, back = directory / "near", directory / "remote", directory / "back"
    fill(near, size)
    timed("put", size, lambda: sftp.put(str(near), str(far)))
    timed("get", size, lambda: sftp.get(str(far), str(back)))
    assert digest(near) == digest(far) == digest(back)
    client.close()


main()
