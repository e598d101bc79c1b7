#include "tqcache/model/linear/product_kernels.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tqcache/base/half.h"
#include "tqcache/codec/kernels/lanes.h"
#include "tqcache/model/linear/block_kernels.h"
#include "tqcache/model/linear/chunk_kernels.h"
#include "tqcache/model/linear/kernel_loops.h"

namespace tqcache::model {
namespace {

template <class T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// Loads value i of a row, one struct per type.
struct F32 {
  static float at(const std::byte* row, std::size_t i) { return load<float>(row + 4 * i); }
};
struct F16 {
  static float at(const std::byte* row, std::size_t i) {
    return f16_to_f32(load<std::uint16_t>(row + 2 * i));
  }
};
struct BF16 {
  static float at(const std::byte* row, std::size_t i) {
    return bf16_to_f32(load<std::uint16_t>(row + 2 * i));
  }
};

template <class Layout>
float dot(const std::byte* row, const float* x, std::size_t n) {
  float lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) lanes[l] += Layout::at(row, i + l) * x[i + l];
  }
  for (std::size_t l = 0; i < n; ++i, ++l) lanes[l] += Layout::at(row, i) * x[i];
  return loops::fold(lanes);
}

template <class Layout>
void add_scaled(float factor, const std::byte* row, std::size_t n, float* y) {
  for (std::size_t i = 0; i < n; ++i) y[i] += factor * Layout::at(row, i);
}

float max_value(const float* row, std::size_t n) { return loops::max_value(row, n); }

float exp_sum(float shift, std::size_t n, float* row) { return loops::exp_sum(shift, n, row); }

void silu_multiply(const float* up, std::size_t n, float* gate) {
  loops::silu_multiply(up, n, gate);
}

constexpr Kernels kScalar = {
    codec::Isa::kScalar, dot<F32>,  dot<F16>, dot<BF16>,     add_scaled<F32>, add_scaled<F16>,
    add_scaled<BF16>,    max_value, exp_sum,  silu_multiply, &kScalarBlocks,  &kScalarChunks};

bool has_isa(codec::Isa isa) {
  return std::ranges::any_of(codec::all_kernels(),
                             [&](const codec::Kernels* kernels) { return kernels->isa == isa; });
}

}  // namespace

const Kernels* kernels_of(codec::Isa isa) {
  if (!has_isa(isa)) return nullptr;
#ifdef TQCACHE_X86
  if (isa == codec::Isa::kAvx2) return &avx2_kernels();
  if (isa == codec::Isa::kAvx512) return &kAvx512Kernels;
#endif
#ifdef TQCACHE_NEON
  if (isa == codec::Isa::kNeon) return &neon_kernels();
#endif
  return &kScalar;
}

const Kernels& scalar_kernels() { return kScalar; }

const Kernels& best_kernels() {
  static const Kernels& best = *kernels_of(codec::best_kernels().isa);
  return best;
}

}  // namespace tqcache::model
