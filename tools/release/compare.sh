#!/usr/bin/env bash
# Compares a program for another system with one that is known to work: the self-test, all golden
# files, and the bytes of conversions of a model's cache, and what a store gives back.
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
# Where the reference fails, its message ends this.
# Golden files are read, and dequantized alike.
for file in tests/golden/v2/*.tqkv tests/golden/v2_checkpoints/*.tqkv; do
  name=$(basename "$file" .tqkv)
  check "verify $name" "${program[@]}" verify "$file"
  "$reference" convert "$file" "$folder/a" -f -q -b 16 --compress planes
  check "convert $name" "${program[@]}" convert "$file" "$folder/b" -f -b 16 --compress planes
  check "bytes of $name" cmp "$folder/a" "$folder/b"
done
for file in tests/golden/v1/*.tqcache; do
  name=$(basename "$file" .tqcache)
  "$reference" migrate "$file" -o "$folder/old" -f -q > "$folder/log" 2>&1 ||
    { cat "$folder/log" >&2; exit 1; }
  check "migrate $name" "${program[@]}" migrate "$file" -o "$folder/new" -f
  check "bytes of migrated $name" cmp "$folder/old/$name.tqkv" "$folder/new/$name.tqkv"
done
# A dense cache of a prompt is made once; all that follows from it has the same bytes.
model=models/demo/tqcache-demo-17m.q8_0.gguf
[ -e "$model" ] || models/demo/make_gguf.py
prompt=(-m "$model" --file models/demo/alice-excerpt.txt --tokens 1024)
"$reference" prefill "${prompt[@]}" -o "$folder/dense" -q
check "prefill" "${program[@]}" prefill "${prompt[@]}" -o "$folder/dense2"
check "verify with the model" "${program[@]}" verify "$folder/dense" -m "$model"
configs=(turbo4 turbo3 turbo2 turbo2.5 prod4 affine4 k8v4 k=mse:5,v=mse:1,sink=4 archive lossless)
for config in "${configs[@]}"; do
  "$reference" convert "$folder/dense" "$folder/a" -f -q --config "$config"
  check "convert to $config" "${program[@]}" convert "$folder/dense" "$folder/b" -f \
    --config "$config"
  check "bytes of $config" cmp "$folder/a" "$folder/b"
done
check "generate" "${program[@]}" generate -m "$model" --cache "$folder/dense" -n 8
check "store put" "${program[@]}" store put "$folder/dense" --store "dir:$folder/store" --name one
check "store get" "${program[@]}" store get one --store "dir:$folder/store" -o "$folder/got"
check "content of the store" "$reference" diff "$folder/dense" "$folder/got"
echo "$((count - failed)) of $count checks passed"
[ $failed -eq 0 ]
