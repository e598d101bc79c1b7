#include "tqcache/codec/row_map.h"

#include <cassert>

#include "tqcache/codec/row_map_tiles.h"

namespace tqcache::codec {

void multiply_rest(const RowMapTask& task, std::size_t first) {
  for (std::size_t row = 0; row < task.n; ++row) {
    float* const __restrict sums = task.out + row * task.dim;
    for (std::size_t i = first; i < task.dim; ++i) sums[i] = 0.0f;
    for (std::size_t j = 0; j < task.dim; ++j) {
      const float x = task.in[row * task.dim + j];
      const float* const __restrict factors = task.matrix + j * task.dim;
      for (std::size_t i = first; i < task.dim; ++i) sums[i] += x * factors[i];
    }
  }
}

void multiply_rows(std::span<const float> in, std::span<const float> matrix, std::size_t dim,
                   std::span<float> out, [[maybe_unused]] const Kernels& kernels) {
  assert(in.size() == out.size() && in.size() % dim == 0 && matrix.size() == dim * dim);
  const RowMapTask task{in.data(), matrix.data(), out.data(), in.size() / dim, dim};
  std::size_t done = 0;
#ifdef TQCACHE_X86
  if (&kernels == &avx512_kernels()) done = multiply_rows_avx512(task);
  if (&kernels == &avx2_kernels()) done = multiply_rows_avx2(task);
#endif
  if (done < dim) multiply_rest(task, done);
}

}  // namespace tqcache::codec
