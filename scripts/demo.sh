#!/usr/bin/env bash
# Builds muster and runs a real data-parallel training on two tasks of this machine (examples/digits).
# The job goes to the user's own private server, so that `muster ps` shows it afterwards; under CI to one of its own,
# which is gone at the end. Fails unless the training reached its accuracy and both tasks hold the same model.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

MINIMUM_ACCURACY=0.95

"$ROOT/scripts/build.sh"
use_target_dir
muster="$CARGO_TARGET_DIR/release/muster"
environment="$(venv digits "$ROOT/examples/digits/requirements.txt")"
output="$(mktemp)"
finish() {
    rm -f "$output"
    if [[ -n "${demo_home:-}" ]]; then
        "$muster" server stop >/dev/null 2>&1 || true
        rm -rf "$demo_home"
    fi
}
trap finish EXIT
# The demo is about this machine, whatever server the user otherwise talks to.
unset MUSTER_SERVER MUSTER_TOKEN
if [[ -n "${CI:-}" ]]; then
    demo_home="$(mktemp -d)"
    export MUSTER_HOME="$demo_home"
fi

cd "$ROOT/examples/digits"
say "muster run --nodes 2 --name digits -- python train.py"
PATH="$environment/bin:$PATH" "$muster" run --nodes 2 --name digits -- python train.py 2>&1 | tee "$output"

accuracy="$(sed -n 's/.*final test accuracy \([0-9.]*\).*/\1/p' "$output" | tail -n 1)"
[[ -n "$accuracy" ]] || die "the training ended without printing its accuracy"
awk -v got="$accuracy" -v least="$MINIMUM_ACCURACY" 'BEGIN { exit !(got >= least) }' ||
    die "the accuracy is $accuracy; this training reaches at least $MINIMUM_ACCURACY"
models="$(sed -n 's/.*parameters sha256 \([0-9a-f]*\).*/\1/p' "$output")"
if [[ "$(wc -l <<<"$models")" != 2 || "$(sort -u <<<"$models" | wc -l)" != 1 ]]; then
    die "the two tasks do not report one and the same model:" "$models"
fi

echo
say "muster ps"
"$muster" ps
cat >&2 <<EOF

Two tasks trained one model, accuracy $accuracy. Where to look next:
  $muster logs last             what it printed, again
  $muster logs last --task 1    what the second task printed
  $muster show last             the job: its spec, tasks, exit codes, events
  $ROOT/docs/guides/first-run.md
EOF
