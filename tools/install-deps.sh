#!/usr/bin/env bash
# Installs the Debian packages that tqcache needs and that are not there yet. Does nothing, and
# needs no rights, when all are there.
#
# usage: tools/install-deps.sh [test] [clang] [tidy] [neon] [fuzz] [coverage] [interop] [chromium] [servers] [wheel] [release] [long]
#   test      also what the tests need
#   clang     also clang 14
#   tidy      also clang-tidy 14
#   neon      also a compiler for 64-bit ARM, an emulator, and googletest's sources
#   fuzz      also clang 14, libFuzzer, and what gives its reports names and lines
#   coverage  also gcovr
#   interop   also what a Python environment is made with
#   wheel     also what a Python extension is built with
#   release   also what programs for other systems are made with
#   servers   also the engines that the store is tested with: Redis, and Ceph's S3 (73 MB to download)
#   long      also what the long tests compute with
#   chromium  also a browser without a window, which looks at reports (98 MB to download)
set -euo pipefail

packages=(
  g++ cmake ninja-build pkg-config python3
  libzstd-dev libxxhash-dev libssl-dev libpcre2-dev libutf8proc-dev libtbb-dev
  libzip-dev zlib1g-dev libflatbuffers-dev flatbuffers-compiler nlohmann-json3-dev libcli11-dev libfmt-dev libedit-dev
  libsqlite3-dev libhiredis-dev libcurl4-openssl-dev libexpat1-dev
)
for group in "$@"; do
  case $group in
    # The second reader of the file format, in Python, checks more when it has xxhash and zstandard.
    # strace makes system calls fail. dpkg-dev makes the Debian package, doxygen the reference. lld links
    # the test programs in a third of the time.
    test)
      packages+=(
        libgtest-dev libgmock-dev python3 python3-xxhash python3-zstandard strace dpkg-dev file doxygen
        lld libcpp-httplib-dev
      )
      ;;
    clang) packages+=(clang-14) ;;
    tidy) packages+=(clang-14 clang-tidy-14) ;;
    neon) packages+=(g++-aarch64-linux-gnu qemu-user googletest) ;;
    fuzz) packages+=(clang-14 libclang-rt-14-dev llvm-14 libcpp-httplib-dev) ;;
    interop) packages+=(python3 python3-dev python3-venv) ;;
    wheel) packages+=(python3 python3-dev python3-venv dpkg-dev) ;;
    release) packages+=(python3 python3-venv dpkg-dev tcl perl xz-utils zip) ;;
    servers) packages+=(redis-server radosgw ceph-mon ceph-osd ceph-common curl python3) ;;
    long) packages+=(python3 python3-numpy) ;;
    coverage) packages+=(gcovr) ;;
    chromium) packages+=(python3 chromium-headless-shell fonts-dejavu-core) ;;
    *) echo "tools/install-deps.sh: unknown group: $group" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query > /dev/null; then
  # Another system: its packages have other names, and CMake says which libraries it misses.
  echo "tools/install-deps.sh: not Debian; going on with what is installed" >&2
  exit 0
fi

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2> /dev/null)" = installed ]
}
missing=()
for package in "${packages[@]}"; do
  is_installed "$package" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo > /dev/null; then
    echo "tools/install-deps.sh: to be run as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "installing: ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
