#include "tqcache/predict/integer_matrix.h"

#include <algorithm>
#include <cassert>

#include "tqcache/codec/kernels/lanes.h"

#if defined(__x86_64__) && !defined(TQCACHE_SCALAR)
#define TQC_PREDICT_X86
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of registers that its own header leaves undefined on purpose (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

#include <cstring>

namespace tqcache::predict {
namespace {

// A product with `n_groups` groups of sixteen columns, for `n` tokens.
struct ProductTask {
  const std::int16_t* weights = nullptr;  // [n_groups, n_pairs, 16, 2]
  std::size_t n_pairs = 0;
  std::size_t n_groups = 0;
  const std::int16_t* x = nullptr;  // [n, 2 * n_pairs]
  std::size_t n = 0;
  std::int32_t* out = nullptr;  // [n, 16 * n_groups]
};

void multiply_scalar(const ProductTask& task) {
  for (std::size_t t = 0; t < task.n; ++t) {
    const std::int16_t* const x = task.x + t * 2 * task.n_pairs;
    for (std::size_t group = 0; group < task.n_groups; ++group) {
      const std::int16_t* w = task.weights + group * task.n_pairs * 32;
      std::int32_t sums[16] = {};
      for (std::size_t pair = 0; pair < task.n_pairs; ++pair, w += 32) {
        const std::int32_t a = x[2 * pair], b = x[2 * pair + 1];
        for (std::size_t i = 0; i < 16; ++i) sums[i] += a * w[2 * i] + b * w[2 * i + 1];
      }
      std::copy_n(sums, 16, task.out + (t * task.n_groups + group) * 16);
    }
  }
}

#ifdef TQC_PREDICT_X86

std::int32_t pair_at(const std::int16_t* x) {
  std::int32_t pair;
  std::memcpy(&pair, x, sizeof(pair));
  return pair;
}

template <std::size_t kTokens>
__attribute__((target("avx2"))) void tile_avx2(const ProductTask& task, std::size_t first,
                                               std::size_t group) {
  const std::int16_t* w = task.weights + group * task.n_pairs * 32;
  const std::int16_t* const x = task.x + first * 2 * task.n_pairs;
  __m256i sums[kTokens][2];
  TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) {
    sums[t][0] = sums[t][1] = _mm256_setzero_si256();
  }
  for (std::size_t pair = 0; pair < task.n_pairs; ++pair, w += 32) {
    const __m256i w0 = _mm256_load_si256(reinterpret_cast<const __m256i*>(w));
    const __m256i w1 = _mm256_load_si256(reinterpret_cast<const __m256i*>(w + 16));
    TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) {
      const __m256i a = _mm256_set1_epi32(pair_at(x + (t * task.n_pairs + pair) * 2));
      sums[t][0] = _mm256_add_epi32(sums[t][0], _mm256_madd_epi16(a, w0));
      sums[t][1] = _mm256_add_epi32(sums[t][1], _mm256_madd_epi16(a, w1));
    }
  }
  TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) {
    std::int32_t* const out = task.out + ((first + t) * task.n_groups + group) * 16;
    _mm256_store_si256(reinterpret_cast<__m256i*>(out), sums[t][0]);
    _mm256_store_si256(reinterpret_cast<__m256i*>(out + 8), sums[t][1]);
  }
}

void multiply_avx2(const ProductTask& task) {
  for (std::size_t group = 0; group < task.n_groups; ++group) {
    std::size_t t = 0;
    for (; t + 4 <= task.n; t += 4) tile_avx2<4>(task, t, group);
    for (; t < task.n; ++t) tile_avx2<1>(task, t, group);
  }
}

// Sums stay in registers only if all loops over them are unrolled and their type is that of the
// instruction: with __m512i, GCC 12 copies each of them twice.
using Int32Lanes = std::int32_t __attribute__((vector_size(64), may_alias));

template <std::size_t kTokens, std::size_t kGroups>
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))) void tile_avx512(
    const ProductTask& task, std::size_t first, std::size_t group) {
  const std::size_t size = task.n_pairs * 32;
  const std::int16_t* w = task.weights + group * size;
  const std::int16_t* const x = task.x + first * 2 * task.n_pairs;
  Int32Lanes sums[kTokens][kGroups];
  TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) {
    TQC_UNROLL for (std::size_t g = 0; g < kGroups; ++g) sums[t][g] = Int32Lanes{};
  }
  for (std::size_t pair = 0; pair < task.n_pairs; ++pair, w += 32) {
    __m512i of_group[kGroups];
    TQC_UNROLL for (std::size_t g = 0; g < kGroups; ++g) {
      of_group[g] = _mm512_load_si512(w + g * size);
    }
    TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) {
      const __m512i a = _mm512_set1_epi32(pair_at(x + (t * task.n_pairs + pair) * 2));
      TQC_UNROLL for (std::size_t g = 0; g < kGroups; ++g) {
        const auto sum = reinterpret_cast<__m512i>(sums[t][g]);
        sums[t][g] = reinterpret_cast<Int32Lanes>(_mm512_dpwssd_epi32(sum, a, of_group[g]));
      }
    }
  }
  TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) {
    std::int32_t* const out = task.out + ((first + t) * task.n_groups + group) * 16;
    TQC_UNROLL for (std::size_t g = 0; g < kGroups; ++g) {
      _mm512_store_si512(out + g * 16, reinterpret_cast<__m512i>(sums[t][g]));
    }
  }
}

template <std::size_t kGroups>
void columns_avx512(const ProductTask& task, std::size_t group) {
  std::size_t t = 0;
  for (; t + 8 <= task.n; t += 8) tile_avx512<8, kGroups>(task, t, group);
  for (; t < task.n; ++t) tile_avx512<1, kGroups>(task, t, group);
}

void multiply_avx512(const ProductTask& task) {
  std::size_t group = 0;
  for (; group + 3 <= task.n_groups; group += 3) columns_avx512<3>(task, group);
  for (; group < task.n_groups; ++group) columns_avx512<1>(task, group);
}

#endif

}  // namespace

IntegerMatrix::IntegerMatrix(std::size_t n_rows, std::size_t n_cols,
                             std::span<const std::int8_t> values)
    : n_rows_(n_rows),
      n_pairs_((n_rows + 1) / 2),
      n_groups_((n_cols + 15) / 16),
      values_(n_groups_ * n_pairs_ * 32) {
  assert(values.size() == n_rows * n_cols && n_rows <= kMaxMatrixRows);
  for (std::size_t row = 0; row < n_rows; ++row) {
    for (std::size_t col = 0; col < n_cols; ++col) {
      const std::size_t at = ((col / 16) * n_pairs_ + row / 2) * 32 + (col % 16) * 2 + row % 2;
      values_[at] = values[row * n_cols + col];
    }
  }
}

void IntegerMatrix::multiply(const std::int16_t* x, std::size_t n, std::int32_t* out,
                             codec::Isa isa) const {
  const ProductTask task{values_.data(), n_pairs_, n_groups_, x, n, out};
#ifdef TQC_PREDICT_X86
  if (isa == codec::Isa::kAvx512) return multiply_avx512(task);
  if (isa == codec::Isa::kAvx2) return multiply_avx2(task);
#endif
  static_cast<void>(isa);
  multiply_scalar(task);
}

}  // namespace tqcache::predict
