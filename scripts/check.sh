#!/usr/bin/env bash
# check.sh [--static]: formatting, lints, generated files, then unit tests and the architecture test.
# --static leaves the tests out: `make test` runs all of them itself.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need_cargo
use_target_dir
cd "$ROOT"
apt_need shellcheck shellcheck || true
lint="$(venv lint scripts/requirements-lint.txt)"
sdk="$(venv sdk scripts/requirements-sdk.txt)"

# Steps are run by `step`, where `set -e` has no effect: they return their failures themselves.
# generated_is_current FILE WORDS...: what `muster WORDS` prints is what is committed.
generated_is_current() {
    local file="$1"
    shift
    cargo run -q --locked -p muster-app -- "$@" >"$generated" || return 1
    if ! diff -u "$file" "$generated"; then
        echo "$file is out of date; write it anew:"
        echo "  cargo run -q -p muster-app -- $* > $file"
        return 1
    fi
}

# The SDK's types of what the API says, which are made from its document.
sdk_types_are_current() {
    local file=sdk/python/src/muster/_wire.py
    python3 scripts/sdk_types.py openapi/openapi.json | "$lint/bin/ruff" format - >"$generated" || return 1
    if ! diff -u "$file" "$generated"; then
        echo "$file is out of date; write it anew:"
        echo "  python3 scripts/sdk_types.py openapi/openapi.json | $lint/bin/ruff format - > $file"
        return 1
    fi
}

shell_scripts_are_clean() {
    if ! command -v shellcheck >/dev/null; then
        echo "shellcheck is not installed; Debian: apt-get install shellcheck"
        return 1
    fi
    shellcheck .ci/run scripts/*.sh
}

generated="$(mktemp)"
trap 'rm -f "$generated"' EXIT

say "checking"
step "rust format" cargo fmt --all --check
step "python format" "$lint/bin/ruff" format --check .
step "python lint" "$lint/bin/ruff" check .
step "python types" "$sdk/bin/pyright" -p sdk/python --pythonpath "$sdk/bin/python"
step "shell scripts" shell_scripts_are_clean
step "clippy" cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
step "openapi document is current" generated_is_current openapi/openapi.json server openapi
step "the SDK's types of the API are current" sdk_types_are_current
step "page of errors is current" generated_is_current docs/reference/errors.md explain --markdown
if [[ "${1:-}" != --static ]]; then
    need_test_tools
    tests=0
    python3 scripts/test.py run --unit || tests=1
    steps_passed && ((tests == 0))
else
    steps_passed
fi
