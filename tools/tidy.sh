#!/usr/bin/env bash
# Runs clang-tidy 14 over C++ files of the product, with the checks of .clang-tidy. A finding is an
# error.
#
# usage: tools/tidy.sh --all [--analyzer] [--jobs N]
#        tools/tidy.sh --commits N [--jobs N]
#        tools/tidy.sh FILE... [--jobs N]
#   --all       every file, many of them compiled as one
#   --analyzer  with the checks of clang's static analyzer as well, which take three times as long
#   --commits N the files that the last N commits changed, at most 20 of them, the newest first
#   --jobs N    processes at a time (default: all processors)
set -euo pipefail
cd "$(dirname "$0")/.."

usage_error() {
  echo "tools/tidy.sh: $1" >&2
  sed -n '/^# usage: /,/^#   --/{s/^# \(usage: .*\)/\1/p;s/^#\( *tools.*\)/\1/p}' "$0" >&2
  exit 2
}

all=false
commits=
checks=
jobs=$(nproc)
files=()
while [ $# -gt 0 ]; do
  case $1 in
    --all) all=true ;;
    --analyzer) checks=--checks=clang-analyzer-* ;;
    --commits) commits=${2:-}; shift ;;
    --jobs) jobs=${2:-}; shift ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    -*) usage_error "unknown argument: $1" ;;
    *) files+=("$1") ;;
  esac
  shift
done
[[ $jobs =~ ^[1-9][0-9]*$ ]] || usage_error "--jobs wants a number"

product='^(lib|server|research|tools|migrations)/.*\.cpp$'
if [ -n "$commits" ]; then
  [[ $commits =~ ^[1-9][0-9]*$ ]] || usage_error "--commits wants a number"
  while read -r file; do
    [ ! -f "$file" ] || files+=("$file")
  done < <(git log -n "$commits" --format= --name-only | grep -E "$product" | awk '!seen[$0]++' |
           head -n 20)
  [ ${#files[@]} -gt 0 ] || { echo "tools/tidy.sh: no C++ file changed"; exit 0; }
elif ! $all && [ ${#files[@]} -eq 0 ]; then
  usage_error "no file"
fi

# A build folder of its own: how the files are compiled, by clang and without precompiled headers, and
# the headers that flatc makes.
unity=0
! $all || unity=20
folder=build/tidy
cmake --preset clang -B "$folder" -DTQCACHE_UNITY=$unity -DTQCACHE_BUILD_TESTS=OFF \
  -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON > /dev/null
mapfile -t generated < <(ninja -C "$folder" -t targets all | grep -o '^[^/][^:]*_generated\.h')
ninja -C "$folder" "${generated[@]}" > /dev/null

if $all; then
  # A batch includes files; what is in them counts, and that they are included does not.
  mapfile -t files < <(python3 - "$folder" <<'EOF'
import json, sys
for entry in json.load(open(sys.argv[1] + "/compile_commands.json")):
    if "/examples/" not in entry["file"]:
        print(entry["file"])
EOF
  )
  checks=${checks:---checks=-bugprone-suspicious-include}
fi
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$jobs" clang-tidy-14 -p "$folder" --quiet ${checks:+"$checks"}
