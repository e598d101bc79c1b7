// The right factor is packed in panels of 32 columns of the product, in which the 32 values of each
// term are neighbors: [panels, depth, 32]. The sums of a tile, some rows and 32 columns of the
// product, stay in registers while 256 terms are added, for which a panel has 32 KiB.

#include "tqcache/model/linear/products.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/codec/kernels/lanes.h"
#include "tqcache/model/linear/tiles.h"

#ifdef TQCACHE_X86
#define TQC_AVX512_TARGET gnu::target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#include "tqcache/model/linear/lanes_avx512.h"
#define TQC_AVX2_FMA [[gnu::target("avx2,fma")]]
#endif
#ifdef TQCACHE_NEON
#include <arm_neon.h>
#endif

namespace tqcache::model {
namespace {

constexpr std::size_t kPanelColumns = 32;
constexpr std::size_t kTerms = 256;

// Terms of kRows rows of a and of a panel, for a tile of sums.
struct Terms {
  const float* rows;  // of a, `depth` apart
  std::size_t depth;
  const float* panel;  // [n, 32]
  std::size_t n;
  bool begins;  // the sums begin with them; otherwise those of `to` go on
};

// Adds terms. Shapes: to [kRows, 32], rows `stride` apart.
using AddTerms = void(const Terms& terms, float* to, std::size_t stride);

template <std::size_t kRows>
struct ScalarTile {
  static constexpr std::size_t kMostRows = 1;

  static void add(const Terms& terms, float* to, std::size_t stride) {
    if (terms.begins) {
      for (std::size_t r = 0; r < kRows; ++r) std::fill_n(to + r * stride, kPanelColumns, 0.0f);
    }
    for (std::size_t t = 0; t < terms.n; ++t) {
      for (std::size_t r = 0; r < kRows; ++r) {
        for (std::size_t c = 0; c < kPanelColumns; ++c) {
          float& sum = to[r * stride + c];
          sum = std::fma(terms.rows[r * terms.depth + t], terms.panel[t * kPanelColumns + c], sum);
        }
      }
    }
  }

  // [n, depth] to [depth, 32]; n <= 32.
  static void transpose(const float* rows, std::size_t stride, std::size_t n, std::size_t depth,
                        float* panel) {
    for (std::size_t t = 0; t < depth; ++t) {
      for (std::size_t c = 0; c < n; ++c) panel[t * kPanelColumns + c] = rows[c * stride + t];
    }
  }
};

#ifdef TQCACHE_X86

// Eight rows and two vectors of columns are 16 sums, of 32 registers.
template <std::size_t kRows>
struct Avx512Tile {
  static constexpr std::size_t kMostRows = 8;

  TQC_AVX512 static void add(const Terms& terms, float* to, std::size_t stride) {
    __m512 sums[kRows][2];
    TQC_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      sums[r][0] = terms.begins ? _mm512_setzero_ps() : _mm512_loadu_ps(to + r * stride);
      sums[r][1] = terms.begins ? _mm512_setzero_ps() : _mm512_loadu_ps(to + r * stride + 16);
    }
    const float* rows[kRows];
    TQC_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) rows[r] = terms.rows + r * terms.depth;
    const float* panel = terms.panel;
    for (std::size_t t = 0; t < terms.n; ++t, panel += kPanelColumns) {
      const __m512 left = _mm512_loadu_ps(panel);
      const __m512 right = _mm512_loadu_ps(panel + 16);
      TQC_UNROLL
      for (std::size_t r = 0; r < kRows; ++r) {
        const __m512 value = _mm512_set1_ps(rows[r][t]);
        sums[r][0] = _mm512_fmadd_ps(value, left, sums[r][0]);
        sums[r][1] = _mm512_fmadd_ps(value, right, sums[r][1]);
      }
    }
    TQC_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      _mm512_storeu_ps(to + r * stride, sums[r][0]);
      _mm512_storeu_ps(to + r * stride + 16, sums[r][1]);
    }
  }

  static void transpose(const float* rows, std::size_t stride, std::size_t n, std::size_t depth,
                        float* panel);
};

// Six rows and two vectors of columns are 12 sums, of 16 registers.
template <std::size_t kRows>
struct Avx2Tile {
  static constexpr std::size_t kMostRows = 6;

  TQC_AVX2_FMA static void add(const Terms& terms, float* to, std::size_t stride) {
    for (std::size_t column = 0; column < kPanelColumns; column += 16) {
      __m256 sums[kRows][2];
      TQC_UNROLL
      for (std::size_t r = 0; r < kRows; ++r) {
        const float* const from = to + r * stride + column;
        sums[r][0] = terms.begins ? _mm256_setzero_ps() : _mm256_loadu_ps(from);
        sums[r][1] = terms.begins ? _mm256_setzero_ps() : _mm256_loadu_ps(from + 8);
      }
      const float* rows[kRows];
      TQC_UNROLL
      for (std::size_t r = 0; r < kRows; ++r) rows[r] = terms.rows + r * terms.depth;
      const float* panel = terms.panel + column;
      for (std::size_t t = 0; t < terms.n; ++t, panel += kPanelColumns) {
        const __m256 left = _mm256_loadu_ps(panel);
        const __m256 right = _mm256_loadu_ps(panel + 8);
        TQC_UNROLL
        for (std::size_t r = 0; r < kRows; ++r) {
          const __m256 value = _mm256_broadcast_ss(rows[r] + t);
          sums[r][0] = _mm256_fmadd_ps(value, left, sums[r][0]);
          sums[r][1] = _mm256_fmadd_ps(value, right, sums[r][1]);
        }
      }
      TQC_UNROLL
      for (std::size_t r = 0; r < kRows; ++r) {
        _mm256_storeu_ps(to + r * stride + column, sums[r][0]);
        _mm256_storeu_ps(to + r * stride + column + 8, sums[r][1]);
      }
    }
  }

  static void transpose(const float* rows, std::size_t stride, std::size_t n, std::size_t depth,
                        float* panel);
};

// Eight columns of eight rows, as eight rows of eight columns.
TQC_AVX2_FMA void transpose_eight(const float* rows, std::size_t stride, float* to) {
  __m256 r[8], t[8];
  TQC_UNROLL
  for (std::size_t i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(rows + i * stride);
  TQC_UNROLL
  for (std::size_t i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  TQC_UNROLL
  for (std::size_t i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  TQC_UNROLL
  for (std::size_t i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * kPanelColumns, _mm256_permute2f128_ps(r[i], r[4 + i], 0x20));
    _mm256_storeu_ps(to + (4 + i) * kPanelColumns, _mm256_permute2f128_ps(r[i], r[4 + i], 0x31));
  }
}

// Whole squares of eight in registers, the rest one by one.
void transpose_in_eights(const float* rows, std::size_t stride, std::size_t n, std::size_t depth,
                         float* panel) {
  const std::size_t n_whole = n / 8 * 8, depth_whole = depth / 8 * 8;
  for (std::size_t c = 0; c < n_whole; c += 8) {
    for (std::size_t t = 0; t < depth_whole; t += 8) {
      transpose_eight(rows + c * stride + t, stride, panel + t * kPanelColumns + c);
    }
  }
  for (std::size_t t = 0; t < depth; ++t) {
    for (std::size_t c = t < depth_whole ? n_whole : 0; c < n; ++c) {
      panel[t * kPanelColumns + c] = rows[c * stride + t];
    }
  }
}

template <std::size_t kRows>
void Avx512Tile<kRows>::transpose(const float* rows, std::size_t stride, std::size_t n,
                                  std::size_t depth, float* panel) {
  transpose_in_eights(rows, stride, n, depth, panel);
}
template <std::size_t kRows>
void Avx2Tile<kRows>::transpose(const float* rows, std::size_t stride, std::size_t n,
                                std::size_t depth, float* panel) {
  transpose_in_eights(rows, stride, n, depth, panel);
}

#endif  // TQCACHE_X86

#ifdef TQCACHE_NEON

// Eight rows and two vectors of columns are 16 sums, of 32 registers.
template <std::size_t kRows>
struct NeonTile {
  static constexpr std::size_t kMostRows = 8;

  static void add(const Terms& terms, float* to, std::size_t stride) {
    for (std::size_t column = 0; column < kPanelColumns; column += 8) {
      float32x4_t sums[kRows][2];
      TQC_UNROLL
      for (std::size_t r = 0; r < kRows; ++r) {
        const float* const from = to + r * stride + column;
        sums[r][0] = terms.begins ? vdupq_n_f32(0) : vld1q_f32(from);
        sums[r][1] = terms.begins ? vdupq_n_f32(0) : vld1q_f32(from + 4);
      }
      const float* panel = terms.panel + column;
      for (std::size_t t = 0; t < terms.n; ++t, panel += kPanelColumns) {
        const float32x4_t left = vld1q_f32(panel);
        const float32x4_t right = vld1q_f32(panel + 4);
        TQC_UNROLL
        for (std::size_t r = 0; r < kRows; ++r) {
          const float32x4_t value = vdupq_n_f32(terms.rows[r * terms.depth + t]);
          sums[r][0] = vfmaq_f32(sums[r][0], value, left);
          sums[r][1] = vfmaq_f32(sums[r][1], value, right);
        }
      }
      TQC_UNROLL
      for (std::size_t r = 0; r < kRows; ++r) {
        vst1q_f32(to + r * stride + column, sums[r][0]);
        vst1q_f32(to + r * stride + column + 4, sums[r][1]);
      }
    }
  }

  // Four rows at a time: vst4q_f32 would write them side by side, but a panel has 32 columns.
  static void transpose(const float* rows, std::size_t stride, std::size_t n, std::size_t depth,
                        float* panel) {
    const std::size_t n_whole = n / 4 * 4, depth_whole = depth / 4 * 4;
    for (std::size_t c = 0; c < n_whole; c += 4) {
      for (std::size_t t = 0; t < depth_whole; t += 4) {
        const float* const from = rows + c * stride + t;
        const float32x4x2_t a = vtrnq_f32(vld1q_f32(from), vld1q_f32(from + stride));
        const float32x4x2_t b =
            vtrnq_f32(vld1q_f32(from + 2 * stride), vld1q_f32(from + 3 * stride));
        float* const to = panel + t * kPanelColumns + c;
        vst1q_f32(to, vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0])));
        vst1q_f32(to + kPanelColumns, vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1])));
        vst1q_f32(to + 2 * kPanelColumns,
                  vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0])));
        vst1q_f32(to + 3 * kPanelColumns,
                  vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1])));
      }
    }
    for (std::size_t t = 0; t < depth; ++t) {
      for (std::size_t c = t < depth_whole ? n_whole : 0; c < n; ++c) {
        panel[t * kPanelColumns + c] = rows[c * stride + t];
      }
    }
  }
};

#endif  // TQCACHE_NEON

float* floats(std::byte* bytes) { return reinterpret_cast<float*>(bytes); }
const float* floats(const std::byte* bytes) { return reinterpret_cast<const float*>(bytes); }

std::size_t packed_bytes(std::size_t n_rows, std::size_t depth, std::size_t /*n_parts*/) {
  return (n_rows + kPanelColumns - 1) / kPanelColumns * kPanelColumns * depth * sizeof(float);
}

void copy_left(ConstRows x, std::size_t n, std::size_t depth, float factor, std::size_t /*n_parts*/,
               std::byte* to) {
  float* out = floats(to);
  for (std::size_t row = 0; row < n; ++row, out += depth) {
    const float* const from = x.data + static_cast<std::int64_t>(row) * x.stride;
    for (std::size_t i = 0; i < depth; ++i) out[i] = factor * from[i];
  }
}

template <template <std::size_t> class Tile>
void pack_right(ConstRows b, std::size_t n, std::size_t depth, std::size_t /*n_parts*/,
                std::byte* to) {
  float* panel = floats(to);
  for (std::size_t first = 0; first < n; first += kPanelColumns, panel += kPanelColumns * depth) {
    const std::size_t n_columns = std::min(kPanelColumns, n - first);
    if (n_columns < kPanelColumns) std::fill_n(panel, kPanelColumns * depth, 0.0f);
    Tile<1>::transpose(b.data + static_cast<std::int64_t>(first) * b.stride, to_size(b.stride),
                       n_columns, depth, panel);
  }
}

void pack_columns(ConstRows b, std::size_t n, std::size_t depth, std::size_t /*n_parts*/,
                  std::byte* to) {
  float* panel = floats(to);
  for (std::size_t first = 0; first < n; first += kPanelColumns) {
    const std::size_t n_columns = std::min(kPanelColumns, n - first);
    for (std::size_t t = 0; t < depth; ++t, panel += kPanelColumns) {
      const float* const row = b.data + static_cast<std::int64_t>(t) * b.stride + first;
      std::memcpy(panel, row, n_columns * sizeof(float));
      std::fill(panel + n_columns, panel + kPanelColumns, 0.0f);
    }
  }
}

std::size_t place_in_left(std::size_t row, std::size_t at, std::size_t depth,
                          std::size_t /*n_parts*/) {
  return (row * depth + at) * sizeof(float);
}
std::size_t place_in_right(std::size_t row, std::size_t at, std::size_t depth,
                           std::size_t /*n_parts*/) {
  return (row * depth + at * kPanelColumns) * sizeof(float);
}

// Tile<1>::add to Tile<kMostRows>::add.
template <template <std::size_t> class Tile, std::size_t... kRow>
constexpr auto make_tiles(std::index_sequence<kRow...>) {
  return std::array<AddTerms*, sizeof...(kRow)>{Tile<kRow + 1>::add...};
}

template <template <std::size_t> class Tile>
void multiply_packed(const PackedView& a, const PackedView& b, std::size_t m, std::size_t n,
                     std::size_t depth, float* y, std::size_t stride) {
  constexpr std::size_t kMostRows = Tile<1>::kMostRows;
  static constexpr auto kTiles = make_tiles<Tile>(std::make_index_sequence<kMostRows>());
  for (std::size_t column = 0; column < n; column += kPanelColumns) {
    const float* const panel = floats(b.data) + column * b.depth;
    const std::size_t n_columns = std::min(kPanelColumns, n - column);
    for (std::size_t term = 0; term < depth; term += kTerms) {
      for (std::size_t row = 0; row < m; row += kMostRows) {
        const std::size_t n_rows = std::min(kMostRows, m - row);
        AddTerms* const add = kTiles[n_rows - 1];
        const Terms terms = {floats(a.data) + row * a.depth + term, a.depth,
                             panel + term * kPanelColumns, std::min(kTerms, depth - term),
                             term == 0};
        float* const to = y + row * stride + column;
        if (n_columns == kPanelColumns) {
          add(terms, to, stride);
          continue;
        }
        float tile[kMostRows * kPanelColumns] = {};
        for (std::size_t r = 0; r < n_rows && term > 0; ++r) {
          std::copy_n(to + r * stride, n_columns, tile + r * kPanelColumns);
        }
        add(terms, tile, kPanelColumns);
        for (std::size_t r = 0; r < n_rows; ++r) {
          std::copy_n(tile + r * kPanelColumns, n_columns, to + r * stride);
        }
      }
    }
  }
}

template <template <std::size_t> class Tile>
constexpr MatrixProducts make_products(const char* name) {
  return {name,
          /*takes_rows=*/true,
          packed_bytes,
          copy_left,
          pack_right<Tile>,
          pack_columns,
          nullptr,
          place_in_left,
          place_in_right,
          multiply_packed<Tile>};
}

constexpr MatrixProducts kScalarProducts = make_products<ScalarTile>("scalar");
#ifdef TQCACHE_X86
constexpr MatrixProducts kAvx2Products = make_products<Avx2Tile>("avx2");
constexpr MatrixProducts kAvx512Products = make_products<Avx512Tile>("avx512");
#endif
#ifdef TQCACHE_NEON
constexpr MatrixProducts kNeonProducts = make_products<NeonTile>("neon");
#endif

// The product of two plain matrices, the right one packed by `pack` piece by piece.
template <class Pack>
void multiply_once(std::int64_t m, std::int64_t n, std::int64_t k, ConstRows a, Rows y,
                   const Pack& pack) {
  const MatrixProducts& products = *products_of(codec::best_kernels().isa);
  const std::size_t depth = to_size(k);
  AlignedBytes left, right(products.size(kProductRows, depth, 1));
  const float* rows = a.data;
  if (a.stride != k) {
    left.resize(products.size(to_size(m), depth, 1));
    products.pack_left(a, to_size(m), depth, 1.0f, 1, left.data());
    rows = floats(left.data());
  }
  const PackedView of_a = {reinterpret_cast<const std::byte*>(rows), depth, 1};
  for (std::int64_t first = 0; first < n; first += std::int64_t{kProductRows}) {
    const std::int64_t count = std::min(n - first, std::int64_t{kProductRows});
    pack(products, first, to_size(count), right.data());
    products.multiply(of_a, {right.data(), depth, 1}, to_size(m), to_size(count), depth,
                      y.data + first, to_size(y.stride));
  }
}

}  // namespace

const MatrixProducts* products_of(codec::Isa isa) {
  const bool is_there = std::ranges::any_of(
      codec::all_kernels(), [&](const codec::Kernels* kernels) { return kernels->isa == isa; });
  if (!is_there) return nullptr;
  switch (isa) {
#ifdef TQCACHE_X86
    case codec::Isa::kAvx2:
      return &kAvx2Products;
    case codec::Isa::kAvx512:
      return &kAvx512Products;
#endif
#ifdef TQCACHE_NEON
    case codec::Isa::kNeon:
      return &kNeonProducts;
#endif
    default:
      return &kScalarProducts;
  }
}

const MatrixProducts& best_products() {
  static const MatrixProducts* const tiles = best_tiles();
  return tiles != nullptr ? *tiles : *products_of(codec::best_kernels().isa);
}

void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, ConstRows a, ConstRows b,
                         Rows y) {
  multiply_once(
      m, n, k, a, y,
      [&](const MatrixProducts& products, std::int64_t first, std::size_t count, std::byte* to) {
        products.pack_right({b.data + first * b.stride, b.stride}, count, to_size(k), 1, to);
      });
}

void multiply_matrices(std::int64_t m, std::int64_t n, std::int64_t k, ConstRows a, ConstRows b,
                       Rows y) {
  multiply_once(
      m, n, k, a, y,
      [&](const MatrixProducts& products, std::int64_t first, std::size_t count, std::byte* to) {
        products.pack_columns({b.data + first, b.stride}, count, to_size(k), 1, to);
      });
}

}  // namespace tqcache::model
