#pragma once
// model/linear/blas.h: the one door to the BLAS.

#include <cstdint>

namespace tqcache::model {

// A matrix in memory: row r starts at data + r * stride.
struct ConstRows {
  const float* data = nullptr;
  std::int64_t stride = 0;
};
struct Rows {
  float* data = nullptr;
  std::int64_t stride = 0;
};

// Keeps OpenBLAS to the calling thread, for the whole process: our threads each take their own
// piece of a product, so that the result does not depend on how many there are.
// Threads: call it before the first product, not beside one.
void use_blas_in_one_thread();

// y = factor * a b^T. Shapes: a [m, k], b [n, k], y [m, n].
void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, float factor, ConstRows a,
                         ConstRows b, Rows y);

// y += a b. Shapes: a [m, k], b [k, n], y [m, n].
void multiply_add(std::int64_t m, std::int64_t n, std::int64_t k, ConstRows a, ConstRows b, Rows y);

}  // namespace tqcache::model
