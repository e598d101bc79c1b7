#!/usr/bin/env bash
# Makes a folder with compilers for another system: zig, from PyPI, which holds clang, the linker lld,
# and the C and C++ libraries of every target.
#
# usage: tools/release/zig.sh TARGET FOLDER
#   TARGET  linux-x86_64, linux-aarch64 (musl: programs that need nothing of a system but its kernel),
#           linux-x86_64-glibc, linux-aarch64-glibc (glibc 2.28 and later: wheels), macos-arm64,
#           windows-x86_64
# FOLDER gets bin/cc, bin/c++, bin/ar, bin/ranlib, bin/rc, and toolchain.cmake for CMake; and bin/link, which
# makes a program smaller than bin/c++ would. zig itself lies in build/zig.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -eq 2 ] || { echo "usage: tools/release/zig.sh TARGET FOLDER" >&2; exit 2; }
case $1 in
  linux-x86_64) zig_target=x86_64-linux-musl system=Linux processor=x86_64 ;;
  linux-aarch64) zig_target=aarch64-linux-musl system=Linux processor=aarch64 ;;
  linux-x86_64-glibc) zig_target=x86_64-linux-gnu.2.28 system=Linux processor=x86_64 ;;
  linux-aarch64-glibc) zig_target=aarch64-linux-gnu.2.28 system=Linux processor=aarch64 ;;
  macos-arm64) zig_target=aarch64-macos.11.0-none system=Darwin processor=arm64 ;;
  windows-x86_64) zig_target=x86_64-windows-gnu system=Windows processor=x86_64 ;;
  *) echo "tools/release/zig.sh: unknown target: $1" >&2; exit 2 ;;
esac

# One version of the compiler, so that a release can be made again with the same bytes.
version=0.17.1
zig=$PWD/build/zig
if [ ! -e "$zig/$version" ]; then
  python3 -m venv "$zig"
  "$zig/bin/pip" install --quiet --disable-pip-version-check "ziglang==$version"
  touch "$zig/$version"
fi
program=$("$zig/bin/python" -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__))')/zig

mkdir -p "$2/bin"
folder=$(realpath "$2")
# zig turns on UndefinedBehaviorSanitizer where it finds no -O, and debug information.
for tool in cc c++; do
  printf '%s\n' '#!/bin/sh' "export ZIG_GLOBAL_CACHE_DIR=$zig/cache ZIG_LOCAL_CACHE_DIR=$zig/cache" \
    "exec $program $tool -target $zig_target -fno-sanitize=undefined -g0 \"\$@\"" > "$folder/bin/$tool.new"
done
for tool in ar ranlib rc; do
  printf '%s\n' '#!/bin/sh' "exec $program $tool \"\$@\"" > "$folder/bin/$tool.new"
done
# link COMPILER ARGUMENT...: the compiler tells how it calls lld, which then does it again with options
# that zig does not pass on. They fold functions with equal code, and pack the table of addresses that
# a program which may be loaded anywhere corrects when it starts: 16.1 MB become 14.9. (--no-warnings:
# lld says of each object of C that it does not know which of its functions have addresses.)
cat > "$folder/bin/link.new" << END
#!/bin/sh
set -f
said=\$("\$@" '-###' 2>&1) || { echo "\$said" >&2; exit 1; }
command=\$(echo "\$said" | sed -n 's/^ld.lld //p' | tail -n 1)  # calls before it make objects
[ -n "\$command" ] || { echo "link: expected a call of ld.lld, found: \$said" >&2; exit 1; }
exec $program ld.lld \$command --icf=safe --pack-dyn-relocs=relr --no-warnings
END
# A file that stays the same keeps its time, which ccache looks at.
for tool in cc c++ ar ranlib rc link; do
  chmod +x "$folder/bin/$tool.new"
  if cmp -s "$folder/bin/$tool.new" "$folder/bin/$tool"; then rm "$folder/bin/$tool.new"
  else mv "$folder/bin/$tool.new" "$folder/bin/$tool"; fi
done
cat > "$folder/toolchain.cmake" << END
set(CMAKE_SYSTEM_NAME $system)
set(CMAKE_SYSTEM_PROCESSOR $processor)
set(CMAKE_C_COMPILER $folder/bin/cc)
set(CMAKE_CXX_COMPILER $folder/bin/c++)
set(CMAKE_AR $folder/bin/ar)
set(CMAKE_RANLIB $folder/bin/ranlib)
set(CMAKE_RC_COMPILER $folder/bin/rc)
set(CMAKE_FIND_ROOT_PATH $folder)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
END
