#pragma once
// codec/rotation_tables.h: what kernels need of a Quantizer, as plain arrays.

#include <cstddef>
#include <cstdint>

#include "tqcache/codec/codec_spec.h"

namespace tqcache::codec {

class Quantizer;

struct RotationTables {
  const Quantizer* quantizer = nullptr;  // the definition, which the scalar kernels call
  std::size_t head_dim = 0;              // for vector kernels: a power of two
  int bits = 0;
  float factor = 0.0f;                                    // 1 / sqrt(head_dim)
  alignas(64) std::uint32_t sign_bits[kMaxHeadDim] = {};  // 0x80000000 where the sign is -1

  // The boundaries as a search tree: the children of node n are 2n + 1 (for a component not above
  // boundary n) and 2n + 2. Code c is reached as node c + 2^bits - 1.
  alignas(64) float boundary_tree[256] = {};
  alignas(64) float centroids[256] = {};  // entry i is that of code i % 2^bits
};

}  // namespace tqcache::codec
