#!/usr/bin/env bash
# Runs clang-tidy 14 over C++ files of the product, with the checks of .clang-tidy. A finding is an
# error.
#
# usage: tools/tidy.sh --all [--jobs N]
#        tools/tidy.sh --commits N [--jobs N]
#        tools/tidy.sh FILE... [--jobs N]
#   --all       every file, many of them compiled as one, with the checks of clang's static analyzer too:
#               13 minutes of processor time
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
    --commits) commits=${2:-}; shift ;;
    --jobs) jobs=${2:-}; shift ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    -*) usage_error "unknown argument: $1" ;;
    *) files+=("$1") ;;
  esac
  shift
done
[[ $jobs =~ ^[1-9][0-9]*$ ]] || usage_error "--jobs wants a number"

product='^(lib|server|research|tools|migrations)/.*[.]cpp$'
if [ -n "$commits" ]; then
  [[ $commits =~ ^[1-9][0-9]*$ ]] || usage_error "--commits wants a number"
  changed=$(git log -n "$commits" --format= --name-only)
  while read -r file; do
    [ ! -f "$file" ] || files+=("$file")
  done < <(awk -v product="$product" '$0 ~ product && !seen[$0]++' <<< "$changed" | head -n 20)
  [ ${#files[@]} -gt 0 ] || { echo "tools/tidy.sh: no C++ file changed"; exit 0; }
elif ! $all && [ ${#files[@]} -eq 0 ]; then
  usage_error "no file"
fi

# A build folder of its own: how the files are compiled, by clang and without precompiled headers, and
# the headers that flatc makes.
folder=build/tidy
cmake --preset clang -B "$folder" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON > /dev/null
mapfile -t generated < <(ninja -C "$folder" -t targets all | grep -o '^[^/][^:]*_generated\.h')
ninja -C "$folder" "${generated[@]}" > /dev/null

if $all; then
  # Not: padding; loops over floating-point numbers, because code tables are promised as they are; and
  # references that are null, because it does not see that Result checks them.
  checks=--checks=clang-analyzer-*,-clang-analyzer-optin.performance.Padding
  checks+=,-clang-analyzer-security.FloatLoopCounter,-clang-analyzer-core.uninitialized.UndefReturn
fi

# What clang-tidy reads: the batches of the product; and of those with files that were asked for, these
# files alone. Most of the time goes into the headers that the files of a batch share.
python3 - "$folder" "${files[@]}" > "$folder/units.txt" <<'EOF'
import json, os, re, sys
folder = os.path.abspath(sys.argv[1])
asked = {os.path.abspath(file) for file in sys.argv[2:]}
unread = set(asked)
database = folder + "/compile_commands.json"
entries = json.load(open(database))
for entry in list(entries):
    file = entry["file"]
    # A batch lies in the folder of its target, in the build folder.
    place = os.path.relpath(file, folder if file.startswith(folder) else ".")
    if place.split("/")[0] not in ("lib", "server", "research", "tools", "migrations"):
        continue
    parts = []
    if asked and file not in asked:
        if not file.endswith("_cxx.cxx"):
            continue
        parts = [part for part in re.findall('#include "(.*)"', open(file).read()) if part in asked]
        if not parts:
            continue
        part_of = file.replace("_cxx.cxx", "_asked.cxx")
        with open(part_of, "w") as out:
            out.writelines(f'#include "{part}"\n' for part in parts)
        entries.append(entry | {"file": part_of, "command": entry["command"].replace(file, part_of)})
        file = part_of
    print(file)
    unread -= {file} | set(parts)
json.dump(entries, open(database, "w"))
for file in sorted(unread):
    print("tools/tidy.sh: not compiled here, so not read:", file, file=sys.stderr)
EOF
[ -s "$folder/units.txt" ] || exit 0
tr '\n' '\0' < "$folder/units.txt" |
  xargs -0 -n 1 -P "$jobs" clang-tidy-14 -p "$folder" --quiet ${checks:+"$checks"}
