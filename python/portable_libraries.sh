#!/usr/bin/env bash
# Makes what a manylinux_2_28 wheel is linked with on Debian 12: the symbols of glibc 2.28, and static
# libraries. python/build_wheel.sh --portable calls it; python/README.md says how it works.
#
# usage: python/portable_libraries.sh FOLDER
#   FOLDER/glibc     what g++ -B takes instead of Debian's C library when it links
#   FOLDER/lib       static libraries: Debian's own, and those that Debian has as shared ones only,
#                    compiled from Debian's source packages
#   FOLDER/licenses  the copyright file of each
# What is there already is kept. Needs dpkg-dev, Debian's source packages, and PyPI for ziglang.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || { echo "usage: python/portable_libraries.sh FOLDER" >&2; exit 2; }
mkdir -p "$1"
folder=$(realpath "$1")
[ ! -e "$folder/done" ] || exit 0
mkdir -p "$folder"/{glibc,lib/pkgconfig,licenses,source,apt/parts,apt/lists/partial}

# zig comes with the list of all symbols of each glibc, and links with stub libraries made of it.
[ -x "$folder/zig/bin/python" ] || python3 -m venv "$folder/zig"
"$folder/zig/bin/pip" install --quiet --disable-pip-version-check ziglang
echo 'int main(void) { return 0; }' > "$folder/main.c"
ZIG_GLOBAL_CACHE_DIR=$folder/zig/cache ZIG_LOCAL_CACHE_DIR=$folder/zig/cache \
  "$folder/zig/bin/python" -m ziglang cc -v -target x86_64-linux-gnu.2.28 -fPIE -pie \
  "$folder/main.c" -o "$folder/main" > "$folder/zig.log" 2>&1
# zig prints paths below the current folder as relative ones.
grep -oE '[^ ]*/(Scrt1\.o|lib[a-z]+\.so\.[0-9]|libc_nonshared\.a)( |$)' "$folder/zig.log" \
  | sort -u | xargs cp -t "$folder/glibc"
cc -c -O2 -fPIC python/glibc_2_28.c -o "$folder/glibc/glibc_2_28.o"
ar rcs "$folder/glibc/libc_nonshared.a" "$folder/glibc/glibc_2_28.o"
g=$folder/glibc
echo "GROUP ( $g/libc.so.6 AS_NEEDED ( $g/libpthread.so.0 $g/libdl.so.2 $g/librt.so.1" \
  "$g/libresolv.so.2 $g/libld.so.2 ) $g/libc_nonshared.a )" > "$g/libc.so"
ln -sf libm.so.6 "$g/libm.so"

# Source packages come from where apt takes the system's packages from.
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
  [ ! -e "$list" ] || sed 's/^Types:.*/Types: deb-src/; s/^deb /deb-src /' "$list" \
    > "$folder/apt/parts/$(basename "$list" .list)$([[ $list == *.list ]] && echo .list)"
done
apt_options=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$folder/apt/parts"
  -o "Dir::State::lists=$folder/apt/lists" -o APT::Sandbox::User=root)
apt-get "${apt_options[@]}" update
(cd "$folder/source" && rm -rf ./*/ &&
  apt-get "${apt_options[@]}" source curl fmtlib libzip onetbb > "$folder/source.log" 2>&1)

launcher=()
if command -v ccache > /dev/null; then
  launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
# build SOURCE OPTION...: a library that has a CMakeLists.txt
build() {
  local name=$1
  shift
  cmake -S "$folder/source/$name"-*/ -B "$folder/build/$name" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_INSTALL_PREFIX="$folder" -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON "${launcher[@]}" "$@" > "$folder/$name.log" 2>&1 &&
    cmake --build "$folder/build/$name" --parallel "${JOBS:-$(nproc)}" --target install \
    >> "$folder/$name.log" 2>&1 || { tail -20 "$folder/$name.log" >&2; return 1; }
}
build fmtlib -DFMT_TEST=OFF -DFMT_DOC=OFF
build libzip -DENABLE_{GNUTLS,MBEDTLS,OPENSSL,BZIP2,LZMA,ZSTD}=OFF -DBUILD_{TOOLS,REGRESS,EXAMPLES,DOC}=OFF
build onetbb -DTBB_TEST=OFF -DTBBMALLOC_BUILD=OFF -DTBB_STRICT=OFF
# Certificates are those of OpenSSL's defaults, which SSL_CERT_FILE in the environment replaces:
# distributions have them in different places.
build curl -DBUILD_CURL_EXE=OFF -DBUILD_TESTING=OFF -DHTTP_ONLY=ON -DCURL_USE_LIBSSH2=OFF \
  -DUSE_LIBIDN2=OFF -DCURL_DISABLE_LDAP=ON -DCURL_CA_BUNDLE=none -DCURL_CA_PATH=none -DCURL_CA_FALLBACK=ON

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
touch "$folder/done"
