#!/usr/bin/env bash
# Compiles the libraries that tqcache is linked with, as static ones, from Debian's source packages.
# So a version and its security fixes are those of the Debian that this runs on, and no list of
# versions has to be kept. tools/release.sh and python/build_wheel.sh call it.
#
# usage: tools/release/libraries.sh TARGET FOLDER [LIBRARY...]
#   TARGET   a target of tools/release/zig.sh
#   LIBRARY  curl expat fmtlib hiredis libzip libzstd onetbb openssl pcre2 sqlite3 utf8proc xxhash
#            zlib, and the headers cli11 and nlohmann-json3; default: all of these, and for Windows none of
#            the network. googletest, for tests
#
# FOLDER gets include, lib, licenses, toolchain.cmake, and done, where each library has a file with its
# version. What is there already is kept: to get newer versions, remove FOLDER and build/sources, where
# the sources lie.
# Needs dpkg-dev, perl, tcl, and the places that apt takes the system's packages from.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -ge 2 ] || { sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2; exit 2; }
target=$1
mkdir -p "$2"
folder=$(realpath "$2")
shift 2
all=(zlib libzstd xxhash openssl pcre2 utf8proc libzip fmtlib sqlite3 hiredis expat curl onetbb
  nlohmann-json3 cli11)
[[ $target != windows-* ]] || all=(zlib libzstd xxhash openssl pcre2 utf8proc libzip fmtlib sqlite3
  onetbb nlohmann-json3 cli11)
[ $# -gt 0 ] || set -- "${all[@]}"

jobs=${JOBS:-$(nproc)}
sources=$PWD/build/sources
mkdir -p "$folder"/{include,lib/pkgconfig,licenses,done,build} "$sources"/{parts,lists/partial}

# What is compiled with: cc, cxx, and CMake's options. Sizes count: each function has a section of
# its own, which the linker leaves out if nothing calls it.
flags="-O2 -fPIC -ffunction-sections -fdata-sections -DNDEBUG"
launcher=()
if command -v ccache > /dev/null; then launcher=(ccache); fi
tools/release/zig.sh "$target" "$folder"
cc=("${launcher[@]}" "$folder/bin/cc") ar=$folder/bin/ar ranlib=$folder/bin/ranlib
export CCACHE_COMPILERTYPE=clang
cmake_options=(-DCMAKE_TOOLCHAIN_FILE="$folder/toolchain.cmake" -DCMAKE_PREFIX_PATH="$folder"
  ${launcher:+-DCMAKE_C_COMPILER_LAUNCHER=ccache}
  ${launcher:+-DCMAKE_CXX_COMPILER_LAUNCHER=ccache})

# Paths of this machine stay out of the files.
flags+=" -ffile-prefix-map=$sources=. -ffile-prefix-map=$folder=."

apt_options=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$sources/parts"
  -o "Dir::State::lists=$sources/lists" -o APT::Sandbox::User=root)

# fetch PACKAGE: unpacks it as $sources/PACKAGE-VERSION, with Debian's patches. A mirror may lack the
# files of a security update; then the release's own version is taken, and said so.
fetch() {
  ! ls -d "$sources/$1"-[0-9]*/ > /dev/null 2>&1 || return 0
  if [ ! -e "$sources/updated" ]; then
    local list
    for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list \
      /etc/apt/sources.list.d/*.sources; do
      [ ! -e "$list" ] || ! grep -q debian "$list" ||
        sed 's/^Types:.*/Types: deb-src/; s/^deb /deb-src /' "$list" \
          > "$sources/parts/$(basename "$list")"
    done
    apt-get "${apt_options[@]}" update
    touch "$sources/updated"
  fi
  local release
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
  (cd "$sources" && apt-get "${apt_options[@]}" source "$1" > "$1.log" 2>&1) && return
  echo "tools/release/libraries.sh: the newest $1 cannot be fetched; taking $release's" >&2
  (cd "$sources" && apt-get "${apt_options[@]}" source "$1/$release" > "$1.log" 2>&1) ||
    { tail -5 "$sources/$1.log" >&2; return 1; }
}

# pkg MODULE "LINK OPTIONS" [COMPILER OPTION]: the file by which CMake finds a library.
pkg() {
  printf '%s\n' "Name: $1" "Description: static" "Version: 0" "Libs: -L$folder/lib $2" \
    "Cflags: -I$folder/include ${3:-}" > "$folder/lib/pkgconfig/$1.pc"
}

# with_cmake PACKAGE FOLDER OPTION...
with_cmake() {
  local name=$1 source=$2
  shift 2
  CFLAGS=$flags CXXFLAGS=$flags cmake -S "$source" -B "$folder/build/$name" -G Ninja \
    -DCMAKE_BUILD_TYPE=None -DCMAKE_INSTALL_PREFIX="$folder" -DCMAKE_INSTALL_LIBDIR=lib \
    -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON "${cmake_options[@]}" "$@"
  cmake --build "$folder/build/$name" --parallel "$jobs" --target install
}

# with_cc LIBRARY FILE...: few files without a build of their own. CPPFLAGS may be set.
with_cc() {
  local name=$1 file
  shift
  mkdir -p "$folder/build/$name"
  for file in "$@"; do
    "${cc[@]}" $flags ${CPPFLAGS:-} -c "$file" -o "$folder/build/$name/$(basename "$file" .c).o"
  done
  rm -f "$folder/lib/lib$name.a"
  "$ar" rcs "$folder/lib/lib$name.a" "$folder/build/$name"/*.o
}

build() {
  local source=$2
  # What no loop over a cache runs through is compiled for size.
  case $1 in
    curl | expat | hiredis | libzip | openssl | sqlite3 | utf8proc) flags=${flags/-O2/-Os} ;;
  esac
  # curl, expat and libzip call the program back, where memory may run out: exceptions unwind them.
  # None goes through the other libraries of C. Windows unwinds every function by these tables.
  case $target:$1 in
    linux-*:curl | linux-*:expat | linux-*:libzip) ;;
    linux-*:fmtlib | linux-*:onetbb | linux-*:googletest | linux-*:cli11 | linux-*:nlohmann-json3) ;;
    linux-*) flags+=" -fno-unwind-tables -fno-asynchronous-unwind-tables" ;;
  esac
  case $1 in
    zlib)
      # zlib of 2022 takes macOS for a system without fdopen, unless that is a macro.
      CPPFLAGS="-D_LARGEFILE64_SOURCE -DHAVE_UNISTD_H -Dfdopen=fdopen" with_cc z "$source"/{adler32,crc32,deflate}.c \
        "$source"/{infback,inffast,inflate,inftrees,trees,zutil,compress,uncompr}.c \
        "$source"/gz{close,lib,read,write}.c
      cp "$source"/{zlib,zconf}.h "$folder/include"
      pkg zlib -lz
      ;;
    libzstd)
      # Tables of dictionaries that nobody uses, and readers of formats before 0.8, are left out.
      with_cmake zstd "$source/build/cmake" -DZSTD_BUILD_{PROGRAMS,SHARED,TESTS}=OFF \
        -DZSTD_LEGACY_SUPPORT=OFF -DZSTD_MULTITHREAD_SUPPORT=ON
      pkg libzstd -lzstd
      ;;
    xxhash)
      with_cc xxhash "$source/xxhash.c"
      cp "$source"/xxh{ash,3}.h "$folder/include"
      pkg libxxhash -lxxhash
      ;;
    openssl)
      local system=linux-x86_64
      case $target in
        linux-aarch64*) system=linux-aarch64 ;;
        macos-arm64) system=darwin64-arm64-cc ;;
        windows-x86_64) system=mingw64 ;;
      esac
      # A client of TLS 1.2 and 1.3, SHA-2, HMAC and AES are what is used.
      rm -rf "$folder/build/openssl" && mkdir -p "$folder/build/openssl"
      (cd "$folder/build/openssl" &&
        CC="${cc[*]}" AR=$ar RANLIB=$ranlib "$source/Configure" "$system" --prefix=/usr \
          --openssldir=/etc/ssl --libdir=lib no-shared no-tests no-engine no-dso no-module no-async \
          no-legacy no-cmp no-cms no-ts no-srp no-idea no-md4 no-mdc2 no-rc2 no-rc4 no-seed \
          no-camellia no-aria no-bf no-cast no-dtls no-ssl3 no-comp no-ocb no-whirlpool no-sm2 no-sm3 \
          no-sm4 no-siphash no-gost no-ct no-nextprotoneg no-rfc3779 no-psk no-ui-console no-ocsp \
          no-stdio no-autoload-config no-des no-rmd160 no-srtp no-scrypt no-siv no-tls1 no-tls1_1 \
          $flags &&
        make -j"$jobs" build_generated &&
        # It would hold the time, and where the compiler lies.
        SOURCE_DATE_EPOCH=$(dpkg-parsechangelog -l "$source/debian/changelog" -S Timestamp) \
          perl "$source/util/mkbuildinf.pl" "zig cc" "$system" > crypto/buildinf.h &&
        make -j"$jobs" libcrypto.a libssl.a &&
        cp libcrypto.a libssl.a "$folder/lib" && cp -r include/openssl "$folder/include")
      cp -r "$source/include/openssl" "$folder/include"
      local system_libraries=
      [[ $target != windows-* ]] || system_libraries="-lws2_32 -lcrypt32"
      pkg libcrypto "-lcrypto $system_libraries"
      pkg libssl "-lssl -lcrypto"
      ;;
    pcre2)
      with_cmake pcre2 "$source" -DPCRE2_BUILD_{TESTS,PCRE2GREP}=OFF -DPCRE2_SUPPORT_JIT=ON \
        -DPCRE2_STATIC_PIC=ON
      pkg libpcre2-8 -lpcre2-8 -DPCRE2_STATIC
      ;;
    utf8proc)
      CPPFLAGS=-DUTF8PROC_STATIC with_cc utf8proc "$source/utf8proc.c"
      cp "$source/utf8proc.h" "$folder/include"
      pkg libutf8proc -lutf8proc -DUTF8PROC_STATIC
      ;;
    libzip)
      # Calls of Windows are taken for functions with other pointers.
      [[ $target != windows-* ]] || flags+=" -Wno-incompatible-function-pointer-types"
      with_cmake libzip "$source" -DENABLE_{COMMONCRYPTO,GNUTLS,MBEDTLS,OPENSSL,BZIP2,LZMA,ZSTD}=OFF \
        -DBUILD_{TOOLS,REGRESS,EXAMPLES,DOC}=OFF
      pkg libzip "-lzip -lz"
      ;;
    fmtlib)
      with_cmake fmtlib "$source" -DFMT_{TEST,DOC}=OFF
      pkg fmt -lfmt
      ;;
    sqlite3)
      # The program makes one file of its sources first.
      mkdir -p "$folder/build/sqlite"
      (cd "$folder/build/sqlite" && make -f "$source/Makefile.linux-gcc" TOP="$source" sqlite3.c)
      CPPFLAGS="-DSQLITE_THREADSAFE=1 -DSQLITE_OMIT_LOAD_EXTENSION -DSQLITE_DQS=0" \
        with_cc sqlite3 "$folder/build/sqlite/sqlite3.c"
      cp "$folder/build/sqlite/sqlite3.h" "$folder/include"
      pkg sqlite3 -lsqlite3
      ;;
    hiredis)
      # Debian's fix of CVE-2021-32765 makes a count size_t in one place of two.
      mkdir -p "$folder/include/hiredis"
      cp "$source"/*.h "$folder/include/hiredis"
      sed -i '/(\*createArray)/s/, int)/, size_t)/' "$folder/include/hiredis/read.h"
      local copy=$folder/build/hiredis.source
      mkdir -p "$copy"
      cp "$source"/*.c "$folder/include/hiredis"/*.h "$copy"
      with_cc hiredis "$copy"/{alloc,async,hiredis,net,read,sds}.c
      pkg hiredis -lhiredis
      ;;
    expat)
      # Debian's fixes want "XML_DTD 1", where CMake defines it without a value.
      local random=HAVE_GETRANDOM
      [[ $target != macos-* ]] || random=HAVE_ARC4RANDOM_BUF
      mkdir -p "$folder/build/expat.config"
      printf '#define %s\n' "BYTEORDER 1234" "XML_CONTEXT_BYTES 1024" "XML_DTD 1" "XML_GE 1" \
        "XML_NS 1" "$random 1" > "$folder/build/expat.config/expat_config.h"
      CPPFLAGS=-I$folder/build/expat.config with_cc expat \
        "$source"/expat/lib/xml{parse,role,tok}.c
      cp "$source"/expat/lib/expat{,_external}.h "$folder/include"
      pkg expat -lexpat
      ;;
    curl)
      # On macOS curl asks SystemConfiguration once, so that the system prepares names for networks
      # that have IPv6 alone (NAT64). zig has no frameworks, so this call is left out.
      local copy=$folder/build/curl.source
      rm -rf "$copy" && cp -r "$source" "$copy"
      sed -i 's/^# *define CURL_OSX_CALL_COPYPROXIES 1//' "$copy/lib/curl_setup.h"
      sed -i -E '/find_library\((SYSTEMCONFIGURATION|COREFOUNDATION)_FRAMEWORK/,/^ *endif\(\)/d
        /-framework (SystemConfiguration|CoreFoundation)/d' "$copy/CMakeLists.txt"
      # Certificates are those of OpenSSL's defaults, which SSL_CERT_FILE in the environment replaces:
      # distributions have them in different places.
      with_cmake curl "$copy" -DBUILD_CURL_EXE=OFF -DBUILD_TESTING=OFF -DHTTP_ONLY=ON \
        -DCURL_USE_LIBSSH2=OFF -DUSE_LIBIDN2=OFF -DUSE_NGHTTP2=OFF -DCURL_BROTLI=OFF -DCURL_ZSTD=OFF \
        -DCURL_USE_OPENSSL=ON -DCURL_DISABLE_{LDAP,NTLM}=ON -DPICKY_COMPILER=OFF -DENABLE_MANUAL=OFF \
        -DCURL_CA_BUNDLE=none -DCURL_CA_PATH=none -DCURL_CA_FALLBACK=ON
      pkg libcurl "-lcurl -lssl -lcrypto -lz"
      ;;
    onetbb)
      with_cmake onetbb "$source" -DTBB_TEST=OFF -DTBBMALLOC_BUILD=OFF -DTBB_STRICT=OFF \
        -DTBB_DISABLE_HWLOC_AUTOMATIC_SEARCH=ON
      ;;
    nlohmann-json3) with_cmake json "$source" -DJSON_BuildTests=OFF ;;
    googletest) with_cmake googletest "$source" ;;
    cli11) with_cmake cli11 "$source" -DCLI11_BUILD_{TESTS,EXAMPLES,DOCS}=OFF ;;
    *) echo "tools/release/libraries.sh: unknown library: $1" >&2; return 2 ;;
  esac
}

for library in "$@"; do
  [ ! -e "$folder/done/$library" ] || continue
  fetch "$library"
  source=$(ls -d "$sources/$library"-[0-9]*/)
  source=${source%/}
  echo "$target: ${source##*/}"
  # In a shell of its own, because in a condition `set -e` would not end it.
  status=0
  (set -e; build "$library" "$source") > "$folder/$library.log" 2>&1 & wait $! || status=$?
  if [ $status -ne 0 ]; then
    tail -30 "$folder/$library.log" >&2
    exit $status
  fi
  cp "$source/debian/copyright" "$folder/licenses/$library"
  dpkg-parsechangelog -l "$source/debian/changelog" -S Version > "$folder/done/$library"
done
# Header files of Debian's package, because they have to be of the same version as flatc.
if [ ! -e "$folder/done/flatbuffers" ]; then
  cp -r /usr/include/flatbuffers "$folder/include"
  cp /usr/share/doc/libflatbuffers-dev/copyright "$folder/licenses/flatbuffers"
  dpkg-query -W -f '${Version}\n' libflatbuffers-dev > "$folder/done/flatbuffers"
fi
