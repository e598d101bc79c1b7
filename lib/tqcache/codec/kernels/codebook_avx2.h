#pragma once
// codec/kernels/codebook_avx2.h: the nearest centroids of eight components at once.

#include "tqcache/codec/kernels/kernels_avx2.h"

#ifdef TQCACHE_X86

#include "tqcache/codec/kernels/rotation_tables.h"

namespace tqcache::codec::avx2 {

// table[index] of a table of 2^kLog floats. More bits of the index may be set only if kLog is 3 to
// 5. Beyond 32 floats a gather is as fast as what it takes without.
template <int kLog>
TQC_AVX2 __m256 pick(const float* table, __m256i index) {
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

// What codes stand for. Up to 4 bits they stay in registers.
template <int kBits>
struct Centroids {
  __m256 low, high;
  const float* all;
};

template <int kBits>
TQC_AVX2 Centroids<kBits> load_centroids(const RotationTables& tables) {
  return {_mm256_load_ps(tables.centroids), _mm256_load_ps(tables.centroids + kWidth),
          tables.centroids};
}

template <int kBits>
TQC_AVX2 __m256 look_up(const Centroids<kBits>& centroids, __m256i codes) {
  if constexpr (kBits <= 3) return _mm256_permutevar8x32_ps(centroids.low, codes);
  if constexpr (kBits == 4) {
    const __m256 low = _mm256_permutevar8x32_ps(centroids.low, codes);
    const __m256 high = _mm256_permutevar8x32_ps(centroids.high, codes);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
  }
  return pick<kBits>(centroids.all, codes);
}

// The boundaries as a search tree, of which the upper levels stay in registers.
template <int kBits>
struct BoundaryTree {
  static constexpr int kRegisterLevels = kBits < 4 ? kBits : 4;
  __m256 levels[kRegisterLevels];
  const float* all;
};

template <int kBits>
TQC_AVX2 BoundaryTree<kBits> load_tree(const RotationTables& tables) {
  BoundaryTree<kBits> tree;
  TQC_UNROLL for (int level = 0; level < BoundaryTree<kBits>::kRegisterLevels; ++level) {
    tree.levels[level] = _mm256_loadu_ps(tables.boundary_tree + (1 << level) - 1);
  }
  tree.all = tables.boundary_tree;
  return tree;
}

// From codes of kLevel bits to those of kBits. What is compared gives -1, or 0, so it is taken
// away.
template <int kBits, int kLevel>
TQC_AVX2 __m256i descend(const BoundaryTree<kBits>& tree, __m256 y, __m256i codes) {
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
TQC_AVX2 __m256i find_codes(const BoundaryTree<kBits>& tree, __m256 y) {
  const __m256 root = _mm256_broadcastss_ps(_mm256_castps256_ps128(tree.levels[0]));
  const __m256i above = _mm256_castps_si256(_mm256_cmp_ps(root, y, _CMP_LT_OQ));
  return descend<kBits, 1>(tree, y, _mm256_sub_epi32(_mm256_setzero_si256(), above));
}

}  // namespace tqcache::codec::avx2

#endif  // TQCACHE_X86
