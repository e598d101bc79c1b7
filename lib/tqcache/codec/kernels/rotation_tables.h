#pragma once
// codec/kernels/rotation_tables.h: what kernels need of a Quantizer, as plain arrays.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/codec/codec_spec.h"

namespace tqcache::codec {

class Quantizer;

// The boundaries of a codebook in bins of equal width, at most one in each: who knows the bin of y
// has the number of boundaries below y by one comparison. Bin k from -15 to 15 is entry k mod 32.
//
// The bin of y is y * bins_per_unit rounded to a whole number (ties to even), with y at most
// `limit` in magnitude. That is done the same way for boundaries, and never turns two numbers
// round, so codes are exact whatever the rounding.
struct CodeBins {
  bool is_usable = false;  // false: there is no such width; the rest is not set
  float limit = 0.0f;      // the largest |boundary|
  float bins_per_unit = 0.0f;
  alignas(64) float boundaries[32] = {};    // infinity in bins without one
  alignas(64) std::int32_t codes[32] = {};  // the number of boundaries in lower bins
};

// Shapes: boundaries [2^bits - 1], ascending.
CodeBins make_code_bins(std::span<const float> boundaries);

// Requires: the quantizer stays where it is for as long as this is used.
struct RotationTables {
  explicit RotationTables(const Quantizer& from);

  const Quantizer* quantizer;  // the definition, which the scalar kernels call
  std::size_t head_dim;
  int bits;
  ScaleRule scale;
  TransformKind rotation;

  // Of kHadamard; of other rotations no sign is set, and the factor is 1.
  std::size_t rounds;
  std::size_t part_size;   // a power of two; head_dim / part_size parts, an odd number
  float factor;            // 1 / sqrt(head_dim)
  std::vector<float> cas;  // [parts]
  // [rounds, head_dim], and zeros behind that a vector unit may read: 0x80000000 where a sign is
  // -1.
  std::vector<std::uint32_t, AlignedAllocator<std::uint32_t>> sign_bits;

  // Of kDenseQr, kGaussian and kMatrix: [head_dim, head_dim].
  const float* matrix;

  // The boundaries as a search tree: the children of node n are 2n + 1 (for a component not above
  // boundary n) and 2n + 2. Code c is reached as node c + 2^bits - 1.
  alignas(64) float boundary_tree[256] = {};
  CodeBins bins;
  alignas(64) float centroids[256] = {};  // entry i is that of code i % 2^bits
};

}  // namespace tqcache::codec
