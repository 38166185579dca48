#!/bin/sh
# Becomes root by the real sudo where that asks for no password; otherwise the command runs as the task's own account, which
# is as far as a task can go.

@NEXT@
if [ "$(id -u)" != 0 ] && real="$(next sudo)" && "$real" -n true 2>/dev/null; then
    exec "$real" "$@"
fi

shell=
while [ $# -gt 0 ]; do
    case "$1" in
    --) shift; break ;;
    -i | -s | --login | --shell) shell=1; shift ;;
    -u)
        if [ "${2:-}" != root ] && [ "${2:-}" != "$(id -un)" ]; then
            echo "sudo: a task cannot become ${2:-}: it runs as $(id -un)" >&2
            exit 1
        fi
        shift 2
        ;;
    -g | -C | -h | -p | -r | -t | -T | -U) shift; [ $# -eq 0 ] || shift ;;
    -*) shift ;;
    [A-Za-z_]*=*) export "${1?}"; shift ;;
    *) break ;;
    esac
done
if [ $# -eq 0 ]; then
    [ -n "$shell" ] || { echo "sudo: there is no command" >&2; exit 1; }
    set -- "${SHELL:-/bin/sh}"
fi
# Not in place of this shell: under sudo a command does not lead its process group, and the platform's scripts end with
# `kill -- -$$`, which is to find no group. As its leader they would end themselves, by a signal, after everything went well.
"$@"
exit $?
