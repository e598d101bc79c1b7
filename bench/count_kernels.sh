#!/usr/bin/env bash
# Counts the instructions that the codec's kernels take on 64-bit ARM and on x86-64 with AVX2, under an
# emulator: an estimate of speed for processors that are not at hand. Prints a table of instructions
# for each value; a kernel runs once and twice, and the difference counts.
#
# usage: bench/count_kernels.sh
# Needs Debian's g++-aarch64-linux-gnu and qemu-user. Works in build/count_kernels; takes some minutes.
# On a newer emulator than Debian 12's (7.2), -singlestep is -one-insn-per-tb.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=build/count_kernels
rm -rf "$folder"
mkdir -p "$folder"
sources=(bench/count_kernels.cpp lib/tqcache/codec/*.cpp lib/tqcache/codec/*/*.cpp
  lib/tqcache/base/dtype.cpp lib/tqcache/base/processor.cpp)

# build COMPILER PROGRAM
build() {
  local objects=$folder/$2.objects
  mkdir "$objects"
  printf '%s\n' "${sources[@]}" | xargs -P "${JOBS:-$(nproc)}" -I{} bash -c \
    '"$0" -std=c++20 -O3 -DNDEBUG -ffp-contract=off -Ilib -Ilib/include -c {} -o "$1/$(basename {}).o"' \
    "$1" "$objects"
  "$1" -static -o "$folder/$2" "$objects"/*.o
}
build aarch64-linux-gnu-g++ arm
build g++ x86

# count EMULATOR PROGRAM KERNEL N: instructions; one line of the log for each.
count() {
  local emulator=$1 program=$2
  shift 2
  $emulator -singlestep -d exec,nochain -D /dev/stdout "$folder/$program" "$@" | grep -c '^Trace'
}

values=$((256 * 128))
printf '%-12s %10s %10s %8s\n' kernel NEON AVX2 ratio
for kernel in encode decode score values score_f16 values_f16; do
  once=$(count "qemu-aarch64 -cpu max,sve=off" arm $kernel 1)
  twice=$(count "qemu-aarch64 -cpu max,sve=off" arm $kernel 2)
  neon=$((twice - once))
  once=$(count "qemu-x86_64 -cpu max" x86 $kernel 1)
  twice=$(count "qemu-x86_64 -cpu max" x86 $kernel 2)
  avx2=$((twice - once))
  awk -v k=$kernel -v n=$neon -v a=$avx2 -v v=$values \
    'BEGIN { printf "%-12s %10.3f %10.3f %8.2f\n", k, n / v, a / v, n / a }'
done
