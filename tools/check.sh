#!/usr/bin/env bash
# Builds tqcache and runs its tests, installing first what is missing. The last lines are ctest's
# own summary.
#
# usage: tools/check.sh [--clang] [--neon] [--asan] [--jobs N]
#   --clang   first compile everything with clang 14 as well, warnings as errors
#   --neon    then compile the codec for 64-bit ARM, and run its tests under qemu
#   --asan    then run the tests under AddressSanitizer and UndefinedBehaviorSanitizer as well
#   --jobs N  processes at a time (default: all processors)
# With CI=true in the environment warnings are errors in every step.
set -euo pipefail
cd "$(dirname "$0")/.."

with_clang=false
with_neon=false
with_asan=false
jobs=$(nproc)

usage_error() {
  echo "tools/check.sh: $1" >&2
  sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2
  exit 2
}

while [ $# -gt 0 ]; do
  case $1 in
    --clang) with_clang=true ;;
    --neon) with_neon=true ;;
    --asan) with_asan=true ;;
    --jobs)
      [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || usage_error "--jobs wants a number"
      jobs=$2
      shift
      ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) usage_error "unknown argument: $1" ;;
  esac
  shift
done

# On a terminal ninja shows how far it is in one line; in a log that would be hundreds.
quiet=()
[ -t 1 ] || quiet=(--quiet)

step() { echo "== $*"; }

# configure_and_build PRESET WERROR
configure_and_build() {
  local began=$SECONDS
  step "$1: build"
  cmake --preset "$1" -DTQCACHE_WERROR="$2" > /dev/null
  cmake --build --preset "$1" --parallel "$jobs" -- "${quiet[@]}"
  step "$1: built in $((SECONDS - began)) s"
}

run_tests() {
  step "$1: tests"
  ctest --preset "$1" --parallel "$jobs"
}

# A project of its own (tests/neon), so that only the codec needs a compiler for ARM.
check_neon() {
  local began=$SECONDS
  step "neon: build"
  cmake -S tests/neon -B build/neon -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_TOOLCHAIN_FILE=aarch64.cmake > /dev/null
  cmake --build build/neon --parallel "$jobs" -- "${quiet[@]}"
  step "neon: built in $((SECONDS - began)) s; tests"
  ctest --test-dir build/neon --parallel "$jobs" --output-on-failure
}

groups=(test)
! $with_clang || groups+=(clang)
! $with_neon || groups+=(neon)
tools/install-deps.sh "${groups[@]}"

werror=OFF
[ "${CI:-}" != true ] || werror=ON

if $with_clang; then configure_and_build clang ON; fi
if $with_neon; then check_neon; fi
if $with_asan; then
  configure_and_build asan "$werror"
  run_tests asan
fi
configure_and_build dev "$werror"
run_tests dev
