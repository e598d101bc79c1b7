#!/usr/bin/env bash
# Runs the program on processors of a model number that nobody knows, in an emulator: the kernels are
# those of the instruction sets, and a prompt has the keys and values that they compute here.
#
# usage: tests/cli/unknown_processor.sh PROGRAM SOURCE_DIR WORK_DIR
set -euo pipefail
program=$1 source=$2 work=$3
rm -rf "$work"
mkdir -p "$work"

# expect_kernels CPU KERNELS
expect_kernels() {
  local version
  version=$(env -u TQCACHE_ISA qemu-x86_64 -cpu "$1" "$program" --version)
  if ! grep -q "^kernels  $2 " <<< "$version"; then
    echo "with -cpu $1 the kernels should be $2, but --version says:" >&2
    echo "$version" >&2
    exit 1
  fi
}
# The emulator has AVX2 from version 7.2 on, and no AVX-512.
expect_kernels max,family=6,model=250 avx2
expect_kernels Nehalem,family=6,model=250 scalar

model=$source/models/demo/tqcache-demo-17m.q8_0.gguf
prompt='The caterpillar and Alice looked at each other for some time in silence'
prefill() { "$@" prefill -m "$model" -p "$prompt" -t 1 -o "$work/cache.kv" -f 2> /dev/null && sha256sum < "$work/cache.kv"; }
emulated=$(prefill qemu-x86_64 -cpu max,family=6,model=250 "$program")
here=$(TQCACHE_ISA=avx2 prefill "$program")
has_avx2=$(env -u TQCACHE_ISA "$program" --version | grep -c '^kernels .*avx2' || true)
if [ "$has_avx2" = 1 ] && [ "$emulated" != "$here" ]; then
  echo "the prompt's cache has other bits on an unknown processor than with AVX2 here" >&2
  exit 1
fi
