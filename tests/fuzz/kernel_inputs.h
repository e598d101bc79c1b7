#pragma once
// tests/fuzz/kernel_inputs.h: codecs, head vectors and packed blocks that an input makes up.

#include <cstdint>
#include <vector>

#include "fuzz/fuzz.h"
#include "tqcache/codec/head_codec.h"
#include "tqcache/codec/kernels/kernels.h"

namespace tqcache::fuzz {

// What of an input decides the codec: few enough kinds to keep every one that was made.
struct CodecChoice {
  std::uint8_t head_dim = 0, mode = 0, bits = 0, rotation = 0, scale = 0, extra = 0, centroids = 0;
  bool keys = true;
  auto operator<=>(const CodecChoice&) const = default;
};
CodecChoice choose_codec(Input& input);

// The same codec on the scalar table and, unless `table` is 0, on another one of all_kernels().
// Empty: there is no such codec. What was made once is kept.
using Codecs = std::vector<codec::HeadCodec>;
Codecs codecs_of(const CodecChoice& choice, std::size_t table);

// Numbers of several characters: small whole ones, any bits of f16 or f32, and normal ones that are
// all alike, far apart in size, or have a outlier channel.
//
// Shapes: [n, row].
std::vector<float> make_values(Input& input, std::size_t n, std::size_t row);

// A block of one kv head.
struct Block {
  std::vector<std::byte> codes;
  std::vector<std::uint16_t> scales;
  codec::PackedHead view() const { return {codes, scales}; }
};

// Head vectors to be encoded.
struct Vectors {
  std::size_t n_tokens = 0;
  std::size_t n_skipped = 0;
  std::vector<std::byte> bytes;
  codec::VectorRows rows;
};
Vectors make_vectors(Input& input, std::size_t head_dim);

// Codes and scales as a file may have them: any.
Block any_block(const codec::HeadCodec& codec, Input& input);

// What is taken out of the vectors, which turns or does not.
struct CenterTables {
  std::vector<float> mean, cos, sin;
  codec::Center center;
};
CenterTables make_center(Input& input, std::size_t head_dim);

}  // namespace tqcache::fuzz
