#!/bin/bash
# Compiles the fuzz targets as OSS-Fuzz and ClusterFuzzLite want them: programs, their corpora and the
# shared libraries that they need in $OUT. Both set the variables. Here:
#
#   OUT=build/oss-fuzz/out WORK=build/oss-fuzz CC=clang-14 CXX=clang++-14 SANITIZER=address \
#     LIB_FUZZING_ENGINE=-fsanitize=fuzzer .clusterfuzzlite/build.sh
#
# FUZZ_TARGETS names the targets to compile, such as "fuzz_gguf"; by default all of them.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -e tests/fuzz/CMakeLists.txt ] || cd "$SRC/tqcache"
mkdir -p "$OUT/lib" "$WORK"
out=$(realpath "$OUT") work=$(realpath "$WORK")

case $SANITIZER in
  address) sanitizers=fuzzer-no-link,address,undefined ;;
  undefined) sanitizers=fuzzer-no-link,undefined ;;
  *) echo "$0: SANITIZER: expected address or undefined, found $SANITIZER" >&2; exit 2 ;;
esac
# The libraries are those of the distribution, so C++'s is its own, too, and not libc++.
flags="-O2 -g1 -fno-sanitize-coverage=trace-cmp"
flags+=" -fsanitize-ignorelist=$PWD/tests/fuzz/ignorelist.txt"
cmake -S . -B "$work/build" -G Ninja -DCMAKE_C_COMPILER="$CC" -DCMAKE_CXX_COMPILER="$CXX" \
  -DCMAKE_BUILD_TYPE=Dev -DCMAKE_CXX_FLAGS="$flags" -DTQCACHE_SANITIZE="$sanitizers" \
  -DTQCACHE_FUZZING_ENGINE="$LIB_FUZZING_ENGINE" -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON > /dev/null
read -r -a targets <<< "${FUZZ_TARGETS:-fuzz_targets}"
cmake --build "$work/build" --target "${targets[@]}"

for program in "$work"/build/tests/fuzz/fuzz_*; do
  [ -f "$program" ] && [ -x "$program" ] || continue
  name=$(basename "$program")
  cp "$program" "$out"
  # The machine that runs them has neither these libraries nor the paths where they were.
  ldd "$program" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | grep -vE '/(libc|libm|ld-linux[^/]*)\.so' |
    xargs -r cp -n -L -t "$out/lib"
  patchelf --force-rpath --set-rpath '$ORIGIN/lib' "$out/$name"
  corpus=tests/fuzz/corpus/${name#fuzz_}
  [ ! -d "$corpus" ] || (cd "$corpus" && zip -q -r - .) > "$out/${name}_seed_corpus.zip"
  dictionary=tests/fuzz/dictionary/${name#fuzz_}.dict
  [ ! -e "$dictionary" ] || cp "$dictionary" "$out/$name.dict"
done
