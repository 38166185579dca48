#!/usr/bin/env bash
# Makes the Python environments of the examples and of paramiko, and prints where they are, for a shell that runs tests by hand:
#   eval "$(scripts/examples.sh)" && cargo test -p muster-app --test e2e frameworks::
set -euo pipefail
source "$(dirname "$0")/lib.sh"

example_environments
client_environment
export -p | grep -oE 'MUSTER_(EXAMPLE_|PARAMIKO).*' | sed 's/^/export /'
