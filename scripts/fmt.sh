#!/usr/bin/env bash
# Formats the Rust and Python sources in place.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need_cargo
cd "$ROOT"
cargo fmt --all
ruff="$(venv lint scripts/requirements-lint.txt)/bin/ruff"
"$ruff" check --quiet --fix .
"$ruff" format --quiet .
