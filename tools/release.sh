#!/usr/bin/env bash
# Builds the program for another system, or for any Linux, as one file that needs no libraries.
#
# usage: [JOBS=N] tools/release.sh [--tests] TARGET...
#   linux-x86_64    a static program: any distribution
#   linux-aarch64   the same for ARM
#   macos-arm64     macOS 11 or later on Apple silicon
#   windows-x86_64  without serve, Redis and S3 (docs/guide/windows.md)
#   --tests         compile and run the tests as well, in the same way. Tests of another processor than
#                   this one run under qemu-user; those that start programs need it to be known to the
#                   kernel, too (Debian: qemu-user-binfmt). EXCLUDE: tests that are left out, a regex
#
# Makes build/release-TARGET/tqcache-VERSION-TARGET.tar.xz, with the program, its manual pages,
# completions and all licenses (for Windows a .zip without the former two); beside it an SBOM (SPDX in
# JSON); and in build/SHA256SUMS the sums of both. The same commit gives the same bytes. The first build of a target compiles its libraries
# (tools/release/libraries.sh), with a compiler from PyPI (tools/release/zig.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
with_tests=OFF
if [ "${1:-}" = --tests ]; then
  with_tests=ON
  shift
fi
[ $# -gt 0 ] || { sed -n '/^# usage: /,/^#$/{s/^# \{0,1\}//p}' "$0" >&2; exit 2; }

tools/install-deps.sh release
version=$(sed -n 's/^project(tqcache VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
# Files in the archive have the time of the commit.
epoch=$(git log -1 --format=%ct 2> /dev/null || echo 0)
launcher=()
if command -v ccache > /dev/null; then
  launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_COMPILERTYPE=clang
fi

for target in "$@"; do
  if [ $with_tests = ON ] && [[ $target == macos-* || $target == windows-* ]]; then
    echo "tools/release.sh: --tests: expected a target for Linux, found $target" >&2
    exit 2
  fi
  folder=$PWD/build/release-$target
  static=$folder/static
  name=tqcache-$version-$target
  tools/release/libraries.sh "$target" "$static"
  # Not in the folder of what ends up in the program, and in its SBOM.
  [ $with_tests = OFF ] || tools/release/libraries.sh "$target" "$folder/googletest" googletest

  # Stacks of threads: musl gives 128 KiB unless the program asks for more.
  options=()
  link=
  network=ON
  suffix=
  archive=tar.xz
  case $target in
    linux-*)
      # -O2 also chooses zig's fast memcpy and memset; with -Os they copy byte by byte.
      link="-O2 -s -static -Wl,-z,stack-size=8388608 -Wl,--gc-sections"
      options+=(-DCMAKE_CXX_LINKER_LAUNCHER="$static/bin/link")
      # 150 KB less, at the same speed: loops do not need what clang inlines with -O3 beside them.
      options+=("-DTQCACHE_HOT_OPTIONS=-O3;SHELL:-mllvm -inline-threshold=40")
      ;;
    macos-*)
      link="-s -Wl,-dead_strip"
      ;;
    windows-*)
      link="-s -Wl,--gc-sections"
      network=OFF
      suffix=.exe
      archive=zip
      ;;
  esac
  if [ $with_tests = ON ]; then
    # Tests run for less time than it takes to optimize them.
    options+=(-DTQCACHE_TEST_OPTIONS=-O1)
    [[ $target == *-$(uname -m) ]] ||
      options+=("-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-${target#linux-}")
  fi
  # Modules with loops over values keep their -O3 (cmake/TqcacheTargets.cmake).
  flags="-ffunction-sections -fdata-sections -ffile-prefix-map=$PWD=."
  PKG_CONFIG_LIBDIR=$static/lib/pkgconfig cmake -S . -B "$folder/build" -G Ninja \
    -DCMAKE_TOOLCHAIN_FILE="$static/toolchain.cmake" -DCMAKE_PREFIX_PATH="$static" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS="$flags" \
    -DCMAKE_CXX_FLAGS_RELEASE="-Os -DNDEBUG" -DCMAKE_EXE_LINKER_FLAGS="$link" \
    -DCMAKE_SKIP_RPATH=ON -DCMAKE_INSTALL_PREFIX=/ -DCMAKE_INSTALL_LIBDIR=lib \
    -DTQCACHE_BUILD_TESTS=$with_tests -DTQCACHE_BUILD_FUZZ=OFF \
    -DTQCACHE_BUILD_EXAMPLES=OFF -DTQCACHE_C_LIBRARY=OFF -DTQCACHE_LINE_EDITING=OFF \
    -DTQCACHE_STORE_REDIS=$network -DTQCACHE_STORE_S3=$network -DTQCACHE_SERVE=$network \
    -DTQCACHE_DOCS=OFF \
    -DFLATBUFFERS_INCLUDE_DIR="$static/include" \
    -DGTest_DIR="$folder/googletest/lib/cmake/GTest" \
    "${launcher[@]}" "${options[@]}" \
    > "$folder/configure.log" || { tail -30 "$folder/configure.log" >&2; exit 1; }
  if [ $with_tests = ON ]; then
    cmake --build "$folder/build" --parallel "${JOBS:-$(nproc)}"
    if [[ $target == *-$(uname -m) ]]; then
      ctest --test-dir "$folder/build" --parallel "${JOBS:-$(nproc)}" --output-on-failure
    else
      tests/run_programs.py "$folder/build" --jobs "${JOBS:-$(nproc)}" --exclude "${EXCLUDE:-(?!)}"
    fi
    continue
  fi
  cmake --build "$folder/build" --parallel "${JOBS:-$(nproc)}" --target tqcache_cli

  # What a user unpacks: a folder with the program at its top.
  rm -rf "${folder:?}/$name"
  mkdir -p "$folder/$name/licenses" "$folder/$name/man" "$folder/$name/completions"
  cp "$folder/build/tools/tqcache$suffix" "$folder/$name"
  cp README.md CHANGELOG.md NOTICE "$folder/$name"
  cp LICENSE "$folder/$name/licenses/tqcache"
  cp "$static"/licenses/* "$folder/$name/licenses"
  zig=$(echo build/zig/lib/python3*/site-packages/ziglang)
  zig_version=$("$zig/zig" version)
  cp "$zig/LICENSE" "$folder/$name/licenses/zig"
  cp "$zig/lib/libunwind/LICENSE.TXT" "$folder/$name/licenses/llvm-libc++"
  case $target in
    linux-*) cp "$zig/lib/libc/musl/COPYRIGHT" "$folder/$name/licenses/musl" ;;
    windows-*) cp "$zig/lib/libc/mingw/COPYING" "$folder/$name/licenses/mingw-w64" ;;
  esac
  if [ $archive = zip ]; then
    rmdir "$folder/$name/man" "$folder/$name/completions"
    # Times as zip has them: without a zone, in steps of two seconds.
    find "$folder/$name" -exec touch --date="@$((epoch / 2 * 2))" {} +
    rm -f "$folder/$name.zip"
    (cd "$folder" && find "$name" | LC_ALL=C sort | TZ=UTC zip -q -9 -X "$name.zip" -@)
  else
    cp man/*.1 "$folder/$name/man"
    cp completions/* "$folder/$name/completions"
    tar --create --directory "$folder" --sort=name --owner=0 --group=0 --numeric-owner \
      --mode='u=rwX,go=rX' --mtime="@$epoch" "$name" | xz -9e --threads=1 > "$folder/$name.tar.xz"
  fi
  own=("libc++=zig $zig_version" "compiler-rt=zig $zig_version")
  case $target in
    linux-*) own+=("musl=zig $zig_version") ;;
    windows-*) own+=("mingw-w64=zig $zig_version") ;;
  esac
  tools/release/sbom.py "$name" "$version" "$epoch" "$static/done" "${own[@]}" \
    > "$folder/$name.spdx.json"
  touch build/SHA256SUMS
  sed -i "/ $name\./d" build/SHA256SUMS
  (cd "$folder" && sha256sum "$name.$archive" "$name.spdx.json") >> build/SHA256SUMS
  stat -c '%n: %s bytes' "$folder/$name/tqcache$suffix" "$folder/$name.$archive"
done
