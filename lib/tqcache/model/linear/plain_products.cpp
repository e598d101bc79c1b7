// A panel of b, 32 columns of the product and at most 256 terms, is packed so that each term's 32
// values are neighbors. A tile, 8 rows and 32 columns of the product, stays in registers while its
// terms are added.

#include "tqcache/model/linear/plain_products.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "tqcache/codec/kernels/lanes.h"

#ifdef TQCACHE_X86
#include <immintrin.h>
#endif
#ifdef TQCACHE_NEON
#include <arm_neon.h>
#endif

namespace tqcache::model {
namespace {

constexpr std::size_t kTileRows = 8;
constexpr std::size_t kTileCols = 32;
constexpr std::size_t kTerms = 256;  // a panel takes 32 KiB

using RowStarts = std::array<const float*, kTileRows>;

// Adds terms to a tile. Shapes: rows: 8 of [n_terms]; panel [n_terms, 32]; tile [8, 32].
using AddTerms = void(std::size_t n_terms, const RowStarts& rows, const float* panel, float* tile);

void add_terms_scalar(std::size_t n_terms, const RowStarts& rows, const float* panel, float* tile) {
  for (std::size_t t = 0; t < n_terms; ++t) {
    for (std::size_t r = 0; r < kTileRows; ++r) {
      for (std::size_t c = 0; c < kTileCols; ++c) {
        float& sum = tile[r * kTileCols + c];
        sum = std::fma(rows[r][t], panel[t * kTileCols + c], sum);
      }
    }
  }
}

#ifdef TQCACHE_X86

// Eight rows and two vectors of columns are 16 sums, of 32 registers.
[[gnu::target("avx512f")]] void add_terms_avx512(std::size_t n_terms, const RowStarts& rows,
                                                 const float* panel, float* tile) {
  __m512 sums[kTileRows][2];
  TQC_UNROLL
  for (std::size_t r = 0; r < kTileRows; ++r) {
    sums[r][0] = _mm512_loadu_ps(tile + r * kTileCols);
    sums[r][1] = _mm512_loadu_ps(tile + r * kTileCols + 16);
  }
  for (std::size_t t = 0; t < n_terms; ++t, panel += kTileCols) {
    const __m512 left = _mm512_loadu_ps(panel);
    const __m512 right = _mm512_loadu_ps(panel + 16);
    TQC_UNROLL
    for (std::size_t r = 0; r < kTileRows; ++r) {
      const __m512 value = _mm512_set1_ps(rows[r][t]);
      sums[r][0] = _mm512_fmadd_ps(value, left, sums[r][0]);
      sums[r][1] = _mm512_fmadd_ps(value, right, sums[r][1]);
    }
  }
  TQC_UNROLL
  for (std::size_t r = 0; r < kTileRows; ++r) {
    _mm512_storeu_ps(tile + r * kTileCols, sums[r][0]);
    _mm512_storeu_ps(tile + r * kTileCols + 16, sums[r][1]);
  }
}

// Four rows and two vectors of columns are 8 sums, of 16 registers.
[[gnu::target("avx2,fma")]] void add_terms_avx2(std::size_t n_terms, const RowStarts& rows,
                                                const float* panel, float* tile) {
  constexpr std::size_t kRows = 4, kCols = 16;
  for (std::size_t first = 0; first < kTileRows; first += kRows) {
    for (std::size_t col = 0; col < kTileCols; col += kCols) {
      float* const part = tile + first * kTileCols + col;
      const float* const a[kRows] = {rows[first], rows[first + 1], rows[first + 2],
                                     rows[first + 3]};
      __m256 sums[kRows][2];
      TQC_UNROLL
      for (std::size_t r = 0; r < kRows; ++r) {
        sums[r][0] = _mm256_loadu_ps(part + r * kTileCols);
        sums[r][1] = _mm256_loadu_ps(part + r * kTileCols + 8);
      }
      for (std::size_t t = 0; t < n_terms; ++t) {
        const __m256 left = _mm256_loadu_ps(panel + t * kTileCols + col);
        const __m256 right = _mm256_loadu_ps(panel + t * kTileCols + col + 8);
        TQC_UNROLL
        for (std::size_t r = 0; r < kRows; ++r) {
          const __m256 value = _mm256_set1_ps(a[r][t]);
          sums[r][0] = _mm256_fmadd_ps(value, left, sums[r][0]);
          sums[r][1] = _mm256_fmadd_ps(value, right, sums[r][1]);
        }
      }
      TQC_UNROLL
      for (std::size_t r = 0; r < kRows; ++r) {
        _mm256_storeu_ps(part + r * kTileCols, sums[r][0]);
        _mm256_storeu_ps(part + r * kTileCols + 8, sums[r][1]);
      }
    }
  }
}

#endif  // TQCACHE_X86

#ifdef TQCACHE_NEON

// Eight rows and two vectors of columns are 16 sums, of 32 registers.
void add_terms_neon(std::size_t n_terms, const RowStarts& rows, const float* panel, float* tile) {
  constexpr std::size_t kCols = 8;
  for (std::size_t col = 0; col < kTileCols; col += kCols) {
    float32x4_t sums[kTileRows][2];
    TQC_UNROLL
    for (std::size_t r = 0; r < kTileRows; ++r) {
      sums[r][0] = vld1q_f32(tile + r * kTileCols + col);
      sums[r][1] = vld1q_f32(tile + r * kTileCols + col + 4);
    }
    for (std::size_t t = 0; t < n_terms; ++t) {
      const float32x4_t left = vld1q_f32(panel + t * kTileCols + col);
      const float32x4_t right = vld1q_f32(panel + t * kTileCols + col + 4);
      TQC_UNROLL
      for (std::size_t r = 0; r < kTileRows; ++r) {
        const float32x4_t value = vdupq_n_f32(rows[r][t]);
        sums[r][0] = vfmaq_f32(sums[r][0], value, left);
        sums[r][1] = vfmaq_f32(sums[r][1], value, right);
      }
    }
    TQC_UNROLL
    for (std::size_t r = 0; r < kTileRows; ++r) {
      vst1q_f32(tile + r * kTileCols + col, sums[r][0]);
      vst1q_f32(tile + r * kTileCols + col + 4, sums[r][1]);
    }
  }
}

#endif  // TQCACHE_NEON

AddTerms* add_terms_of(codec::Isa isa) {
  const bool is_there = std::ranges::any_of(
      codec::all_kernels(), [&](const codec::Kernels* kernels) { return kernels->isa == isa; });
  if (!is_there) return add_terms_scalar;
#ifdef TQCACHE_X86
  if (isa == codec::Isa::kAvx2) return add_terms_avx2;
  if (isa == codec::Isa::kAvx512) return add_terms_avx512;
#endif
#ifdef TQCACHE_NEON
  if (isa == codec::Isa::kNeon) return add_terms_neon;
#endif
  return add_terms_scalar;
}

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

// Adds to y the terms [first_term, first_term + n_terms) of n_cols columns from first_col on.
// Shapes: panel [n_terms, 32], zero beyond n_cols.
void add_panel(AddTerms* add_terms, std::int64_t m, std::int64_t first_term, std::size_t n_terms,
               std::int64_t first_col, std::size_t n_cols, ConstRows a, const float* panel,
               Rows y) {
  for (std::int64_t first = 0; first < m; first += kTileRows) {
    const std::size_t n_rows = std::min(kTileRows, to_size(m - first));
    // A missing row is computed from the first one, and dropped.
    RowStarts rows;
    for (std::size_t r = 0; r < kTileRows; ++r) {
      const std::int64_t row = first + static_cast<std::int64_t>(r < n_rows ? r : 0);
      rows[r] = a.data + row * a.stride + first_term;
    }
    alignas(64) float tile[kTileRows * kTileCols] = {};
    float* const out = y.data + first * y.stride + first_col;
    for (std::size_t r = 0; r < n_rows; ++r) {
      std::copy_n(out + static_cast<std::int64_t>(r) * y.stride, n_cols, tile + r * kTileCols);
    }
    add_terms(n_terms, rows, panel, tile);
    for (std::size_t r = 0; r < n_rows; ++r) {
      std::copy_n(tile + r * kTileCols, n_cols, out + static_cast<std::int64_t>(r) * y.stride);
    }
  }
}

// y += the product, where pack(first_term, n_terms, first_col, n_cols, panel) fills a panel.
template <class Pack>
void add_product(codec::Isa isa, std::int64_t m, std::int64_t n, std::int64_t k, ConstRows a,
                 Rows y, const Pack& pack) {
  AddTerms* const add_terms = add_terms_of(isa);
  std::vector<float> panel(kTerms * kTileCols);
  for (std::int64_t col = 0; col < n; col += kTileCols) {
    const std::size_t n_cols = std::min(kTileCols, to_size(n - col));
    if (n_cols < kTileCols) std::ranges::fill(panel, 0.0f);
    for (std::int64_t term = 0; term < k; term += kTerms) {
      const std::size_t n_terms = std::min(kTerms, to_size(k - term));
      pack(term, n_terms, col, n_cols, panel.data());
      add_panel(add_terms, m, term, n_terms, col, n_cols, a, panel.data(), y);
    }
  }
}

}  // namespace

void plain_multiply_transposed(codec::Isa isa, std::int64_t m, std::int64_t n, std::int64_t k,
                               float factor, ConstRows a, ConstRows b, Rows y) {
  for (std::int64_t i = 0; i < m; ++i) std::fill_n(y.data + i * y.stride, n, 0.0f);
  add_product(isa, m, n, k, a, y,
              [&](std::int64_t term, std::size_t n_terms, std::int64_t col, std::size_t n_cols,
                  float* panel) {
                for (std::size_t c = 0; c < n_cols; ++c) {
                  const float* const row =
                      b.data + (col + static_cast<std::int64_t>(c)) * b.stride + term;
                  for (std::size_t t = 0; t < n_terms; ++t) panel[t * kTileCols + c] = row[t];
                }
              });
  if (factor == 1.0f) return;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) y.data[i * y.stride + j] *= factor;
  }
}

void plain_multiply_add(codec::Isa isa, std::int64_t m, std::int64_t n, std::int64_t k, ConstRows a,
                        ConstRows b, Rows y) {
  add_product(isa, m, n, k, a, y,
              [&](std::int64_t term, std::size_t n_terms, std::int64_t col, std::size_t n_cols,
                  float* panel) {
                for (std::size_t t = 0; t < n_terms; ++t) {
                  const float* const row =
                      b.data + (term + static_cast<std::int64_t>(t)) * b.stride + col;
                  std::copy_n(row, n_cols, panel + t * kTileCols);
                }
              });
}

}  // namespace tqcache::model
