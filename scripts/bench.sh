#!/usr/bin/env bash
# Builds the release binary, fetches the peers, and measures the promised figures beside theirs. ONLY names a scenario, or
# several with commas; QUICK=1 uses small sizes and the binary of `cargo build`, to see whether it all works.
# Arguments are handed to bench/run.py.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need_python
use_target_dir
cd "$ROOT"
apt_need cc gcc libc6-dev || die "no C compiler (cc), which the measured program is built with" "install gcc or clang"
if [[ -n "${QUICK:-}" ]]; then
    need_cargo
    cargo build --locked -p muster-app
    cargo build --locked -p muster-scheduler --example figures
    muster="$CARGO_TARGET_DIR/debug/muster"
    set -- --quick "$@"
else
    scripts/build.sh
    cargo build --release --locked -p muster-scheduler --example figures
    muster="$CARGO_TARGET_DIR/release/muster"
fi
# A peer that is missing is named in the table, with the reason; here only what may be installed is.
apt_need slurmctld slurm-wlm || true
apt_need munged munge || true
apt_need sshd openssh-server || true
apt_need rsync rsync || true
apt_need pdsh pdsh || true
apt_need ip iproute2 || true
(need_test_account) || true
(need_kube_tools && kube_parts) || true
cargo build --locked -p muster-testkit --bin hosts --bin slurm --bin kube
peers="$(venv peers bench/requirements-peers.txt)" || peers=/nonexistent
exec python3 bench/run.py --muster "$muster" --peers "$peers" --testkit "$CARGO_TARGET_DIR/debug" --only "${ONLY:-}" "$@"
