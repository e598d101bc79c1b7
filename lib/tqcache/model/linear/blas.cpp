#include "tqcache/model/linear/blas.h"

#include <cassert>
#include <string>

#ifdef TQCACHE_BLAS_LINKED
#include <cblas.h>
#else
#include <dlfcn.h>

#include <array>
#endif

namespace tqcache::model {
namespace {

// The interface of CBLAS with integers of 32 bits.
constexpr int kRowMajor = 101;
constexpr int kNoTrans = 111;
constexpr int kTrans = 112;
using Sgemm = void(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                   const float* a, int lda, const float* b, int ldb, float beta, float* y, int ldy);
using SetThreads = void(int n_threads);

struct Blas {
  Sgemm* sgemm = nullptr;
  SetThreads* set_threads = nullptr;
  std::string error;  // why there is none
};

#ifdef TQCACHE_BLAS_LINKED

Blas open_blas() {
  const auto sgemm = [](int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                        const float* a, int lda, const float* b, int ldb, float beta, float* y,
                        int ldy) {
    cblas_sgemm(static_cast<CBLAS_ORDER>(order), static_cast<CBLAS_TRANSPOSE>(trans_a),
                static_cast<CBLAS_TRANSPOSE>(trans_b), m, n, k, alpha, a, lda, b, ldb, beta, y,
                ldy);
  };
  return {sgemm, [](int n_threads) { openblas_set_num_threads(n_threads); }, {}};
}

#else

// Debian's variant without threads, the file that CMake found, and what the linker's search finds.
constexpr std::array kLibraries = {TQCACHE_BLAS_SERIAL, TQCACHE_BLAS_LIBRARY, "libopenblas.so.0"};

template <class Function>
Function* find_function(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

Blas open_blas() {
  std::string error;
  for (const char* name : kLibraries) {
    void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      error = dlerror();
      continue;
    }
    const Blas blas = {find_function<Sgemm>(library, "cblas_sgemm"),
                       find_function<SetThreads>(library, "openblas_set_num_threads"),
                       {}};
    if (blas.sgemm != nullptr && blas.set_threads != nullptr) return blas;
    error = std::string(name) + ": not an OpenBLAS";
    dlclose(library);
  }
  return {nullptr, nullptr,
          "OpenBLAS cannot be loaded (" + error + "); install it: apt-get install " +
              "libopenblas0-serial"};
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

int narrow(std::int64_t n) { return static_cast<int>(n); }

}  // namespace

Result<void> load_blas() {
  if (blas().sgemm == nullptr) return Error{ErrorCode::kNotFound, blas().error};
  return {};
}

void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, float factor, ConstRows a,
                         ConstRows b, Rows y) {
  assert(blas().sgemm != nullptr);
  blas().sgemm(kRowMajor, kNoTrans, kTrans, narrow(m), narrow(n), narrow(k), factor, a.data,
               narrow(a.stride), b.data, narrow(b.stride), 0.0f, y.data, narrow(y.stride));
}

void multiply_add(std::int64_t m, std::int64_t n, std::int64_t k, ConstRows a, ConstRows b,
                  Rows y) {
  assert(blas().sgemm != nullptr);
  blas().sgemm(kRowMajor, kNoTrans, kNoTrans, narrow(m), narrow(n), narrow(k), 1.0f, a.data,
               narrow(a.stride), b.data, narrow(b.stride), 1.0f, y.data, narrow(y.stride));
}

}  // namespace tqcache::model
