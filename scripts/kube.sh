#!/usr/bin/env bash
# What the Kubernetes of the tests is made of, made once into the cache. Prints where it is.
#   kube.sh binaries              the folder of etcd's peers: kube-apiserver, kubelet, kubectl, coredns and so on
#   kube.sh image NAME            an image: pause, busybox (no glibc), debian (Python, numpy, MPI)
#   kube.sh stock                 the folder of a containerd that has all of them, unpacked
#   kube.sh agent-image BINARY    the image of a muster
#   kube.sh queue kueue|volcano   the folder of somebody else who places gangs, and of what that adds to the API
#   kube.sh up [nodes=3 …]        a cluster for people, until it is taken down
#   kube.sh tell WORDS            has it do something, as in `tell bring debian`, `tell cut 1`; `tell help` lists all
#   kube.sh down                  ends it
set -euo pipefail
source "$(dirname "$0")/lib.sh"

KUBE="$ROOT/crates/testkit/kube"
KUBE_CACHE="$CACHE/kube"
KUBERNETES_VERSION="$(sed -n 's/^\tk8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' "$KUBE/go.mod")"
IMAGES=(pause busybox debian)
KUBERNETES_PROGRAMS=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl)
# Debian's Python 3.11 and what people's training needs of it; 350 MB unpacked.
TRAINING_PACKAGES=python3,python3-numpy,python3-mpi4py,openmpi-bin,openssh-client,iproute2

# digest FILE...: a short name for exactly these contents, and for what this script does with them.
digest() { cat "$@" | sha256sum | cut -c1-12; }

# go_build FOLDER OUT WORDS...: builds a package of the pinned module in FOLDER.
go_build() {
    local folder="$1" out="$2"
    shift 2
    (cd "$folder" && CGO_ENABLED=0 GOFLAGS="-mod=readonly -buildvcs=false" go build -trimpath -o "$out" "$@")
}

# compile OUT: all programs, from the Go module proxy; go.sum says what they are.
compile() {
    local out="$1" program flags version=k8s.io/component-base/version
    flags="-s -w -X $version.gitVersion=$KUBERNETES_VERSION -X $version.gitMajor=1"
    flags+=" -X $version.gitMinor=$(cut -d. -f2 <<<"$KUBERNETES_VERSION") -X k8s.io/client-go/pkg/version.gitVersion=$KUBERNETES_VERSION"
    for program in "${KUBERNETES_PROGRAMS[@]}"; do
        go_build "$KUBE" "$out/$program" -ldflags "$flags" "k8s.io/kubernetes/cmd/$program" || return 1
    done
    go_build "$KUBE/dns" "$out/coredns" -ldflags "-s -w" .
}

binaries() {
    local folder log
    folder="$KUBE_CACHE/bin-$(digest "$KUBE"/go.{mod,sum} "$KUBE"/dns/{go.mod,go.sum,main.go} <(declare -f compile go_build))"
    if [[ ! -e "$folder/.complete" ]]; then
        apt_need go golang-go || die "go is not installed, with which Kubernetes is built for the tests" "see https://go.dev/dl; 1.25 or later"
        say "building Kubernetes $KUBERNETES_VERSION into $folder (once, some ten minutes)"
        log="$(mktemp)"
        rm -rf "$folder"
        mkdir -p "$folder"
        # Gigabytes of objects that nobody needs again.
        export GOCACHE="$KUBE_CACHE/go-build"
        if ! compile "$folder" >"$log" 2>&1; then
            tail -50 "$log" >&2
            die "Kubernetes could not be built, so tests on it cannot run" "everything it said: $log" \
                "go must reach a module proxy (GOPROXY=$(go env GOPROXY))"
        fi
        rm -rf "$log" "$GOCACHE"
        touch "$folder/.complete"
    fi
    printf '%s\n' "$folder"
}

# definitions FOLDER MODULE PATH OUT: what a pinned module adds to the API.
definitions() {
    local module
    (cd "$1" && go mod download "$2") || return 1
    module="$(cd "$1" && go list -m -f '{{.Dir}}' "$2")" || return 1
    cp -r "$module/$3" "$4/crds" && chmod -R u+w "$4/crds"
}

compile_kueue() {
    definitions "$KUBE/kueue" sigs.k8s.io/kueue config/components/crd/bases "$1" || return 1
    go_build "$KUBE/kueue" "$1/kueue" -ldflags "-s -w" sigs.k8s.io/kueue/cmd/kueue
}

compile_volcano() {
    definitions "$KUBE/volcano" volcano.sh/volcano config/crd/volcano/bases "$1" || return 1
    go_build "$KUBE/volcano" "$1/scheduler" -ldflags "-s -w" volcano.sh/volcano/cmd/scheduler
}

# queue kueue|volcano: somebody else who places gangs, for the test of that.
queue() {
    local name="$1" folder log
    folder="$KUBE_CACHE/$name-$(digest "$KUBE/$name"/go.{mod,sum} <(declare -f "compile_$name" definitions go_build))"
    if [[ ! -e "$folder/.complete" ]]; then
        apt_need go golang-go || die "go is not installed, with which $name is built for its test" "see https://go.dev/dl; 1.25 or later"
        say "building $name into $folder (once, some minutes)"
        log="$(mktemp)"
        rm -rf "$folder"
        mkdir -p "$folder"
        export GOCACHE="$KUBE_CACHE/go-build-$name"
        "compile_$name" "$folder" >"$log" 2>&1 || { tail -50 "$log" >&2 && die "$name could not be built" "everything it said: $log"; }
        rm -rf "$log" "$GOCACHE"
        touch "$folder/.complete"
    fi
    printf '%s\n' "$folder"
}

image() {
    local name="$1" out
    out="$KUBE_CACHE/$name-$(digest "$KUBE/pause.c" <(declare -f "image_$name" && echo "$TRAINING_PACKAGES")).tar"
    if [[ ! -e "$out" ]]; then
        say "making the image localhost/$name:1"
        mkdir -p "$KUBE_CACHE"
        work="$(mktemp -d)"
        trap 'rm -rf "$work"' EXIT
        "image_$name" "$work" || die "the image $name could not be made" "what is left of it is gone: run this again to see it"
    fi
    printf '%s\n' "$out"
}

image_pause() {
    mkdir "$1/root"
    cc -static -Os -o "$1/root/pause" "$KUBE/pause.c"
    wrap "$1/root" localhost/pause:1 '["/pause"]'
}

image_busybox() {
    apt_need busybox busybox-static
    mkdir -p "$1"/root/{bin,etc,tmp,proc,sys,dev,root,usr/bin,var}
    cp "$(command -v busybox)" "$1/root/bin/busybox"
    busybox --list | grep -vx busybox | xargs -I{} ln -s busybox "$1/root/bin/{}"
    echo 'root:x:0:0:root:/root:/bin/sh' >"$1/root/etc/passwd"
    echo 'root:x:0:' >"$1/root/etc/group"
    wrap "$1/root" localhost/busybox:1 '["/bin/sh"]'
}

image_debian() {
    local release
    release="$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")"
    debootstrap --variant=minbase --include="$TRAINING_PACKAGES" "$release" "$1/root" >"$1/log" 2>&1 || {
        tail -20 "$1/log" >&2
        return 1
    }
    rm -rf "$1"/root/{var/cache/apt,var/lib/apt/lists,usr/share/doc,usr/share/man,usr/share/locale,dev}/*
    wrap "$1/root" localhost/debian:1 '["/bin/bash"]'
}

# stock: what every node of every cluster has from the start. To import images into each takes half a minute.
stock() {
    local images=() name folder
    for name in "${IMAGES[@]}"; do
        images+=("$("$0" image "$name")") || exit 1
    done
    folder="$KUBE_CACHE/stock-$(digest <(basename -a "${images[@]}" && containerd --version && declare -f fill))"
    if [[ ! -e "$folder/.complete" ]]; then
        say "unpacking images into $folder"
        rm -rf "$folder"
        mkdir -p "$folder"
        fill "$folder" "${images[@]}" || die "the images could not be unpacked"
        touch "$folder/.complete"
    fi
    printf '%s\n' "$folder"
}

# fill FOLDER IMAGE...: has a containerd of its own import images.
fill() {
    local folder="$1" daemon image
    shift
    work="$(mktemp -d)"
    trap 'rm -rf "$work"' EXIT
    printf 'version = 2\nroot = "%s"\nstate = "%s/state"\noom_score = 0\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\n  address = "%s/sock"\n' \
        "$folder" "$work" "$work" >"$work/config.toml"
    containerd -c "$work/config.toml" >"$work/log" 2>&1 9>&- &
    daemon=$!
    until ctr -a "$work/sock" version >/dev/null 2>&1; do
        kill -0 "$daemon" 2>/dev/null || { cat "$work/log" >&2 && return 1; }
        sleep 0.05
    done
    for image in "$@"; do
        ctr -a "$work/sock" -n k8s.io images import "$image" >/dev/null || return 1
    done
    kill "$daemon"
    wait "$daemon" || true
}

# wrap ROOT NAME COMMAND: a directory as an image. It gets its name when it is whole.
wrap() {
    python3 "$ROOT/scripts/image.py" wrap --root "$1" --tag "$2" --command "$3" --plain "$out.part" >/dev/null
    mv "$out.part" "$out"
}

# agent_image BINARY: the image localhost/muster:dev, made anew when the binary has changed.
agent_image() {
    local out
    out="$KUBE_CACHE/muster-$(stat -c '%n %Y %s' "$(realpath "$1")" | sha256sum | cut -c1-12).tar"
    if [[ ! -e "$out" ]]; then
        # Those of builds before this one have served.
        find "$KUBE_CACHE" -name 'muster-*.tar' -mmin +1440 -delete
        python3 "$ROOT/scripts/image.py" muster --binary "$1" --strip --plain --tag localhost/muster:dev "$out.part" >/dev/null
        mv "$out.part" "$out"
    fi
    printf '%s\n' "$out"
}

# up SETTING...: starts the cluster of people, and says how it is used.
up() {
    local up="$KUBE_CACHE/up" line
    if is_up; then
        die "a cluster is up already" "scripts/kube.sh down"
    fi
    need_cargo
    need_kube_tools
    use_target_dir
    (cd "$ROOT" && cargo build --quiet --locked -p muster-testkit --bin kube) || exit 1
    rm -rf "$up"
    mkdir -p "$up"
    mkfifo "$up/in"
    # It holds its own input open, so that it lives until it is told to end.
    setsid "$CARGO_TARGET_DIR/debug/kube" "$@" 0<>"$up/in" >"$up/out" 2>"$up/err" 9>&- &
    echo $! >"$up/pid"
    while [[ ! -s "$up/out" ]]; do
        is_up || { cat "$up/err" >&2 && die "the cluster did not start"; }
        sleep 0.1
    done
    line="$(head -1 "$up/out")"
    printf 'export KUBECONFIG=%s\n' "$(json_field kubeconfig "$line")"
    printf 'export PATH=%s:%s\n' "$(json_field programs "$line")" "\$PATH"
    say "pods reach this machine as $(json_field launcher "$line"); more: scripts/kube.sh tell help; its end: make kube-down"
}

json_field() { python3 -c 'import json, sys; print(json.loads(sys.argv[2])[sys.argv[1]])' "$1" "$2"; }

is_up() { kill -0 "$(cat "$KUBE_CACHE/up/pid" 2>/dev/null)" 2>/dev/null; }

tell() {
    local up="$KUBE_CACHE/up" lines
    is_up || die "no cluster is up" "make kube-up"
    lines="$(wc -l <"$up/out")"
    echo "$*" >"$up/in"
    while (("$(wc -l <"$up/out")" == lines)); do
        is_up || { cat "$up/err" >&2 && die "the cluster has ended"; }
        sleep 0.05
    done
    tail -1 "$up/out"
}

down() {
    local directory
    is_up || die "no cluster is up" "make kube-up"
    directory="$(dirname "$(json_field shared "$(head -1 "$KUBE_CACHE/up/out")")")"
    kill "$(cat "$KUBE_CACHE/up/pid")"
    while [[ -e "$directory" ]]; do sleep 0.1; done
    rm -rf "$KUBE_CACHE/up"
}

# Only one makes what many ask for at once.
mkdir -p "$KUBE_CACHE"
exec 9>"$KUBE_CACHE/.lock-${1:-}-$([[ "${1:-}" == image ]] && echo "${2:-}")"
case "${1:-}" in
binaries) flock 9 && binaries ;;
image) flock 9 && image "$2" ;;
stock) flock 9 && stock ;;
queue) flock 9 && queue "$2" ;;
agent-image) flock 9 && agent_image "$2" ;;
up) shift && flock 9 && up "$@" ;;
tell) shift && tell "$@" ;;
down) down ;;
*) die "usage: kube.sh binaries | stock | queue kueue|volcano | image ${IMAGES[*]} | agent-image BINARY | up [SETTING=VALUE…] | tell WORDS… | down" ;;
esac
