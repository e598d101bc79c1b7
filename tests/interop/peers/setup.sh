#!/usr/bin/env bash
# Makes a Python environment with the peers of the interop tests: real mlx-lm, transformers,
# llama.cpp and gguf, in the versions of requirements.txt. What is already there is left alone. Only
# wheels are installed; what has none, or cannot be had, is told in DIR/missing.txt, and its tests
# then count as not run.
#
# usage: tests/interop/peers/setup.sh DIR
set -euo pipefail

[ $# -eq 1 ] || { sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)

[ -x "$dir/bin/python" ] || python3 -m venv "$dir"
: > "$dir/missing.txt"

lines_of() {
  sed -n "/^# group: $1\$/,/^\$/p" "$here/requirements.txt" | grep -v '^#' | grep .
}

# install GROUP [PIP OPTION]...
install() {
  local group=$1 stamp=$dir/installed-$1.txt began=$SECONDS reason
  shift
  if lines_of "$group" | cmp -s - "$stamp"; then return 0; fi
  rm -f "$stamp"
  lines_of "$group" > "$dir/wanted.txt"
  if "$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    --only-binary :all: --no-deps --no-compile "$@" -r "$dir/wanted.txt" \
    > "$dir/pip-$group.log" 2>&1; then
    mv "$dir/wanted.txt" "$stamp"
    echo "peers: installed $group in $((SECONDS - began)) s"
    return 0
  fi
  reason=$(grep '^ERROR' "$dir/pip-$group.log" | tail -n 1)
  echo "$group: not installed: ${reason:-see pip-$group.log}" >> "$dir/missing.txt"
}

mapfile -t groups < <(sed -n 's/^# group: //p' "$here/requirements.txt")
for group in "${groups[@]}"; do
  case $group in
    mlx-lm-0.31) install "$group" --upgrade --target "$dir/mlx-lm-0.31" ;;
    *) install "$group" ;;
  esac
done
sed 's/^/peers: NOT RUN: /' "$dir/missing.txt"
