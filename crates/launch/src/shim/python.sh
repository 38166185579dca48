#!/bin/sh
# `python FILE.sh …` runs FILE.sh with bash; anything else goes to the interpreter that comes next on PATH.
# ModelArts starts what its users name by the name's ending, and commands such as `python …/run.sh` were written for that.

case "${1:-}" in
*.sh) [ -f "$1" ] && exec bash "$@" ;;
esac

@NEXT@
name="${0##*/}"
# Debian has no `python`, only `python3`.
if ! found="$(next "$name" || next python3)"; then
    echo "$name: not found on PATH ($PATH); install Python, or activate the environment that has it before submitting" >&2
    exit 127
fi
exec "$found" "$@"
