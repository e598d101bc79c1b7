#!/usr/bin/env bash
# Builds tqcache and runs its tests, installing first what is missing. The last lines are ctest's
# own summary and why tests were skipped.
#
# usage: tools/check.sh [--clang] [--tidy] [--neon] [--cuda] [--asan | --replay] [--threads] [--changed] [--interop] [--chromium] [--servers] [--wheel] [--plugins] [--long] [--jobs N]
#        tools/check.sh --tsan | --python-asan [--jobs N]
#        tools/check.sh --fuzz [--fuzz-seconds N] [--fuzz-runs N] [--fuzz-target NAME]... [--jobs N]
#        tools/check.sh --coverage [--jobs N]
#   --clang   first compile everything with clang 14 as well, warnings as errors
#   --tidy    first run clang-tidy 14 over what the last twenty commits changed (tools/tidy.sh)
#   --neon    then compile the codec for 64-bit ARM, and run its tests under qemu
#   --cuda    with the rest compile the kernels for NVIDIA GPUs, if nvcc is installed, and run those of
#             their tests that need no GPU (tools/check_cuda.sh runs the others)
#   --asan    then run the tests of what reads untrusted bytes, and the replay of the fuzz corpora, under
#             AddressSanitizer and UndefinedBehaviorSanitizer of clang as well
#   --replay  of these, only the replay of the fuzz corpora and the tests of foreign containers,
#             which is quicker; without UBSan in vector kernels
#   --threads then run the tests of threads and locks under ThreadSanitizer, a small part of --tsan
#   --changed of --neon, --cuda, --replay and --threads leave out those that concern nothing that the
#             last twenty commits changed
#   --interop with the tests run those with real mlx-lm, transformers and llama.cpp as well, which
#             are installed in build/peers meanwhile (docs/reference/interop.md); those of what
#             cannot be had do not run. With --wheel, whose package some of them use
#   --servers with the tests run those of the store with real engines: Redis, a Redis Cluster, Ceph's S3,
#             which are installed (73 MB) and then started and stopped on free ports
#   --wheel   then build the Python wheel and test it in an empty venv (python/build_wheel.sh)
#   --plugins with --interop: then fetch LMCache, vLLM and SGLang (600 MB), and run the
#             tests of the Python plug-ins with them (python/test_plugins.sh)
#   --chromium install a browser without a window (98 MB), so that the tests which look at reports run
#   --long    take all cases of the tests that otherwise take some (real models, two versions of mlx-lm,
#             kills and errors at every system call, every flipped bit); and before the other tests
#             convert, verify, store and fetch a cache of 32 GiB, made with holes, in at most 512 MiB of
#             memory (tests/long/large_files.py; 100 MB of disk), and one of 131,072 tokens of an 8B
#             model's widths, which is resumed too (tests/long/long_prompt.py; 4 GB of disk)
#   --jobs N  processes at a time (default: all processors)
# With CI=true in the environment warnings are errors in every step.
#
#   --fuzz           run every fuzz target (docs/develop/fuzzing.md), instead of the tests
#   --fuzz-seconds N each for N seconds (default: 60)
#   --fuzz-runs N    each until it has run N inputs, however long that takes
#   --fuzz-target N  this one alone; may be given several times
#   --tsan           run the tests of threads, stores, servers, sessions and the C interface under
#                    ThreadSanitizer, instead of all tests
#   --python-asan    run the tests of the Python package with an extension that is compiled for
#                    AddressSanitizer and UndefinedBehaviorSanitizer, instead (python/test_sanitized.sh)
#   --coverage       tell which branches of the file formats' readers and writers the tests take
#                    (docs/develop/coverage.md), instead of running all tests
set -euo pipefail
cd "$(dirname "$0")/.."

with_clang=false
with_tidy=false
with_neon=false
with_cuda=false
with_asan=false
with_replay=false
with_threads=false
only_changed=false
with_interop=false
with_chromium=false
with_servers=false
with_long=false
with_wheel=false
with_plugins=false
with_fuzz=false
with_coverage=false
with_tsan=false
with_python_asan=false
fuzz_limit=-max_total_time=60
fuzz_targets=()
jobs=$(nproc)

usage_error() {
  echo "tools/check.sh: $1" >&2
  sed -n '/^# usage: /,/^#   --/{s/^# \(usage: .*\)/\1/p;s/^#\( *tools.*\)/\1/p}' "$0" >&2
  exit 2
}

# want_number OPTION VALUE
want_number() {
  [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || usage_error "$1 wants a number"
}

while [ $# -gt 0 ]; do
  case $1 in
    --clang) with_clang=true ;;
    --tidy) with_tidy=true ;;
    --neon) with_neon=true ;;
    --cuda) with_cuda=true ;;
    --asan) with_asan=true ;;
    --replay) with_replay=true ;;
    --threads) with_threads=true ;;
    --changed) only_changed=true ;;
    --interop) with_interop=true with_wheel=true ;;
    --chromium) with_chromium=true ;;
    --servers) with_servers=true ;;
    --long) with_long=true ;;
    --wheel) with_wheel=true ;;
    --plugins) with_plugins=true with_interop=true with_wheel=true ;;
    --fuzz) with_fuzz=true ;;
    --coverage) with_coverage=true ;;
    --tsan) with_tsan=true ;;
    --python-asan) with_python_asan=true ;;
    --jobs) want_number "$@"; jobs=$2; shift ;;
    --fuzz-seconds) want_number "$@"; fuzz_limit=-max_total_time=$2; shift ;;
    --fuzz-runs) want_number "$@"; fuzz_limit=-runs=$2; shift ;;
    --fuzz-target)
      [ -f "tests/fuzz/fuzz_${2:-}.cpp" ] || usage_error "no such fuzz target: ${2:-}"
      fuzz_targets+=("$2")
      shift
      ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) usage_error "unknown argument: $1" ;;
  esac
  shift
done

# On a terminal ninja shows how far it is in one line; in a log that would be hundreds.
quiet=()
[ -t 1 ] || quiet=(--quiet)

step() { echo "== $*"; }

# configure_and_build PRESET WERROR [CMAKE OPTION]...: the preset's targets, or those of `targets`.
targets=()
configure_and_build() {
  local began=$SECONDS preset=$1 warnings=$2
  shift 2
  step "$preset: build"
  cmake --preset "$preset" -DTQCACHE_WERROR="$warnings" "$@" > /dev/null
  cmake --build --preset "$preset" --parallel "$jobs" "${targets[@]}" -- "${quiet[@]}"
  step "$preset: built in $((SECONDS - began)) s"
}

# run_tests PRESET [CTEST OPTION]...: a test that fails is not repeated. One that passes at a second try
# has a fault, or what it tests has one.
run_tests() {
  local preset=$1 status=0
  shift
  step "$preset: tests"
  # One more than there are processors, because some tests wait: for servers, for deadlines.
  ctest --preset "$preset" --parallel "$((jobs + 1))" "$@" || status=$?
  tests/skipped.py "build/$preset"
  return "$status"
}

# What reads untrusted bytes, under sanitizers: all of it (asan), or the part that every change has to
# pass (replay).
check_sanitized() {
  configure_and_build "$1" "$werror"
  run_tests "$1"
}

check_tidy() {
  local began=$SECONDS
  step "tidy: what the last commits changed"
  tools/tidy.sh --commits 20 --jobs "$jobs"
  step "tidy: $((SECONDS - began)) s"
}

# A project of its own (tests/neon), so that only the codec needs a compiler for ARM.
check_neon() {
  local began=$SECONDS
  step "neon: build"
  cmake -S tests/neon -B build/neon -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_TOOLCHAIN_FILE=aarch64.cmake > /dev/null
  cmake --build build/neon --parallel "$jobs" -- "${quiet[@]}"
  step "neon: built in $((SECONDS - began)) s; tests"
  ctest --test-dir build/neon --parallel "$jobs" --output-on-failure
}

# start_fuzzing TARGET: what it finds new stays in build/fuzz/corpus, and inputs that end it in
# build/fuzz/found.
start_fuzzing() {
  local target=$1 folder=build/fuzz dictionary=()
  [ ! -f "tests/fuzz/dictionary/$target.dict" ] ||
    dictionary=(-dict="tests/fuzz/dictionary/$target.dict")
  mkdir -p "$folder/corpus/$target" "$folder/found"
  "$folder/tests/fuzz/fuzz_$target" "$fuzz_limit" -max_len=4096 -timeout=10 -rss_limit_mb=512 \
    -entropic=0 -print_final_stats=1 -artifact_prefix="$folder/found/$target-" "${dictionary[@]}" \
    "$folder/corpus/$target" "tests/fuzz/corpus/$target" > "$folder/$target.log" 2>&1 &
  running+=("$target:$!")
}

# Waits for the target that was started first, and says in one line what came of it.
end_fuzzing() {
  local target=${running[0]%:*} pid=${running[0]#*:} status=0 log runs speed edges
  running=("${running[@]:1}")
  wait "$pid" || status=$?
  log=build/fuzz/$target.log
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  speed=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
  edges=$(grep -o 'cov: [0-9]* ft: [0-9]*' "$log" | tail -n 1)
  printf '%-18s %10s executions %7s/s  %s\n' "$target" "${runs:-?}" "${speed:-?}" "$edges"
  [ $status -ne 0 ] || return 0
  tail -n 40 "$log"
  echo "tools/check.sh: fuzz target $target failed, as $log tells" >&2
  failed=true
}

# As many targets at a time as there are jobs.
fuzz_all() {
  local target running=() failed=false
  for target in "$@"; do
    [ ${#running[@]} -lt "$jobs" ] || end_fuzzing
    start_fuzzing "$target"
  done
  while [ ${#running[@]} -gt 0 ]; do end_fuzzing; done
  if $failed; then return 1; fi
}

check_fuzz() {
  configure_and_build fuzz "$werror"
  if [ ${#fuzz_targets[@]} -eq 0 ]; then
    local source
    for source in tests/fuzz/fuzz_*.cpp; do
      source=${source##*/fuzz_}
      fuzz_targets+=("${source%.cpp}")
    done
  fi
  step "fuzz: ${#fuzz_targets[@]} targets, each with ${fuzz_limit#-}"
  fuzz_all "${fuzz_targets[@]}"
}

# check_tsan TEST...: what threads share. A test that forks goes on in a child of one thread.
check_tsan() {
  local tests=("$@") targets=()
  for test in "${tests[@]}"; do targets+=(--target "$test"); done
  configure_and_build tsan "$werror" -DTQCACHE_CUDA=OFF
  TSAN_OPTIONS=die_after_fork=0:second_deadlock_stack=1 run_tests tsan \
    --tests-regex "^($(IFS='|' && echo "${tests[*]}"))\\."
}

# The library and the C interface below it are compiled as the asan preset has them.
check_python_asan() {
  local targets=(--target tqcache --target tqcache_cli)
  configure_and_build asan "$werror"
  step "python: AddressSanitizer"
  python/test_sanitized.sh build/asan
}

# The tests of what is measured, and the replay of the fuzz corpora. docs/develop/coverage.md tells
# what counts.
check_coverage() {
  configure_and_build coverage OFF
  find build/coverage -name '*.gcda' -delete
  step "coverage: tests"
  ctest --preset coverage --parallel "$jobs" --quiet \
    --tests-regex '^(tensors|format|golden|migrations|calls)_test\.|^interop_test\.(Npy|Npz|Zip)|^cli_test\.(Migrate|Append|Compact)|^fuzz_replay\.'
  step "coverage: branches"
  gcovr --root . --object-directory build/coverage --exclude-directories '.*CompilerId.*' \
    --exclude-throw-branches --exclude-unreachable-branches \
    --exclude-lines-by-pattern '.*\bassert\(.*' \
    --filter 'lib/tqcache/format/' --filter 'lib/tqcache/tensors/' --filter 'migrations/' \
    --branches --json build/coverage/coverage.json --txt build/coverage/branches.txt build/coverage
  cat build/coverage/branches.txt
}

# The peers take minutes to download and nearly no processor, so that goes on beside the building.
start_peers() {
  peers=$PWD/build/peers
  mkdir -p "$peers"
  tests/interop/peers/setup.sh "$peers" > "$peers/setup.log" 2>&1 &
  peers_job=$!
}

await_peers() {
  step "interop: peers"
  local status=0
  wait "$peers_job" || status=$?
  cat "$peers/setup.log"
  return $status
}

# The plug-ins of the Python package, with the wheel that check_wheel has made.
check_plugins() {
  step "interop: plug-ins"
  python/test_plugins.sh build/peers python/dist/tqcache-*.whl
}

# is_concerned STEP PATHS: whether a step is to run: a commit of the last twenty changed one of the
# paths, a regular expression; or nobody can tell.
is_concerned() {
  local changed
  $only_changed || return 0
  changed=$(git log -n 20 --format= --name-only 2> /dev/null) || return 0
  if grep -qE "^($2)" <<< "$changed"; then return 0; fi
  echo "== $1: not run, because the last twenty commits changed nothing of it"
  return 1
}

common='cmake/|CMake|lib/|schema/|tests/(CMake|support/)'
! $with_neon || is_concerned neon "$common|tests/(neon|codec|model)/" || with_neon=false
! $with_cuda || is_concerned cuda "$common|cuda/|tests/cuda/" || with_cuda=false
! $with_replay || is_concerned replay "$common|server/|migrations/|tests/(fuzz|tensors)/" ||
  with_replay=false
! $with_threads || is_concerned threads "$common|tests/base/" || with_threads=false

groups=(test)
if $with_clang || $with_asan || $with_replay || $with_python_asan; then groups+=(clang); fi
! $with_python_asan || groups+=(wheel)
! $with_tidy || groups+=(tidy)
! $with_neon || groups+=(neon)
! $with_interop || groups+=(interop)
! $with_chromium || groups+=(chromium)
! $with_servers || groups+=(servers)
! $with_wheel || groups+=(wheel)
! $with_long || groups+=(long)
! $with_fuzz || groups+=(fuzz)
! $with_coverage || groups+=(coverage)
tools/install-deps.sh "${groups[@]}"

werror=OFF
[ "${CI:-}" != true ] || werror=ON

if $with_fuzz; then check_fuzz; fi
if $with_coverage; then check_coverage; fi
if $with_tsan; then
  check_tsan base_test store_test store_library_test serve_test generating_test \
    session_test capi_test serve_embedded_test
fi
if $with_python_asan; then check_python_asan; fi
if $with_fuzz || $with_coverage || $with_tsan || $with_python_asan; then exit 0; fi

# The wheel takes the library of the tests, so that nothing is compiled twice.
check_wheel() {
  local began=$SECONDS
  step "wheel: build"
  cmake --install build/dev --prefix "$PWD/build/wheel/dev" > /dev/null
  rm -rf python/dist
  TQCACHE_PREFIX=$PWD/build/wheel/dev python/build_wheel.sh
  # For the tests with real transformers.
  rm -rf build/dev/python-package
  python3 -m zipfile -e python/dist/tqcache-*.whl build/dev/python-package
  step "wheel: built in $((SECONDS - began)) s; tests"
  python/test_wheel.sh
}

# Empty when not asked for, so that a build folder forgets what an earlier run asked for.
peers=
if $with_interop; then start_peers; fi
if $with_clang; then configure_and_build clang ON; fi
if $with_tidy; then check_tidy; fi
if $with_neon; then check_neon; fi
if $with_asan; then check_sanitized asan; elif $with_replay; then check_sanitized replay; fi
if $with_threads; then check_tsan base_test; fi
if $with_interop; then await_peers; fi
servers=OFF
! $with_servers || servers=ON
cuda=(-DTQCACHE_CUDA=OFF)
if $with_cuda; then
  nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || nvcc=
  [ -z "$nvcc" ] || cuda=(-DTQCACHE_CUDA=ON -DTQCACHE_CUDA_QUICK=ON -DCMAKE_CUDA_COMPILER="$nvcc"
    "-DTQCACHE_CUDA_ARCHITECTURES=80-virtual;90-real")
fi
# The sanitizers' build has replayed the corpora.
fuzz=ON
if $with_asan || $with_replay; then fuzz=OFF; fi
configure_and_build dev "$werror" -DTQCACHE_PEERS="$peers" -DTQCACHE_STORE_SERVERS="$servers" \
  -DTQCACHE_BUILD_FUZZ="$fuzz" "${cuda[@]}"
if $with_long; then
  export TQCACHE_LONG_TESTS=1
  step "large files"
  python3 tests/long/large_files.py --tqcache build/dev/tools/tqcache --folder build
  step "a long prompt"
  /usr/bin/python3 tests/long/long_prompt.py --tqcache build/dev/tools/tqcache --folder build
fi
if $with_wheel; then check_wheel; fi
if $with_plugins; then check_plugins; fi
run_tests dev
