#!/usr/bin/env bash
# Compiles the Python extension for AddressSanitizer and UndefinedBehaviorSanitizer, over a library
# that was compiled so, and runs the tests of python/tests with it.
#
# usage: python/test_asan.sh BUILD [PYTEST ARGUMENT]...
#   BUILD  a build folder of the preset asan (or fuzz), of which the target tqcache is enough
# Needs clang 14, its runtime, python3-venv, and PyPI for nanobind, numpy and pytest. Leaks are not
# looked for: the interpreter itself leaves memory at its end.
set -euo pipefail

[ $# -ge 1 ] || { sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2; exit 2; }
build=$(realpath "$1")
shift
cd "$(dirname "$0")/.."
folder=$PWD/build/python-asan
venv=$folder/venv
mkdir -p "$folder"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check nanobind numpy pytest

nanobind=$("$venv/bin/python" -c 'import nanobind; print(nanobind.source_dir() + "/..")')
headers=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
flags=(-std=c++20 -fPIC -O1 -g1 -fno-omit-frame-pointer -fvisibility=hidden -fno-strict-aliasing
  -isystem "$headers" -isystem "$nanobind/include" -isystem "$nanobind/ext/robin_map/include")
sanitizers=(-fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all)
# nanobind itself without: its tagged pointers are no objects to UBSan.
[ -f "$folder/nanobind.o" ] ||
  clang++-14 "${flags[@]}" -fsanitize=address -c "$nanobind/src/nb_combined.cpp" -o "$folder/nanobind.o"
clang++-14 "${flags[@]}" "${sanitizers[@]}" -Ilib/include -c python/src/core/core.cpp -o "$folder/core.o"

package=$folder/package/tqcache
rm -rf "$folder/package"
mkdir -p "$folder/package"
cp -r python/src/tqcache "$package"
# shellcheck disable=SC2046
clang++-14 -shared "${sanitizers[@]}" -shared-libasan -o "$package/_core.so" \
  "$folder/core.o" "$folder/nanobind.o" "$build/lib/tqcache/libtqcache.a" \
  $(PKG_CONFIG_PATH=$build pkg-config --libs-only-l $(sed -n 's/^Requires: //p' "$build/tqcache.pc"))

# The program and the wheel's own script are tested by test_wheel.sh; children of fork() and limits
# of memory do not go with a sanitizer.
runtime=$(clang++-14 -print-file-name=libclang_rt.asan-x86_64.so)
cd python/tests
env PYTHONPATH="$folder/package" LD_PRELOAD="$runtime" PYTHONMALLOC=malloc \
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONDONTWRITEBYTECODE=1 \
  "$venv/bin/python" -m pytest -q -p no:cacheprovider --ignore plugins \
  -k 'not program and not torch and not plugin' "$@" .
