// Encoding, decoding, centering and transforms with NEON.

#include "tqcache/codec/kernels/registers_neon.h"

#ifdef TQCACHE_NEON

#include <limits>

#include "tqcache/codec/quantizer.h"

namespace tqcache::codec {
namespace {

// table[index] for a table of 2^kLog floats. Up to sixteen of them are looked up by their bytes.
template <int kLog>
TQC_LANES float32x4_t pick(const float* table, uint32x4_t index) {
  if constexpr (kLog <= 4) {
    const std::uint8_t* const bytes = reinterpret_cast<const std::uint8_t*>(table);
    const uint8x16x4_t all = {
        {vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
    const uint32x4_t places = vmlaq_n_u32(vdupq_n_u32(0x03020100), index, 0x04040404);
    return vreinterpretq_f32_u8(vqtbl4q_u8(all, vreinterpretq_u8_u32(places)));
  } else {
    const float found[kWidth] = {table[vgetq_lane_u32(index, 0)], table[vgetq_lane_u32(index, 1)],
                                 table[vgetq_lane_u32(index, 2)], table[vgetq_lane_u32(index, 3)]};
    return vld1q_f32(found);
  }
}

template <int kBits>
struct Centroids {
  const float* all;
};

template <int kBits>
TQC_LANES Centroids<kBits> load_centroids(const RotationTables& tables) {
  return {tables.centroids};
}

template <int kBits>
TQC_LANES Lanes look_up(const Centroids<kBits>& centroids, LaneBits codes) {
  return pick<kBits>(centroids.all, codes);
}

// The boundaries as a search tree.
template <int kBits>
struct BoundaryTree {
  const float* all;
};

template <int kBits>
TQC_LANES BoundaryTree<kBits> load_tree(const RotationTables& tables) {
  return {tables.boundary_tree};
}

// Extends codes of kLevel bits to kBits bits, down the tree of boundaries. A comparison gives -1 or
// 0, so it is subtracted.
template <int kBits, int kLevel>
TQC_LANES uint32x4_t descend(const float* tree, float32x4_t y, uint32x4_t codes) {
  if constexpr (kLevel == kBits) {
    return codes;
  } else {
    const float32x4_t boundaries = pick<kLevel>(tree + (1 << kLevel) - 1, codes);
    const uint32x4_t below = vsubq_u32(vaddq_u32(codes, codes), vcltq_f32(boundaries, y));
    return descend<kBits, kLevel + 1>(tree, y, below);
  }
}

// The number of boundaries below y.
template <int kBits>
TQC_LANES LaneBits find_codes(const BoundaryTree<kBits>& tree, Lanes y) {
  return descend<kBits, 0>(tree.all, y, vdupq_n_u32(0));
}

TQC_LANES Lanes load_scales(const std::uint16_t* scales, std::size_t n) {
  std::uint16_t padded[kWidth] = {};
  for (std::size_t t = 0; t < n; ++t) padded[t] = scales[t];
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(padded)));
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
  const float32x4_t zero = vdupq_n_f32(0.0f);
  const uint32x4_t is_null = vceqq_f32(lengths, zero);
  const float32x4_t scale = vbslq_f32(is_null, zero, exact);
  const uint32x4_t wide = vmovl_u16(vreinterpret_u16_f16(vcvt_f16_f32(scale)));
  const float32x4_t infinity = vdupq_n_f32(std::numeric_limits<float>::infinity());
  const uint32x4_t in_range = vandq_u32(vcltq_f32(lengths, infinity), vcgeq_f32(scale, zero));
  const uint32x4_t good = vandq_u32(in_range, vcltq_u32(wide, vdupq_n_u32(0x7c00)));
  const uint32x4_t kept = vandq_u32(good, vtstq_u32(wide, wide));

  std::uint32_t is_good[kWidth], is_kept[kWidth], halves[kWidth];
  vst1q_u32(is_good, good);
  vst1q_u32(is_kept, kept);
  vst1q_u32(halves, wide);
  std::uint32_t refused = 0;
  for (std::size_t t = 0; t < kWidth; ++t) {
    if (t >= n) is_kept[t] = 0;
    if (t < n) scales[t] = static_cast<std::uint16_t>(halves[t] & is_good[t]);
    if (t < n && is_good[t] == 0) refused |= 1u << t;
  }
  return {vld1q_u32(is_kept), false, refused};
}

// The tile size for products of small matrices.
constexpr std::size_t kTileRows = 4;
constexpr std::size_t kTileVectors = 4;

}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/kernels/center_lanes.h"
#include "tqcache/codec/kernels/encode_lanes.h"
#include "tqcache/codec/kernels/row_transform_lanes.h"

#endif  // TQCACHE_NEON
