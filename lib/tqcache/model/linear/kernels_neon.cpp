// The kernels in NEON: the 32 lanes of a sum are eight vectors. Everything except products is left
// to the compiler.

#include "tqcache/codec/kernels/registers_neon.h"
#include "tqcache/model/linear/block_kernels.h"
#include "tqcache/model/linear/chunk_kernels.h"
#include "tqcache/model/linear/kernel_loops.h"
#include "tqcache/model/linear/lanes_neon.h"
#include "tqcache/model/linear/product_kernels.h"

#ifdef TQCACHE_NEON

namespace tqcache::model {
namespace {

using codec::kWidth;
using codec::widen;

template <Dtype kDtype>
float dot(const std::byte* row, const float* x, std::size_t n) {
  Lanes lanes;
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    TQC_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      const float32x4_t weights = widen<kDtype>(row, i + v * kWidth, kWidth);
      lanes.v[v] = vaddq_f32(lanes.v[v], vmulq_f32(weights, vld1q_f32(x + i + v * kWidth)));
    }
  }
  if (i == n) return fold(lanes);
  float sums[kLanes], weights[kWidth];
  for (std::size_t v = 0; v < kVectors; ++v) vst1q_f32(sums + v * kWidth, lanes.v[v]);
  for (std::size_t l = 0; i < n; ++i, ++l) {
    if (l % kWidth == 0) vst1q_f32(weights, widen<kDtype>(row, i, n - i));
    sums[l] += weights[l % kWidth] * x[i];
  }
  return loops::fold(sums);
}

template <Dtype kDtype>
void add_scaled(float factor, const std::byte* row, std::size_t n, float* y) {
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const float32x4_t terms = vmulq_f32(vdupq_n_f32(factor), widen<kDtype>(row, i, kWidth));
    vst1q_f32(y + i, vaddq_f32(vld1q_f32(y + i), terms));
  }
  float rest[kWidth];
  vst1q_f32(rest, widen<kDtype>(row, i, n - i));
  for (std::size_t l = 0; i < n; ++i, ++l) y[i] += factor * rest[l];
}

float max_value(const float* row, std::size_t n) { return loops::max_value(row, n); }

float exp_sum(float shift, std::size_t n, float* row) { return loops::exp_sum(shift, n, row); }

void silu_multiply(const float* up, std::size_t n, float* gate) {
  loops::silu_multiply(up, n, gate);
}

constexpr Kernels make_kernels(const ChunkKernels& chunks) {
  return {codec::Isa::kNeon,
          dot<Dtype::kF32>,
          dot<Dtype::kF16>,
          dot<Dtype::kBF16>,
          add_scaled<Dtype::kF32>,
          add_scaled<Dtype::kF16>,
          add_scaled<Dtype::kBF16>,
          max_value,
          exp_sum,
          silu_multiply,
          &kNeonBlocks,
          &chunks};
}

}  // namespace

const Kernels& neon_kernels() {
  static constexpr Kernels kPlain = make_kernels(kNeonChunks);
  static constexpr Kernels kWithDots = make_kernels(kNeonDotChunks);
  static const bool has_dots = has_dot_products();
  return has_dots ? kWithDots : kPlain;
}

}  // namespace tqcache::model

#endif
