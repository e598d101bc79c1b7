#!/usr/bin/env bash
# Compiles the Python extension as a library was compiled that has sanitizers (AddressSanitizer and
# UndefinedBehaviorSanitizer, or ThreadSanitizer), and runs the tests of python/tests with both.
#
# usage: python/test_sanitized.sh BUILD [PYTEST ARGUMENT]...
#   BUILD  a build folder of the preset asan, fuzz or tsan, of which the target tqcache is enough; with
#          the target tqcache_cli the tests that run the program run, too
# Needs the compiler of that folder with its runtime, python3-venv, and PyPI for nanobind, numpy and
# pytest. The tests with torch, transformers and mlx-lm take those of the folder TQCACHE_PEERS
# (tests/interop/peers/setup.sh), of the same Python; without it they count as skipped. Leaks are not
# looked for: the interpreter itself leaves memory at its end.
set -euo pipefail

[ $# -ge 1 ] || { sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2; exit 2; }
build=$(realpath "$1")
shift
cd "$(dirname "$0")/.."

setting() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
cxx=$(setting CMAKE_CXX_COMPILER)
case $(setting TQCACHE_SANITIZE) in
  *address*)
    folder=$PWD/build/python-asan
    sanitizers="-fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all"
    # nanobind itself without UBSan, to which its tagged pointers are no objects.
    of_nanobind=-fsanitize=address link=-shared-libasan runtime=libclang_rt.asan-x86_64.so
    ;;
  thread)
    folder=$PWD/build/python-tsan sanitizers=-fsanitize=thread of_nanobind=-fsanitize=thread link=
    runtime=libtsan.so
    ;;
  *) echo "$0: $build has neither AddressSanitizer nor ThreadSanitizer" >&2; exit 2 ;;
esac
venv=$folder/venv
mkdir -p "$folder"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check nanobind numpy pytest

nanobind=$("$venv/bin/python" -c 'import nanobind; print(nanobind.source_dir() + "/..")')
headers=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
flags=(-std=c++20 -fPIC -O1 -g1 -fno-omit-frame-pointer -fvisibility=hidden -fno-strict-aliasing
  -isystem "$headers" -isystem "$nanobind/include" -isystem "$nanobind/ext/robin_map/include")
[ -f "$folder/nanobind.o" ] ||
  "$cxx" "${flags[@]}" $of_nanobind -c "$nanobind/src/nb_combined.cpp" -o "$folder/nanobind.o"
# shellcheck disable=SC2086
"$cxx" "${flags[@]}" $sanitizers -Ilib/include -c python/src/core/core.cpp -o "$folder/core.o"

package=$folder/package/tqcache
rm -rf "$folder/package"
mkdir -p "$folder/package"
cp -r python/src/tqcache "$package"
# shellcheck disable=SC2046,SC2086
"$cxx" -shared $sanitizers $link -o "$package/_core.so" \
  "$folder/core.o" "$folder/nanobind.o" "$build/lib/tqcache/libtqcache.a" \
  $(PKG_CONFIG_PATH=$build pkg-config --libs-only-l $(sed -n 's/^Requires: //p' "$build/tqcache.pc"))

cd python/tests
path=$folder/package
tests=(test_*.py)
# The program has the runtime in itself, and takes no other one. The script is that of a wheel.
if [ -x "$build/tools/tqcache" ]; then
  mkdir "$package/bin"
  printf '#!/bin/sh\nunset LD_PRELOAD\nexec "%s" "$@"\n' "$build/tools/tqcache" > "$package/bin/tqcache"
  printf '#!%s\nfrom tqcache._program import main\nmain()\n' "$venv/bin/python" > "$venv/bin/tqcache"
  chmod +x "$package/bin/tqcache" "$venv/bin/tqcache"
else
  tests+=(-k 'not program')
fi
if [ -n "${TQCACHE_PEERS:-}" ]; then
  path+=:$("$TQCACHE_PEERS/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  # mlx_lm.server does not answer under AddressSanitizer; test_plugins.sh tests it.
  tests+=(plugins/test_transformers.py plugins/test_mlx.py
    --deselect plugins/test_mlx.py::test_the_server)
fi

# Children of fork() have one thread, whatever ThreadSanitizer saw before.
env PYTHONPATH="$path" LD_PRELOAD="$("$cxx" -print-file-name=$runtime)" PYTHONMALLOC=malloc \
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 HF_HUB_OFFLINE=1 \
  TSAN_OPTIONS=die_after_fork=0:report_signal_unsafe=0 PYTHONDONTWRITEBYTECODE=1 \
  "$venv/bin/python" -m pytest -q -rs -p no:cacheprovider "$@" "${tests[@]}"
