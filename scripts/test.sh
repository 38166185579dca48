#!/usr/bin/env bash
# Everything that must hold before a change lands: static checks, licences and bans, every test, the API against its document,
# the Python SDK, the demo.
# Runs all of it even when something fails, then names the slowest tests and closes with one plain line of counts.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need_cargo
need_python
need_test_tools
need_kube_tools
use_target_dir
cd "$ROOT"
MUSTER_TALLY="$(mktemp)"
export MUSTER_TALLY
trap 'rm -f "$MUSTER_TALLY"' EXIT

# part NAME COMMAND...: runs something that fills the tally itself. The tally decides, so a part that failed does not stop
# the run; one that broke without a failure in the tally is a failure all the same.
part() {
    local name="$1" before status=0
    shift
    before="$(grep -c '^failed' "$MUSTER_TALLY" || true)"
    "$@" || status=$?
    if ((status != 0)) && [[ "$(grep -c '^failed' "$MUSTER_TALLY" || true)" == "$before" ]]; then
        printf 'failed\t0\t%s (status %d)\n' "$name" "$status" >>"$MUSTER_TALLY"
    fi
}

licences() {
    local deny
    deny="$(cargo_deny)" || return 1
    "$deny" check --hide-inclusion-graph bans licenses sources
}

kubernetes() { kube_parts && helm >/dev/null; }

# The tests above have built the binary. Whatever a broken run leaves behind, its container ends.
fuzz_api() {
    local environment report status=0
    environment="$(venv fuzz scripts/requirements-fuzz.txt)" || return 1
    report="$(mktemp)"
    python3 scripts/contain.py 900 "$report" \
        "$environment/bin/python" scripts/fuzz_api.py --muster "$CARGO_TARGET_DIR/debug/muster" || status=$?
    rm -f "$report"
    return "$status"
}

# The SDK against the binary that the tests above have built.
sdk_tests() {
    local environment report status=0
    environment="$(venv sdk scripts/requirements-sdk.txt)" || return 1
    report="$(mktemp)"
    MUSTER_BINARY="$CARGO_TARGET_DIR/debug/muster" python3 scripts/contain.py 900 "$report" \
        "$environment/bin/python" -m pytest -q -p no:cacheprovider sdk/python || status=$?
    rm -f "$report"
    return "$status"
}

part "static checks" scripts/check.sh --static
say "checking licences, bans and sources (the first time builds cargo-deny: some minutes)"
step "licences, bans and sources" licences
say "making the Python environments of the examples (the first time fetches 5 GB)"
step "the examples' Python environments" example_environments
step "paramiko's Python environment" client_environment
say "making what clusters of tests are made of (the first time builds Kubernetes: some ten minutes)"
step "a Kubernetes for the tests" kubernetes
part "the test runner" python3 scripts/test.py run
say "sending the API what its document says, and what it does not"
step "the API keeps to its document" fuzz_api
say "testing the Python SDK against a server"
step "the Python SDK" sdk_tests
say "running the demo"
step "the demo trains a model" scripts/demo.sh
python3 scripts/test.py summary "$MUSTER_TALLY"
