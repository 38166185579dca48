#!/usr/bin/env bash
# Builds the release binary and measures the promised figures, beside a local Slurm where there is one.
# Arguments are handed to bench/run.py.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need_python
"$ROOT/scripts/build.sh"
use_target_dir
cd "$ROOT"
apt_need cc gcc libc6-dev || die "no C compiler (cc), which the measured program is built with" "install gcc or clang"
if ! { apt_need slurmctld slurm-wlm && apt_need munged munge; }; then
    say "Slurm is not installed (Debian: apt-get install slurm-wlm munge); its rows stay empty"
fi
exec python3 bench/run.py --muster "$CARGO_TARGET_DIR/release/muster" "$@"
