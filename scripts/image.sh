#!/usr/bin/env bash
# image.sh [ARCH]: builds the release binary for any Linux with glibc 2.17 or later, and the image of server and agents from it.
# ARCH is amd64 (default) or arm64. Nothing but cargo, python3 and the C compiler that comes with `ziglang` is needed.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

# What users' images have at least: that of CentOS 7, which manylinux2014 is made of, too.
GLIBC=2.17
LIMIT_MB=30

arch="${1:-amd64}"
case "$arch" in
    amd64) triple=x86_64-unknown-linux-gnu ;;
    arm64) triple=aarch64-unknown-linux-gnu ;;
    *) die "there is no image for \`$arch\`" "make image ARCH=amd64 or ARCH=arm64" ;;
esac
need_cargo
need_python
use_target_dir
cd "$ROOT"
apt_need objdump binutils || die "objdump is not installed, with which the binary is checked" "Debian: apt-get install binutils"
if command -v rustup >/dev/null && ! rustup target list --installed | grep -qx "$triple"; then
    say "adding Rust's own library for $triple"
    rustup target add "$triple" >&2
fi
zig="$(venv zig scripts/requirements-zig.txt)"
say "building the release binary for $triple with glibc $GLIBC"
PATH="$zig/bin:$PATH" cargo zigbuild --release --locked -p muster-app --target "$triple.$GLIBC"
binary="$CARGO_TARGET_DIR/$triple/release/muster"

newest="$(objdump -T "$binary" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1)"
if [[ "$(printf '%s\n' "GLIBC_$GLIBC" "$newest" | sort -V | tail -1)" != "GLIBC_$GLIBC" ]]; then
    die "the binary needs $newest, so it would not start in images with glibc $GLIBC" "objdump -T $binary shows what for"
fi
size=$(($(stat -c %s "$binary") / 1000000))
((size <= LIMIT_MB)) || die "the binary has $size MB; the limit is $LIMIT_MB"
say "built $binary: $size MB, needs $newest"

out="$CARGO_TARGET_DIR/image/muster-$arch.tar"
python3 scripts/image.py muster --binary "$binary" --arch "$arch" "$out"
say "load it: podman load -i $out; ctr -n k8s.io images import $out; skopeo copy oci-archive:$out docker://REGISTRY/muster:TAG"
