#include "tqcache/model/linear/blas.h"

#include <cblas.h>

namespace tqcache::model {
namespace {

blasint narrow(std::int64_t n) { return static_cast<blasint>(n); }

}  // namespace

void use_blas_in_one_thread() {
  if (openblas_get_num_threads() != 1) openblas_set_num_threads(1);
}

void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, float factor, ConstRows a,
                         ConstRows b, Rows y) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, narrow(m), narrow(n), narrow(k), factor,
              a.data, narrow(a.stride), b.data, narrow(b.stride), 0.0f, y.data, narrow(y.stride));
}

void multiply_add(std::int64_t m, std::int64_t n, std::int64_t k, ConstRows a, ConstRows b,
                  Rows y) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, narrow(m), narrow(n), narrow(k), 1.0f,
              a.data, narrow(a.stride), b.data, narrow(b.stride), 1.0f, y.data, narrow(y.stride));
}

}  // namespace tqcache::model
