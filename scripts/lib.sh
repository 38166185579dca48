# shellcheck shell=bash
# What every script of this folder shares: where things are kept, how tools arrive, how a step is counted.
# Sourced, never run. A caller has already set `set -euo pipefail`.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
CACHE="${MUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/muster-dev}"
CARGO_DENY_VERSION=0.20.2
HOROVOD_VERSION=0.28.1
HELM_VERSION=3.22.0
# Sums of compiled dependencies grow with every clean checkout that CI builds; past this the cache starts afresh.
TARGET_LIMIT_GIB=20

# To stderr: some callers print a path for others to read.
say() { printf '==> %s\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$1" >&2
    shift
    for hint in "$@"; do printf 'hint: %s\n' "$hint" >&2; done
    exit 1
}

# CI builds clean checkouts: it keeps compiled dependencies beside them, where the next checkout finds them. Incremental
# state would be stored for nothing there. A developer's own checkout uses ./target as cargo does.
use_target_dir() {
    if [[ -n "${CARGO_TARGET_DIR:-}" ]]; then
        return
    fi
    if [[ -z "${CI:-}" ]]; then
        export CARGO_TARGET_DIR="$ROOT/target"
        return
    fi
    export CARGO_TARGET_DIR="$CACHE/target" CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
    if [[ -d "$CARGO_TARGET_DIR" ]] && (($(du -s --block-size=1G "$CARGO_TARGET_DIR" | cut -f1) > TARGET_LIMIT_GIB)); then
        say "the build cache is over $TARGET_LIMIT_GIB GiB: starting afresh"
        rm -rf "$CARGO_TARGET_DIR"
    fi
}

need_cargo() {
    local channel
    channel="$(sed -n 's/^channel = "\(.*\)"$/\1/p' "$ROOT/rust-toolchain.toml")"
    if ! command -v cargo >/dev/null; then
        die "cargo is not installed; this project builds with Rust $channel" \
            "install rustup (Debian 13 and later: apt-get install rustup; else see https://rustup.rs)" \
            "then: rustup toolchain install $channel --profile minimal --component rustfmt,clippy"
    fi
    if ! (cd "$ROOT" && cargo --version >/dev/null 2>&1); then
        die "Rust $channel is not installed" \
            "rustup toolchain install $channel --profile minimal --component rustfmt,clippy"
    fi
    if ! command -v cc >/dev/null; then
        apt_need cc gcc libc6-dev || die "no C compiler (cc), which the bundled SQLite is built with" \
            "install gcc or clang"
    fi
}

# apt_need COMMAND PACKAGE...: installs the packages when the command is missing and this user may; false when it is
# still missing afterwards.
apt_need() {
    local command="$1"
    shift
    command -v "$command" >/dev/null && return 0
    if [[ "$(id -u)" != 0 ]] || ! command -v apt-get >/dev/null; then
        return 1
    fi
    say "installing $* (for $command)"
    if ! DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1; then
        # A fresh machine has no package lists yet.
        apt-get update -qq >/dev/null
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
    fi
    command -v "$command" >/dev/null
}

# need_test_tools: what the tests drive beside muster.
need_test_tools() {
    apt_need ip iproute2 || die "ip is not installed, with which tests make networks of their own" "Debian: apt-get install iproute2"
    # sshd is outside of an ordinary user's path, and of the path of a root that came by su.
    PATH="$PATH:/usr/sbin" apt_need sshd openssh-server || die "sshd is not installed, which hosts of tests run" "Debian: apt-get install openssh-server"
    apt_need nsenter util-linux || die "nsenter is not installed, with which hosts of tests are made" "Debian: apt-get install util-linux"
    apt_need ssh openssh-client || die "ssh is not installed, with which tasks reach each other" "Debian: apt-get install openssh-client"
    apt_need vim vim || die "vim is not installed, which is started on a terminal of a task" "Debian: apt-get install vim"
    apt_need rsync rsync || die "rsync is not installed, with which tests copy files of tasks" "Debian: apt-get install rsync"
    apt_need tmux tmux || die "tmux is not installed, which holds the sessions of tasks" "Debian: apt-get install tmux"
    apt_need zsh zsh || die "zsh is not installed, which may be the shell of a session" "Debian: apt-get install zsh"
    apt_need pdsh pdsh || die "pdsh is not installed, which tests run between tasks" "Debian: apt-get install pdsh"
    PATH="$PATH:/usr/sbin" apt_need slurmctld slurm-wlm munge || die "slurmctld is not installed, of which tests make clusters" "Debian: apt-get install slurm-wlm munge"
    PATH="$PATH:/usr/sbin" apt_need slurmdbd slurmdbd || die "slurmdbd is not installed, which is the accounting of these clusters" "Debian: apt-get install slurmdbd"
    PATH="$PATH:/usr/sbin" apt_need mariadbd mariadb-server || die "mariadbd is not installed, in which slurmdbd keeps it" "Debian: apt-get install mariadb-server"
    need_test_account
}

# need_kube_tools: what a Kubernetes of the tests is made of besides itself.
need_kube_tools() {
    local command
    # Most of these are in folders that an ordinary user's path leaves out.
    for command in etcd:etcd-server containerd:containerd runc:runc iptables:iptables debootstrap:debootstrap openssl:openssl; do
        PATH="$PATH:/usr/sbin" apt_need "${command%:*}" "${command#*:}" ||
            die "${command%:*} is not installed, of which tests make clusters" "Debian: apt-get install ${command#*:}"
    done
    apt_need busybox busybox-static || die "busybox is not installed, of which tests make images" "Debian: apt-get install busybox-static"
    PATH="$PATH:/usr/lib/cni" apt_need host-local containernetworking-plugins ||
        die "the plugins for networks of pods are not installed" "Debian: apt-get install containernetworking-plugins"
}

# kube_parts: makes what clusters of tests are made of. It takes minutes the first time, which no test should seem to take.
kube_parts() { "$ROOT/scripts/kube.sh" binaries >/dev/null && "$ROOT/scripts/kube.sh" stock >/dev/null; }

# need_test_account: whom jobs of a Slurm of the tests run as: never root, and somebody with a home and a shell, whom a bare system
# does not have.
need_test_account() {
    id muster-test >/dev/null 2>&1 && return
    if [[ "$(id -u)" == 0 ]]; then
        PATH="$PATH:/usr/sbin" useradd --create-home --shell /bin/bash --comment "runs jobs of tests" muster-test
    else
        die "the account muster-test is missing, as which jobs of tests run" "as root: useradd --create-home --shell /bin/bash muster-test"
    fi
}

# venv NAME REQUIREMENTS: prints the folder of a virtual environment with exactly these packages. The environment is
# named after the digest of its requirements and of the interpreter, so a changed pin makes a new one and an
# interrupted install is never taken for a finished one. Requirements list everything, hence --no-deps.
venv() {
    local name="$1" requirements="$2" digest folder log
    need_python
    digest="$({ cat "$requirements" && python3 -c 'import sys; print(sys.version, sys.base_prefix)'; } | sha256sum | cut -c1-12)"
    folder="$CACHE/venv/$name-$digest"
    if [[ ! -e "$folder/.complete" ]]; then
        say "making the Python environment '$name' in $folder"
        rm -rf "$folder"
        log="$(mktemp)"
        python3 -m venv "$folder" || die "python3 cannot make virtual environments" "Debian: apt-get install python3-venv"
        if ! "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$requirements" >"$log" 2>&1; then
            cat "$log" >&2
            die "pip could not install $requirements"
        fi
        rm -f "$log"
    fi
    # Its date says when it was last used.
    touch "$folder/.complete"
    printf '%s\n' "$folder"
}

need_python() {
    apt_need python3 python3 python3-venv || die "python3 is not installed" "Debian: apt-get install python3 python3-venv"
    # Debian splits ensurepip off; without it a virtual environment has no pip.
    if ! python3 -c 'import ensurepip' 2>/dev/null; then
        if [[ "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
            say "installing python3-venv"
            { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv; } >/dev/null
        else
            die "python3 cannot make virtual environments" "Debian: apt-get install python3-venv"
        fi
    fi
}

# cargo_deny: prints the path of the pinned cargo-deny, built on the first call. A debug build: it runs for a second,
# an optimised one takes three times as long to make.
cargo_deny() {
    local root="$CACHE/tools/cargo-deny-$CARGO_DENY_VERSION"
    if [[ ! -x "$root/bin/cargo-deny" ]]; then
        say "building cargo-deny $CARGO_DENY_VERSION into $root (once, some minutes)"
        # Without the caller's target directory cargo builds in a temporary one and removes it.
        env -u CARGO_TARGET_DIR cargo install --quiet --locked --debug --no-default-features \
            --root "$root" "cargo-deny@$CARGO_DENY_VERSION" >&2
    fi
    printf '%s\n' "$root/bin/cargo-deny"
}

# helm: prints the path of the pinned Helm, built on the first call from the Go module proxy, whose sums Go compares with those of
# the public log.
helm() {
    local root="$CACHE/tools/helm-$HELM_VERSION" build
    if [[ ! -x "$root/helm" ]]; then
        command -v go >/dev/null || die "go is not installed, with which Helm is built" "see https://go.dev/dl"
        say "building Helm $HELM_VERSION into $root (once, some minutes)"
        build="$(mktemp -d)"
        GOFLAGS='' CGO_ENABLED=0 GOCACHE="$build/cache" GOBIN="$build" \
            go install -trimpath -ldflags "-s -w" "helm.sh/helm/v3/cmd/helm@v$HELM_VERSION" >&2 || return 1
        mkdir -p "$root"
        mv "$build/helm" "$root/helm"
        rm -rf "$build"
    fi
    printf '%s\n' "$root/helm"
}

# step NAME COMMAND...: runs one check, shows its output only if it fails, and counts it. Later steps run all the same,
# so that one call reports everything there is to mend. With MUSTER_TALLY set the result is added to that file, one
# line of `passed|failed TAB seconds TAB name`; `scripts/test.py` writes and sums the same lines.
FAILED_STEPS=()
step() {
    local name="$1" log started seconds status=0
    shift
    log="$(mktemp)"
    started="$EPOCHREALTIME"
    "$@" >"$log" 2>&1 || status=$?
    seconds="$(awk -v a="$started" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')"
    if ((status == 0)); then
        printf '  ok    %-44s %6s s\n' "$name" "$seconds"
    else
        printf '  FAIL  %-44s %6s s\n' "$name" "$seconds"
        sed 's/^/        /' "$log"
        FAILED_STEPS+=("$name")
    fi
    rm -f "$log"
    if [[ -n "${MUSTER_TALLY:-}" ]]; then
        printf '%s\t%s\t%s\n' "$( ((status == 0)) && echo passed || echo failed)" "$seconds" "$name" >>"$MUSTER_TALLY"
    fi
}

# True when every step so far passed; names those that did not.
steps_passed() {
    if ((${#FAILED_STEPS[@]} > 0)); then
        printf '\nfailed: %s\n' "$(printf '%s, ' "${FAILED_STEPS[@]}" | sed 's/, $//')" >&2
        return 1
    fi
}

# client_environment: makes the Python environment of the SSH client that people's scripts use, and sets MUSTER_PARAMIKO to
# where it is, which is where the tests look for it.
client_environment() {
    MUSTER_PARAMIKO="$(venv paramiko "$ROOT/scripts/requirements-paramiko.txt")" || return 1
    export MUSTER_PARAMIKO
}

# example_environments: makes the Python environment of every framework's example, and sets MUSTER_EXAMPLE_<NAME> to where it
# is, which is where the tests look for it. The first time this fetches 5 GB; they take 10 GB.
example_environments() {
    local requirements name folder
    need_python
    # MindSpore, and the NumPy that it was built for, have packages for these alone.
    python3 -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' ||
        die "python3 is $(python3 -V 2>&1); the examples' packages are for Python 3.11 and 3.12" \
            "put one of these first on PATH as python3 (Debian 12 has 3.11; pyenv install 3.11)"
    apt_need mpirun openmpi-bin || die "mpirun is not installed, which examples/mpi4py needs" "Debian: apt-get install openmpi-bin"
    for requirements in "$ROOT"/examples/*/requirements.txt; do
        name="$(basename "$(dirname "$requirements")")"
        folder="$(venv "$name" "$requirements")" || return 1
        export "MUSTER_EXAMPLE_${name^^}=$folder"
    done
    folder="$(venv launchers "$ROOT/scripts/requirements-launchers.txt")" || return 1
    with_pytorch "$folder"
    export MUSTER_EXAMPLE_LAUNCHERS="$folder"
    # It is compiled for minutes, so only on request; once it is there, it stays.
    if [[ -n "${MUSTER_WITH_HOROVOD:-}" ]]; then
        MUSTER_EXAMPLE_HOROVOD="$(horovod)" || return 1
        export MUSTER_EXAMPLE_HOROVOD
    fi
    # A changed pin makes a new environment, and these are large: what nobody has used for a month goes.
    find "$CACHE/venv" -mindepth 2 -maxdepth 2 -name .complete -mtime +30 -printf '%h\0' | xargs -0 -r rm -rf
}

# with_pytorch VENV: has a virtual environment find the packages of examples/pytorch, which are too large to have twice.
with_pytorch() {
    local packages
    packages="$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    "$MUSTER_EXAMPLE_PYTORCH/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$packages/pytorch.pth"
}

# horovod: prints the folder of a virtual environment with Horovod for PyTorch, with Gloo alone: neither MPI nor CUDA. Its
# last release is of 2023 and asks for C++14, which PyTorch's headers are no longer written in: that is all that is changed.
horovod() {
    local digest folder log
    digest="$(cat "$ROOT/scripts/requirements-launchers.txt" "$ROOT/examples/pytorch/requirements.txt" <(python3 -V) | sha256sum | cut -c1-12)"
    folder="$CACHE/venv/horovod-$HOROVOD_VERSION-$digest"
    if [[ ! -e "$folder/.complete" ]]; then
        if ! apt_need cmake cmake || ! apt_need c++ g++ make; then
            die "Horovod is compiled with cmake and a C++ compiler" "Debian: apt-get install cmake g++ make"
        fi
        say "compiling Horovod $HOROVOD_VERSION into $folder (once, four minutes of one core)"
        rm -rf "$folder"
        log="$(mktemp)"
        python3 -m venv "$folder"
        with_pytorch "$folder"
        if ! compile_horovod "$folder" >"$log" 2>&1; then
            tail -50 "$log" >&2
            die "Horovod could not be compiled" "everything it said: $log"
        fi
        rm -f "$log"
    fi
    touch "$folder/.complete"
    printf '%s\n' "$folder"
}

compile_horovod() {
    local source pins pip=("$1/bin/python" -m pip --disable-pip-version-check)
    source="$(mktemp -d)"
    mapfile -t pins < <(grep -E '^(cloudpickle|packaging|psutil|PyYAML)=' "$ROOT/scripts/requirements-launchers.txt")
    "${pip[@]}" install --no-deps setuptools==80.9.0 wheel==0.45.1 "${pins[@]}" &&
        "${pip[@]}" download --no-deps --no-build-isolation --no-binary :all: -d "$source" "horovod==$HOROVOD_VERSION" &&
        tar xzf "$source/horovod-$HOROVOD_VERSION.tar.gz" -C "$source" --strip-components 1 &&
        sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 20/' "$source/CMakeLists.txt" "$source/horovod/torch/CMakeLists.txt" &&
        HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
            MAKEFLAGS="-j$(nproc)" "${pip[@]}" install --no-deps --no-build-isolation "$source" &&
        rm -rf "$source"
}
