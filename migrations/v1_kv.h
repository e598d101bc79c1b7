#pragma once
// migrations/v1_kv.h: K or V of a layer, from the tensors of a file of version 1.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "migrations/v1_layers.h"
#include "migrations/v1_tensors.h"
#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/codec_spec.h"
#include "tqcache/error.h"

namespace tqcache::migrations {

// Packed codes of version 1: one bit stream per head vector, least significant bit first, padded to
// a whole byte.
struct CodeRows {
  ByteView bytes;           // [n_kv_heads, n_tokens, packed_size(n_codes, bits)]
  std::size_t n_codes = 0;  // of a head vector
  int bits = 0;
};

// One quantizer of version 1, or one column of groups: a codec part of version 2, if it exists
// there. The channels of a head vector are R^T (scale * factor * c[codes]) + bias.
struct QuantizedPart {
  codec::PartSpec spec;
  std::size_t rows = 0;        // index in QuantizedTensor::rows
  std::size_t first_code = 0;  // in such a row
  float factor = 1;            // a power of two: scale of version 2 / scale of version 1
  std::vector<float> scales;   // [n_kv_heads, n_tokens]
  std::vector<float> biases;   // the same; empty without spec.has_bias
};

// Quantized keys or values of a file of version 1.
struct QuantizedTensor {
  cache::HeadShape shape;
  std::int64_t n_tokens = 0;
  std::vector<CodeRows> rows;
  std::vector<QuantizedPart> parts;  // in the terms of version 2
  std::vector<std::uint16_t>
      outliers;  // outlier channels, which come first in every head, ascending
};

// The reason why version 2 has no codec with these parts; nullopt if it has one.
std::optional<std::string> why_no_codec(std::int64_t head_dim,
                                        const std::vector<codec::PartSpec>& parts);

// Keeps the codes: full token blocks become packed blocks with the same codes and scales, and the
// tokens after them are decoded into the dense tail, as f32. If version 2 has no such codec, or f16
// cannot represent a scale, all tokens are decoded to dense f32, and a note is added.
//
// Errors: kCorrupt (a value that is not finite), kTooLarge.
Result<cache::Tensor> quantized_tensor(const QuantizedTensor& in, codec::BlockOrder order,
                                       std::string_view place, MigrationContext& context);

// The rows of a dense tensor, bit for bit.
// Errors: kCorrupt (not numbers, or one that is not finite), kTooLarge. Requires: grid_of(tensor)
//         is {n_kv_heads, n_tokens, head_dim}.
Result<cache::DenseTensor> dense_tensor(const V1Tensor& tensor, cache::HeadShape shape,
                                        std::int64_t n_tokens, MigrationContext& context);

}  // namespace tqcache::migrations
