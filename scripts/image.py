#!/usr/bin/env python3
"""Makes container images without a container engine: OCI archives for docker, podman, skopeo and `ctr images import`.

  image.py muster --binary FILE [--tag NAME:TAG] [--arch amd64] [--strip] [--plain] OUT.tar
                            the image of muster's server and agents: pinned packages of Debian below, the binary on top
  image.py wrap --root DIR|TAR --tag NAME:TAG [--command JSON] [--plain] OUT.tar
                            any root as an image of one layer
  image.py lock             pins the packages anew, as Debian has them now, in scripts/image.lock

The same input makes the same bytes: entries are sorted, owned by root and of no date, and packages are named by digest.
Nothing of this machine gets into the image of muster but the binary, and nobody has to be root. Packages are fetched
once into the cache (MUSTER_CACHE).
"""

import argparse
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "scripts" / "image.lock"
SUITE = "trixie"
MIRROR = "https://deb.debian.org/debian"
# Mirrors have only what is current; what was, the archive of all there ever was has, by its day.
SNAPSHOT = "https://snapshot.debian.org/archive/debian"

# What a server has to have at hand: a C library, the authorities of TLS, `ssh` for pools of hosts, a shell and `tar`
# for whoever looks inside (`kubectl exec`, `kubectl cp`).
PACKAGES = ["busybox-static", "ca-certificates", "libc6", "libgcc-s1", "openssh-client"]
# Debian wants these for scripts that run at installation, which does not take place here.
NOT_NEEDED = {
    "adduser",
    "debconf",
    "debconf-2.0",
    "gcc-14-base",
    "init-system-helpers",
    "openssl",
    "openssl-provider-legacy",
    "passwd",
}
ARCHITECTURES = ("amd64", "arm64")
APPLETS = """
cat chmod cp date df diff dirname du env find free grep gunzip gzip head hostname id kill less ln ls mkdir mv nc
nslookup printenv ps pwd readlink rm sed sh sleep sort stat tail tar tee test top touch tr uname vi wc wget which xargs
"""
# Of no use without a person, a locale or a package manager; the copyright files stay.
LEFT_OUT = re.compile(
    r"usr/share/(?!doc/[^/]+/copyright$|ca-certificates/)|usr/lib/[^/]+/gconv/|usr/lib/systemd/|usr/lib/tmpfiles|"
    r"usr/lib/sysusers|usr/sbin/|etc/(?!ssh/)|usr/lib/[^/]+/(audit|engines-3|ossl-modules)/|"
    r"usr/bin/(?!ssh$|ssh-add$|ssh-agent$|ssh-keygen$|ssh-keyscan$|scp$|sftp$|busybox$)|usr/lib/openssh/ssh-pkcs11"
)
USER = 65532
HOME = "var/lib/muster"
EPOCH = "1970-01-01T00:00:00Z"


def cache() -> Path:
    given = os.environ.get("MUSTER_CACHE")
    folder = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster-dev"
    return folder / "images"


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


# ---- packages


@dataclass
class Package:
    """One pinned package."""

    architecture: str
    name: str
    version: str
    sha256: str
    path: str


def locked(architecture: str) -> tuple[str, list[Package]]:
    """The day of the lock, and what is pinned for an architecture."""
    lines = [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    day = lines[0].removeprefix("snapshot ")
    packages = [Package(*line.split()) for line in lines[1:]]
    return day, [package for package in packages if package.architecture == architecture]


def fetch(package: Package, day: str) -> bytes:
    """A package as it is pinned, from the cache or from Debian."""
    kept = cache() / "debs" / f"{package.sha256}.deb"
    if kept.exists():
        data = kept.read_bytes()
        if hashlib.sha256(data).hexdigest() == package.sha256:
            return data
    wrong = []
    for place in (MIRROR, f"{SNAPSHOT}/{day}"):
        try:
            with urllib.request.urlopen(f"{place}/{package.path}", timeout=60) as answer:
                data = answer.read()
        except (urllib.error.URLError, OSError) as error:
            wrong.append(f"{place}: {error}")
            continue
        if hashlib.sha256(data).hexdigest() == package.sha256:
            write(kept, data)
            return data
        wrong.append(f"{place}: not what is pinned")
    sys.exit(
        f"error: {package.name} {package.version} cannot be had: {'; '.join(wrong)}\n"
        "hint: scripts/image.py lock pins what Debian has now"
    )


def write(path: Path, data: bytes) -> None:
    """Whole or not at all, whoever else writes it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(data)
    part.replace(path)


def members(deb: bytes) -> tarfile.TarFile:
    """The files of a package, which is an `ar` archive with a `data.tar` in it."""
    at = 8
    while at < len(deb):
        name, size = deb[at : at + 16].decode().strip().rstrip("/"), int(deb[at + 48 : at + 58])
        at += 60
        if name.startswith("data.tar"):
            data = deb[at : at + size]
            opened = {"xz": lzma.decompress, "gz": gzip.decompress, "tar": bytes}[name.rsplit(".", 1)[1]](data)
            return tarfile.open(fileobj=io.BytesIO(opened))
        at += size + size % 2
    raise ValueError("a package without data")


def lock() -> None:
    """Writes the packages and all that they depend on as Debian has them now."""
    with urllib.request.urlopen(f"{MIRROR}/dists/{SUITE}/Release", timeout=60) as answer:
        release = answer.read().decode()

    date = parsedate_to_datetime(re.search(r"^Date: (.*)$", release, re.M).group(1).replace("UTC", "+0000"))
    rows = []
    for architecture in ARCHITECTURES:
        name = f"main/binary-{architecture}/Packages.xz"
        sha256 = re.search(rf"^ ([0-9a-f]{{64}}) +\d+ {re.escape(name)}$", release, re.M).group(1)
        with urllib.request.urlopen(f"{MIRROR}/dists/{SUITE}/{name}", timeout=120) as answer:
            data = answer.read()
        if hashlib.sha256(data).hexdigest() != sha256:
            sys.exit(f"error: {name} is not what Release says; try again")
        rows += closure(architecture, lzma.decompress(data).decode())
    header = "# Made by `scripts/image.py lock`: what the image of muster is made of, beside its binary.\n"
    LOCK.write_text(header + f"snapshot {date:%Y%m%dT%H%M%SZ}\n" + "".join(f"{row}\n" for row in rows))


def closure(architecture: str, index: str) -> list[str]:
    """The packages and all that they depend on, a line each."""
    known: dict[str, dict[str, str]] = {}
    for text in index.split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", text, re.M))
        if fields:
            known[fields["Package"]] = fields
            for provided in re.findall(r"(?:^|, )([^ ,(]+)", fields.get("Provides", "")):
                known.setdefault(provided, fields)
    wanted, found = list(PACKAGES), {}
    while wanted:
        name = wanted.pop()
        fields = known[name]
        if fields["Package"] in found or {name, fields["Package"]} & NOT_NEEDED:
            continue
        found[fields["Package"]] = fields
        # Of alternatives the first that there is, as apt would have it.
        for group in (fields.get("Pre-Depends", "") + "," + fields.get("Depends", "")).split(","):
            choices = [re.split(r"[ (:]", choice.strip())[0] for choice in group.split("|")]
            wanted += [choice for choice in choices if choice in known][:1]
    return [
        f"{architecture} {name} {fields['Version']} {fields['SHA256']} {fields['Filename']}"
        for name, fields in sorted(found.items())
    ]


# ---- layers


class Layer:
    """A tar archive of which nothing but its content can be told: no dates, no owners but those that matter."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[tarfile.TarInfo, bytes]] = {}

    def add(self, name: str, kind: bytes, mode: int, data: bytes = b"", link: str = "", owner: int = 0) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.linkname, info.size = kind, mode, link, len(data)
        info.uid = info.gid = owner
        self.entries[name] = (info, data)

    def folder(self, name: str, mode: int = 0o755, owner: int = 0) -> None:
        self.add(name, tarfile.DIRTYPE, mode, owner=owner)

    def file(self, name: str, data: bytes, mode: int = 0o644) -> None:
        self.parents(name)
        self.add(name, tarfile.REGTYPE, mode, data)

    def link(self, name: str, to: str) -> None:
        self.parents(name)
        self.add(name, tarfile.SYMTYPE, 0o777, link=to)

    def parents(self, name: str) -> None:
        for parent in PurePosixPath(name).parents:
            if str(parent) not in (".", "/") and str(parent) not in self.entries:
                self.folder(str(parent))

    def tar(self) -> bytes:
        """A name comes after that of its folder, because it is longer."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for _, (info, data) in sorted(self.entries.items()):
                tar.addfile(info, io.BytesIO(data))
        return out.getvalue()


def system(architecture: str) -> bytes:
    """The layer below the binary: made once for a lock, and kept."""
    key = hashlib.sha256(LOCK.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:16]
    kept = cache() / f"system-{architecture}-{key}.tar"
    if kept.exists():
        return kept.read_bytes()
    layer = Layer()
    for name in ("bin", "lib", "lib64", "sbin"):
        layer.link(name, f"usr/{name}")
        layer.folder(f"usr/{name}")
    layer.folder("usr")
    day, packages = locked(architecture)
    for package in packages:
        with members(fetch(package, day)) as tar:
            for member in tar:
                take(layer, tar, member)
    for applet in APPLETS.split():
        layer.link(f"usr/bin/{applet}", "busybox")
    authorities(layer)
    accounts(layer)
    data = layer.tar()
    write(kept, data)
    return data


def take(layer: Layer, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    name = member.name.removeprefix("./").rstrip("/")
    # A package that has not been told of /usr says /bin; there it is a link.
    name = re.sub(r"^(bin|lib|lib64|sbin)/", r"usr/\1/", name)
    if not name or member.isdir() or LEFT_OUT.match(name):
        return
    if member.issym():
        layer.link(name, member.linkname)
    elif member.islnk():
        info, data = layer.entries[re.sub(r"^(bin|lib|sbin)/", r"usr/\1/", member.linkname.removeprefix("./"))]
        layer.file(name, data, info.mode)
    else:
        # Nobody becomes somebody else in this image.
        layer.file(name, tar.extractfile(member).read(), member.mode & 0o777)


def authorities(layer: Layer) -> None:
    """What the installation of ca-certificates does: all of them in the one file that everybody reads."""
    found = sorted(name for name in layer.entries if name.startswith("usr/share/ca-certificates/"))
    layer.file("etc/ssl/certs/ca-certificates.crt", b"".join(layer.entries.pop(name)[1] for name in found))
    for name in [name for name in layer.entries if name.startswith("usr/share/ca-certificates")]:
        del layer.entries[name]


def accounts(layer: Layer) -> None:
    """Somebody to be, whom ssh finds by number, and the directories that are to be written to."""
    layer.file("etc/passwd", f"root:x:0:0:root:/root:/bin/sh\nmuster:x:{USER}:{USER}:muster:/{HOME}:/bin/sh\n".encode())
    layer.file("etc/group", f"root:x:0:\nmuster:x:{USER}:\n".encode())
    layer.file("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    layer.file(
        "etc/os-release", f'ID=debian\nVERSION_CODENAME={SUITE}\nPRETTY_NAME="muster on Debian {SUITE}"\n'.encode()
    )
    layer.parents(f"{HOME}/x")
    layer.folder(HOME, 0o700, USER)
    layer.folder("root", 0o700)
    layer.folder("tmp", 0o1777)
    layer.parents("var/tmp/x")
    layer.folder("var/tmp", 0o1777)


def program(binary: Path, strip: bool) -> bytes:
    """The layer with the binary alone: what changes between two builds."""
    data = binary.read_bytes()
    if strip:
        copy = cache() / f"stripped.{os.getpid()}"
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run(["strip", "--strip-debug", "-o", copy, binary], check=True)
            data = copy.read_bytes()
        finally:
            copy.unlink(missing_ok=True)
    layer = Layer()
    layer.file("usr/bin/muster", data, 0o755)
    # Folders of the layer below stay as they are there.
    for name in ("usr", "usr/bin"):
        layer.folder(name)
    return layer.tar()


def root_layer(root: Path) -> bytes:
    """A folder or an archive, as a layer."""
    if not root.is_dir():
        data = root.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    layer = Layer()
    for path in sorted(root.rglob("*")):
        name, status = str(path.relative_to(root)), path.lstat()
        mode = status.st_mode & 0o7777
        if path.is_symlink():
            layer.add(name, tarfile.SYMTYPE, 0o777, link=str(path.readlink()))
        elif path.is_dir():
            layer.folder(name, mode)
        elif path.is_file():
            layer.add(name, tarfile.REGTYPE, mode, path.read_bytes())
    return layer.tar()


# ---- images


def archive(layers: list[bytes], config: dict, tag: str, options: argparse.Namespace) -> str:
    """An image layout of OCI in one file; `manifest.json` is for those who know the older form alone."""
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, kind: str) -> dict:
        blobs[digest(data)] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest(data), "size": len(data)}

    if options.plain:
        packed = [blob(layer, "layer.v1.tar") for layer in layers]
    else:
        packed = [blob(squeeze(layer), "layer.v1.tar+gzip") for layer in layers]
    described = {
        "architecture": options.arch,
        "os": "linux",
        "created": EPOCH,
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
        "history": [{"created": EPOCH, "created_by": "scripts/image.py"} for _ in layers],
    }
    settings = blob(encode(described), "config.v1+json")
    manifest = blob(
        encode(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": settings,
                "layers": packed,
            }
        ),
        "manifest.v1+json",
    )
    name, _, version = tag.rpartition(":")
    manifest["platform"] = {"architecture": options.arch, "os": "linux"}
    manifest["annotations"] = {"io.containerd.image.name": full_name(tag), "org.opencontainers.image.ref.name": version}
    older = [
        {"Config": place(settings), "RepoTags": [f"{name}:{version}"], "Layers": [place(layer) for layer in packed]}
    ]
    files = {
        "oci-layout": encode({"imageLayoutVersion": "1.0.0"}),
        "index.json": encode(
            {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest]}
        ),
        "manifest.json": encode(older),
    }
    layer = Layer()
    for file, data in files.items():
        layer.add(file, tarfile.REGTYPE, 0o644, data)
    for one, data in blobs.items():
        layer.file(f"blobs/sha256/{one.removeprefix('sha256:')}", data)
    write(options.out.absolute(), layer.tar())
    return manifest["digest"]


def place(one: dict) -> str:
    return f"blobs/sha256/{one['digest'].removeprefix('sha256:')}"


def full_name(tag: str) -> str:
    """As containerd names it: with a registry, which is Docker's own if none is named."""
    first = tag.split("/")[0]
    if "/" not in tag:
        return f"docker.io/library/{tag}"
    return tag if "." in first or ":" in first or first == "localhost" else f"docker.io/{tag}"


def encode(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def squeeze(layer: bytes) -> bytes:
    """Compressed, once for a content: most layers are those of the last image."""
    kept = cache() / "layers" / f"{digest(layer).removeprefix('sha256:')}.gz"
    if kept.exists():
        return kept.read_bytes()
    data = gzip.compress(layer, 6, mtime=0)
    # An old one is of a binary that is no more.
    if kept.parent.exists():
        for old in sorted(kept.parent.glob("*.gz"), key=lambda path: path.stat().st_mtime)[:-8]:
            old.unlink(missing_ok=True)
    write(kept, data)
    return data


def make_muster(options: argparse.Namespace) -> None:
    layers = [system(options.arch), program(options.binary, options.strip)]
    version = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
    config = {
        "User": f"{USER}:{USER}",
        "Env": [
            "PATH=/usr/bin:/bin",
            f"HOME=/{HOME}",
            f"MUSTER_HOME=/{HOME}",
            "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
        ],
        "Entrypoint": ["/usr/bin/muster"],
        "WorkingDir": "/",
        "Labels": {
            "org.opencontainers.image.title": "muster",
            "org.opencontainers.image.description": "server and agent of muster: training code as distributed jobs",
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.version": version,
            "org.opencontainers.image.base.name": f"debian:{SUITE} packages, snapshot {locked(options.arch)[0]}",
        },
    }
    tag = options.tag or f"muster:{version}"
    made = archive(layers, config, tag, options)
    size, unpacked = options.out.stat().st_size / 1e6, sum(map(len, layers)) / 1e6
    print(f"{options.out}: {tag} {made} {size:.1f} MB, {unpacked:.1f} MB unpacked")


def make_wrapped(options: argparse.Namespace) -> None:
    config = {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": options.command}
    made = archive([root_layer(options.root)], config, options.tag, options)
    print(f"{options.out}: {options.tag} {made}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    muster = actions.add_parser("muster", help="the image of muster")
    muster.add_argument("--binary", type=Path, required=True)
    muster.add_argument("--tag", help="NAME:TAG (default: muster:VERSION)")
    muster.add_argument("--strip", action="store_true", help="leave debug information out of the binary")
    wrap = actions.add_parser("wrap", help="any root as an image")
    wrap.add_argument("--root", type=Path, required=True, help="a folder or a tar archive")
    wrap.add_argument("--tag", required=True, help="NAME:TAG")
    wrap.add_argument("--command", type=json.loads, default=["/bin/sh"], help="its command, as a JSON list")
    for one in (muster, wrap):
        one.add_argument("--plain", action="store_true", help="compress nothing: quicker made and loaded, for tests")
        one.add_argument("--arch", choices=ARCHITECTURES, default="amd64")
        one.add_argument("out", type=Path)
    actions.add_parser("lock", help="pin the packages anew")
    options = parser.parse_args()
    if options.action == "lock":
        lock()
    elif options.action == "muster":
        make_muster(options)
    else:
        make_wrapped(options)


if __name__ == "__main__":
    main()
