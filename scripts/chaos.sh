#!/usr/bin/env bash
# Random kills, freezes and restarts of server, agent, supervisors and clients while jobs run, damage to their files, and what must hold afterwards:
# crates/app/tests/e2e/chaos.rs. SEED is the first seed (1), RUNS how many follow each other (20). Each run takes some ten seconds.
# With KILLS=200 the agent is then killed so often in the middle of arrays, which takes some ten minutes.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need_cargo
need_python
use_target_dir
cd "$ROOT"
export MUSTER_CHAOS_SEED="${SEED:-1}" MUSTER_CHAOS_RUNS="${RUNS:-20}"
tests=(chaos::no_kill_loses_a_job_doubles_a_run_or_leaves_anything_behind)
if [[ -n "${KILLS:-}" ]]; then
    export MUSTER_ARRAY_KILLS="$KILLS" MUSTER_CRASH_SEED="$MUSTER_CHAOS_SEED"
    tests+=(array::no_array_stands_still_however_often_its_agent_is_killed)
fi
exec cargo test --locked -p muster-app --test e2e -- --nocapture --test-threads 1 --exact "${tests[@]}"
