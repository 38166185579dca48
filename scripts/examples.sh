#!/usr/bin/env bash
# Makes the Python environments of the examples and prints where they are, for a shell that runs tests by hand:
#   eval "$(scripts/examples.sh)" && cargo test -p muster-app --test e2e frameworks::
set -euo pipefail
source "$(dirname "$0")/lib.sh"

example_environments
export -p | grep -o 'MUSTER_EXAMPLE_.*' | sed 's/^/export /'
