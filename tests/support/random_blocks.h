#pragma once
// support/random_blocks.h: rows of GGUF's quantized blocks, drawn at random.

#include <cstdint>
#include <cstring>
#include <vector>

#include "support/gaussian.h"
#include "tqcache/base/half.h"
#include "tqcache/bytes.h"
#include "tqcache/tensors/block_types.h"

namespace tqcache::test {

// Where a block has its f16 numbers.
inline std::vector<std::size_t> halves_of(tensors::TensorType type) {
  using enum tensors::TensorType;
  switch (type) {
    case kQ4_1:
    case kQ5_1:
    case kQ4_K:
    case kQ5_K:
      return {0, 2};
    case kQ2_K:
      return {80, 82};
    case kQ3_K:
      return {108};
    case kQ6_K:
      return {208};
    default:
      return {0};
  }
}

// Any bytes at all: every pattern of f16 is among the scales.
inline void fill(std::span<std::byte> bytes, SplitMix64& random) {
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
}

// The same with scales as weights have them. Requires: whole blocks.
inline void fill_blocks(const tensors::BlockType& type, std::span<std::byte> blocks,
                        SplitMix64& random) {
  fill(blocks, random);
  for (std::size_t at = 0; at < blocks.size(); at += type.block_bytes) {
    if (type.type == tensors::TensorType::kMXFP4) {  // a power of two: 2^-12 to 2^-5
      blocks[at] = static_cast<std::byte>(116 + random.below(8));
      continue;
    }
    for (const std::size_t half : halves_of(type.type)) {
      const auto scale = f32_to_f16(static_cast<float>(random.uniform() - 0.25) * 0.01f);
      std::memcpy(blocks.data() + at + half, &scale, sizeof(scale));
    }
  }
}

}  // namespace tqcache::test
