#!/usr/bin/env bash
# Builds the release binary.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need_cargo
use_target_dir
cd "$ROOT"
say "building the release binary"
cargo build --release --locked -p muster-app
say "built $CARGO_TARGET_DIR/release/muster"
