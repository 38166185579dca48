#!/usr/bin/env bash
# test-full.sh PART: a matrix of tests that takes too long for `make test`. Parts: frameworks.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need_cargo
use_target_dir
cd "$ROOT"
case "${1:-}" in
frameworks)
    need_test_tools
    apt_need make make || die "make is not installed, behind which launchers are started" "Debian: apt-get install make"
    say "making the Python environments of the examples (the first time fetches 5 GB)"
    example_environments
    say "starting every launcher in every way, on two tasks: ten minutes or more; writes docs/guides/frameworks.md"
    MUSTER_TEST_FULL=frameworks exec cargo test --locked -p muster-app --test e2e -- --nocapture \
        frameworks::table::every_launcher_starts_its_processes_however_it_is_started
    ;;
*) die "ONLY=${1:-} names no matrix" "make test-full ONLY=frameworks" ;;
esac
