#!/usr/bin/env bash
# install.sh PREFIX: builds the release binary and puts it into PREFIX/bin, with links for the names of FastGPU's commands.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

prefix="${1:?usage: install.sh PREFIX}"
# make hands over a quoted ~ as it was typed.
prefix="${prefix/#\~/$HOME}"
"$ROOT/scripts/build.sh"
use_target_dir
# `install` replaces the file rather than writing into it, so a running muster keeps its own copy.
install -D -m 755 "$CARGO_TARGET_DIR/release/muster" "$prefix/bin/muster"
say "installed $prefix/bin/muster"
for name in fastgpu ecluster; do
    # The real FastGPU, where it is installed, is not ours to replace.
    if [ -e "$prefix/bin/$name" ] && [ ! -L "$prefix/bin/$name" ]; then
        say "$prefix/bin/$name is another program and stays; 'muster $name' does the same"
    else
        ln -sf muster "$prefix/bin/$name"
    fi
done
case ":$PATH:" in
    *":$prefix/bin:"*) ;;
    *) say "$prefix/bin is not on your PATH; add it to use 'muster' by name" ;;
esac
