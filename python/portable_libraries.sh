#!/usr/bin/env bash
# Makes what a manylinux_2_28 wheel is linked with on Debian 12: the symbols of glibc 2.28, and static
# libraries. python/build_wheel.sh --portable calls it; python/README.md says how it works.
#
# usage: python/portable_libraries.sh FOLDER
#   FOLDER/glibc     what g++ -B takes instead of Debian's C library when it links
#   FOLDER/lib       static libraries: Debian's own, and those that Debian has as shared ones only,
#                    compiled from Debian's source packages
#   FOLDER/licenses  the copyright file of each
# What is there already is kept. Needs what tools/release/libraries.sh and tools/release/zig.sh need.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || { echo "usage: python/portable_libraries.sh FOLDER" >&2; exit 2; }
mkdir -p "$1"
folder=$(realpath "$1")
[ ! -e "$folder/complete" ] || exit 0
mkdir -p "$folder"/{glibc,lib/pkgconfig,licenses}

# zig comes with the list of all symbols of each glibc, and links with stub libraries made of it.
tools/release/zig.sh linux-x86_64-glibc "$folder/zig"
echo 'int main(void) { return 0; }' > "$folder/main.c"
"$folder/zig/bin/cc" -v -fPIE -pie "$folder/main.c" -o "$folder/main" > "$folder/zig.log" 2>&1
# zig prints paths below the current folder as relative ones.
grep -oE '[^ ]*/(Scrt1\.o|lib[a-z]+\.so\.[0-9]|libc_nonshared\.a)( |$)' "$folder/zig.log" \
  | sort -u | xargs cp -t "$folder/glibc"
cc -c -O2 -fPIC python/glibc_2_28.c -o "$folder/glibc/glibc_2_28.o"
ar rcs "$folder/glibc/libc_nonshared.a" "$folder/glibc/glibc_2_28.o"
g=$folder/glibc
echo "GROUP ( $g/libc.so.6 AS_NEEDED ( $g/libpthread.so.0 $g/libdl.so.2 $g/librt.so.1" \
  "$g/libresolv.so.2 $g/libld.so.2 ) $g/libc_nonshared.a )" > "$g/libc.so"
ln -sf libm.so.6 "$g/libm.so"

# What Debian has as shared libraries only, or with more than is used.
tools/release/libraries.sh native "$folder" fmtlib libzip onetbb curl

# library MODULE PACKAGE "LIBRARY..." [FLAGS]: copies Debian's static library, where there is none of
# ours yet, and writes the file by which CMake finds it.
debian=$(dirname "$(cc -print-file-name=libz.a)")
library() {
  local name libraries=
  for name in $3; do
    [ -e "$folder/lib/lib$name.a" ] || cp "$debian/lib$name.a" "$folder/lib"
    libraries+=" -l$name"
  done
  printf '%s\n' "Name: $1" "Description: static" "Version: 0" "Libs: -L$folder/lib$libraries" \
    "Cflags: ${4:-}" > "$folder/lib/pkgconfig/$1.pc"
  cp "/usr/share/doc/$2/copyright" "$folder/licenses/$2"
}
rm -f "$folder"/lib/pkgconfig/*
library libzstd libzstd-dev zstd
library libxxhash libxxhash-dev xxhash
library libcrypto libssl-dev crypto
library libpcre2-8 libpcre2-dev pcre2-8
library libutf8proc libutf8proc-dev utf8proc
library zlib zlib1g-dev z
library libzip libzip-dev "zip z"
library fmt libfmt-dev fmt
library sqlite3 libsqlite3-dev sqlite3
library hiredis libhiredis-dev hiredis
library libcurl libcurl4-openssl-dev "curl ssl crypto z"
library expat libexpat1-dev expat
library libedit libedit-dev "edit tinfo bsd md" -I/usr/include/editline
for package in libtbb-dev libflatbuffers-dev nlohmann-json3-dev libcli11-dev libbsd-dev \
  libmd-dev libncurses-dev libstdc++-12-dev libc6-dev; do
  cp "/usr/share/doc/$package/copyright" "$folder/licenses/$package"
done
touch "$folder/complete"
