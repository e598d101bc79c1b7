#!/usr/bin/env bash
# Compiles the native connector for LMCache: OUT/tqcache_lmcache_native.*.so.
#
# usage: python/lmcache_connector/build.sh SOURCE OUT [PYTHON]
#   SOURCE  LMCache's sources of the version that will load it (csrc/storage_backends of its sdist
#           or repository): LMCache's wheels have no headers
#   OUT     a folder for the module, to be put on PYTHONPATH
#   PYTHON  the interpreter that will load it, with pybind11 or torch (default: python3)
# Needs an installed tqcache that pkg-config finds (tqcache-c.pc), and a compiler for C++17.
set -euo pipefail

[ $# -ge 2 ] || { sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
python=${3:-python3}
headers=$1/csrc/storage_backends
[ -f "$headers/connector_base.h" ] || { echo "build.sh: no $headers/connector_base.h" >&2; exit 1; }
mkdir -p "$2"

# torch brings pybind11's headers.
mapfile -t about < <("$python" - << 'EOF'
import importlib.util, pathlib, sysconfig

print(sysconfig.get_path("include"))
print(sysconfig.get_config_var("EXT_SUFFIX"))
for name in ("pybind11", "torch"):
    found = importlib.util.find_spec(name)
    if found is not None:
        print(pathlib.Path(found.origin).parent / "include")
        break
else:
    raise SystemExit("build.sh: neither pybind11 nor torch")
EOF
)
libs=$(pkg-config --libs-only-L tqcache-c | sed 's/^-L//; s/ *$//')
# shellcheck disable=SC2046
${CXX:-c++} -std=c++17 -O2 -shared -fPIC -fvisibility=hidden -Wall -Wextra \
  -isystem "${about[0]}" -isystem "${about[2]}" -isystem "$headers" \
  $(pkg-config --cflags tqcache-c) "$here/connector.cpp" \
  -o "$2/tqcache_lmcache_native${about[1]}" $(pkg-config --libs tqcache-c) "-Wl,-rpath,$libs"
