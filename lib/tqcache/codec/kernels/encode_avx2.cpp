// Encoding, decoding, centering and transforms with AVX2.

#include "tqcache/codec/kernels/registers_avx2.h"

#ifdef TQCACHE_X86

#include <limits>

#include "tqcache/codec/quantizer.h"

namespace tqcache::codec {
namespace {

// table[index] for a table of 2^kLog floats. More bits of the index may be set only if kLog is 3 to
// 5. Beyond 32 floats a gather is as fast as the alternatives.
template <int kLog>
TQC_LANES __m256 pick(const float* table, __m256i index) {
  if constexpr (kLog <= 3) {
    return _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), index);
  } else if constexpr (kLog <= 5) {
    constexpr int kToSignBit = 32 - kLog;
    const __m256i upper = _mm256_slli_epi32(index, kToSignBit);
    return _mm256_blendv_ps(pick<kLog - 1>(table, index),
                            pick<kLog - 1>(table + (1 << (kLog - 1)), index),
                            _mm256_castsi256_ps(upper));
  } else {
    return _mm256_i32gather_ps(table, index, 4);
  }
}

// The centroids. Up to 4 bits they stay in registers.
template <int kBits>
struct Centroids {
  __m256 low, high;
  const float* all;
};

template <int kBits>
TQC_LANES Centroids<kBits> load_centroids(const RotationTables& tables) {
  return {_mm256_load_ps(tables.centroids), _mm256_load_ps(tables.centroids + kWidth),
          tables.centroids};
}

template <int kBits>
TQC_LANES Lanes look_up(const Centroids<kBits>& centroids, LaneBits bits) {
  const __m256i codes = reinterpret_cast<__m256i>(bits);
  if constexpr (kBits <= 3) return _mm256_permutevar8x32_ps(centroids.low, codes);
  if constexpr (kBits == 4) {
    const __m256 low = _mm256_permutevar8x32_ps(centroids.low, codes);
    const __m256 high = _mm256_permutevar8x32_ps(centroids.high, codes);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
  }
  return pick<kBits>(centroids.all, codes);
}

// The boundaries as a search tree, whose upper levels stay in registers.
template <int kBits>
struct BoundaryTree {
  static constexpr int kRegisterLevels = kBits < 4 ? kBits : 4;
  __m256 levels[kRegisterLevels];
  const float* all;
};

template <int kBits>
TQC_LANES BoundaryTree<kBits> load_tree(const RotationTables& tables) {
  BoundaryTree<kBits> tree;
  TQC_UNROLL for (int level = 0; level < BoundaryTree<kBits>::kRegisterLevels; ++level) {
    tree.levels[level] = _mm256_loadu_ps(tables.boundary_tree + (1 << level) - 1);
  }
  tree.all = tables.boundary_tree;
  return tree;
}

// Extends codes of kLevel bits to kBits bits. A comparison gives -1 or 0, so it is subtracted.
template <int kBits, int kLevel>
TQC_LANES __m256i descend(const BoundaryTree<kBits>& tree, __m256 y, __m256i codes) {
  if constexpr (kLevel == kBits) {
    return codes;
  } else {
    __m256 boundaries;
    if constexpr (kLevel < BoundaryTree<kBits>::kRegisterLevels) {
      boundaries = _mm256_permutevar8x32_ps(tree.levels[kLevel], codes);
    } else {
      boundaries = pick<kLevel>(tree.all + (1 << kLevel) - 1, codes);
    }
    const __m256i above = _mm256_castps_si256(_mm256_cmp_ps(boundaries, y, _CMP_LT_OQ));
    codes = _mm256_sub_epi32(_mm256_add_epi32(codes, codes), above);
    return descend<kBits, kLevel + 1>(tree, y, codes);
  }
}

// The number of boundaries below y.
template <int kBits>
TQC_LANES LaneBits find_codes(const BoundaryTree<kBits>& tree, Lanes y) {
  const __m256 root = _mm256_broadcastss_ps(_mm256_castps256_ps128(tree.levels[0]));
  const __m256i above = _mm256_castps_si256(_mm256_cmp_ps(root, y, _CMP_LT_OQ));
  const __m256i codes = descend<kBits, 1>(tree, y, _mm256_sub_epi32(_mm256_setzero_si256(), above));
  return reinterpret_cast<LaneBits>(codes);
}

TQC_LANES Lanes load_scales(const std::uint16_t* scales, std::size_t n) {
  alignas(16) std::uint16_t padded[kWidth] = {};
  for (std::size_t t = 0; t < n; ++t) padded[t] = scales[t];
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(padded)));
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
  const __m256 zero = _mm256_setzero_ps();
  const __m256 scale = _mm256_and_ps(_mm256_cmp_ps(lengths, zero, _CMP_NEQ_UQ), exact);
  const __m128i halves = _mm256_cvtps_ph(scale, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256i wide = _mm256_cvtepu16_epi32(halves);
  const __m256 infinity = _mm256_set1_ps(std::numeric_limits<float>::infinity());
  const __m256 in_range = _mm256_and_ps(_mm256_cmp_ps(lengths, infinity, _CMP_LT_OQ),
                                        _mm256_cmp_ps(scale, zero, _CMP_GE_OQ));
  const __m256i good = _mm256_and_si256(_mm256_castps_si256(in_range),
                                        _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7c00), wide));
  const __m256i used = first_lanes(n);
  const __m256i is_zero = _mm256_cmpeq_epi32(wide, _mm256_setzero_si256());
  const __m256i kept = _mm256_andnot_si256(is_zero, _mm256_and_si256(good, used));

  alignas(32) std::uint32_t kept_scales[kWidth];
  _mm256_store_si256(reinterpret_cast<__m256i*>(kept_scales), _mm256_and_si256(wide, good));
  for (std::size_t t = 0; t < n; ++t) scales[t] = static_cast<std::uint16_t>(kept_scales[t]);
  const __m256i refused = _mm256_andnot_si256(good, used);
  return {reinterpret_cast<LaneBits>(kept), _mm256_movemask_epi8(kept) == -1,
          static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(refused)))};
}

// The tile size for products of small matrices.
constexpr std::size_t kTileRows = 4;
constexpr std::size_t kTileVectors = 2;

}  // namespace

// Transposes each group of sixteen bytes (four tokens of four components), then the four by four
// matrix of these groups.
TQC_LANES_FUNCTION void avx2::transpose_lines(const std::uint8_t* in, std::uint8_t* out) {
  const __m128i transposed = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (std::size_t l = 0; l < 4; ++l) {
    for (std::size_t k = 0; k < 4; ++k) {
      const __m128i four =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + l * kLineBytes + 16 * k));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + k * kLineBytes + 16 * l),
                       _mm_shuffle_epi8(four, transposed));
    }
  }
}

}  // namespace tqcache::codec

#include "tqcache/codec/kernels/center_lanes.h"
#include "tqcache/codec/kernels/encode_lanes.h"
#include "tqcache/codec/kernels/row_transform_lanes.h"

#endif  // TQCACHE_X86
