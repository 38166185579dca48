#!/bin/sh
# `msrun …` in a script: the real one, told of the gang by flags, which are all it reads. Flags of the script's own come later, and
# win. Where msrun would not find that the master is this machine, the scheduler of the gang is started beside it.

@NEXT@
if ! found="$(next msrun)"; then
    echo "msrun: not found on PATH ($PATH); install MindSpore, or activate the environment that has it before submitting" >&2
    exit 127
fi

if [ -n "${MUSTER_MSRUN_SCHEDULER:-}" ]; then
    case " $*" in
    *" --master_addr"*) ;;
    *)
        python="${found%/*}/python"
        [ -x "$python" ] || python=python3
        MS_ROLE=MS_SCHED "$python" -c 'from mindspore import communication; communication.init()' &
        ;;
    esac
fi
# The flags have no spaces in them.
# shellcheck disable=SC2086
exec "$found" $MUSTER_MSRUN_FLAGS "$@"
