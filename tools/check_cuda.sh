#!/usr/bin/env bash
# Builds the kernels for NVIDIA GPUs and checks them on this machine's GPU (docs/reference/cuda.md).
#
# usage: tools/check_cuda.sh [--programs FOLDER] [--sanitize] [--bench] [--jobs N] [--gpus LIST]
#   --programs FOLDER  run the programs of this folder, and build nothing
#   --sanitize         then tests under compute-sanitizer: memcheck, racecheck, synccheck, initcheck
#   --bench            then run the benchmarks, also that of dense attention if python3 has torch
#   --jobs N           processes at a time (default: all processors)
#   --gpus LIST        what cuda_test and bench_cuda are compiled for (default 90)
# cuda_test_80 and cuda_test_86 have code for older GPUs, as PTX, which this GPU compiles when they
# run: so their layouts of shared memory are tested too. Without a GPU it only builds.
set -euo pipefail
cd "$(dirname "$0")/.."

programs='' sanitize=false bench=false jobs=$(nproc) gpus=90 older='80 86'
while (($# > 0)); do
  case $1 in
    --programs) programs=$2 && shift ;;
    --sanitize) sanitize=true ;;
    --bench) bench=true ;;
    --jobs) jobs=$2 && shift ;;
    --gpus) gpus=$2 && shift ;;
    *) sed -n '2,11s/^# \?//p' "$0" >&2 && exit 2 ;;
  esac
  shift
done

if [[ -z $programs ]]; then
  export PATH=$PATH:/usr/local/cuda/bin
  build=build/cuda
  cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DTQCACHE_CUDA=ON \
    -DTQCACHE_CUDA_ARCHITECTURES="$gpus" -DTQCACHE_CUDA_TEST_ARCHITECTURES="${older// /;}" \
    -DTQCACHE_WERROR="${CI:-false}" > /dev/null
  # shellcheck disable=SC2046,SC2086  # lists
  cmake --build $build -j "$jobs" --target cuda_test bench_cuda tqcache_cuda_shared \
    $(printf 'cuda_test_%s ' $older)
  programs=$build/programs
  mkdir -p $programs
  ln -sf ../tests/cuda/cuda_test ../bench/cuda/bench_cuda \
    ../cuda/tqcache/cuda/libtqcache_cuda.so $programs/
  for gpu in $older; do ln -sf ../tests/cuda/cuda_test_"$gpu" $programs/; done
fi

if ! nvidia-smi -L 2> /dev/null; then
  echo "no GPU: nothing was run"
  exit 0
fi
"$programs/cuda_test" --gtest_brief=1
for gpu in $older; do
  echo "code for compute capability $gpu"
  TQCACHE_CUDA_ARCHITECTURE=$gpu "$programs/cuda_test_$gpu" --gtest_brief=1
done
# The Python modules of this folder, with the compiled module of the package that is installed.
core=$(python3 -c 'import pytest, torch, transformers, tqcache._core as c; print(c.__file__)' \
  2> /dev/null || true)
if [[ -n $core ]]; then
  python=$(mktemp -d)
  trap 'rm -rf "$python"' EXIT
  cp -r python/src/tqcache "$python/"
  cp "$core" "$python/tqcache/"
  export PYTHONPATH=$python TQCACHE_CUDA_LIBRARY=$(realpath "$programs")/libtqcache_cuda.so
  python3 -m pytest -q -p no:cacheprovider python/tests/test_cuda.py
else
  echo "no pytest, torch, transformers or tqcache (python/build_wheel.sh): no tests in Python"
fi
if $sanitize; then
  # Those tests that take every kernel once; sanitizers take a hundred times as long.
  few='CudaAttention.Adds*:CudaAttention.TakesEvery*:CudaCodec.TakesAny*:CudaCodec.TakesEveryMode'
  few+=':CudaCInterface.*:CudaPlanes.*'
  for tool in memcheck racecheck synccheck initcheck; do
    echo "compute-sanitizer --tool $tool"
    compute-sanitizer --tool $tool --error-exitcode 1 "$programs/cuda_test" --gtest_brief=1 \
      --gtest_filter="$few" | grep -v '^  '
  done
  for gpu in $older; do
    for tool in memcheck racecheck; do
      echo "compute-sanitizer --tool $tool, code for compute capability $gpu"
      compute-sanitizer --tool $tool --error-exitcode 1 "$programs/cuda_test_$gpu" \
        --gtest_brief=1 --gtest_filter="$few" | grep -v '^  '
    done
  done
fi
if $bench; then
  if python3 -c 'import torch' 2> /dev/null; then
    python3 bench/cuda/tables.py "$programs"
  else
    "$programs/bench_cuda"
  fi
  if [[ -n $core ]]; then
    python3 bench/cuda/transformers_cache.py
  fi
fi
