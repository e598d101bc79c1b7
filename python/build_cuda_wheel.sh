#!/usr/bin/env bash
# Builds the wheel tqcache-cuda, which holds the kernels for NVIDIA GPUs: python/dist/tqcache_cuda-*.
#
# usage: [NVCC=nvcc] [GPUS="80 86 90 100 120"] [JOBS=N] python/build_cuda_wheel.sh [--library]
#   GPUS       compute capabilities with machine code of their own. Code for 8.6 also runs on 8.9.
#              What is newer than all of them compiles the PTX of 9.0 for itself
#   --library  stop when build/cuda-wheel/libtqcache_cuda.so is there
#
# Needs nvcc (12.8 or later for 100 and 120), g++, and `python3 -m wheel` for the wheel; of tqcache's
# own libraries none, since the kernels use only its modules codec and base.
set -euo pipefail
cd "$(dirname "$0")/.."

is_library=false
case ${1:-} in
  "") ;;
  --library) is_library=true ;;
  *) echo "python/build_cuda_wheel.sh: unknown argument: $1" >&2; exit 2 ;;
esac
nvcc=${NVCC:-$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc || true)}
[ -n "$nvcc" ] || { echo "python/build_cuda_wheel.sh: no nvcc: name it in NVCC" >&2; exit 1; }
toolkit=$(dirname "$(dirname "$(realpath "$nvcc")")")
folder=$PWD/build/cuda-wheel
mkdir -p "$folder"

gpus=()
for gpu in ${GPUS:-80 86 90 100 120}; do
  gpus+=("--generate-code=arch=compute_$gpu,code=sm_$gpu")
done
gpus+=(--generate-code=arch=compute_90,code=compute_90)
common=(-std=c++20 -O3 -DNDEBUG -Icuda -Ilib -Ilib/include)
hardening=(-fstack-protector-strong -fstack-clash-protection -fcf-protection=full)
# compile SOURCE: an object file, unless it is newer than all sources.
compile() {
  local object
  object=$folder/$(echo "${1#lib/tqcache/}" | tr / -).o
  if [ -e "$object" ] && [ -z "$(find lib -newer "$object" -print -quit)" ]; then return; fi
  case $1 in
    *.cu)
      "$nvcc" "${common[@]}" "${gpus[@]}" --threads 0 -Xcompiler=-fPIC,-O2 \
        "${hardening[@]/#/-Xcompiler=}" -c "$1" -o "$object.part" ;;
    *)
      g++ "${common[@]}" "${hardening[@]}" -fPIC -ffp-contract=off -ffunction-sections \
        -c "$1" -o "$object.part" ;;
  esac
  mv "$object.part" "$object"
}
export -f compile
export nvcc folder
# Arrays are not exported.
export common_text="${common[*]}" gpus_text="${gpus[*]}" hardening_text="${hardening[*]}"
{
  ls -S cuda/tqcache/cuda/*.cu
  ls cuda/tqcache/cuda/c_interface.cpp lib/tqcache/base/{dtype,processor}.cpp \
    lib/tqcache/codec/*.cpp lib/tqcache/codec/*/*.cpp
} | xargs -P "${JOBS:-$(nproc)}" -I{} bash -euo pipefail -c '
  read -ra common <<< "$common_text"; read -ra gpus <<< "$gpus_text"
  read -ra hardening <<< "$hardening_text"; compile {}'
g++ -shared -static-libstdc++ -static-libgcc -Wl,--gc-sections -Wl,--as-needed -Wl,-z,relro,-z,now \
  -Wl,-z,noexecstack -Wl,--version-script=cuda/tqcache/cuda/exports.map -Wl,-soname,libtqcache_cuda.so \
  -Wl,--no-undefined ${LDFLAGS:-} -o "$folder/libtqcache_cuda.so" "$folder"/*.o \
  "$(find -L "$toolkit" -name libcudart_static.a -print -quit)" -lrt -lpthread -ldl
strip "$folder/libtqcache_cuda.so"
ls -l "$folder/libtqcache_cuda.so"
for name in $(grep -o '^[a-z].*tqcache_cuda_[a-z_]*(' cuda/tqcache/cuda/tqcache_cuda.h |
              grep -o 'tqcache_cuda_[a-z_]*(' | tr -d '('); do
  nm -D --defined-only "$folder/libtqcache_cuda.so" | grep " T $name@" > /dev/null ||
    { echo "python/build_cuda_wheel.sh: $name is not in the library" >&2; exit 1; }
done
! $is_library || exit 0

version=$(sed -n 's/^version = "\(.*\)"/\1/p' python/pyproject.toml)
platform=$(python3 -c 'import platform as p; print("manylinux_%s_%s_%s" % (*p.libc_ver()[1].split(".")[:2], p.machine()))')
raw=$folder/raw
rm -rf "$raw"
mkdir -p "$raw/tqcache_cuda" "$raw/tqcache_cuda-$version.dist-info"
cp python/cuda/__init__.py "$folder/libtqcache_cuda.so" LICENSE NOTICE "$raw/tqcache_cuda"
cat > "$raw/tqcache_cuda-$version.dist-info/METADATA" << METADATA
Metadata-Version: 2.1
Name: tqcache-cuda
Version: $version
Summary: Kernels of tqcache for NVIDIA GPUs
License: Apache-2.0
Requires-Python: >=3.10
Requires-Dist: tqcache (==$version)
METADATA
cat > "$raw/tqcache_cuda-$version.dist-info/WHEEL" << WHEEL
Wheel-Version: 1.0
Generator: python/build_cuda_wheel.sh
Root-Is-Purelib: false
Tag: py3-none-$platform
WHEEL
mkdir -p python/dist
python3 -m wheel pack "$raw" --dest-dir python/dist
