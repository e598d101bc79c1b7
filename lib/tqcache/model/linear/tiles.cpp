// Products of split factors in AMX, with AVX-512 for the splitting.

#include "tqcache/model/linear/tiles.h"

#include <algorithm>
#include <cstring>

#include "tqcache/codec/kernels/kernels.h"

#if defined(__x86_64__) && defined(__linux__) && !defined(TQCACHE_SCALAR)

#include <sys/syscall.h>
#include <unistd.h>

#define TQC_AVX512_TARGET gnu::target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

#include "tqcache/codec/kernels/lanes.h"
#include "tqcache/model/linear/lanes_avx512.h"

#define TQC_AMX [[gnu::target("amx-tile,amx-bf16"), gnu::noinline]]

namespace tqcache::model {
namespace {

constexpr std::size_t kTileRows = 16;   // of the left factor; columns of the right one
constexpr std::size_t kTileDepth = 32;  // values of each
constexpr std::size_t kTileParts = kTileRows * kTileDepth;
constexpr std::size_t kTilesAtOnce = 2;  // a kernel multiplies two by two
static_assert(kTilesAtOnce * kTileRows == kProductRows && kTileDepth == kProductRows);

// Numbers of bf16 in a split factor: rows are filled up to whole pairs of tiles, depth to tiles.
constexpr std::size_t split_size(std::size_t n_rows, std::size_t depth, std::size_t n_parts) {
  return (n_rows + kProductRows - 1) / kProductRows * kProductRows *
         ((depth + kTileDepth - 1) / kTileDepth) * kTileDepth * n_parts;
}

std::size_t split_bytes(std::size_t n_rows, std::size_t depth, std::size_t n_parts) {
  return split_size(n_rows, depth, n_parts) * sizeof(std::uint16_t);
}

// The same for both factors.
std::size_t place_in_split(std::size_t row, std::size_t at, std::size_t depth,
                           std::size_t n_parts) {
  return (split_size(row, depth, n_parts) + at * kTileRows * n_parts) * sizeof(std::uint16_t);
}

std::uint16_t* numbers(std::byte* bytes) { return reinterpret_cast<std::uint16_t*>(bytes); }
const std::uint16_t* numbers(const std::byte* bytes) {
  return reinterpret_cast<const std::uint16_t*>(bytes);
}

// The numbers rounded to bf16, in the upper halves; the lower ones are to be ignored.
TQC_AVX512_INLINE __m512i round_to_bf16(__m512 x) {
  return _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
}

// What remains of numbers without their rounded ones.
TQC_AVX512_INLINE __m512 rest_of(__m512 x, __m512i rounded) {
  const __m512i upper = _mm512_and_si512(rounded, _mm512_set1_epi32(-65536));
  return _mm512_sub_ps(x, _mm512_castsi512_ps(upper));
}

// The upper halves of 32 numbers, in order.
TQC_AVX512_INLINE __m512i upper_halves(__m512i low, __m512i high) {
  const __m512i odd =
      _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                       25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  return _mm512_permutex2var_epi16(low, odd, high);
}

// The upper halves of sixteen pairs of numbers, side by side.
TQC_AVX512_INLINE __m512i pair_upper_halves(__m512i first, __m512i second) {
  return _mm512_or_si512(_mm512_srli_epi32(first, 16),
                         _mm512_and_si512(second, _mm512_set1_epi32(-65536)));
}

// Parts of 32 numbers, joined by upper_halves() or pair_upper_halves(). Shapes: to [n_parts]
// vectors of 32 bf16, one tile apart.
template <bool kPairs>
TQC_AVX512_INLINE void split_32(__m512 a, __m512 b, std::size_t n_parts, std::uint16_t* to) {
  for (std::size_t part = 0; part < n_parts; ++part) {
    const __m512i of_a = round_to_bf16(a), of_b = round_to_bf16(b);
    _mm512_storeu_si512(to + part * kTileParts,
                        kPairs ? pair_upper_halves(of_a, of_b) : upper_halves(of_a, of_b));
    a = rest_of(a, of_a);
    b = rest_of(b, of_b);
  }
}

// The 32 values of a row from `at` on; zeros behind its end.
TQC_AVX512_INLINE void load_32(const float* row, std::size_t at, std::size_t depth, __m512& low,
                               __m512& high) {
  const std::size_t n = depth - at;
  if (n >= kTileDepth) {
    low = _mm512_loadu_ps(row + at);
    high = _mm512_loadu_ps(row + at + 16);
    return;
  }
  const std::uint32_t there = (1u << n) - 1;
  low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(there), row + at);
  high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(there >> 16), row + at + 16);
}

constexpr std::size_t whole_tiles(std::size_t n) {
  constexpr std::size_t kRows = kTilesAtOnce * kTileRows;
  return (n + kRows - 1) / kRows * kTilesAtOnce;
}
constexpr std::size_t depth_tiles(std::size_t depth) {
  return (depth + kTileDepth - 1) / kTileDepth;
}

// [tiles of rows, tiles of depth, parts, 16 rows, 32]
TQC_AVX512 void split_left_rows(ConstRows x, std::size_t n, std::size_t depth, float factor,
                                std::size_t n_parts, std::byte* bytes) {
  std::uint16_t* to = numbers(bytes);
  const std::size_t n_deep = depth_tiles(depth);
  const __m512 factors = _mm512_set1_ps(factor);
  for (std::size_t row = 0; row < whole_tiles(n) * kTileRows; ++row) {
    std::uint16_t* const of_row =
        to + (row / kTileRows * n_deep * n_parts * kTileParts + row % kTileRows * kTileDepth);
    for (std::size_t i = 0; i < n_deep; ++i) {
      __m512 low = _mm512_setzero_ps(), high = low;
      if (row < n) {
        load_32(x.data + static_cast<std::int64_t>(row) * x.stride, i * kTileDepth, depth, low,
                high);
      }
      split_32<false>(_mm512_mul_ps(low, factors), _mm512_mul_ps(high, factors), n_parts,
                      of_row + i * n_parts * kTileParts);
    }
  }
}

// Transposes 16 rows of 16 numbers.
TQC_AVX512_INLINE void transpose(__m512i* r) {
  __m512i t[16];
  TQC_UNROLL
  for (std::size_t i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  // Row 4 q + j of r: column j of each quarter, for rows 4 q to 4 q + 3.
  TQC_UNROLL
  for (std::size_t q = 0; q < 16; q += 4) {
    r[q] = _mm512_unpacklo_epi64(t[q], t[q + 2]);
    r[q + 1] = _mm512_unpackhi_epi64(t[q], t[q + 2]);
    r[q + 2] = _mm512_unpacklo_epi64(t[q + 1], t[q + 3]);
    r[q + 3] = _mm512_unpackhi_epi64(t[q + 1], t[q + 3]);
  }
  TQC_UNROLL
  for (std::size_t j = 0; j < 4; ++j) {
    const __m512i a = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);  // quarters 0 and 2
    const __m512i b = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);  // quarters 1 and 3
    const __m512i c = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
    t[j] = _mm512_shuffle_i32x4(a, c, 0x88);
    t[8 + j] = _mm512_shuffle_i32x4(a, c, 0xdd);
    t[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
    t[12 + j] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
  TQC_UNROLL
  for (std::size_t i = 0; i < 16; ++i) r[i] = t[i];
}

// [tiles of rows, tiles of depth, parts, 16 pairs, 16 rows, 2]
TQC_AVX512 void split_right_rows(ConstRows b, std::size_t n, std::size_t depth, std::size_t n_parts,
                                 std::byte* bytes) {
  std::uint16_t* to = numbers(bytes);
  const std::size_t n_deep = depth_tiles(depth);
  for (std::size_t tile = 0; tile < whole_tiles(n); ++tile) {
    for (std::size_t i = 0; i < n_deep; ++i, to += n_parts * kTileParts) {
      alignas(64) std::uint16_t rows[3 * kTileParts];
      for (std::size_t row = 0; row < kTileRows; ++row) {
        const std::size_t at = tile * kTileRows + row;
        __m512 low = _mm512_setzero_ps(), high = low;
        if (at < n) {
          load_32(b.data + static_cast<std::int64_t>(at) * b.stride, i * kTileDepth, depth, low,
                  high);
        }
        split_32<false>(low, high, n_parts, rows + row * kTileDepth);
      }
      for (std::size_t part = 0; part < n_parts; ++part) {
        __m512i pairs[16];
        TQC_UNROLL
        for (std::size_t r = 0; r < 16; ++r) {
          pairs[r] = _mm512_load_si512(rows + part * kTileParts + r * kTileDepth);
        }
        transpose(pairs);
        TQC_UNROLL
        for (std::size_t r = 0; r < 16; ++r) {
          _mm512_storeu_si512(to + part * kTileParts + r * kTileDepth, pairs[r]);
        }
      }
    }
  }
}

TQC_AVX512 void split_right_columns(ConstRows b, std::size_t n, std::size_t depth,
                                    std::size_t n_parts, std::byte* bytes) {
  std::uint16_t* to = numbers(bytes);
  const std::size_t n_deep = depth_tiles(depth);
  for (std::size_t tile = 0; tile < whole_tiles(n); ++tile) {
    const std::size_t first = tile * kTileRows;
    const std::size_t n_there = first < n ? std::min(kTileRows, n - first) : 0;
    const auto there = static_cast<__mmask16>((1u << n_there) - 1);
    for (std::size_t i = 0; i < n_deep; ++i, to += n_parts * kTileParts) {
      for (std::size_t pair = 0; pair < kTileDepth / 2; ++pair) {
        const std::size_t at = i * kTileDepth + 2 * pair;
        const float* const row = b.data + static_cast<std::int64_t>(at) * b.stride + first;
        __m512 values[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        if (at < depth) values[0] = _mm512_maskz_loadu_ps(there, row);
        if (at + 1 < depth) values[1] = _mm512_maskz_loadu_ps(there, row + b.stride);
        split_32<true>(values[0], values[1], n_parts, to + pair * kTileDepth);
      }
    }
  }
}

// Value `place` of each row of a quad, as f32 weights.
template <int kPlace>
TQC_AVX512_INLINE __m512 weights_of(__m512i quad, __m512 scale, __m512 minimum) {
  const __m512i code = _mm512_srai_epi32(_mm512_slli_epi32(quad, 24 - 8 * kPlace), 24);
  return _mm512_sub_ps(_mm512_mul_ps(scale, _mm512_cvtepi32_ps(code)), minimum);
}

TQC_AVX512 void split_quantized_panel(const PanelView& panel, std::byte* bytes) {
  std::uint16_t* to = numbers(bytes);
  constexpr std::size_t kTwo = 2;
  const std::size_t n_in_group = kGroup / panel.run;
  for (std::size_t group = 0; group < panel.n_groups; ++group, to += kTwo * kTileParts) {
    for (std::size_t q = 0; q < kGroupQuads; ++q) {
      const std::size_t run = group * n_in_group + q * kQuad / panel.run;
      const __m512i quad =
          _mm512_loadu_si512(panel.codes + (group * kGroupQuads + q) * kPanelRows * kQuad);
      const __m512 scale = _mm512_loadu_ps(panel.scales + run * kPanelRows);
      __m512 minimum = _mm512_setzero_ps();
      if (panel.minima != nullptr) minimum = _mm512_loadu_ps(panel.minima + run * kPanelRows);
      std::uint16_t* const pair = to + 2 * q * kTileDepth;
      split_32<true>(weights_of<0>(quad, scale, minimum), weights_of<1>(quad, scale, minimum), kTwo,
                     pair);
      split_32<true>(weights_of<2>(quad, scale, minimum), weights_of<3>(quad, scale, minimum), kTwo,
                     pair + kTileDepth);
    }
  }
}

// The shape of all eight tiles: sixteen rows of 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Products of two by two tiles over the whole depth, to tiles 0 to 3. `a` and `b` are the first
// tiles, the others `next_a` and `next_b` bf16 behind.
template <std::size_t kPartsA, std::size_t kPartsB>
[[gnu::target("amx-tile,amx-bf16"), gnu::always_inline]] inline void multiply_deep(
    const std::uint16_t* a, const std::uint16_t* b, std::size_t n_deep, std::size_t next_a,
    std::size_t next_b) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (std::size_t i = 0; i < n_deep; ++i, a += kPartsA * kTileParts, b += kPartsB * kTileParts) {
    TQC_UNROLL
    for (std::size_t of_b = 0; of_b < kPartsB; ++of_b) {
      _tile_loadd(6, b + of_b * kTileParts, 64);
      _tile_loadd(7, b + next_b + of_b * kTileParts, 64);
      TQC_UNROLL
      for (std::size_t of_a = 0; of_a + of_b < kPartsA; ++of_a) {
        _tile_loadd(4, a + of_a * kTileParts, 64);
        _tile_loadd(5, a + next_a + of_a * kTileParts, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
}

template <std::size_t kPartsA, std::size_t kPartsB>
TQC_AMX void multiply_split(const PackedView& left, const PackedView& right, std::size_t m,
                            std::size_t n, std::size_t depth, float* y, std::size_t stride) {
  asm volatile("" ::: "memory");  // g++ 12 does not know that loads of tiles read memory
  static const TileConfig kConfig;
  _tile_loadconfig(&kConfig);
  constexpr std::size_t kAtOnce = kProductRows;
  const std::size_t n_deep = depth_tiles(depth);
  const std::size_t next_a = depth_tiles(left.depth) * kPartsA * kTileParts;
  const std::size_t next_b = depth_tiles(right.depth) * kPartsB * kTileParts;
  for (std::size_t column = 0; column < n; column += kAtOnce) {
    const std::uint16_t* const of_b = numbers(right.data) + column / kTileRows * next_b;
    for (std::size_t row = 0; row < m; row += kAtOnce) {
      multiply_deep<kPartsA, kPartsB>(numbers(left.data) + row / kTileRows * next_a, of_b, n_deep,
                                      next_a, next_b);
      const std::size_t n_rows = std::min(kAtOnce, m - row);
      const std::size_t n_columns = std::min(kAtOnce, n - column);
      float* const to = y + row * stride + column;
      if (n_rows == kAtOnce && n_columns == kAtOnce) {
        const std::size_t bytes = stride * sizeof(float);
        _tile_stored(0, to, bytes);
        _tile_stored(1, to + kTileRows, bytes);
        _tile_stored(2, to + kTileRows * stride, bytes);
        _tile_stored(3, to + kTileRows * stride + kTileRows, bytes);
        continue;
      }
      alignas(64) float whole[kAtOnce * kAtOnce];
      constexpr std::size_t kBytes = kAtOnce * sizeof(float);
      _tile_stored(0, whole, kBytes);
      _tile_stored(1, whole + kTileRows, kBytes);
      _tile_stored(2, whole + kTileRows * kAtOnce, kBytes);
      _tile_stored(3, whole + kTileRows * kAtOnce + kTileRows, kBytes);
      for (std::size_t i = 0; i < n_rows; ++i) {
        std::memcpy(to + i * stride, whole + i * kAtOnce, n_columns * sizeof(float));
      }
    }
  }
  _tile_release();
}

void multiply_parts(const PackedView& a, const PackedView& b, std::size_t m, std::size_t n,
                    std::size_t depth, float* y, std::size_t stride) {
  if (a.n_parts == 2) return multiply_split<2, 2>(a, b, m, n, depth, y, stride);
  if (b.n_parts == 1) return multiply_split<3, 1>(a, b, m, n, depth, y, stride);
  if (b.n_parts == 2) return multiply_split<3, 2>(a, b, m, n, depth, y, stride);
  multiply_split<3, 3>(a, b, m, n, depth, y, stride);
}

constexpr MatrixProducts kTiles = {"amx",
                                   /*takes_rows=*/false,
                                   split_bytes,
                                   split_left_rows,
                                   split_right_rows,
                                   split_right_columns,
                                   split_quantized_panel,
                                   place_in_split,
                                   place_in_split,
                                   multiply_parts};

// The system keeps the tiles of a thread only if the process has asked for them. (The number of
// the call and of the feature: Linux, Documentation/arch/x86/xstate.rst.)
bool may_use_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

const MatrixProducts* best_tiles() {
  static const bool takes =
      takes_tiles(find_processor(), codec::best_kernels().isa, wanted_isa()) && may_use_tiles();
  return takes ? &kTiles : nullptr;
}

}  // namespace tqcache::model

#else

namespace tqcache::model {

const MatrixProducts* best_tiles() { return nullptr; }

}  // namespace tqcache::model

#endif

namespace tqcache::model {

bool takes_tiles(const Processor& processor, codec::Isa isa, const char* wanted) {
  const bool is_named = wanted != nullptr && *wanted != 0;
  return processor.amx_bf16 && isa == codec::Isa::kAvx512 && !is_named;
}

}  // namespace tqcache::model
