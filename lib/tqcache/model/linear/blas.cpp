#include "tqcache/model/linear/blas.h"

#include <cassert>
#include <mutex>
#include <string>

#ifdef TQCACHE_BLAS_LINKED
#include <cblas.h>
#else
#include <dlfcn.h>

#include <array>
#endif

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

struct Blas {
  Sgemm* sgemm = nullptr;
  SetThreads* set_threads = nullptr;
  bool takes_turns = false;  // only one product at a time
  std::string error;         // why no BLAS is loaded
};

// An OpenBLAS built without threads assigns the buffers of its products without a lock, unless it
// was built with USE_LOCKING, which Debian's is not. Two concurrent products can get the same
// buffer, and both results are wrong.
bool needs_turns(GetParallel* get_parallel) { return get_parallel() == 0; }

#ifdef TQCACHE_BLAS_LINKED

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
          needs_turns([] { return openblas_get_parallel(); }),
          {}};
}

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
    if (sgemm == nullptr || set_threads == nullptr || get_parallel == nullptr) {
      error = std::string(file) + ": not an OpenBLAS";
      dlclose(library);
      continue;
    }
    const Blas found = {sgemm, set_threads, needs_turns(get_parallel), {}};
    if (!found.takes_turns) return found;
    if (slow.sgemm == nullptr) slow = found;
  }
  if (slow.sgemm != nullptr) return slow;
  return {nullptr, nullptr, false,
          "OpenBLAS cannot be loaded (" + error + "); install it: apt-get install " +
              "libopenblas0-pthread"};
}

#endif

const Blas& blas() {
  static const Blas opened = [] {
    Blas made = open_blas();
    if (made.set_threads != nullptr) made.set_threads(1);
    return made;
  }();
  return opened;
}

// Locks the product mutex if products must run one at a time.
std::unique_lock<std::mutex> wait_for_turn() {
  static std::mutex turn;
  assert(blas().sgemm != nullptr);
  return blas().takes_turns ? std::unique_lock(turn) : std::unique_lock<std::mutex>();
}

int narrow(std::int64_t n) { return static_cast<int>(n); }

}  // namespace

Result<void> load_blas() {
  if (blas().sgemm == nullptr) return Error{ErrorCode::kNotFound, blas().error};
  return {};
}

void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, float factor, ConstRows a,
                         ConstRows b, Rows y) {
  const auto turn = wait_for_turn();
  blas().sgemm(kRowMajor, kNoTrans, kTrans, narrow(m), narrow(n), narrow(k), factor, a.data,
               narrow(a.stride), b.data, narrow(b.stride), 0.0f, y.data, narrow(y.stride));
}

void multiply_add(std::int64_t m, std::int64_t n, std::int64_t k, ConstRows a, ConstRows b,
                  Rows y) {
  const auto turn = wait_for_turn();
  blas().sgemm(kRowMajor, kNoTrans, kNoTrans, narrow(m), narrow(n), narrow(k), 1.0f, a.data,
               narrow(a.stride), b.data, narrow(b.stride), 1.0f, y.data, narrow(y.stride));
}

}  // namespace tqcache::model
