#pragma once
// codec/kernels/codebook_avx512.h: the nearest centroids of sixteen components at once.

#include "tqcache/codec/kernels/kernels_avx512.h"

#ifdef TQCACHE_X86

#include "tqcache/codec/kernels/rotation_tables.h"

namespace tqcache::codec::avx512 {

// table[index] of a table of 2^kLog floats. More bits of the index are not looked at.
template <int kLog>
TQC_AVX512 __m512 pick(const float* table, __m512i index) {
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

// What codes stand for. Up to 5 bits they stay in registers.
template <int kBits>
struct Centroids {
  __m512 low, high;
  const float* all;
};

template <int kBits>
TQC_AVX512 Centroids<kBits> load_centroids(const RotationTables& tables) {
  return {_mm512_load_ps(tables.centroids), _mm512_load_ps(tables.centroids + 16),
          tables.centroids};
}

template <int kBits>
TQC_AVX512 __m512 look_up(const Centroids<kBits>& centroids, __m512i codes) {
  if constexpr (kBits <= 4) return _mm512_permutexvar_ps(codes, centroids.low);
  if constexpr (kBits == 5) {
    return _mm512_permutex2var_ps(centroids.low, codes, centroids.high);
  }
  return pick<kBits>(centroids.all, codes);
}

// The boundaries as a search tree, of which the upper levels stay in registers.
template <int kBits>
struct BoundaryTree {
  static constexpr int kRegisterLevels = kBits < 5 ? kBits : 5;
  __m512 levels[kRegisterLevels];
  const float* all;
};

template <int kBits>
TQC_AVX512 BoundaryTree<kBits> load_tree(const RotationTables& tables) {
  BoundaryTree<kBits> tree;
  TQC_UNROLL for (int level = 0; level < BoundaryTree<kBits>::kRegisterLevels; ++level) {
    tree.levels[level] = _mm512_loadu_ps(tables.boundary_tree + (1 << level) - 1);
  }
  tree.all = tables.boundary_tree;
  return tree;
}

// From codes of kLevel bits to those of kBits.
template <int kBits, int kLevel>
TQC_AVX512 __m512i descend(const BoundaryTree<kBits>& tree, __m512 y, __m512i codes) {
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
TQC_AVX512 __m512i find_codes(const BoundaryTree<kBits>& tree, __m512 y) {
  const __m512 root = _mm512_broadcastss_ps(_mm512_castps512_ps128(tree.levels[0]));
  const __mmask16 above = _mm512_cmp_ps_mask(root, y, _CMP_LT_OQ);
  return descend<kBits, 1>(tree, y, _mm512_maskz_mov_epi32(above, _mm512_set1_epi32(1)));
}

// The boundaries in bins (CodeBins), which stay in registers.
struct BoundaryBins {
  __m512 limit, bins_per_unit;
  __m512 boundaries[2];
  __m512i codes[2];
};

TQC_AVX512 BoundaryBins load_bins(const CodeBins& bins) {
  return {_mm512_set1_ps(bins.limit),
          _mm512_set1_ps(bins.bins_per_unit),
          {_mm512_load_ps(bins.boundaries), _mm512_load_ps(bins.boundaries + 16)},
          {_mm512_load_si512(bins.codes), _mm512_load_si512(bins.codes + 16)}};
}

// The number of boundaries below y.
TQC_AVX512 __m512i find_codes(const BoundaryBins& bins, __m512 y) {
  constexpr int kLeastMagnitude = 2;  // of the two, with the sign of the first
  const __m512 inside = _mm512_range_ps(y, bins.limit, kLeastMagnitude);
  // Neighbors of 1.5 * 2^23 are a distance of 1 apart: the sum has the bin in its last bits.
  const __m512 sum = _mm512_fmadd_ps(inside, bins.bins_per_unit, _mm512_set1_ps(0x1.8p23f));
  const __m512i bin = _mm512_castps_si512(sum);
  const __m512 boundaries = _mm512_permutex2var_ps(bins.boundaries[0], bin, bins.boundaries[1]);
  const __m512i codes = _mm512_permutex2var_epi32(bins.codes[0], bin, bins.codes[1]);
  const __mmask16 above = _mm512_cmp_ps_mask(boundaries, y, _CMP_LT_OQ);
  return _mm512_mask_add_epi32(codes, above, codes, _mm512_set1_epi32(1));
}

}  // namespace tqcache::codec::avx512

#endif  // TQCACHE_X86
