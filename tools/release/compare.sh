#!/usr/bin/env bash
# Compares a program for another system with one that is known to work: the self-test, all golden
# files, and the bytes of conversions, prompts and stores.
#
# usage: tools/release/compare.sh PROGRAM REFERENCE
#   PROGRAM    e.g. build/release-linux-x86_64/build/tools/tqcache, or with an emulator:
#              "qemu-aarch64 build/release-linux-aarch64/build/tools/tqcache"
#   REFERENCE  e.g. build/dev/tools/tqcache
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -eq 2 ] || { echo "usage: tools/release/compare.sh PROGRAM REFERENCE" >&2; exit 2; }
read -r -a program <<< "$1"
reference=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
count=0
# check NAME COMMAND...: the command has to succeed
check() {
  local name=$1
  shift
  count=$((count + 1))
  "$@" > "$folder/log" 2>&1 || { failed=$((failed + 1)); echo "FAILED $name"; tail -3 "$folder/log"; }
}

check selftest "${program[@]}" selftest
# Golden files are read, and become the same files of other kinds.
for file in tests/golden/v2/*.tqkv tests/golden/v2_checkpoints/*.tqkv; do
  name=$(basename "$file" .tqkv)
  check "verify $name" "${program[@]}" verify "$file"
  # What cannot be converted so, such as a file that is quantized already, is left out.
  for options in "--preset turbo4" "--preset turbo2.5" "--preset affine4" "--tier archive" \
    "--compress planes"; do
    read -r -a flags <<< "$options --compress none"
    [ "$options" != "--compress planes" ] || flags=(-b 16 --compress planes)
    "$reference" convert "$file" "$folder/a" -f "${flags[@]}" > /dev/null 2>&1 || continue
    check "convert $name $options" "${program[@]}" convert "$file" "$folder/b" -f "${flags[@]}"
    check "bytes of $name $options" cmp "$folder/a" "$folder/b"
  done
done
for file in tests/golden/v1/*.tqcache; do
  name=$(basename "$file" .tqcache)
  "$reference" migrate "$file" -o "$folder/old" -f > /dev/null 2>&1 || continue
  check "migrate $name" "${program[@]}" migrate "$file" -o "$folder/new" -f
  check "bytes of migrated $name" cmp "$folder/old/$name.tqkv" "$folder/new/$name.tqkv"
done
# A dense cache of a prompt is made once; all that follows from it has the same bytes.
model=models/demo/tqcache-demo-17m.q8_0.gguf
if [ -e "$model" ]; then
  "$reference" prefill -m "$model" -p "Alice was beginning to get very tired of sitting" \
    -o "$folder/dense" > /dev/null 2>&1
  check "verify with the model" "${program[@]}" verify "$folder/dense" -m "$model"
  check "prefill" "${program[@]}" prefill -m "$model" \
    -p "Alice was beginning to get very tired of sitting" -o "$folder/dense2"
  check "generate" "${program[@]}" generate -m "$model" --cache "$folder/dense" -n 8
  check "store put" "${program[@]}" store put "$folder/dense" --store "dir:$folder/store" --name one
  check "store get" "${program[@]}" store get one --store "dir:$folder/store" -o "$folder/got"
  check "content of the store" "$reference" diff "$folder/dense" "$folder/got"
fi
echo "$((count - failed)) of $count checks passed"
[ $failed -eq 0 ]
