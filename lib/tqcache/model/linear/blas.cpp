#include "tqcache/model/linear/blas.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <sys/mman.h>
#include <sys/resource.h>

#include <cassert>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#if defined(TQCACHE_BLAS_LINKED)
#include <cblas.h>
#elif defined(TQCACHE_BLAS_FILES)
#include <dlfcn.h>

#include <array>
#endif

#include "tqcache/base/processor.h"
#include "tqcache/model/linear/plain_products.h"

namespace tqcache::model {
namespace {

// The CBLAS interface with 32-bit integers.
constexpr int kRowMajor = 101;
constexpr int kNoTrans = 111;
constexpr int kTrans = 112;
using Sgemm = void(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                   const float* a, int lda, const float* b, int ldb, float beta, float* y, int ldy);
using SetThreads = void(int n_threads);
using GetParallel = int();
using GetCore = char*();

struct Blas {
  Sgemm* sgemm = nullptr;
  SetThreads* set_threads = nullptr;
  GetCore* get_core = nullptr;
  bool takes_turns = false;  // only one product at a time
  std::string why_none;      // why no BLAS is loaded, if there is none
  std::string error;         // why there can be no products
};

// An OpenBLAS built without threads assigns the buffers of its products without a lock, unless it
// was built with USE_LOCKING, which Debian's is not. Two concurrent products can get the same
// buffer, and both results are wrong.
[[maybe_unused]] bool needs_turns(GetParallel* get_parallel) { return get_parallel() == 0; }

#if defined(TQCACHE_BLAS_LINKED)

Blas open_blas() {
  const auto sgemm = [](int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                        const float* a, int lda, const float* b, int ldb, float beta, float* y,
                        int ldy) {
    cblas_sgemm(static_cast<CBLAS_ORDER>(order), static_cast<CBLAS_TRANSPOSE>(trans_a),
                static_cast<CBLAS_TRANSPOSE>(trans_b), m, n, k, alpha, a, lda, b, ldb, beta, y,
                ldy);
  };
  return {sgemm,
          [](int n_threads) { openblas_set_num_threads(n_threads); },
          [] { return openblas_get_corename(); },
          needs_turns([] { return openblas_get_parallel(); }),
          {},
          {}};
}

#elif !defined(TQCACHE_BLAS_FILES)

Blas open_blas() { return {.why_none = "built without it", .error = {}}; }

#else

constexpr std::array kFiles = {TQCACHE_BLAS_FILES};

template <class Function>
Function* find_function(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// The first file with an OpenBLAS whose products can run concurrently; else the first OpenBLAS.
Blas open_blas() {
  Blas slow;
  std::string error;
  for (const char* file : kFiles) {
    void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      error = dlerror();
      continue;
    }
    auto* const sgemm = find_function<Sgemm>(library, "cblas_sgemm");
    auto* const set_threads = find_function<SetThreads>(library, "openblas_set_num_threads");
    auto* const get_parallel = find_function<GetParallel>(library, "openblas_get_parallel");
    auto* const get_core = find_function<GetCore>(library, "openblas_get_corename");
    if (sgemm == nullptr || set_threads == nullptr || get_parallel == nullptr ||
        get_core == nullptr) {
      error = std::string(file) + ": not an OpenBLAS";
      dlclose(library);
      continue;
    }
    const Blas found = {sgemm, set_threads, get_core, needs_turns(get_parallel), {}, {}};
    if (!found.takes_turns) return found;
    if (slow.sgemm == nullptr) slow = found;
  }
  if (slow.sgemm != nullptr) return slow;
  return {.why_none = "it cannot be loaded (" + error +
                      "); install it: apt-get install libopenblas0-pthread",
          .error = {}};
}

#endif

// OpenBLAS needs a buffer of 128 MiB of address space for every product that runs, and each of its
// own threads takes one when the library is loaded. If a buffer cannot be mapped, it tries again
// forever. So under a limit of the address space (ulimit -v) it gets no threads, and one buffer,
// for products one at a time; and it is not loaded if there is no room for that.
constexpr std::size_t kRoomForBlas = std::size_t{224} << 20;  // with the library itself

bool address_space_is_limited() {
  rlimit limit = {};
  return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

bool has_room_for_blas() {
  void* const room =
      mmap(nullptr, kRoomForBlas, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return room != MAP_FAILED && munmap(room, kRoomForBlas) == 0;
}

// A product that is large enough to take the buffer, which OpenBLAS keeps.
void take_buffer(const Blas& blas) {
  constexpr int n = 64;
  const std::vector<float> a(n * n, 0.0f);
  std::vector<float> y(n * n);
  blas.sgemm(kRowMajor, kNoTrans, kTrans, n, n, n, 1.0f, a.data(), n, a.data(), n, 0.0f, y.data(),
             n);
}

Blas open_blas_in_limits() {
  const bool is_limited = address_space_is_limited();
  if (is_limited && !has_room_for_blas()) {
    return {.why_none = {},
            .error = "not enough memory for OpenBLAS: the address space is limited (ulimit -v)"};
  }
  if (is_limited) setenv("OPENBLAS_NUM_THREADS", "1", 1);
  const char* const core = blas_core_for(instruction_sets());
  if (*core != 0) setenv("OPENBLAS_CORETYPE", core, /*overwrite=*/0);
  Blas made = open_blas();
  if (made.sgemm == nullptr) return made;
  made.set_threads(1);
  if (is_limited) {
    made.takes_turns = true;
    take_buffer(made);
  }
  return made;
}

const Blas& blas() {
  static const Blas opened = open_blas_in_limits();
  return opened;
}

// Locks the product mutex if products must run one at a time.
std::unique_lock<std::mutex> wait_for_turn() {
  static std::mutex turn;
  return blas().takes_turns ? std::unique_lock(turn) : std::unique_lock<std::mutex>();
}

int narrow(std::int64_t n) { return static_cast<int>(n); }

}  // namespace

InstructionSets instruction_sets() {
  InstructionSets sets;
#if defined(__x86_64__)
#ifdef TQCACHE_ASKS_PROCESSOR
  const Processor processor = find_processor();
  sets.avx2 = processor.avx2;
  sets.avx512 = processor.avx512;
#else
  __builtin_cpu_init();
  sets.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  sets.avx512 = sets.avx2 && __builtin_cpu_supports("avx512f") &&
                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
#endif
  // __builtin_cpu_supports of clang 14 does not know AMX. Intel's manual, CPUID, leaf 7: EDX.
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  sets.amx_bf16 = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kBf16) != 0 &&
                  (edx & kTile) != 0;
#endif
  return sets;
}

const char* blas_core_for(const InstructionSets& sets) {
  if (sets.avx512) return "SkylakeX";
  return sets.avx2 ? "Haswell" : "";
}

std::string blas_core() {
  if (blas().get_core == nullptr) return "";
  const char* const name = blas().get_core();
  return name == nullptr ? "" : name;
}

std::string why_no_blas() { return blas().why_none; }

Result<void> load_blas() {
  if (!blas().error.empty()) return Error{ErrorCode::kIo, blas().error};
  return {};
}

void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, float factor, ConstRows a,
                         ConstRows b, Rows y) {
  if (blas().sgemm == nullptr) {
    return plain_multiply_transposed(codec::best_kernels().isa, m, n, k, factor, a, b, y);
  }
  const auto turn = wait_for_turn();
  blas().sgemm(kRowMajor, kNoTrans, kTrans, narrow(m), narrow(n), narrow(k), factor, a.data,
               narrow(a.stride), b.data, narrow(b.stride), 0.0f, y.data, narrow(y.stride));
}

void multiply_add(std::int64_t m, std::int64_t n, std::int64_t k, ConstRows a, ConstRows b,
                  Rows y) {
  if (blas().sgemm == nullptr) {
    return plain_multiply_add(codec::best_kernels().isa, m, n, k, a, b, y);
  }
  const auto turn = wait_for_turn();
  blas().sgemm(kRowMajor, kNoTrans, kNoTrans, narrow(m), narrow(n), narrow(k), 1.0f, a.data,
               narrow(a.stride), b.data, narrow(b.stride), 1.0f, y.data, narrow(y.stride));
}

}  // namespace tqcache::model
