#!/bin/bash
# Starts a training as ModelArts does:
#   run_train.sh COMMAND [ARGUMENT]...
#   run_train.sh CODE-PLACE DIRECTORY/BOOT-FILE.py LOG-FILE [ARGUMENT]...     (NPUs: one process for each)

DLS_USER_HOME_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
DLS_USER_JOB_DIR=$DLS_USER_HOME_DIR/user-job-dir
export PYTHONPATH=$DLS_USER_JOB_DIR${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1
cd "$DLS_USER_HOME_DIR" || exit 127
source ./utils.sh

# One process for each NPU, in a directory of its own, with a rank that counts through the gang.
run_devices() {
    local boot=$1 tables=$RANK_TABLE_FILE log=$2 seat device pid code=0
    local -a seats pids=()
    shift 2
    [[ -d $tables ]] || tables=$(dirname "$tables")
    [[ -f $DLS_USER_JOB_DIR/$boot ]] || boot=${boot#*/}
    mkdir -p "$(dirname "$log")"
    read -r -a seats < "$tables/ranks" || return 1
    export RANK_SIZE=${seats[0]}
    for seat in "${seats[@]:1}"; do
        device=${seat%:*}
        mkdir -p "device$device"
        (
            cd "device$device" || exit 1
            export RANK_TABLE_FILE=$tables/rank_table.json JOB_ID=$DLS_JOB_ID
            export RANK_ID=${seat#*:} DEVICE_ID=$device ASCEND_DEVICE_ID=$device
            # With all devices up to its own visible, a device has the same number for runtimes that count the visible ones.
            ASCEND_RT_VISIBLE_DEVICES=$(seq -s, 0 "$device")
            export ASCEND_RT_VISIBLE_DEVICES
            exec python "$DLS_USER_JOB_DIR/$boot" "$@"
        ) < /dev/null > >(tee -a "$log") 2>&1 &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || code=$?
    done
    return "$code"
}

run_command() {
    local -a buffered=()
    # `python run.sh` means the script: what runs a file is told by its name.
    if [[ ${1##*/} == python* && -f $2 && $2 == *.sh ]]; then
        set -- "$(dls_get_executor "$2")" "${@:2}"
    fi
    command -v stdbuf > /dev/null && buffered=(stdbuf -oL -eL)
    "${buffered[@]}" "$@"
}

dls_fix_dns
unset_job_env_except_self "$DLS_JOB_ID"
decrypt_dls_aes_env

log=${TMPDIR:-/tmp}/dls-task-$DLS_TASK_INDEX.log
downloads=${TMPDIR:-/tmp}/dls-downloader.log
echo "user: $(id)"
echo "pwd: $PWD"
echo "app_url: $DLS_APP_URL"
echo "log_url: $log"
echo "command: $*"

mkdir -p "$DLS_USER_JOB_DIR" && cd "$DLS_USER_JOB_DIR" || exit 127
# Jobs of other people may have left files of these names, which are theirs.
{ dls_create_log "$log" && : > "$downloads"; } 2> /dev/null || {
    logs=$(mktemp -d) && log=$logs/task.log downloads=$logs/downloader.log
}

dls_get_app "$DLS_APP_URL" 2>&1 | tee "$downloads"
if [[ ${PIPESTATUS[0]} != 0 ]]; then
    { echo "App download error: "; cat "$downloads"; } | tee "$log"
    exit 127
fi

if [[ $# -ge 3 && $2 == *.py ]] && [[ $1 == *://* || -d $1 ]]; then
    run_devices "$2" "$3" "${@:4}" 2>&1 | tee "$log"
else
    run_command "$@" 2>&1 | tee "$log"
fi
code=${PIPESTATUS[0]}

if [[ -n $DLS_USE_UPLOADER && $DLS_USE_UPLOADER != 0 ]]; then
    if ! dls_upload_log "$log" "$DLS_UPLOAD_LOG_OBS_DIR" >> "$downloads" 2>&1; then
        { echo "Log upload error: "; cat "$downloads"; } | tee -a "$log"
    fi
fi
exit "$code"
