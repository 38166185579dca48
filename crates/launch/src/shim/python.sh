#!/bin/sh
# `python FILE.sh …` runs FILE.sh with bash; anything else goes to the interpreter that comes next on PATH.
# ModelArts starts what its users name by the name's ending, and commands such as `python …/run.sh` were written for that.

case "${1:-}" in
*.sh) [ -f "$1" ] && exec bash "$@" ;;
esac

own="$(cd "$(dirname "$0")" && pwd)"
name="$(basename "$0")"
rest=
old_ifs="$IFS"
IFS=:
for folder in $PATH; do
    [ "$folder" = "$own" ] || rest="${rest:+$rest:}$folder"
done
IFS="$old_ifs"

# Debian has no `python`, only `python3`.
if ! found="$(PATH="$rest" command -v "$name" || PATH="$rest" command -v python3)"; then
    echo "$name: not found on PATH ($rest); install Python, or activate the environment that has it before submitting" >&2
    exit 127
fi
exec "$found" "$@"
