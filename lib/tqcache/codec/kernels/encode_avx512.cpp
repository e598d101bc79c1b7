// Encoding, decoding, centering and transforms with AVX-512.

#include "tqcache/codec/kernels/registers_avx512.h"

#ifdef TQCACHE_X86

#include <limits>

#include "tqcache/codec/quantizer.h"

#define TQC_CODE_BINS

namespace tqcache::codec {
namespace {

// table[index] for a table of 2^kLog floats. Further bits of the index are ignored.
template <int kLog>
TQC_LANES __m512 pick(const float* table, __m512i index) {
  if constexpr (kLog <= 4) {
    return _mm512_permutexvar_ps(index, _mm512_loadu_ps(table));
  } else if constexpr (kLog == 5) {
    return _mm512_permutex2var_ps(_mm512_loadu_ps(table), index, _mm512_loadu_ps(table + 16));
  } else {
    constexpr int kHalf = 1 << (kLog - 1);
    const __mmask16 upper = _mm512_test_epi32_mask(index, _mm512_set1_epi32(kHalf));
    return _mm512_mask_blend_ps(upper, pick<kLog - 1>(table, index),
                                pick<kLog - 1>(table + kHalf, index));
  }
}

// The centroids. Up to 5 bits they stay in registers.
template <int kBits>
struct Centroids {
  __m512 low, high;
  const float* all;
};

template <int kBits>
TQC_LANES Centroids<kBits> load_centroids(const RotationTables& tables) {
  return {_mm512_load_ps(tables.centroids), _mm512_load_ps(tables.centroids + 16),
          tables.centroids};
}

template <int kBits>
TQC_LANES Lanes look_up(const Centroids<kBits>& centroids, LaneBits bits) {
  const __m512i codes = reinterpret_cast<__m512i>(bits);
  if constexpr (kBits <= 4) return _mm512_permutexvar_ps(codes, centroids.low);
  if constexpr (kBits == 5) {
    return _mm512_permutex2var_ps(centroids.low, codes, centroids.high);
  }
  return pick<kBits>(centroids.all, codes);
}

// The boundaries as a search tree, whose upper levels stay in registers.
template <int kBits>
struct BoundaryTree {
  static constexpr int kRegisterLevels = kBits < 5 ? kBits : 5;
  __m512 levels[kRegisterLevels];
  const float* all;
};

template <int kBits>
TQC_LANES BoundaryTree<kBits> load_tree(const RotationTables& tables) {
  BoundaryTree<kBits> tree;
  TQC_UNROLL for (int level = 0; level < BoundaryTree<kBits>::kRegisterLevels; ++level) {
    tree.levels[level] = _mm512_loadu_ps(tables.boundary_tree + (1 << level) - 1);
  }
  tree.all = tables.boundary_tree;
  return tree;
}

// Extends codes of kLevel bits to kBits bits.
template <int kBits, int kLevel>
TQC_LANES __m512i descend(const BoundaryTree<kBits>& tree, __m512 y, __m512i codes) {
  if constexpr (kLevel == kBits) {
    return codes;
  } else {
    __m512 boundaries;
    if constexpr (kLevel < BoundaryTree<kBits>::kRegisterLevels) {
      boundaries = _mm512_permutexvar_ps(codes, tree.levels[kLevel]);
    } else {
      boundaries = pick<kLevel>(tree.all + (1 << kLevel) - 1, codes);
    }
    const __mmask16 above = _mm512_cmp_ps_mask(boundaries, y, _CMP_LT_OQ);
    codes = _mm512_add_epi32(codes, codes);
    codes = _mm512_mask_add_epi32(codes, above, codes, _mm512_set1_epi32(1));
    return descend<kBits, kLevel + 1>(tree, y, codes);
  }
}

// The number of boundaries below y.
template <int kBits>
TQC_LANES LaneBits find_codes(const BoundaryTree<kBits>& tree, __m512 y) {
  const __m512 root = _mm512_broadcastss_ps(_mm512_castps512_ps128(tree.levels[0]));
  const __mmask16 above = _mm512_cmp_ps_mask(root, y, _CMP_LT_OQ);
  const __m512i codes = _mm512_maskz_mov_epi32(above, _mm512_set1_epi32(1));
  return reinterpret_cast<LaneBits>(descend<kBits, 1>(tree, y, codes));
}

// The boundaries in bins (CodeBins), which stay in registers.
struct BoundaryBins {
  __m512 limit, bins_per_unit;
  __m512 boundaries[2];
  __m512i codes[2];
};

TQC_LANES BoundaryBins load_bins(const CodeBins& bins) {
  return {_mm512_set1_ps(bins.limit),
          _mm512_set1_ps(bins.bins_per_unit),
          {_mm512_load_ps(bins.boundaries), _mm512_load_ps(bins.boundaries + 16)},
          {_mm512_load_si512(bins.codes), _mm512_load_si512(bins.codes + 16)}};
}

// The number of boundaries below y.
TQC_LANES LaneBits find_codes(const BoundaryBins& bins, __m512 y) {
  constexpr int kLeastMagnitude = 2;  // the smaller magnitude, with the sign of the first operand
  const __m512 inside = _mm512_range_ps(y, bins.limit, kLeastMagnitude);
  // Floats near 1.5 * 2^23 have a spacing of 1, so the last bits of the sum are the bin.
  const __m512 sum = _mm512_fmadd_ps(inside, bins.bins_per_unit, _mm512_set1_ps(0x1.8p23f));
  const __m512i bin = _mm512_castps_si512(sum);
  const __m512 boundaries = _mm512_permutex2var_ps(bins.boundaries[0], bin, bins.boundaries[1]);
  const __m512i codes = _mm512_permutex2var_epi32(bins.codes[0], bin, bins.codes[1]);
  const __mmask16 above = _mm512_cmp_ps_mask(boundaries, y, _CMP_LT_OQ);
  return reinterpret_cast<LaneBits>(
      _mm512_mask_add_epi32(codes, above, codes, _mm512_set1_epi32(1)));
}

TQC_LANES Lanes load_scales(const std::uint16_t* scales, std::size_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(part_of(n), scales));
}

// Lanes whose codes are kept, and a bit for each rejected vector.
struct SettledScales {
  LaneBits kept;
  bool all_kept;
  std::uint32_t refused;
};

// A vector of length 0 has scale 0. Results of NaN and infinity in x are not finite.
TQC_LANES SettledScales settle_scales(Lanes lengths, Lanes exact, std::size_t n,
                                      std::uint16_t* scales) {
  const __m512 zero = _mm512_setzero_ps();
  const __m512 scale = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(lengths, zero, _CMP_NEQ_UQ), exact);
  const __m256i halves = _mm512_cvtps_ph(scale, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 infinity = _mm512_set1_ps(std::numeric_limits<float>::infinity());
  const __mmask16 good = _mm512_cmp_ps_mask(lengths, infinity, _CMP_LT_OQ) &
                         _mm512_cmp_ps_mask(scale, zero, _CMP_GE_OQ) &
                         _mm256_cmplt_epu16_mask(halves, _mm256_set1_epi16(0x7c00));
  const __mmask16 used = part_of(n);
  const __mmask16 kept = good & used & _mm256_test_epi16_mask(halves, halves);
  _mm256_mask_storeu_epi16(scales, used, _mm256_maskz_mov_epi16(good, halves));
  return {reinterpret_cast<LaneBits>(_mm512_maskz_set1_epi32(kept, -1)), kept == 0xffff,
          static_cast<std::uint32_t>(used & ~good)};
}

// The tile size for products of small matrices.
constexpr std::size_t kTileRows = 8;
constexpr std::size_t kTileVectors = 2;

}  // namespace

// Transposes each group of sixteen bytes (four tokens of four components), then the four by four
// matrix of these groups.
TQC_LANES_FUNCTION void avx512::transpose_lines(const std::uint8_t* in, std::uint8_t* out) {
  const __m512i transposed =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  __m512i lines[4];
  TQC_UNROLL for (std::size_t l = 0; l < 4; ++l) {
    lines[l] = _mm512_shuffle_epi8(_mm512_loadu_si512(in + 64 * l), transposed);
  }
  const __m512i even_low = _mm512_shuffle_i32x4(lines[0], lines[1], 0x88);
  const __m512i odd_low = _mm512_shuffle_i32x4(lines[0], lines[1], 0xdd);
  const __m512i even_high = _mm512_shuffle_i32x4(lines[2], lines[3], 0x88);
  const __m512i odd_high = _mm512_shuffle_i32x4(lines[2], lines[3], 0xdd);
  _mm512_storeu_si512(out, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
  _mm512_storeu_si512(out + 64, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
  _mm512_storeu_si512(out + 128, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
  _mm512_storeu_si512(out + 192, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
}

}  // namespace tqcache::codec

#include "tqcache/codec/kernels/center_lanes.h"
#include "tqcache/codec/kernels/encode_lanes.h"
#include "tqcache/codec/kernels/row_transform_lanes.h"

#endif  // TQCACHE_X86
