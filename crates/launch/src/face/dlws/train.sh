#!/bin/bash
# Runs a command once for every NPU of this task, each in a directory of its own: train.sh COMMAND [ARGUMENT]...
# Ranks count through the whole gang, as in the rank tables beside this file.
if [ $# -eq 0 ]; then
    echo "usage: train.sh COMMAND [ARGUMENT]..." >&2
    exit 2
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export RANK_TABLE_FILE=${RANK_TABLE_FILE:-$here/hccl_tf.json}
export RANK_SIZE=@RANK_SIZE@
export HCCL_CONNECT_TIMEOUT=${HCCL_CONNECT_TIMEOUT:-200}
export SOC_VERSION=${SOC_VERSION:-Ascend910}
export JOB_ID=${JOB_ID:-${RANDOM}${RANDOM}}
ranks=(@RANKS@)
IFS=, read -r -a ids <<< "$VISIBLE_IDS"
pids=()
for index in "${!ranks[@]}"; do
    rank=${ranks[index]}
    mkdir -p "training/D$rank" || exit 1
    (
        cd "training/D$rank" || exit 1
        # With all devices up to its own visible, a device has the same number for runtimes that count the visible ones.
        ASCEND_RT_VISIBLE_DEVICES=$(seq -s, 0 "${ids[index]}")
        export ASCEND_RT_VISIBLE_DEVICES
        DEVICE_ID=${ids[index]} DEVICE_INDEX=$index RANK_ID=$rank exec "$@"
    ) &
    pids+=($!)
done
trap 'kill "${pids[@]}" 2>/dev/null' INT TERM
code=0
for pid in "${pids[@]}"; do
    wait "$pid" || code=$?
done
exit "$code"
