#!/usr/bin/env bash
# Runs the benchmarks behind the numbers of the documents and writes their medians to a file, with
# the machine and the commands. Takes about six minutes on an otherwise idle machine.
#
# usage: bench/record.sh FILE        for example bench/results/2026-11-21.txt
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || { sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2; exit 2; }
out=$1

cmake --preset bench > /dev/null
cmake --build --preset bench -- --quiet

common=(--benchmark_repetitions=5 --benchmark_enable_random_interleaving=true
        --benchmark_report_aggregates_only=true --benchmark_min_time=0.1)

# record PROGRAM FILTER: the command, and a line for each median.
record() {
  printf '\n%s\n' "$1 --benchmark_filter='$2' ${common[*]}"
  "build/bench/bench/$1" --benchmark_filter="$2" "${common[@]}" 2> /dev/null |
    sed -n -e '/^Benchmark /p' -e 's/_median//p'
}

{
  echo "date      $(date -u +%Y-%m-%d)"
  echo "commit    $(git rev-parse --short HEAD)"
  echo "CPU       $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), $(nproc) processors"
  echo "kernels   $(build/bench/tools/tqcache --version | sed -n 's/^kernels *//p')"
  echo "compiler  $(c++ --version | head -1), preset bench"
  record bench_codec '^(encode|decode)/(turbo[2348]|turbo4-none|turbo4-v|turbo2.5|prod4|affine4)/avx'
  record bench_kernels '^(score|accumulate)4?/.*/avx.*/65536$'
  record bench_attention '/avx.*/32768$'
  record bench_generate '/(0|4096|32768)/'
  record bench_open '.'
  record bench_planes '.'
  record bench_trellis '/d128/avx|eigen/128'
  record bench_archive '/0.24$|choose|memcpy'
  record bench_interop '.'
} > "$out.part"
mv "$out.part" "$out"
