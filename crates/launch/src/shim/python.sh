#!/bin/sh
# `python FILE.sh …` runs FILE.sh with bash; anything else goes to the interpreter that comes next on PATH.
# ModelArts starts what its users name by the name's ending, and commands such as `python …/run.sh` were written for that.

own="$(cd "$(dirname "$0")" && pwd)"
name="$(basename "$0")"
rest=
found=
old_ifs="$IFS"
IFS=:
for folder in $PATH; do
    [ "$folder" = "$own" ] && continue
    rest="${rest:+$rest:}$folder"
    for try in "$name" python3; do
        [ -z "$found" ] && [ -x "$folder/$try" ] && [ ! -d "$folder/$try" ] && found="$folder/$try"
    done
done
IFS="$old_ifs"

case "${1:-}" in
*.sh) [ -f "$1" ] && exec bash "$@" ;;
esac
if [ -z "$found" ]; then
    echo "$name: not found on PATH ($rest); install Python, or activate the environment that has it before submitting" >&2
    exit 127
fi
exec "$found" "$@"
