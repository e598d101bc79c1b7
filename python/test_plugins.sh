#!/usr/bin/env bash
# Runs the tests of the plug-ins with the real transformers, mlx-lm, LMCache, vLLM and SGLang, which
# are installed in DIR meanwhile. Tests whose engine cannot be had are skipped, with the reason.
#
# usage: python/test_plugins.sh DIR PACKAGE [PYTEST ARGUMENT]...
#   DIR      a folder that tests/interop/peers/setup.sh made, or will make now
#   PACKAGE  a wheel of tqcache for DIR's Python, or a folder that has the package
# With TQCACHE_LMCACHE_SOURCE (LMCache's sources) and TQCACHE_PREFIX (an installed tqcache) in the
# environment, the native connector in C++ is compiled and tested, too (lmcache_connector/build.sh).
set -euo pipefail

[ $# -ge 2 ] || { sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
tests=$root/python/tests/plugins
mkdir -p "$1"
dir=$(cd "$1" && pwd)
package=$(realpath "$2")
shift 2

"$root/tests/interop/peers/setup.sh" "$dir"
python=$dir/bin/python
site=$dir/plugins
pip() { "$python" -m pip "$@" --quiet --disable-pip-version-check --no-deps --only-binary :all:; }

# What the engines import goes into a folder of its own: the peers keep their versions.
if ! cmp -s "$tests/requirements.txt" "$site/installed.txt"; then
  rm -rf "$site"
  mkdir -p "$site"
  grep -v '^#' "$tests/requirements.txt" | grep . > "$site/wanted.txt"
  if pip install --no-cache-dir --target "$site/modules" -r "$site/wanted.txt"; then
    cp "$tests/requirements.txt" "$site/installed.txt"
  fi
  for engine in $(sed -n 's/^# engine: //p' "$tests/requirements.txt"); do
    name=${engine%%==*}
    # shellcheck disable=SC2016
    pip download --dest "$site/wheels" "$engine" &&
      "$python" - "$site/wheels" "$name" "$site/$name" << 'EOF' || echo "plugins: NOT RUN: $engine"
import pathlib, sys, zipfile

wheels, name, folder = sys.argv[1:]
wheel, = pathlib.Path(wheels).glob(f"{name}-*.whl")
with zipfile.ZipFile(wheel) as file:
    # vLLM's and SGLang's kernels are not needed to import what is tested.
    wanted = [entry for entry in file.namelist() if name == "lmcache" or entry.endswith(".py")
              or ".dist-info/" in entry or "/kernels/jit/" in entry or entry.endswith(".json")]
    file.extractall(folder, wanted)
wheel.unlink()
EOF
  done
fi

wheel=
case $package in
  *.whl)
    wheel=$package
    rm -rf "$site/package"
    pip install --target "$site/package" "$package"
    package=$site/package
    ;;
esac

if [ -n "${TQCACHE_LMCACHE_SOURCE:-}" ]; then
  PKG_CONFIG_PATH=${TQCACHE_PREFIX:-/usr}/lib/pkgconfig:${PKG_CONFIG_PATH:-} \
    "$root/python/lmcache_connector/build.sh" "$TQCACHE_LMCACHE_SOURCE" "$site/native" "$python"
fi

path=$package:$site/native:$site/modules
for engine in lmcache sglang vllm; do path+=:$site/$engine; done
cd "$tests"
status=0
PYTHONPATH=$path TQCACHE_WHEEL=$wheel PYTHONDONTWRITEBYTECODE=1 CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-} \
  HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=WARNING \
  "$python" -m pytest -p no:cacheprovider -q -rs "$@" || status=$?
exit "$status"
